"""Binned calibration errors."""

from typing import Any

import numpy as np

from keras_selcal._arrays import MOST_ENTRIES, Array, row_blocks, to_numpy
from keras_selcal._formulas.binning import (
    NORMS,
    adaptive_sums,
    bin_sums,
    calibration_norm,
    check_binning,
    check_kind,
    uniform_index,
)
from keras_selcal._predictions.samples import Samples, to_weight
from keras_selcal._validation import (
    RANGE_TOLERANCE,
    check_choice,
    check_not_empty,
    refuse,
)


def calibration_error(
    probability: Any,
    outcome: Any,
    num_bins: int = 15,
    *,
    binning: str = "uniform",
    norm: str = "l1",
    sample_weight: Any | None = None,
    binning_rule: str | None = None,
) -> float:
    """Binned calibration error of the probabilities of an event.

    `ece` is this for the event that the predicted class is correct. Use this function
    if you have only confidences and correctness.

    Formula:

    ```
    CE = Σ_b (n_b/n) |p̄_b − ȳ_b|           norm="l1"
    CE = √ Σ_b (n_b/n) (p̄_b − ȳ_b)²        norm="l2"
    CE = max_b |p̄_b − ȳ_b|                 norm="max", over bins that are not empty
    ```

    with p̄_b the mean probability and ȳ_b the frequency of the event in bin b.

    Args:
        probability: p ∈ [0, 1], of any shape.
        outcome: whether the event happened, 0 or 1 (or in between), of that shape.
        num_bins: M.
        binning: `"uniform"`: (a, b] of width 1/M, the first closed; `"adaptive"`: the
            sorted p cut into M runs of near-equal mass. Equal p are split between the
            runs that they touch, so their order does not matter.
        norm: `"l1"`, `"l2"` or `"max"`.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        binning_rule: a published convention other than the default.
            `"focal_calibration"` with adaptive bins: edges interpolated between the
            sorted p, open on the left: the smallest p is in no bin.
            `"left_closed"` with uniform bins: [a, b), the last closed.

    Returns:
        The error, a float; NaN where a probability is NaN.

    Example:
    >>> round(calibration_error([0.9, 0.8, 0.95], [1, 0, 1], num_bins=2), 4)
    0.2167

    References:
    - Naeini et al., [Obtaining Well Calibrated Probabilities Using Bayesian
      Binning](https://doi.org/10.1609/aaai.v29i1.9602)
    - Mukhoti et al., [Calibrating Deep Neural Networks using Focal
      Loss](https://arxiv.org/abs/2002.09437), for `"focal_calibration"`
    """
    bins = check_binning(num_bins, binning, binning_rule)
    check_choice("norm", norm, NORMS)
    p, y, weight = _event(probability, outcome, sample_weight)
    return float(calibration_norm(*bin_sums(p, y, weight, *bins), norm, np))


