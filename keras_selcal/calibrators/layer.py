"""The layer that carries a fitted calibrator in a model."""

from dataclasses import asdict
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal.calibrators._parameters import Fitted


@serializable
class CalibrationLayer(keras.layers.Layer):
    """A fitted calibrator as a layer; its parameters are weights that do not train.

    Computes in float32 whatever the model's policy is, unless `dtype` says otherwise.

    Args:
        calibrator: a fitted calibrator.
        from_logits: whether the inputs are logits instead of probabilities. Defaults
            to the calibrator's.
        **kwargs: arguments of `keras.layers.Layer`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from keras_selcal.calibrators import CalibrationLayer, TemperatureScaling
    >>> logits = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> calibrator = TemperatureScaling().fit(logits, np.array([0, 1, 1]))
    >>> model = keras.Sequential([keras.Input((2,)), CalibrationLayer(calibrator)])
    >>> model.output_shape
    (None, 2)
    """

    def __init__(
        self,
        calibrator: Any,
        from_logits: bool | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self._calibrator = calibrator
        if from_logits is None:
            from_logits = calibrator.from_logits
        self.from_logits = from_logits
        self._parameter_weights = {
            name: self.add_weight(
                name=name,
                shape=np.shape(value),
                initializer="zeros",
                trainable=False,
            )
            for name, value in calibrator.parameters.items()
        }
        for name, value in calibrator.parameters.items():
            self._parameter_weights[name].assign(value)
        self.supports_masking = True
        self.built = True

    @property
    def calibrator(self) -> Any:
        """The calibrator, with the parameters that the layer holds now."""
        parameters = {
            name: ops.convert_to_numpy(weight)
            for name, weight in self._parameter_weights.items()
        }
        return self._calibrator._with_parameters(parameters, self._calibrator._fitted)

    def call(self, inputs: Tensor) -> Tensor:
        p = self._calibrator._apply(self._columns(inputs), self._values())
        return self._calibrator._restore(p, inputs)

    def accepts(self, inputs: Tensor) -> Tensor:
        """Returns which samples the calibrator answers, a mask (...)."""
        return self._calibrator._accepts(self._columns(inputs), self._values())

    def _columns(self, inputs: Tensor) -> Tensor:
        inputs = ops.cast(inputs, self.compute_dtype)
        return self._calibrator._columns(inputs, self.from_logits)

    def _values(self) -> dict[str, Tensor]:
        return {
            name: ops.convert_to_tensor(weight)
            for name, weight in self._parameter_weights.items()
        }

    def compute_output_shape(self, input_shape: Any) -> Any:
        self._calibrator._check_shape(input_shape)
        return input_shape

    def get_config(self) -> dict[str, Any]:
        assert self._calibrator._fitted is not None
        return {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(self._calibrator),
            "from_logits": self.from_logits,
            "fitted": asdict(self._calibrator._fitted),
            "shapes": {
                name: list(weight.shape)
                for name, weight in self._parameter_weights.items()
            },
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CalibrationLayer":
        config = dict(config)
        # Loading the weights fills in the values; until then they are zeros.
        shapes = config.pop("shapes")
        config["calibrator"] = keras.saving.deserialize_keras_object(
            config["calibrator"]
        )._with_parameters(
            {name: np.zeros(shape) for name, shape in shapes.items()},
            Fitted(**config.pop("fitted")),
        )
        return cls(**config)
