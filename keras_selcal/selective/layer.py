"""The layer that calibrates, scores and decides in a saved selective classifier."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal.calibrators.base import CalibrationLayer, Calibrator, Parameters

ABSTAINED = -1
"""The label of a sample that gets no answer."""


@serializable
class Uncalibrated(Calibrator):
    """The softmax alone, where no calibrator is given."""

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        return {}

    def _apply(self, logits: Tensor, parameters: Any) -> Tensor:
        return ops.softmax(logits, axis=-1)


@serializable
class SelectionLayer(keras.layers.Layer):
    """Calibrates, scores and decides: the last layer of a saved selective classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `confidence`
    (...), `accepted` (...) and `labels` (...), the last −1 where not accepted.

    Args:
        calibration: a `CalibrationLayer`.
        csf: confidence score function.
        threshold: the confidence from which on samples are accepted.
        delta: δ of the fit, if it had one.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(
        self,
        calibration: CalibrationLayer,
        csf: Any = "msp",
        threshold: float = -math.inf,
        delta: float | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.calibration = calibration
        self.csf = csf_module.get(csf)
        self.threshold = float(threshold)
        self.delta = delta
        self.built = True

    def call(self, inputs: Tensor) -> dict[str, Tensor]:
        answer = self.answer(inputs)
        accepted = answer["accepted"] & (answer["confidence"] >= self.threshold)
        return {
            "probabilities": answer["probabilities"],
            "confidence": answer["confidence"],
            "accepted": accepted,
            "labels": ops.where(accepted, answer["labels"], ABSTAINED),
        }

    def answer(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the same before the threshold: every sample keeps its label.

        `accepted` is what the calibrator answers. A sample that it rejects has the
        label of its largest logit: the uniform vector has none.
        """
        probabilities = self.calibration(inputs)
        accepted = self.calibration.accepts(inputs)
        labels = ops.where(
            accepted, ops.argmax(probabilities, axis=-1), ops.argmax(inputs, axis=-1)
        )
        return {
            "probabilities": probabilities,
            "confidence": self.csf(probabilities),
            "accepted": accepted,
            "labels": ops.cast(labels, "int32"),
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "calibration": keras.saving.serialize_keras_object(self.calibration),
            "csf": self.csf.serialize(),
            "threshold": self.threshold,
            "delta": self.delta,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SelectionLayer":
        calibration = keras.saving.deserialize_keras_object(config["calibration"])
        return cls(**{**config, "calibration": calibration})
