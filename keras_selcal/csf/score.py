"""Confidence score functions: a formula, the predictions it needs, its support."""

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._backend.ops import TINY, Tensor, as_float
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


def squash(x: Any, xp: Any = ops) -> Any:
    """Returns x/(4 + |x|) in (−1, 1): rising, and without the saturation of a sigmoid;
    ±1 for ±∞.

    Example:
    >>> squash(np.array([-4.0, 0.0, 12.0]), np).tolist()
    [-0.5, 0.0, 0.75]
    """
    x = xp.clip(x, -_LARGE, _LARGE)
    return x / (SCALE + xp.abs(x))


def log(x: Any, xp: Any) -> Any:
    """Returns ln x, finite at 0."""
    return xp.log(xp.maximum(x, TINY))


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

    def __call__(self, x: Any) -> Tensor:
        return self.scores(as_float(x))

    def scores(self, x: Any, xp: Any = ops) -> Any:
        """Returns the scores of what the score needs; of NumPy arrays with `xp=numpy`.

        Args:
            x: probabilities or logits, (..., k).
            xp: `keras.ops` or NumPy.
        """
        x = as_float(x)
        scores = as_float(self.function(x))
        self._check_shape(scores, x)
        if xp is np:
            return np.asarray(ops.convert_to_numpy(scores), "float64")
        return scores

    def _check_shape(self, scores: Tensor, x: Tensor) -> None:
        """Raises ValueError unless there is one score for each row of x."""
        # TensorFlow may not know how many dimensions there are, or a dimension, yet.
        if any(getattr(tensor.shape, "rank", 0) is None for tensor in (scores, x)):
            return
        pairs = zip_longest(scores.shape, x.shape[:-1], fillvalue=-1)
        if any(found != rows and None not in (found, rows) for found, rows in pairs):
            one = f"a function that returns one score for each row of {tuple(x.shape)}"
            refuse("csf", self.__name__, f"{one}, not {tuple(scores.shape)}")

    def from_log_probabilities(
        self, log_probabilities: Tensor, logits: Tensor | None = None
    ) -> Tensor:
        """Returns the scores for ln p, of a score that needs probabilities.

        Args:
            log_probabilities: ln p, (..., k).
            logits: logits of p, from which some scores are computed faster, or None.
        """
        return self(ops.exp(log_probabilities))

    def log_odds(self, x: Any, xp: Any = ops) -> Any:
        """Returns ln u − ln(1 − u), u = (s − lo)/(hi − lo) the score on [0, 1], or s
        itself if it is not bounded: a rising function of the score.

        Finite: a score on an end of the support counts as 1e-37 away from it.
        """
        s = self.scores(x, xp)
        if not self.bounded:
            return s
        lo, hi = self.support(x.shape[-1])
        return log(s - lo, xp) - log(hi - s, xp)

    def log_odds_from_log_probabilities(
        self, log_probabilities: Any, xp: Any = ops
    ) -> Any:
        """Returns the log-odds of the scores for ln p.

        The built-in scores compute them from ln p of the other classes, so that they
        keep rising where the score itself is rounded to the end of its support.
        """
        return self.log_odds(xp.exp(log_probabilities), xp)

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

    def squashed(self, scores: Any, xp: Any = ops) -> Any:
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
        """Raises ValueError if the score is constant for so many classes.

        A sigmoid's logit z is not told from two columns (0, z), which have scores.
        """
        flaw = self.flaw(num_classes, False)
        if flaw is not None:
            allowed = "'msp' or another score of probabilities for these outputs"
            refuse("csf", self.__name__, f"{allowed}: {flaw}")

    @property
    def built_in(self) -> bool:
        """Whether the score has a precise form of its log-odds."""
        return False

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

    Args:
        name: the name that `get` finds it by.
        function: maps what the score needs and a namespace to scores.
        of_logs: maps ln p to scores; None where the score needs no probabilities.
        log_odds: maps ln p, or what else the score needs, and a namespace to the
            log-odds of the scores. None computes them from the scores.
        support: as in `ConfidenceScore`.
        needs: as in `ConfidenceScore`.
        of_logits: maps ln p and its logits to scores, where that is faster.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        of_logs: Callable[[Tensor], Tensor] | None = None,
        log_odds: Callable[[Any, Any], Any] | None = None,
        support: Support | Callable[[int], Support] | None = _UNIT,
        needs: str = "probabilities",
        of_logits: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(function, support, needs=needs)
        self.__name__ = name
        self._of_logs, self._of_logits = of_logs, of_logits
        self._log_odds = log_odds

    @property
    def built_in(self) -> bool:
        return True

    def flaw(self, num_classes: int, events: bool) -> str | None:
        if self.needs == "logits" and events:
            return (
                f"of a sigmoid's logits (0, z), {self.__name__!r} rises with z, and so "
                "takes every sure 0 for unsure"
            )
        return None

    def scores(self, x: Any, xp: Any = ops) -> Any:
        return self.function(x, xp)

    def from_log_probabilities(
        self, log_probabilities: Tensor, logits: Tensor | None = None
    ) -> Tensor:
        if logits is not None and self._of_logits is not None:
            return self._of_logits(log_probabilities, logits)
        assert self._of_logs is not None
        return self._of_logs(log_probabilities)

    def log_odds(self, x: Any, xp: Any = ops) -> Any:
        if self.needs == "logits" and self._log_odds is not None:
            return self._log_odds(x, xp)
        return super().log_odds(x, xp)

    def log_odds_from_log_probabilities(
        self, log_probabilities: Any, xp: Any = ops
    ) -> Any:
        assert self._log_odds is not None
        return self._log_odds(log_probabilities, xp)

    def serialize(self) -> Any:
        return self.__name__
