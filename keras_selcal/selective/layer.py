"""The layer that calibrates, scores and decides in a saved selective classifier."""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import constant
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import serializable
from keras_selcal.calibrators.layer import CalibrationLayer
from keras_selcal.selective.base import AnswerLayer, broadcast_mask
from keras_selcal.selective.record import ABSTAINED, FitRecord

OPTIONS = ("from_logits", "multi_label", "ignore_class", "axis", "decision_threshold")


@serializable
class SelectionLayer(AnswerLayer):
    """Calibrates, scores and decides: the last layer of a saved selective classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `confidence`
    (...), `accepted` (...) and `labels` (...), the last −1 where not accepted. One
    sigmoid unit has probabilities (..., 2). With `multi_label=True` the other three
    have the labels in their last axis. Masked samples are not accepted.

    The arguments are those of `SelectiveClassifier`, with a `CalibrationLayer` for the
    calibrator, and what `fit` finds: `threshold`, one for each label with
    `multi_label=True`, and the `FitRecord`. The threshold is a weight that is not
    trained, so that `save_weights` and `load_weights` keep it; the record is none.
    """

    record_class = FitRecord

    def __init__(
        self,
        calibration: CalibrationLayer | None = None,
        csf: Any = "msp",
        *,
        threshold: Any = -math.inf,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        record: FitRecord | None = None,
        **kwargs: Any,
    ) -> None:
        outputs = Outputs(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
        )
        super().__init__(calibration, outputs, record, **kwargs)
        self.csf = csf_module.get(csf, from_logits=from_logits)
        self._threshold = self.add_weight(
            name="threshold",
            shape=np.shape(threshold),
            initializer="zeros",
            trainable=False,
        )
        self._threshold.assign(threshold)

    @property
    def threshold(self) -> Any:
        """The threshold, a float, or (k,) with `multi_label=True`."""
        values = ops.convert_to_numpy(self._threshold).astype("float64")
        return values if values.ndim else float(values)

    def load_own_variables(self, store: Any) -> None:
        # Files of older versions have the threshold in the configuration only.
        if len(store.keys()):
            super().load_own_variables(store)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        answer = self.answer(inputs)
        threshold = ops.convert_to_tensor(self._threshold)
        accepted = answer["accepted"] & (answer["confidence"] >= threshold)
        if mask is not None:
            accepted = accepted & broadcast_mask(mask, accepted)
        labels = answer["labels"]
        labels = ops.where(accepted, labels, constant(ABSTAINED, labels, ops))
        return {**answer, "accepted": accepted, "labels": labels}

    def answer(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the same before the threshold: every sample keeps its label.

        `accepted` is what the calibrator answers.
        """
        self.csf.check_classes(self.outputs.rows_of(tuple(inputs.shape))[0])
        columns, p, accepted = self.calibrated(inputs)
        labels = self.decided(columns, p, accepted)
        return {
            "probabilities": self.outputs.restored(p, ops),
            "confidence": self._confidence(columns, p),
            "accepted": accepted,
            "labels": labels,
        }

    def _confidence(self, columns: Tensor, p: Tensor) -> Tensor:
        """Returns the score of the probabilities, or of the model's own logits."""
        # NaN, which is not accepted, where there are no probabilities.
        nowhere = 0.0 * ops.sum(p, axis=-1)
        if self.csf.needs != "logits":
            return self.csf(self._centred(p)) + nowhere
        d = self.outputs.decision_threshold
        if d != 0.5:
            shifted = columns[..., 0] + math.log(d), columns[..., 1] + math.log(1 - d)
            columns = ops.stack(shifted, axis=-1)
        return self.csf(columns) + nowhere

    def _centred(self, p: Tensor) -> Tensor:
        """Returns probabilities whose odds are those at the decision threshold d, so
        that confidence is lowest there: p (1 − d) against (1 − p) d.
        """
        d = self.outputs.decision_threshold
        if d == 0.5:
            return p
        odds = ops.stack([d * p[..., 0], (1 - d) * p[..., 1]], axis=-1)
        return odds / ops.sum(odds, axis=-1, keepdims=True)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "threshold": np.asarray(self.threshold, "float64").tolist(),
            **self.outputs.config(*OPTIONS),
        }
