"""Kernel density estimate of the calibration error, with Dirichlet kernels."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._backend.ops import matmul, segment_sum
from keras_selcal._formulas.counts import count_weights
from keras_selcal._formulas.functions import (
    at_least,
    constant,
    first_largest,
    safe_log,
    take_class,
    zero_unless,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._validation import (
    check_count,
    check_number,
    refuse,
)

KINDS = ("canonical", "top_label", "marginal")

# Candidates of bandwidth="auto": four for each factor of 10, from 1e-4 to 1.
BANDWIDTHS = tuple(float(h) for h in np.logspace(-4, 0, 17))

# Kernel entries held at a time when computing in blocks: 16 MB of float32.
MOST_ENTRIES = 2**22

# A logarithm of 0 that stays finite in sums and differences.
_LOG_ZERO = -1e30

# Coefficients of Π_{j=1..8} (1 + x/j) = Π (x + j) / 8!, highest power first.
_RISING_PRODUCT = tuple(
    float(c) / math.factorial(8) for c in np.poly(-np.arange(1.0, 9.0))
)


def check_bandwidth(bandwidth: Any) -> float | str:
    """Returns the checked bandwidth."""
    if isinstance(bandwidth, str):
        if bandwidth != "auto":
            refuse("bandwidth", bandwidth, 'a number above 0, or "auto"')
        return bandwidth
    return check_number(
        "bandwidth", bandwidth, 'a number above 0, or "auto"', above=0.0
    )


def check_size(argument: str, size: Any) -> int | None:
    """Returns a checked number of samples, or None."""
    return None if size is None else check_count(argument, size)


def kde_calibration_errors(
    batch: Batch,
    kind: str,
    bandwidth: float | str,
    order: int = 1,
    block_size: int | None = None,
    subsample: int | None = None,
) -> Tensor:
    """Returns |Ê[y | p_j] − p_j|^order of each row j of a batch, (n,).

    Ê is the kernel regression of the labels on the predictions, leaving sample j out.
    The n × n kernel matrix is held whole, or `block_size` rows of it at a time, which
    the backward pass computes again. `"marginal"` has one matrix for each class, and
    multi-label data at least one for each label; as many are held at a time as a bound
    on their size allows.
    """
    h: Any = bandwidth
    if h == "auto":
        # Without a gradient, nothing is kept for a backward pass.
        constant = batch.still()
        h = KernelEstimate(constant, kind, block_size, subsample).likeliest()
    estimate = KernelEstimate(batch, kind, block_size, subsample)
    return batch.from_labels(estimate.errors(h, order))


class KernelEstimate:
    """Kernel regression of labels on predictions, leaving each sample itself out.

    Rows j are the samples that are estimated, columns i those that they are estimated
    from. A kernel matrix has the entries ln k(p_j; p_i); there is one for each margin,
    and the margins of one label follow each other.

    Args:
        batch: predictions and labels.
        kind: one of `KINDS`.
        block_size: rows that are estimated at a time, or None for all.
        subsample: number of columns, or None for all samples.
        rows: indices of the rows, or None for all samples.
    """

    def __init__(
        self,
        batch: Batch,
        kind: str,
        block_size: int | None = None,
        subsample: int | None = None,
        rows: Any = None,
    ) -> None:
        log_p, p, labels = _points(batch, kind)
        num_margins, self.num_labels = int(p.shape[0]), batch.num_labels
        weight = batch.sample_weight
        # (labels, n), as everything that is counted.
        count = count_weights(
            batch.by_label(batch.y_pred[:, 0]),
            None if weight is None else batch.by_label(weight),
            ops,
        )
        index = ops.cumsum(ops.ones_like(count[0]))
        n = count.shape[1]
        of_rows = [log_p, p[..., : labels.shape[-1]], index]
        of_columns = [p, labels, index]
        # `mass` is the weight of a sample as a column.
        mass = column_mass = count
        if subsample is not None and (n is None or subsample < n):
            columns, taken = _spread(ops.amax(count, axis=0), subsample)
            mass = count * segment_sum(taken, columns, ops.shape(count)[1])
            column_mass = ops.take(count, columns, axis=1) * taken
            of_columns = [_take(x, columns) for x in of_columns]
        # A sample of weight w has w − 1 copies of itself among the others.
        others = ops.sum(mass, axis=-1, keepdims=True) - mass
        others = others + at_least(mass - 1.0, 0.0, ops)
        if rows is not None:
            of_rows = [_take(x, rows) for x in of_rows]
            count, others = _take(count, rows), _take(others, rows)
        self.of_rows, self.of_columns = of_rows, of_columns
        self.count, self.others = count, others
        each = num_margins // self.num_labels
        self.log_mass, self.log_rest = (
            ops.repeat(_log_or_zero(x), each, axis=0)
            for x in (column_mass, column_mass - 1.0)
        )

        num_rows, num_columns = count.shape[1], column_mass.shape[1]
        self.block_size = block_size
        if block_size is not None and num_rows is not None and block_size >= num_rows:
            self.block_size = None
        # Small matrices are computed several at a time.
        entries = (self.block_size or num_rows or 0) * (num_columns or 0)
        block = max(1, MOST_ENTRIES // entries) if entries else 1
        self.margin_block_size = None if block >= num_margins else block

    def likeliest(self) -> Tensor:
        """Returns the bandwidth of the largest leave-one-out likelihood, (margins, 1,
        1); the margins of a label share one.
        """
        grid = ops.convert_to_tensor(BANDWIDTHS, dtype=self.count.dtype)
        best = ops.argmax(ops.map(self.log_likelihood, grid), axis=0)
        margins = self.of_columns[0].shape[0] // self.num_labels
        return ops.repeat(ops.take(grid, best), margins, axis=0)[:, None, None]

    def log_likelihood(self, h: Any) -> Tensor:
        """Returns the leave-one-out likelihood of each label's rows, (labels,)."""

        def density(log_weight: Tensor, p: Tensor, labels: Tensor) -> Tensor:
            return ops.logsumexp(log_weight, axis=-1)

        d = self.of_columns[0].shape[-1]
        constant = lgamma1p(1.0 / h + (d - 1.0)) - safe_log(self.others, ops)
        densities = self._by_label(self.of_tiles(density, h))
        densities = densities + ops.expand_dims(constant, 1)
        densities = zero_unless(self.others[:, None] > 0, densities, ops)
        return ops.sum(self.count[:, None] * densities, axis=(1, 2))

    def errors(self, h: Any, order: int) -> Tensor:
        """Returns the error of each row, (labels, rows); 0 if there is no other sample.

        `h` is a number, or a tensor of shape (margins, 1, 1).
        """

        def error(log_weight: Tensor, p: Tensor, labels: Tensor) -> Tensor:
            # Not `ops.softmax`, which warns of a batch of one.
            total = ops.logsumexp(log_weight, axis=-1, keepdims=True)
            mean = matmul(ops.exp(log_weight - total), labels)
            return ops.sum(ops.abs(mean - p) ** order, axis=-1)

        errors = ops.mean(self._by_label(self.of_tiles(error, h)), axis=1)
        return zero_unless(self.others > 0, errors, ops)

    def _by_label(self, values: Tensor) -> Tensor:
        """Returns values (margins, rows) as (labels, margins of a label, rows)."""
        shape = (self.num_labels, values.shape[0] // self.num_labels)
        return ops.reshape(values, (*shape, ops.shape(values)[1]))

    def of_tiles(self, value: Callable[..., Tensor], h: Any) -> Tensor:
        """Returns a value of each margin and row, (margins, rows), from some rows of
        some margins' kernel matrices at a time.

        `value` receives ln of the columns' weights, (margins, rows, columns), the
        rows' p and the columns' labels.
        """
        log_p, p, row = self.of_rows
        parameters, labels, column = self.of_columns
        parameters = parameters / h
        norm = ops.sum(lgamma1p(parameters), axis=-1)
        # The product sums the norm's gradient over rows, as one more coordinate, of
        # value 0. A sum of its own takes XLA on CPU 15 times longer above 16,384
        # columns; the value itself would lose digits in a product in TF32 or bfloat16.
        constant = ops.stop_gradient(norm)
        log_p = ops.concatenate([log_p, ops.ones_like(log_p[..., :1])], axis=-1)
        zero = ops.expand_dims(constant - norm, -1)
        parameters = ops.concatenate([parameters, zero], axis=-1)

        def of_tile(
            log_p: Tensor,
            p: Tensor,
            row: Tensor,
            parameters: Tensor,
            labels: Tensor,
            column: Tensor,
            log_mass: Tensor,
            log_rest: Tensor,
        ) -> Tensor:
            own = ops.expand_dims(row, 1) == ops.expand_dims(column, 0)
            bias = ops.where(
                own, ops.expand_dims(log_rest, 1), ops.expand_dims(log_mass, 1)
            )
            log_kernel = matmul(log_p, ops.swapaxes(parameters, -1, -2))
            return value(log_kernel + bias, p, labels)

        tile = of_tile
        if self.block_size or self.margin_block_size:
            # Tiles are computed again in the backward pass, to save memory. TensorFlow
            # gives gradients only to arguments: nothing that has one may be captured.
            tile = keras.remat(of_tile)

        def of_margins(margins: tuple[Tensor, ...]) -> Tensor:
            log_p, p, parameters, labels, log_mass, log_rest = margins
            columns = parameters, labels, column, log_mass, log_rest

            def of_rows(rows: tuple[Tensor, ...]) -> Tensor:
                log_p, p, row = rows
                log_p, p = ops.swapaxes(log_p, 0, 1), ops.swapaxes(p, 0, 1)
                return ops.transpose(tile(log_p, p, row, *columns))

            # Were `row` the same for all margins, JAX would keep the mask `own` whole.
            rows = (
                ops.swapaxes(log_p, 0, 1),
                ops.swapaxes(p, 0, 1),
                row + 0.0 * p[0, :, 0],
            )
            return ops.transpose(_map_blocks(of_rows, rows, self.block_size))

        biases = self.log_mass - constant, self.log_rest - constant
        margins = log_p, p, parameters, labels, *biases
        return _map_blocks(of_margins, margins, self.margin_block_size)


def _points(batch: Batch, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns ln p and p, (margins, n, d), and labels, (margins, n, 1 or d).

    The canonical kind has one margin for each label, the point p, d = k. Otherwise a
    margin is a point (p, 1 − p), whose Dirichlet kernel is the beta kernel, with a
    label for p: for the largest probability, whether it is correct; or one for each
    class.
    """
    p, log_p, labels = batch.p, batch.log_p, batch.labels
    if kind == "top_label":
        top = first_largest(batch.y_pred, ops)
        if batch.sparse:
            labels = ops.cast(ops.cast(top, p.dtype) == labels, p.dtype)
        else:
            labels = take_class(labels, top, ops)
        log_p = ops.amax(log_p, axis=-1, keepdims=True)
        p = ops.amax(p, axis=-1, keepdims=True)
    else:
        labels = batch.distributions

    def margins(x: Tensor, d: int) -> Tensor:
        x = ops.reshape(x, (-1, batch.num_labels * x.shape[1] // d, d))
        return ops.swapaxes(x, 0, 1)

    if kind == "canonical":
        k = batch.num_classes
        return margins(log_p, k), margins(p, k), margins(labels, k)
    q = -ops.expm1(log_p) if batch.from_logits else 1.0 - p

    def pairs(x: Tensor, y: Tensor) -> Tensor:
        return margins(ops.reshape(ops.stack([x, y], -1), (-1, 2 * x.shape[1])), 2)

    return pairs(log_p, safe_log(q, ops)), pairs(p, q), margins(labels, 1)


def _spread(count: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns indices of samples that count, evenly spaced among these, (size,), and 1
    where there is one, 0 where they are fewer than `size`.
    """
    upto = ops.cast(ops.cumsum(ops.cast(count > 0, "int32")), "int32")
    n = ops.cast(ops.sum(ops.cast(count > 0, "int32")), "int32")
    slot = ops.arange(size, dtype="int32")
    # A product of integers could overflow.
    share = ops.cast(n % size, count.dtype) / size
    extra = ops.cast(ops.floor(ops.cast(slot, count.dtype) * share), "int32")
    place = ops.where(n > size, slot * (n // size) + extra, slot)
    index = ops.cast(ops.searchsorted(upto, place + 1, side="left"), "int32")
    index = ops.minimum(index, ops.shape(count)[0] - 1)
    return index, ops.cast(place < n, count.dtype)


def _take(x: Tensor, index: Any) -> Tensor:
    """Returns samples of an array (n,), (labels, n), or (margins, n, d)."""
    return ops.take(x, index, axis=min(1, len(x.shape) - 1))


def _log_or_zero(x: Tensor) -> Tensor:
    return ops.where(x > 0, safe_log(x, ops), constant(_LOG_ZERO, x, ops))


def _map_blocks(
    function: Callable[[tuple[Tensor, ...]], Tensor],
    arrays: tuple[Tensor, ...],
    size: int | None,
) -> Tensor:
    """Returns `function` of arrays that share their first axis, `size` entries of it
    at a time, or of all at once.
    """
    if size is None:
        return function(arrays)
    n = ops.shape(arrays[0])[0]
    # The last block is filled with copies of the last entry.
    fill = -(-n // size) * size
    index = ops.minimum(ops.arange(fill, dtype="int32"), n - 1)
    blocks = tuple(
        ops.reshape(ops.take(x, index, axis=0), (-1, size, *ops.shape(x)[1:]))
        for x in arrays
    )
    values = ops.map(function, blocks)
    return ops.reshape(values, (fill, *ops.shape(values)[2:]))[:n]


def lgamma1p(x: Any) -> Tensor:
    """Returns ln Γ(1 + x) for x ≥ 0, differentiable, accurate down to x = 0.

    Stirling's series at y = 1 + x where x ≥ 8. Below, the recurrence
    Γ(9 + x) = Γ(1 + x)·8!·Π(1 + x/j) moves the argument up to the series, every
    difference being taken so that it vanishes with x instead of cancelling.
    """

    def remainder(y: Any) -> Any:
        return (1 / 12 - (1 / 360 - 1 / (1260 * y * y)) / (y * y)) / y

    # `where` instead of `maximum`, which would halve the gradient at x = 8.
    x = ops.convert_to_tensor(x)
    eight = constant(8.0, x, ops)
    large = ops.where(x < 8.0, eight, x) + 1.0
    stirling = (
        (large - 0.5) * ops.log(large)
        - large
        + 0.5 * math.log(2 * math.pi)
        + remainder(large)
    )

    small = ops.where(x < 8.0, x, eight)
    shifted = small + 9.0
    rise = (
        8.5 * ops.log1p(small / 9.0)
        + small * (ops.log(shifted) - 1.0)
        + (remainder(shifted) - remainder(9.0))
    )
    growth = ops.zeros_like(small)
    for coefficient in _RISING_PRODUCT[:-1]:
        growth = (growth + coefficient) * small
    return ops.where(x < 8.0, rise - ops.log1p(growth), stirling)
