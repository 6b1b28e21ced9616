"""Confidence score functions (CSFs).

A CSF g maps probabilities of shape (..., k) to scores of shape (...); a larger score
means higher confidence. Each CSF has a support [lo, hi], with which the soft CDF scales
scores of every kind and every k to [0, 1].

| name            | g(p)                          | support    |
|-----------------|-------------------------------|------------|
| `"msp"`         | max p                         | [0, 1]     |
| `"margin"`      | largest p − second largest p  | [0, 1]     |
| `"neg_entropy"` | Σ p ln p                      | [−ln k, 0] |

The argument `csf=` of this library takes one of these names, one of these objects, or
any callable:

```python
@keras.saving.register_keras_serializable("mine")
def collision(probabilities):
    return keras.ops.sum(probabilities**2, axis=-1)

collision.support = lambda num_classes: (1 / num_classes, 1.0)
loss = keras_selcal.AULoss(csf=collision)
```

`support` is a pair, or a function of the number of classes that returns one, and
defaults to [0, 1]. Scores outside the support count as its nearer end.

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

import numpy as np
from keras import ops

from keras_selcal._core.ops import TINY, Tensor, as_float, top_two
from keras_selcal._core.saving import (
    deserialize_if_config,
    serializable,
    serialize_callable,
)
from keras_selcal._core.validation import refuse

Support = tuple[float, float]
_UNIT: Support = (0.0, 1.0)


@serializable
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
        support: Support | Callable[[int], Support] = _UNIT,
    ) -> None:
        self.function: Callable[..., Any] = function
        self._support = support
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, probabilities: Any) -> Tensor:
        return self.function(as_float(probabilities))

    def from_log_probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Returns the scores for ln p."""
        return self(ops.exp(log_probabilities))

    def scores(self, probabilities: Any, xp: Any = ops) -> Any:
        """Returns the scores; with `xp=numpy` as a NumPy array."""
        if xp is np:
            return np.asarray(ops.convert_to_numpy(self(probabilities)), "float64")
        return self(probabilities)

    def log_odds(self, probabilities: Any, xp: Any = ops) -> Any:
        """Returns ln u − ln(1 − u), u = (s − lo)/(hi − lo) the score on [0, 1].

        Finite: a score on an end of the support counts as 1e-37 away from it.
        """
        lo, hi = self.support(probabilities.shape[-1])
        s = self.scores(probabilities, xp)
        return _log(s - lo, xp) - _log(hi - s, xp)

    def log_odds_from_log_probabilities(
        self, log_probabilities: Any, xp: Any = ops
    ) -> Any:
        """Returns the log-odds of the scores for ln p.

        The built-in scores compute them from ln p of the other classes, so that they
        keep rising where the score itself is rounded to the end of its support.
        """
        return self.log_odds(xp.exp(log_probabilities), xp)

    def support(self, num_classes: int) -> Support:
        """Returns (lo, hi) for `num_classes` classes."""
        pair = self._support
        lo, hi = pair(num_classes) if callable(pair) else pair
        if not lo < hi:
            refuse("support", (lo, hi), f"a pair lo < hi for csf {self.__name__}")
        return float(lo), float(hi)

    @property
    def built_in(self) -> bool:
        """Whether the score is one of this module's own."""
        return _BUILT_IN.get(self.__name__) is self

    def serialize(self) -> Any:
        """Returns a name or config from which `get` restores this score."""
        if self.built_in:
            return self.__name__
        if self._support == getattr(self.function, "support", _UNIT):
            return serialize_callable(self.function)
        return serialize_callable(self)

    def get_config(self) -> dict[str, Any]:
        support: Any = self._support
        if callable(support):
            support = serialize_callable(support)
        return {"function": serialize_callable(self.function), "support": support}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ConfidenceScore":
        support = deserialize_if_config(config["support"])
        support = support if callable(support) else tuple(support)
        return cls(deserialize_if_config(config["function"]), support)

    def __repr__(self) -> str:
        return f"<confidence score function {self.__name__}>"


