"""The soft CDF of confidence scores (Eq. softcdf), and the weights β of the AU loss."""

import math
from typing import Any

from keras import ops

from keras_selcal._core.ops import TINY, Tensor, as_float, segment_sum
from keras_selcal._core.replicas import ALONE, Replicas
from keras_selcal._core.validation import check_count, check_number, refuse

# Nodes per ν for the interpolation of Ĝ: the error of a cubic Hermite interpolant is
# (step/ν)⁴·3.3e-4 at most, 8e-8 here, and its slope's is below 1e-5 of the peak.
_NODES_PER_SMOOTHING = 8
# A sharper ν than 8/2048 is summed over the bins directly: n·M beats nodes·M.
_MOST_NODES = 2048

# Two passes of 2¹² cells resolve 24 bits, the mantissa of a float32.
_CELLS = 4096


def count_weights(
    scores: Tensor, sample_weight: Any | None, over: Replicas = ALONE
) -> Tensor:
    """Returns how many samples each score stands for, of the shape of `scores`.

    A sample of integer weight w counts as w copies. Weights that add up to less than
    the number of samples that have one (normalised ones, say) are scaled up to that
    number, so that only their ratios matter.
    """
    if sample_weight is None:
        return ops.ones_like(scores)
    weight = ops.stop_gradient(ops.cast(as_float(sample_weight), scores.dtype))
    weight = ops.maximum(ops.broadcast_to(weight, ops.shape(scores)), 0.0)
    present = over.total(ops.sum(ops.cast(weight > 0, scores.dtype)))
    total = over.total(ops.sum(weight))
    return weight * ops.maximum(1.0, present / ops.maximum(total, TINY))


def to_unit(scores: Tensor, support: tuple[float, float]) -> Tensor:
    """Returns u = (s − lo)/(hi − lo), clipped to [0, 1]."""
    lo, hi = support
    if (lo, hi) != (0.0, 1.0):
        scores = (scores - lo) / (hi - lo)
    return ops.clip(scores, 0.0, 1.0)


def _cells(u: Tensor, num_cells: int) -> Tensor:
    """Returns the index of each u among equal cells of [0, 1], the last one closed."""
    # NaN compares false and lands in cell 0: no backend may index out of range.
    position = ops.where(u >= 0.0, u * num_cells, 0.0)
    return ops.minimum(ops.cast(position, "int32"), num_cells - 1)


def histogram(
    u: Tensor, count: Tensor, num_bins: int, over: Replicas = ALONE
) -> Tensor:
    """Returns h, the number of scores of some replicas in each of M bins, (M,)."""
    u, count = ops.stop_gradient(u), ops.stop_gradient(count)
    return over.total(segment_sum(count, _cells(u, num_bins), num_bins))


def unit_quantile(u: Tensor, q: Any, count: Tensor, over: Replicas = ALONE) -> Tensor:
    """Returns the q-quantile of u ∈ [0, 1] by NumPy's default rule, without a sort.

    The order statistic below position q·(n − 1) is found by radix selection, one
    histogram of u's first 12 bits and one of the next 12 in the chosen cell; both are
    exact in float32. O(n), where XLA sorts slowly.

    Args:
        u: tensor of shape (n,).
        q: the level, in [0, 1].
        count: how many copies of each value there are, of shape (n,).
        over: the replicas that share the values.
    """
    u, count = ops.stop_gradient(u), ops.stop_gradient(count)
    position = ops.maximum(q * (over.total(ops.sum(count)) - 1.0), 0.0)
    rank = ops.floor(position)

    def select(histogram: Tensor, below: Any) -> tuple[Tensor, Tensor]:
        # Half a sample of slack absorbs the rounding of fractional counts.
        upto = below + ops.cumsum(over.total(histogram))
        before = upto <= rank + 0.5
        chosen = ops.sum(ops.cast(before, "int32"))
        return chosen, ops.amax(ops.where(before, upto, below))

    cell = _cells(u, _CELLS)
    chosen, below = select(segment_sum(count, cell, _CELLS), ops.zeros_like(rank))
    inside = ops.where(cell == chosen, count, 0.0)
    rest = u * _CELLS - ops.cast(chosen, u.dtype)
    # One cell more than in the first pass holds u = 1 alone.
    subcell = ops.cast(ops.clip(rest, 0.0, 1.0) * _CELLS, "int32")
    subcell = ops.where(inside > 0, subcell, 0)
    subchosen, _ = select(segment_sum(inside, subcell, _CELLS + 1), below)

    # The largest stands for its cell: smaller ones differ by less than 2⁻²⁴.
    stands = (inside > 0) & (subcell == subchosen)
    lower = over.largest(ops.amax(ops.where(stands, u, 0.0)))
    covered = over.total(ops.sum(ops.where(u <= lower, count, 0.0)))
    above = over.smallest(ops.amin(ops.where((count > 0) & (u > lower), u, 2.0)))
    tied = (covered > rank + 1.5) | (above > 1.0)
    upper = ops.where(tied, lower, above)
    return lower + (position - rank) * (upper - lower)


