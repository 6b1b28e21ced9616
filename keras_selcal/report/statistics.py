"""Statistics of reports: percentile intervals, and what chance explains of an ECE."""

import math

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.binning import uniform_index
from keras_selcal._segments import Segments

# Outcomes that are drawn for a calibrated model, and entries held at a time.
_MOST_DRAWS = 1000
_MOST_ENTRIES = 2**20


def percentile_ends(
    value: float, replicates: Array, confidence_level: float
) -> tuple[float, float]:
    """Returns both ends of the percentile interval, NaN if there is none.

    The ends are order statistics and not interpolated because replicates may be
    infinite.
    """
    replicates = np.sort(replicates[~np.isnan(replicates)])
    if math.isnan(value) or len(replicates) == 0:
        return math.nan, math.nan
    last = len(replicates) - 1
    tail = math.floor((1 - confidence_level) / 2 * last)
    return float(replicates[tail]), float(replicates[last - tail])


def chance_ece(
    p: Array,
    outcome: Array,
    counts: Array,
    units: Array,
    *,
    num_bins: int,
    level: float,
    seed: int,
) -> float:
    """Returns the quantile of the ECE that a calibrated model has by chance.

    Outcomes are drawn with the probabilities that the model states: each draw
    has an ECE of a perfectly calibrated model: consistency resampling. How the outcomes
    of a group depend on each other is not known. Where there are groups, the gaps
    between p and the observed outcomes get a random sign for each group instead: those
    of a calibrated model have a mean of 0.

    Args:
        p: probability of the event, (n,).
        outcome: whether it happened, (n,).
        counts: how many samples each one stands for, (n,).
        units: index 0, 1, … of the group that each belongs to, (n,).
        num_bins: M.
        level: which quantile to return.
        seed: seed of the draws.

    References:
    - Bröcker & Smith, [Increasing the Reliability of Reliability
      Diagrams](https://doi.org/10.1175/WAF993.1)
    - Cameron, Gelbach & Miller, [Bootstrap-Based Improvements for Inference with
      Clustered Errors](https://doi.org/10.1162/rest.90.3.414) (random signs)
    """
    rng, n = np.random.default_rng(seed), len(p)
    by_bin = Segments.of(uniform_index(p, num_bins))
    p = np.clip(p.astype("float64"), 0.0, 1.0)
    draws = int(np.clip(20 * _MOST_ENTRIES // n, 100, _MOST_DRAWS))
    step = max(1, _MOST_ENTRIES // n)
    errors, number = [], 1 + int(units.max())
    for start in range(0, draws, step):
        shape = (min(step, draws - start), number)
        if number == n:
            gap = by_bin.sums(counts * (p - (rng.random(shape) < p)))
        else:
            sign = rng.choice((-1.0, 1.0), shape)[:, units]
            gap = by_bin.sums(sign * counts * (p - outcome))
        errors.append(np.abs(gap).sum(axis=-1) / counts.sum())
    return float(np.quantile(np.concatenate(errors), level, method="higher"))
