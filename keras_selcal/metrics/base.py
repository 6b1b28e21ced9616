"""What the metrics share: samples that count, sums that stay exact, merging."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
from keras import ops

from keras_selcal import csf as csfs
from keras_selcal._core.batch import Batch
from keras_selcal._core.ops import TINY, Tensor, segment_sum
from keras_selcal._core.ranking import Ranking
from keras_selcal._core.validation import check_count, refuse

# Log-odds within ±SCALE share the middle half of a histogram's cells.
SCALE = 4.0

# Samples, and entries of predictions, that are added to a state at a time: float32
# sums of as many are exact for counts, and what is computed on the way stays small.
_MOST_ROWS = 2**20
_MOST_ENTRIES = 2**22


class ClassificationMetric(keras.metrics.Metric):
    """Base of the metrics: predictions (..., k), labels of any form, fixed-size state.

    Subclasses create their state with `add_sums` and implement `update(batch, w)` and
    `result`. Samples of weight 0, masked ones among them, leave no trace.

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        name: name of the metric.
        dtype: dtype of the metric. The state is kept in float32, or float64 if that
            is the dtype.
    """

    def __init__(
        self, from_logits: bool = False, name: str | None = None, dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = bool(from_logits)

    @property
    def state_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    def add_sums(self, name: str, shape: tuple[int, ...]) -> Any:
        """Creates the state of an array of sums.

        Each is a pair of floats, the second of which holds what the first has rounded
        off: a float32 alone would stop counting at 2²⁴.
        """
        return self.add_variable(
            shape=(2, *shape), initializer="zeros", dtype=self.state_dtype, name=name
        )

    @staticmethod
    def accumulate(sums: Any, values: Tensor) -> None:
        """Adds values to an array of sums, by Knuth's exact sum of two floats.

        What is rounded off stays below the last digit of the first float, so that
        both together count exactly to 2⁴⁸.
        """
        old, lost = sums[0], sums[1]
        values = ops.cast(values, sums.dtype)
        new = old + values
        added = new - old
        lost = lost + ((old - (new - added)) + (values - added))
        first = new + lost
        sums.assign(ops.stack([first, lost - (first - new)]))

    @staticmethod
    def total(sums: Any) -> Tensor:
        """Returns the values of an array of sums."""
        return sums[0] + sums[1]

    def update(self, batch: Batch, w: Tensor) -> None:
        """Adds a batch, with weights (n,), to the state."""
        raise NotImplementedError

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds samples to the state.

        Args:
            y_true: class indices (...) or (..., 1), or distributions (..., k).
            y_pred: probabilities or logits, (..., k).
            sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals
                two copies, weight 0 none.
        """
        batch = Batch.of(y_true, y_pred, self.from_logits, sample_weight)
        batch = replace(batch, y_pred=ops.stop_gradient(batch.y_pred))
        for part in parts(batch):
            w = part.sample_weight
            self.update(part, ops.ones_like(part.y_pred[:, 0]) if w is None else w)

    def merge_state(self, metrics: Any) -> None:
        """Adds the states of other metrics: as if this one had seen all their data.

        Args:
            metrics: metrics of the same class and configuration.
        """
        for other in metrics:
            mine, theirs = self.get_config(), other.get_config()
            if type(other) is not type(self) or any(
                mine[key] != theirs[key] for key in mine if key != "name"
            ):
                refuse("metrics", metrics, f"metrics like {self!r} with {mine}")
            for sums, others in zip(self.variables, other.variables, strict=True):
                for part in (others[0], others[1]):
                    self.accumulate(sums, part)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return {**config, "from_logits": self.from_logits}


def parts(batch: Batch) -> Iterator[Batch]:
    """Yields a batch in parts of bounded size, or whole where its size is unknown."""
    n, w = batch.y_pred.shape[0], batch.sample_weight
    most = max(1, min(_MOST_ROWS, _MOST_ENTRIES // batch.num_classes))
    if n is None or n <= most:
        yield batch
        return
    for start in range(0, n, most):
        rows = slice(start, min(start + most, n))
        yield replace(
            batch,
            y_pred=batch.y_pred[rows],
            labels=batch.labels[rows],
            sample_weight=None if w is None else w[rows],
        )


def top_label(batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the predicted class's probability and its label mass, both (n,).

    The mass is NaN where a row is not valid.
    """
    top = batch.predicted()
    if batch.threshold == 0.5:
        largest = ops.amax(batch.y_pred, axis=-1)
    else:
        largest = ops.take_along_axis(batch.y_pred, top, axis=-1)[:, 0]
    if batch.sparse:
        correct = ops.cast(top == ops.cast(batch.labels, top.dtype), largest.dtype)
    else:
        correct = ops.take_along_axis(batch.labels, top, axis=-1)
    return batch.as_p(largest), ops.where(batch.valid, correct[:, 0], math.nan)


def to_cells(log_odds: Tensor, num_cells: int) -> Tensor:
    """Returns the histogram cells of log-odds ℓ: uniform in ℓ/(SCALE + |ℓ|).

    All of ℝ has a cell, and both ends of [0, 1] are resolved. NaN goes to cell 0.
    """
    squashed = log_odds / (SCALE + ops.abs(log_odds))
    position = (squashed + 1.0) * (num_cells / 2)
    position = ops.where(ops.equal(position, position), position, 0.0)
    return ops.clip(ops.cast(position, "int32"), 0, num_cells - 1)


def score_log_odds(batch: Batch, csf: csfs.ConfidenceScore) -> Tensor:
    """Returns the log-odds of the confidence scores, (n,)."""
    if batch.in_logs:
        return csf.log_odds_from_log_probabilities(batch.y_pred)
    return csf.log_odds(batch.y_pred)


class RankingMetric(ClassificationMetric):
    """Base of the metrics of a ranking by confidence, with the 0/1 loss.

    The state is a histogram of the score's log-odds ℓ, with cells uniform in
    ℓ/(4 + |ℓ|): those of a score near 0 or 1 are as narrow as those in the middle.
    Samples of a cell share their mean loss.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: number of cells.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        name: name of the metric.
        dtype: dtype of the metric.
    """

    def __init__(
        self,
        csf: Any = "msp",
        num_cells: int = 2**14,
        from_logits: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(from_logits, name, dtype)
        self.csf = csfs.get(csf)
        self.num_cells = check_count("num_cells", num_cells, least=2)
        self._histogram = self.add_sums("histogram", (self.num_cells, 2))
        self._present = self.add_sums("present", ())

    def update(self, batch: Batch, w: Tensor) -> None:
        loss = 1.0 - top_label(batch)[1]
        cells = to_cells(score_log_odds(batch, self.csf), self.num_cells)
        rows = ops.stack([w, w * loss], axis=-1)
        sums = segment_sum(rows, cells, self.num_cells)
        self.accumulate(self._histogram, sums)
        self.accumulate(self._present, ops.sum(ops.cast(w > 0, w.dtype)))

    def ranking(self) -> Ranking:
        """Returns the cells as groups of equal rank."""
        histogram = rescaled(self.total(self._histogram), self.total(self._present))
        return Ranking(histogram[:, 0], histogram[:, 1], ops)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "num_cells": self.num_cells,
        }


def rescaled(sums: Tensor, present: Tensor) -> Tensor:
    """Returns sums of which the first in the last axis is Σ w, by the rule of counts:
    weights that add up to less than the number of samples are scaled up to it.
    """
    mass = ops.sum(ops.reshape(sums[..., 0], (-1, sums.shape[-2]))[0])
    return sums * ops.maximum(1.0, present / ops.maximum(mass, TINY))
