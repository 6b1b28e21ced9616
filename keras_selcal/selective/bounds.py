"""Tests of a risk: exact for counts of errors, by betting for other losses; where the
search for a guaranteed risk starts; why there is none, and short thresholds.
"""

import functools
import math
from collections.abc import Callable
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np

# Share of the stake that a bet may lose on the worst group.
_LARGEST_STAKE = 0.9

# Starts of the search: the smallest may have one error, each of the others is three
# times as large as the one before. Share of δ at the start that predicted errors
# suggest, and factors by which these may be too small. All were set on the models of
# benchmarks/guarantees.py, which prints what they give.
_SPACING = 3.0
_PREDICTED_SHARE = 0.9
_FACTORS = (1.0, 2.0, 3.0)

# Starts are equally good if their probability to pass is this share of the largest one.
_NEAR_BEST = 0.98

# Predicted errors under which no start passes with this probability are not used.
_HOPELESS = 0.25

# How many starts are compared by their probability to pass.
_CANDIDATES = 40

# How many times the data are repeated, at most, to estimate the samples it takes.
_MOST_REPEATS = 1024


def risk_bound(errors: int, n: int, delta: float) -> float:
    """Upper confidence bound on the risk, given `errors` among `n` samples.

    Formula:

    ```
    b = sup { b : Σ_{j ≤ e} C(n, j) b^j (1 − b)^(n − j) ≥ δ }
    ```

    This is the exact upper bound of Clopper and Pearson: for independent samples the
    true risk exceeds b with a probability of at most δ.

    Args:
        errors: e, the number of wrong answers.
        n: the number of answers.
        delta: δ in (0, 1).

    Example:
    >>> round(risk_bound(0, 100, 0.05), 4)  # 1 − 0.05^(1/100)
    0.0295
    """
    errors, n = int(errors), int(n)  # NumPy's integers have no bit_length.
    if errors >= n:
        return 1.0
    return least_passing(
        errors / n, lambda b: binomial_tail(errors, n, b) <= delta, steps=200
    )


def least_passing(low: float, passes: Callable[[float], bool], steps: int) -> float:
    """Returns the smallest risk above `low` that passes, by bisection; 1 if none."""
    high = 1.0
    for _ in range(steps):
        if (middle := (low + high) / 2) in (low, high):
            break
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


class UnmetTargetError(ValueError):
    """No threshold meets the target on the data."""


def explain_unmet(
    risk: float,
    how: str,
    n: int,
    unit: str,
    *,
    possible: float,
    smallest: float,
    passes: Callable[[int], bool],
    step: float = math.inf,
    among: str = "",
    remedy: str = "Raise `risk`.",
) -> str:
    """Returns why no threshold has a risk of at most r, and what can be had.

    Args:
        risk: r.
        how: how it should hold, in words.
        n: number of samples or groups.
        unit: which of the two.
        possible: the smallest risk that they guarantee.
        smallest: the smallest risk that a threshold has on them.
        passes: whether a multiple of n, of the same kind, guarantees r.
        step: how exactly the number that passes is estimated.
        among: the thresholds that `smallest` is about, if not all.
        remedy: what helps if more samples do not.
    """
    text = f"No threshold has a risk of at most {risk:g} {how} on these {n} {unit}."
    if possible < 1:
        text += f" The smallest risk that they can guarantee is {possible:.3g}."
    if smallest >= risk:
        return (
            f"{text} More {unit} would probably not help: the smallest risk of any "
            f"threshold{among} is {smallest:.3g} on these. {remedy}"
        )
    low, high = n, 2 * n
    while not passes(high):
        low, high = high, 2 * high
        if high > _MOST_REPEATS * n:
            return f"{text} Raise `risk`."
    while high - low > max(step, n // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return (
        f"{text} About {float(f'{high:.2g}'):,.0f} {unit} of the same kind would be "
        f"enough for {risk:g}. Raise `risk` or `delta`, or use more data."
    )


@functools.lru_cache(maxsize=4)
def _log_factorials(n: int) -> np.ndarray:
    """Returns ln 0!, …, ln n!."""
    return np.cumsum(np.log(np.maximum(np.arange(n + 1.0), 1)))


