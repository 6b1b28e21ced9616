"""Kernel density estimate of the calibration error, with Dirichlet kernels."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import (
    at_least,
    cast,
    constant,
    first_largest,
    log_sum_exp,
    matmul,
    safe_log,
    segment_sum,
    still,
    take_class,
    zero_unless,
)
from keras_selcal._validation import check_count, check_number, refuse

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


class KernelEstimate:
    """Kernel regression of labels on predictions, leaving each sample itself out.

    Rows j are the samples that are estimated, columns i those that they are estimated
    from. A kernel matrix has the entries ln k(p_j; p_i); there is one for each margin,
    and the margins of one label follow each other.

    The matrix is held whole, or `block_size` rows of it at a time, which the backward
    pass computes again. As many margins are computed at a time as a bound on their size
    allows.

    Args:
        margins: what `margins_of` returns.
        count: how many samples each one stands for, (labels, n).
        xp: `keras.ops`, or NumPy.
        block_size: rows that are estimated at a time, or None for all.
        subsample: number of columns, or None for all samples.
        rows: indices of the rows, or None for all samples.
    """

    def __init__(
        self,
        margins: tuple[Any, Any, Any],
        count: Any,
        xp: Any,
        *,
        block_size: int | None = None,
        subsample: int | None = None,
        rows: Any = None,
    ) -> None:
        self.xp = xp
        log_p, p, labels = margins
        num_margins, self.num_labels = int(p.shape[0]), int(count.shape[0])
        index = xp.cumsum(xp.ones_like(count[0]))
        n = count.shape[1]
        of_rows = [log_p, p[..., : labels.shape[-1]], index]
        of_columns = [p, labels, index]
        # `mass` is the weight of a sample as a column.
        mass = column_mass = count
        if subsample is not None and (n is None or subsample < n):
            columns, taken = _spread(xp.amax(count, axis=0), subsample, xp)
            mass = count * segment_sum(taken, columns, xp.shape(count)[1], xp)
            column_mass = xp.take(count, columns, axis=1) * taken
            of_columns = [self._take(x, columns) for x in of_columns]
        # A sample of weight w has w − 1 copies of itself among the others.
        others = xp.sum(mass, axis=-1, keepdims=True) - mass
        others = others + at_least(mass - 1.0, 0.0, xp)
        if rows is not None:
            of_rows = [self._take(x, rows) for x in of_rows]
            count, others = self._take(count, rows), self._take(others, rows)
        self.of_rows, self.of_columns = of_rows, of_columns
        self.count, self.others = count, others
        each = num_margins // self.num_labels
        self.log_mass, self.log_rest = (
            xp.repeat(_log_or_zero(x, xp), each, axis=0)
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

    def _take(self, x: Any, index: Any) -> Any:
        """Returns samples of an array (n,), (labels, n), or (margins, n, d)."""
        return self.xp.take(x, index, axis=min(1, len(x.shape) - 1))

    def likeliest(self) -> Any:
        """Returns the bandwidth of the largest leave-one-out likelihood, (margins, 1,
        1); the margins of a label share one.
        """
        xp = self.xp
        if xp is np:
            grid = np.asarray(BANDWIDTHS, self.count.dtype)
            found = np.stack([self.log_likelihood(h) for h in grid])
        else:
            grid = xp.convert_to_tensor(BANDWIDTHS, dtype=self.count.dtype)
            found = xp.map(self.log_likelihood, grid)
        margins = self.of_columns[0].shape[0] // self.num_labels
        best = xp.take(grid, xp.argmax(found, axis=0))
        return xp.repeat(best, margins, axis=0)[:, None, None]

    def log_likelihood(self, h: Any) -> Any:
        """Returns the leave-one-out likelihood of each label's rows, (labels,)."""
        xp = self.xp

        def density(log_weight: Any, p: Any, labels: Any) -> Any:
            return log_sum_exp(log_weight, xp)

        d = self.of_columns[0].shape[-1]
        norm = lgamma1p(1.0 / h + (d - 1.0), xp) - safe_log(self.others, xp)
        densities = self._by_label(self.of_tiles(density, h))
        densities = densities + xp.expand_dims(norm, 1)
        densities = zero_unless(self.others[:, None] > 0, densities, xp)
        return xp.sum(self.count[:, None] * densities, axis=(1, 2))

    def errors(self, h: Any, exponent: int) -> Any:
        """Returns |Ê[y | p_j] − p_j|^exponent of each row j, (labels, rows); 0 if
        there is no other sample.

        `h` is a number, or of shape (margins, 1, 1).
        """
        xp = self.xp

        def error(log_weight: Any, p: Any, labels: Any) -> Any:
            top = still(xp.amax(log_weight, axis=-1, keepdims=True), xp)
            weight = xp.exp(log_weight - top)
            mean = matmul(weight, labels, xp) / xp.sum(weight, axis=-1, keepdims=True)
            return xp.sum(xp.abs(mean - p) ** exponent, axis=-1)

        errors = xp.mean(self._by_label(self.of_tiles(error, h)), axis=1)
        return zero_unless(self.others > 0, errors, xp)

    def _by_label(self, values: Any) -> Any:
        """Returns values (margins, rows) as (labels, margins of a label, rows)."""
        xp = self.xp
        shape = (self.num_labels, values.shape[0] // self.num_labels)
        return xp.reshape(values, (*shape, xp.shape(values)[1]))

    def of_tiles(self, value: Callable[..., Any], h: Any) -> Any:
        """Returns a value of each margin and row, (margins, rows), from some rows of
        some margins' kernel matrices at a time.

        `value` receives ln of the columns' weights, (margins, rows, columns), the
        rows' p and the columns' labels.
        """
        xp = self.xp
        log_p, p, row = self.of_rows
        parameters, labels, column = self.of_columns
        parameters = parameters / h
        norm = xp.sum(lgamma1p(parameters, xp), axis=-1)
        # The product sums the norm's gradient over rows, as one more coordinate, of
        # value 0. A sum of its own takes XLA on CPU 15 times longer above 16,384
        # columns; the value itself would lose digits in a product in TF32 or bfloat16.
        value_only = still(norm, xp)
        log_p = xp.concatenate([log_p, xp.ones_like(log_p[..., :1])], axis=-1)
        zero = xp.expand_dims(value_only - norm, -1)
        parameters = xp.concatenate([parameters, zero], axis=-1)

        def of_tile(
            log_p: Any,
            p: Any,
            row: Any,
            parameters: Any,
            labels: Any,
            column: Any,
            log_mass: Any,
            log_rest: Any,
        ) -> Any:
            own = xp.expand_dims(row, 1) == xp.expand_dims(column, 0)
            bias = xp.where(
                own, xp.expand_dims(log_rest, 1), xp.expand_dims(log_mass, 1)
            )
            log_kernel = matmul(log_p, xp.swapaxes(parameters, -1, -2), xp)
            return value(log_kernel + bias, p, labels)

        tile = of_tile
        if xp is not np and (self.block_size or self.margin_block_size):
            import keras

            # Tiles are computed again in the backward pass, to save memory. AnyFlow
            # gives gradients only to arguments: nothing that has one may be captured.
            tile = keras.remat(of_tile)

        def of_margins(margins: tuple[Any, ...]) -> Any:
            log_p, p, parameters, labels, log_mass, log_rest = margins
            columns = parameters, labels, column, log_mass, log_rest

            def of_rows(rows: tuple[Any, ...]) -> Any:
                log_p, p, row = rows
                log_p, p = xp.swapaxes(log_p, 0, 1), xp.swapaxes(p, 0, 1)
                return xp.transpose(tile(log_p, p, row, *columns))

            # Were `row` the same for all margins, JAX would keep the mask `own` whole.
            rows = (
                xp.swapaxes(log_p, 0, 1),
                xp.swapaxes(p, 0, 1),
                row + 0.0 * p[0, :, 0],
            )
            return xp.transpose(_map_blocks(of_rows, rows, self.block_size, xp))

        biases = self.log_mass - value_only, self.log_rest - value_only
        margins = log_p, p, parameters, labels, *biases
        return _map_blocks(of_margins, margins, self.margin_block_size, xp)


def margins_of(
    p: Any, log_p: Any, rest: Any, labels: Any, kind: str, num_labels: int, xp: Any
) -> tuple[Any, Any, Any]:
    """Returns ln p and p, (margins, n, d), and labels, (margins, n, 1 or d).

    The canonical kind has one margin for each label, the point p, d = k. Otherwise a
    margin is a point (p, 1 − p), whose Dirichlet kernel is the beta kernel, with a
    label for p: for the largest probability, whether it is correct; or one for each
    class.

    Args:
        p: probabilities, (n·labels, k).
        log_p: ln p.
        rest: 1 − p.
        labels: distributions, (n·labels, k).
        kind: one of `KINDS`.
        num_labels: number of labels of multi-label data, or 1.
        xp: `keras.ops`, or NumPy.
    """
    if kind == "top_label":
        top = first_largest(p, xp)
        p, log_p, rest, labels = (
            take_class(x, top, xp) for x in (p, log_p, rest, labels)
        )

    def margins(x: Any, d: int) -> Any:
        x = xp.reshape(x, (-1, num_labels * x.shape[1] // d, d))
        return xp.swapaxes(x, 0, 1)

    if kind == "canonical":
        k = int(p.shape[-1])
        return margins(log_p, k), margins(p, k), margins(labels, k)

    def pairs(x: Any, y: Any) -> Any:
        return margins(xp.reshape(xp.stack([x, y], -1), (-1, 2 * x.shape[1])), 2)

    return pairs(log_p, safe_log(rest, xp)), pairs(p, rest), margins(labels, 1)


def _spread(count: Any, size: int, xp: Any) -> tuple[Any, Any]:
    """Returns indices of samples that count, evenly spaced among these, (size,), and 1
    where there is one, 0 where they are fewer than `size`.
    """
    counts = cast(count > 0, "int32", xp)
    upto = cast(xp.cumsum(counts), "int32", xp)
    n = cast(xp.sum(counts), "int32", xp)
    slot = xp.arange(size, dtype="int32")
    # A product of integers could overflow.
    share = cast(n % size, count.dtype, xp) / size
    extra = cast(cast(slot, count.dtype, xp) * share, "int32", xp)
    place = xp.where(n > size, slot * (n // size) + extra, slot)
    index = cast(xp.searchsorted(upto, place + 1, side="left"), "int32", xp)
    index = xp.minimum(index, xp.shape(count)[0] - 1)
    return index, cast(place < n, count.dtype, xp)


def _log_or_zero(x: Any, xp: Any) -> Any:
    return xp.where(x > 0, safe_log(x, xp), constant(_LOG_ZERO, x, xp))


def _map_blocks(
    function: Callable[[tuple[Any, ...]], Any],
    arrays: tuple[Any, ...],
    size: int | None,
    xp: Any,
) -> Any:
    """Returns `function` of arrays that share their first axis, `size` entries of it
    at a time, or of all at once.
    """
    if size is None:
        return function(arrays)
    n = xp.shape(arrays[0])[0]
    if xp is np:
        blocks = [slice(i, i + size) for i in range(0, n, size)]
        return np.concatenate([function(tuple(x[b] for x in arrays)) for b in blocks])
    # The last block is filled with copies of the last entry.
    fill = -(-n // size) * size
    index = xp.minimum(xp.arange(fill, dtype="int32"), n - 1)
    stacked = tuple(
        xp.reshape(xp.take(x, index, axis=0), (-1, size, *xp.shape(x)[1:]))
        for x in arrays
    )
    values = xp.map(function, stacked)
    return xp.reshape(values, (fill, *xp.shape(values)[2:]))[:n]


def lgamma1p(x: Any, xp: Any) -> Any:
    """Returns ln Γ(1 + x) for x ≥ 0, differentiable, accurate down to x = 0.

    Stirling's series at y = 1 + x where x ≥ 8. Below, the recurrence
    Γ(9 + x) = Γ(1 + x)·8!·Π(1 + x/j) moves the argument up to the series, with
    every difference written to vanish with x instead of cancelling.
    """

    def remainder(y: Any) -> Any:
        return (1 / 12 - (1 / 360 - 1 / (1260 * y * y)) / (y * y)) / y

    # `where` instead of `maximum`, which would halve the gradient at x = 8.
    x = np.asarray(x) if xp is np else xp.convert_to_tensor(x)
    eight = constant(8.0, x, xp)
    large = xp.where(x < 8.0, eight, x) + 1.0
    stirling = (
        (large - 0.5) * xp.log(large)
        - large
        + 0.5 * math.log(2 * math.pi)
        + remainder(large)
    )

    small = xp.where(x < 8.0, x, eight)
    shifted = small + 9.0
    rise = (
        8.5 * xp.log1p(small / 9.0)
        + small * (xp.log(shifted) - 1.0)
        + (remainder(shifted) - remainder(9.0))
    )
    growth = xp.zeros_like(small)
    for coefficient in _RISING_PRODUCT[:-1]:
        growth = (growth + coefficient) * small
    return xp.where(x < 8.0, rise - xp.log1p(growth), stirling)
