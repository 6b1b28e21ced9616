"""Streaming metrics of a ranking by confidence: a histogram of the scores."""

from typing import Any

from keras import ops

from keras_selcal import csf as csfs
from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import (
    TINY,
    at_least,
    at_most,
    floor,
    zero_unless,
)
from keras_selcal._formulas.ranking import ROUNDED, Ranking
from keras_selcal._predictions.batch import Batch
from keras_selcal._validation import check_count
from keras_selcal.csf.score import squash
from keras_selcal.metrics.base import MOST_CELLS, NUM_CELLS, ClassificationMetric


def to_cells(log_odds: Tensor, num_cells: int) -> Tensor:
    """Returns the histogram cells of log-odds ℓ as floats: uniform in ℓ/(4 + |ℓ|).

    All of ℝ has a cell, and both ends of [0, 1] are resolved. NaN goes to cell 0.
    """
    position = (squash(log_odds, ops) + 1.0) * (num_cells / 2)
    position = zero_unless(position >= 0, position, ops)
    return at_most(floor(position, ops), num_cells - 1.0, ops)


def cells_of(num_cells: int | None, num_parts: int, least: int = 2) -> int:
    """Returns the number of cells of each of `num_parts` histograms."""
    if num_cells is not None:
        return num_cells
    return max(least, min(NUM_CELLS, MOST_CELLS // num_parts))


def rescaled(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sums (num_parts, size, 3) of w, w·x and 1 by the rule of counts (weights
    that add up to less than the number of samples are scaled up to it), and the number
    of samples, (num_parts,).
    """
    total = ops.sum(sums, axis=1)
    mass, present = total[:, 0], total[:, 2]
    factor = at_least(present / at_least(mass, TINY, ops), 1.0, ops)
    return sums * factor[:, None, None], present


def weighted(w: Tensor, x: Tensor) -> list[Tensor]:
    """Returns the columns of a histogram: w, w·x, and whether a row counts."""
    return [w, w * x, ops.cast(w > 0, w.dtype)]


def ranking_of(sums: Tensor) -> Ranking:
    """Returns the ranking of mass and loss, (num_parts, cells, 3)."""
    return Ranking(sums[..., 0], sums[..., 1], ops, ROUNDED)


class RankingMetric(ClassificationMetric):
    """Base class of the metrics of a ranking by confidence, with the 0/1 loss.

    The state is a histogram of the score's log-odds ℓ, with cells uniform in
    ℓ/(4 + |ℓ|), which resolve scores near 0 and 1 as well as scores in the middle.
    Samples of a cell share their mean loss: the result is the exact metric of scores
    that are rounded to their cells, and approximate, like `keras.metrics.AUC`.
    `docs/metrics.md` has the errors on real networks. They are larger where nearly all
    scores lie close together, as in an untrained network: near ℓ, a cell is
    (4 + |ℓ|)²/(2 num_cells) wide. Subclasses implement `of_ranking`.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )
        self.csf = csfs.get(csf, from_logits=self.from_logits)
        if num_cells is not None:
            num_cells = check_count("num_cells", num_cells, least=2)
        self.num_cells = num_cells
        self.build_state()

    def create_state(self, num_parts: int) -> None:
        self.size = cells_of(self.num_cells, num_parts)
        self._histogram = self.add_sums("histogram", (num_parts, self.size, 3))

    def update(self, batch: Batch, w: Tensor) -> None:
        cells = to_cells(batch.log_odds(self.csf), self.size)
        columns = weighted(w, 1.0 - batch.correct)
        self.accumulate(self._histogram, self.histogram(cells, columns, self.size))

    def of_ranking(self, ranking: Ranking) -> Tensor:
        """Returns the metric of each ranking, (num_parts,)."""
        raise NotImplementedError

    def compute(self) -> tuple[Tensor, Tensor]:
        sums, present = rescaled(self.total(self._histogram))
        return self.of_ranking(ranking_of(sums)), present

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "num_cells": self.num_cells,
        }