def binomial_tail(errors: int, n: int, b: float) -> float:
    """Returns P(e ≤ errors) for n samples of risk b in (0, 1)."""
    return float(_binomial_terms(0, errors, n, b).sum())


@functools.lru_cache(maxsize=1 << 14)
def critical_errors(n: int, b: float, level: float) -> int:
    """Returns the largest e with P(errors ≤ e) ≤ level for n samples of risk b, or −1
    if there is none.
    """
    # By Chernoff's bound, fewer errors add less than rounding does. Half of the
    # probability is above the mean.
    width = math.sqrt(2 * n * b * math.log(1e17 / level))
    first = max(0, math.floor(n * b - width))
    last = min(n, math.ceil(n * b + (1 if level <= 0.5 else width)))
    tails = np.cumsum(_binomial_terms(first, last, n, b))
    return first + int(np.searchsorted(tails, level, side="right")) - 1


def _binomial_terms(first: int, last: int, n: int, b: Any) -> np.ndarray:
    """Returns P(e = first), …, P(e = last) for n samples of risk b in (0, 1)."""
    # Tables are shared between sizes: one for each power of two.
    log_factorial = _log_factorials(1 << n.bit_length())
    j = np.arange(first, last + 1)
    log_choose = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    return np.exp(log_choose + j * np.log(b) + (n - j) * np.log1p(-b))


def betting_p_value(losses: np.ndarray, largest: Any, delta: float) -> np.ndarray:
    """Returns a p-value of the hypothesis that independent losses have a mean above 0.

    Formula:

    ```
    p = 1 / max_g K_g,    K_g = Π_{i ≤ g} (1 − λ_i L_i)
    λ_i = min( sqrt( 2 ln(1/δ) / (G v_i) ), 0.9 / b ),   v_i from L_1, …, L_{i−1}
    ```

    K is the capital of a gambler who bets on negative losses and chooses each stake λ_i
    before L_i is seen. If E[L] ≥ 0, K is a non-negative supermartingale, which
    ever reaches 1/α with a probability of at most α (Ville's inequality): p is valid
    for every distribution of losses ≤ b.

    Args:
        losses: L_1, …, L_G, one for each independent group, (G, ...).
        largest: b, the largest loss that a group can have, (...).
        delta: δ, the level at which the stakes are most powerful.

    Returns:
        p-values (...).

    References:
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    """
    # Both without the loss that the bet is about.
    squares, seen = np.zeros(losses.shape), np.zeros(losses.shape)
    np.cumsum(losses[:-1] ** 2, axis=0, out=squares[1:])
    np.maximum.accumulate(np.abs(losses[:-1]), axis=0, out=seen[1:])
    count = len(losses)
    rounds = np.arange(1, count + 1).reshape(-1, *(1,) * (losses.ndim - 1))
    variance = (seen**2 + squares) / rounds
    stake = np.sqrt(2 * math.log(1 / delta) / count / np.where(seen > 0, variance, 1.0))
    stake = np.where(seen > 0, np.minimum(stake, _LARGEST_STAKE / largest), 0.0)
    log_capital = np.cumsum(np.log1p(-stake * losses), axis=0)
    return np.exp(-np.maximum(0.0, log_capital.max(axis=0)))


def shuffled_indices(groups: np.ndarray) -> np.ndarray:
    """Returns groups as indices 0, 1, … in an order that is random but fixed.

    Bets on groups adapt from one to the next, so the order must not depend on the
    data, as it would if groups were sorted by their length.
    """
    _, indices = np.unique(groups, return_inverse=True)
    indices = indices.reshape(-1)
    return np.random.default_rng(0).permutation(int(indices.max()) + 1)[indices]


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
    if accepted is not None and expected is not None:
        candidates = candidate_starts(accepted[-1], risk, delta)
        cuts = np.searchsorted(accepted, candidates)
        share = expected[cuts] / accepted[cuts]
        best = int(best_candidate(candidates, share, risk, delta))
        if best >= 0:
            return with_predicted(float(candidates[best]), n, risk, delta)
    starts = _spread_starts(n, risk, delta)
    return starts, np.full(len(starts), delta / len(starts))


