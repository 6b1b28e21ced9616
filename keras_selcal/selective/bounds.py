"""Bounds on a risk: exact for counts of errors, by betting for other losses."""

import functools
import math
from typing import Any

import numpy as np

# Share of the stake that a bet may lose on the worst group.
_LARGEST_STAKE = 0.9


def risk_bound(errors: int, n: int, delta: float) -> float:
    """Returns the largest risk that `errors` of `n` samples leave plausible.

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
    low, high = errors / n, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if binomial_tail(errors, n, middle) > delta:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=4)
def _log_factorials(n: int) -> np.ndarray:
    """Returns ln 0!, …, ln n!."""
    return np.cumsum(np.log(np.maximum(np.arange(n + 1.0), 1)))


def binomial_tail(errors: int, n: int, b: float) -> float:
    """Returns P(e ≤ errors) for n samples of risk b in (0, 1)."""
    return float(_binomial_terms(errors, n, b).sum())


@functools.lru_cache(maxsize=4096)
def critical_errors(n: int, b: float, level: float) -> int:
    """Returns the largest e with P(errors ≤ e) ≤ level for n samples of risk b, or −1
    if there is none, for a level of at most ½.
    """
    tails = np.cumsum(_binomial_terms(min(n, math.ceil(n * b) + 1), n, b))
    return int(np.searchsorted(tails, level, side="right")) - 1


def _binomial_terms(errors: int, n: int, b: float) -> np.ndarray:
    """Returns P(e = 0), …, P(e = errors) for n samples of risk b in (0, 1)."""
    # Tables are shared between sizes: one for each power of two.
    log_factorial = _log_factorials(1 << n.bit_length())
    j = np.arange(errors + 1)
    log_choose = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    return np.exp(log_choose + j * math.log(b) + (n - j) * math.log1p(-b))


def betting_p_value(losses: np.ndarray, largest: Any, delta: float) -> np.ndarray:
    """Returns a p-value of the hypothesis that independent losses have a mean above 0.

    Formula:

    ```
    p = 1 / max_g K_g,    K_g = Π_{i ≤ g} (1 − λ_i L_i)
    λ_i = min( sqrt( 2 ln(1/δ) / (G v_i) ), 0.9 / b ),   v_i from L_1, …, L_{i−1}
    ```

    K is the capital of a gambler who bets on negative losses and chooses each stake λ_i
    before L_i is seen. If E[L] ≥ 0, K is a non-negative supermartingale, so that it
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
