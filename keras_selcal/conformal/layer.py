"""The layer that calibrates, scores and forms sets in a saved conformal classifier."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import constant, safe_log
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import serializable
from keras_selcal.calibrators.layer import CalibrationLayer
from keras_selcal.conformal.record import MASKED, ConformalRecord
from keras_selcal.conformal.scores import NonconformityScore, fill_empty, uniforms
from keras_selcal.selective.base import AnswerLayer, broadcast_mask

# Options of `Outputs` that prediction sets have.
OUTPUT_OPTIONS = ("from_logits", "ignore_class", "axis")


@serializable
class ConformalLayer(AnswerLayer):
    """Calibrates, scores and forms sets: the last layer of a saved classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `sets`
    (..., k), boolean, `sizes` (...) and `labels` (...), the most probable classes. With
    another `axis`, the probabilities have their classes there, and the sets last. The
    output (..., 1) of one sigmoid unit has k = 2 classes. A sample whose probabilities
    are not finite gets a set of all classes, and a masked one an empty set and the
    label −1.

    It takes the arguments of `ConformalClassifier`, with a `CalibrationLayer` for the
    calibrator, and what `fit` finds: the number of classes, the names of the strata,
    each of which has thresholds of its own, and the `ConformalRecord`. With strata,
    `call` takes the index of each sample's stratum.
    """

    record_class = ConformalRecord

    def __init__(
        self,
        num_classes: int,
        from_logits: bool,
        calibration: CalibrationLayer | None = None,
        *,
        method: str = "lac",
        penalty: float | None = None,
        k_reg: int | None = None,
        seed: int | None = None,
        allow_empty: bool = True,
        class_conditional: bool = False,
        strata: list[Any] | None = None,
        ignore_class: int | None = None,
        axis: int = -1,
        record: ConformalRecord | None = None,
        **kwargs: Any,
    ) -> None:
        outputs = Outputs(from_logits, ignore_class=ignore_class, axis=axis)
        super().__init__(calibration, outputs, record, **kwargs)
        self.num_classes = num_classes
        self.score = NonconformityScore.of(method, penalty, k_reg, seed)
        self.allow_empty = allow_empty
        self.class_conditional = class_conditional
        self.strata = None if strata is None else list(strata)
        # Without the scores' offset: float32 would round them towards it.
        self._thresholds = self.add_weight(
            name="thresholds",
            shape=(len(strata or [0]), num_classes if class_conditional else 1),
            initializer=keras.initializers.Constant(math.inf),
            trainable=False,
        )
        if seed is not None:
            self._direction = self.add_weight(
                name="direction",
                shape=(num_classes,),
                initializer="zeros",
                trainable=False,
            )
            self._direction.assign(self.score.direction(num_classes))

    @property
    def thresholds(self) -> np.ndarray:
        """Thresholds of the scores without their offset, (strata or 1, k or 1)."""
        return np.asarray(ops.convert_to_numpy(self._thresholds))

    @thresholds.setter
    def thresholds(self, values: np.ndarray) -> None:
        self._thresholds.assign(values)

    def call(
        self,
        inputs: Tensor,
        strata: Tensor | None = None,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        columns, probabilities, accepted = self.calibrated(inputs)
        scores = self._scores(columns, probabilities)
        thresholds = ops.convert_to_tensor(self._thresholds)
        if self.strata is not None:
            if strata is None:
                raise ValueError("`strata` must be the index of each sample's stratum.")
            thresholds = ops.take(thresholds, ops.cast(strata, "int32"), axis=0)
            between = len(probabilities.shape) - len(thresholds.shape)
            for _ in range(between):
                thresholds = ops.expand_dims(thresholds, 1)
        sets = scores <= thresholds
        if not self.allow_empty:
            sets = fill_empty(sets, probabilities, ops)
        finite = ops.isfinite(ops.sum(probabilities, axis=-1, keepdims=True))
        sets = ops.logical_or(sets, ops.logical_not(finite))
        labels = self.decided(columns, probabilities, accepted)
        # Keras fills the second one if there are strata too.
        mask = inputs_mask if mask is None else mask
        if mask is not None:
            mask = broadcast_mask(mask, labels)
            sets = ops.logical_and(sets, ops.expand_dims(mask, -1))
            labels = ops.where(mask, labels, constant(MASKED, labels, ops))
        return {
            "probabilities": self.outputs.restored(probabilities, ops),
            "sets": sets,
            "sizes": ops.sum(ops.cast(sets, "int32"), axis=-1),
            "labels": labels,
        }

    def of_classes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns probabilities (..., k), and scores of all classes without their
        offset.
        """
        columns, probabilities, _ = self.calibrated(inputs)
        return probabilities, self._scores(columns, probabilities)

    def _scores(self, columns: Tensor, probabilities: Tensor) -> Tensor:
        u: Any = 1.0
        if self.score.seed is not None:
            # Of the model itself: a calibrator can map many samples to one value.
            logits = columns if self.outputs.from_logits else safe_log(columns, ops)
            direction = ops.convert_to_tensor(self._direction)
            # One kernel of the backend: compiled and eager steps round alike.
            u = uniforms(ops.log_softmax(logits, axis=-1), direction, ops)
        return self.score.of_classes(probabilities, u, ops)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            **self.outputs.config(*OUTPUT_OPTIONS),
            **self.score.config(),
            "allow_empty": self.allow_empty,
            "class_conditional": self.class_conditional,
            "strata": self.strata,
        }
