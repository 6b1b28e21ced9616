"""The soft CDF of confidence scores (Eq. softcdf), and the weights β of the AU loss.

Scores have shape (rows, n); each row has a CDF of its own.
"""

import math
from typing import Any

import numpy as np

from keras_selcal._backend.alone import ALONE, Alone
from keras_selcal._formulas.counts import count_scale
from keras_selcal._formulas.functions import (
    TINY,
    at_least,
    at_most,
    cast,
    clip,
    cumsum,
    floor,
    smaller,
    still,
    sum_by_cell,
    zero_unless,
)
from keras_selcal._validation import check_count, check_number, refuse

# What the gradient of β flows through.
THROUGH = ("score", "cdf")

# In float32 n/(n + 1) is 1 for n above 2²⁴, where ln(1 − Ĝ) would be −∞.
_LARGEST_BELOW_1 = 1.0 - 2.0**-24

# Entries of the matrix σ((u − c_m)/ν) that are held at a time: 64 MB of float32.
_MOST_ENTRIES = 2**24


def to_unit(scores: Any, support: tuple[float, float], xp: Any) -> Any:
    """Returns u = (s − lo)/(hi − lo), clipped to [0, 1]."""
    lo, hi = support
    if (lo, hi) != (0.0, 1.0):
        scores = (scores - lo) / (hi - lo)
    return clip(scores, 0.0, 1.0, xp)


def _sum(x: Any, xp: Any) -> Any:
    return xp.sum(x, axis=-1, keepdims=True)


def histogram(u: Any, count: Any | None, num_bins: int, xp: Any) -> Any:
    """Returns h, the number of scores in each of M equal bins of [0, 1], the last one
    closed: (rows, n) → (rows, M).
    """
    # NaN is in no order: it counts in bin 0, as no backend may index out of range.
    u = zero_unless(u >= 0.0, still(u, xp), xp)
    cell = at_most(floor(u * num_bins, xp), num_bins - 1.0, xp)
    count = xp.ones_like(u) if count is None else still(count, xp)
    return sum_by_cell(count, cell, num_bins, xp)


def shared_histogram(u: Any, count: Any, num_bins: int, xp: Any) -> Any:
    """Returns h with each score shared linearly between the two nearest bin centres,
    which gives h a gradient with respect to the scores: (rows, n) → (rows, M).
    """
    position = zero_unless(u >= 0.0, u, xp) * num_bins - 0.5
    low = clip(floor(still(position, xp), xp), 0.0, num_bins - 1.0, xp)
    share = count * clip(position - low, 0.0, 1.0, xp)
    high = at_most(low + 1.0, num_bins - 1.0, xp)
    counts = sum_by_cell(count - share, low, num_bins, xp)
    return counts + sum_by_cell(share, high, num_bins, xp)


def quantile(u: Any, count: Any | None, q: float, xp: Any) -> Any:
    """Returns the q-quantile of each row, (rows, 1), by NumPy's default rule.

    Args:
        u: values of shape (rows, n).
        count: how many copies of each value there are, (rows, n), or None for one.
        q: the level, in [0, 1].
        xp: `keras.ops` or NumPy.
    """
    # NaN is in no order: it counts as 0.
    u = zero_unless(u >= 0.0, still(u, xp), xp)
    n = u.shape[-1]
    if count is None and n:
        u = xp.sort(u, axis=-1)
        position = q * (n - 1)
        low, high = math.floor(position), math.ceil(position)
        lower, upper = u[:, low : low + 1], u[:, high : high + 1]
        return lower + (position - low) * (upper - lower)
    count = xp.ones_like(u) if count is None else still(count, xp)
    order = xp.argsort(u, axis=-1)
    u, count = (xp.take_along_axis(x, order, axis=-1) for x in (u, count))
    upto = cumsum(count, xp)
    total = upto[:, -1:]
    position = at_least(q * (total - 1.0), 0.0, xp)
    rank = floor(position, xp)

    def at(rank: Any) -> Any:
        # Half a sample of slack absorbs the rounding of fractional counts.
        index = _sum(cast(upto <= rank + 0.5, u.dtype, xp), xp)
        # A row that is all padding has no sample.
        index = zero_unless(total > 0.5, index, xp)
        return xp.take_along_axis(u, cast(index, "int32", xp), axis=-1)

    lower, upper = at(rank), at(xp.where(rank + 1.5 < total, rank + 1.0, rank))
    return lower + (position - rank) * (upper - lower)


