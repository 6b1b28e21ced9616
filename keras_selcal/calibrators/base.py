"""What every calibrator does, and the layer that carries one in a model."""

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_selcal._core.models import (
    append_layer,
    check_outputs,
    gives_logits,
    predict_with_labels,
)
from keras_selcal._core.ops import Tensor, as_float, safe_log
from keras_selcal._core.samples import to_numpy
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import refuse

Parameters = Mapping[str, np.ndarray]
C = TypeVar("C", bound="Calibrator")


def require(module: str) -> Any:
    """Imports a module of an optional package."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"sklearn": "scikit-learn"}.get(
            module.split(".")[0], module.split(".")[0]
        )
        raise ImportError(
            f"This calibrator needs {package}: install it by "
            "`pip install keras-selcal[calibrators]`."
        ) from error


def check_labelled_logits(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns finite logits (n, k) and class indices (n,).

    Float64 logits stay so; all others become float32.
    """
    z, y = to_numpy(logits), to_numpy(labels)
    shape = z.shape
    if z.ndim < 2 or shape[-1] < 2:
        refuse("logits", shape, "an array of shape (..., k) with k ≥ 2")
    k = shape[-1]
    z = z.reshape(-1, k)
    z = z if z.dtype == np.float64 else z.astype("float32")
    if len(z) == 0:
        refuse("logits", shape, "of at least one sample")
    if not np.isfinite(z).all():
        refuse("logits", z[~np.isfinite(z)][0], "finite: no NaN, no infinity")
    if y.shape == shape:
        if not (np.isin(y, (0, 1)).all() and (y.sum(axis=-1) == 1).all()):
            refuse("labels", y, "class indices or one-hot; soft labels are not taken")
        y = y.argmax(axis=-1)
    elif y.shape not in (shape[:-1], (*shape[:-1], 1)):
        refuse("labels", y.shape, f"one a sample for logits of shape {shape}")
    y = y.reshape(-1)
    if not np.all((y == np.floor(y)) & (y >= 0) & (y < k)):
        refuse("labels", np.unique(y), f"class indices from 0 to {k - 1}")
    return z, y.astype("int64")


