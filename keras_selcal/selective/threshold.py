"""Thresholds on confidence: by coverage, by risk, and with a guarantee."""

import warnings
from typing import Any

import numpy as np

from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_number, refuse
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.mixture import check_unknown, mixed_scores, remaining

DEFAULT_DELTA = 0.05


def select_threshold(
    scores: Any,
    correct: Any = None,
    *,
    losses: Any = None,
    binary: bool = False,
    coverage: float | None = None,
    risk: Any = None,
    delta: float | None = None,
    sample_weight: Any = None,
    groups: Any = None,
    error_probability: Any = None,
    unknown: Any = None,
    unknown_share: float | None = None,
) -> float:
    """Selects the confidence threshold above which a classifier answers.

    A sample is accepted where score ≥ threshold; equal scores are never split.

    - `coverage=κ`: the largest threshold that accepts at least a share κ.
    - `risk=r`: the threshold of largest coverage with a share of errors of at most r
      among the accepted samples. This is the share in these samples only: on new ones
      it exceeds r about half of the time; a warning says so.
    - `risk=r, delta=δ`: a threshold of large coverage whose true risk is at most r
      with probability 1 − δ over the samples (selection with guaranteed risk).

    The risk is the share of errors, or with `losses` the mean of any loss in [0, 1],
    among the accepted samples. Several risks can be held at once: the error of each
    class, precision and a cost (`answer_losses` computes them). Risks of decisions that
    are not "accept or abstain", such as the recall of label sets, are controlled by
    `keras_selcal.conformal.control_risk`.

    Formula:

    A threshold that accepts m samples, e of them wrong, passes at level α if

    ```
    Σ_{j ≤ e} C(m, j) r^j (1 − r)^(m − j) ≤ α
    ```

    that is, if the bound of Clopper and Pearson at α is at most r. The search tests
    coverages in rising order, each 1 % larger than the one before. It starts at ⅓, ⅑, …
    of the samples, and at the least number that can pass with one error, with an equal
    share of δ each (a union bound). A threshold that passes hands its α on to the next
    one; a threshold that fails loses it. So δ is spent on the starts only, and nothing
    is assumed about how the risk depends on the threshold. Where the errors are
    predicted by `error_probability`, nine tenths of δ belong to the start that these
    suggest. The search then comes near what the best start would reach, and finds a
    threshold more often where that is difficult (`benchmarks/README.md`).

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
    dependence within groups. The risk is still per sample, not per group. Losses
    between 0 and 1 are tested in the same way, each sample as a group. Of several risks
    the largest p-value counts: δ is for all of them together.

    With `unknown`, the population is a mixture: a share π of the inputs belongs to no
    class, and every answer to one of them is an error. From the scores of known and of
    unknown inputs, the function draws a sample of the mixture, of a size for which both
    suffice, and selects the threshold on it. Risk and guarantee are for the mixture;
    1/20 of δ is for the case that the inputs of a kind do not suffice.

    Args:
        scores: confidence scores (n,): the larger, the more confident. A score of −∞
            is never accepted.
        correct: whether each answer is right, (n,).
        losses: instead of `correct`, the loss of each answer in [0, 1], (n,), or of
            several risks, (n, q). NaN where a sample does not count in a risk.
        binary: whether a loss can only be 0 or 1: the test is then the exact one.
        coverage: κ in (0, 1]. Pass exactly one of `coverage` and `risk`.
        risk: r in [0, 1]; with `delta`, above 0. One for all, or one for each of the q
            risks of `losses`.
        delta: δ in (0, 1), the probability that the guarantee fails; with `risk` only.
        sample_weight: weights (n,) of at least 0. Samples of weight 0 do not count.
            Other weights than 0 and 1 are refused with `delta`, since the guarantee
            counts samples.
        groups: for each sample the group that it belongs to, (n,).
        error_probability: how probable an error of each answer is, (n,), such as
            1 − max p. It decides where to start the search with `delta`. The guarantee
            holds whether it is right or not, as long as it does not depend on these
            labels. It helps even if errors are eight times as frequent as predicted.
        unknown: scores (m,) of inputs that belong to none of the classes, independent
            draws of those that come in use. With `correct` and `risk` only.
        unknown_share: π in (0, 1), the share of such inputs in use.

    Example:
    >>> import numpy as np
    >>> from keras_selcal.selective import answer_losses
    >>> scores = np.array([0.9, 0.8, 0.7, 0.6])
    >>> correct = np.array([True, True, False, True])
    >>> select_threshold(scores, correct, coverage=0.5)
    0.8
    >>> scores = np.linspace(0, 1, 1000)
    >>> round(select_threshold(scores, scores > 0.1, risk=0.02, delta=0.05), 2)
    0.09
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 4000)
    >>> answers = np.where(rng.random(4000) < 0.1 * scores.repeat(4), 1 - y, y)
    >>> costs = np.array([[0, 1], [5, 0]])  # to miss class 1 costs 5
    >>> losses = answer_losses(y, answers, costs=costs)
    >>> t = select_threshold(-scores.repeat(4), losses=losses, risk=0.1 / 5, delta=0.1)
    >>> round(t, 2)
    -0.43

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500) (the guarantee by binomial tails)
    - Angelopoulos et al., [Learn then Test: Calibrating Predictive Algorithms to
      Achieve Risk Control](https://arxiv.org/abs/2110.01052) (fixed sequences with
      several starts)
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    """
    others = {"coverage": coverage, "losses": losses, "groups": groups}
    others |= {"sample_weight": sample_weight, "error_probability": error_probability}
    share = check_unknown(unknown, unknown_share, others)
    coverage, risk, delta = check_target(coverage, risk, delta)
    if share is not None:
        allowed = DEFAULT_DELTA if delta is None else delta
        scores, correct = mixed_scores(scores, correct, unknown, share, allowed)
        delta = None if delta is None else remaining(delta)
    cuts = Cuts.of(
        scores,
        correct,
        sample_weight,
        groups,
        losses=losses,
        binary=binary,
        error_probability=error_probability,
    )
    if np.size(risk) not in (1, cuts.losses.shape[1]):
        refuse("risk", risk, f"one number, or one for each of {cuts.losses.shape[1]}")
    return cuts.select(coverage, risk, delta)


