"""The soft CDF of confidence scores (Eq. softcdf) and what it is counted from."""

import math
from typing import Any

from keras import ops

from keras_selcal._ops import TINY, Tensor, as_float, segment_sum
from keras_selcal._replicas import ALONE, Alone
from keras_selcal._validation import check_count, check_number, refuse

# Nodes per ν for the interpolation of Ĝ: the error of a cubic Hermite interpolant is
# (step/ν)⁴·3.3e-4 at most, 8e-8 here, and its slope's is below 1e-5 of the peak.
_NODES_PER_SMOOTHING = 8
# A sharper ν than 8/2048 is summed over the bins directly: n·M beats nodes·M.
_MOST_NODES = 2048

# Two passes of 2¹² cells resolve 24 bits, the mantissa of a float32.
_CELLS = 4096

# A memory of scores keeps at least so many cells: τ is exact to half of one.
_MEMORY_CELLS = 4096


def count_weights(
    scores: Tensor, sample_weight: Any | None, over: Alone = ALONE
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


def histogram(u: Tensor, count: Tensor, num_bins: int, over: Alone = ALONE) -> Tensor:
    """Returns h, the number of scores of some replicas in each of M bins, (M,)."""
    u, count = ops.stop_gradient(u), ops.stop_gradient(count)
    return over.total(segment_sum(count, _cells(u, num_bins), num_bins))


def memory_shape(num_bins: int) -> tuple[int, int]:
    """Returns the shape of a memory of scores: M bins, each of as many equal cells."""
    return num_bins, -(-_MEMORY_CELLS // num_bins)


def cell_counts(u: Tensor, count: Tensor, num_bins: int, over: Alone = ALONE) -> Tensor:
    """Returns what `histogram` does for the cells of a memory, by bin and cell."""
    u, count = ops.stop_gradient(u), ops.stop_gradient(count)
    shape = memory_shape(num_bins)
    # The bin first: a cell belongs to the bin that `histogram` finds, to the last bit.
    bins = _cells(u, num_bins)
    cells = _cells(u * num_bins - ops.cast(bins, u.dtype), shape[1])
    found = segment_sum(count, bins * shape[1] + cells, shape[0] * shape[1])
    return over.total(ops.reshape(found, shape))


def cell_quantile(counts: Tensor, q: Any) -> Tensor:
    """Returns the q-quantile of scores that are known by their counts in equal cells.

    With Q(t) the score that the t-th of n sorted copies has, NumPy's default rule is
    the mean of Q over [h, h + 1], h = q·(n − 1), which has a meaning for fractional
    counts too. A score stands at the centre of its cell.

    Args:
        counts: of equal cells of [0, 1], in their order, of any shape.
        q: the level, in [0, 1].
    """
    counts = ops.reshape(counts, (-1,))
    upto = ops.cumsum(counts)
    start = ops.maximum(q * (upto[-1] - 1.0), 0.0)

    def position(x: Tensor) -> Tensor:
        return ops.clip(x - start, 0.0, 1.0)

    share = position(upto) - position(upto - counts)
    num_cells = counts.shape[0]
    centers = (ops.arange(num_cells, dtype=counts.dtype) + 0.5) / num_cells
    # The shares add up to 1 unless there is less than one score.
    return ops.sum(share * centers) / ops.maximum(ops.sum(share), TINY)


def unit_quantile(u: Tensor, q: Any, count: Tensor, over: Alone = ALONE) -> Tensor:
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


def soft_cdf(
    scores: Any,
    at: Any | None = None,
    num_bins: int = 64,
    smoothing: float = 0.1,
    support: tuple[float, float] = (0, 1),
    sample_weight: Any | None = None,
) -> Tensor:
    """Soft cumulative distribution function of confidence scores.

    Formula:

    ```
    Ĝ_ν(u) = (1/n) Σ_m h_m σ((u − c_m)/ν),     capped at n/(n + 1)
    ```

    with u = (s − lo)/(hi − lo) the score on [0, 1], h_m the number of scores in the
    m-th of M equal bins of [0, 1] (the last one closed), c_m its centre, and n the
    number of scores. The cap keeps −ln(1 − Ĝ) finite. The gradient flows to the
    points where Ĝ is evaluated, not to the counts.

    Args:
        scores: confidence scores, of any shape.
        at: where to evaluate, on the scale of the scores. Defaults to the scores.
        num_bins: M.
        smoothing: ν, on the scale of u. The smaller, the closer to a step function.
        support: (lo, hi), the range that the scores can take.
        sample_weight: of a shape that broadcasts to the scores'. A score of integer
            weight w counts as w copies, one of weight 0 not at all.

    Returns:
        Ĝ_ν, of the shape of `at`.

    Example:
    >>> import keras, numpy as np
    >>> scores = np.array([0.2, 0.4, 0.6, 0.8])
    >>> cdf = soft_cdf(scores, at=[0.0, 0.5, 1.0], smoothing=0.01)
    >>> print(keras.ops.convert_to_numpy(cdf).round(3))
    [0.  0.5 0.8]

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. softcdf
    """
    num_bins, smoothing = check_cdf_arguments(num_bins, smoothing)
    support = check_support(support)
    scores = as_float(scores)
    at = scores if at is None else ops.cast(as_float(at), scores.dtype)
    count = ops.reshape(count_weights(scores, sample_weight), (-1,))
    u = ops.reshape(to_unit(scores, support), (-1,))
    return SoftCDF(histogram(u, count, num_bins), smoothing)(to_unit(at, support))
