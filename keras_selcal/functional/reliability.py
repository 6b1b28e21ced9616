"""Reliability curves, with intervals too, and the selective fallback."""

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, to_numpy
from keras_selcal._formulas.binning import (
    bin_sums,
    check_binning,
    check_kind,
    run_cuts,
    run_sums,
    uniform_index,
)
from keras_selcal._predictions.samples import Samples
from keras_selcal._segments import Segments
from keras_selcal._validation import check_number


class ReliabilityCurve(NamedTuple):
    """Accuracy against confidence, bin by bin; or frequency against probability.

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
    *,
    binning: str = "uniform",
    kind: str = "top_label",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> ReliabilityCurve:
    """Mean confidence and accuracy in bins of confidence: a reliability diagram.

    With kind="positive", for two classes, the mean probability of class 1 and its
    frequency, as scikit-learn's `calibration_curve`. With `multi_label=True`, all
    labels share their bins.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `calibration_error`.
        kind: `"top_label"` or `"positive"`, as in `ece`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

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
    (p, outcome), weight = samples.event(kind), samples.weight
    total, mass = bin_sums(p, np.zeros(samples.n), weight, *bins)
    gap, _ = bin_sums(p, outcome, weight, *bins)
    filled = np.where(mass > 0, mass, np.nan)
    if binning == "uniform":
        edges = np.arange(num_bins + 1) / num_bins
    else:
        order = np.argsort(p)
        position = np.cumsum(samples.counts[order])
        cuts = run_cuts(position[-1], num_bins, np)
        edges = np.interp(cuts, position, p[order])
    return ReliabilityCurve(
        total / filled, (total - gap) / filled, mass / mass.sum(), edges
    )


