"""Streaming metrics of a ranking by confidence: a histogram of the scores."""

from typing import Any

from keras_selcal import csf as csfs
from keras_selcal._backend.host import array_module, cast
from keras_selcal._backend.ops import TINY, Tensor
from keras_selcal._formulas.ranking import ROUNDED, Ranking
from keras_selcal._predictions.batch import Batch
from keras_selcal._validation import check_count
from keras_selcal.csf.score import squash
from keras_selcal.metrics.base import MOST_CELLS, ClassificationMetric


def to_cells(log_odds: Tensor, num_cells: int) -> Tensor:
    """Returns the histogram cells of log-odds ℓ: uniform in ℓ/(4 + |ℓ|).

    All of ℝ has a cell, and both ends of [0, 1] are resolved. NaN goes to cell 0.
    """
    xp = array_module(log_odds)
    position = (squash(log_odds, xp) + 1.0) * (num_cells / 2)
    position = xp.where(xp.equal(position, position), position, 0.0)
    return xp.clip(cast(position, "int32"), 0, num_cells - 1)


def rescaled(sums: Tensor, present: Tensor) -> Tensor:
    """Returns sums (groups, size, 2), the first of which is Σ w, by the rule of counts:
    weights that add up to less than the number of samples are scaled up to it.
    """
    xp = array_module(sums)
    # In this order XLA has a fast sum that needs no compilation.
    mass = xp.sum(sums, axis=-2)[..., 0]
    factor = xp.maximum(1.0, present / xp.maximum(mass, TINY))
    return sums * factor[:, None, None]


def ranking_of(sums: Tensor) -> Ranking:
    """Returns the ranking of mass and loss, (groups, cells, 2)."""
    return Ranking(sums[..., 0], sums[..., 1], array_module(sums), ROUNDED)


class RankingMetric(ClassificationMetric):
    """Base class of the metrics of a ranking by confidence, with the 0/1 loss.

    The state is a histogram of the score's log-odds ℓ, with cells uniform in
    ℓ/(4 + |ℓ|): those of a score near 0 or 1 are as narrow as those in the middle.
    Samples of a cell share their mean loss. Subclasses implement `of_ranking`.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        num_cells: cells of the histogram, for each label. None takes the class's
            `default_cells`, and fewer for so many labels that all would have more than
            2²⁴ cells.
        **options: see `ClassificationMetric`.
    """

    default_cells = 2**14
    row_wise = True

    def __init__(
        self, csf: Any = "msp", *, num_cells: int | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.csf = csfs.get(csf, from_logits=self.from_logits)
        if num_cells is not None:
            num_cells = check_count("num_cells", num_cells, least=2)
        self.num_cells = num_cells
        self.build_state()

    def create_state(self, groups: int) -> None:
        default = max(2, min(self.default_cells, MOST_CELLS // groups))
        self.size = default if self.num_cells is None else self.num_cells
        self._histogram = self.add_sums("histogram", (groups, self.size, 2))
        self._present = self.add_sums("present", (groups,))

    def update(self, batch: Batch, w: Tensor) -> None:
        loss = 1.0 - batch.top_label()[1]
        cells = to_cells(batch.log_odds(self.csf), self.size)
        rows = batch.xp.stack([w, w * loss], axis=-1)
        self.accumulate_rows(self._histogram, rows, cells, self._present)

    def ranking(self) -> Ranking:
        """Returns the cells as groups of equal rank, (groups, cells)."""
        histogram = rescaled(self.total(self._histogram), self.total(self._present))
        return ranking_of(histogram)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        """Returns the metric of each ranking, (groups,)."""
        raise NotImplementedError

    def compute(self) -> tuple[Tensor, Tensor]:
        return self.of_ranking(self.ranking()), self.total(self._present)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "num_cells": self.num_cells,
        }
