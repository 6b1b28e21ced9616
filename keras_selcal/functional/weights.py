"""Sample weights by rank in the confidence distribution: AU (β) and AURC (α)."""

import math
from collections.abc import Callable
from typing import Any, Final

from keras import ops

from keras_selcal._ops import Tensor, as_float, segment_sum
from keras_selcal._replicas import ALONE, Alone
from keras_selcal._validation import (
    check_choice,
    check_count,
    check_number,
    refuse,
)
from keras_selcal.functional.cdf import (
    SoftCDF,
    cell_counts,
    cell_quantile,
    check_cdf_arguments,
    check_support,
    count_weights,
    histogram,
    to_unit,
    unit_quantile,
)

# An object of its own: identity tells a coverage left alone from one given as 0.75.
DEFAULT_COVERAGE: Final = float("0.75")

ESTIMATORS = ("harmonic", "log")

# The recurrences below climb this many integers, where the asymptotic series hold.
_SHIFT = 8


def check_region(coverage: Any, threshold: Any) -> tuple[float | None, float | None]:
    """Returns (κ, τ), exactly one of them a number: what bounds the low-confidence
    region.
    """
    if threshold is None:
        allowed = "a number in (0, 1], or None with a `threshold`"
        return check_number("coverage", coverage, allowed, above=0.0, most=1.0), None
    if coverage is not None and coverage is not DEFAULT_COVERAGE:
        refuse(
            "coverage",
            coverage,
            f"left out where `threshold` is given (threshold={threshold!r})",
        )
    return None, check_number("threshold", threshold, "a number or None")


def au_weights(
    scores: Any,
    coverage: float | None = DEFAULT_COVERAGE,
    threshold: float | None = None,
    num_bins: int = 64,
    smoothing: float = 0.1,
    support: tuple[float, float] = (0, 1),
    sample_weight: Any | None = None,
) -> Tensor:
    """Weights β of the AU loss: rank below a confidence threshold, flat above it.

    Formula:

    ```
    β_i = −C ln(1 − Ĝ_ν(min(s_i, τ))),     C = 1/Ĝ_ν(τ)
    ```

    with Ĝ_ν the soft CDF of the scores (`keras_selcal.functional.soft_cdf`) and τ
    the score below which the least confident share κ of them lies. The counts behind
    Ĝ_ν, the threshold τ and C carry no gradient; s_i below τ does (Eq. gradientAU).

    Args:
        scores: confidence scores, of any shape; all are ranked together.
        coverage: κ in (0, 1], by which τ is the κ-quantile of the scores
            (`numpy.quantile`'s default rule).
        threshold: τ itself, on the scale of the scores, instead of `coverage`.
        num_bins: M, the number of bins of the soft CDF.
        smoothing: ν of the soft CDF.
        support: (lo, hi), the range that the scores can take.
        sample_weight: of a shape that broadcasts to the scores'. A score of integer
            weight w gets the β that w copies of it would get; one of weight 0 changes
            nothing for the others.

    Returns:
        β, of the shape of the scores.

    Example:
    >>> import keras, numpy as np
    >>> beta = au_weights(np.array([0.1, 0.3, 0.6, 0.9]), coverage=0.5, smoothing=0.01)
    >>> print(keras.ops.convert_to_numpy(beta).round(2))
    [0.24 0.85 1.39 1.39]

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. hatbeta
    """
    coverage, threshold = check_region(coverage, threshold)
    num_bins, smoothing = check_cdf_arguments(num_bins, smoothing)
    return region_weights(
        as_float(scores),
        coverage,
        threshold,
        num_bins,
        smoothing,
        check_support(support),
        sample_weight,
    )


