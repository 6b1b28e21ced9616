"""The layer that calibrates, scores and decides in a saved selective classifier."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._core.ops import Tensor
from keras_selcal._core.outputs import Outputs, two_columns
from keras_selcal._core.saving import serializable
from keras_selcal.calibrators import CalibrationLayer
from keras_selcal.selective.record import FitRecord

ABSTAINED = -1
"""The label of a sample that gets no answer."""

OPTIONS = ("from_logits", "multi_label", "ignore_class", "axis", "decision_threshold")


@serializable
class SelectionLayer(keras.layers.Layer):
    """Calibrates, scores and decides: the last layer of a saved selective classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `confidence`
    (...), `accepted` (...) and `labels` (...), the last −1 where not accepted. One
    sigmoid unit has probabilities (..., 2). With `multi_label=True` the other three
    have the labels in their last axis. Masked samples are not accepted.

    Args:
        calibration: a `CalibrationLayer`, or None.
        csf: confidence score function.
        threshold: the confidence from which on samples are accepted; with
            `multi_label=True` one for each label.
        from_logits: whether the model gives logits.
        multi_label: whether the outputs are k independent sigmoids.
        ignore_class: the label of samples that `SelectiveClassifier` leaves out.
        axis: axis of the classes: -1, or 1 for channels first.
        decision_threshold: the answer of a sigmoid is 1 if its probability is above
            this.
        record: the `FitRecord` of the classifier, or None.
        **kwargs: of `keras.layers.Layer`.
    """

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
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.calibration = calibration
        self.csf = csf_module.get(csf)
        self.threshold = threshold
        self.outputs = Outputs(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
        )
        self.record = record
        self.supports_masking = True
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        answer = self.answer(inputs)
        threshold = ops.convert_to_tensor(np.asarray(self.threshold, "float32"))
        accepted = answer["accepted"] & (answer["confidence"] >= threshold)
        if mask is not None:
            missing = len(accepted.shape) - len(mask.shape)
            shape = (*ops.shape(mask), *(1,) * missing)
            accepted = accepted & ops.cast(ops.reshape(mask, shape), "bool")
        labels = ops.where(accepted, answer["labels"], ABSTAINED)
        return {**answer, "accepted": accepted, "labels": labels}

    def compute_mask(self, inputs: Tensor, previous_mask: Any = None) -> None:
        """Returns None: `accepted` has the mask in it."""

    def answer(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the same before the threshold: every sample keeps its label.

        `accepted` is what the calibrator answers. A sample that it rejects has the
        label of its largest logit, since its probabilities are uniform.
        """
        inputs = ops.cast(ops.convert_to_tensor(inputs), "float32")
        if self.calibration is None:
            p = self._columns(inputs, self.outputs.from_logits)
            p = ops.softmax(p, axis=-1) if self.outputs.from_logits else p
            labels = self._decide(p)
            accepted = ops.ones_like(labels, dtype="bool")
        else:
            p = self._columns(self.calibration(inputs), False)
            accepted = self.calibration.accepts(inputs)
            uncalibrated = self._columns(inputs, self.outputs.from_logits)
            labels = ops.where(
                accepted, self._decide(p), ops.argmax(uncalibrated, axis=-1)
            )
        probabilities = p[..., 1] if self.outputs.multi_label else p
        if self.outputs.axis != -1:
            probabilities = ops.moveaxis(probabilities, -1, self.outputs.axis)
        return {
            "probabilities": probabilities,
            "confidence": self.csf(self._centred(p)),
            "accepted": accepted,
            "labels": ops.cast(labels, "int32"),
        }

    def _columns(self, x: Tensor, from_logits: bool) -> Tensor:
        """Returns outputs with their classes in the last axis: (..., k), two columns
        for one sigmoid unit, (..., labels, 2) for several labels.
        """
        one_unit = self.outputs.is_one_unit(tuple(x.shape))
        if len(x.shape) > 1 and self.outputs.axis != -1:
            x = ops.moveaxis(x, self.outputs.axis, -1)
        if one_unit and len(x.shape) > 1:
            x = ops.squeeze(x, -1)
        if one_unit or self.outputs.multi_label:
            x = two_columns(x, from_logits, ops)
        return x

    def _decide(self, p: Tensor) -> Tensor:
        if self.outputs.decision_threshold == 0.5:
            return ops.argmax(p, axis=-1)
        return ops.cast(p[..., 1] > self.outputs.decision_threshold, "int32")

    def _centred(self, p: Tensor) -> Tensor:
        """Returns probabilities whose odds are those at the decision threshold d, so
        that confidence is lowest there: p (1 − d) against (1 − p) d.
        """
        d = self.outputs.decision_threshold
        if d == 0.5:
            return p
        odds = p * np.array([d, 1 - d], "float32")
        return odds / ops.sum(odds, axis=-1, keepdims=True)

    def get_config(self) -> dict[str, Any]:
        threshold = np.asarray(self.threshold, "float64").tolist()
        calibration = self.calibration
        return {
            **super().get_config(),
            "calibration": calibration
            and keras.saving.serialize_keras_object(calibration),
            "csf": self.csf.serialize(),
            "threshold": threshold,
            **self.outputs.config(*OPTIONS),
            "record": self.record and self.record.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SelectionLayer":
        config = dict(config)
        if config["calibration"] is not None:
            config["calibration"] = keras.saving.deserialize_keras_object(
                config["calibration"]
            )
        if config["record"] is not None:
            config["record"] = FitRecord.from_dict(config["record"])
        if isinstance(config["threshold"], list):
            config["threshold"] = np.array(config["threshold"])
        return cls(**config)
