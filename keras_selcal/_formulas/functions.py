"""Elementary functions on `keras.ops` or NumPy."""

from typing import Any

import numpy as np

# Smallest number whose logarithm and reciprocal are finite in float32.
TINY = 1e-37
# The value of ln p for a masked class, whose logit is −∞: finite, and p = 0.
LOG_OF_MASKED = -1e4


def cast(x: Any, dtype: Any, xp: Any) -> Any:
    """Returns `x` in another dtype."""
    return np.asarray(x).astype(dtype, copy=False) if xp is np else xp.cast(x, dtype)


def still(x: Any, xp: Any) -> Any:
    """Returns `x` without a gradient, which NumPy arrays do not have."""
    return x if xp is np else xp.stop_gradient(x)


def constant(value: float, like: Any, xp: Any) -> Any:
    """Returns a number as a scalar tensor of the dtype of `like`.

    A Python number in `ops.where`, `maximum`, `minimum` or `clip` is copied to the
    device on PyTorch, and the device waits for it. A sum with zeros is computed there.
    """
    return xp.zeros((), dtype=like.dtype) + value


def at_least(x: Any, value: float, xp: Any) -> Any:
    """Returns max(x, value); NaN stays."""
    return larger(x, constant(value, x, xp), xp)


def at_most(x: Any, value: float, xp: Any) -> Any:
    """Returns min(x, value); NaN stays."""
    return smaller(x, constant(value, x, xp), xp)


def larger(x: Any, y: Any, xp: Any) -> Any:
    """Returns max(x, y); NaN of x stays.

    Keras's own rounds float64 to float32 on PyTorch, and so does its minimum.
    """
    return xp.where(x < y, y, x)


def smaller(x: Any, y: Any, xp: Any) -> Any:
    """Returns min(x, y); NaN of x stays."""
    return xp.where(x > y, y, x)


def floor(x: Any, xp: Any) -> Any:
    """Returns ⌊x⌋ in the dtype of x, which Keras does not keep on PyTorch."""
    return cast(xp.floor(x), x.dtype, xp)


def clip(x: Any, low: float, high: float, xp: Any) -> Any:
    """Returns x within [low, high]; NaN stays."""
    zero = xp.zeros((), dtype=x.dtype)
    return xp.clip(x, zero + low, zero + high)


def where_positive(condition: Any, x: Any, xp: Any) -> Any:
    """Returns x where the condition holds, and 1 elsewhere: a safe denominator."""
    return xp.where(condition, x, xp.ones((), dtype=x.dtype))


def cumsum(x: Any, xp: Any) -> Any:
    """Returns cumulative sums over the last axis in the dtype of x.

    On PyTorch, Keras computes float64 input in float32, which is exact for counts.
    """
    return cast(xp.cumsum(x, axis=-1), x.dtype, xp)


def zero_unless(condition: Any, x: Any, xp: Any) -> Any:
    """Returns x where the condition holds, and 0 elsewhere."""
    return xp.where(condition, x, xp.zeros((), dtype=x.dtype))


def safe_log(x: Any, xp: Any) -> Any:
    """Returns ln x for x > 0, and a finite number, without gradient, at 0."""
    tiny = 1e-300 if "float64" in str(x.dtype) else TINY
    return xp.log(at_least(x, tiny, xp))


def normalizer(x: Any, xp: Any) -> tuple[Any, Any]:
    """Returns d = x − max x, and Σ exp d over the last axis, which is kept.

    NaN in a row makes its sum NaN, and with it the softmax of the whole row. The
    softmax of a backend does not promise that.
    """
    d = x - still(xp.amax(x, axis=-1, keepdims=True), xp)
    return d, xp.sum(xp.exp(d), axis=-1, keepdims=True)


def log_softmax(x: Any, xp: Any) -> Any:
    """Returns ln softmax over the last axis; NaN in a row makes the whole row NaN."""
    return finite_log_p(*normalizer(x, xp), xp)


