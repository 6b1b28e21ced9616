"""Drift: whether new confidences come from the distribution of those at the fit."""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._arrays import Array, to_numbers, to_numpy
from keras_selcal._validation import check_number, refuse

# Confidences that a record keeps.
_MOST_KEPT = 2000

# Up to this number of pairs the p-value is exact, which takes about a second.
_MOST_EXACT = 2 * 10**7

# Shares of the capital that move between the bets at each step: large ones follow a
# change fast, small ones lose little while nothing changes.
_JUMPS = np.array([[1e-2], [1e-3], [1e-4]])
_BETS = np.array([-1.0, 0.0, 1.0])


def unit_means(confidence: Array, weight: Array, units: Array) -> Array:
    """Returns the mean confidence of each independent unit that counts, (units,)."""
    counts = weight > 0
    index, values = units[counts], confidence[counts].astype("float64")
    number = np.bincount(index)
    return (np.bincount(index, values)[number > 0]) / number[number > 0]


def reference_sample(values: Array) -> tuple[float, ...]:
    """Returns at most 2,000 values, drawn at random, in rising order."""
    if len(values) > _MOST_KEPT:
        values = np.random.default_rng(0).choice(values, _MOST_KEPT, replace=False)
    return tuple(float(value) for value in np.sort(values))


def check_rate(false_alarm_rate: Any) -> float:
    """Returns the checked false alarm rate."""
    return check_number(
        "false_alarm_rate", false_alarm_rate, "a number in (0, 1)", above=0.0, below=1.0
    )


def _numbers(argument: str, x: Any) -> Array:
    """Returns one or more numbers, (n,) in float64, without NaN."""
    numbers = to_numbers(argument, x).astype("float64").reshape(-1)
    if np.isnan(numbers).any() or not numbers.size:
        allowed = "one or more numbers without NaN"
        refuse(argument, "NaN" if numbers.size else numbers.shape, allowed)
    return numbers


