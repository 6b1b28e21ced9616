"""The base classes of classifiers that abstain or return prediction sets."""

import warnings
from typing import Any, ClassVar, TypeVar

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor, to_numpy
from keras_selcal._predictions.data import LabelledData, check_order, predict_masked
from keras_selcal._predictions.models import OneOutput, append_layer, gives_logits
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import deserialize_if_config
from keras_selcal._validation import refuse
from keras_selcal.calibrators import Calibrator
from keras_selcal.calibrators.layer import CalibrationLayer
from keras_selcal.selective.answers import calibrate, decide
from keras_selcal.selective.data import SelectionData, check_calibrator
from keras_selcal.selective.record import Record

C = TypeVar("C", bound="AnsweringClassifier")
L = TypeVar("L", bound="AnswerLayer")


class AnswerLayer(keras.layers.Layer):
    """Base class of the layers that turn a model's outputs into answers.

    Args:
        calibration: a `CalibrationLayer`, or None.
        outputs: what the model's outputs mean.
        record: what the classifier was fitted on, or None.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    record_class: ClassVar[type[Record]]

    def __init__(
        self,
        calibration: CalibrationLayer | None,
        outputs: Outputs,
        record: Any,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.calibration = calibration
        self.outputs = outputs
        self.record = record
        self.supports_masking = True
        self.built = True

    def calibrated(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what `answers.calibrate` does."""
        inputs = ops.cast(ops.convert_to_tensor(inputs), self.compute_dtype)
        return calibrate(inputs, self.outputs, self.calibration, ops)

    def decided(self, columns: Tensor, p: Tensor, accepted: Tensor) -> Tensor:
        """Returns the predicted classes, for what `calibrated` returns."""
        return decide(columns, p, accepted, self.outputs, self.calibration, ops)

    def compute_mask(self, inputs: Tensor, previous_mask: Any = None) -> None:
        """Returns None: the answers have the mask in them."""

    def get_config(self) -> dict[str, Any]:
        calibration = self.calibration
        return {
            **super().get_config(),
            "calibration": calibration
            and keras.saving.serialize_keras_object(calibration),
            "record": self.record and self.record.to_dict(),
        }

    @classmethod
    def from_config(cls: type[L], config: dict[str, Any]) -> L:
        calibration = deserialize_if_config(config["calibration"])
        record = config["record"] and cls.record_class.from_dict(config["record"])
        return cls(**{**config, "calibration": calibration, "record": record})


def broadcast_mask(mask: Tensor, answers: Tensor) -> Tensor:
    """Returns a Keras mask in as many dimensions as the answers have."""
    missing = len(answers.shape) - len(mask.shape)
    return ops.reshape(ops.cast(mask, "bool"), (*ops.shape(mask), *(1,) * missing))