class _BuiltIn(ConfidenceScore):
    """A score with formulas that work with `keras.ops` and with NumPy.

    Args:
        name: the name that `get` finds it by.
        function: maps probabilities and a namespace to scores.
        of_logs: maps ln p to scores.
        log_odds: maps ln p and a namespace to the log-odds of the scores.
        support: as in `ConfidenceScore`.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        of_logs: Callable[[Tensor], Tensor],
        log_odds: Callable[[Any, Any], Any],
        support: Support | Callable[[int], Support] = _UNIT,
    ) -> None:
        super().__init__(function, support)
        self.__name__ = name
        self._of_logs = of_logs
        self._log_odds = log_odds

    def scores(self, probabilities: Any, xp: Any = ops) -> Any:
        return self.function(probabilities, xp)

    def from_log_probabilities(self, log_probabilities: Tensor) -> Tensor:
        return self._of_logs(log_probabilities)

    def log_odds_from_log_probabilities(
        self, log_probabilities: Any, xp: Any = ops
    ) -> Any:
        return self._log_odds(log_probabilities, xp)


def _log(x: Any, xp: Any) -> Any:
    return xp.log(xp.maximum(x, TINY))


def _log_sum_exp(x: Any, xp: Any) -> Any:
    top = xp.max(x, axis=-1)
    return top + xp.log(xp.sum(xp.exp(x - top[..., None]), axis=-1))


def _split(log_p: Any, xp: Any) -> tuple[Any, Any]:
    """Returns the largest ln p, and all of them with that one removed."""
    classes = xp.arange(log_p.shape[-1])
    first = classes == xp.argmax(log_p, axis=-1)[..., None]
    return xp.max(log_p, axis=-1), xp.where(first, _STRUCK_OUT, log_p)


# A logarithm of 0 that stays finite in differences.
_STRUCK_OUT = -1e30


def _msp(probabilities: Any, xp: Any = ops) -> Any:
    """Maximum softmax probability, max p."""
    return xp.max(probabilities, axis=-1)


def _msp_of_logs(log_p: Tensor) -> Tensor:
    return ops.exp(ops.amax(log_p, axis=-1))


def _msp_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln p_1 − ln Σ_{c≠1} p_c."""
    top, others = _split(log_p, xp)
    return top - _log_sum_exp(others, xp)


def _margin(probabilities: Any, xp: Any = ops) -> Any:
    """Softmax margin, the largest probability minus the second largest."""
    if xp is np:
        top = np.partition(probabilities, -2, axis=-1)[..., -2:]
        return top[..., 1] - top[..., 0]
    first, second = top_two(probabilities)
    return (first - second)[..., 0]


def _margin_of_logs(log_p: Tensor) -> Tensor:
    first, second = top_two(log_p)
    return (-ops.exp(first) * ops.expm1(second - first))[..., 0]


def _margin_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(p_1 − p_2) − ln(p_2 + Σ_{c≠1} p_c)."""
    top, others = _split(log_p, xp)
    second = xp.max(others, axis=-1)
    margin = top + _log(-xp.expm1(second - top), xp)
    return margin - xp.logaddexp(second, _log_sum_exp(others, xp))


def _neg_entropy(probabilities: Any, xp: Any = ops) -> Any:
    """Negative entropy Σ p ln p in nats, with 0·ln 0 = 0."""
    return xp.sum(probabilities * _log(probabilities, xp), axis=-1)


def _neg_entropy_of_logs(log_p: Tensor) -> Tensor:
    return ops.sum(ops.exp(log_p) * log_p, axis=-1)


def _neg_entropy_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(1 − H/ln k) − ln(H/ln k).

    H = p_1 (−ln p_1 + Σ_{c≠1} p_c/p_1 (−ln p_c)) is the entropy.
    With r = Σ_{c≠1} p_c/p_1, −ln p_1 = ln(1 + r) and −ln p_c = ln(1 + r) − ln(p_c/p_1);
    the factor p_2/p_1, which may be too small for a float, is kept as a logarithm.
    """
    top, others = _split(log_p, xp)
    second = xp.max(others, axis=-1)
    shares = xp.exp(others - second[..., None])
    total = xp.sum(shares, axis=-1)
    r = xp.exp(second - top) * total
    tiny = r < 1e-6
    minus_log_p1 = xp.log1p(r)
    quotient = xp.where(tiny, 1.0 - r / 2, minus_log_p1 / xp.where(tiny, 1.0, r))
    distance = xp.where(shares > 0, (top + minus_log_p1)[..., None] - others, 0.0)
    rest = total * quotient + xp.sum(shares * distance, axis=-1)
    log_entropy = second - top - minus_log_p1 + xp.log(rest)
    log_most = math.log(math.log(log_p.shape[-1]))
    u = -xp.expm1(xp.minimum(log_entropy - log_most, 0.0))
    return _log(u, xp) - (log_entropy - log_most)


def _entropy_support(num_classes: int) -> Support:
    return -math.log(num_classes), 0.0


msp = _BuiltIn("msp", _msp, _msp_of_logs, _msp_log_odds)
margin = _BuiltIn("margin", _margin, _margin_of_logs, _margin_log_odds)
neg_entropy = _BuiltIn(
    "neg_entropy",
    _neg_entropy,
    _neg_entropy_of_logs,
    _neg_entropy_log_odds,
    support=_entropy_support,
)
_BUILT_IN = {score.__name__: score for score in (msp, margin, neg_entropy)}


def get(identifier: Any) -> ConfidenceScore:
    """Returns the confidence score function that `identifier` refers to.

    Args:
        identifier: `"msp"`, `"margin"`, `"neg_entropy"`, a `ConfidenceScore`, a
            callable (with its support in the attribute `support`, if it has one), or
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
        return ConfidenceScore(identifier, getattr(identifier, "support", _UNIT))
    listed = ", ".join(repr(name) for name in _BUILT_IN)
    refuse("csf", identifier, f"one of {listed}, or a callable")
