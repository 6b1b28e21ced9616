"""The Brier score as a streaming metric."""

from typing import Any

import numpy as np
from keras.backend import backend

from keras_selcal._backend.host import array_module, cast
from keras_selcal._backend.ops import TINY, Tensor
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal.losses.base import brier
from keras_selcal.metrics.base import ClassificationMetric


@serializable
class BrierScore(ClassificationMetric):
    """Brier score, summed over classes.

    Formula:

    ```
    BS = (1/n) Σ_i Σ_c (p_{i,c} − y_{i,c})²      ∈ [0, 2]
    ```

    One sigmoid unit has two classes as well: its score is 2 (p − y)², twice what
    scikit-learn's `brier_score_loss` gives.

    Args:
        **options: `from_logits`, `multi_label`, `ignore_class`, `axis` and others, see
            `ClassificationMetric`.

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

    def __init__(self, *, name: str | None = "brier", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.build_state()

    def create_state(self, groups: int) -> None:
        self._sums = self.add_sums("sums", (groups, 2))

    def update(self, batch: Batch, w: Tensor) -> None:
        xp = batch.xp
        rows = xp.stack([w, w * brier(batch)], axis=-1)
        if xp is np or backend() == "tensorflow":
            # They add row after row, which loses digits in float32.
            rows = cast(rows, "float64")
        sums = xp.sum(xp.reshape(rows, (-1, int(self.groups or 1), 2)), axis=0)
        self.accumulate(self._sums, sums)

    def compute(self) -> tuple[Tensor, Tensor]:
        sums = self.total(self._sums)
        mass, score = sums[:, 0], sums[:, 1]
        return score / array_module(mass).maximum(mass, TINY), mass
