"""Operations that `keras.ops` lacks."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_keras_mask

from keras_selcal._backend.host import (
    array_module,
    cast,
    eager_largest,
    gains_by_eager_largest,
    looks_at_values,
    on_host,
    to_numpy,
)

Tensor: TypeAlias = Any
_Function = TypeVar("_Function", bound=Callable[..., Any])

# Smallest number whose logarithm and reciprocal are finite in float32.
TINY = 1e-37

# Up to this many columns XLA unrolls a reduction of rows.
_UNROLLED = 16


def unconverted(function: _Function) -> _Function:
    """Returns a function that TensorFlow's AutoGraph leaves as it is.

    In a user's `tf.function` it would convert the library's code, which needs no
    conversion, in several times the time of tracing it. Keras itself is exempt.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def as_float(x: Any) -> Tensor:
    """Returns `x` as a float32 tensor, or float64 if it is one already."""
    x = ops.convert_to_tensor(x)
    if keras.backend.standardize_dtype(x.dtype) in ("float32", "float64"):
        return x
    return ops.cast(x, "float32")


def mask_of(x: Any) -> Any:
    """Returns the mask that Keras has attached to a tensor, or None."""
    # Not an attribute on JAX, whose tensors take none: only Keras knows where it is.
    return get_keras_mask(x)


def segment_sum(values: Tensor, ids: Tensor, num_segments: Any) -> Tensor:
    """Returns the sums of the rows of `values` (n, ...) that share an id, by id.

    Those of a NumPy array of shape (n,) or (n, 2) are in float64.
    """
    if isinstance(values, np.ndarray):
        if values.ndim == 1:
            return np.bincount(ids, values, num_segments)
        columns = [np.bincount(ids, column, num_segments) for column in values.T]
        return np.stack(columns, axis=-1)
    if keras.backend.backend() != "torch":
        return ops.segment_sum(values, ids, num_segments=num_segments)
    # Keras repeats the ids by a tensor's value, which torch.compile cannot trace.
    ids = ops.cast(ids, "int64")
    ids = ids.reshape(-1, *(1,) * (len(values.shape) - 1)).expand_as(values)
    zeros = ops.zeros((num_segments, *values.shape[1:]), dtype=values.dtype)
    return zeros.scatter_add(0, ids, values)


def row_offset(num_rows: int, num_cells: int, xp: Any = ops) -> Any:
    """Returns what is added to indices of cells, (rows, n), to tell rows apart."""
    return xp.expand_dims(xp.arange(num_rows, dtype="int32"), -1) * num_cells


def sum_by_cell(values: Any, cell: Any, num_cells: Any, xp: Any = ops) -> Any:
    """Returns the sum of the values in each cell, by row: (rows, n) → (rows, cells)."""
    num_rows = values.shape[0]
    cell = xp.reshape(cell + row_offset(num_rows, num_cells, xp), (-1,))
    sums = segment_sum(xp.reshape(values, (-1,)), cell, num_rows * num_cells)
    return xp.reshape(cast(sums, values.dtype), (num_rows, num_cells))


def cumsum(x: Tensor) -> Tensor:
    """Returns the cumulative sums over the last axis.

    JAX's own is a tree of operations, which takes long to compile and to run on a CPU.
    Here they are products with a triangle of ones.
    """
    if isinstance(x, np.ndarray) or keras.backend.backend() != "jax":
        return array_module(x).cumsum(x, axis=-1)
    return _jax_sums(x, np.triu)


def sums_after(x: Tensor) -> Tensor:
    """Returns the sums of the later entries of the last axis, for each of its entries.

    On JAX without copies in another order, each of which takes as long to compile.
    """
    if isinstance(x, np.ndarray) or keras.backend.backend() != "jax":
        xp = array_module(x)
        upto = xp.flip(xp.cumsum(xp.flip(x, axis=-1), axis=-1), axis=-1)
        return xp.concatenate([upto[..., 1:], xp.zeros_like(x[..., :1])], axis=-1)
    return _jax_sums(x, functools.partial(np.tril, k=-1))


def _jax_sums(x: Tensor, triangle: Callable[[Any], Any]) -> Tensor:
    """Returns sums over the last axis by products with a triangle of ones, of blocks
    that begin with the sum of the other blocks: XLA would add that sum anew in each use
    of the result.
    """
    import jax

    # Exact for counts on every device: GPUs round factors by default.
    product = functools.partial(jax.numpy.matmul, precision="highest")
    size, length = int(x.shape[-1]), 2**7
    if size <= length:
        return product(x, triangle(np.ones((size, size))).astype(x.dtype))
    lead, blocks = tuple(x.shape[:-1]), math.ceil(size / length)
    if blocks * length > size:
        x = ops.pad(x, [(0, 0)] * len(lead) + [(0, blocks * length - size)])
    x = ops.reshape(x, (*lead, blocks, length))
    between = triangle(np.ones((blocks, blocks))) * (1.0 - np.eye(blocks))
    others = product(ops.sum(x, axis=-1), between.astype(x.dtype))
    x = ops.concatenate([others[..., None], x], axis=-1)
    inside = triangle(np.ones((length, length)))
    sums = product(
        x, np.pad(inside, [(1, 0), (0, 0)], constant_values=1).astype(x.dtype)
    )
    return ops.reshape(sums, (*lead, blocks * length))[..., :size]


