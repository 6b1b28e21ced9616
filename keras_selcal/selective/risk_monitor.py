"""A labelled stream: whether its risk exceeds a limit, at every time."""

import math
import os
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_numbers
from keras_selcal._validation import check_count, check_number, refuse
from keras_selcal.selective.bounds import least_passing
from keras_selcal.selective.json_files import read_json, to_array, write_json
from keras_selcal.selective.threshold import check_delta

# Stakes: the larger, the better for a risk far above the limit. Periods start more and
# more rarely, four times in each doubling of the stream. benchmarks/risk_monitor.py
# prints what they give.
_STAKES = 2.0 ** np.arange(-8, 4)
_PER_DOUBLING = 4

# Losses that are looked at together, to bound memory.
_MOST_AT_ONCE = 1 << 14


class RiskMonitor:
    """A sequential test of whether the risk of a stream exceeds a limit.

    It takes the losses of answers whose truth becomes known, such as 0 for a correct
    answer and 1 for a wrong one, and can be read after every batch.

    Formula:

    ```
    K_t(m) = Σ_j w_j Σ_λ (1/12) Π_{j < i ≤ t} exp(λ L_i) / (1 + m (exp λ − 1))
    bound_t = sup { m : K_t(m) ≥ 1/δ },     alarm once bound_t ≥ limit
    ```

    K is the capital of gamblers who bet that the mean loss is above m. Their stakes λ
    are 2⁻⁸, …, 2³; they start after j = 0, 1, …, 8, 10, 12, 14, 16, 20, … samples, the
    i-th with w = 1/(i (i + 1)) of the capital. For losses of 0 and 1 a factor is
    1 + b (L_i − m), the bet of Waudby-Smith and Ramdas with a fixed b; for other losses
    in [0, 1] it is smaller: the bound is valid and less sharp.

    Let m_i be the mean of L_i, given everything before. With probability 1 − δ, at all
    times at once, the mean of m_i over some period that ends now is at least the bound
    (by Ville's inequality, and because ln(1 + m c) is concave in m). Therefore:

    - Independent losses of one risk: the bound is a lower confidence bound of it,
      however often one looks. If the risk is at most the limit, there is ever an alarm
      with a probability of at most δ.
    - A stream that drifts: the same holds if each m_i is at most the limit. An alarm
      says that the mean risk since some time has exceeded the limit, even if the mean
      of the whole stream has not: a long good past does not delay it much.

    Labels must not be chosen by the answers: pass the losses of all answers, or of a
    random part of them.

    Args:
        limit: the largest risk that is acceptable, in (0, 1), such as the promise of a
            `SelectiveClassifier` (`record.bound`).
        delta: δ, the largest probability of a false alarm, ever.

    Attributes:
        n: number of losses seen.
        mean: their mean; NaN before the first.
        bound: the bound now.
        alarm: whether there has been an alarm.
        alarm_at: number of losses at the first alarm, or None.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> monitor = RiskMonitor(limit=0.05)
    >>> bound = monitor.update(rng.random(500) < 0.03)  # wrong answers
    >>> monitor.alarm
    False
    >>> bound = monitor.update(rng.random(500) < 0.2)
    >>> monitor.alarm, bound > 0.05
    (True, True)

    References:
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    - Podkopaev & Ramdas, [Tracking the risk of a deployed model and detecting harmful
      distribution shifts](https://arxiv.org/abs/2110.06177)
    """

    def __init__(self, limit: float, delta: float = 0.05) -> None:
        allowed = "a number in (0, 1)"
        self.limit = check_number("limit", limit, allowed, above=0, below=1)
        self.delta = check_delta(delta)
        self.n = 0
        self.alarm_at: int | None = None
        self._total = 0.0
        # Sums of the losses before each start.
        self._before = np.zeros(0)

    @property
    def alarm(self) -> bool:
        return self.alarm_at is not None

    @property
    def mean(self) -> float:
        return self._total / self.n if self.n else math.nan

    @property
    def bound(self) -> float:
        n, total = np.array([self.n]), np.array([self._total])

        def is_below(m: float) -> bool:
            return bool(self._log_capital(n, total, m)[0] < -math.log(self.delta))

        if not self._total or is_below(0.0):
            return 0.0
        return least_passing(0.0, is_below, steps=40)

    def update(self, losses: Any) -> float:
        """Adds losses in their order; returns the bound so far.

        Args:
            losses: numbers or booleans in [0, 1], in the order of time.
        """
        values = to_numbers("losses", losses).astype("float64").reshape(-1)
        if not ((values >= 0) & (values <= 1)).all():
            bad = values[~((values >= 0) & (values <= 1))][0].item()
            refuse("losses", bad, "numbers in [0, 1] without NaN")
        for start in range(0, len(values), _MOST_AT_ONCE):
            self._add(values[start : start + _MOST_AT_ONCE])
        return self.bound

    def _add(self, values: Array) -> None:
        # One after the other: sums do not depend on how the stream is cut in batches.
        totals = np.cumsum(np.append(self._total, values))
        times = self.n + np.arange(len(totals))
        starts = _starts(int(times[-1]))
        new = starts[len(self._before) :] - self.n
        self._before = np.append(self._before, totals[new])
        self.n, self._total = int(times[-1]), float(totals[-1])
        if self.alarm_at is None:
            capital = self._log_capital(times[1:], totals[1:], self.limit)
            reached = np.flatnonzero(capital >= -math.log(self.delta))
            if len(reached):
                self.alarm_at = int(times[1 + reached[0]])

    def _log_capital(self, times: Array, totals: Array, m: float) -> Array:
        """Returns ln K_t(m) at times t, where the losses have these sums, (t,)."""
        slope = np.log1p(m * np.expm1(_STAKES))
        starts = _starts(self.n)
        index = np.arange(1, len(starts) + 1)
        # ln w − ln of the capital that a gambler from the beginning has at each start.
        log_w = -np.log(index * (index + 1))
        shares = log_w[:, None] + starts[:, None] * slope
        shares -= self._before[:, None] * _STAKES
        shares = np.logaddexp.accumulate(shares, axis=0)
        last = np.searchsorted(starts, times) - 1
        logs = totals[:, None] * _STAKES - times[:, None] * slope + shares[last]
        return np.logaddexp.reduce(logs, axis=1) - math.log(len(_STAKES))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the state as JSON: the sums at a few times of the stream.

        Args:
            path: path of the file, such as `"monitor.json"`.
        """
        entries = {
            "limit": self.limit,
            "delta": self.delta,
            "n": self.n,
            "total": self._total,
            "before": self._before,
            "alarm_at": self.alarm_at,
        }
        write_json(path, "RiskMonitor", entries)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RiskMonitor":
        """Loads a monitor that was saved by `save`; it goes on as if there had been no
        break.

        Args:
            path: path of the file.
        """
        names = ["limit", "delta", "n", "total", "before", "alarm_at"]
        return read_json(path, "RiskMonitor", names, cls._of_entries)

    @classmethod
    def _of_entries(cls, entries: dict[str, Any]) -> "RiskMonitor":
        made = cls(entries["limit"], entries["delta"])
        made.n = check_count("n", entries["n"], least=0)
        made._total = check_number("total", entries["total"], "≥ 0", least=0)
        made._before, at = to_array(entries["before"]), entries["alarm_at"]
        made.alarm_at = None if at is None else check_count("alarm_at", at)
        sums = np.append(made._before, made._total)
        if made._before.shape != _starts(made.n).shape or made._total > made.n:
            raise ValueError("the sums do not fit `n`")
        if not (np.diff(sums, prepend=0) >= 0).all():
            raise ValueError("the sums must not fall")
        if (made.alarm_at or 0) > made.n:
            raise ValueError("`alarm_at` is after `n`")
        return made

    def __repr__(self) -> str:
        return (
            f"RiskMonitor(limit={self.limit:g}, delta={self.delta:g}, n={self.n}, "
            f"mean={self.mean:.4g}, bound={self.bound:.4g}, alarm_at={self.alarm_at})"
        )


def _starts(n: int) -> Array:
    """Returns after how many of n losses a period starts: 0, …, 8, 10, 12, 14, 16."""
    doublings = max(0, int(n).bit_length() - 2)
    later = [
        (_PER_DOUBLING + np.arange(_PER_DOUBLING)) << octave
        for octave in range(doublings)
    ]
    starts = np.concatenate([np.arange(_PER_DOUBLING), *later])
    return starts[starts < n]
