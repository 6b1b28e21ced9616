"""Binned calibration errors, reliability curves, and the selective fallback."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._core.binning import (
    NORMS,
    adaptive_sums,
    calibration_norm,
    check_binning,
    interpolated_edges,
    run_cuts,
    uniform_bins,
)
from keras_selcal._core.samples import (
    MOST_ENTRIES,
    Array,
    Samples,
    row_blocks,
    to_counts,
    to_numpy,
    to_weight,
)
from keras_selcal._core.validation import check_choice, check_number, refuse


def _bin_sums(
    p: Array,
    outcome: Array,
    weight: Array | None,
    num_bins: int,
    binning: str,
    binning_rule: str | None,
) -> tuple[Array, Array]:
    """Returns gap and mass of each bin, (M,)."""
    gap = p.astype("float64") - outcome
    if binning_rule == "focal_calibration":
        edges = interpolated_edges(p, num_bins)
        index = np.searchsorted(edges, p, side="left") - 1
        # The open left end drops the smallest p, which stays in n: as published.
        gap[index < 0] = 0.0
        index = np.maximum(index, 0)
    elif binning == "adaptive":
        count = to_counts(weight, len(p))
        sums = adaptive_sums(p[None], (gap * count)[None], count, num_bins)
        return sums[0][0], sums[1][0]
    else:
        index = uniform_bins(p, num_bins, binning_rule == "left_closed")
    if weight is not None:
        gap = gap * weight
    return (
        np.bincount(index, gap, num_bins),
        np.bincount(index, weight, num_bins).astype("float64"),
    )


def calibration_error(
    probability: Any,
    outcome: Any,
    num_bins: int = 15,
    binning: str = "uniform",
    norm: str = "l1",
    sample_weight: Any | None = None,
    binning_rule: str | None = None,
) -> float:
    """Binned calibration error of the probabilities of an event.

    `ece` is this for the event that the predicted class is right. Here it is for those
    who have confidences and correctness only, or a binary event.

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
            sorted p cut into M runs of near-equal mass. Equal p share themselves out
            between the runs that they touch, so that their order does not matter.
        norm: `"l1"`, `"l2"` or `"max"`.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        binning_rule: a published convention other than the default.
            `"focal_calibration"` with adaptive bins: edges interpolated between the
            sorted p, open on the left, so that the smallest p is in no bin.
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
    return float(calibration_norm(*_bin_sums(p, y, weight, *bins), norm, np))


def _event(
    probability: Any, outcome: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Returns p, y and w of the samples that count, (n,)."""
    p, y = to_numpy(probability), to_numpy(outcome)
    if p.shape != y.shape or p.size == 0:
        refuse("outcome", y.shape, f"of the shape of `probability`, {p.shape}")
    weight = to_weight(sample_weight, p.shape)
    p, y = p.reshape(-1), y.reshape(-1).astype("float64")
    if p.dtype not in (np.float32, np.float64):
        p = p.astype("float32")
    if weight is not None:
        p, y, weight = p[weight > 0], y[weight > 0], weight[weight > 0]
    return p, y, weight


def ece(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    binning: str = "uniform",
    norm: str = "l1",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    binning_rule: str | None = None,
) -> float:
    """Expected calibration error of the predicted class.

    Formula:

    ```
    ECE = Σ_b (n_b/n) |conf_b − acc_b|     = Σ_b |Σ_{i∈b} (p̂_i − 1[ŷ_i = y_i])| / n
    ```

    with p̂ = max p, ŷ its class (the first one, of equals), conf_b and acc_b the means
    of p̂ and of 1[ŷ = y] in bin b. Other norms as in `calibration_error`.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k), of which
            the mass of ŷ counts as correct.
        y_pred: probabilities or logits, (..., k).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `calibration_error`.
        norm: `"l1"`, `"l2"` or `"max"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        binning_rule: a published convention, as in `calibration_error`.

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
    bins = check_binning(num_bins, binning, binning_rule)
    check_choice("norm", norm, NORMS)
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    sums = _bin_sums(samples.confidence, samples.correct, samples.weight, *bins)
    return float(calibration_norm(*sums, norm, np))


def cwece(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    binning: str = "uniform",
    norm: str = "l1",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    binning_rule: str | None = None,
    per_class: bool = False,
) -> Any:
    """Class-wise calibration error: each class's probability, averaged over classes.

    Formula:

    ```
    cwECE = (1/k) Σ_c Σ_b (n_{b,c}/n) |p̄_{b,c} − ȳ_{b,c}|
    ```

    with p̄_{b,c} the mean of p_c and ȳ_{b,c} the frequency of class c among the samples
    whose p_c lies in bin b. All k classes count, those without a sample too.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"` (runs for each class of its own).
        norm: `"l1"`, `"l2"` or `"max"`, of each class's bins.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        binning_rule: None or, with uniform bins, `"left_closed"`.
        per_class: whether to return each class's error, (k,), instead of their mean.

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
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    sums = class_sums(samples, num_bins, binning, rule)
    errors = calibration_norm(*sums, norm, np)
    return errors if per_class else float(errors.mean())


