"""Post-hoc calibration as the last step of training."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Array
from keras_selcal._predictions.data import LabelledData
from keras_selcal._predictions.models import (
    OneOutput,
    check_extensible,
    map_output,
)
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import check_outputs
from keras_selcal._validation import refuse
from keras_selcal._writing import replacing
from keras_selcal.calibrators import CalibrationLayer, Calibrator, TemperatureScaling
from keras_selcal.report import CalibrationReport


class CalibrateAtEnd(keras.callbacks.Callback):
    """Fits a calibrator when training ends, and saves the calibrated model.

    ```python
    calibrate = CalibrateAtEnd((x_val, y_val), "calibrated.keras")
    model.fit(x, y, callbacks=[calibrate])
    calibrate.calibrated_model.predict(x_test)    # calibrated probabilities
    ```

    The calibrated weights are the ones that the model has after training, also with
    `EarlyStopping(restore_best_weights=True)` anywhere in the list: if a callback
    restores weights after the calibration, the calibration is repeated. (This is not
    possible if you list a `History` of your own before this callback.)

    Args:
        validation_data: as in `keras.Model.fit`: (x, y) or (x, y, sample_weight) of
            arrays, or a data set of such batches (a `PyDataset`, a `tf.data.Dataset`, a
            `DataLoader`, any iterable that can be iterated over more than once).
            Samples of weight 0 and masked samples do not count.
        path: path that ends in .keras, where the calibrated model is saved. After
            `import keras_selcal`, `keras.saving.load_model` loads it on any backend.
            The file is replaced in one step and never half written. By default
            nothing is saved.
        calibrator: a calibrator; a copy of it is fitted. Defaults to
            `TemperatureScaling()`. Its options describe the model's outputs:
            `multi_label`, `ignore_class` and `axis`.
        from_logits: whether the model returns logits. By default it does unless its
            last operation is a softmax or a sigmoid.
        output: the name or index of one of several outputs, which is calibrated; the
            others stay as they are. Labels may be given for it alone, or in a dict or
            list as in `keras.Model.fit`.
        batch_size: batch size of the predictions for arrays. Defaults to 32.
        steps: how many batches of the validation data are read. By default all are.
        verbose: 0 or 1, whether to print the result.

    Attributes:
        calibrator: the fitted calibrator, once training has ended.
        calibrated_model: a Keras model that returns calibrated probabilities and shares
            the weights of the trained model; None before training has ended.
        before: the `CalibrationReport` of the validation data without calibration.
        after: the report with calibration. The calibrator was fitted on the same data:
            measure its benefit on other data.

    Scalar parameters of the calibrator (`temperature`), `ece_before` and `ece_after`
    are added to the `logs` of `on_train_end`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from keras_selcal import CalibrateAtEnd
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 300)
    >>> x = np.eye(3)[y] + rng.normal(size=(300, 3))
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("adam", loss)
    >>> calibrate = CalibrateAtEnd((x[200:], y[200:]), verbose=0)
    >>> history = model.fit(x[:200], y[:200], callbacks=[calibrate], verbose=0)
    >>> calibrate.after["nll"].value <= calibrate.before["nll"].value
    True

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """

    def __init__(
        self,
        validation_data: Any,
        path: str | os.PathLike[str] | None = None,
        calibrator: Calibrator | None = None,
        *,
        from_logits: bool | None = None,
        output: str | int | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: int = 1,
    ) -> None:
        super().__init__()
        if calibrator is None:
            calibrator = TemperatureScaling()
        if not isinstance(calibrator, Calibrator):
            refuse("calibrator", calibrator, "a calibrator of keras_selcal, or None")
        if path is not None and not os.fspath(path).endswith(".keras"):
            refuse("path", path, "a path that ends in .keras, or None")
        self.path = None if path is None else Path(path)
        self.calibrator = calibrator
        self.from_logits = from_logits
        self.output = output
        self.verbose = verbose
        self.calibrated_model: keras.Model | None = None
        self.before: CalibrationReport | None = None
        self.after: CalibrationReport | None = None
        self._data = LabelledData.for_validation(
            validation_data, batch_size, steps, several=output is not None
        )
        self._calibrated_weights = b""

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        # Errors in data or model are raised before training, not after it.
        output = OneOutput.of(self.model, self.output)
        check_extensible(output.model)
        outputs = self.calibrator.outputs_of(output.model, self.from_logits)
        found = self._data.predict(output, first=True, axis=outputs.axis)
        check_outputs(*found, outputs, told=self.from_logits is not None)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        self._calibrate(logs)
        # A callback that is listed later may restore other weights. Keras calls its
        # History last: all others are done when it is called.
        history: Any = getattr(self.model, "history", None)

        def when_all_are_done(logs: dict[str, float] | None = None) -> None:
            del history.on_train_end
            if _fingerprint(self.model) != self._calibrated_weights:
                self._calibrate(logs)

        if history is not None:
            history.on_train_end = when_all_are_done

    def _calibrate(self, logs: dict[str, float] | None) -> None:
        output = OneOutput.of(self.model, self.output)
        outputs = self.calibrator.outputs_of(output.model, self.from_logits)
        y_pred, y_true, weight = self._data.predict(output, axis=outputs.axis)
        calibrator = self.calibrator.fitted_copy(y_pred, y_true, weight, outputs)
        layer = CalibrationLayer(calibrator, from_logits=outputs.from_logits)
        self.calibrated_model = map_output(self.model, layer, output)
        self.calibrator = calibrator
        self._calibrated_weights = _fingerprint(self.model)
        p = ops.convert_to_numpy(layer(ops.convert_to_tensor(y_pred)))
        self.before = _report(y_pred, y_true, weight, outputs, "before")
        outputs = replace(outputs, from_logits=False)
        self.after = _report(p, y_true, weight, outputs, "after")
        outcome = {
            **{
                name: float(value)
                for name, value in calibrator.parameters.items()
                if np.ndim(value) == 0
            },
            "ece_before": self.before["ece"].value,
            "ece_after": self.after["ece"].value,
        }
        if logs is not None:
            logs.update(outcome)
        if self.path is not None:
            _save(self.calibrated_model, self.path)
        if self.verbose:
            print(self._summary(outcome))

    def _summary(self, outcome: dict[str, float]) -> str:
        assert self.before is not None
        assert self.after is not None
        parts = [
            f"{name} {value:.4g}"
            for name, value in outcome.items()
            if not name.startswith("ece_")
        ]
        parts += [
            f"{name.upper()} {self.before[name].value:.4g} → "
            f"{self.after[name].value:.4g}"
            for name in ("ece", "nll")
        ]
        text = (
            f"{type(self.calibrator).__name__} on {self.before.num_samples:,} "
            f"validation samples: {', '.join(parts)}"
        )
        return text + (f"; saved to {self.path}" if self.path is not None else "")


def _report(
    y_pred: Array, y_true: Array, weight: Array | None, outputs: Outputs, name: str
) -> CalibrationReport:
    """Returns the report of predictions, without intervals."""
    if outputs.axis != -1:
        if y_true.ndim == y_pred.ndim:
            y_true = np.moveaxis(y_true, outputs.axis, -1)
        y_pred = np.moveaxis(y_pred, outputs.axis, -1)
    return CalibrationReport(
        y_true,
        y_pred,
        from_logits=outputs.from_logits,
        sample_weight=weight,
        bootstrap=0,
        name=name,
        **replace(outputs, axis=-1).changed(),
    )


def _fingerprint(model: keras.Model) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for weight in model.weights:
        digest.update(ops.convert_to_numpy(weight).tobytes())
    return digest.digest()


def _save(model: keras.Model, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as written:
        model.save(written)
