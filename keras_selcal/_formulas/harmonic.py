"""Weights of ranks in the area under the risk-coverage curve (AURC)."""

from typing import Any

import numpy as np
from keras import ops

from keras_selcal._backend.ops import cumsum, sum_by_cell, tie_groups
from keras_selcal._formulas.soft_cdf import count_weights

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


def mean_harmonic(n: Any, before: Any, upto: Any, xp: Any = ops) -> Any:
    """Returns the mean of H_n − H_{n−r} over the ranks r in (before, upto].

    `xp` is `keras.ops`, or NumPy for NumPy arrays.
    """
    # Σ_{r ≤ R} (H_n − H_{n−r}) = R − (n − R)(H_n − H_{n−R}).
    width = xp.where(upto > before, upto - before, 1.0)
    # At least 0: above 2²⁴, sums in float32 are rounded.
    left = xp.maximum(n - upto, 0.0)
    single = harmonic_difference(left, n - left, xp)
    if xp is np and (width == 1.0).all():
        return single
    spread = harmonic_difference(left, n - before - left, xp)
    mean = harmonic_difference(n - before, before, xp) + 1.0 - left / width * spread
    return xp.where(width == 1.0, single, mean)


def mean_log(n: Any, before: Any, upto: Any, xp: Any = ops) -> Any:
    """Returns the mean of −ln(1 − r/(n + 1)) over the ranks r in (before, upto]."""
    # Σ ln j over n − upto < j ≤ n − before, by the difference of Stirling's series.
    width = xp.where(upto > before, upto - before, 1.0)
    left = xp.maximum(n - upto, 0.0)
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


def rank_weights(
    scores: Any, sample_weight: Any | None, estimator: str, xp: Any = ops
) -> Any:
    """Returns the weights α of `functional.aurc_weights`; each row of the scores,
    (rows, n), is ranked separately.

    The scores carry no gradient. `xp` is `keras.ops`, or NumPy for NumPy arrays.
    """
    # NaN, which is unequal to itself, would be a group of its own each time.
    scores = xp.where(xp.isnan(scores), -1e38, scores)
    count = count_weights(scores, sample_weight, xp=xp)
    group = tie_groups(scores, xp)
    size = sum_by_cell(count, group, xp.shape(scores)[1], xp)
    upto = np.cumsum(size, axis=-1) if xp is np else cumsum(size)
    alpha = ESTIMATORS[estimator](upto[:, -1:], upto - size, upto, xp)
    return xp.take_along_axis(alpha, group, axis=-1)
