"""The Brier score as a streaming metric."""

from typing import Any

from keras import ops

from keras_selcal._core.batch import Batch
from keras_selcal._core.ops import TINY, Tensor
from keras_selcal._core.saving import serializable
from keras_selcal.losses.base import brier
from keras_selcal.metrics.base import ClassificationMetric


@serializable
class BrierScore(ClassificationMetric):
    """Brier score, summed over classes.

    Formula:

    ```
    BS = (1/n) Σ_i Σ_c (p_{i,c} − y_{i,c})²      ∈ [0, 2]
    ```

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        name: name of the metric.
        dtype: dtype of the metric.

    Example:
    >>> import numpy as np
    >>> metric = BrierScore()
    >>> metric.update_state(np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> round(float(metric.result()), 4)
    0.37

    References:
    - Brier, [Verification of Forecasts Expressed in Terms of
      Probability](https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2)
    """

    def __init__(
        self, from_logits: bool = False, name: str | None = "brier", dtype: Any = None
    ) -> None:
        super().__init__(from_logits, name, dtype)
        self._sums = self.add_sums("sums", (2,))

    def update(self, batch: Batch, w: Tensor) -> None:
        scores = batch.expectation(brier(batch))
        self.accumulate(self._sums, ops.stack([ops.sum(w), ops.sum(w * scores)]))

    def result(self) -> Tensor:
        mass, score = ops.unstack(self.total(self._sums))
        return score / ops.maximum(mass, TINY)
