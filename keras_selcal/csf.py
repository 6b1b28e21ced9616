"""Confidence score functions (CSFs): how sure a classifier is of its answer.

A CSF g maps probabilities of shape (..., k) to scores of shape (...): the larger,
the surer. Each knows its support [lo, hi], by which the soft CDF brings scores of
every kind and every k onto [0, 1].

| name            | g(p)                          | support    |
|-----------------|-------------------------------|------------|
| `"msp"`         | max p                         | [0, 1]     |
| `"margin"`      | largest p − second largest p  | [0, 1]     |
| `"neg_entropy"` | Σ p ln p                      | [−ln k, 0] |

Wherever the library takes `csf=`, it takes one of these names, one of these
objects, or a callable of one's own:

```python
@keras.saving.register_keras_serializable("mine")
def collision(probabilities):
    return keras.ops.sum(probabilities**2, axis=-1)

collision.support = lambda num_classes: (1 / num_classes, 1.0)
loss = keras_selcal.AULoss(csf=collision)
```

`support` is a pair or a function of the number of classes that returns one; without
it the support is [0, 1]. Scores beyond the support count as lying on its nearer end.

References:
- Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
  Out-of-Distribution Examples in Neural Networks](https://arxiv.org/abs/1610.02136)
- Belghazi & Lopez-Paz, [What classifiers know what they
  don't?](https://arxiv.org/abs/2107.06217)
- Liu et al., [Energy-based Out-of-distribution
  Detection](https://arxiv.org/abs/2010.03759)
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_selcal._ops import Tensor, as_float, safe_log
from keras_selcal._saving import deserialize_if_config, serialize_callable
from keras_selcal._validation import refuse

Support = tuple[float, float]


class ConfidenceScore:
    """A confidence score function together with its support.

    Args:
        function: maps probabilities (..., k) to scores (...).
        support: a pair (lo, hi), or a function of k that returns one.

    Example:
    >>> import numpy as np
    >>> csf = ConfidenceScore(lambda p: p[..., 0], support=(0, 1))
    >>> float(csf(np.array([0.25, 0.75])))
    0.25
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        support: Support | Callable[[int], Support] = (0.0, 1.0),
    ) -> None:
        self.function = function
        self._support = support
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, probabilities: Any) -> Tensor:
        return self.function(as_float(probabilities))

    def from_log_probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Returns the scores for ln p."""
        return self(ops.exp(log_probabilities))

    def support(self, num_classes: int) -> Support:
        """Returns (lo, hi) for `num_classes` classes."""
        pair = self._support
        lo, hi = pair(num_classes) if callable(pair) else pair
        if not lo < hi:
            refuse("support", (lo, hi), f"a pair lo < hi for csf {self.__name__}")
        return float(lo), float(hi)

    def serialize(self) -> Any:
        """Returns what `get` turns back into this score."""
        if _BUILT_IN.get(self.__name__) is self:
            return self.__name__
        return serialize_callable(self.function)

    def __repr__(self) -> str:
        return f"<confidence score function {self.__name__}>"


class _TopOfLogProbabilities(ConfidenceScore):
    """A score of the largest probabilities: only those leave log space."""

    def __init__(self, function: Callable[[Tensor], Tensor], largest: int) -> None:
        super().__init__(function)
        self._largest = largest

    def from_log_probabilities(self, log_probabilities: Tensor) -> Tensor:
        if self._largest == 1:
            return ops.exp(ops.max(log_probabilities, axis=-1))
        top = ops.top_k(log_probabilities, self._largest)[0]
        return self(ops.exp(top))


def _msp(probabilities: Tensor) -> Tensor:
    """Maximum softmax probability, max p."""
    return ops.max(probabilities, axis=-1)


def _margin(probabilities: Tensor) -> Tensor:
    """Softmax margin, the largest probability minus the second largest."""
    top = ops.top_k(probabilities, 2)[0]
    return top[..., 0] - top[..., 1]


def _neg_entropy(probabilities: Tensor) -> Tensor:
    """Negative entropy Σ p ln p in nats, with 0·ln 0 = 0."""
    return ops.sum(probabilities * safe_log(probabilities), axis=-1)


def _entropy_support(num_classes: int) -> Support:
    return -math.log(num_classes), 0.0


msp = _TopOfLogProbabilities(_msp, largest=1)
margin = _TopOfLogProbabilities(_margin, largest=2)
neg_entropy = ConfidenceScore(_neg_entropy, support=_entropy_support)

for _name, _score in (("msp", msp), ("margin", margin), ("neg_entropy", neg_entropy)):
    _score.__name__ = _name
_BUILT_IN = {score.__name__: score for score in (msp, margin, neg_entropy)}


def get(identifier: Any) -> ConfidenceScore:
    """Returns the confidence score function that `identifier` means.

    Args:
        identifier: `"msp"`, `"margin"`, `"neg_entropy"`, a `ConfidenceScore`, a
            callable (its attribute `support`, if it has one, tells its support), or
            the config of a registered callable.

    Example:
    >>> get("msp") is msp
    True
    """
    identifier = deserialize_if_config(identifier)
    if isinstance(identifier, ConfidenceScore):
        return identifier
    if isinstance(identifier, str) and identifier in _BUILT_IN:
        return _BUILT_IN[identifier]
    if callable(identifier):
        return ConfidenceScore(identifier, getattr(identifier, "support", (0.0, 1.0)))
    listed = ", ".join(repr(name) for name in _BUILT_IN)
    refuse("csf", identifier, f"one of {listed}, or a callable")
