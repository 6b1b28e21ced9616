"""Bounds on a risk: exact for independent samples, by betting for groups."""

import functools
import math

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
    # Tables are shared between sizes: one for each power of two.
    log_factorial = _log_factorials(1 << n.bit_length())
    j = np.arange(errors + 1)
    log_choose = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    log_terms = log_choose + j * math.log(b) + (n - j) * math.log1p(-b)
    return float(np.exp(log_terms).sum())


def betting_p_value(losses: np.ndarray, largest: float, delta: float) -> float:
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
        losses: L_1, …, L_G, one for each independent group.
        largest: b, the largest loss that a group can have.
        delta: δ, the level at which the stakes are most powerful.

    References:
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    """
    squares = np.cumsum(losses**2)
    seen = np.maximum.accumulate(np.abs(losses))
    # Both without the loss that the bet is about.
    squares, seen = np.append(0.0, squares[:-1]), np.append(0.0, seen[:-1])
    count = len(losses)
    variance = (seen**2 + squares) / np.arange(1, count + 1)
    stake = np.sqrt(2 * math.log(1 / delta) / count / np.where(seen > 0, variance, 1.0))
    stake = np.where(seen > 0, np.minimum(stake, _LARGEST_STAKE / largest), 0.0)
    log_capital = np.cumsum(np.log1p(-stake * losses))
    return math.exp(-max(0.0, float(log_capital.max())))