def selective_fallback(
    y_true: Any,
    y_pred: Any,
    threshold: float,
    *,
    csf: Any = "msp",
    from_logits: bool = False,
    multi_label: bool = False,
) -> Array:
    """Predictions that are certain where confidence is high, and uniform below.

    Formula (Prop. constructece):

    ```
    f'_c(x) = 1[c = y]   where g(x) ≥ τ
    f'_c(x) = 1/k        where g(x) < τ
    ```

    If the score g separates correct from wrong predictions at τ, f' has a binned
    calibration error no larger than the predictions' own. It takes the labels, so it
    is a construction to compare with and not a classifier.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        threshold: τ, on the scale of the score.
        csf: g, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        multi_label: whether `y_pred` holds k independent sigmoids.

    Returns:
        f', an array of the shape of `y_pred`; for sigmoids, of their probabilities.

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
    shape = to_numpy(y_pred).shape
    samples = Samples.given(
        y_true,
        y_pred,
        from_logits=from_logits,
        multi_label=multi_label,
    )
    k = samples.num_classes
    sure = samples.scores(csfs.get(csf)) >= tau
    fallback = np.where(sure[:, None], samples.one_hot(), 1 / k)
    if fallback.size != np.prod(shape):
        fallback = fallback[:, 1]
    return fallback.reshape(shape)


class ReliabilityBins(NamedTuple):
    """The bins of probability that hold samples, in rising order.

    Attributes:
        left, right: ends of the bin.
        confidence: mean probability of the event in the bin.
        accuracy: frequency of the event in the bin.
        low, high: Wilson interval of the frequency.
        number: samples in the bin; with weights, the share of the weight times n.
    """

    left: Array
    right: Array
    confidence: Array
    accuracy: Array
    low: Array
    high: Array
    number: Array

    @property
    def gap(self) -> Array:
        """n_b (conf_b − acc_b) of each bin; ECE is Σ |gap| / n."""
        return self.number * (self.confidence - self.accuracy)

    @property
    def error(self) -> float:
        return float(np.abs(self.gap).sum() / self.number.sum())


def wilson(share: Array, size: Array, level: float) -> tuple[Array, Array]:
    """Returns the Wilson interval of shares that were observed in `size` cases each.

    Unlike a bootstrap interval it has a length where the share is 0 or 1.

    Formula:

    ```
    (s + z²/2m ± z √(s(1 − s)/m + z²/4m²)) / (1 + z²/m),   z = Φ⁻¹((1 + c)/2)
    ```

    with s the share, m the number of cases and c the confidence level.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle = share + z * z / (2 * size)
    spread = share * (1 - share) / size + (z / (2 * size)) ** 2
    half = z * np.sqrt(np.maximum(spread, 0.0))
    scale = 1 + z * z / size
    low, high = (middle - half) / scale, (middle + half) / scale
    return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def reliability_bins(
    p: Array,
    outcome: Array,
    counts: Array,
    *,
    num_bins: int,
    binning: str = "uniform",
    level: float = 0.95,
    units: Array | None = None,
) -> ReliabilityBins:
    """Returns probability and frequency of an event in bins of its probability.

    Args:
        p: probability of the event, (n,).
        outcome: whether the event happened, 0 or 1 or between, (n,).
        counts: how many samples each one stands for, (n,).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `functional.calibration_error`.
        level: confidence level of the intervals.
        units: index of the group that each sample belongs to, (n,), for intervals that
            take groups for independent, with uniform bins. By default samples are.
    """
    values = counts * np.stack([np.ones(len(p)), p, outcome, counts])
    if binning == "uniform":
        edges = np.arange(num_bins + 1) / num_bins
        index = uniform_index(p, num_bins)
        sums = np.stack([np.bincount(index, row, num_bins) for row in values])
    else:
        by_p = Segments.of(p)
        upto = np.cumsum(by_p.sums(values), axis=-1)
        total = upto[:1, -1]
        sums = np.stack([run_sums(upto[0], row, total, num_bins)[0][0] for row in upto])
        order = by_p.order
        cuts = run_cuts(total[0], num_bins, np)
        edges = np.interp(cuts, np.cumsum(counts[order]), p[order])
    full = sums[0] > 0
    mass, said, happened, squares = sums[:, full]
    accuracy = happened / mass
    # Unequal weights carry less information than equally many equal ones.
    size = mass**2 / squares
    if units is not None and len(np.unique(units)) < len(p):
        rank = np.cumsum(full) - 1
        size = np.minimum(size, _group_sizes(rank[index], outcome, counts, units))
    low, high = wilson(np.clip(accuracy, 0.0, 1.0), size, level)
    number = mass * len(p) / counts.sum()
    left, right = edges[:-1][full], edges[1:][full]
    return ReliabilityBins(left, right, said / mass, accuracy, low, high, number)


def _group_sizes(index: Array, outcome: Array, counts: Array, units: Array) -> Array:
    """Returns how many independent samples each bin is worth, by the variance between
    groups; where all outcomes are equal, which shows none, the number of groups.

    Args:
        index: bin of each sample, (n,), of bins that hold some.
        outcome: 0, 1 or between, (n,).
        counts: how many samples each one stands for, (n,).
        units: index of each sample's group, (n,).
    """
    cells, cell = np.unique(index * (1 + units.max()) + units, return_inverse=True)
    of_bin = cells // (1 + units.max())
    mass = np.bincount(index, counts)
    mean = np.bincount(index, counts * outcome) / mass
    weight = np.bincount(cell, counts)
    excess = np.bincount(cell, counts * (outcome - mean[index]))
    groups = mass**2 / np.bincount(of_bin, weight**2)
    number = np.bincount(of_bin)
    # The variance of a mean of G groups, as of G − 1 degrees of freedom.
    variance = (
        np.bincount(of_bin, excess**2) / mass**2 * number / np.maximum(number - 1, 1)
    )
    spread = mean * (1 - mean)
    shown = (spread > 0) & (variance > 0) & (number > 1)
    return np.where(shown, spread / np.where(shown, variance, 1.0), groups)
