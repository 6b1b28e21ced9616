"""Thresholds on confidence: by coverage, by risk, and with a guarantee."""

import functools
import math
from typing import Any

import numpy as np

from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import check_number, refuse

# Coverages that the search for a guaranteed risk looks at.
_COVERAGES = 500


def risk_bound(errors: int, n: int, delta: float) -> float:
    """Returns the largest risk that `errors` of `n` samples leave plausible.

    Formula:

    ```
    b = sup { b : Σ_{j ≤ e} C(n, j) b^j (1 − b)^(n − j) ≥ δ }
    ```

    The exact upper bound of Clopper and Pearson: for independent samples the true risk
    exceeds b with a probability of at most δ.

    Args:
        errors: e, the number of wrong answers.
        n: the number of answers.
        delta: δ in (0, 1).

    Example:
    >>> round(risk_bound(0, 100, 0.05), 4)  # 1 − 0.05^(1/100)
    0.0295
    """
    if errors >= n:
        return 1.0
    low, high = errors / n, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if _binomial_tail(errors, n, middle) > delta:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=4)
def _log_factorials(n: int) -> np.ndarray:
    """Returns ln 0!, …, ln n!."""
    return np.cumsum(np.log(np.maximum(np.arange(n + 1.0), 1)))


def _binomial_tail(errors: int, n: int, b: float) -> float:
    """Returns P(e ≤ errors) for n samples of risk b in (0, 1)."""
    # Tables are shared between sizes: one for each power of two.
    log_factorial = _log_factorials(1 << n.bit_length())
    j = np.arange(errors + 1)
    log_choose = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    log_terms = log_choose + j * math.log(b) + (n - j) * math.log1p(-b)
    return float(np.exp(log_terms).sum())


def select_threshold(
    scores: Any,
    correct: Any,
    coverage: float | None = None,
    risk: float | None = None,
    delta: float | None = None,
) -> float:
    """Returns the confidence from which on a classifier should answer.

    A sample is accepted where score ≥ threshold; equal scores are never split.

    - `coverage=κ`: the largest threshold that accepts at least a share κ.
    - `risk=r`: the threshold of largest coverage whose share of errors among the
      accepted samples is at most r. That share is of these samples; on new ones it
      exceeds r about half of the time.
    - `risk=r, delta=δ`: the threshold of large coverage whose true risk is at most r
      with probability 1 − δ over the samples (selection with guaranteed risk).

    The guarantee rests on the exact binomial tail. A threshold that accepts m samples,
    e of them wrong, passes at level α if

    ```
    Σ_{j ≤ e} C(m, j) r^j (1 − r)^(m − j) ≤ α
    ```

    that is, if the bound of Clopper and Pearson at α is at most r. The search walks
    through 500 coverages upwards. It starts anew at ½, ¼, ⅛, … of the samples with a
    share ½, ¼, ⅛, … of δ (the union bound); a threshold that passes hands its α on to
    the next, one that fails ends it. So δ is paid for the starts alone, and coverages
    above ½ are judged at a level between δ/2 and δ.

    The samples must be independent draws from where the threshold will be used, and
    not those that the classifier or its calibrator was fitted on.

    Args:
        scores: confidence scores (n,): the larger, the surer. A score of −∞ is never
            accepted.
        correct: whether each answer is right, (n,).
        coverage: κ in (0, 1].
        risk: r in [0, 1].
        delta: δ in (0, 1), with `risk` only.

    Example:
    >>> import numpy as np
    >>> scores = np.array([0.9, 0.8, 0.7, 0.6])
    >>> correct = np.array([True, True, False, True])
    >>> select_threshold(scores, correct, coverage=0.5)
    0.8
    >>> select_threshold(scores, correct, risk=0.25)
    0.6

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500) (the guarantee by binomial tails)
    - Angelopoulos et al., [Learn then Test: Calibrating Predictive Algorithms to
      Achieve Risk Control](https://arxiv.org/abs/2110.01052) (fixed sequences with
      several starts)
    """
    coverage, risk, delta = check_target(coverage, risk, delta)
    s = to_numpy(scores).astype("float64").reshape(-1)
    right = to_numpy(correct).reshape(-1)
    if len(s) == 0 or len(s) != len(right):
        refuse(
            "scores",
            s.shape,
            f"one a sample, at least one, as `correct`, of shape {right.shape}",
        )
    if np.isnan(s).any() or np.isposinf(s).any():
        refuse("scores", "NaN or +inf", "finite, or −inf for what is never accepted")
    if not np.isin(right, (0, 1)).all():
        refuse("correct", right, "boolean")

    n = len(s)
    order = np.argsort(-s, kind="stable")
    s, wrong = s[order], np.cumsum(right[order] == 0)
    # The last position of each run of equal scores: where the cut may be.
    last = np.append(np.flatnonzero(s[1:] != s[:-1]), n - 1)
    last = last[s[last] > -math.inf]
    accepted, errors = last + 1, wrong[last]

    if coverage is not None:
        # The least count that a share κ asks for, rounding of κ n aside.
        enough = np.flatnonzero(accepted >= coverage * n * (1 - 1e-12))
        if not len(enough):
            raise ValueError(
                f"No threshold accepts a share of {coverage:g}: only {len(last)} "
                f"distinct scores are above −inf, {accepted[-1:].sum()} of {n} samples."
            )
        return float(s[last[enough[0]]])
    assert risk is not None
    if delta is None:
        low_risk = np.flatnonzero(errors <= risk * accepted * (1 + 1e-12))
        if not len(low_risk):
            smallest = (errors / accepted).min() if len(last) else math.nan
            raise ValueError(
                f"No threshold has a risk of at most {risk:g} on these {n} samples: "
                f"the smallest is {smallest:.4g}."
            )
        return float(s[last[low_risk[-1]]])
    return float(s[last[_guaranteed(accepted, errors, n, risk, delta)]])


