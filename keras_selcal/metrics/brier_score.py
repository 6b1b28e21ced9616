"""The Brier score as a streaming metric."""

from typing import Any

from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import TINY, at_least
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
        self,
        *,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "brier",
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
        self.build_state()

    def create_state(self, num_parts: int) -> None:
        self._sums = self.add_sums("sums", (num_parts, 2))

    def update(self, batch: Batch, w: Tensor) -> None:
        rows = ops.stack([w, w * brier(batch)])
        rows = ops.reshape(rows, (2, -1, int(self.num_parts or 1)))
        # Along the last axis, TensorFlow's sums lose fewer digits.
        rows = ops.transpose(rows, (2, 0, 1))
        self.accumulate(self._sums, ops.sum(rows, axis=-1))

    def compute(self) -> tuple[Tensor, Tensor]:
        sums = self.total(self._sums)
        mass, score = sums[:, 0], sums[:, 1]
        return score / at_least(mass, TINY, ops), mass
