"""Sums over histograms of many cells, of which only a few blocks are looked at.

To walk through 2²⁰ cells at each step of `fit` would take longer than all else that a
metric does. The totals of blocks of cells tell which blocks hold what is looked for.
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_selcal._backend.host import array_module, cast
from keras_selcal._backend.ops import TINY, Tensor, cumsum
from keras_selcal._backend.sums import value_upto, walks
from keras_selcal._formulas.ranking import ROUNDED, at_most

# Cells that are added up at a time: rows of 32 numbers take less time than pairs.
_STEP = 16


class Histogram:
    """Sums of the mass and the value of cells, in blocks of √cells.

    Weights that add up to less than the number of samples are scaled up to it.

    Args:
        cells: exact sums of mass and value, (2, groups, cells, 2).
        present: number of samples of each group, (groups,).
        descending: whether cells are taken from the last to the first.
    """

    def __init__(
        self, cells: Any, present: Tensor, *, descending: bool = False
    ) -> None:
        self.xp = xp = array_module(cells)
        size = int(cells.shape[2])
        self.groups, self.descending = int(cells.shape[1]), descending
        self.length = max(_STEP, 2 ** math.ceil(math.log2(size) / 2))
        self.blocks = math.ceil(size / self.length)
        missing = self.blocks * self.length - size
        if missing:
            cells = xp.pad(cells, [(0, 0), (0, 0), (0, missing), (0, 0)])
        self._cells = cells
        sums = xp.reshape(cells, (2 * self.groups * self.blocks, -1, 2 * _STEP))
        sums = xp.sum(sums, axis=1)
        sums = xp.reshape(sums, (2, self.groups, self.blocks, _STEP, 2))
        # Mass and value of the blocks, (groups, blocks, 2), in the order of the cells.
        self._sums = xp.sum(sums, axis=(0, 3))
        # In this order XLA has a fast sum that needs no compilation.
        n = xp.sum(self._sums, axis=1)[..., 0]
        self._scale = xp.maximum(1.0, present / xp.maximum(n, TINY))[:, None, None]
        # The mass of all.
        self.n = n * self._scale[:, 0, 0]

    def _of_blocks(self) -> tuple[Tensor, Tensor]:
        """Returns mass and value of the blocks, (groups, blocks)."""
        sums = self._sums * self._scale
        sums = self.xp.flip(sums, axis=1) if self.descending else sums
        return sums[..., 0], sums[..., 1]

    def cells(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mass and value of the cells of blocks (groups, m), both
        (groups, m, length).
        """
        xp = self.xp
        if self.descending:
            block = self.blocks - 1 - block
        start = xp.arange(2 * self.groups, dtype="int32") * self.blocks
        place = block + xp.reshape(start, (2, self.groups, 1))
        rows = xp.reshape(self._cells, (2 * self.groups * self.blocks, -1))
        rows = xp.sum(xp.take(rows, place, axis=0), axis=0) * self._scale
        rows = xp.reshape(rows, (self.groups, -1, self.length, 2))
        rows = xp.flip(rows, axis=2) if self.descending else rows
        return rows[..., 0], rows[..., 1]

    def upto(self, cuts: Tensor) -> Tensor:
        """Returns the value of the first cells that have the mass of each cut,
        (groups, m). The cell at the cut counts in part.
        """
        if walks(self._cells):
            scale = self._scale[:, 0]
            cuts = cuts / scale
            return scale * value_upto(self._cells, self._sums, cuts, self.descending)
        xp = self.xp
        block_mass, block_value = self._of_blocks()
        ended = cumsum(block_mass)[:, None] < cuts[..., None]
        block = xp.sum(cast(ended, "int32"), axis=-1)
        mass, value = self.cells(xp.minimum(block, self.blocks - 1))
        left = cuts - xp.sum(xp.where(ended, block_mass[:, None], 0.0), axis=-1)
        share = (left[..., None] - (cumsum(mass) - mass)) / xp.where(
            mass > 0, mass, 1.0
        )
        inside = xp.sum(xp.clip(share, 0.0, 1.0) * value, axis=-1)
        return inside + xp.sum(xp.where(ended, block_value[:, None], 0.0), axis=-1)

    def coverage_at(self, risk: float) -> Tensor:
        """Returns the largest share of the mass, of first cells whose mean value is at
        most r, (groups,); whole cells only. Like `Ranking.coverage_at`.
        """
        xp = self.xp
        block_mass, block_value = self._of_blocks()
        mass, value = cumsum(block_mass), cumsum(block_value)
        n, total = mass[:, -1], value[:, -1]
        mass_before, value_before = mass - block_mass, value - block_value
        # At the end of a block's cell, the value is at least that before the block,
        # and the mass at most that up to its end.
        may_hold = (block_mass > 0) & at_most(risk, value_before, mass, ROUNDED)
        number = xp.arange(self.blocks, dtype="int32")

        def last(end: Tensor) -> Tensor:
            """Returns the last of the blocks before `end` to look at, or −1."""
            candidates = xp.where(may_hold & (number < end), number, -1)
            return xp.amax(candidates, axis=-1, keepdims=True)

        def looked_at(block: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
            place = xp.maximum(block, 0)
            inside_mass, inside_value = self.cells(place)
            before = xp.take_along_axis(mass_before, place, axis=-1)[..., None]
            upto = before + cumsum(inside_mass)
            before = xp.take_along_axis(value_before, place, axis=-1)[..., None]
            inside = before + cumsum(inside_value)
            kept = at_most(risk, inside, upto, ROUNDED)
            largest = xp.amax(xp.where(kept, upto, 0.0), axis=-1)
            found = xp.where(block >= 0, largest, found)
            return xp.where(found > 0, -1, last(block)), found

        first = last(xp.full((self.groups, 1), self.blocks, dtype="int32"))
        _, found = _while_loop(
            lambda block, found: xp.any(block >= 0),
            looked_at,
            first,
            xp.zeros_like(mass[:, :1]),
        )
        coverage = xp.minimum(found[:, 0] / xp.maximum(n, TINY), 1.0)
        return xp.where(total == total, coverage, float("nan"))


def _while_loop(
    goes_on: Callable[..., Tensor], step: Callable[..., Any], *state: Tensor
) -> Any:
    """Returns the state after the last step, for arrays or tensors."""
    if array_module(state[0]) is ops:
        return ops.while_loop(goes_on, step, state)
    while goes_on(*state):
        state = step(*state)
    return state
