"""The soft CDF of confidence scores (Eq. softcdf), and the weights β of the AU loss."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._backend.host import by_numpy, cast
from keras_selcal._backend.ops import (
    TINY,
    Tensor,
    as_float,
    matmul,
    row_offset,
    sum_by_cell,
)
from keras_selcal._formulas.soft_cdf_gradient import gradient_of_scores
from keras_selcal._validation import check_count, check_number, refuse

# Nodes per ν for the interpolation of Ĝ: the error of a cubic Hermite interpolant is
# (step/ν)⁴·3.3e-4 at most, 8e-8 here, and its slope's is below 1e-5 of the peak.
_NODES_PER_SMOOTHING = 8
# A sharper ν than 8/2048 is summed over the bins directly: n·M beats nodes·M.
_MOST_NODES = 2048

# Two passes of 2¹² cells resolve 24 bits, the mantissa of a float32.
_CELLS = 4096

# What the gradient of β flows through.
THROUGH = ("score", "cdf")

# In float32 n/(n + 1) is 1 for n above 2²⁴, where ln(1 − Ĝ) would be −∞.
_LARGEST_BELOW_1 = 1.0 - 2.0**-24


class Replicas:
    """Statistics over the replicas of a step: here one replica's share of the batch.

    `_backend/replicas.py` has those of several replicas.
    """

    def total(self, x: Tensor) -> Tensor:
        """Returns x, summed over the replicas, without a gradient."""
        return x

    def differentiable_total(self, x: Tensor) -> Tensor:
        """Returns x, summed over the replicas; its gradient is summed likewise."""
        return x

    def largest(self, x: Tensor) -> Tensor:
        """Returns the largest x of all replicas, element by element."""
        return x

    def smallest(self, x: Tensor) -> Tensor:
        """Returns the smallest x of all replicas, element by element."""
        return -self.largest(-x)


ALONE = Replicas()


def _still(x: Any, xp: Any) -> Any:
    """Returns x without a gradient, which NumPy arrays do not have."""
    return x if xp is np else ops.stop_gradient(x)


def count_weights(
    scores: Any, sample_weight: Any | None, over: Replicas = ALONE, xp: Any = ops
) -> Any:
    """Returns how many samples each score stands for, in the shape of `scores`.

    A sample of integer weight w counts as w copies. Weights that add up to less than
    the number of samples with a positive weight (normalised weights, for example) are
    scaled up to that number, so that only their ratios matter. Sums run over the last
    axis.
    """
    if sample_weight is None:
        return xp.ones_like(scores)
    weight = _still(cast(sample_weight, scores.dtype), xp)
    weight = xp.maximum(weight, 0.0)
    present = over.total(_sum(cast(weight > 0, scores.dtype), xp))
    total = over.total(_sum(weight, xp))
    return weight * xp.maximum(1.0, present / xp.maximum(total, TINY))


def as_row(scores: Tensor, sample_weight: Any | None) -> tuple[Tensor, Tensor | None]:
    """Returns scores of any shape, and their weights, as one row: (1, n)."""
    if sample_weight is not None:
        sample_weight = ops.broadcast_to(as_float(sample_weight), ops.shape(scores))
        sample_weight = ops.reshape(sample_weight, (1, -1))
    return ops.reshape(scores, (1, -1)), sample_weight


def to_unit(scores: Any, support: tuple[float, float], xp: Any = ops) -> Any:
    """Returns u = (s − lo)/(hi − lo), clipped to [0, 1]."""
    lo, hi = support
    if (lo, hi) != (0.0, 1.0):
        scores = (scores - lo) / (hi - lo)
    return xp.clip(scores, 0.0, 1.0)


def _sum(x: Any, xp: Any) -> Any:
    return xp.sum(x, axis=-1, keepdims=True)


def _cells(u: Any, num_cells: int, xp: Any) -> Any:
    """Returns the index of each u among equal cells of [0, 1], the last one closed."""
    # NaN compares false and lands in cell 0: no backend may index out of range.
    position = xp.where(u >= 0.0, u * num_cells, 0.0)
    return xp.minimum(cast(position, "int32"), num_cells - 1)


def histogram(
    u: Any, count: Any, num_bins: int, over: Replicas = ALONE, xp: Any = ops
) -> Any:
    """Returns h, the number of scores in each of M bins: (rows, n) → (rows, M)."""
    u, count = _still(u, xp), _still(count, xp)
    return over.total(sum_by_cell(count, _cells(u, num_bins, xp), num_bins, xp))


def shared_histogram(
    u: Any, count: Any, num_bins: int, over: Replicas = ALONE, xp: Any = ops
) -> Any:
    """Returns h, (rows, M), with each score shared linearly between the two nearest bin
    centres, so that h has a gradient with respect to the scores.
    """
    low, high, offset = _between_centers(u, num_bins, xp)
    share = count * xp.clip(offset, 0.0, 1.0)
    counts = sum_by_cell(count - share, low, num_bins, xp)
    return over.differentiable_total(counts + sum_by_cell(share, high, num_bins, xp))


def _between_centers(u: Any, num_bins: int, xp: Any) -> tuple[Any, Any, Any]:
    """Returns the bin centres below and above each u, and how far on it is between."""
    position = u * num_bins - 0.5
    low = _still(xp.where(u >= 0.0, position, 0.0), xp)  # NaN counts as 0
    low = xp.clip(xp.floor(low), 0.0, num_bins - 1.0)
    offset = position - low
    low = cast(low, "int32")
    return low, xp.minimum(low + 1, num_bins - 1), offset


def unit_quantile(
    u: Any, q: Any, count: Any, over: Replicas = ALONE, xp: Any = ops
) -> Any:
    """Returns the q-quantile of each row of u ∈ [0, 1], (rows, 1), by NumPy's default
    rule and without a sort.

    The order statistic below position q·(n − 1) is found by radix selection, with one
    histogram of u's first 12 bits and one of the next 12 in the chosen cell; both are
    exact in float32. This takes O(n), where XLA sorts slowly.

    Args:
        u: tensor of shape (rows, n).
        q: the level, in [0, 1].
        count: how many copies of each value there are, of shape (rows, n).
        over: the replicas that share the values.
        xp: `keras.ops`, or NumPy for NumPy arrays.
    """
    u, count = _still(u, xp), _still(count, xp)
    u = xp.where(u >= 0.0, u, 0.0)  # NaN counts as 0
    if xp is np and (count == 1.0).all():
        return _numpy_quantile(u, q)
    position = xp.maximum(q * (over.total(_sum(count, xp)) - 1.0), 0.0)
    rank = xp.floor(position)

    def select(histogram: Any, below: Any) -> tuple[Any, Any]:
        # Half a sample of slack absorbs the rounding of fractional counts.
        upto = below + xp.cumsum(over.total(histogram), axis=-1)
        before = upto <= rank + 0.5
        largest = xp.amax(xp.where(before, upto, below), axis=-1, keepdims=True)
        return _sum(cast(before, "int32"), xp), largest

    cell = _cells(u, _CELLS, xp)
    chosen, below = select(sum_by_cell(count, cell, _CELLS, xp), xp.zeros_like(rank))
    inside = xp.where(cell == chosen, count, 0.0)
    rest = u * _CELLS - cast(chosen, u.dtype)
    # One cell more than in the first pass holds u = 1 alone.
    subcell = cast(xp.clip(rest, 0.0, 1.0) * _CELLS, "int32")
    subcell = xp.where(inside > 0, subcell, 0)
    subchosen, _ = select(sum_by_cell(inside, subcell, _CELLS + 1, xp), below)

    # The largest value stands for its cell: smaller ones differ by less than 2⁻²⁴.
    stands = (inside > 0) & (subcell == subchosen)
    lower = over.largest(_extreme(xp.amax, xp.where(stands, u, 0.0), 0.0))
    covered = over.total(_sum(xp.where(u <= lower, count, 0.0), xp))
    higher = xp.where((count > 0) & (u > lower), u, 2.0)
    above = over.smallest(_extreme(xp.amin, higher, 2.0))
    tied = (covered > rank + 1.5) | (above > 1.0)
    upper = xp.where(tied, lower, above)
    return lower + (position - rank) * (upper - lower)


def _numpy_quantile(u: Any, q: float) -> Any:
    """Returns np.quantile(u, q, axis=-1, keepdims=True) in a fifth of its time."""
    position = q * (u.shape[-1] - 1)
    rank = int(position)
    parted = np.partition(u, rank, axis=-1)
    lower = parted[:, rank : rank + 1]
    if rank == position:
        return lower
    upper = np.min(parted[:, rank + 1 :], axis=-1, keepdims=True)
    return lower + (position - rank) * (upper - lower)


def _extreme(reduce: Callable[..., Tensor], x: Tensor, nothing: float) -> Tensor:
    """Returns the largest or smallest of each row, (rows, 1); `nothing` of no values,
    which PyTorch refuses to reduce.
    """
    if x.shape[-1] == 0:
        return ops.full((x.shape[0], 1), nothing, dtype=x.dtype)
    return reduce(x, axis=-1, keepdims=True)


class SoftCDF:
    """Ĝ_ν of counted scores; call it on points of [0, 1], (rows, points).

    Args:
        counts: h, of the scores in M equal bins of [0, 1], (rows, M).
        smoothing: ν, a number or a tensor.
        xp: `keras.ops`, or NumPy for NumPy arrays.
    """

    def __init__(self, counts: Any, smoothing: Any, xp: Any = ops) -> None:
        self.xp = xp
        # At least 1, so that a batch that is all padding does not give NaN.
        self.n = xp.maximum(_sum(counts, xp), 1.0)
        # Caps −ln(1 − Ĝ) at ln(n + 1), finite-sample AURC's top weight.
        self.cap = xp.minimum(self.n / (self.n + 1.0), _LARGEST_BELOW_1)
        self.smoothing = smoothing
        # h_m/n
        self.shares = counts / self.n
        # The number of nodes is a shape, and cannot depend on a tensor's value.
        self.num_pieces = 0
        if isinstance(smoothing, float):
            nodes = max(64, math.ceil(_NODES_PER_SMOOTHING / smoothing))
            if nodes <= _MOST_NODES:
                self.num_pieces = nodes
                self.pieces = self._hermite()

    def __call__(self, u: Any) -> Any:
        cdf = self._interpolated(u) if self.num_pieces else self._direct(u)
        # Where sharp steps underflow, TINY keeps −ln(1 − Ĝ)/Ĝ at its limit 1.
        return self.xp.clip(cdf, TINY, self.cap)

    def sigmoids(self, u: Any) -> Any:
        """Returns σ((u − c_m)/ν), of shape (..., M)."""
        xp, num_bins = self.xp, self.shares.shape[-1]
        centers = (xp.arange(num_bins, dtype=self.shares.dtype) + 0.5) / num_bins
        x = (xp.expand_dims(u, -1) - centers) / self.smoothing
        return 1.0 / (1.0 + np.exp(-x)) if xp is np else ops.sigmoid(x)

    def _direct(self, u: Any) -> Any:
        xp = self.xp
        return xp.sum(self.sigmoids(u) * xp.expand_dims(self.shares, 1), axis=-1)

    def _hermite(self) -> Any:
        """Returns the coefficients of Ĝ's cubic pieces, lowest power first:
        (rows · pieces, 4).
        """
        xp = self.xp
        product = np.matmul if xp is np else matmul
        nodes = xp.arange(self.num_pieces + 1, dtype=self.shares.dtype)
        self.steps = step = self.sigmoids(nodes / self.num_pieces)
        value = product(self.shares, xp.transpose(step))
        slope = product(self.shares, xp.transpose(step * (1.0 - step)))
        slope = slope / (self.smoothing * self.num_pieces)
        begin, end = slope[:, :-1], slope[:, 1:]
        rise = value[:, 1:] - value[:, :-1]
        pieces = [
            value[:, :-1],
            begin,
            3.0 * rise - 2.0 * begin - end,
            begin + end - 2.0 * rise,
        ]
        return xp.reshape(xp.stack(pieces, axis=-1), (-1, 4))

    def piece(self, u: Any) -> tuple[Any, Any, Any]:
        """Returns the number of the piece at u, the place of u in it, in [0, 1], and
        its coefficients.
        """
        xp = self.xp
        piece = _cells(_still(u, xp), self.num_pieces, xp)
        t = u * self.num_pieces - cast(piece, u.dtype)
        row = row_offset(self.shares.shape[0], self.num_pieces, xp)
        return piece, t, xp.take(self.pieces, piece + row, axis=0)

    def _interpolated(self, u: Any) -> Any:
        """Ĝ in O(n + nodes·M) instead of O(n·M)."""
        _, t, c = self.piece(u)
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


def check_region(coverage: Any, threshold: Any) -> tuple[float | None, float | None]:
    """Returns (κ, τ), of which exactly one is a number; κ defaults to 0.75."""
    if threshold is None:
        if coverage is None:
            return 0.75, None
        allowed = "a number in (0, 1], or None"
        return check_number("coverage", coverage, allowed, above=0.0, most=1.0), None
    if coverage is not None:
        allowed = f"None if `threshold` is given (threshold={threshold!r})"
        refuse("coverage", coverage, allowed)
    return None, check_number("threshold", threshold, "a number or None")


def region_weights(
    scores: Tensor,
    sample_weight: Tensor | None,
    *,
    over: Replicas = ALONE,
    **region: Any,
) -> Tensor:
    """Returns the weights β of `functional.au_weights` for checked arguments.

    Each row of the scores, (rows, n), is ranked separately. The CDF and τ are those of
    all the scores of the given replicas.

    Args:
        scores: confidence scores, (rows, n).
        sample_weight: (rows, n), or None.
        over: the replicas that share the scores.
        **region: the other arguments of `beta`.
    """
    if over is ALONE:
        return by_numpy(beta, scores, sample_weight, pullback=True, **region)
    return beta(scores, sample_weight, over=over, **region)


def beta(
    scores: Any,
    sample_weight: Any | None,
    *,
    coverage: Any,
    threshold: float | None,
    num_bins: int,
    smoothing: Any,
    support: tuple[float, float],
    through: str = "score",
    over: Replicas = ALONE,
    xp: Any = ops,
    pullback: bool = False,
) -> Any:
    """Returns β. Coverage and smoothing may be tensors.

    With `pullback`, NumPy also returns a function from gradients of β to the scores'.
    """
    count = count_weights(scores, sample_weight, over, xp)
    u = to_unit(scores, support, xp)
    lo, hi = support
    if threshold is not None:
        if not lo <= threshold <= hi:
            refuse("threshold", threshold, f"within the support [{lo:g}, {hi:g}]")
        tau = xp.full((1, 1), (threshold - lo) / (hi - lo), dtype=u.dtype)
    else:
        tau = unit_quantile(u, coverage, count, over, xp)
    whole = through == "cdf"
    counts = (shared_histogram if whole else histogram)(u, count, num_bins, over, xp)
    cdf = SoftCDF(counts, smoothing, xp)
    c = 1.0 / _still(cdf(xp.broadcast_to(tau, (u.shape[0], 1))), xp)
    below = u < tau
    values = cdf(xp.where(below, u, tau))
    if whole:
        # Ĝ(τ) is κ by definition, and counts as a constant for a given τ as well.
        values = xp.where(below, values, _still(values, xp))
    weights = -c * xp.log1p(-values)
    if not pullback:
        return weights

    def pull(gradient: Any) -> Any:
        moves = below & (values > TINY) & (values < cdf.cap)
        of_values = np.where(moves, gradient * c / (1.0 - values), 0.0)
        between = _between_centers(u, num_bins, np) if whole else None
        of_u = gradient_of_scores(cdf, u, of_values, count, between)
        inside = (scores >= lo) & (scores <= hi)
        return np.where(inside, of_u / (hi - lo), 0.0).astype(scores.dtype)

    return weights, pull
