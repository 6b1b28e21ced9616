"""Operations that `keras.ops` lacks."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_keras_mask

Tensor: TypeAlias = Any

# Smallest number whose logarithm and reciprocal are finite in float32.
TINY = 1e-37

# Entries of an array on which the number of operations costs more than their size.
_SMALL = 2**14

# Up to this many columns NumPy finds maxima faster in columns than in rows.
FEW_COLUMNS = 24


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


def is_host(x: Any) -> bool:
    """Returns whether a value is a NumPy array, a list or the like, not a tensor."""
    if isinstance(x, keras.KerasTensor | keras.Variable):
        return False
    return isinstance(x, np.ndarray) or not ops.is_tensor(x)


def segment_sum(values: Tensor, ids: Tensor, num_segments: Any) -> Tensor:
    """Returns the sums of the rows of `values` (n, ...) that share an id, by id."""
    if keras.backend.backend() != "torch":
        return ops.segment_sum(values, ids, num_segments=num_segments)
    # Keras repeats the ids by a tensor's value, which torch.compile cannot trace.
    ids = ops.cast(ids, "int64")
    ids = ids.reshape(-1, *(1,) * (len(values.shape) - 1)).expand_as(values)
    zeros = ops.zeros((num_segments, *values.shape[1:]), dtype=values.dtype)
    return zeros.scatter_add(0, ids, values)


def cast(x: Any, dtype: Any, xp: Any) -> Any:
    """Returns a tensor, or a NumPy array, in another dtype."""
    return x.astype(dtype) if xp is np else ops.cast(x, dtype)


def row_offset(num_rows: int, num_cells: int, xp: Any = ops) -> Any:
    """Returns what is added to indices of cells, (rows, n), to tell rows apart."""
    return xp.expand_dims(xp.arange(num_rows, dtype="int32"), -1) * num_cells


def sum_by_cell(values: Any, cell: Any, num_cells: Any, xp: Any = ops) -> Any:
    """Returns the sum of the values in each cell, by row: (rows, n) → (rows, cells)."""
    num_rows = values.shape[0]
    cell = xp.reshape(cell + row_offset(num_rows, num_cells, xp), (-1,))
    values, num_sums = xp.reshape(values, (-1,)), num_rows * num_cells
    if xp is np:
        sums = np.bincount(cell, values, num_sums).astype(values.dtype)
    else:
        sums = segment_sum(values, cell, num_sums)
    return xp.reshape(sums, (num_rows, num_cells))


def cumsum(x: Tensor) -> Tensor:
    """Returns the cumulative sums over the last axis.

    JAX's own is a tree of operations, which takes long to compile and to run on a CPU.
    Here they are products with a triangle of ones, of blocks that begin with the sum of
    those before. XLA would add that sum to a block anew in each use of the result.
    """
    if keras.backend.backend() != "jax":
        return ops.cumsum(x, axis=-1)
    size, length = int(x.shape[-1]), 2**7
    if size <= length:
        return _jax_products()(x, np.tri(size, dtype=x.dtype).T)
    lead, blocks = tuple(x.shape[:-1]), math.ceil(size / length)
    padding = [(0, 0)] * len(lead) + [(0, blocks * length - size)]
    inside = ops.reshape(ops.pad(x, padding), (*lead, blocks, length))
    total = ops.sum(inside, axis=-1)
    before = ops.expand_dims(cumsum(total) - total, -1)
    inside = ops.concatenate([before, inside], axis=-1)
    sums = _jax_products()(inside, np.tri(length, length + 1, 1, dtype=x.dtype).T)
    return ops.reshape(sums, (*lead, blocks * length))[..., :size]


@functools.cache
def _jax_products() -> Any:
    import jax

    # Exact for counts on every device: GPUs round factors by default.
    return functools.partial(jax.numpy.matmul, precision="highest")


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
    group = xp.cumsum(cast(ranked != previous, "int32", xp), axis=-1)
    # `order` is a permutation: summing into its places undoes the sort.
    place, length = cast(order, "int32", xp), xp.shape(x)[1]
    return sum_by_cell(cast(group, "int32", xp), place, length, xp)


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
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
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


def looks_at_values(x: Tensor) -> bool:
    """Returns whether looking at a tensor's values is cheap: for eager PyTorch on a
    CPU, where no device has to wait, and where each operation makes a new tensor.
    """
    if keras.backend.backend() != "torch" or x.device.type != "cpu" or x.numel() == 0:
        return False
    import torch

    if torch.compiler.is_compiling():
        return False
    try:
        x.data_ptr()
    except RuntimeError:  # inside `torch.func`, whose tensors stand for others
        return False
    return True


def by_numpy(function: Callable[..., Any], *arguments: Any, **options: Any) -> Tensor:
    """Returns `function(*arguments, **options, xp=xp)` as a tensor.

    `xp` is `keras.ops`. It is NumPy for eager PyTorch on a CPU if no gradient is asked
    for: arrays share the memory of the tensors among the arguments, and operations on
    thousands of values take a fraction of the time.

    Args:
        function: a function of `xp` that returns a tensor or an array.
        *arguments: tensors, the first one at least, and other values.
        **options: other values.
    """
    tensors = [x for x in (*arguments, *options.values()) if ops.is_tensor(x)]
    if not all(looks_at_values(x) and not x.requires_grad for x in tensors):
        return function(*arguments, **options, xp=ops)
    import torch

    def shared(x: Any) -> Any:
        if not ops.is_tensor(x):
            return x
        return x.numpy() if x.ndim else x.item()

    arrays = [shared(x) for x in arguments]
    options = {name: shared(x) for name, x in options.items()}
    # Tensors do not warn of NaN or ∞ either.
    with np.errstate(all="ignore"):
        return torch.from_numpy(function(*arrays, **options, xp=np))


def may_loop(x: Tensor) -> bool:
    """Returns whether a loop may end by values: torch.compile cannot trace such a loop,
    and for eager PyTorch a device would have to wait.
    """
    return keras.backend.backend() != "torch" or looks_at_values(x)


def are_indices(x: Tensor, size: int) -> bool:
    """Returns whether integers are known to be in 0 … size − 1."""
    if not looks_at_values(x):
        return False
    least, most = x.aminmax()
    return bool(least >= 0) and bool(most < size)


def may_be_infinite(x: Tensor) -> bool:
    """Returns whether a tensor may hold −∞: False if it is known that it does not."""
    # NaN compares as if it were infinite.
    return not (looks_at_values(x) and bool(x.detach().min() > -math.inf))


def argmax(x: Tensor) -> Tensor:
    """Returns the first index of the largest value of each row, (n, 1), as int32.

    Values that are not equal must be more than 2⁻¹⁰⁰ apart, as probabilities and their
    logarithms are. XLA compares one value after the other in an argmax, but not in this
    minimum of c + 2¹²² (max x − x_c).
    """
    backend, k = keras.backend.backend(), int(x.shape[-1])
    if backend == "tensorflow":
        import tensorflow as tf

        # Keras's own makes copies to tell −0 from 0.
        return tf.argmax(x, axis=-1, output_type=tf.int32)[:, None]
    if backend == "jax" and 32 < k < 2**22:
        below = ops.amax(x, axis=-1, keepdims=True) - x
        place = ops.arange(k, dtype=x.dtype) + below * 2.0**122
        return ops.cast(ops.amin(place, axis=-1, keepdims=True), "int32")
    return ops.cast(ops.argmax(x, axis=-1, keepdims=True), "int32")


def first_largest(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest value of each row, and whether it is at `index`, (n, 1), for
    the first time in the row; both (n, 1) and without a gradient.
    """
    if not worth_numpy(x):
        top = argmax(x)
        # XLA reads long rows once more for another use of the maximum.
        if keras.backend.backend() == "jax" and x.shape[-1] > FEW_COLUMNS:
            return ops.take_along_axis(x, top, axis=-1), top == index
        return ops.amax(x, axis=-1, keepdims=True), top == index
    import torch

    rows, place = x.detach().numpy(), index[:, 0].numpy()
    each = np.arange(len(rows))
    largest, once = (None, False)
    if rows.shape[-1] <= FEW_COLUMNS:
        largest, once = largest_in_columns(rows)
    if once:
        found = rows[each, place] == largest
    else:
        top = rows.argmax(axis=-1)
        largest, found = rows[each, top], top == place
    return torch.from_numpy(largest)[:, None], torch.from_numpy(found)[:, None]


