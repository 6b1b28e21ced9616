"""Thresholds on confidence: by coverage, by risk, and with a guarantee."""

import warnings
from typing import Any

from keras_selcal._core.validation import check_number, refuse
from keras_selcal.selective.cuts import Cuts


def select_threshold(
    scores: Any,
    correct: Any,
    *,
    coverage: float | None = None,
    risk: float | None = None,
    delta: float | None = None,
    sample_weight: Any = None,
    groups: Any = None,
) -> float:
    """Returns the confidence from which on a classifier should answer.

    A sample is accepted where score ≥ threshold; equal scores are never split.

    - `coverage=κ`: the largest threshold that accepts at least a share κ.
    - `risk=r`: the threshold of largest coverage whose share of errors among the
      accepted samples is at most r. That share is of these samples only: on new ones
      it exceeds r about half of the time, so that this gives a warning.
    - `risk=r, delta=δ`: a threshold of large coverage whose true risk is at most r
      with probability 1 − δ over the samples (selection with guaranteed risk).

    Formula:

    A threshold that accepts m samples, e of them wrong, passes at level α if

    ```
    Σ_{j ≤ e} C(m, j) r^j (1 − r)^(m − j) ≤ α
    ```

    that is, if the bound of Clopper and Pearson at α is at most r. The search tests
    coverages in rising order, each 1 % larger than the one before. It starts at ½, ¼,
    ⅛, … of the samples, and at the least number that can pass with two errors, with an
    equal share of δ each (a union bound). A threshold that passes hands its α on to the
    next one; a threshold that fails loses it. So δ is spent on the starts only, and
    nothing is assumed about how the risk depends on the threshold.

    The samples must be independent draws from the population in which the threshold
    will be used, and not those that the classifier or its calibrator was fitted on.
    Tokens of one sequence, or pixels of one image, are not independent: `groups` makes
    the sequence or image the unit. The statistic of a group g that has e_g errors
    among a_g accepted samples is then

    ```
    L_g = e_g − r a_g
    ```

    The share of errors among accepted samples is at most r if and only if E[L_g] ≤ 0.
    The hypothesis E[L_g] > 0 is tested by betting (Waudby-Smith & Ramdas), which is
    valid for any distribution of at most `max_g n_g` samples a group, whatever the
    dependence within groups. The risk is still that of a sample, not of a group.

    Args:
        scores: confidence scores (n,): the larger, the more confident. A score of −∞
            is never accepted.
        correct: whether each answer is right, (n,).
        coverage: κ in (0, 1]. Pass exactly one of `coverage` and `risk`.
        risk: r in [0, 1]; with `delta`, above 0.
        delta: δ in (0, 1), the probability that the guarantee fails; with `risk` only.
        sample_weight: weights (n,) of at least 0. Samples of weight 0 do not count.
            Other weights than 0 and 1 are refused with `delta`, since the guarantee
            counts samples.
        groups: for each sample the group that it belongs to, (n,).

    Example:
    >>> import numpy as np
    >>> scores = np.array([0.9, 0.8, 0.7, 0.6])
    >>> correct = np.array([True, True, False, True])
    >>> select_threshold(scores, correct, coverage=0.5)
    0.8
    >>> scores = np.linspace(0, 1, 1000)
    >>> round(select_threshold(scores, scores > 0.1, risk=0.02, delta=0.05), 2)
    0.09

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500) (the guarantee by binomial tails)
    - Angelopoulos et al., [Learn then Test: Calibrating Predictive Algorithms to
      Achieve Risk Control](https://arxiv.org/abs/2110.01052) (fixed sequences with
      several starts)
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    """
    coverage, risk, delta = check_target(coverage, risk, delta)
    cuts = Cuts.of(scores, correct, sample_weight, groups)
    return cuts.select(coverage, risk, delta)


def check_target(
    coverage: float | None, risk: float | None, delta: float | None
) -> tuple[float | None, float | None, float | None]:
    """Returns the checked target, of which exactly one of κ and r is given."""
    if (coverage is None) == (risk is None):
        refuse("coverage", coverage, "a number if `risk` is None, and None otherwise")
    if coverage is not None:
        coverage = check_number(
            "coverage", coverage, "a number in (0, 1]", above=0, most=1
        )
        if delta is not None:
            refuse("delta", delta, "None with `coverage`; it belongs to `risk`")
        return coverage, None, None
    risk = check_number("risk", risk, "a number in [0, 1]", least=0, most=1)
    if delta is None:
        warnings.warn(
            f"`risk={risk:g}` without `delta` bounds the share of errors on these "
            "samples only: on new ones the risk exceeds it about half of the time. "
            "Pass `delta=0.05` for a risk that holds with probability 0.95.",
            stacklevel=3,
        )
        return None, risk, None
    delta = check_delta(delta)
    if risk == 0:
        refuse(
            "risk",
            risk,
            "above 0 with `delta`: no number of samples proves that errors never "
            "occur. n right answers guarantee a risk of 1 − δ^(1/n), such as "
            f"{1 - delta ** (1 / 1000):.2g} for n = 1000",
        )
    return None, risk, delta


def check_delta(delta: float) -> float:
    """Returns the checked δ."""
    number = check_number("delta", delta, "a number in (0, 1)", above=0, below=1)
    if number > 0.5:
        warnings.warn(
            f"`delta={number:g}` is the probability that the guarantee fails, not a "
            f"level of confidence. Did you mean {1 - number:g}?",
            stacklevel=3,
        )
    return number
