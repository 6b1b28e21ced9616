"""The layer that calibrates, scores and forms sets in a saved conformal classifier."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor, safe_log
from keras_selcal._core.outputs import two_columns
from keras_selcal._core.saving import deserialize_if_config, serializable
from keras_selcal.calibrators import CalibrationLayer
from keras_selcal.conformal.results import ConformalRecord
from keras_selcal.conformal.scores import NonconformityScore, fill_empty, uniforms

# Label of masked samples.
MASKED = -1


@serializable
class ConformalLayer(keras.layers.Layer):
    """Calibrates, scores and forms sets: the last layer of a saved classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `sets`
    (..., k), boolean, `sizes` (...) and `labels` (...), the most probable classes. The
    output (..., 1) of one sigmoid unit has k = 2 classes. A sample whose probabilities
    are not finite gets a set of all classes, and a masked one an empty set and the
    label −1.

    Args:
        num_classes: k.
        from_logits: whether the inputs are logits instead of probabilities.
        calibration: a `CalibrationLayer` or None.
        method: see `ConformalClassifier`; so are the arguments up to
            `class_conditional`.
        penalty: λ, a number.
        k_reg: number of ranks without a penalty.
        seed: of u, or None.
        allow_empty: whether sets may be empty.
        class_conditional: whether each class has a threshold of its own.
        strata: names of the strata, each of which has thresholds of its own, or None.
            With them, `call` takes the index of each sample's stratum.
        ignore_class: label that does not count in `ConformalClassifier.fit`.
        record: a `ConformalRecord` or None.
        **kwargs: arguments of `keras.layers.Layer`.
    """

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
        record: ConformalRecord | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.from_logits = from_logits
        self.calibration = calibration
        self.score = NonconformityScore.of(method, penalty, k_reg, seed)
        self.allow_empty = allow_empty
        self.class_conditional = class_conditional
        self.strata = None if strata is None else list(strata)
        self.ignore_class = ignore_class
        self.record = record
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
        self.supports_masking = True
        self.built = True

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
        probabilities, scores = self.of_classes(inputs)
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
        labels = ops.cast(self._labels(inputs, probabilities), "int32")
        # Keras fills the second one if there are strata too.
        mask = inputs_mask if mask is None else mask
        if mask is not None:
            mask = ops.reshape(
                ops.cast(mask, "bool"),
                (*ops.shape(mask), *(1,) * (len(labels.shape) - len(mask.shape))),
            )
            sets = ops.logical_and(sets, ops.expand_dims(mask, -1))
            labels = ops.where(mask, labels, MASKED)
        return {
            "probabilities": probabilities,
            "sets": sets,
            "sizes": ops.sum(ops.cast(sets, "int32"), axis=-1),
            "labels": labels,
        }

    def compute_mask(self, inputs: Tensor, previous_mask: Any = None) -> None:
        """Returns None: `sets` and `labels` have the mask in them."""

    def _labels(self, inputs: Tensor, probabilities: Tensor) -> Tensor:
        labels = ops.argmax(probabilities, axis=-1)
        if self.calibration is None:
            return labels
        # A calibrator that rejects a sample gives it uniform probabilities.
        outputs = self._two_columns(inputs, self.from_logits)
        accepted = self.calibration.accepts(inputs)
        return ops.where(accepted, labels, ops.argmax(outputs, axis=-1))

    def of_classes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns probabilities (..., k), and scores of all classes without their
        offset.
        """
        inputs = ops.cast(inputs, self.compute_dtype)
        outputs = self._two_columns(inputs, self.from_logits)
        if self.calibration is not None:
            probabilities = self._two_columns(self.calibration(inputs), False)
        elif self.from_logits:
            probabilities = ops.softmax(outputs, axis=-1)
        else:
            probabilities = outputs
        u: Any = 1.0
        if self.score.seed is not None:
            # Those of the model itself: a calibrator can map many samples to one value.
            logits = outputs if self.from_logits else safe_log(outputs)
            direction = ops.convert_to_tensor(self._direction)
            u = uniforms(ops.log_softmax(logits, axis=-1), direction, ops)
        return probabilities, self.score.of_classes(probabilities, u, ops)

    def _two_columns(self, x: Tensor, from_logits: bool) -> Tensor:
        """Returns one sigmoid unit (..., 1) as (0, z) or (1 − p, p)."""
        return x if x.shape[-1] != 1 else two_columns(x[..., 0], from_logits, ops)

    def get_config(self) -> dict[str, Any]:
        calibration = self.calibration
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "from_logits": self.from_logits,
            "calibration": calibration
            and keras.saving.serialize_keras_object(calibration),
            **self.score.config(),
            "allow_empty": self.allow_empty,
            "class_conditional": self.class_conditional,
            "strata": self.strata,
            "ignore_class": self.ignore_class,
            "record": self.record and self.record.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ConformalLayer":
        calibration = deserialize_if_config(config["calibration"])
        record = config["record"] and ConformalRecord.from_dict(config["record"])
        return cls(**{**config, "calibration": calibration, "record": record})
