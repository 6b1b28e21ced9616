"""Calibration and selection metrics at the end of each epoch."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array
from keras_selcal._extras import require
from keras_selcal._predictions.data import LabelledData
from keras_selcal._predictions.models import OneOutput, gives_logits
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples, check_outputs
from keras_selcal._validation import check_count, refuse
from keras_selcal.callbacks._event_file import EventFile, require_tensorboard
from keras_selcal.callbacks._pictures import draw
from keras_selcal.metric_table import metric_row

Metric = Callable[..., float]


def _check_metrics(
    metrics: Any, csf: csfs.ConfidenceScore, num_bins: int
) -> dict[str, Metric]:
    """Returns the metrics by name."""
    if isinstance(metrics, str) or not isinstance(metrics, Mapping | Sequence):
        refuse("metrics", metrics, "a list of names or callables, or a dict of them")
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        named = [(getattr(one, "__name__", one), one) for one in metrics]
    found: dict[str, Metric] = {}
    for name, metric in named:
        if isinstance(metric, str):
            row = metric_row(metric)
            metric = partial(row.compute, csf=csf, num_bins=num_bins)
        if not isinstance(name, str) or not callable(metric):
            refuse("metrics", metric, "names or callables (a dict names a partial)")
        if name in found:
            refuse("metrics", name, "metrics of different names")
        found[name] = metric
    if not found:
        refuse("metrics", metrics, "at least one metric")
    return found


class CalibrationMonitor(keras.callbacks.Callback):
    """Monitors calibration and selection on validation data during training.

    At the end of an epoch the model predicts the validation data, and the metrics of
    these predictions are added to `logs` as `val_ece`, `val_aurc` and so on. History,
    progress bar, `EarlyStopping`, `ModelCheckpoint`, `ReduceLROnPlateau` and
    `CSVLogger` read them like any other metric. Two things to note:

    - Keras calls callbacks in the order of the list: **put the monitor before the
      callbacks that read its metrics**. A callback that is listed before the monitor
      warns that `val_ece` is not available.
    - Keras cannot infer the mode of these names: pass `mode="min"` (`"max"` for
      `failure_auroc`, `accuracy` and `coverage_at_risk_…`).

    A small ECE alone does not make a good model: one that always predicts the
    frequencies of the classes has an ECE of 0. `val_nll` is the safer metric for early
    stopping, because it falls only if predictions and probabilities are both good. If
    the model is calibrated after training, use `val_refinement`, the NLL after the best
    temperature (refine, then calibrate).

    The metrics are the exact ones of `keras_selcal.functional`. All predictions are
    held in memory: n·k numbers, and n labels for a data set.

    Data and model are checked on the first batch, before training: logits in the place
    of probabilities, labels that are not classes and negative weights raise an error. A
    warning names losses and metrics with `from_logits=True` if the model ends in a
    softmax or sigmoid.

    Results of training are bit-identical with and without the monitor: it does not
    change weights, metrics or the random state of layers, and nothing is compiled
    again. Two exceptions draw from PyTorch's global generator: a `DataLoader` without a
    `generator`, and, on that backend, dropout that is active in predictions.

    Args:
        validation_data: as in `keras.Model.fit`: (x, y) or (x, y, sample_weight) of
            arrays, or a data set of such batches (a `PyDataset`, a `tf.data.Dataset`, a
            `DataLoader`, any iterable that can be iterated over more than once).
            Samples of weight 0 and masked samples (padding) do not count.
        metrics: names as in `CalibrationReport` (`"smooth_ece"`,
            `"risk_at_coverage_0.8"`, …), or callables
            `f(y_true, y_pred, from_logits=…, sample_weight=…)` like the functions of
            `keras_selcal.functional`; a dict gives them other names.
        every: k; the metrics are computed in the epochs 1, k, 2k, … and in the last
            one. In other epochs `logs` repeats the last values, so other callbacks
            always find them; `patience` still counts all epochs.
        prefix: prefix of the names in `logs`.
        from_logits: whether the model returns logits. By default it does unless its
            last operation is a softmax or a sigmoid.
        multi_label: whether the outputs are k independent sigmoids, and labels
            multi-hot.
        ignore_class: samples with this label do not count.
        axis: axis of the classes: -1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is above
            this.
        output: the name or index of one of several outputs. Labels may be given for it
            alone, or in a dict or list as in `keras.Model.fit`. A monitor for each
            output needs a `prefix` of its own.
        csf: the confidence score that ranks the samples; see `keras_selcal.csf.get`.
        num_bins: M, the number of bins of the binned errors.
        batch_size: batch size of the predictions for arrays. Defaults to 32.
        steps: how many batches of the validation data are read. By default all are.
        picture_dir: a folder for plots by `keras_selcal.plots` (requires matplotlib):
            `reliability-003.png` and `risk_coverage-003.png` for epoch 3.
        log_dir: a folder for TensorBoard, to which metrics and plots are written by
            epoch, counted from 0 as Keras does there. Requires TensorBoard and
            matplotlib, but not TensorFlow.
        picture_every: like `every`, for the plots. Defaults to `every`.

    Attributes:
        values: the last metrics, by their names in `logs`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from keras_selcal import CalibrationMonitor
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 300)
    >>> x = np.eye(3)[y] + rng.normal(size=(300, 3))
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("adam", loss)
    >>> monitor = CalibrationMonitor((x[200:], y[200:]), ["ece", "aurc"])
    >>> stop = keras.callbacks.EarlyStopping("val_aurc", mode="min", patience=2)
    >>> fitted = model.fit(
    ...     x[:200], y[:200], epochs=3, callbacks=[monitor, stop], verbose=0
    ... )
    >>> sorted(fitted.history)
    ['loss', 'val_aurc', 'val_ece']
    """

    def __init__(
        self,
        validation_data: Any,
        metrics: Any = ("nll", "refinement", "ece", "adaptive_ece", "cwece", "aurc"),
        *,
        every: int = 1,
        prefix: str = "val_",
        from_logits: bool | None = None,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        output: str | int | None = None,
        csf: Any = "msp",
        num_bins: int = 15,
        batch_size: int | None = None,
        steps: int | None = None,
        picture_dir: str | os.PathLike[str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        picture_every: int | None = None,
    ) -> None:
        super().__init__()
        self.csf = csfs.get(csf)
        self.num_bins = check_count("num_bins", num_bins)
        self.metrics = _check_metrics(metrics, self.csf, self.num_bins)
        self.every = check_count("every", every)
        self.picture_every = check_count(
            "picture_every", every if picture_every is None else picture_every
        )
        if not isinstance(prefix, str):
            refuse("prefix", prefix, "a string")
        self.prefix = prefix
        self.from_logits = from_logits
        self._outputs = Outputs(
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
        )
        self.picture_dir = None if picture_dir is None else Path(picture_dir)
        self.log_dir = log_dir
        if picture_dir is not None or log_dir is not None:
            require("matplotlib", "`picture_dir` or `log_dir`")
        if log_dir is not None:
            require_tensorboard()
        self.values: dict[str, float] = {}
        self.output = output
        self._data = LabelledData.for_validation(
            validation_data, batch_size, steps, several=output is not None
        )
        self._one: Any = None
        self._event_file: EventFile | None = None
        self._warned = False

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        # Errors in data or model are raised before the first epoch, not after it.
        self._one = OneOutput.of(self.model, self.output)
        model = self._one.model
        self._outputs = replace(
            self._outputs, from_logits=gives_logits(model, self.from_logits)
        )
        self._warn_of_second_softmax([self.model.loss])
        found = self._data.predict(self._one, first=True, axis=self._outputs.axis)
        check_outputs(*found, self._outputs, told=self.from_logits is not None)
        self.values = {}
        self._warned = False
        if self.picture_dir is not None:
            self.picture_dir.mkdir(parents=True, exist_ok=True)
        if self.log_dir is not None:
            # The file of an interrupted training is still open.
            self.on_train_end()
            self._event_file = EventFile(self.log_dir)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        illustrated = (
            self.picture_dir is not None or self.log_dir is not None
        ) and self._due(epoch, self.picture_every)
        if not self.values:
            # Keras has no metrics before the first batch, except in lists.
            lists = [getattr(one, "metrics", [one]) for one in self.model.metrics]
            self._warn_of_second_softmax([one for each in lists for one in each])
        if illustrated or self._due(epoch, self.every):
            found = self._data.predict(self._one, axis=self._outputs.axis)
            self.values = self._measure(*found)
            self._write(epoch, *found, illustrated)
        if logs is not None:
            self._warn_if_replaced(logs)
            logs.update(self.values)

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        if self._event_file is not None:
            self._event_file.close()
            self._event_file = None

    def _due(self, epoch: int, every: int) -> bool:
        """Returns whether an epoch (from 0) is the first, a k-th or the last."""
        last = (self.params or {}).get("epochs")
        return not self.values or (epoch + 1) % every == 0 or epoch + 1 == last

    def _measure(
        self, y_pred: Array, y_true: Array, weight: Array | None
    ) -> dict[str, float]:
        options = self._options(weight)
        return {
            self.prefix + name: float(metric(y_true, y_pred, **options))
            for name, metric in self.metrics.items()
        }

    def _options(self, weight: Array | None) -> dict[str, Any]:
        """Returns the keyword arguments of metrics and plots: weights, `from_logits`,
        and the options that differ from the default.
        """
        return {
            "from_logits": self._outputs.from_logits,
            "sample_weight": weight,
            **self._outputs.changed(),
        }

    def _write(
        self,
        epoch: int,
        y_pred: Array,
        y_true: Array,
        weight: Array | None,
        illustrated: bool,
    ) -> None:
        """Writes plots and TensorBoard's file, if they are wanted."""
        pictures: dict[str, bytes] = {}
        # Skip the plots if a prediction is not finite.
        samples = Samples.of(y_true, y_pred, self._outputs, weight)
        if illustrated and np.isfinite(samples.y_pred).all():
            name = f"epoch {epoch + 1}"
            options = self._options(weight)
            pictures = draw(y_true, y_pred, name, self.csf, self.num_bins, options)
        if self.picture_dir is not None:
            for name, png in pictures.items():
                (self.picture_dir / f"{name}-{epoch + 1:03d}.png").write_bytes(png)
        if self._event_file is not None:
            self._event_file.write(
                epoch,
                {f"calibration/{name}": x for name, x in self.values.items()},
                {f"calibration/{self.prefix}{n}": png for n, png in pictures.items()},
            )

    def _warn_of_second_softmax(self, compiled: list[Any]) -> None:
        """Warns of losses and metrics that take a model's probabilities for logits."""
        wrong = [one for one in compiled if getattr(one, "from_logits", False)]
        # Of several outputs, it is not known which one a metric takes.
        if wrong and self._one.key is None and not gives_logits(self._one.model):
            names = ", ".join(getattr(one, "name", str(one)) for one in wrong)
            warnings.warn(
                "The model returns probabilities, but these have `from_logits=True` "
                f"and apply a second softmax or sigmoid: {names}. Pass "
                "`from_logits=False` to them.",
                stacklevel=3,
            )

    def _warn_if_replaced(self, logs: Mapping[str, float]) -> None:
        replaced = sorted(set(logs) & set(self.values))
        if replaced and not self._warned:
            self._warned = True
            warnings.warn(
                f"CalibrationMonitor replaces {', '.join(replaced)}, which `fit` or "
                "another callback has added to the logs. Use another `prefix` to keep "
                "both.",
                stacklevel=2,
            )
