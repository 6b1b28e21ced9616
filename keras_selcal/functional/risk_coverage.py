"""Selective classification: the risk-coverage curve and points on it."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import check_number
from keras_selcal.functional.ranked import (
    check_source,
    mean_of_rankings,
    own_ranked,
    ranked,
    ranking,
)
from keras_selcal.functional.sample_losses import sample_losses


class RiskCoverageCurve(NamedTuple):
    """Selective risk at every coverage that a threshold can give, rising coverage.

    Attributes:
        coverage: share of the samples with a score of at least the threshold.
        risk: their mean loss.
        threshold: the score from which samples are accepted.
    """

    coverage: Array
    risk: Array
    threshold: Array


def risk_coverage_curve(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> RiskCoverageCurve:
    """Selective risk against coverage.

    Formula:

    ```
    κ(τ) = P(g ≥ τ),     R(τ) = E[ℓ | g ≥ τ]
    ```

    With `multi_label=True`, the outputs of all labels are ranked together.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: g, as `keras_selcal.csf.get` takes it.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        A `RiskCoverageCurve` with one point for each distinct score, from the most
        confident samples to all of them.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve = risk_coverage_curve(np.array([0, 0, 0]), p)
    >>> curve.coverage.round(3).tolist(), curve.risk.round(3).tolist()
    ([0.333, 0.667, 1.0], [0.0, 0.5, 0.333])

    References:
    - El-Yaniv & Wiener, [On the Foundations of Noise-free Selective
      Classification](https://www.jmlr.org/papers/v11/el-yaniv10a.html)
    """
    if check_source(y_true, y_pred, scores, losses):
        ranks, values, counts = own_ranked(scores, losses, sample_weight)
        confidence = ranks
    else:
        outputs = Outputs(
            from_logits, multi_label, ignore_class, axis, decision_threshold
        )
        samples = Samples.of(y_true, y_pred, outputs, sample_weight)
        score = csfs.get(csf)
        ranks, values = samples.ranks(score), sample_losses(samples, loss)
        counts, confidence = samples.counts, samples.scores(score)
    mass, total = ranking(ranks, values, counts).accepted()
    _, first = np.unique(ranks, return_index=True)
    threshold = confidence[first[::-1]]
    return RiskCoverageCurve(mass / mass[-1], total / mass, threshold)


def risk_at_coverage(
    y_true: Any = None,
    y_pred: Any = None,
    coverage: float | None = None,
    *,
    scores: Any = None,
    losses: Any = None,
    csf: Any = "msp",
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Mean loss of the most confident share κ of the samples.

    Samples that tie at the cut enter by the share that fits; so does the last sample
    where κ·n is not whole.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        coverage: κ in (0, 1].
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The risk, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> risk_at_coverage(np.array([0, 0, 0, 0]), p, coverage=0.5)
    0.5
    """
    kappa = check_number(
        "coverage", coverage, "a number in (0, 1]", above=0.0, most=1.0
    )
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    return mean_of_rankings("risk_at", parts, kappa)


def coverage_at_risk(
    y_true: Any = None,
    y_pred: Any = None,
    risk: float | None = None,
    *,
    scores: Any = None,
    losses: Any = None,
    csf: Any = "msp",
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Largest coverage at which the selective risk is at most r.

    Samples of equal score are accepted together or not at all.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        risk: r ≥ 0.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The coverage, a float, 0 where no threshold keeps the risk; NaN where a
        prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> coverage_at_risk(np.array([0, 0, 0, 0]), p, risk=0.3)
    1.0
    """
    r = check_number("risk", risk, "a number of at least 0", least=0.0)
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    return mean_of_rankings("coverage_at", parts, r)
