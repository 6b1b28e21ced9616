"""What metrics ask of each row of predictions, in few passes over the predictions.

The predictions of a large batch are far larger than all else that an update reads: its
time is that of the passes over them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal._backend.ops import Tensor, argmax, reduced_rows
from keras_selcal._validation import SUM_TOLERANCE

# Entries of a NumPy array that stay in the cache while several passes look at them.
_IN_CACHE = 2**18

# Up to this many columns NumPy finds maxima faster in columns than in rows.
FEW_COLUMNS = 24


class Rows(NamedTuple):
    """Statistics of rows, each (n,) and without a gradient.

    Attributes:
        largest: the largest value of the row.
        found: whether it is at the row's index for the first time in the row.
        total: the sum of the absolute values, or None.
    """

    largest: Tensor
    found: Tensor
    total: Tensor | None


def summarized(x: Tensor, index: Tensor, totals: bool) -> Rows:
    """Returns statistics of the rows of `x`.

    Args:
        x: probabilities or their logarithms, (n, k).
        index: a column for each row, (n,).
        totals: whether totals are wanted.
    """
    if isinstance(x, np.ndarray):
        return _of_array(x, index, totals)
    reduced = reduced_rows(x)
    if reduced is not None:
        largest, place, total = reduced
        return Rows(largest, place == index, total)
    place = argmax(x)[:, 0]
    # XLA reads long rows once more for another use of the maximum.
    if keras.backend.backend() == "jax":
        largest = ops.take_along_axis(x, place[:, None], axis=-1)[:, 0]
    else:
        largest = ops.amax(x, axis=-1)
    return Rows(largest, place == index, absolute_totals(x) if totals else None)


def absolute_totals(x: Tensor) -> Tensor:
    """Returns Σ_c |x_c| of each row of `x`, (n, k)."""
    # Without absolute values, (1 − p, p) and many rows of logits sum to 1 for any p.
    if isinstance(x, np.ndarray):
        total = np.empty(len(x), x.dtype)
        for rows in _blocks(x):
            total[rows] = _totals(x[rows])
        return total
    if keras.backend.backend() == "tensorflow":
        # It writes |x| to memory, which takes many times as long as the sum.
        return ops.cond(
            ops.amin(x) >= 0,
            lambda: ops.sum(x, axis=-1),
            lambda: ops.sum(ops.abs(x), axis=-1),
        )
    return ops.sum(ops.abs(x), axis=-1)


def near_one(total: Tensor) -> Tensor:
    """Returns which rows may be distributions, (n,), instead of NaN or logits."""
    # Two comparisons: for |total − 1|, XLA would write all of |rows| to memory.
    return (total >= 1.0 - SUM_TOLERANCE) & (total <= 1.0 + SUM_TOLERANCE)


def largest_in_columns(x: Any) -> tuple[Any, bool]:
    """Returns the largest value of each row of a NumPy array, (n,), and whether it is
    unique in every row without NaN; fast for up to `FEW_COLUMNS` columns.
    """
    largest, found = np.empty(len(x), x.dtype), 0
    for rows in _blocks(x):
        columns = np.ascontiguousarray(x[rows].T)
        columns.max(axis=0, out=largest[rows])
        found += int(np.count_nonzero(columns == largest[rows]))
    return largest, found == len(x) and not bool(np.isnan(largest).any())


def _blocks(x: Any) -> Iterator[slice]:
    """Yields slices of the rows of a NumPy array that fit into the cache."""
    n, k = x.shape
    # Columns are copied, and both copies are to stay in the cache.
    most = _IN_CACHE // 4 if k <= FEW_COLUMNS else _IN_CACHE
    step = max(1, most // k)
    return (slice(start, start + step) for start in range(0, n, step))


def _totals(rows: Any) -> Any:
    """Returns Σ_c |x_c| of the rows of a NumPy array."""
    rows = rows if rows.min() >= 0 else np.abs(rows)
    # Over a short last axis, NumPy's product is many times faster than its sum.
    return rows @ np.ones(rows.shape[-1], rows.dtype)


def _of_array(x: Any, index: Any, totals: bool) -> Rows:
    n, k = x.shape
    largest, found = np.empty(n, x.dtype), np.empty(n, bool)
    total = np.empty(n, x.dtype) if totals else None
    for rows in _blocks(x):
        block, place = x[rows], index[rows]
        if k <= FEW_COLUMNS:
            columns = np.ascontiguousarray(block.T)
            top = columns.max(axis=0, out=largest[rows])
            if total is not None:
                absolute = columns if columns.min() >= 0 else np.abs(columns)
                absolute.sum(axis=0, out=total[rows])
            # A row of NaN, without a match, could make up for a tie.
            once = np.count_nonzero(columns == top) == len(block)
            if once and not np.isnan(top).any():
                np.equal(entries_at(block, place), top, out=found[rows])
                continue
        elif total is not None:
            total[rows] = _totals(block)
        first = block.argmax(axis=-1)
        largest[rows], found[rows] = entries_at(block, first), first == place
    return Rows(largest, found, total)


def entries_at(x: Any, index: Any) -> Any:
    """Returns x[i, index[i]] of a NumPy array; faster than two indices."""
    n, k = x.shape
    return np.ascontiguousarray(x).reshape(-1).take(np.arange(0, n * k, k) + index)