def with_predicted(
    best: float, n: float, risk: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts, and their shares of δ, if predicted errors suggest `best`."""
    level = _PREDICTED_SHARE * delta
    starts = _spread_starts(n, risk, delta - level)
    shares = np.full(len(starts), (delta - level) / len(starts))
    return np.append(starts, best), np.append(shares, level)


def _spread_starts(n: float, risk: float, delta: float) -> np.ndarray:
    """Returns n/3, n/9, … down to the fewest samples that may have one error, in rising
    order, for equal shares of δ.
    """
    count, smallest = 0, fewest_samples(1, risk, delta)
    if smallest > n / 2:
        # Few samples: one start, which passes only without an error.
        return np.array([math.log(delta) / math.log1p(-risk)])
    for _ in range(2):
        smallest = fewest_samples(1, risk, delta / (count + 1))
        count = max(0, math.floor(math.log(n / smallest, _SPACING) - 0.5))
    level = delta / (count + 1)
    larger = n / _SPACING ** np.arange(count, 0, -1)
    return np.append(smallest, [_sharpened(int(m), risk, level) for m in larger])


def candidate_starts(n: float, risk: float, delta: float) -> np.ndarray:
    """Returns the starts that are compared by predicted errors, in rising order."""
    level = _PREDICTED_SHARE * delta
    counts = np.geomspace(1, n, _CANDIDATES)
    starts = np.unique([_sharpened(int(m), risk, level) for m in counts])
    return starts[(starts >= 1) & (starts <= n)]


def best_candidate(
    starts: np.ndarray, share: np.ndarray, risk: float, delta: float
) -> np.ndarray:
    """Returns the index of the start that probably passes, or −1 if none does.

    The probability is the mean for expected errors and for multiples of them, since
    most models are overconfident. Of the starts that are nearly as good as the best,
    which may be a wide range, the middle one is farthest from being wrong.

    Args:
        starts: the result of `candidate_starts`, (c,).
        share: share of errors that is expected at each, (..., c).
        risk: r.
        delta: δ.

    Returns:
        indices (...).
    """
    if not len(starts):
        return np.full(share.shape[:-1], -1)
    power = np.zeros((*share.shape, len(_FACTORS)))
    for i, m in enumerate(starts.tolist()):
        allowed = critical_errors(m, risk, _PREDICTED_SHARE * delta)
        p = (share[..., i, None] * _FACTORS).clip(1e-9, 1 - 1e-9)
        power[..., i, :] = _binomial_terms(0, allowed, m, p[..., None]).sum(axis=-1)
    mean, logs = power.mean(axis=-1), np.log(starts)
    good = mean >= _NEAR_BEST * mean.max(axis=-1, keepdims=True)
    low = np.where(good, logs, math.inf).min(axis=-1, keepdims=True)
    high = np.where(good, logs, -math.inf).max(axis=-1, keepdims=True)
    best = np.abs(logs - (low + high) / 2).argmin(axis=-1)
    return np.where(power[..., 0].max(axis=-1) < _HOPELESS, -1, best)


@functools.lru_cache(maxsize=4096)
def fewest_samples(errors: int, risk: float, level: float) -> int:
    """Returns how many samples pass at a level with this number of errors."""
    low, high = errors, errors + 1
    while binomial_tail(errors, high, risk) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        passes = binomial_tail(errors, middle, risk) <= level
        low, high = (low, middle) if passes else (middle, high)
    return high


def _sharpened(m: int, risk: float, level: float) -> int:
    """Returns the fewest samples that may have as many errors as m samples may, or 0 if
    m are too few; m itself where that is about the same.
    """
    errors = critical_errors(m, risk, level)
    if errors < 0:
        return 0
    return fewest_samples(errors, risk, level) if errors < 100 else m


def shortest_above(low: float, high: float, decimals: int = 3) -> str:
    """Returns a decimal number t with low < t ≤ high with as few digits as possible.

    Example:
    >>> shortest_above(0.97228, 0.97234)
    '0.9723'
    """
    exact = Decimal(high)
    for places in range(decimals, 25):
        # Binary 0.7 is slightly smaller than 0.7; it is shown as 0.700, not 0.699.
        for rounding in (ROUND_HALF_EVEN, ROUND_FLOOR):
            text = f"{exact.quantize(Decimal(1).scaleb(-places), rounding):f}"
            if low < float(text) <= high:
                return text
    return repr(high)