def finite_log_p(d: Any, total: Any, xp: Any) -> Any:
    """Returns d − ln total, finite for a masked class (d = −∞): its products with p = 0
    are then 0, not NaN.
    """
    log_p = d - xp.log(total)
    # `<` also compares symbolic tensors, which `==` does not.
    return xp.where(log_p < -1e30, constant(LOG_OF_MASKED, log_p, xp), log_p)


def softmax(x: Any, xp: Any) -> Any:
    """Returns the softmax over the last axis; NaN in a row makes the whole row NaN."""
    d, total = normalizer(x, xp)
    return xp.exp(d) / total


def log_sum_exp(x: Any, xp: Any) -> Any:
    """Returns ln Σ exp x over the last axis."""
    if xp is not np:
        return xp.logsumexp(x, axis=-1)
    top = np.amax(x, axis=-1, keepdims=True)
    return top[..., 0] + np.log(np.sum(np.exp(x - top), axis=-1))


def nan_in_row(x: Any, xp: Any) -> Any:
    """Returns NaN for rows (..., k) with NaN or +∞, and 0 for others, (..., 1).

    Added to what is computed from x, it keeps NaN where a runtime of exported models
    loses it: LiteRT's exponential has a value for NaN.
    """
    # A logit may be −∞.
    return 0.0 * xp.sum(at_least(x, -1e30, xp), axis=-1, keepdims=True)


def first_largest(x: Any, xp: Any) -> Any:
    """Returns the first index of the largest of the last axis, which is kept."""
    if xp is np:
        return np.argmax(x, axis=-1, keepdims=True)
    from keras_selcal._backend.ops import argmax

    return argmax(x)


def arange(n: int, dtype: Any, xp: Any) -> Any:
    """Returns 0 … n − 1; ONNX export from JAX needs the start of Keras's own."""
    return xp.arange(0, n, dtype=dtype)


def take_along(x: Any, index: Any, xp: Any) -> Any:
    """Returns x (..., k) at indices (..., m) of the last axis."""
    if xp is np:
        return np.take_along_axis(x, index, axis=-1)
    from keras_selcal._backend.ops import take_along as of_tensors

    return of_tensors(x, index)


def take_class(x: Any, index: Any, xp: Any) -> Any:
    """Returns x at an index, both of the last axis, which is kept."""
    return xp.take_along_axis(x, cast(index, "int32", xp), axis=-1)


def sum_by_cell(values: Any, cell: Any, num_cells: int, xp: Any) -> Any:
    """Returns the sums of values (rows, n) in each cell, (rows, cells).

    Args:
        values: (rows, n).
        cell: indices in 0 … num_cells − 1 as floats, (rows, n). TensorFlow computes
            with int32 on the host.
        num_cells: number of cells of a row.
        xp: `keras.ops` or NumPy.
    """
    rows = int(values.shape[0])
    if rows > 1:
        cell = cell + num_cells * xp.expand_dims(xp.arange(rows, dtype=cell.dtype), -1)
    cell = xp.reshape(cast(cell, "int32", xp), (-1,))
    sums = segment_sum(xp.reshape(values, (-1,)), cell, rows * num_cells, xp)
    return xp.reshape(sums, (rows, num_cells))


def matmul(a: Any, b: Any, xp: Any) -> Any:
    """Returns the matrix product a b, of tensors with all digits of their dtype."""
    if xp is np:
        return a @ b
    from keras_selcal._backend.ops import matmul as of_tensors

    return of_tensors(a, b)


def is_masked(logits: Any) -> Any:
    """Returns which logits are −∞: classes that cannot occur.

    `<` also compares symbolic tensors, which `==` does not.
    """
    return logits < -3e38


def segment_sum(values: Any, ids: Any, num_segments: int, xp: Any) -> Any:
    """Returns the sums of the rows of values (n,) or (n, c) that share an id, by id."""
    if xp is not np:
        from keras_selcal._backend.ops import segment_sum as of_tensors

        return of_tensors(values, ids, num_segments)
    if values.ndim == 1:
        return np.bincount(ids, values, num_segments).astype(values.dtype)
    columns = [np.bincount(ids, column, num_segments) for column in values.T]
    return np.stack(columns, axis=-1).astype(values.dtype)