class Calibrator(ABC):
    """Base class: maps a classifier's logits to calibrated probabilities.

    Every calibrator is fitted on held-out data, then applied:

    ```python
    calibrator.fit(logits, labels)        # or fit_model(model, dataset)
    probabilities = calibrator(logits)    # also inside a compiled graph
    calibrated = calibrator.wrap(model)   # a keras.Model, saved and loaded as .keras
    ```

    Logits are what comes before the softmax. Log-probabilities are logits too: for a
    model that ends in a softmax give ln p, or leave it to `fit_model` and `wrap`,
    which take its logarithm.

    Fitting works on the host in NumPy, so that every backend gets the same
    parameters; applying works in `keras.ops`. A fit that fails leaves the calibrator
    as it was.

    A subclass defines `_fit`, which returns the parameters, and `_apply`, which uses
    them.
    """

    def __init__(self) -> None:
        self._parameters: Parameters | None = None
        self._num_classes: int | None = None

    @abstractmethod
    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        """Returns the parameters for logits (n, k) and labels (n,)."""

    @abstractmethod
    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns probabilities (..., k) for logits (..., k)."""

    def _accepts(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns which samples get an answer, (...)."""
        return ops.ones_like(logits[..., 0], dtype="bool")

    @property
    def fitted(self) -> bool:
        """Whether the calibrator has been fitted."""
        return self._parameters is not None

    @property
    def parameters(self) -> Parameters:
        """The fitted parameters by name."""
        if self._parameters is None:
            raise ValueError(
                f"This {type(self).__name__} is not fitted yet: call `fit` first."
            )
        return self._parameters

    def fit(self: C, logits: Any, labels: Any) -> C:
        """Fits the calibrator and returns it.

        Args:
            logits: (..., k), finite.
            labels: class indices (...) or one-hot (..., k), of at least two classes.
        """
        z, y = check_labelled_logits(logits, labels)
        if (y == y[0]).all():
            refuse("labels", int(y[0]), "of at least two classes; one is present")
        self._parameters = self._fit(z, y)
        self._num_classes = z.shape[-1]
        return self

    def fit_model(
        self: C,
        model: keras.Model,
        x: Any,
        y: Any = None,
        from_logits: bool | None = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> C:
        """Fits the calibrator to a model's outputs and returns it.

        Args:
            model: a Keras model of one output.
            x: arrays, or a data set of (x, y) batches (`tf.data.Dataset`,
                `keras.utils.PyDataset`, PyTorch's `DataLoader`, any iterable).
            y: labels, where `x` is arrays.
            from_logits: whether the model gives logits. By default it does unless its
                last operation is a softmax.
            batch_size: where `x` is arrays.
            verbose: whether a progress bar is shown, as in `keras.Model.predict`.
        """
        outputs, labels = predict_with_labels(model, x, y, batch_size, verbose)
        from_logits = gives_logits(model, from_logits)
        check_outputs(outputs, from_logits)
        if not from_logits:
            outputs = ops.convert_to_numpy(safe_log(as_float(outputs)))
        return self.fit(outputs, labels)

    def __call__(self, logits: Any) -> Tensor:
        """Returns calibrated probabilities (..., k) for logits (..., k)."""
        return self._apply(*self._prepare(logits))

    def accepts(self, logits: Any) -> Tensor:
        """Returns which samples the calibrator answers, a mask (...).

        All of them, except for the calibrators that reject (`MetaAcc`, `MetaMis`).
        """
        return self._accepts(*self._prepare(logits))

    def _prepare(self, logits: Any) -> tuple[Tensor, dict[str, Tensor]]:
        parameters = self.parameters
        logits = as_float(logits)
        if logits.shape[-1] != self._num_classes:
            refuse(
                "logits",
                tuple(logits.shape),
                f"of {self._num_classes} classes, as the fitted ones",
            )
        return logits, {
            name: ops.cast(ops.convert_to_tensor(value), logits.dtype)
            for name, value in parameters.items()
        }

    def wrap(self, model: keras.Model, from_logits: bool | None = None) -> keras.Model:
        """Returns a model of the same inputs that gives calibrated probabilities.

        It shares the weights of `model`, is saved and loaded as .keras on any backend
        without `custom_objects`, and is exported wherever Keras exports.

        Args:
            model: a functional model, or a built Sequential one.
            from_logits: whether the model gives logits. By default it does unless its
                last operation is a softmax.
        """
        return append_layer(
            model, CalibrationLayer(self, gives_logits(model, from_logits))
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor; fitted values are not in it."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Calibrator":
        return cls(**config)

    def _with_parameters(self, parameters: Parameters, k: int) -> "Calibrator":
        fitted = copy.copy(self)
        fitted._parameters, fitted._num_classes = parameters, k
        return fitted


@serializable
class CalibrationLayer(keras.layers.Layer):
    """A fitted calibrator as a layer; its parameters are weights that do not train.

    Computes in float32 whatever the model's policy is, unless `dtype` says otherwise.

    Args:
        calibrator: a fitted calibrator.
        from_logits: whether the inputs are logits instead of probabilities.
        **kwargs: of `keras.layers.Layer`.

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
        self, calibrator: Calibrator, from_logits: bool = True, **kwargs: Any
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self._calibrator = calibrator
        self.from_logits = from_logits
        self._num_classes = calibrator._num_classes
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
    def calibrator(self) -> Calibrator:
        """The calibrator, with the parameters that the layer holds now."""
        parameters = {
            name: ops.convert_to_numpy(weight)
            for name, weight in self._parameter_weights.items()
        }
        assert self._num_classes is not None
        return self._calibrator._with_parameters(parameters, self._num_classes)

    def logits(self, inputs: Tensor) -> Tensor:
        """Returns the inputs as logits, in the dtype that the layer computes in."""
        inputs = ops.cast(inputs, self.compute_dtype)
        return inputs if self.from_logits else safe_log(inputs)

    def call(self, inputs: Tensor) -> Tensor:
        return self._calibrator._apply(self.logits(inputs), self._values())

    def accepts(self, inputs: Tensor) -> Tensor:
        """Returns which samples the calibrator answers, a mask (...)."""
        return self._calibrator._accepts(self.logits(inputs), self._values())

    def _values(self) -> dict[str, Tensor]:
        return {
            name: ops.convert_to_tensor(weight)
            for name, weight in self._parameter_weights.items()
        }

    def compute_output_shape(self, input_shape: Any) -> Any:
        if input_shape[-1] != self._num_classes:
            refuse(
                "inputs",
                tuple(input_shape),
                f"of {self._num_classes} classes, as fitted",
            )
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(self._calibrator),
            "from_logits": self.from_logits,
            "num_classes": self._num_classes,
            "shapes": {
                name: list(weight.shape)
                for name, weight in self._parameter_weights.items()
            },
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "CalibrationLayer":
        config = dict(config)
        # The weights bring the values; until then zeros hold their places.
        shapes = config.pop("shapes")
        config["calibrator"] = keras.saving.deserialize_keras_object(
            config["calibrator"]
        )._with_parameters(
            {name: np.zeros(shape) for name, shape in shapes.items()},
            config.pop("num_classes"),
        )
        return cls(**config)
