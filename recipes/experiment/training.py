"""Trains one arm on one bed with one seed, and appends its figures to results.csv."""

import csv
import fcntl
import io
import math
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_selcal as ks
from keras_selcal import functional
from recipes.data.pipeline import Batches
from recipes.experiment.plan import ARMS, BATCH_SIZE, BEDS, Data, optimizer

RESULTS = Path(__file__).with_name("results.csv")
KEY = ("bed", "arm", "seed", "checkpoint", "scaling")
METRICS = ("accuracy", "ece", "adaptive_ece", "cwece", "nll", "aurc")
FIELDS = (
    *KEY,
    *("epochs", "epoch", "temperature"),
    *(f"{split}_{metric}" for split in ("val", "test") for metric in METRICS),
    "cpu_seconds",
)


def train(
    bed: str, arm: str, seed: int, data: Data, folder: Path, epochs: int | None = None
) -> list[dict[str, Any]]:
    """Trains a network, and returns the rows of its two checkpoints.

    A seed decides the split, the initial weights, and the order and augmentation of the
    batches. The state is saved after each epoch, so that a run that was killed
    continues, with bit-identical results.

    Args:
        bed: name in `BEDS`.
        arm: name in `ARMS`.
        seed: seed of everything that is random.
        data: the data of this seed.
        folder: where the state of unfinished runs is kept.
        epochs: number of epochs; defaults to that of the bed.
    """
    plan = BEDS[bed]
    epochs = epochs or plan.epochs
    keras.utils.set_random_seed(seed)
    model = plan.network()
    model.compile(optimizer(len(data.train), epochs), ARMS[arm].loss())
    model.optimizer.build(model.trainable_variables)
    batches = Batches(
        *(data.train, data.preprocessing, BATCH_SIZE),
        training=True,
        seed=seed,
        workers=0,
    )
    val, test = (
        Batches(split, data.preprocessing, BATCH_SIZE, workers=0)
        for split in (data.val, data.test)
    )
    state = _State(folder / f"{bed}-{arm}-{seed}.npz", min(plan.warmup, epochs - 1))
    state.restore(model)
    if state.epoch < epochs:
        model.fit(
            batches,
            shuffle=False,
            validation_data=val,
            initial_epoch=state.epoch,
            epochs=epochs,
            verbose=0,
            callbacks=[batches.callback, *ARMS[arm].callbacks(epochs), state],
        )
    rows = []
    for checkpoint in ("last", "best"):
        epoch = epochs
        if checkpoint == "best":
            epoch = state.best_epoch
            for variable, value in zip(model.variables, state.best, strict=True):
                variable.assign(value)
        logits = (model.predict(val, verbose=0), model.predict(test, verbose=0))
        for row in _measures(logits, (data.val.y, data.test.y)):
            key = {"bed": bed, "arm": arm, "seed": seed, "checkpoint": checkpoint}
            rows.append({**key, **row, "epochs": epochs, "epoch": epoch})
    for row in rows:
        row["cpu_seconds"] = round(state.seconds)
    state.path.unlink(missing_ok=True)
    return rows


def _measures(
    logits: tuple[np.ndarray, np.ndarray], labels: tuple[np.ndarray, np.ndarray]
) -> list[dict[str, Any]]:
    """Returns the metrics of validation and test, before and after scaling.

    T minimises the NLL of the validation data. All metrics are in %, except NLL. The
    metrics of logits that are not finite are NaN.
    """
    finite = all(np.isfinite(each).all() for each in logits)
    temperature = math.nan
    if finite:
        scaling = ks.TemperatureScaling().fit(logits[0], labels[0])
        temperature = float(scaling.temperature)
    rows = []
    for name, scale in (("none", 1.0), ("ts", temperature)):
        row: dict[str, Any] = {"scaling": name, "temperature": scale}
        for split, z, y in zip(("val", "test"), logits, labels, strict=True):
            values = _metrics(z / scale, y) if finite else [math.nan] * len(METRICS)
            row |= {f"{split}_{m}": v for m, v in zip(METRICS, values, strict=True)}
        rows.append(row)
    return rows


def _metrics(logits: np.ndarray, labels: np.ndarray) -> list[float]:
    accuracy = 100 * float(np.mean(logits.argmax(1) == labels))
    ece, adaptive = (
        functional.ece(labels, logits, binning=binning, from_logits=True)
        for binning in ("uniform", "adaptive")
    )
    cwece = functional.cwece(labels, logits, from_logits=True)
    nll = functional.nll(labels, logits, from_logits=True)
    aurc = functional.aurc(labels, logits, from_logits=True)
    shares = [100 * float(value) for value in (ece, adaptive, cwece)]
    return [accuracy, *shares, float(nll), 100 * float(aurc)]


class _State(keras.callbacks.Callback):
    """The state of a run after each epoch, and the weights that are best so far.

    Best is the lowest validation loss, of the loss that is trained, after the warm-up.
    """

    def __init__(self, path: Path, warmup: int) -> None:
        super().__init__()
        self.path, self.warmup = path, warmup
        self.epoch, self.best_epoch = 0, 0
        self.lowest, self.seconds = math.inf, 0.0
        self.best: list[np.ndarray] = []

    def restore(self, model: keras.Model) -> None:
        """Loads the state of a run that was killed."""
        self._start = time.process_time()
        if not self.path.exists():
            return
        with np.load(self.path) as saved:
            names = ("epoch", "best_epoch", "lowest", "seconds")
            values = (value.item() for value in (saved[name] for name in names))
            self.epoch, self.best_epoch, self.lowest, self.seconds = values
            count = len(model.variables)
            if self.best_epoch:
                self.best = [saved[f"best{i}"] for i in range(count)]
            for i, variable in enumerate(_variables(model)):
                variable.assign(saved[f"now{i}"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        loss = float(logs["val_loss"])
        self.epoch = epoch + 1
        # The first epoch that counts is kept even if its loss is not finite.
        if self.epoch > self.warmup and (loss < self.lowest or not self.best):
            self.lowest, self.best_epoch = loss, self.epoch
            self.best = _values(self.model.variables)
        now = time.process_time()
        self.seconds += now - self._start
        self._start = now
        arrays = {f"now{i}": v for i, v in enumerate(_values(_variables(self.model)))}
        arrays |= {f"best{i}": value for i, value in enumerate(self.best)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial.npz")
        np.savez(
            partial,
            epoch=self.epoch,
            best_epoch=self.best_epoch,
            lowest=self.lowest,
            seconds=self.seconds,
            **arrays,  # type: ignore[arg-type]
        )
        os.replace(partial, self.path)


def _variables(model: keras.Model) -> list[Any]:
    return [*model.variables, *model.optimizer.variables]


def _values(variables: list[Any]) -> list[np.ndarray]:
    # A copy: on torch the array shares the variable's memory.
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns the rows of results.csv, with numbers for figures."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        {k: v if k in KEY and k != "seed" else float(v) for k, v in row.items()}
        for row in rows
    ]


def append(rows: list[dict[str, Any]], path: Path = RESULTS) -> None:
    """Appends the rows of one run in a single write: all are there, or none."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    with path.open("a", newline="", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not file.tell():
            writer.writeheader()
        for row in rows:
            figures = {k: f"{v:.6g}" for k, v in row.items() if isinstance(v, float)}
            writer.writerow({**row, **figures})
        file.write(text.getvalue())
