"""Where the search for a guaranteed risk starts, and with which share of δ."""

import math

import numpy as np

from keras_selcal.selective.bounds import binomial_tail, critical_errors

# Errors that the smallest start of the search may have.
_ERRORS = 2

# Share of δ at the start that predicted errors suggest. With probabilities that are
# right, 1 loses nothing; the rest is for those that are not (benchmarks/guarantees.py).
_PREDICTED_SHARE = 0.75

# A smaller start is preferred if its probability to pass is at least this share of the
# largest one.
_NEAR_BEST = 0.99

# How many starts are compared by their probability to pass.
_CANDIDATES = 100


def choose_starts(
    n: float,
    risk: float,
    delta: float,
    accepted: np.ndarray | None = None,
    expected: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many samples the starts of the search accept, and their share of δ.

    Args:
        n: number of samples.
        risk: r.
        delta: δ.
        accepted: number of samples that each cut accepts, if `expected` is given.
        expected: number of errors that are expected among them, or None. It must not
            depend on which answers are right.
    """
    if accepted is None or expected is None:
        starts = _fixed_starts(n, risk, delta)
        return starts, np.full(len(starts), delta / len(starts))
    best = _likeliest_start(accepted, expected, risk, _PREDICTED_SHARE * delta)
    starts = _fixed_starts(n, risk, (1 - _PREDICTED_SHARE) * delta)
    shares = np.full(len(starts), (1 - _PREDICTED_SHARE) * delta / len(starts))
    return np.append(starts, best), np.append(shares, _PREDICTED_SHARE * delta)


def _fixed_starts(n: float, risk: float, delta: float) -> np.ndarray:
    """Returns n/2, n/4, … down to the least number that passes with a few errors at
    its share of δ, in rising order.
    """

    def least(level: float) -> int:
        low, high = _ERRORS, _ERRORS + 1
        while high < n and binomial_tail(_ERRORS, high, risk) > level:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            passes = binomial_tail(_ERRORS, middle, risk) <= level
            low, high = (low, middle) if passes else (middle, high)
        return high

    if least(delta) > n / 2:
        # Few samples: one start, which passes only without an error.
        return np.array([math.log(delta) / math.log1p(-risk)])
    count = 0
    for _ in range(2):
        smallest = least(delta / (count + 1))
        count = max(0, math.floor(math.log2(n / smallest) - 0.5))
    return np.append(smallest, n / 2.0 ** np.arange(count, 0, -1))


def _likeliest_start(
    accepted: np.ndarray, expected: np.ndarray, risk: float, level: float
) -> float:
    """Returns the number of accepted samples that most probably passes at a level."""
    counts = np.geomspace(1, accepted[-1], _CANDIDATES)
    cuts = np.unique(np.searchsorted(accepted, counts * (1 - 1e-12)))
    power = np.zeros(len(cuts))
    for i, cut in enumerate(cuts):
        m = max(1, int(accepted[cut]))
        allowed = critical_errors(m, risk, level)
        if allowed >= 0:
            share = min(max(expected[cut] / accepted[cut], 1e-9), 1 - 1e-9)
            power[i] = binomial_tail(allowed, m, share)
    return float(accepted[cuts[np.argmax(power >= _NEAR_BEST * power.max())]])