def soft_cdf(at: Any, counts: Any, smoothing: float, xp: Any) -> Any:
    """Returns Ĝ_ν(u) = (1/n) Σ_m h_m σ((u − c_m)/ν), capped at n/(n + 1).

    Args:
        at: u, points of [0, 1], (rows, points).
        counts: h, of the scores in M equal bins of [0, 1], (rows, M).
        smoothing: ν.
        xp: `keras.ops` or NumPy.
    """
    num_bins, points = int(counts.shape[-1]), at.shape[-1]
    # At least 1: a batch that is all padding must not give NaN.
    n = at_least(_sum(counts, xp), 1.0, xp)
    centers = (xp.arange(num_bins, dtype=counts.dtype) + 0.5) / num_bins
    shares = xp.expand_dims(counts / n, -2)

    def of_points(u: Any) -> Any:
        x = (xp.expand_dims(u, -1) - centers) / smoothing
        return xp.sum(_sigmoid(x, xp) * shares, axis=-1)

    slices = -(-(points or 0) * int(at.shape[0]) * num_bins // _MOST_ENTRIES)
    if slices <= 1:
        cdf = of_points(at)
    else:
        # Pixels and long texts.
        step = -(-points // slices)
        parts = [of_points(at[:, i : i + step]) for i in range(0, points, step)]
        cdf = xp.concatenate(parts, axis=-1)
    # Caps −ln(1 − Ĝ) at ln(n + 1), finite-sample AURC's top weight. Where sharp steps
    # underflow, TINY keeps −ln(1 − Ĝ)/Ĝ at its limit 1.
    cap = at_most(n / (n + 1.0), _LARGEST_BELOW_1, xp)
    return smaller(at_least(cdf, TINY, xp), cap, xp)


def _sigmoid(x: Any, xp: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(x / 2)) if xp is np else xp.sigmoid(x)


def check_cdf_arguments(num_bins: Any, smoothing: Any) -> tuple[int, float]:
    """Returns the checked M and ν."""
    return (
        check_count("num_bins", num_bins),
        check_number("smoothing", smoothing, "a number above 0", above=0.0),
    )


def check_support(support: Any) -> tuple[float, float]:
    """Returns the checked (lo, hi)."""
    try:
        lo, hi = (float(end) for end in support)
    except (TypeError, ValueError):
        refuse("support", support, "a pair (lo, hi) of numbers, lo < hi")
    if not lo < hi:
        refuse("support", support, "a pair (lo, hi) of numbers, lo < hi")
    return lo, hi


def check_region(quantile: Any, threshold: Any) -> tuple[float | None, float | None]:
    """Returns (κ, τ), of which exactly one is a number; κ defaults to 0.75."""
    if threshold is None:
        if quantile is None:
            return 0.75, None
        allowed = "a number in (0, 1], or None"
        return check_number("quantile", quantile, allowed, above=0.0, most=1.0), None
    if quantile is not None:
        allowed = f"None if `threshold` is given (threshold={threshold!r})"
        refuse("quantile", quantile, allowed)
    return None, check_number("threshold", threshold, "a number or None")


def au_weights(
    scores: Any,
    sample_weight: Any | None,
    *,
    level: float | None,
    threshold: float | None,
    num_bins: int,
    smoothing: float,
    support: tuple[float, float],
    through: str = "score",
    replicas: Alone = ALONE,
    xp: Any,
) -> Any:
    """Returns β_i = −C ln(1 − Ĝ_ν(min(u_i, τ))), C = 1/Ĝ_ν(τ), for checked arguments.

    Args:
        scores: confidence scores, (rows, n).
        sample_weight: (rows, n), or None.
        level: κ, or None.
        threshold: τ on the scale of the scores, or None.
        num_bins: M.
        smoothing: ν.
        support: (lo, hi) of the scores.
        through: one of `THROUGH`.
        replicas: the replicas whose scores are ranked together.
        xp: `keras.ops` or NumPy.
    """
    lo, hi = support
    if threshold is not None and not lo <= threshold <= hi:
        refuse("threshold", threshold, f"within the support [{lo:g}, {hi:g}]")
    u = to_unit(scores, support, xp)
    weight = None
    every_u = replicas.gather(u)
    every_count = None
    if sample_weight is not None:
        weight = at_least(still(cast(sample_weight, u.dtype, xp), xp), 0.0, xp)
        every = replicas.gather(weight)
        scale = count_scale(every, xp)
        every_count = every * scale
    if level is not None:
        tau = quantile(every_u, every_count, level, xp)
    else:
        assert threshold is not None
        tau = xp.zeros_like(u[..., :1]) + (threshold - lo) / (hi - lo)
    if through == "score":
        counts = histogram(every_u, every_count, num_bins, xp)
    else:
        # The counts of this replica's own scores, which move with them.
        own = xp.ones_like(u) if weight is None else weight * scale
        counts = replicas.total(shared_histogram(u, own, num_bins, xp))
    below = u < tau
    at = xp.concatenate([xp.where(u >= tau, tau, u), tau], axis=-1)
    values = soft_cdf(at, counts, smoothing, xp)
    values, c = values[..., :-1], 1.0 / still(values[..., -1:], xp)
    if through == "cdf":
        # Ĝ(τ) is held constant: it is κ where τ is a quantile.
        values = xp.where(below, values, still(values, xp))
    return -c * xp.log1p(-values)
