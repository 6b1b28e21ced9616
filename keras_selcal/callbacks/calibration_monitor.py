"""Calibration and selection metrics at the end of each epoch."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_selcal import csf as csfs
from keras_selcal import functional
from keras_selcal._core.samples import Samples
from keras_selcal._core.validation import check_count, refuse
from keras_selcal.callbacks._event_file import EventFile, require_tensorboard
from keras_selcal.callbacks._pictures import draw, require_matplotlib
from keras_selcal.callbacks._validation_data import Predictions, ValidationData

Metric = Callable[..., float]


def _accuracy(y_true: Any, y_pred: Any, from_logits: bool, sample_weight: Any) -> float:
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    # The class of a NaN is no answer.
    return samples.mean(np.where(np.isnan(samples.confidence), np.nan, samples.correct))


def _by_name(name: str, csf: csfs.ConfidenceScore, num_bins: int) -> Metric:
    """Returns the metric that `CalibrationReport` calls by this name."""
    binned: dict[str, Metric] = {
        "ece": functional.ece,
        "adaptive_ece": partial(functional.ece, binning="adaptive"),
        "cwece": functional.cwece,
    }
    ranked: dict[str, Metric] = {
        "aurc": functional.aurc,
        "excess_aurc": functional.excess_aurc,
        "augrc": functional.augrc,
        "failure_auroc": functional.failure_auroc,
    }
    plain: dict[str, Metric] = {
        "accuracy": _accuracy,
        "nll": functional.nll,
        "brier": functional.brier,
        "smooth_ece": functional.smooth_ece,
        **{key: partial(metric, num_bins=num_bins) for key, metric in binned.items()},
        **{key: partial(metric, csf=csf) for key, metric in ranked.items()},
    }
    if name in plain:
        return plain[name]
    kind, _, level = name.rpartition("_")
    try:
        if kind == "risk_at_coverage":
            return partial(functional.risk_at_coverage, coverage=float(level), csf=csf)
        if kind == "coverage_at_risk":
            return partial(functional.coverage_at_risk, risk=float(level), csf=csf)
    except ValueError:
        pass
    listed = ", ".join(plain)
    refuse(
        "metrics", name, f"names such as {listed}, risk_at_coverage_0.8, or callables"
    )


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
            metric = _by_name(metric, csf, num_bins)
        if not isinstance(name, str) or not callable(metric):
            refuse("metrics", metric, "names or callables (a dict names a partial)")
        if name in found:
            refuse("metrics", name, "metrics of different names")
        found[name] = metric
    if not found:
        refuse("metrics", metrics, "at least one metric")
    return found


class CalibrationMonitor(keras.callbacks.Callback):
    """Watches calibration and selection on validation data while a model trains.

    At the end of an epoch the model predicts the validation data, and the metrics of
    these predictions are added to `logs` as `val_ece`, `val_aurc` and so on. History,
    progress bar, `EarlyStopping`, `ModelCheckpoint`, `ReduceLROnPlateau` and
    `CSVLogger` then find them there like any other metric. Two things to know:

    - Callbacks act in the order of the list: **put the monitor before those that read
      its metrics**. One that stands before it warns that `val_ece` is not available.
    - Keras knows no direction of these names: say `mode="min"` (`"max"` for
      `failure_auroc`, `accuracy` and `coverage_at_risk_…`).

    A small ECE alone is no aim: a model that always answers with the frequencies of
    the classes has one of 0. `val_nll` falls only where answers and probabilities are
    both good, so that it is the safer one to stop at.

    The metrics are the exact ones of `keras_selcal.functional` on all predictions,
    which are held in memory: n·k numbers, and of a data set n labels beside them.

    Training takes the same course as without the monitor, to the bit: weights, metrics
    and the random state of layers are left alone, and nothing is compiled anew. Only
    what draws from PyTorch's global generator can change that: a `DataLoader` that is
    given no `generator`, and on that backend dropout that stays on in predictions.

    Args:
        validation_data: as `keras.Model.fit` takes it: (x, y) or
            (x, y, sample_weight) of arrays, or a data set of such batches (a
            `PyDataset`, a `tf.data.Dataset`, a `DataLoader`, any iterable that is not
            used up by walking through it). Samples of weight 0 (padding) do not count.
        metrics: names as in `CalibrationReport` (`"smooth_ece"`,
            `"risk_at_coverage_0.8"`, …), or callables
            `f(y_true, y_pred, from_logits=…, sample_weight=…)` like the functions of
            `keras_selcal.functional`; a dict gives them names of one's own.
        every: k: measures in the epochs 1, k, 2k, … and in the last one. In between
            `logs` repeats the last values, so that nothing that reads them misses
            them; `patience` still counts all epochs.
        prefix: of the names in `logs`.
        from_logits: whether the model gives logits. By default it does unless its last
            operation is a softmax. Outputs that are no probabilities are refused
            where such are expected, and the other way round there is a warning.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_bins: M of the binned errors.
        batch_size: of the predictions for arrays; 32 by default.
        steps: how many batches of the validation data are read; all by default.
        picture_dir: a folder for `reliability-003.png` and `risk_coverage-003.png`,
            the pictures of epoch 3 by `keras_selcal.plots` (extra `plots`).
        log_dir: a folder for TensorBoard: the metrics and the pictures, by the epoch
            from 0 on as Keras counts it there. Needs TensorBoard (extra
            `tensorboard`), and no TensorFlow.
        picture_every: k of the pictures, like `every`, which is its default.

    Attributes:
        values: the last metrics by their names in `logs`.

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
        metrics: Any = ("nll", "ece", "adaptive_ece", "cwece", "aurc"),
        *,
        every: int = 1,
        prefix: str = "val_",
        from_logits: bool | None = None,
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
        self.picture_dir = None if picture_dir is None else Path(picture_dir)
        self.log_dir = log_dir
        if picture_dir is not None or log_dir is not None:
            require_matplotlib()
        if log_dir is not None:
            require_tensorboard()
        self.values: dict[str, float] = {}
        self._data = ValidationData(validation_data, batch_size, steps)
        self._event_file: EventFile | None = None
        self._warned = False

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        # What is wrong with data or model is told before the first epoch, not after.
        self._data.predict(self.model, self.from_logits, first=True)
        self.values = {}
        self._warned = False
        if self.picture_dir is not None:
            self.picture_dir.mkdir(parents=True, exist_ok=True)
        if self.log_dir is not None:
            self._event_file = EventFile(self.log_dir)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        illustrated = (
            self.picture_dir is not None or self.log_dir is not None
        ) and self._due(epoch, self.picture_every)
        if illustrated or self._due(epoch, self.every):
            predictions = self._data.predict(self.model, self.from_logits)
            self.values = self._measure(predictions)
            self._write(epoch, predictions, illustrated)
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

    def _measure(self, predictions: Predictions) -> dict[str, float]:
        y_true, y_pred, from_logits, sample_weight = predictions
        options = {"from_logits": from_logits, "sample_weight": sample_weight}
        return {
            self.prefix + name: float(metric(y_true, y_pred, **options))
            for name, metric in self.metrics.items()
        }

    def _write(self, epoch: int, predictions: Predictions, illustrated: bool) -> None:
        """Writes the pictures and to TensorBoard, where wanted."""
        pictures: dict[str, bytes] = {}
        # There is no picture of NaN.
        if illustrated and np.isfinite(Samples.of(*predictions).y_pred).all():
            name = f"epoch {epoch + 1}"
            pictures = draw(predictions, name, self.csf, self.num_bins)
        if self.picture_dir is not None:
            for name, png in pictures.items():
                (self.picture_dir / f"{name}-{epoch + 1:03d}.png").write_bytes(png)
        if self._event_file is not None:
            self._event_file.write(
                epoch,
                {f"calibration/{name}": x for name, x in self.values.items()},
                {f"calibration/{self.prefix}{n}": png for n, png in pictures.items()},
            )

    def _warn_if_replaced(self, logs: Mapping[str, float]) -> None:
        replaced = sorted(set(logs) & set(self.values))
        if replaced and not self._warned:
            self._warned = True
            warnings.warn(
                f"CalibrationMonitor replaces {', '.join(replaced)}, which `fit` or "
                "another callback has put into the logs. Another `prefix` keeps both.",
                stacklevel=2,
            )
