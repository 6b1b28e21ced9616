"""Scores of logits: MaxLogit, energy, MaxLogit with p-norm."""

from typing import Any

from keras_selcal._formulas.functions import (
    TINY,
    at_least,
    is_masked,
    log_sum_exp,
    safe_log,
    zero_unless,
)
from keras_selcal._saving import serializable, serialize_callable
from keras_selcal._validation import check_number
from keras_selcal.csf.score import BuiltIn

# p where none is given: see the table of docs/scores.md.
DEFAULT_P = 4.0


def _max_logit(logits: Any, xp: Any) -> Any:
    """The largest logit, max z."""
    return xp.amax(logits, axis=-1)


def _energy(logits: Any, xp: Any) -> Any:
    """Negative free energy, ln Σ exp z."""
    return log_sum_exp(logits, xp)


@serializable
class MaxLogitPNorm(BuiltIn):
    """The largest logit divided by the p-norm of all, both after centring.

    Formula:

    ```
    g(z) = max_c z̃_c / ‖z̃‖_p,     z̃ = z − mean z      ∈ [0, 1]
    ```

    Large networks are often confident because their logits are large, not because one
    of them stands out; dividing by the norm undoes that. `keras_selcal.csf.choose`
    finds p on held-out data, and whether it helps at all. Neither a shift nor a scale
    of the logits changes the score, and neither does a temperature. Logits of −∞
    (masked classes) do not count. For two classes the score is 2^(−1/p) whatever the
    logits are; metrics, losses and classifiers raise ValueError for it.

    Args:
        p: the order of the norm, at least 1.

    Example:
    >>> import numpy as np
    >>> round(float(MaxLogitPNorm(p=2)(np.array([3.0, 0.0, 0.0]))), 4)  # 2/√6
    0.8165

    References:
    - Cattelan & Silva, [How to Fix a Broken Confidence
      Estimator](https://arxiv.org/abs/2305.15508)
    """

    def __init__(self, p: float = DEFAULT_P) -> None:
        self.p = check_number("p", p, "a number of at least 1", least=1.0)
        super().__init__(
            "max_logit_pnorm", self._score, log_odds=self._odds, needs="logits"
        )

    def _log_score(self, logits: Any, xp: Any) -> tuple[Any, Any]:
        """Returns the largest centred logit as a share of the largest in absolute
        value, and ln of the norm in the same unit.
        """
        # By `<`: for LiteRT, −∞ does not equal −∞.
        counts = xp.logical_not(is_masked(logits))
        # From the largest one on, the mean of equal logits is exact.
        z = logits - xp.amax(logits, axis=-1, keepdims=True)
        z = zero_unless(counts, z, xp)
        number = xp.sum(zero_unless(counts, xp.ones_like(z), xp), axis=-1)
        mean = (xp.sum(z, axis=-1) / number)[..., None]
        z = zero_unless(counts, z - mean, xp)
        unit = at_least(xp.amax(xp.abs(z), axis=-1), TINY, xp)
        powers = (xp.abs(z) / unit[..., None]) ** self.p
        # NaN where a logit is NaN or ∞, or where none counts.
        top = xp.amax(z, axis=-1) / unit + 0.0 * mean[..., 0]
        return top, safe_log(xp.sum(powers, axis=-1), xp) / self.p

    def _score(self, logits: Any, xp: Any) -> Any:
        top, log_norm = self._log_score(logits, xp)
        # Equal logits have a norm of 0, and a score of 0.
        return top * xp.exp(-at_least(log_norm, 0.0, xp))

    def _odds(self, logits: Any, xp: Any) -> Any:
        """Returns ln g − ln(1 − g)."""
        top, log_norm = self._log_score(logits, xp)
        log_score = safe_log(top, xp) - at_least(log_norm, 0.0, xp)
        return log_score - safe_log(-xp.expm1(log_score), xp)

    def flaw(self, num_classes: int, events: bool) -> str | None:
        if num_classes == 2:
            return f"{self.__name__!r} is the same for all centred logits (−a, a)"
        return None

    def __repr__(self) -> str:
        return f"MaxLogitPNorm(p={self.p:g})"

    def serialize(self) -> Any:
        return serialize_callable(self)

    def get_config(self) -> dict[str, Any]:
        return {"p": self.p}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaxLogitPNorm":
        return cls(**config)


max_logit = BuiltIn("max_logit", _max_logit, support=None, needs="logits")
energy = BuiltIn("energy", _energy, support=None, needs="logits")
max_logit_pnorm = MaxLogitPNorm()