def region_weights(
    scores: Tensor,
    coverage: Any,
    threshold: float | None,
    num_bins: int,
    smoothing: Any,
    support: tuple[float, float],
    sample_weight: Any | None,
    over: Alone = ALONE,
    with_past: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Returns what `au_weights` does for checked arguments, of which coverage and
    smoothing may be tensors, with the CDF and τ of all the scores of some replicas,
    and of past scores if `with_past` adds theirs to the `cell_counts`.
    """
    count = ops.reshape(count_weights(scores, sample_weight, over), (-1,))
    u = ops.reshape(to_unit(scores, support), (-1,))
    if with_past is None:
        counts = histogram(u, count, num_bins, over)
    else:
        cells = with_past(cell_counts(u, count, num_bins, over))
        counts = ops.sum(cells, axis=-1)
    if threshold is not None:
        lo, hi = support
        if not lo <= threshold <= hi:
            refuse("threshold", threshold, f"within the support [{lo:g}, {hi:g}]")
        tau = ops.cast((threshold - lo) / (hi - lo), u.dtype)
    elif with_past is None:
        tau = unit_quantile(u, coverage, count, over)
    else:
        tau = cell_quantile(cells, coverage)
    cdf = SoftCDF(counts, smoothing)
    c = 1.0 / cdf(tau)
    beta = -c * ops.log1p(-cdf(ops.where(u < tau, u, tau)))
    return ops.reshape(beta, ops.shape(scores))


def aurc_weights(
    scores: Any,
    estimator: str = "harmonic",
    sample_weight: Any | None = None,
) -> Tensor:
    """Weights α by which the mean of α·ℓ is the area under the risk-coverage curve.

    Formula, for the r-th least confident of n samples:

    ```
    α_r = H_n − H_{n−r}            estimator="harmonic", H the harmonic numbers
    α_r = −ln(1 − r/(n + 1))       estimator="log"
    ```

    With the harmonic weights, (1/n) Σ α ℓ is exactly the mean of the selective risks
    at coverages 1/n … 1. Samples of equal score share the mean of their ranks' weights.
    The weights carry no gradient.

    Args:
        scores: confidence scores, of any shape; all are ranked together.
        estimator: `"harmonic"` or `"log"`.
        sample_weight: of a shape that broadcasts to the scores'. A score of integer
            weight w gets the mean α of the w ranks that its copies would take.

    Returns:
        α, of the shape of the scores.

    Example:
    >>> import keras, numpy as np
    >>> alpha = aurc_weights(np.array([0.9, 0.2, 0.5]))
    >>> print(keras.ops.convert_to_numpy(alpha).round(3))
    [1.833 0.333 0.833]

    Reference:

    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """
    check_choice("estimator", estimator, ESTIMATORS)
    scores = ops.stop_gradient(as_float(scores))
    flat = ops.reshape(scores, (-1,))
    count = ops.reshape(count_weights(scores, sample_weight), (-1,))
    n, length = ops.sum(count), ops.shape(flat)[0]
    order = ops.argsort(flat)
    ranked = ops.take(flat, order)
    # Ties form groups, numbered in the order of their score.
    previous = ops.concatenate([ranked[:1], ranked[:-1]])
    group = ops.cumsum(ops.cast(ranked != previous, "int32"))
    size = segment_sum(ops.take(count, order), group, length)
    upto = ops.cumsum(size)
    mean = mean_harmonic if estimator == "harmonic" else _mean_log
    alpha = ops.take(mean(n, upto - size, upto), group)
    # `order` is a permutation: summing into its places undoes the sort.
    alpha = segment_sum(alpha, order, length)
    return ops.reshape(alpha, ops.shape(scores))


def _harmonic_difference(n: Any, m: Any, xp: Any) -> Any:
    """Returns H_n − H_m for n ≥ m ≥ 0, without cancellation: each term has the factor
    n − m.
    """
    r = n - m
    big, small = n + _SHIFT + 0.5, m + _SHIFT + 0.5
    # H_n = γ + ln x + 1/24x² − 7/960x⁴ + 31/8064x⁶ − 127/30720x⁸ …, x = n + ½.
    u, v = 1 / big**2, 1 / small**2
    difference = xp.log1p(r / small) - r * (big + small) * u * v * (
        1 / 24
        - 7 / 960 * (u + v)
        + 31 / 8064 * (u * u + u * v + v * v)
        - 127 / 30720 * (u + v) * (u * u + v * v)
    )
    for j in range(1, _SHIFT + 1):
        difference = difference + r / ((n + j) * (m + j))
    return difference


def mean_harmonic(n: Any, before: Any, upto: Any, xp: Any = ops) -> Any:
    """Returns the mean of H_n − H_{n−r} over the ranks r in (before, upto].

    `xp` is `keras.ops`, or NumPy for NumPy arrays.
    """
    # Σ_{r ≤ R} (H_n − H_{n−r}) = R − (n − R)(H_n − H_{n−R}).
    width = xp.where(upto > before, upto - before, 1.0)
    left = n - upto
    spread = _harmonic_difference(n - before, left, xp)
    mean = _harmonic_difference(n, n - before, xp) + 1.0 - left / width * spread
    return xp.where(width == 1.0, _harmonic_difference(n, left, xp), mean)


def _mean_log(n: Tensor, before: Tensor, upto: Tensor) -> Tensor:
    """Returns the mean of −ln(1 − r/(n + 1)) over the ranks r in (before, upto]."""
    # Σ ln j over n − upto < j ≤ n − before, by the difference of Stirling's series.
    width = ops.where(upto > before, upto - before, 1.0)
    left = n - upto
    low = left + (_SHIFT + 1)
    high = low + width

    def remainder(y: Tensor) -> Tensor:
        return (1 / 12 - 1 / (360 * y * y)) / y

    log_ratio = ops.log1p(width / low)
    extra = (high - 0.5) / width * log_ratio - 1.0
    extra = extra + (remainder(high) - remainder(low)) / width
    for j in range(1, _SHIFT + 1):
        extra = extra - ops.log1p(width / (left + j)) / width
    mean = ops.log((n + 1.0) / low) - extra
    return ops.where(width == 1.0, -ops.log1p(-upto / (n + 1.0)), mean)


def paper_smoothing(nu: float, k: int) -> float:
    """Converts a ν of the paper's appendix to the scale of this library.

    The paper's public code takes `msp` from softmax(softmax(z)), which squeezes it
    into [1/k, e/(e + k − 1)]. A ν chosen there is divided by the width of that range:

    ```
    ν / (e/(e + k − 1) − 1/k)
    ```

    Args:
        nu: the paper's ν.
        k: the number of classes.

    Example:
    >>> round(paper_smoothing(0.1, 10), 2), round(paper_smoothing(0.005, 100), 2)
    (0.76, 0.3)
    """
    nu = check_number("nu", nu, "a number above 0", above=0.0)
    k = check_count("k", k, least=2)
    return nu / (math.e / (math.e + k - 1) - 1 / k)
