"""The base class of the calibrators."""

import copy
import inspect
import math
import os
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_selcal._arrays import Array, namespace, to_float_tensor, to_floats, to_numpy
from keras_selcal._backend.installed import require_backend
from keras_selcal._formulas.functions import TINY, at_least, constant
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import class_in_files, name_in_files
from keras_selcal._validation import TENSOR_SUM_TOLERANCE, refuse
from keras_selcal.calibrators._parameters import (
    Fitted,
    Parameters,
    cast_all,
    read_file,
    stack,
    write_file,
)
from keras_selcal.calibrators.data import Labelled, checked_outputs, gather

if TYPE_CHECKING:
    import keras

C = TypeVar("C", bound="Calibrator")

_OPTIONS = ("from_logits", "multi_label", "ignore_class", "axis")
# Entries of the fitting data on which `fit` compares accuracies.
_MOST_COMPARED = 1 << 21


class Calibrator(ABC):
    """Base class: maps a classifier's outputs to calibrated probabilities.

    Every calibrator is fitted on held-out data, then applied:

    ```python
    calibrator.fit(logits, labels)        # or fit_model(model, dataset)
    probabilities = calibrator(logits)    # arrays, or tensors in a compiled graph
    calibrated = calibrator.wrap(model)   # a keras.Model, saved and loaded as .keras
    calibrator.save("calibrator.npz")     # Calibrator.load("calibrator.npz")
    ```

    The outputs have shape (..., k): samples, tokens (b, t, k) or pixels (b, h, w, k).
    One sigmoid unit has shape (..., 1) or (n,) and labels 0 or 1; it is the same as two
    columns of logits (0, z) or of probabilities (1 − p, p). The calibrated
    probabilities have the shape of the outputs.

    A logit of −∞ marks a class that cannot occur in a sample; it keeps probability 0.
    NaN gives NaN.

    `fit` runs in NumPy, and every backend gets the same parameters. A call with
    tensors of the Keras backend runs in `keras.ops` and returns a tensor; with
    anything else it runs in NumPy, returns an array and needs no Keras. A fit that
    fails leaves the calibrator unchanged.
    Sample weights count samples: a sample of weight 2 has the effect of two copies, and
    a sample of weight 0 has no effect.

    To define a calibrator, subclass and implement `_fit`, which returns the parameters
    for `Labelled` samples, and `_apply`, which uses them with `keras.ops` and with
    NumPy. Keep each argument of the constructor as an attribute of the same name, for
    `get_config`.

    Args:
        from_logits: whether the outputs are logits. If False, they are probabilities,
            and a probability of 0 counts as half of the smallest positive one in the
            fitting data.
        multi_label: whether the outputs are k independent sigmoids, and labels
            multi-hot. Each label then has its own parameters.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.
    """

    # Why `multi_label=True` is refused, for calibrators that do not support it.
    _single_label_because: str = ""
    # Whether calibration can change the predicted class.
    _may_reorder = True

    def __init__(
        self,
        *,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        self.outputs = Outputs(from_logits, multi_label, ignore_class, axis=axis)
        if multi_label and self._single_label_because:
            refuse("multi_label", multi_label, f"False: {self._single_label_because}")
        self._parameters: Parameters | None = None
        self._fitted: Fitted | None = None

    @abstractmethod
    def _fit(self, data: Labelled) -> Parameters:
        """Returns the parameters for samples with hard labels."""

    @abstractmethod
    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        """Returns probabilities (..., k) for logits (..., k).

        For multi-label data, logits are (..., labels, 2), and every parameter has the
        labels in its first axis.

        Args:
            logits: tensors, or arrays.
            parameters: the fitted parameters, of the same kind.
            xp: `keras.ops`, or NumPy.
        """

    def _accepts(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        """Returns which samples are accepted, (...)."""
        return xp.ones_like(logits[..., 0], dtype="bool")

    @property
    def from_logits(self) -> bool:
        """Whether it takes logits, not probabilities; once fitted, as in the fit."""
        fitted = self._fitted
        if fitted is None or fitted.from_logits is None:
            return self.outputs.from_logits
        return fitted.from_logits

    @property
    def multi_label(self) -> bool:
        """Whether the outputs are independent sigmoids."""
        return self.outputs.multi_label

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

    def _value(self, name: str) -> Any:
        """Returns a parameter: a float, or an array if it has several values."""
        value = np.asarray(self.parameters[name], "float64")
        return value if value.ndim else float(value)

    def fit(self: C, logits: Any, labels: Any, *, sample_weight: Any = None) -> C:
        """Fits the calibrator and returns it.

        Args:
            logits: the classifier's outputs, (..., k), (..., 1) or (n,); probabilities
                if the calibrator has `from_logits=False`.
            labels: class indices (...), one-hot or soft labels (..., k), of at least
                two classes; 0, 1 or soft for one sigmoid unit; multi-hot (..., k) if
                the calibrator has `multi_label=True`.
            sample_weight: how many samples each one counts for, (...). Weights that
                sum to less than the number of samples are scaled up to it.
        """
        return self._fit_as(self.outputs, logits, labels, sample_weight)

    def fitted_copy(
        self: C, y_pred: Any, labels: Any, sample_weight: Any, outputs: Outputs
    ) -> C:
        """Returns a copy that is fitted to a model's outputs. `outputs` describes them
        and replaces the calibrator's own options.
        """
        return copy.copy(self)._fit_as(outputs, y_pred, labels, sample_weight)

    def _fit_as(
        self: C, outputs: Outputs, logits: Any, labels: Any, sample_weight: Any
    ) -> C:
        if outputs.multi_label != self.multi_label:
            refuse("calibrator", self, f"one of multi_label={outputs.multi_label}")
        problems, floor = gather(outputs, logits, labels, sample_weight)
        parameters = self._fit_all(problems)
        first = problems[0]
        k = len(problems) if outputs.multi_label else first.num_classes
        self._parameters = parameters
        self._fitted = Fitted(k, first.total, max(floor, TINY), outputs.from_logits)
        return self

    def _fit_all(self, problems: list[Labelled]) -> Parameters:
        """Returns the parameters for samples, or for each label's samples."""
        first = problems[0]
        if not self.multi_label:
            if first.one_class:
                refuse("labels", int(first.labels[0]), "of at least two classes")
            parameters = self._fit(first)
            if self._may_reorder:
                self._compare_accuracy(first, parameters)
            return parameters
        constant = [c for c, data in enumerate(problems) if data.one_class]
        if constant:
            warnings.warn(
                "These labels are always 0 or always 1 in the fitting data, too "
                f"little to calibrate them: {constant}",
                stacklevel=4,
            )
        return stack([self._fit(each) for each in problems])

    def _compare_accuracy(self, data: Labelled, found: Parameters) -> None:
        """Warns if calibration lowers the accuracy on the fitting data itself."""
        n = data.total
        data = data[:: -(-data.logits.size // _MOST_COMPARED)]
        p = self._apply(data.logits, cast_all(found, data.logits.dtype, np), np)
        before, after = (x.argmax(axis=-1) == data.labels for x in (data.logits, p))
        lost = float(data.weight @ (before & ~after) - data.weight @ (after & ~before))
        changed = float(data.weight @ (before != after))
        if lost > 0.01 * data.total and lost > 3 * math.sqrt(changed):
            was, now = (100 * data.weight @ x / data.total for x in (before, after))
            warnings.warn(
                f"{type(self).__name__} lowers the accuracy on its own fitting data "
                f"from {was:.1f} % to {now:.1f} %: with {n:.0f} samples of "
                f"{data.num_classes} classes it changes correct predictions. "
                "`TemperatureScaling` keeps the predicted classes.",
                stacklevel=5,
            )

    def fit_model(
        self: C,
        model: "keras.Model",
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        from_logits: bool | None = None,
        output: str | int | None = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> C:
        """Fits the calibrator to a model's outputs and returns it.

        Afterwards it takes what the model returns, logits or probabilities. Keras masks
        and the sample weights of a data set are applied: masked tokens do not count.

        Args:
            model: a Keras model.
            x: arrays, or a data set of (x, y) or (x, y, sample_weight) batches
                (`tf.data.Dataset`, `keras.utils.PyDataset`, PyTorch's `DataLoader`,
                any iterable).
            y: labels, if `x` is arrays.
            sample_weight: weights, if `x` is arrays.
            from_logits: whether the model returns logits. By default it does unless
                its last operation is a softmax or a sigmoid, or the calibrator has
                `from_logits=False`.
            output: the name or index of one of several outputs. Labels may be given for
                it alone, or in a dict or list as in `keras.Model.fit`.
            batch_size: used if `x` is arrays.
            verbose: whether a progress bar is shown, as in `keras.Model.predict`.
        """
        require_backend()
        from keras_selcal._predictions.data import LabelledData
        from keras_selcal._predictions.models import OneOutput

        one = OneOutput.of(model, output)
        several = one.key is not None
        data = LabelledData(x, y, sample_weight, batch_size=batch_size, several=several)
        found = data.predict(one, verbose=verbose, axis=self.outputs.axis)
        return self._fit_as(self.outputs_of(one.model, from_logits), *found)

    def outputs_of(self, model: "keras.Model", from_logits: bool | None) -> Outputs:
        """Returns what a model's outputs mean, with `from_logits` as in `fit_model`."""
        from keras_selcal._predictions.models import gives_logits

        if from_logits is None and not self.outputs.from_logits:
            from_logits = False
        return replace(self.outputs, from_logits=gives_logits(model, from_logits))

    def __call__(self, logits: Any) -> Any:
        """Returns calibrated probabilities, in the shape of the outputs.

        Args:
            logits: the classifier's outputs, (..., k), (..., 1) or (n,), of the kind
                that the calibrator was fitted to. A tensor of the Keras backend gives
                a tensor, anything else a NumPy array.
        """
        xp = namespace(logits)
        p = self._computed(self._apply, logits, xp)
        shape = tuple(logits.shape) if hasattr(logits, "shape") else np.shape(logits)
        return self.outputs.restored(p, xp, shape)

    def predict_proba(self, logits: Any) -> Array:
        """Returns calibrated probabilities as a NumPy array; see `__call__`."""
        return to_numpy(self(logits))

    def accepts(self, logits: Any) -> Any:
        """Returns which samples the calibrator accepts, a mask (...).

        Only `MetaAcc` and `MetaMis` reject samples; the others accept all.
        """
        return self._computed(self._accepts, logits, namespace(logits))

    def _computed(self, function: Callable[..., Any], logits: Any, xp: Any) -> Any:
        """Returns what `_apply` or `_accepts` computes."""
        if xp is not np:
            return function(*self._prepare(logits, xp), xp)
        # NaN and −∞ are allowed, and need no warnings.
        with np.errstate(all="ignore"):
            return function(*self._prepare(logits, np), np)

    def _prepare(self, logits: Any, xp: Any) -> tuple[Any, dict[str, Any]]:
        parameters = self.parameters
        if xp is np:
            array = checked_outputs(self.outputs, logits, self.from_logits)
            columns = self._columns(to_floats(array), self.from_logits, np)
        else:
            columns = self._columns(to_float_tensor(logits), self.from_logits, xp)
        return columns, cast_all(parameters, columns.dtype, xp)

    def _check_shape(self, shape: Sequence[int | None]) -> None:
        assert self._fitted is not None
        k = self._fitted.num_classes
        if self.outputs.is_one_unit(tuple(shape)):
            if k == 2:
                return
        elif shape[self.outputs.axis] == k:
            return
        what = "labels" if self.multi_label else "classes"
        refuse("logits", tuple(shape), f"of {k} {what}, as in the fitting data")

    def _columns(self, x: Any, from_logits: bool, xp: Any) -> Any:
        """Returns outputs as logits (..., k), or (..., labels, 2) if multi-label."""
        assert self._fitted is not None
        self._check_shape(x.shape)
        x = self.outputs.columns(x, from_logits, xp)
        if from_logits:
            return x
        # Rows that are not distributions become NaN instead of a plausible result.
        sums = xp.sum(xp.abs(x), axis=-1, keepdims=True)
        valid = xp.abs(sums - 1.0) <= TENSOR_SUM_TOLERANCE
        x = xp.where(valid, x, constant(math.nan, x, xp))
        return xp.log(at_least(x, self._fitted.floor, xp))

    def wrap(
        self,
        model: "keras.Model",
        *,
        from_logits: bool | None = None,
        output: str | int | None = None,
    ) -> "keras.Model":
        """Creates a model with the same inputs that returns calibrated probabilities.

        It shares the weights of `model`. Saved as .keras, it loads on any backend after
        `import keras_selcal`, without how `model` was compiled. `export` writes it as
        SavedModel, ONNX, LiteRT, PyTorch or OpenVINO, as far as the backend can.

        Args:
            model: a functional model, or a built Sequential one.
            from_logits: as in `fit_model`.
            output: the name or index of one of several outputs. It is calibrated, and
                the others stay as they are.
        """
        require_backend()
        from keras_selcal._predictions.models import OneOutput, map_output
        from keras_selcal.calibrators.layer import CalibrationLayer

        one = OneOutput.of(model, output)
        outputs = self.outputs_of(one.model, from_logits)
        if from_logits is None and outputs.from_logits and not self.from_logits:
            warnings.warn(
                "The calibrator was fitted to probabilities. Outputs of `model`, which "
                "ends in no softmax or sigmoid, are taken for logits: pass from_logits",
                stacklevel=2,
            )
        return map_output(model, CalibrationLayer(self, outputs.from_logits), one)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the fitted calibrator as one small .npz file.

        The file holds the arguments as JSON and the parameters as arrays, without
        pickle, and loads on any backend.

        Args:
            path: path of the file; no extension is added.
        """
        record = {
            "class": name_in_files(type(self)),
            "config": self.get_config(),
            "fitted": asdict(self._fitted) if self._fitted else None,
        }
        write_file(path, record, self.parameters)

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str]) -> C:
        """Loads a calibrator that was saved by `save`.

        Args:
            path: path of the file.
        """
        allowed = "a file saved by `Calibrator.save`"
        try:
            record, parameters = read_file(path)
            made = class_in_files(record["class"])
            fitted = Fitted(**record["fitted"])
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except Exception:  # a damaged or encrypted archive fails in many ways
            refuse("path", str(path), allowed)
        for name, values in parameters.items():
            if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
                refuse("path", str(path), f"{allowed}, with finite `{name}`")
        if not (isinstance(made, type) and issubclass(made, cls)):
            refuse("path", str(path), f"{allowed}, of a {cls.__name__}")
        return made.from_config(record["config"])._with_parameters(parameters, fitted)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, without fitted values.

        Each is an attribute of the same name.
        """
        own = {
            name: getattr(self, name)
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if name not in _OPTIONS and parameter.kind is not parameter.VAR_KEYWORD
        }
        return {**own, **self.outputs.config(*_OPTIONS)}

    @classmethod
    def from_config(cls: type[C], config: dict[str, Any]) -> C:
        return cls(**config)

    def __repr__(self) -> str:
        plain = Outputs(from_logits=True).config(*_OPTIONS)
        arguments = ", ".join(
            f"{name}={reprlib.repr(value)}"
            for name, value in self.get_config().items()
            if value is not None and value != plain.get(name)
        )
        text = f"{type(self).__name__}({arguments})"
        if self._fitted is None:
            return f"<{text}, not fitted>"
        values = [
            f"{name}={_shown(value)}"
            for name, value in self.parameters.items()
            if np.ndim(value) <= 1 and name != "n"
        ]
        k, n = self._fitted.num_classes, self._fitted.num_samples
        values += [] if n is None else [f"n={n:.10g}"]
        values.append(f"{'labels' if self.multi_label else 'classes'}={k}")
        return f"<{text}, fitted: {', '.join(values)}>"

    def _with_parameters(self: C, parameters: Parameters, fitted: Any) -> C:
        """Returns a copy with other parameters; `fitted` may be just k."""
        made = copy.copy(self)
        made._parameters = parameters
        made._fitted = fitted if isinstance(fitted, Fitted) else Fitted(fitted)
        return made


def _shown(value: Any) -> str:
    """Returns a number, or the ends of an array, with four digits."""
    if np.ndim(value) == 0:
        return f"{float(value):.4g}"
    numbers = [f"{number:.4g}" for number in value]
    if len(numbers) > 6:
        numbers[3:-3] = ["…"]
    return f"[{', '.join(numbers)}]"