class AnsweringClassifier:
    """Base class: a model, a calibrator and a layer that `fit` makes.

    Args:
        model: a Keras model.
        output: the name or index of one of several outputs, or None.
        calibrator: a calibrator, `"auto"` or None; `fit` starts from it each time.
        from_logits: whether the model gives logits, or None.
        multi_label: as in `Outputs`, and so are the others.
        ignore_class: see `Outputs`.
        axis: see `Outputs`.
        decision_threshold: see `Outputs`.
    """

    layer_class: ClassVar[type[AnswerLayer]]

    def __init__(
        self,
        model: keras.Model,
        calibrator: Calibrator | str | None,
        from_logits: bool | None,
        *,
        output: str | int | None = None,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
    ) -> None:
        self._output = OneOutput.of(model, output)
        model = self._output.model
        self.outputs = Outputs(
            gives_logits(model, from_logits),
            multi_label,
            ignore_class,
            axis,
            decision_threshold,
        )
        calibrator = check_calibrator(calibrator, self.outputs)
        self.model = model
        # The calibrator that each `fit` starts from, and the one that it has fitted.
        self._given_calibrator = self.calibrator = calibrator
        self._told = from_logits is not None
        self._layer: Any = None
        self._fitted_on: bytes | None = None

    @property
    def from_logits(self) -> bool:
        """Whether the model gives logits."""
        return self.outputs.from_logits

    @property
    def record(self) -> Any:
        """What the classifier was fitted on and promises; None before `fit`."""
        return None if self._layer is None else self._layer.record

    def _fitted(self) -> Any:
        if self._layer is None:
            raise ValueError(
                f"This {type(self).__name__} has no threshold: call `fit`."
            )
        return self._layer

    def _read(
        self,
        x: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        batch_size: Any,
        verbose: Any,
    ) -> tuple[SelectionData, bytes]:
        """Returns the checked data with the model's outputs, and its fingerprint."""
        check_order(x, groups=groups)
        several = self._output.key is not None
        source = LabelledData(
            x, y, sample_weight, batch_size=batch_size, several=several
        )
        found = source.predict(self._output, verbose=verbose, axis=self.outputs.axis)
        data = SelectionData.of(*found, self.outputs, groups, self._told)
        return data, data.digest(keras.tree.flatten(x) if source.arrays else None)

    def _read_new(self, *arguments: Any) -> tuple[SelectionData, bytes]:
        """Returns what `_read` does; warns if `fit` has used the data."""
        data, digest = self._read(*arguments)
        if self._fitted_on == digest:
            warnings.warn(
                "The classifier is evaluated on the data that its threshold was "
                "selected on: its figures do not test the guarantee, and look "
                "better than they are.",
                stacklevel=3,
            )
        return data, digest

    def _calibration(self, calibrator: Calibrator | None) -> CalibrationLayer | None:
        if calibrator is None:
            return None
        return CalibrationLayer(calibrator, self.from_logits)

    def _outputs(
        self, x: Any, batch_size: int | None, verbose: Any
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the model's outputs and their mask, once the classifier is fitted."""
        self._fitted()
        return predict_masked(self.model, x, batch_size, verbose, self.outputs.axis)

    def predict_proba(
        self, x: Any, *, batch_size: int | None = None, verbose: Any = "auto"
    ) -> np.ndarray:
        """Predicts calibrated probabilities (..., k), of rejected samples too.

        One sigmoid unit gives two columns, (1 − p, p). Where batches of `x` differ in
        length, shorter ones are padded with NaN.

        Args:
            x: inputs, in any form that `keras.Model.predict` takes.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        outputs, _ = self._outputs(x, batch_size, verbose)
        _, p, _ = self._fitted().calibrated(outputs)
        return to_numpy(self.outputs.restored(p, ops))

    def as_model(self) -> keras.Model:
        """Returns one Keras model, to save, export or serve: see its last layer."""
        return append_layer(self.model, self._fitted())

    def save(self, path: Any) -> None:
        """Saves model, calibrator, thresholds and record as one file.

        The file loads on any backend, by `load` or, after `import keras_selcal`, by
        `keras.saving.load_model`. How the model was compiled is not saved.

        Args:
            path: path that ends in .keras.
        """
        if not str(path).endswith(".keras"):
            refuse("path", str(path), "a path that ends in .keras")
        self.as_model().save(path)

    def export(
        self, path: Any, format: str = "tf_saved_model", *, verbose: bool = False
    ) -> None:
        """Exports the classifier, to be served without Keras and this library.

        The artifact maps the model's inputs to the named outputs of `as_model`, for
        any batch size.

        Args:
            path: path of the artifact: a folder for a SavedModel, or a file that ends
                in .onnx, .tflite (LiteRT), .pt2 (PyTorch) or .xml (OpenVINO).
            format: `"tf_saved_model"`, `"onnx"`, `"litert"`, `"torch"` or
                `"openvino"`. A format that the backend does not offer is refused:
                save the classifier and export it on a backend that does.
            verbose: whether to print the path.
        """
        self.as_model().export(path, format=format, verbose=verbose)

    @classmethod
    def load(cls: type[C], path: Any) -> C:
        """Loads a file that was saved by `save`, on any backend."""
        loaded = keras.saving.load_model(path, compile=False)
        # Inputs, then the model, then the layer that `as_model` has put behind it.
        layers = list(getattr(loaded, "layers", ()))
        models = [layer for layer in layers if isinstance(layer, keras.Model)]
        if not models or not isinstance(layers[-1], cls.layer_class):
            refuse("path", str(path), f"a file saved by `{cls.__name__}.save`")
        layer = layers[-1]
        classifier = cls(
            models[-1],
            calibrator=layer.calibration and layer.calibration.calibrator,
            **cls._arguments(layer),
        )
        classifier._layer = layer
        return classifier

    @classmethod
    def _arguments(cls, layer: Any) -> dict[str, Any]:
        """Returns the other arguments of the classifier that a layer belongs to."""
        raise NotImplementedError


def to_arrays(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Returns answers as NumPy arrays."""
    return {name: ops.convert_to_numpy(value) for name, value in tensors.items()}
