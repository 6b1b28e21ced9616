"""Reliability in bins, with the interval of each bin's frequency."""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.binning import run_cuts, run_sums, uniform_index
from keras_selcal._segments import Segments


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
) -> ReliabilityBins:
    """Returns probability and frequency of an event in bins of its probability.

    Args:
        p: probability of the event, (n,).
        outcome: whether the event happened, 0 or 1 or between, (n,).
        counts: how many samples each one stands for, (n,).
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `functional.calibration_error`.
        level: confidence level of the intervals.
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
    low, high = wilson(np.clip(accuracy, 0.0, 1.0), mass**2 / squares, level)
    number = mass * len(p) / counts.sum()
    left, right = edges[:-1][full], edges[1:][full]
    return ReliabilityBins(left, right, said / mass, accuracy, low, high, number)