class SoftCDF:
    """Ĝ_ν of counted scores; call it on points of [0, 1].

    Args:
        counts: h, of the scores in M equal bins of [0, 1], (M,).
        smoothing: ν, a number or a tensor.
    """

    def __init__(self, counts: Tensor, smoothing: Any) -> None:
        # At least 1: a batch that is all padding has no NaN either.
        self.n = ops.maximum(ops.sum(counts), 1.0)
        self.smoothing = smoothing
        # h_m/n
        self.shares = counts / self.n
        # The number of nodes is a shape, and cannot depend on a tensor's value.
        self.pieces: Tensor = None
        if isinstance(smoothing, float):
            nodes = max(64, math.ceil(_NODES_PER_SMOOTHING / smoothing))
            if nodes <= _MOST_NODES:
                self.pieces = self._hermite(nodes)

    def __call__(self, u: Tensor) -> Tensor:
        cdf = self._direct(u) if self.pieces is None else self._interpolated(u)
        # n/(n + 1) caps −ln(1 − Ĝ) at ln(n + 1), finite-sample AURC's top weight; where
        # sharp steps underflow, TINY keeps −ln(1 − Ĝ)/Ĝ at its limit 1.
        return ops.clip(cdf, TINY, self.n / (self.n + 1.0))

    def _sigmoids(self, u: Any) -> Tensor:
        """Returns σ((u − c_m)/ν), of shape (..., M)."""
        num_bins = self.shares.shape[0]
        centers = (ops.arange(num_bins, dtype=self.shares.dtype) + 0.5) / num_bins
        return ops.sigmoid((ops.expand_dims(u, -1) - centers) / self.smoothing)

    def _direct(self, u: Tensor) -> Tensor:
        return ops.sum(self._sigmoids(u) * self.shares, axis=-1)

    def _hermite(self, num_pieces: int) -> Tensor:
        """Returns the coefficients of Ĝ's cubic pieces, lowest power first."""
        nodes = ops.arange(num_pieces + 1, dtype=self.shares.dtype) / num_pieces
        step = self._sigmoids(nodes)
        value = ops.matmul(step, self.shares)
        slope = ops.matmul(step * (1.0 - step), self.shares)
        slope = slope / (self.smoothing * num_pieces)
        rise = value[1:] - value[:-1]
        return ops.stack(
            [
                value[:-1],
                slope[:-1],
                3.0 * rise - 2.0 * slope[:-1] - slope[1:],
                slope[:-1] + slope[1:] - 2.0 * rise,
            ],
            axis=-1,
        )

    def _interpolated(self, u: Tensor) -> Tensor:
        """Ĝ in O(n + nodes·M) instead of O(n·M)."""
        num_pieces = self.pieces.shape[0]
        piece = _cells(ops.stop_gradient(u), num_pieces)
        c = ops.take(self.pieces, piece, axis=0)
        t = u * num_pieces - ops.cast(piece, u.dtype)
        return c[..., 0] + t * (c[..., 1] + t * (c[..., 2] + t * c[..., 3]))


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


DEFAULT_COVERAGE = 0.75


def check_region(coverage: Any, threshold: Any) -> tuple[float | None, float | None]:
    """Returns (κ, τ), exactly one of them a number: what bounds the low-confidence
    region. Without either, κ is `DEFAULT_COVERAGE`.
    """
    if threshold is None:
        if coverage is None:
            return DEFAULT_COVERAGE, None
        allowed = "a number in (0, 1], or None"
        return check_number("coverage", coverage, allowed, above=0.0, most=1.0), None
    if coverage is not None:
        refuse(
            "coverage",
            coverage,
            f"None if `threshold` is given (threshold={threshold!r})",
        )
    return None, check_number("threshold", threshold, "a number or None")


def region_weights(
    scores: Tensor,
    coverage: Any,
    threshold: float | None,
    num_bins: int,
    smoothing: Any,
    support: tuple[float, float],
    sample_weight: Any | None,
    over: Replicas = ALONE,
) -> Tensor:
    """Returns the weights β of `functional.au_weights` for checked arguments.

    Coverage and smoothing may be tensors. The CDF and τ are those of all the scores
    of the given replicas.
    """
    count = ops.reshape(count_weights(scores, sample_weight, over), (-1,))
    u = ops.reshape(to_unit(scores, support), (-1,))
    counts = histogram(u, count, num_bins, over)
    if threshold is not None:
        lo, hi = support
        if not lo <= threshold <= hi:
            refuse("threshold", threshold, f"within the support [{lo:g}, {hi:g}]")
        tau = ops.cast((threshold - lo) / (hi - lo), u.dtype)
    else:
        tau = unit_quantile(u, coverage, count, over)
    cdf = SoftCDF(counts, smoothing)
    c = 1.0 / cdf(tau)
    beta = -c * ops.log1p(-cdf(ops.where(u < tau, u, tau)))
    return ops.reshape(beta, ops.shape(scores))