def _event(
    probability: Any, outcome: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Returns p, y and w of the samples that count, (n,)."""
    p, y = to_numpy(probability), to_numpy(outcome)
    check_not_empty("probability", p)
    if p.shape != y.shape:
        refuse("outcome", y.shape, f"of the shape of `probability`, {p.shape}")
    weight = to_weight(sample_weight, p.shape)
    p, y = p.reshape(-1), y.reshape(-1).astype("float64")
    if p.dtype not in (np.float32, np.float64):
        p = p.astype("float32")
    if weight is not None:
        p, y, weight = p[weight > 0], y[weight > 0], weight[weight > 0]
    for name, values in (("probability", p), ("outcome", y)):
        # NaN in p gives NaN, as for a diverged network; in y it is an error.
        bad = (values < -RANGE_TOLERANCE) | (values > 1 + RANGE_TOLERANCE)
        bad |= np.isnan(values) & (name == "outcome")
        if bad.any():
            refuse(name, values[bad][0].item(), "numbers in [0, 1]")
    return p, y, weight


def ece(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    *,
    binning: str = "uniform",
    norm: str = "l1",
    kind: str = "top_label",
    pooled: bool = False,
    binning_rule: str | None = None,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Expected calibration error of the predicted class, or of the positive one.

    Formula:

    ```
    ECE = Σ_b (n_b/n) |conf_b − acc_b|     = Σ_b |Σ_{i∈b} (p̂_i − 1[ŷ_i = y_i])| / n
    ```

    with p̂ = max p, ŷ its class (the first one, of equals), conf_b and acc_b the means
    of p̂ and of 1[ŷ = y] in bin b. With kind="positive", for two classes, p̂ is the
    probability of class 1 and y = 1 the event. Other norms as in `calibration_error`.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k): the
            mass of ŷ counts as correct.
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `calibration_error`.
        norm: `"l1"`, `"l2"` or `"max"`.
        kind: what is calibrated: `"top_label"`, the confidence in the predicted class,
            or `"positive"`, the probability of class 1 (one sigmoid unit, two classes
            or several labels), as in scikit-learn's `calibration_curve` and
            torchmetrics' `BinaryCalibrationError`.
        pooled: with `multi_label=True`, whether the outputs of all labels share their
            bins. By default the error is the mean of the errors of the labels.
        binning_rule: a published convention, as in `calibration_error`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The error, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(ece(np.array([0, 1, 1]), p), 4)
    0.3

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    - Nixon et al., [Measuring Calibration in Deep
      Learning](https://arxiv.org/abs/1904.01685), for adaptive bins
    """
    num_bins, binning, binning_rule = check_binning(num_bins, binning, binning_rule)
    check_choice("norm", norm, NORMS)
    samples = Samples.given(
        y_true,
        y_pred,
        sample_weight,
        from_logits=from_logits,
        multi_label=multi_label,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    )
    check_kind(kind, samples.num_classes)

    def error(part: Samples) -> float:
        p, y = part.event(kind)
        sums = bin_sums(p, y, part.weight, num_bins, binning, binning_rule)
        return float(calibration_norm(*sums, norm, np))

    return error(samples) if pooled else samples.mean_over_labels(error)


def cwece(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    *,
    binning: str = "uniform",
    norm: str = "l1",
    binning_rule: str | None = None,
    per_class: bool = False,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Any:
    """Class-wise calibration error: each class's probability, averaged over classes.

    Formula:

    ```
    cwECE = (1/k) Σ_c Σ_b (n_{b,c}/n) |p̄_{b,c} − ȳ_{b,c}|
    ```

    with p̄_{b,c} the mean of p_c and ȳ_{b,c} the frequency of class c among the samples
    whose p_c lies in bin b. All k classes count, those without a sample too. From
    logits, p_c is rounded once more: where it is an edge j/M, it can be in either bin.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"` (runs of equal mass, for each class).
        norm: `"l1"`, `"l2"` or `"max"`, of each class's bins.
        binning_rule: None or, with uniform bins, `"left_closed"`.
        per_class: whether to return each class's error, (k,), instead of their mean.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids, whose labels are
            then the classes.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: has no effect on this metric.

    Returns:
        The error, a float, or an array (k,); NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(cwece(np.array([0, 1, 1]), p), 4)
    0.3

    References:
    - Kull et al., [Beyond temperature scaling: Obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration](https://arxiv.org/abs/1910.12656)
    """
    if binning_rule == "focal_calibration":
        refuse("binning_rule", binning_rule, 'None or "left_closed" for classes')
    num_bins, binning, rule = check_binning(num_bins, binning, binning_rule)
    check_choice("norm", norm, NORMS)
    samples = Samples.given(
        y_true,
        y_pred,
        sample_weight,
        from_logits=from_logits,
        multi_label=multi_label,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    )
    if samples.label_index is None:
        sums = class_sums(samples, num_bins, binning, rule)
        errors = calibration_norm(*sums, norm, np)
    else:
        errors = np.array(
            [
                calibration_norm(
                    *bin_sums(
                        *part.event("positive"), part.weight, num_bins, binning, rule
                    ),
                    norm,
                    np,
                )
                for part in samples.split_labels()
            ]
        )
    return errors if per_class else float(errors.mean())


def class_sums(
    samples: Samples, num_bins: int, binning: str, binning_rule: str | None
) -> tuple[Array, Array]:
    """Returns gap and mass of each class's bins, (k, M)."""
    k = samples.num_classes
    if binning == "adaptive":
        return _adaptive_class_sums(samples, num_bins)
    size, left_closed = k * num_bins, binning_rule == "left_closed"
    gap, mass = np.zeros(size), np.zeros(size)
    first = np.arange(0, size, num_bins)
    for rows in row_blocks(samples.y_pred.shape):
        p = samples.p(rows)
        index = (first + uniform_index(p, num_bins, left_closed=left_closed)).ravel()
        w = np.ones(1) if samples.weight is None else samples.weight[rows, None]
        gap += np.bincount(index, (w * (p - samples.one_hot(rows))).ravel(), size)
        mass += np.bincount(index, np.broadcast_to(w, p.shape).ravel(), size)
    return gap.reshape(k, num_bins), mass.reshape(k, num_bins)


def _adaptive_class_sums(samples: Samples, num_bins: int) -> tuple[Array, Array]:
    n, k = samples.y_pred.shape
    count = samples.counts
    p = samples.each(samples.p) if samples.from_logits else samples.y_pred
    step = max(1, MOST_ENTRIES // n)
    sums = []
    for start in range(0, k, step):
        columns = np.ascontiguousarray(p[:, start : start + step].T)
        if samples.sparse:
            classes = np.arange(start, start + len(columns))
            y = (classes[:, None] == samples.labels).astype("float64")
        else:
            y = samples.labels[:, start : start + step].T
        sums.append(adaptive_sums(columns, (columns - y) * count, count, num_bins))
    gaps, masses = zip(*sums, strict=True)
    return np.concatenate(gaps), np.concatenate(masses)
