"""Confidence score functions: a formula, the predictions it needs, its support."""

import math
import sys
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np

from keras_selcal._arrays import (
    Tensor,
    namespace,
    to_float_tensor,
    to_floats,
    to_numpy,
)
from keras_selcal._formulas.functions import clip, safe_log
from keras_selcal._saving import (
    deserialize_if_config,
    serializable,
    serialize_callable,
)
from keras_selcal._validation import check_choice, refuse

Support = tuple[float, float]
_UNIT: Support = (0.0, 1.0)
_LINE: Support = (-math.inf, math.inf)

# What a score is computed from.
NEEDS = ("probabilities", "logits")

# Values within ±SCALE share the middle half of (−1, 1).
SCALE = 4.0
# Beyond this, values are no further apart: x/(4 + |x|) is ±1.
_LARGE = 1e30


def squash(x: Any, xp: Any) -> Any:
    """Returns x/(4 + |x|) in (−1, 1): rising, and without the saturation of a sigmoid;
    ±1 for ±∞.

    Example:
    >>> squash(np.array([-4.0, 0.0, 12.0]), np).tolist()
    [-0.5, 0.0, 0.75]
    """
    x = clip(x, -_LARGE, _LARGE, xp)
    return x / (SCALE + xp.abs(x))


@serializable
class ConfidenceScore:
    """A confidence score function together with its support.

    Args:
        function: maps probabilities or logits (..., k) to scores (...).
        support: a pair (lo, hi), a function of k that returns one, or None for a score
            that is not bounded. Losses, which need a bounded one, see s/(4 + |s|)
            instead.
        needs: `"probabilities"` or `"logits"`.

    Example:
    >>> import numpy as np
    >>> csf = ConfidenceScore(lambda p: p[..., 0], support=(0, 1))
    >>> float(csf(np.array([0.25, 0.75])))
    0.25
    """

    # Whether the score has a precise form of its log-odds.
    built_in = False

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        support: Support | Callable[[int], Support] | None = _UNIT,
        *,
        needs: str = "probabilities",
    ) -> None:
        self.function: Callable[..., Any] = function
        self._support = support
        self.needs = check_choice("needs", needs, NEEDS)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, x: Any) -> Any:
        """Returns the scores of probabilities or logits, tensors or arrays."""
        xp = namespace(x)
        return self.scores(
            to_floats(to_numpy(x)) if xp is np else to_float_tensor(x), xp
        )

    def scores(self, x: Any, xp: Any) -> Any:
        """Returns the scores of what the score needs.

        Args:
            x: probabilities or logits, (..., k).
            xp: `keras.ops` or NumPy.
        """
        if xp is np:
            # A function of `keras.ops` needs a tensor, one of NumPy takes both.
            keras = sys.modules.get("keras")
            given = x
            if keras is not None and hasattr(keras, "ops"):
                given = keras.ops.convert_to_tensor(x)
            scores = to_numpy(self.function(given)).astype("float64")
        else:
            scores = to_float_tensor(self.function(x))
        self._check_shape(scores, x)
        return scores

    def _check_shape(self, scores: Any, x: Any) -> None:
        """Raises ValueError unless there is one score for each row of x."""
        # TensorFlow may not know how many dimensions there are, or a dimension, yet.
        if any(getattr(tensor.shape, "rank", 0) is None for tensor in (scores, x)):
            return
        pairs = zip_longest(scores.shape, x.shape[:-1], fillvalue=-1)
        if any(found != rows and None not in (found, rows) for found, rows in pairs):
            one = f"a function that returns one score for each row of {tuple(x.shape)}"
            refuse("csf", self.__name__, f"{one}, not {tuple(scores.shape)}")

    def of_log_p(self, log_p: Any, xp: Any) -> Any:
        """Returns the scores for ln p, of a score that needs probabilities."""
        return self.scores(xp.exp(log_p), xp)

    def log_odds(self, x: Any, xp: Any) -> Any:
        """Returns ln u − ln(1 − u), u = (s − lo)/(hi − lo) the score on [0, 1], or s
        itself if it is not bounded: a rising function of the score.

        Finite: a score on an end of the support counts as 1e-37 away from it.
        """
        s = self.scores(x, xp)
        if not self.bounded:
            return s
        lo, hi = self.support(x.shape[-1])
        return safe_log(s - lo, xp) - safe_log(hi - s, xp)

    def log_odds_of_logits(self, logits: Any, xp: Any) -> Any:
        """Returns the log-odds of the scores for logits, or for ln p.

        The built-in scores compute them from the other classes, so they keep
        rising where the score itself is rounded to the end of its support.
        """
        if self.needs == "logits":
            return self.log_odds(logits, xp)
        d = logits - xp.amax(logits, axis=-1, keepdims=True)
        p = xp.exp(d)
        return self.log_odds(p / xp.sum(p, axis=-1, keepdims=True), xp)

    @property
    def bounded(self) -> bool:
        """Whether the score has a support other than all numbers."""
        return self._support is not None

    def support(self, num_classes: int) -> Support:
        """Returns (lo, hi) for `num_classes` classes, (−∞, ∞) if not bounded."""
        pair = _LINE if self._support is None else self._support
        lo, hi = pair(num_classes) if callable(pair) else pair
        if not lo < hi:
            refuse("support", (lo, hi), f"a pair lo < hi for csf {self.__name__}")
        return float(lo), float(hi)

    def squashed(self, scores: Any, xp: Any) -> Any:
        """Returns scores, or a threshold on them, on a bounded scale."""
        return scores if self.bounded else squash(scores, xp)

    def squashed_support(self, num_classes: int) -> Support:
        """Returns the ends of what `squashed` returns."""
        return self.support(num_classes) if self.bounded else (-1.0, 1.0)

    def refuse_missing(self, missing: str) -> None:
        """Raises the error for predictions that the score cannot be computed from."""
        refuse(
            "csf",
            self.__name__,
            f"a score of {missing}, which is all there is; {self.__name__!r} needs "
            "logits: pass logits with `from_logits=True`, or use 'msp'",
        )

    def flaw(self, num_classes: int, events: bool) -> str | None:
        """Returns why the score does not measure confidence for some outputs, or None.

        Args:
            num_classes: number of classes of a row.
            events: whether a row is (0, z), from a sigmoid.
        """
        return None

    def check_classes(self, num_classes: int) -> None:
        """Raises ValueError if the score is constant for this number of classes.

        It cannot tell a sigmoid's logit z from two columns (0, z), and accepts both.
        """
        flaw = self.flaw(num_classes, False)
        if flaw is not None:
            allowed = "'msp' or another score of probabilities for these outputs"
            refuse("csf", self.__name__, f"{allowed}: {flaw}")

    def serialize(self) -> Any:
        """Returns a name or config from which `get` restores this score."""
        function = self.function
        if (self._support, self.needs) == (
            getattr(function, "support", _UNIT),
            getattr(function, "needs", NEEDS[0]),
        ):
            return serialize_callable(function)
        return serialize_callable(self)

    def get_config(self) -> dict[str, Any]:
        support: Any = self._support
        if callable(support):
            support = serialize_callable(support)
        return {
            "function": serialize_callable(self.function),
            "support": support,
            "needs": self.needs,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ConfidenceScore":
        support = deserialize_if_config(config["support"])
        if isinstance(support, list):
            support = tuple(support)
        function = deserialize_if_config(config["function"])
        return cls(function, support, needs=config.get("needs", NEEDS[0]))

    def __repr__(self) -> str:
        return f"<confidence score function {self.__name__}>"


class BuiltIn(ConfidenceScore):
    """A score with formulas that work with `keras.ops` and with NumPy.

    Each formula takes the predictions and a namespace `xp`.

    Args:
        name: the name that `get` finds it by.
        function: maps what the score needs to scores.
        of_log_p: maps ln p to scores; None where the score needs no probabilities.
        log_odds: maps logits, or ln p, to the log-odds of the scores. None computes
            them from the scores.
        support: as in `ConfidenceScore`.
        needs: as in `ConfidenceScore`.
    """

    built_in = True

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        of_log_p: Callable[..., Any] | None = None,
        log_odds: Callable[..., Any] | None = None,
        support: Support | Callable[[int], Support] | None = _UNIT,
        needs: str = "probabilities",
    ) -> None:
        super().__init__(function, support, needs=needs)
        self.__name__ = name
        self._of_log_p, self._log_odds = of_log_p, log_odds

    def flaw(self, num_classes: int, events: bool) -> str | None:
        if self.needs == "logits" and events:
            return (
                f"of a sigmoid's logits (0, z), {self.__name__!r} rises with z, and so "
                "takes every sure 0 for unsure"
            )
        return None

    def scores(self, x: Any, xp: Any) -> Any:
        return self.function(x, xp)

    def of_log_p(self, log_p: Any, xp: Any) -> Any:
        assert self._of_log_p is not None
        return self._of_log_p(log_p, xp)

    def log_odds(self, x: Any, xp: Any) -> Any:
        if self.needs == "logits" and self._log_odds is not None:
            return self._log_odds(x, xp)
        return super().log_odds(x, xp)

    def log_odds_of_logits(self, logits: Any, xp: Any) -> Any:
        if self._log_odds is None:
            return super().log_odds_of_logits(logits, xp)
        return self._log_odds(logits, xp)

    def serialize(self) -> Any:
        return self.__name__