def _guaranteed(
    accepted: np.ndarray, errors: np.ndarray, n: int, risk: float, delta: float
) -> int:
    """Returns the position of the cut of largest guaranteed coverage."""
    if risk == 1 and len(accepted):
        return len(accepted) - 1
    # Fewer samples do not pass even if all are right: (1 − r)^m > δ.
    fewest = math.log(delta) / math.log1p(-risk) if risk else math.inf
    if not len(accepted) or accepted[-1] < fewest:
        raise ValueError(
            f"No threshold has a risk of at most {risk:g} with probability "
            f"{1 - delta:g}: that takes at least {np.ceil(fewest):g} accepted samples, "
            f"all of them right. Received: {accepted[-1:].sum()}"
        )
    counts = np.arange(1, _COVERAGES + 1) / _COVERAGES * n
    counts = np.append(counts[counts >= fewest], fewest)
    positions = np.unique(np.searchsorted(accepted, counts.clip(max=accepted[-1])))
    # Starts at n/2, n/4, …, each with half of the δ that is left, as long as half of
    # their samples would do without an error; the lowest one gets the rest.
    share = np.zeros(len(positions))
    start, left, lowest = n / 2, delta, 0
    while start / 2 * math.log1p(-risk) <= math.log(left / 2):
        lowest = int(np.searchsorted(accepted[positions], start))
        lowest = min(lowest, len(positions) - 1)
        share[lowest] += left / 2
        start, left = start / 2, left / 2
    share[lowest] += left

    best, level = -1, 0.0
    for position, added in zip(positions, share, strict=True):
        level += added
        e, m = int(errors[position]), int(accepted[position])
        if level and _binomial_tail(e, m, risk) <= level:
            best = int(position)
        else:
            level = 0.0
    if best < 0:
        some = positions[:: max(1, len(positions) // 20)]
        smallest = min(
            risk_bound(int(errors[position]), int(accepted[position]), delta)
            for position in some
        )
        raise ValueError(
            f"No threshold has a risk of at most {risk:g} with probability "
            f"{1 - delta:g} on these {n} samples: the bound of single thresholds goes "
            f"down to {smallest:.3g}. Raise `risk` or `delta`, or bring more samples."
        )
    return best


def check_target(
    coverage: float | None, risk: float | None, delta: float | None
) -> tuple[float | None, float | None, float | None]:
    """Returns the checked target, of which exactly one of κ and r is given."""
    if (coverage is None) == (risk is None):
        refuse("coverage", coverage, "given, or else `risk`, and not both")
    if coverage is not None:
        coverage = check_number(
            "coverage", coverage, "a number in (0, 1]", above=0, most=1
        )
        if delta is not None:
            refuse("delta", delta, "left out with `coverage`; it belongs to `risk`")
    if risk is not None:
        risk = check_number("risk", risk, "a number in [0, 1]", least=0, most=1)
    if delta is not None:
        delta = check_delta(delta)
    return coverage, risk, delta


def check_delta(delta: float) -> float:
    """Returns the checked δ."""
    number = check_number("delta", delta, "a number in (0, 1)", above=0, most=1)
    if number == 1:
        refuse("delta", delta, "a number in (0, 1)")
    return number
