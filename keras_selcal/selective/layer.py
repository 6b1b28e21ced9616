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
from keras_selcal.selective.answers import score
from keras_selcal.selective.base import AnswerLayer, broadcast_mask
from keras_selcal.selective.costs import cheapest
from keras_selcal.selective.record import ABSTAINED, FitRecord
from keras_selcal.selective.threshold import of_answers

OPTIONS = ("from_logits", "multi_label", "ignore_class", "axis", "decision_threshold")


@serializable
class SelectionLayer(AnswerLayer):
    """Calibrates, scores and decides: the last layer of a saved selective classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `confidence`
    (...), `accepted` (...) and `labels` (...), the last −1 where not accepted. One
    sigmoid unit has probabilities (..., 2). With `multi_label=True` the other three
    have the labels in their last axis. Masked samples are not accepted.

    It takes the arguments of `SelectiveClassifier`, with a `CalibrationLayer` for the
    calibrator, and what `fit` finds: `threshold`, one for each label with
    `multi_label=True` or for each predicted class with `per_class=True`, and the
    `FitRecord`. With `costs`, labels have the least expected cost, and confidence is
    minus that cost. Threshold and costs are weights that are not trained:
    `save_weights` and `load_weights` keep them, but not the record.
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
        costs: Any = None,
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
        self._costs = None
        if costs is not None:
            self._costs = self.add_weight(
                name="costs",
                shape=np.shape(costs),
                initializer="zeros",
                trainable=False,
            )
            self._costs.assign(costs)

    @property
    def costs(self) -> Any:
        """The costs (k, k), true classes in rows and answers in columns, or None."""
        if self._costs is None:
            return None
        return ops.convert_to_numpy(self._costs).astype("float64")

    @property
    def threshold(self) -> Any:
        """The threshold, a float, or (k,), one for each label or predicted class."""
        values = ops.convert_to_numpy(self._threshold).astype("float64")
        return values if values.ndim else float(values)

    def load_own_variables(self, store: Any) -> None:
        # Files of older versions have the threshold in the configuration only.
        if len(store.keys()):
            super().load_own_variables(store)

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        answer = self.answer(inputs)
        threshold = of_answers(
            ops.convert_to_tensor(self._threshold),
            answer["labels"],
            self.outputs.multi_label,
            ops,
        )
        # For OpenVINO, NaN ≥ τ is true.
        accepted = answer["accepted"] & (threshold <= answer["confidence"])
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
        if self._costs is None:
            labels = self.decided(columns, p, accepted)
            confidence = self._confidence(columns, p)
        else:
            costs = ops.convert_to_tensor(self._costs)
            labels, least = cheapest(p, costs, ops)
            labels, confidence = ops.cast(labels, "int32"), -least
        return {
            "probabilities": self.outputs.restored(p, ops),
            "confidence": confidence,
            "accepted": accepted,
            "labels": labels,
        }

    def _confidence(self, columns: Tensor, p: Tensor) -> Tensor:
        """Returns the score of the probabilities, or of the model's own logits."""
        return score(columns, p, self.csf, self.outputs, ops)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "threshold": np.asarray(self.threshold, "float64").tolist(),
            "costs": None if self._costs is None else self.costs.tolist(),
            **self.outputs.config(*OPTIONS),
        }