def ks_distance(reference: Any, new: Any) -> float:
    """Returns the largest difference of two empirical CDFs, NaN for NaN."""
    a, b = (
        np.sort(to_numpy(x).astype("float64").reshape(-1)) for x in (reference, new)
    )
    both = np.concatenate([a, b])
    if np.isnan(both).any():
        return math.nan
    shares = [np.searchsorted(x, both, side="right") / len(x) for x in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def ks_test(reference: Any, new: Any) -> tuple[float, float]:
    """Two-sample test of Kolmogorov and Smirnov.

    Formula:

    ```
    D = max_t |F_n(t) − F_m(t)|,     p = P(D' ≥ D), D' of two samples of one population
    ```

    The p-value is exact (it counts lattice paths) up to n·m = 2·10⁷, and taken
    from Kolmogorov's limit beyond. With ties it is conservative.

    Args:
        reference: n numbers.
        new: m numbers.

    Returns:
        D and p.

    Example:
    >>> ks_test([1, 2, 3, 4], [5, 6, 7])[0]
    1.0
    >>> round(ks_test([1, 2, 3, 4], [5, 6, 7])[1], 4)  # 2 of the 35 orders
    0.0571

    References:
    - Hodges, [The Significance Probability of the Smirnov Two-Sample
      Test](https://doi.org/10.1007/BF02589501)
    """
    n, m = (
        len(_numbers(name, x)) for name, x in (("reference", reference), ("new", new))
    )
    d = ks_distance(reference, new)
    if n * m > _MOST_EXACT:
        size = math.sqrt(n * m / (n + m))
        x = (size + 0.12 + 0.11 / size) * d
        j = np.arange(1, 101)
        tail = 2 * float(((-1.0) ** (j - 1) * np.exp(-2 * (j * x) ** 2)).sum())
        return d, min(1.0, max(0.0, tail)) if x > 0.2 else 1.0
    if n > m:
        n, m = m, n
    # P(i): probability that a path through random merges is at (i, t − i) and has
    # stayed where |i/n − j/m| < D.
    inside = np.zeros(n + 1)
    inside[0] = 1.0
    i = np.arange(n + 1)
    for t in range(1, n + m + 1):
        j = t - i
        step = inside * np.maximum(j, 0) / t
        step[1:] += inside[:-1] * i[1:] / t
        allowed = (np.abs(i / n - j / m) < d - 1e-12) & (j >= 0) & (j <= m)
        inside = np.where(allowed, step, 0.0)
    return d, min(1.0, max(0.0, 1.0 - float(inside[n])))


def _p(p_value: float) -> str:
    """Returns a p-value in words; rounding errors are of the size of 10⁻¹²."""
    return f"p = {p_value:.3g}" if p_value >= 1e-10 else "p < 1e-10"


class DriftCheck(NamedTuple):
    """Whether new data are like the data of the fit.

    Attributes:
        drifted: whether confidences differ: `p_value` ≤ `false_alarm_rate`.
        p_value: of the test of Kolmogorov and Smirnov.
        distance: its statistic, the largest difference of the two CDFs.
        n: number of new samples, or of groups of them.
        coverage: share of the new samples that is accepted.
        fitted_coverage: the same at the fit; the mean over labels if multi-label.
        false_alarm_rate: the probability of a false alarm, of each of the two tests.
        selective_risk: share of errors among the accepted; None without labels.
        promised_risk: the bound of the record; None if it has none.
        risk_p_value: probability of as many errors if the promise holds (of the worst
            label, times the number of labels, if multi-label).
        risk_holds: False where the errors contradict the promise, True where they do
            not, None without labels or promise.
    """

    drifted: bool
    p_value: float
    distance: float
    n: int
    coverage: float
    fitted_coverage: float
    false_alarm_rate: float
    selective_risk: Any = None
    promised_risk: Any = None
    risk_p_value: float | None = None
    risk_holds: bool | None = None

    def __str__(self) -> str:
        verdict = "differ from" if self.drifted else "are like"
        text = (
            f"The confidences of these {self.n:,} samples {verdict} the fitted ones "
            f"({_p(self.p_value)}; false alarm rate {self.false_alarm_rate:g}). "
            f"Coverage: {self.coverage:.1%}; at the fit {self.fitted_coverage:.1%}."
        )
        if self.risk_p_value is not None and not self.coverage:
            text += " None was answered: nothing is known about the risk."
        elif self.risk_p_value is not None:
            fate = "does not contradict" if self.risk_holds else "contradicts"
            text += (
                f" The selective risk, {np.max(self.selective_risk):.1%}, {fate} the "
                f"promise of at most {np.max(self.promised_risk):.1%} "
                f"({_p(self.risk_p_value)})."
            )
        return text.replace("%", "\N{NO-BREAK SPACE}%")


class DriftMonitor:
    """A sequential test of whether a stream is like the data of the fit.

    Formula:

    ```
    p_t = (#{j < t: s_j < s_t} + U (1 + #{j < t: s_j = s_t})) / t
    C_{κ,t} = ((1 − J) C_{κ,t−1} + J/3 Σ_λ C_{λ,t−1}) (1 + κ (p_t − ½))
    S_t = Σ_κ C_{κ,t}
    ```

    with κ in {−1, 0, 1}, averaged over J in {10⁻², 10⁻³, 10⁻⁴}. The confidences s_j are
    first the fit's, then the stream's. As long as all are exchangeable,
    the p_t are independent and uniform, and the capital S, which starts at 1, is a
    martingale: it ever reaches 1/α with a probability of at most α (Ville's
    inequality), however long the stream is and however often one looks.

    Args:
        confidences: maps inputs to confidences, one for each independent unit.
        reference: confidences at the fit.
        false_alarm_rate: α.
        seed: of U.

    Attributes:
        alarm: whether the capital has ever reached 1/α.
        alarm_at: number of samples after which it did, or None.
        log_capital: ln S.
        n: number of samples seen.

    References:
    - Vovk et al., [Retrain or not retrain: Conformal test martingales for change-point
      detection](https://arxiv.org/abs/2102.10439)
    """

    def __init__(
        self,
        confidences: Callable[..., Array],
        reference: Sequence[float],
        *,
        false_alarm_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.false_alarm_rate = check_rate(false_alarm_rate)
        self._confidences = confidences
        # In the order of their values, not of time: the past is exchangeable.
        self._seen = sorted(reference)
        self._rng = np.random.default_rng(seed)
        self._shares = np.full((3, 3), 1 / 9)
        self.log_capital = 0.0
        self.n = 0
        self.alarm_at: int | None = None

    @property
    def alarm(self) -> bool:
        return self.alarm_at is not None

    def update(
        self, x: Any, *, batch_size: int | None = None, verbose: Any = 0
    ) -> bool:
        """Adds inputs in their order; returns whether there is an alarm.

        Args:
            x: inputs, as in `SelectiveClassifier.predict`.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        return self.update_confidences(self._confidences(x, batch_size, verbose))

    def update_confidences(self, confidences: Any) -> bool:
        """Adds confidences in their order; returns whether there is an alarm."""
        for s in _numbers("confidences", confidences):
            low, high = bisect.bisect_left(self._seen, s), bisect.bisect(self._seen, s)
            p = (low + self._rng.uniform() * (1 + high - low)) / (len(self._seen) + 1)
            self._seen.insert(high, float(s))
            capital = self._shares.sum(axis=-1, keepdims=True)
            shares = (1 - _JUMPS) * self._shares + _JUMPS / 3 * capital
            shares = shares * (1 + _BETS * (p - 0.5))
            self.log_capital += math.log(shares.sum())
            self._shares = shares / shares.sum()
            self.n += 1
            if not self.alarm and self.log_capital >= -math.log(self.false_alarm_rate):
                self.alarm_at = self.n
        return self.alarm

    def __repr__(self) -> str:
        return (
            f"DriftMonitor(n={self.n}, log_capital={self.log_capital:.4g}, "
            f"alarm={self.alarm}, false_alarm_rate={self.false_alarm_rate:g})"
        )