def worth_numpy(x: Tensor) -> bool:
    """Returns whether NumPy, which shares the memory of PyTorch's tensors on a CPU, is
    the faster way to look at values: PyTorch compares and searches rows slowly.
    """
    return looks_at_values(x) and x.numel() >= _SMALL


def largest_in_columns(x: Any) -> tuple[Any, bool]:
    """Returns the largest value of each row of a NumPy array, (n,), and whether it is
    unique in every row without NaN; fast for up to `FEW_COLUMNS` columns.
    """
    n, k = x.shape
    largest, found = np.empty(n, x.dtype), 0
    # The columns of a block stay in the cache.
    step = 2**15 // k
    for start in range(0, n, step):
        rows = slice(start, start + step)
        columns = np.ascontiguousarray(x[rows].T)
        columns.max(axis=0, out=largest[rows])
        found += int(np.count_nonzero(columns == largest[rows]))
    return largest, found == n


def log_p_at(index: Tensor, log_p: Tensor, logits: Tensor) -> Tensor:
    """Returns ln p, the log-softmax of logits, at the index of each row, (n, 1)."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        # Its backward pass writes to places where that of a gather adds to them.
        index = index[:, 0].long()
        return -torch.nn.functional.nll_loss(log_p, index, reduction="none")[:, None]
    if backend != "jax":
        return ops.take_along_axis(log_p, index, -1)
    # XLA then needs no array of ln p, nor a scatter into one in the backward pass.
    there = ops.arange(logits.shape[-1]) == index
    at = ops.sum(ops.where(there, logits, 0.0), axis=-1, keepdims=True)
    largest, log_total = _normalizer(logits)
    return at - largest - log_total


def largest_log_p(log_p: Tensor, logits: Tensor) -> Tensor:
    """Returns the largest ln p, the log-softmax of logits, of each row, (n,)."""
    if keras.backend.backend() != "jax":
        return ops.amax(log_p, axis=-1)
    # XLA knows this maximum already, and its gradient sums over no row of ln p.
    largest, log_total = _normalizer(logits)
    return ops.amax(logits, axis=-1) - largest[:, 0] - log_total[:, 0]


def _normalizer(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns M = max z, without a gradient, and ln Σ exp(z − M), both (n, 1)."""
    largest = ops.stop_gradient(ops.amax(logits, axis=-1, keepdims=True))
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return largest, ops.log(total)


def safe_log(x: Tensor) -> Tensor:
    """Returns ln x for x > 0 and a finite number, without gradient, at 0."""
    return ops.log(ops.maximum(x, TINY))


def safe_power(x: Tensor, exponent: Any) -> Tensor:
    """Returns x^γ for x ≥ 0 with a finite gradient at 0 for every γ ≥ 0."""
    return ops.power(ops.maximum(x, TINY), exponent)


def top_two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest and the second largest of the last axis, which is kept.

    Two maxima, since XLA's top_k sorts.
    """
    first = ops.amax(x, axis=-1, keepdims=True)
    at_first = x == first
    rest = ops.amax(ops.where(at_first, -1e38, x), axis=-1, keepdims=True)
    tied = ops.sum(ops.cast(at_first, "int32"), axis=-1, keepdims=True) > 1
    return first, ops.where(tied, first, rest)