def check_target(
    coverage: float | None, risk: Any, delta: float | None
) -> tuple[float | None, Any, float | None]:
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
    risks = [
        check_number("risk", r, "a number in [0, 1]", least=0, most=1)
        for r in (np.ravel(risk).tolist() if np.ndim(risk) else [risk])
    ]
    risk = risks[0] if np.ndim(risk) == 0 else np.array(risks)
    if delta is None:
        given = ", ".join(f"{r:g}" for r in risks)
        warnings.warn(
            f"`risk={given}` without `delta` bounds the share of errors on these "
            "samples only: on new ones the risk exceeds it about half of the time. "
            "Pass `delta=0.05` for a risk that holds with probability 0.95.",
            stacklevel=3,
        )
        return None, risk, None
    delta = check_delta(delta)
    if 0 in risks:
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


def of_answers(threshold: Any, labels: Any, multi_label: bool, xp: Any) -> Any:
    """Returns the threshold of each answer.

    Args:
        threshold: a number, or (k,): one for each label if multi-label, else one for
            each class.
        labels: predicted classes, (...).
        multi_label: whether answers have the labels in their last axis.
        xp: `keras.ops` or NumPy.
    """
    if multi_label or not len(threshold.shape):
        return threshold
    return xp.take(threshold, labels, axis=0)


def accepts(answer: dict[str, Any], threshold: Any, outputs: Outputs) -> np.ndarray:
    """Returns which answers, as `SelectionLayer.answer` gives them, are accepted."""
    at = of_answers(np.asarray(threshold), answer["labels"], outputs.multi_label, np)
    return np.asarray(answer["accepted"] & (answer["confidence"] >= at))


def with_margin(q: np.ndarray, scores: np.ndarray, cells: Any = 0) -> np.ndarray:
    """Returns thresholds just above that let the same scores pass, in float32 too.

    Args:
        q: thresholds that scores ≤ q pass, (c,).
        scores: of the samples, (n,).
        cells: which of the thresholds is for each, (n,).
    """
    following, cells = np.full(len(q), np.inf), np.broadcast_to(cells, len(scores))
    np.minimum.at(following, cells, np.where(scores > q[cells], scores, np.inf))
    margin = 1e-6 * np.maximum(1, np.where(np.isfinite(q), np.abs(q), 0))
    higher = np.minimum(q + margin, (q + following) / 2).astype("float32")
    return np.where((higher >= q) & (higher < following), higher, q)