def tie_groups(x: Any, xp: Any = ops) -> Any:
    """Returns numbers below n of the groups of equal values of each row, (rows, n), as
    int32: the larger the value, the larger the number.
    """
    if keras.backend.backend() == "jax" and xp is ops:
        import jax
        from jax import numpy as jnp

        # XLA sorts integers alone seven times as fast as floats with their places. The
        # bits of a float are ordered as its magnitude; −0 and 0 become the same number.
        bits = jax.lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
        bits = jnp.where(bits < 0, jnp.iinfo(bits.dtype).min - bits, bits)
        return jax.vmap(jnp.searchsorted)(jnp.sort(bits), bits)
    order = xp.argsort(x, axis=-1)
    ranked = xp.take_along_axis(x, order, axis=-1)
    previous = xp.concatenate([ranked[:, :1], ranked[:, :-1]], axis=-1)
    group = xp.cumsum(cast(ranked != previous, "int32"), axis=-1)
    # `order` is a permutation: summing into its places undoes the sort.
    place, length = cast(order, "int32"), xp.shape(x)[1]
    return sum_by_cell(cast(group, "int32"), place, length, xp)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Returns the matrix product a b in the dtype of its arguments.

    Unlike `ops.matmul` it keeps that dtype inside `torch.autocast`, in the backward
    pass as well. `b` has the leading dimensions of `a`, or none.
    """
    if keras.backend.backend() == "torch":
        import torch

        if torch.is_autocast_enabled(a.device.type):
            return _matmul_outside_autocast().apply(a, b)
    return ops.matmul(a, b)


@functools.cache
def _matmul_outside_autocast() -> Any:
    import torch

    class MatMul(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def forward(a: Tensor, b: Tensor) -> Tensor:
            with torch.autocast(a.device.type, enabled=False):
                return torch.matmul(a, b)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            a, b = ctx.saved_tensors
            with torch.autocast(a.device.type, enabled=False):
                of_a = torch.matmul(gradient, b.mT)
                if b.ndim < a.ndim:
                    a = a.reshape(-1, a.shape[-1])
                    gradient = gradient.reshape(-1, gradient.shape[-1])
                return of_a, torch.matmul(a.mT, gradient)

    return MatMul


def gradient(function: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Any]:
    """Returns ∂f/∂x by automatic differentiation, and what else `function` returns.

    `function(x)` returns f, a scalar, and any structure of tensors.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.grad(function, has_aux=True)(x)
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            total, others = function(x)
        return tape.gradient(total, x, unconnected_gradients="zero"), others
    if backend == "torch":
        import torch

        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            total, others = function(x)
            if not total.requires_grad:
                return torch.zeros_like(x), others
            return torch.autograd.grad(total, x)[0], others
    raise NotImplementedError(f"The {backend} backend of Keras has no gradients.")


def may_loop(x: Tensor) -> bool:
    """Returns whether a loop may end by values: torch.compile cannot trace such a loop,
    and for eager PyTorch a device would have to wait.
    """
    if isinstance(x, np.ndarray) or keras.backend.backend() != "torch":
        return True
    return looks_at_values(x)


def are_indices(x: Tensor, size: int) -> bool:
    """Returns whether integers are known to be in 0 … size − 1."""
    if isinstance(x, np.ndarray):
        return x.size > 0 and bool(x.min() >= 0) and bool(x.max() < size)
    if not looks_at_values(x):
        return False
    least, most = x.aminmax()
    return bool(least >= 0) and bool(most < size)


def may_be_infinite(x: Tensor) -> bool:
    """Returns whether a tensor may hold −∞: False if it is known that it does not."""
    # NaN compares as if it were infinite.
    if isinstance(x, np.ndarray):
        return not x.min(initial=0.0) > -math.inf
    return not (looks_at_values(x) and bool(x.detach().min() > -math.inf))


def argmax(x: Tensor) -> Tensor:
    """Returns the first index of the largest of the last axis, which is kept, as int32.

    Values that are not equal must be more than 2⁻¹⁰⁰ apart, as probabilities and their
    logarithms are. XLA compares one value after the other in an argmax, but not in this
    minimum of c + 2¹²² (max x − x_c).
    """
    if isinstance(x, np.ndarray):
        return x.argmax(axis=-1, keepdims=True).astype("int32")
    backend, k = keras.backend.backend(), int(x.shape[-1])
    if backend == "torch" and looks_at_values(x):
        import torch

        # NumPy compares several values at once.
        return torch.from_numpy(on_host(argmax, to_numpy(x)))
    if backend == "tensorflow":
        import tensorflow as tf

        # Keras's own makes copies to tell −0 from 0.
        return tf.argmax(x, axis=-1, output_type=tf.int32)[..., None]
    if backend == "jax" and 32 < k < 2**22:
        below = ops.amax(x, axis=-1, keepdims=True) - x
        place = ops.arange(k, dtype=x.dtype) + below * 2.0**122
        return ops.cast(ops.amin(place, axis=-1, keepdims=True), "int32")
    return ops.cast(ops.argmax(x, axis=-1, keepdims=True), "int32")


