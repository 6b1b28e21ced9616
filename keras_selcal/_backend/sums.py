"""Exact sums: variables of pairs of floats, the second of which holds what the first
has rounded off.
"""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.stateless_scope import in_stateless_scope

from keras_selcal._backend.host import array_module, memory_of
from keras_selcal._backend.ops import Tensor, segment_sum

# Rows that a loop adds in any case; see `add_in_loop`.
_FEW_ROWS = 2**8


def add_exactly(old: Tensor, lost: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns old + lost + values as a float and what it has rounded off, by Knuth's
    exact sum of two floats.
    """
    new = old + values
    added = new - old
    lost = lost + ((old - (new - added)) + (values - added))
    first = new + lost
    return first, lost - (first - new)


def _memory(sums: Any, values: Any) -> Any:
    """Returns the memory of a variable that NumPy values can be added to, or None."""
    return memory_of(sums) if array_module(values) is np else None


def add_to_sums(sums: Any, values: Any) -> None:
    """Adds values to a variable of exact sums, which holds pairs of floats."""
    memory = _memory(sums, values)
    if memory is not None:
        _add_on_host(memory, slice(None), values)
        return
    values = ops.cast(values, sums.dtype)
    sums.assign(ops.stack(add_exactly(sums[0], sums[1], values)))


def _add_on_host(pairs: Any, at: Any, values: Any) -> None:
    """Adds values to exact sums, (2, ...), some of them for an index of the others."""
    first, second = pairs[0, at], pairs[1, at]
    if pairs.dtype == np.float64:
        pairs[0, at], pairs[1, at] = add_exactly(first, second, values)
        return
    # 53 bits of a float64 hold the 48 of two float32.
    total = first.astype("float64") + second + values
    first = total.astype("float32")
    pairs[0, at], pairs[1, at] = first, total - first


def add_in_loop(sums: Any, index: Tensor, rows: Tensor, present: Any = None) -> bool:
    """Adds rows (n, 2) to the cells at `index`, (n,), of a variable of exact sums, of
    shape (2, groups, cells, 2), and the number of rows whose first entry is above 0 to
    `present`, of shape (2, groups).

    Returns whether that is worth it: on JAX, for so few rows that a sum over all cells
    takes longer, or that it takes longer to compile. A loop takes 0.04 µs a row, and is
    compiled in the time of two of the many operations that it stands for.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    most = max(_FEW_ROWS, sums.shape[1] * sums.shape[2] // 4)
    # A GPU would run the loop step by step.
    if index.shape[0] > most or jax.default_backend() != "cpu":
        return False
    variables = [sums] if present is None else [sums, present]
    values = _jax_loop()([variable.value for variable in variables], index, rows)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return True


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

        memory = _memory(sums, rows)
        if memory is not None:
            _add_rows_on_host(memory.reshape(2, -1, 2), index, rows)
            return True
        index, rows = ops.convert_to_tensor(index), ops.convert_to_tensor(rows)
        with torch.no_grad():
            index, cells = index.long(), sums.value.view(2, -1, 2)
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


def _add_rows_on_host(cells: Any, index: Any, rows: Any) -> None:
    """Adds rows (n, 2) to the exact sums in cells (2, m, 2)."""
    index, place = np.unique(index, return_inverse=True)
    _add_on_host(cells, index, segment_sum(rows, place, len(index)))


@functools.cache
def _jax_loop() -> Any:
    import jax
    from jax import lax

    def added(state: list[Tensor], index: Tensor, rows: Tensor) -> list[Tensor]:
        size, bits = state[0].shape[2], f"int{8 * rows.dtype.itemsize}"
        # In one array, all columns are computed by one kernel.
        table = lax.bitcast_convert_type(rows, bits)
        table = lax.concatenate([table, index.astype(bits)[:, None]], 1)

        def add(i: Tensor, state: list[Tensor]) -> list[Tensor]:
            # Of one type, with 64-bit integers switched on, too.
            i, zero = i.astype("int32"), np.int32(0)
            row = lax.dynamic_slice(table, (i, zero), (1, 3))
            cell, row = row[0, 2], lax.bitcast_convert_type(row[:, :2], rows.dtype)
            cell = cell.astype("int32")
            group, cell = (f(cell, np.int32(size)) for f in (lax.div, lax.rem))
            counts = (row[0, :1] > 0).astype(rows.dtype)
            places = (zero, group, cell, zero), (zero, group)
            return list(map(add_at, state, places, (row[None], counts)))

        return lax.fori_loop(0, index.shape[0], add, state)

    def add_at(sums: Tensor, place: tuple[Any, ...], values: Tensor) -> Tensor:
        old = lax.dynamic_slice(sums, place, (2, *values.shape))
        new = add_exactly(old[0], old[1], values)
        new = lax.concatenate([part[None] for part in new], 0)
        return lax.dynamic_update_slice(sums, new, place)

    return jax.jit(added, inline=True)


@functools.cache
def _jax_cells() -> Any:
    import jax

    def added(value: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        cells = value.reshape(2, -1, 2)
        old = cells[:, index]
        cells = cells.at[1, index].set(0.0).at[1, index].add(rows)
        new = add_exactly(old[0], old[1], cells[1, index])
        cells = cells.at[0, index].set(new[0]).at[1, index].set(new[1])
        return cells.reshape(value.shape)

    return jax.jit(added)


def walks(cells: Tensor) -> bool:
    """Returns whether `value_upto` is of use: on JAX with a CPU, where XLA compiles a
    loop over single numbers in the time of three of the many operations it replaces.
    """
    if isinstance(cells, np.ndarray) or keras.backend.backend() != "jax":
        return False
    import jax

    return bool(jax.default_backend() == "cpu")


def value_upto(cells: Tensor, blocks: Tensor, cuts: Tensor, descending: bool) -> Tensor:
    """Returns the value of the first cells that have the mass of each cut, (groups, m);
    the cell at the cut counts in part.

    Walks through the blocks up to the cut, and through the cells of the last one.

    Args:
        cells: exact sums of mass and value, (2, groups, cells, 2).
        blocks: mass and value of blocks of as many cells, (groups, blocks, 2).
        cuts: masses, (groups, m).
        descending: whether cells are taken from the last to the first.
    """
    return _jax_walk()(cells, blocks, cuts, descending)


@functools.cache
def _jax_walk() -> Any:
    import jax
    from jax import lax

    def upto(cells: Tensor, blocks: Tensor, cuts: Tensor, descending: bool) -> Tensor:
        num_blocks, m = blocks.shape[1], cuts.shape[1]
        length = cells.shape[2] // num_blocks

        def block(group: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            b = num_blocks - 1 - b if descending else b
            here = lax.dynamic_slice(blocks, (group, b, np.int32(0)), (1, 1, 2))
            return here[0, 0, 0], here[0, 0, 1]

        def cell(group: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            c = cells.shape[2] - 1 - c if descending else c
            place = np.int32(0), group, c, np.int32(0)
            here = lax.dynamic_slice(cells, place, (2, 1, 1, 2))[:, 0, 0]
            return here[0, 0] + here[1, 0], here[0, 1] + here[1, 1]

        def walk(part: Any, group: Tensor, cut: Tensor, last: Any, start: Any) -> Any:
            """Returns the place of the cut, and mass and value of what is before."""

            def before_cut(state: tuple[Tensor, ...]) -> Tensor:
                at, mass, _ = state
                return (at < last) & (mass + part(group, at)[0] < cut)

            def onward(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
                at, mass, value = state
                more = part(group, at)
                return at + 1, mass + more[0], value + more[1]

            return lax.while_loop(before_cut, onward, start)

        def of_cut(i: Tensor, found: Tensor) -> Tensor:
            i = i.astype("int32")
            group, place = lax.div(i, np.int32(m)), lax.rem(i, np.int32(m))
            cut = lax.dynamic_slice(cuts, (group, place), (1, 1))[0, 0]
            zero = cells.dtype.type(0)
            start = np.int32(0), zero, zero
            b, *sums = walk(block, group, cut, num_blocks - 1, start)
            first, last = b * length, (b + 1) * length - 1
            c, mass, value = walk(cell, group, cut, last, (first, *sums))
            inside, gain = cell(group, c)
            share = (cut - mass) / lax.select(inside > 0, inside, zero + 1)
            value = value + lax.clamp(zero, share, zero + 1) * gain
            return lax.dynamic_update_slice(found, value.reshape(1, 1), (group, place))

        return lax.fori_loop(0, cuts.size, of_cut, cuts)

    return jax.jit(upto, static_argnums=3, inline=True)
