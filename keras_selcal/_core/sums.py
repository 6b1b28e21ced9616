"""Exact sums: variables of pairs of floats, the second of which holds what the first
has rounded off.
"""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.stateless_scope import in_stateless_scope

from keras_selcal._core.ops import Tensor, looks_at_values

# Numbers on which a call of PyTorch takes longer than the work.
_FEW = 2**14

# Rows of which each is compared with all others in less time than a copy of all cells.
_FEW_ROWS = 2**10


def add_exactly(old: Tensor, lost: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns old + lost + values as a float and what it has rounded off, by Knuth's
    exact sum of two floats.
    """
    new = old + values
    added = new - old
    lost = lost + ((old - (new - added)) + (values - added))
    first = new + lost
    return first, lost - (first - new)


def add_to_sums(sums: Any, values: Tensor) -> None:
    """Adds values to a variable of exact sums, which holds pairs of floats."""
    if keras.backend.backend() == "torch" and not in_stateless_scope():
        import torch

        # Keras's `stack` and `assign` take longer than the sum of a small array.
        with torch.no_grad():
            old = sums.value
            values = values.to(old)
            if old.numel() < _FEW and looks_at_values(old):
                # So do PyTorch's operations; NumPy shares the memory.
                host = old.numpy()
                with np.errstate(invalid="ignore"):
                    host[:] = add_exactly(host[0], host[1], values.numpy())
                return
            torch.stack(add_exactly(old[0], old[1], values), out=old)
        return
    values = ops.cast(values, sums.dtype)
    sums.assign(ops.stack(add_exactly(sums[0], sums[1], values)))


def add_to_cells(sums: Any, index: Tensor, rows: Tensor) -> bool:
    """Adds rows (n, 2) to the cells at `index`, (n,), of a variable of exact sums, of
    shape (2, groups, cells, 2), and to no other cell.

    The work grows with n instead of the number of cells. The second float of a cell
    holds the sum of its rows on the way, so that nothing is sorted. Returns whether the
    backend can: TensorFlow's distributed variables take whole values only.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        sums.assign(_jax_cells()(sums.value, index, rows))
        return True
    if in_stateless_scope():
        return False
    if backend == "torch":
        import torch

        with torch.no_grad():
            index, cells = index.long(), sums.value.view(2, -1, 2)
            if len(index) < _FEW and looks_at_values(cells):
                _numpy_cells(cells.numpy(), index.numpy(), rows.numpy())
                return True
            old = cells[:, index]
            cells[1].index_fill_(0, index, 0.0).index_add_(0, index, rows)
            new = add_exactly(old[0], old[1], cells[1, index])
            cells[:, index] = torch.stack(new)
        return True
    if backend == "tensorflow":
        import tensorflow as tf

        value = sums.value
        if not isinstance(value, tf.Variable) or isinstance(
            value, tf.distribute.DistributedValues
        ):
            return False
        groups, size = int(value.shape[1]), int(value.shape[2])
        place = tf.stack([index // size, index % size], axis=-1)
        first, second = (
            tf.pad(place, [[0, 0], [1, 0]], constant_values=i) for i in (0, 1)
        )

        def read() -> tuple[Tensor, Tensor]:
            # XLA has no `gather_nd` of a variable: its value is read, which copies it,
            # unless there is one group.
            if groups > 1:
                whole = tf.convert_to_tensor(value)
                return tf.gather_nd(whole, first), tf.gather_nd(whole, second)
            found = tf.raw_ops.ResourceGather(
                resource=value.handle,
                indices=tf.broadcast_to(index, (2, 1, tf.size(index))),
                dtype=value.dtype,
                batch_dims=2,
            )
            return found[0, 0], found[1, 0]

        old, lost = read()
        value.scatter_nd_update(second, tf.zeros_like(rows))
        value.scatter_nd_add(second, rows)
        new, lost = add_exactly(old, lost, read()[1])
        value.scatter_nd_update(first, new)
        value.scatter_nd_update(second, lost)
        return True
    return False


def _numpy_cells(cells: Any, index: Any, rows: Any) -> None:
    """Adds rows (n, 2) to the exact sums in cells (2, m, 2) of PyTorch, whose
    operations take longer than NumPy's on few numbers.
    """
    old, lost = cells[0, index], cells[1, index]
    cells[1, index] = 0.0
    np.add.at(cells[1], index, rows)
    with np.errstate(invalid="ignore"):
        cells[0, index], cells[1, index] = add_exactly(old, lost, cells[1, index])


@functools.cache
def _jax_cells() -> Any:
    import jax

    def one_by_one(value: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        n, size = index.shape[0], value.shape[2]
        # The rows of a cell are added up first, as they are in a whole histogram.
        first = jax.numpy.argmax(index[:, None] == index, axis=1)
        rows = jax.ops.segment_sum(rows, first, n)

        def add(i: Tensor, value: Tensor) -> Tensor:
            place = (0, index[i] // size, index[i] % size, 0)
            old = jax.lax.dynamic_slice(value, place, (2, 1, 1, 2))
            new = jax.numpy.stack(add_exactly(old[0], old[1], rows[i]))
            return jax.lax.dynamic_update_slice(value, new, place)

        return jax.lax.fori_loop(0, n, add, value)

    def at_once(value: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        cells = value.reshape(2, -1, 2)
        old = cells[:, index]
        cells = cells.at[1, index].set(0.0).at[1, index].add(rows)
        new = add_exactly(old[0], old[1], cells[1, index])
        cells = cells.at[0, index].set(new[0]).at[1, index].set(new[1])
        return cells.reshape(value.shape)

    def added(value: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        if index.shape[0] > _FEW_ROWS:
            return at_once(value, index, rows)
        # XLA's scatter copies all cells on a CPU, where a loop takes 0.1 µs a row.
        return jax.lax.platform_dependent(
            value, index, rows, cpu=one_by_one, default=at_once
        )

    return jax.jit(added)
