"""The layer that carries a fitted calibrator in a model."""

from dataclasses import asdict
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import nan_in_row
from keras_selcal._saving import serializable
from keras_selcal.calibrators._parameters import Fitted, cast_all


@serializable
class CalibrationLayer(keras.layers.Layer):
    """A fitted calibrator as a layer; its parameters are weights that do not train.

    The layer computes in float32, whatever the model's dtype policy, unless `dtype` is
    given.

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
        self.from_logits = (
            calibrator.from_logits if from_logits is None else from_logits
        )
        self._parameter_weights = {}
        for name, value in calibrator.parameters.items():
            weight = self.add_weight(
                np.shape(value), "zeros", trainable=False, name=name
            )
            weight.assign(value)
            self._parameter_weights[name] = weight
        self.supports_masking = True
        self.built = True

    @property
    def calibrator(self) -> Any:
        """The calibrator, with the parameters that the layer holds now."""
        weights = self._parameter_weights.items()
        parameters = {name: ops.convert_to_numpy(weight) for name, weight in weights}
        return self._calibrator._with_parameters(parameters, self._calibrator._fitted)

    def call(self, inputs: Tensor) -> Tensor:
        columns, parameters = self._prepare(inputs)
        p = self._calibrator._apply(columns, parameters, ops) + nan_in_row(columns, ops)
        return self._calibrator.outputs.restored(p, ops, tuple(inputs.shape))

    def accepts(self, inputs: Tensor) -> Tensor:
        """Returns which samples the calibrator accepts, a mask (...)."""
        return self._calibrator._accepts(*self._prepare(inputs), ops)

    def _prepare(self, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = ops.cast(inputs, self.compute_dtype)
        columns = self._calibrator._columns(inputs, self.from_logits, ops)
        return columns, cast_all(self._parameter_weights, columns.dtype, ops)

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
        # The values are zeros until the weights are loaded.
        shapes = config.pop("shapes")
        config["calibrator"] = keras.saving.deserialize_keras_object(
            config["calibrator"]
        )._with_parameters(
            {name: np.zeros(shape) for name, shape in shapes.items()},
            Fitted(**config.pop("fitted")),
        )
        return cls(**config)
