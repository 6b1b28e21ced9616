"""Bins of probabilities, and their calibration error.

The error is a function of sums: the gap Σ w (p − y) and the mass Σ w of each bin. The
exact metrics sum over samples, the streaming ones keep the sums as their state.
"""

from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.counts import count_weights
from keras_selcal._formulas.functions import (
    TINY,
    at_least,
    cast,
    clip,
    floor,
    smaller,
    where_positive,
    zero_unless,
)
from keras_selcal._validation import check_choice, check_count, refuse

BINNINGS = ("uniform", "adaptive")
NORMS = ("l1", "l2", "max")
KINDS = ("top_label", "positive")
BINNING_RULES = (None, "focal_calibration", "left_closed")


def check_binning(
    num_bins: Any, binning: Any, binning_rule: Any = None
) -> tuple[int, str, str | None]:
    """Checks and returns the number of bins, their kind and their convention."""
    num_bins = check_count("num_bins", num_bins)
    check_choice("binning", binning, BINNINGS)
    check_choice("binning_rule", binning_rule, BINNING_RULES)
    if binning_rule == "focal_calibration" and binning != "adaptive":
        refuse("binning_rule", binning_rule, 'used with binning="adaptive"')
    if binning_rule == "left_closed" and binning != "uniform":
        refuse("binning_rule", binning_rule, 'used with binning="uniform"')
    return num_bins, binning, binning_rule


def check_kind(kind: Any, num_classes: int) -> None:
    """Checks whose probability a calibration error looks at."""
    check_choice("kind", kind, KINDS)
    if kind == "positive" and num_classes != 2:
        refuse("kind", kind, f'"top_label" for k={num_classes} classes')


def uniform_edges(num_bins: int, dtype: Any, xp: Any) -> Any:
    """Returns 0, 1/M … 1, each rounded to a dtype."""
    if xp is np:
        return (np.arange(num_bins + 1) / num_bins).astype(dtype)
    from keras_selcal._backend.ops import uniform_edges as of_tensors

    return of_tensors(num_bins, dtype)


def uniform_bins(p: Any, num_bins: int, xp: Any, *, left_closed: bool = False) -> Any:
    """Returns the index of each p among M equal bins (a, b], the first one closed, as
    a float; 0 for NaN.

    `left_closed` makes them [a, b), the last one closed. The edges j/M are rounded to
    the dtype of p: p = j/M lies on an edge.
    """
    p = zero_unless(p >= 0.0, p, xp)
    # p·M is the bin, except for rounding near an edge.
    index = clip(floor(p * num_bins, xp), 0.0, num_bins - 1.0, xp)
    edges = uniform_edges(num_bins, p.dtype, xp)
    low, high = (xp.take(edges, cast(i, "int32", xp)) for i in (index, index + 1.0))
    if left_closed:
        index = index + _one_if(p >= high, p, xp) - _one_if(p < low, p, xp)
    else:
        index = index + _one_if(p > high, p, xp) - _one_if(p <= low, p, xp)
    return clip(index, 0.0, num_bins - 1.0, xp)


def _one_if(condition: Any, like: Any, xp: Any) -> Any:
    return cast(condition, like.dtype, xp)


def uniform_index(p: Array, num_bins: int, *, left_closed: bool = False) -> Array:
    """Returns `uniform_bins` of an array as integers."""
    bins = uniform_bins(p, num_bins, np, left_closed=left_closed)
    return np.asarray(bins).astype(np.intp)


def run_cuts(n: Any, num_bins: int, xp: Any) -> Any:
    """Returns where n sorted positions are cut into M near-equal runs, (M + 1,).

    The first n mod M runs have ⌈n/M⌉ positions, the others ⌊n/M⌋.
    """
    j = xp.arange(num_bins + 1, dtype=n.dtype)
    least = floor(n / num_bins, xp)
    return j * least + smaller(j, n - num_bins * least, xp)


def adaptive_sums(
    p: Array, gap: Array, count: Array, num_bins: int
) -> tuple[Array, Array]:
    """Returns gap and mass of M runs of near-equal mass, for each row.

    The cumulative gap is linear between the ends of runs of equal p: samples that tie
    across a cut are split between its two runs, in any order with the same result.

    Args:
        p: probabilities, (rows, n).
        gap: w (p − y), (rows, n).
        count: w, (n,).
        num_bins: M.
    """
    rows, n = p.shape
    order = np.argsort(p, axis=-1)
    p = np.take_along_axis(p, order, axis=-1)
    ends = np.ones((rows, n), bool)
    np.not_equal(p[:, 1:], p[:, :-1], out=ends[:, :-1])
    # One curve for all rows, row after row: no cut's run reaches into the next row.
    position = np.cumsum(count[order]).reshape(rows, n)[ends]
    height = np.cumsum(np.take_along_axis(gap, order, axis=-1)).reshape(rows, n)[ends]
    return run_sums(position, height, np.full(rows, count.sum()), num_bins)


def run_sums(
    position: Array, height: Array, total: Array, num_bins: int
) -> tuple[Array, Array]:
    """Returns gap and mass of M runs of near-equal mass, for each row.

    Args:
        position: cumulative mass at the ends of runs of equal p, row after row.
        height: cumulative gap there.
        total: mass of each row.
        num_bins: M.
    """
    cuts = run_cuts(total[:, None], num_bins, np)
    start = np.cumsum(total) - total
    at = np.interp(
        cuts + start[:, None], np.append(0.0, position), np.append(0.0, height)
    )
    return np.diff(at, axis=-1), np.diff(cuts, axis=-1)


def interpolated_edges(p: Array, num_bins: int) -> Array:
    """Returns the M + 1 adaptive edges of Mukhoti et al.'s public code."""
    n = len(p)
    return np.interp(np.linspace(0, n, num_bins + 1), np.arange(n), np.sort(p))


def bin_sums(
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
        count = count_weights(gap, weight, np)
        sums = adaptive_sums(p[None], (gap * count)[None], count, num_bins)
        return sums[0][0], sums[1][0]
    else:
        index = uniform_index(p, num_bins, left_closed=binning_rule == "left_closed")
    if weight is not None:
        gap = gap * weight
    return (
        np.bincount(index, gap, num_bins),
        np.bincount(index, weight, num_bins).astype("float64"),
    )


def calibration_norm(gap: Any, mass: Any, norm: str, xp: Any) -> Any:
    """Returns the calibration error of bins, over the last axis.

    ```
    l1   Σ_b (m_b/n) |g_b/m_b|
    l2   √ Σ_b (m_b/n) (g_b/m_b)²
    max  max_b |g_b/m_b|
    ```

    with g_b the gap and m_b the mass of a bin, n = Σ m_b; empty bins do not count.
    """
    n = at_least(xp.sum(mass, axis=-1), TINY, xp)
    if norm == "l1":
        return xp.sum(xp.abs(gap), axis=-1) / n
    mean = gap / where_positive(mass > 0, mass, xp)
    if norm == "l2":
        return xp.sqrt(xp.sum(mass * mean**2, axis=-1) / n)
    # Not every backend's max propagates NaN; 0 times the sum does.
    return xp.amax(xp.abs(mean), axis=-1) + 0.0 * xp.sum(gap, axis=-1)