def reduced_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Returns the largest value of each row, its first place and Σ |x|, each (n,), by
    one pass; None where the backend has no fast one. Only Σ |x| shows NaN.

    XLA makes one loop of such a reduction of three arrays, and unrolls that of few
    columns. For more columns a pass for each, over vectors, takes less time.
    """
    if keras.backend.backend() != "jax" or x.shape[-1] > _UNROLLED:
        return None
    import jax
    from jax import numpy as jnp

    def larger(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> Any:
        (x, place, total), (y, other_place, other_total) = one, other
        ahead = (y > x) | ((y == x) & (other_place < place))
        return (
            jnp.where(ahead, y, x),
            jnp.where(ahead, other_place, place),
            total + other_total,
        )

    x = jax.lax.stop_gradient(x)
    place = jax.lax.broadcasted_iota("int32", x.shape, 1)
    zero = jnp.zeros((), x.dtype)
    least = (zero - math.inf, jnp.int32(x.shape[-1]), zero)
    return jax.lax.reduce((x, place, abs(x)), least, larger, (1,))


def log_p_at(index: Tensor, log_p: Tensor, logits: Tensor) -> Tensor:
    """Returns ln p, the log-softmax of logits, at the index of each row, (n, 1)."""
    if isinstance(log_p, np.ndarray):
        return np.take_along_axis(log_p, index, -1)
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        # Its backward pass writes to places where that of a gather adds to them.
        index = index[:, 0].long()
        return -torch.nn.functional.nll_loss(log_p, index, reduction="none")[:, None]
    if backend != "jax":
        return ops.take_along_axis(log_p, index, -1)
    # XLA then needs no array of ln p, nor a scatter into one in the backward pass.
    there = ops.arange(logits.shape[-1], dtype="int32") == index
    at = ops.sum(ops.where(there, logits, 0.0), axis=-1, keepdims=True)
    largest, log_total = _normalizer(logits)
    return at - largest - log_total


def largest_log_p(
    log_p: Tensor, logits: Tensor, *, apart_from: Tensor | None = None
) -> Tensor:
    """Returns the largest ln p, the log-softmax of logits, of each row, (n, 1), apart
    from a place in each, (n, 1), if one is given.
    """
    if keras.backend.backend() != "jax":
        return largest(log_p, apart_from=apart_from)
    # XLA knows this maximum already, and its gradient sums over no row of ln p.
    most, log_total = _normalizer(logits)
    return largest(logits, apart_from=apart_from) - most - log_total


def _normalizer(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns M = max z, without a gradient, and ln Σ exp(z − M), both (n, 1)."""
    largest = ops.stop_gradient(ops.amax(logits, axis=-1, keepdims=True))
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return largest, ops.log(total)


def safe_log(x: Tensor) -> Tensor:
    """Returns ln x for x > 0 and a finite number, without gradient, at 0."""
    xp = array_module(x)
    return xp.log(xp.maximum(x, TINY))


def log_softmax(x: Any) -> Any:
    """Returns ln softmax over the last axis."""
    if not isinstance(x, np.ndarray):
        return ops.log_softmax(x, axis=-1)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def safe_power(x: Tensor, exponent: Any) -> Tensor:
    """Returns x^γ for x ≥ 0 with a finite gradient at 0 for every γ ≥ 0."""
    return ops.power(ops.maximum(x, TINY), exponent)


# Below every logarithm of a probability.
_LEFT_OUT = -1e38


def _of_torch(x: Tensor) -> bool:
    """Returns whether a tensor is PyTorch's, not a symbolic one of Keras."""
    return keras.backend.backend() == "torch" and not isinstance(x, keras.KerasTensor)


def largest(x: Tensor, *, apart_from: Tensor | None = None) -> Tensor:
    """Returns the largest of the last axis, which is kept; its gradient is shared by
    equal ones.

    Args:
        x: tensor of shape (..., k).
        apart_from: the place that is left out, (..., 1), or None.
    """
    torch, seen = _of_torch(x), x
    if apart_from is not None and torch:
        seen = x.scatter(-1, apart_from.long(), _LEFT_OUT)
    elif apart_from is not None:
        here = ops.arange(x.shape[-1], dtype="int32") == apart_from
        seen = ops.where(here, _LEFT_OUT, x)
    if torch and gains_by_eager_largest(x):
        return eager_largest(x, seen)
    return ops.amax(seen, axis=-1, keepdims=True)


def top_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest and the second largest of the last axis, which is kept.

    Two maxima, since XLA's top_k sorts.
    """
    first = largest(x)
    if _of_torch(x):
        second = largest(x, apart_from=argmax(x))
        tied = second == first
    else:
        # Symbolic tensors are compared by identity, unless by this function.
        at_first = ops.equal(x, first)
        second = largest(ops.where(at_first, _LEFT_OUT, x))
        tied = ops.sum(ops.cast(at_first, x.dtype), axis=-1, keepdims=True) > 1
    return first, ops.where(tied, first, second)
