"""Harmonic numbers: the weights α of ranks in the AURC."""

from typing import Any

from keras_selcal._formulas.counts import count_weights
from keras_selcal._formulas.functions import (
    at_least,
    cast,
    constant,
    cumsum,
    still,
    sum_by_cell,
    where_positive,
)

# The recurrences below climb this many integers, where the asymptotic series hold.
_SHIFT = 8
# Enough for the digits of float32: the first term left out is 0.0078 x⁻¹⁰, x ≥ 3.5.
_SHIFT_SINGLE = 3


def harmonic_difference(m: Any, r: Any, xp: Any) -> Any:
    """Returns H_{m+r} − H_m for m, r ≥ 0, without cancellation: each term has the
    factor r.
    """
    n = m + r
    shift = _SHIFT_SINGLE if "float32" in str(n.dtype) else _SHIFT
    big, small = n + (shift + 0.5), m + (shift + 0.5)
    # H_n = γ + ln x + 1/24x² − 7/960x⁴ + 31/8064x⁶ − 127/30720x⁸ …, x = n + ½.
    u, v = 1 / big**2, 1 / small**2
    difference = xp.log1p(r / small) - r * (big + small) * u * v * (
        1 / 24
        - 7 / 960 * (u + v)
        + 31 / 8064 * (u * u + u * v + v * v)
        - 127 / 30720 * (u + v) * (u * u + v * v)
    )
    for j in range(1, shift + 1):
        difference = difference + r / ((n + j) * (m + j))
    return difference


def mean_harmonic(n: Any, before: Any, upto: Any, xp: Any) -> Any:
    """Returns the mean of H_n − H_{n−r} over the ranks r in (before, upto]."""
    # Σ_{r ≤ R} (H_n − H_{n−r}) = R − (n − R)(H_n − H_{n−R}).
    width = where_positive(upto > before, upto - before, xp)
    # At least 0: above 2²⁴, sums in float32 are rounded.
    left = at_least(n - upto, 0.0, xp)
    single = harmonic_difference(left, n - left, xp)
    spread = harmonic_difference(left, n - before - left, xp)
    mean = harmonic_difference(n - before, before, xp) + 1.0 - left / width * spread
    return xp.where(width == 1.0, single, mean)


def mean_log(n: Any, before: Any, upto: Any, xp: Any) -> Any:
    """Returns the mean of −ln(1 − r/(n + 1)) over the ranks r in (before, upto]."""
    # Σ ln j over n − upto < j ≤ n − before, by the difference of Stirling's series.
    width = where_positive(upto > before, upto - before, xp)
    left = at_least(n - upto, 0.0, xp)
    low = left + (_SHIFT + 1)
    high = low + width

    def remainder(y: Any) -> Any:
        return (1 / 12 - 1 / (360 * y * y)) / y

    log_ratio = xp.log1p(width / low)
    extra = (high - 0.5) / width * log_ratio - 1.0
    extra = extra + (remainder(high) - remainder(low)) / width
    for j in range(1, _SHIFT + 1):
        extra = extra - xp.log1p(width / (left + j)) / width
    mean = xp.log((n + 1.0) / low) - extra
    return xp.where(width == 1.0, xp.log1p(upto / (left + 1.0)), mean)


ESTIMATORS = {"harmonic": mean_harmonic, "log": mean_log}


def tie_groups(x: Any, xp: Any) -> Any:
    """Returns numbers of the groups of equal values of each row, (rows, n), as floats:
    the larger the value, the larger the number.
    """
    order = xp.argsort(x, axis=-1)
    ranked = xp.take_along_axis(x, order, axis=-1)
    previous = xp.concatenate([ranked[:, :1], ranked[:, :-1]], axis=-1)
    group = cumsum(cast(ranked != previous, x.dtype, xp), xp)
    # The order of the order undoes the sort; of floats, since TensorFlow computes with
    # int32 on the host.
    rank = xp.argsort(cast(order, x.dtype, xp), axis=-1)
    return xp.take_along_axis(group, rank, axis=-1)


def rank_weights(
    scores: Any, sample_weight: Any | None, estimator: str, xp: Any
) -> Any:
    """Returns the weights α of `functional.aurc_weights`; each row of the scores,
    (rows, n), is ranked separately. They carry no gradient.
    """
    scores = still(scores, xp)
    # NaN, which is unequal to itself, would be a group of its own each time.
    scores = xp.where(xp.isnan(scores), constant(-1e38, scores, xp), scores)
    count = count_weights(scores, sample_weight, xp)
    group, n = tie_groups(scores, xp), scores.shape[1]
    size = sum_by_cell(count, group, xp.shape(scores)[1] if n is None else n, xp)
    upto = cumsum(size, xp)
    alpha = ESTIMATORS[estimator](upto[:, -1:], upto - size, upto, xp)
    return xp.take_along_axis(alpha, cast(group, "int32", xp), axis=-1)