def class_sums(
    samples: Samples, num_bins: int, binning: str, binning_rule: str | None
) -> tuple[Array, Array]:
    """Returns gap and mass of each class's bins, (k, M)."""
    k = samples.num_classes
    if binning == "adaptive":
        return _adaptive_class_sums(samples, num_bins)
    size = k * num_bins
    gap, mass = np.zeros(size), np.zeros(size)
    first = np.arange(0, size, num_bins)
    for rows in row_blocks(samples.y_pred.shape):
        p = samples.p(rows)
        index = uniform_bins(p, num_bins, binning_rule == "left_closed") + first
        w = None if samples.weight is None else samples.weight[rows]
        flat = index.reshape(-1)
        mass += np.bincount(flat, None if w is None else np.repeat(w, k), size)
        gap += np.bincount(flat, _times(p, w).reshape(-1), size)
        labels = samples.labels[rows]
        if samples.sparse:
            gap -= np.bincount(samples.of_class(index, labels), w, size)
        else:
            gap -= np.bincount(flat, _times(labels, w).reshape(-1), size)
    return gap.reshape(k, num_bins), mass.reshape(k, num_bins)


def _times(values: Array, weight: Array | None) -> Array:
    return values if weight is None else values * weight[:, None]


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


class ReliabilityCurve(NamedTuple):
    """Accuracy against confidence, bin by bin.

    Attributes:
        confidence: mean confidence of each bin, NaN where it is empty.
        accuracy: accuracy in each bin, NaN where it is empty.
        share: share of the samples in each bin.
        edges: the M + 1 ends of the bins.
    """

    confidence: Array
    accuracy: Array
    share: Array
    edges: Array


def reliability_curve(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    binning: str = "uniform",
    from_logits: bool = False,
    sample_weight: Any | None = None,
) -> ReliabilityCurve:
    """Mean confidence and accuracy in bins of confidence: a reliability diagram.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `calibration_error`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        A `ReliabilityCurve` of arrays (M,), and the M + 1 edges. The l1 error of `ece`
        is Σ share·|confidence − accuracy|.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve = reliability_curve(np.array([0, 1, 1]), p, num_bins=2)
    >>> curve.accuracy.round(4).tolist(), curve.confidence.round(4).tolist()
    ([nan, 0.6667], [nan, 0.7667])

    References:
    - Niculescu-Mizil & Caruana, [Predicting Good Probabilities With Supervised
      Learning](https://doi.org/10.1145/1102351.1102430)
    """
    bins = check_binning(num_bins, binning)
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    p, weight = samples.confidence, samples.weight
    right, mass = _bin_sums(p, np.zeros(samples.n), weight, *bins)
    gap, _ = _bin_sums(p, samples.correct, weight, *bins)
    filled = np.where(mass > 0, mass, np.nan)
    if binning == "uniform":
        edges = np.arange(num_bins + 1) / num_bins
    else:
        order = np.argsort(p)
        position = np.cumsum(samples.counts[order])
        cuts = run_cuts(position[-1], num_bins, np)
        edges = np.interp(cuts, position, p[order])
    return ReliabilityCurve(
        right / filled, (right - gap) / filled, mass / mass.sum(), edges
    )


def selective_fallback(
    y_true: Any,
    y_pred: Any,
    threshold: float,
    csf: Any = "msp",
    from_logits: bool = False,
) -> Array:
    """Predictions that are certain where confidence is high, and uniform below.

    Formula (Prop. constructece):

    ```
    f'_c(x) = 1[c = y]   where g(x) ≥ τ
    f'_c(x) = 1/k        where g(x) < τ
    ```

    Where the score g tells right from wrong predictions at τ, f' has a binned
    calibration error no larger than the predictions' own. It takes the labels, so it
    is a construction to compare with and not a classifier.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        threshold: τ, on the scale of the score.
        csf: g, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.

    Returns:
        f', an array of the shape of `y_pred`.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.4, 0.6]])
    >>> selective_fallback(np.array([0, 0]), p, threshold=0.8).tolist()
    [[1.0, 0.0], [0.5, 0.5]]

    References:
    - Ma & Blaschko, [Meta-Cal: Well-controlled Post-hoc Calibration by
      Ranking](https://arxiv.org/abs/2105.04290), Prop. 3
    """
    tau = check_number("threshold", threshold, "a number")
    samples = Samples.of(y_true, y_pred, from_logits, None)
    k = samples.num_classes
    sure = samples.scores(csfs.get(csf)) >= tau
    fallback = np.where(sure[:, None], samples.one_hot(), 1 / k)
    return fallback.reshape(to_numpy(y_pred).shape)
