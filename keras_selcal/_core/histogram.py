"""Sums over histograms of many cells, of which only a few blocks are looked at.

To walk through 2²⁰ cells at each step of `fit` would take longer than all else that a
metric does. The totals of blocks of cells tell which blocks hold what is looked for.
"""

import math
from typing import Any

from keras import ops

from keras_selcal._core.ops import TINY, Tensor, cumsum
from keras_selcal._core.ranking import at_most

# Cells that are added up at a time: rows of 32 numbers take less time than pairs.
_STEP = 16


class Histogram:
    """Sums of the mass and the value of cells, in blocks of √cells.

    Weights that add up to less than the number of samples are scaled up to it.

    Args:
        sums: variable of exact sums, of shape (2, groups, cells, 2).
        present: number of samples of each group, (groups,).
        descending: whether cells are taken from the last to the first.
    """

    def __init__(self, sums: Any, present: Tensor, *, descending: bool = False) -> None:
        # Read once: TensorFlow copies a variable that single cells are added to.
        cells = ops.convert_to_tensor(sums)
        size = int(cells.shape[2])
        self.groups, self.descending = int(cells.shape[1]), descending
        self.length = max(_STEP, 2 ** math.ceil(math.log2(size) / 2))
        self.blocks = math.ceil(size / self.length)
        missing = self.blocks * self.length - size
        if missing:
            cells = ops.pad(cells, [(0, 0), (0, 0), (0, missing), (0, 0)])
        self._rows = ops.reshape(
            cells, (2 * self.groups * self.blocks, 2 * self.length)
        )
        sums = ops.reshape(self._rows, (2 * self.groups * self.blocks, -1, 2 * _STEP))
        sums = ops.reshape(
            ops.sum(sums, axis=1), (2, self.groups, self.blocks, _STEP, 2)
        )
        sums = ops.sum(sums, axis=(0, 3))
        n = ops.sum(sums[..., 0], axis=-1)
        self._scale = ops.maximum(1.0, present / ops.maximum(n, TINY))[:, None, None]
        sums = ops.flip(sums, axis=1) if descending else sums
        # Mass and value of the blocks, (groups, blocks), and the mass of all.
        self.mass, self.value = ops.unstack(sums * self._scale, axis=-1)
        self.n = n * self._scale[:, 0, 0]

    def cells(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mass and value of the cells of blocks (groups, m), both
        (groups, m, length).
        """
        if self.descending:
            block = self.blocks - 1 - block
        start = ops.arange(2 * self.groups, dtype="int32") * self.blocks
        place = block + ops.reshape(start, (2, self.groups, 1))
        rows = ops.sum(ops.take(self._rows, place, axis=0), axis=0) * self._scale
        rows = ops.reshape(rows, (self.groups, -1, self.length, 2))
        rows = ops.flip(rows, axis=2) if self.descending else rows
        return rows[..., 0], rows[..., 1]

    def upto(self, cuts: Tensor) -> Tensor:
        """Returns the value of the first cells that have the mass of each cut,
        (groups, m). The cell at the cut counts in part.
        """
        ended = cumsum(self.mass)[:, None] < cuts[..., None]
        block = ops.sum(ops.cast(ended, "int32"), axis=-1)
        mass, value = self.cells(ops.minimum(block, self.blocks - 1))
        left = cuts - ops.sum(ops.where(ended, self.mass[:, None], 0.0), axis=-1)
        share = (left[..., None] - (cumsum(mass) - mass)) / ops.where(
            mass > 0, mass, 1.0
        )
        inside = ops.sum(ops.clip(share, 0.0, 1.0) * value, axis=-1)
        return inside + ops.sum(ops.where(ended, self.value[:, None], 0.0), axis=-1)

    def coverage_at(self, risk: float) -> Tensor:
        """Returns the largest share of the mass, of first cells whose mean value is at
        most r, (groups,); whole cells only. Like `Ranking.coverage_at`.
        """
        mass, value = cumsum(self.mass), cumsum(self.value)
        n, total = mass[:, -1], value[:, -1]
        mass_before, value_before = mass - self.mass, value - self.value
        # At the end of a block's cell, the value is at least that before the block,
        # and the mass at most that up to its end.
        may_hold = (self.mass > 0) & at_most(risk, value_before, mass)
        number = ops.arange(self.blocks, dtype="int32")

        def last(end: Tensor) -> Tensor:
            """Returns the last of the blocks before `end` to look at, or −1."""
            candidates = ops.where(may_hold & (number < end), number, -1)
            return ops.max(candidates, axis=-1, keepdims=True)

        def looked_at(block: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
            place = ops.maximum(block, 0)
            inside_mass, inside_value = self.cells(place)
            before = ops.take_along_axis(mass_before, place, axis=-1)[..., None]
            upto = before + cumsum(inside_mass)
            before = ops.take_along_axis(value_before, place, axis=-1)[..., None]
            kept = at_most(risk, before + cumsum(inside_value), upto)
            largest = ops.max(ops.where(kept, upto, 0.0), axis=-1)
            found = ops.where(block >= 0, largest, found)
            return ops.where(found > 0, -1, last(block)), found

        first = last(ops.full((self.groups, 1), self.blocks, dtype="int32"))
        _, found = ops.while_loop(
            lambda block, found: ops.any(block >= 0),
            looked_at,
            (first, ops.zeros_like(mass[:, :1])),
        )
        coverage = ops.minimum(found[:, 0] / ops.maximum(n, TINY), 1.0)
        return ops.where(total == total, coverage, float("nan"))
