"""The trainer: every run of every command, from the data to the saved logits.

`train` reads from top to bottom. A run continues after it was killed, with
bit-identical results: whatever is random depends on the seed and the epoch only, and
the state of training is saved after each epoch.
"""

import contextlib
import dataclasses
import hashlib
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_selcal._validation import refuse
from recipes import data, devices, losses, models
from recipes.data.pipeline import Batches
from recipes.optimizers import TorchSGD
from recipes.paper.released import ReleasedScores
from recipes.progress import Progress, console
from recipes.runs import Checkpoint, Predictions, Run
from recipes.settings import Settings
from recipes.tasks import DivergenceError, RunError, Task

# As many as in fig:gradients_over_epochs.
_MOST_IN_SNAPSHOT = 20_000


def train(
    run: Run,
    task: Task,
    progress: Progress,
    *,
    dataset: data.Dataset | None = None,
    count: int = 1,
) -> None:
    """Trains a run and saves its logits; a finished run stays as it is.

    Args:
        run: the folder of the run.
        task: what to do.
        progress: shows the epochs.
        dataset: what `read_data` returned for the task, where runs share it.
        count: number of devices that share each batch.
    """
    # Layers of an earlier run in this process would change the names of these.
    keras.utils.clear_session(free_memory=False)
    settings = task.settings
    devices.check(count, settings.batch_size)
    with run.lock():
        config = task.config()
        if count > 1:
            config["devices"] = count
        if run.finished and dataset is None:
            run.claim({**config, "data": None})
            progress.end(run.name, "was finished already")
            return

        # Data and model.
        try:
            samples = load_data(task, dataset)
            config["data"] = digests(samples)
            if run.finished:
                run.claim(config)
                progress.end(run.name, "was finished already")
                return
            with devices.scope(count):
                model = build(task, samples)
        except (ValueError, OSError) as error:
            raise RunError(" ".join(str(error).split())) from error
        run.claim(config)
        batches = Batches(
            *(samples.train, samples.preprocessing, settings.batch_size),
            training=True,
            seed=task.seed,
        )

        # Training, from the last checkpoint on.
        state = run.load_checkpoint(config) or Checkpoint()
        progress.start(run.name, settings.epochs, state.epoch)
        with devices.scope(count):
            if state.epoch:
                _restore(model, state, run)
            if state.epoch < settings.epochs:
                epochs = Epochs(run, task, samples, config, state, progress)
                average = [epochs.average] if settings.ema is not None else []
                model.fit(
                    devices.even(batches, count),
                    validation_data=devices.even(_batches(task, samples, "val"), count),
                    validation_freq=validated_epochs(settings),
                    epochs=settings.epochs,
                    initial_epoch=state.epoch,
                    shuffle=False,
                    verbose=0,
                    callbacks=[batches.callback, *average, *_schedule(task), epochs],
                )

        # Logits of the last and of the best epoch, on one device.
        if count > 1:
            model = build(task, samples)
            if state.epoch:
                _restore(model, state, run)
        if settings.ema is not None:  # also where nothing was left to train
            model.optimizer.finalize_variable_values(model.trainable_variables)
            # On JAX they share arrays with the averages now, which `predict` deletes.
            _assign(model.trainable_variables, _values(model.trainable_variables))
        start = time.perf_counter()
        for name in ("val", "test"):
            _write_logits(run, f"last-{name}", model, _batches(task, samples, name))
        if state.best is not None:
            _assign(model.variables, state.best)
        for name in ("train", "val", "test"):
            _write_logits(run, name, model, _batches(task, samples, name))
        evaluation = time.perf_counter() - start

        # What remains: the model, the history, and how long it took.
        run.save_model(model)
        if state.history:
            run.write_history(state.history)
        training = sum(row["seconds"] for row in state.history)
        images = settings.epochs * len(samples.train)
        run.finish(
            {
                **environment(),
                "device": str(getattr(model.variables[0].value, "device", "")),
                "parameters": model.count_params(),
                "best_epoch": state.best_epoch,
                "training_seconds": round(training, 3),
                "training_images_per_second": round(images / (training or 1), 1),
                "evaluation_seconds": round(evaluation, 3),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
        )
        progress.end(run.name, _summary(state, settings))


def trained(folder: Path, task: Task) -> Run:
    """Returns a finished run in a folder of the task's name, trained if need be."""
    run = Run(folder / task.name)
    with Progress(console(quiet=True)) as progress:
        train(run, task, progress)
    return run


# --- Data and model -----------------------------------------------------------------


def data_key(task: Task) -> tuple[Any, ...]:
    """Returns what `read_data` depends on: tasks with equal keys share their data."""
    size, splits = task.settings.image_size, task.settings.splits
    return task.dataset, task.data_dir, size, task.noise, splits, task.split_seed


def read_data(task: Task) -> data.Dataset:
    """Reads the data set of a task."""
    options: Any = {} if task.noise is None else {"label_noise": task.noise}
    options |= {"seed": task.split_seed, "image_size": task.settings.image_size}
    options["splits"] = task.settings.splits
    try:
        return data.load(task.dataset, task.data_dir, **options)
    except (ValueError, OSError) as error:
        raise RunError(" ".join(str(error).split())) from error


def load_data(task: Task, dataset: data.Dataset | None = None) -> data.Dataset:
    """Returns the samples of a task, with its preprocessing and its training subset."""
    dataset = read_data(task) if dataset is None else dataset
    names = ("augmentation", "mean", "std")
    chosen = {name: getattr(task.settings, name) for name in names}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    for name in chosen.keys() & {"mean", "std"}:
        if len(chosen[name]) != (channels := dataset.train.x.shape[-1]):
            refuse(name, chosen[name], f"a number for each of {channels} channels")
    preprocessing = dataclasses.replace(dataset.preprocessing, **chosen)
    dataset = dataclasses.replace(dataset, preprocessing=preprocessing)
    if task.subset is None:
        return dataset
    if not dataset.num_classes <= task.subset <= len(dataset.train):
        raise RunError(
            f"`subset` must be from {dataset.num_classes} to {len(dataset.train)} "
            f"training samples. Received: subset={task.subset}"
        )
    if task.subset == len(dataset.train):
        return dataset
    _, drawn = dataset.train.hold_out(seed=0, size=task.subset)
    return dataclasses.replace(dataset, train=drawn)


def build(task: Task, samples: data.Dataset) -> Any:
    """Returns the compiled model of a task."""
    settings = task.settings
    keras.utils.set_random_seed(task.seed)
    options: dict[str, Any] = {
        "preset": task.preset,
        "stand_in": task.stand_in,
        "dropout": settings.dropout,
    }
    model = models.build(
        *(task.model, samples.num_classes, samples.input_shape),
        **{name: value for name, value in options.items() if value},
    )
    if task.pretrained is not None:
        models.load_pretrained(model, task.pretrained)
    optimizer = _optimizer(settings, len(samples.train))
    model.compile(
        optimizer=optimizer,
        loss=losses.build(task.loss, settings.loss),
        metrics=[
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            keras.metrics.SparseCategoricalCrossentropy(name="nll", from_logits=True),
        ],
    )
    optimizer.build(model.trainable_variables)
    return model


def _optimizer(settings: Settings, samples: int) -> keras.optimizers.Optimizer:
    rate: Any = settings.learning_rate
    if settings.schedule == "smooth_cosine":
        steps = settings.epochs * math.ceil(samples / settings.batch_size)
        rate = keras.optimizers.schedules.CosineDecay(rate, max(steps, 1))
    options: dict[str, Any] = {
        "momentum": settings.momentum,
        "nesterov": settings.nesterov,
        "global_clipnorm": settings.clipnorm,
    }
    if settings.ema is not None:
        options |= {"use_ema": True, "ema_momentum": settings.ema}
    if settings.optimizer == "sgdw":
        decay = settings.weight_decay
        return keras.optimizers.SGD(rate, weight_decay=decay, **options)
    return TorchSGD(rate, l2=settings.weight_decay, **options)


def _batches(task: Task, samples: data.Dataset, split: str) -> Batches:
    return Batches(
        *(getattr(samples, split), samples.preprocessing, task.settings.batch_size),
        augmented=split == "val" and samples.augmented_val,
        seed=task.seed,
    )


# --- Training -----------------------------------------------------------------------


def learning_rate(settings: Settings, epoch: int) -> float:
    """Returns the learning rate of an epoch, counted from 0.

    Formula:

    ```
    steps   η·decay^j after j milestones
    cosine  η·(1 + cos(π·epoch/epochs))/2, where the epoch begins
    ```

    Example:
    >>> from recipes.settings import settings
    >>> learning_rate(settings("cifar10", "resnet50", "xe"), 60)
    0.020000000000000004
    """
    if settings.schedule != "steps":
        wave = math.cos(math.pi * epoch / settings.epochs)
        return settings.learning_rate * (1 + wave) / 2
    reached = sum(epoch >= milestone for milestone in settings.milestones)
    return settings.learning_rate * settings.decay**reached


def validated_epochs(settings: Settings) -> list[int]:
    """Returns the epochs, counted from 1, that end with a validation.

    The last epoch is always among them.
    """
    step, last = settings.validate_every, settings.epochs
    return sorted({*range(step, last + 1, step), last})


def improves(state: Checkpoint, settings: Settings) -> bool:
    """Whether the last epoch has the lowest validation loss since the warm-up.

    NaN counts as higher than any other loss.
    """
    epoch, name = len(state.history), f"val_{settings.select}"
    if epoch <= settings.warmup_epochs or state.best_epoch is None:
        return epoch > settings.warmup_epochs
    loss = state.history[-1][name]
    lowest = state.history[state.best_epoch - 1][name]
    return loss < lowest or (math.isnan(lowest) and not math.isnan(loss))


def _schedule(task: Task) -> list[keras.callbacks.Callback]:
    if task.loss == "au_released":
        return [ReleasedScores()]
    rise = task.settings.weight_gradient_rise
    if rise is None:
        return []
    return [RisingWeightGradient(rise, task.settings.loss["weight_gradient"])]


class RisingWeightGradient(keras.callbacks.Callback):
    """Raises w of `AULoss` from 0 to `share` between two epochs."""

    def __init__(self, rise: Sequence[float], share: float) -> None:
        super().__init__()
        self.rise, self.share = rise, share

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        w = float(np.interp(epoch, self.rise, (0.0, self.share)))
        if w != self.model.loss.weight_gradient:
            # A number of the traced step: it is traced again.
            self.model.loss.weight_gradient = w
            self.model.make_train_function(force=True)
            self.model.make_test_function(force=True)


class Epochs(keras.callbacks.Callback):
    """Gives each epoch its seed and learning rate; records and saves its results."""

    # What is done after a batch reads no variable.
    async_safe = True

    def __init__(
        self,
        run: Run,
        task: Task,
        samples: data.Dataset,
        config: Mapping[str, Any],
        state: Checkpoint,
        progress: Progress,
    ) -> None:
        super().__init__()
        self.run, self.task, self.samples, self.config = run, task, samples, config
        self.state, self.progress = state, progress
        self.average = keras.callbacks.SwapEMAWeights()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.start = time.perf_counter()
        self.cpu_start = time.process_time()
        # Whatever draws from a global source draws the same in a resumed run.
        key = (self.task.seed, epoch)
        keras.utils.set_random_seed(
            int(np.random.SeedSequence(key).generate_state(1)[0])
        )
        self.rate = learning_rate(self.task.settings, epoch)
        if self.task.settings.schedule != "smooth_cosine":
            self.model.optimizer.learning_rate = self.rate

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.progress.within((batch + 1) / self.params["steps"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = ("loss", "accuracy", "nll")
        row = {name: float(logs.get(name, math.nan)) for name in names}
        row |= {f"val_{n}": float(logs.get(f"val_{n}", math.nan)) for n in names}
        row = {"epoch": epoch + 1, **row, "learning_rate": self.rate}
        row["seconds"] = round(time.perf_counter() - self.start, 3)
        row["cpu_seconds"] = round(time.process_time() - self.cpu_start, 3)
        if not math.isfinite(row["loss"]):
            raise _diverged(f"the loss of epoch {epoch + 1} is {row['loss']}")
        state, settings = self.state, self.task.settings
        state.epoch = epoch + 1
        state.history.append(row)
        if state.epoch in validated_epochs(settings) and improves(state, settings):
            state.best_epoch = state.epoch
            with self._averaged():
                state.best = _values(self.model.variables)
        if state.epoch in self.task.snapshot_epochs():
            seen = dataclasses.replace(
                self.samples, train=self.samples.train[:_MOST_IN_SNAPSHOT]
            )
            batches = _batches(self.task, seen, "train")
            name = f"train-epoch{state.epoch}"
            with self._averaged():
                _write_logits(self.run, name, self.model, batches)
        last = state.epoch == settings.epochs
        if last or state.epoch % self.task.checkpoint_every == 0:
            state.variables = _values(_variables(self.model))
            self.run.save_checkpoint(state, self.config)
            self.run.write_history(state.history)
        self.progress.epoch(row)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Gives the model its averaged weights for a while, as its validation does."""
        if self.task.settings.ema is None:
            yield
            return
        self.average.on_test_begin()
        try:
            yield
        finally:
            self.average.on_test_end()


def _diverged(what: str) -> DivergenceError:
    return DivergenceError(
        f"{what}: this training diverges. Lower the learning rate (--set "
        "learning_rate=…) or limit the gradient (--set clipnorm=1)."
    )


def _write_logits(run: Run, name: str, model: Any, batches: Batches) -> None:
    logits = model.predict(batches, verbose=0)
    if not np.isfinite(logits).all():
        raise _diverged(f"{run.name} has logits that are not finite ({name})")
    run.write_predictions(name, Predictions(logits, batches.split.y))


def _summary(state: Checkpoint, settings: Settings) -> str:
    epoch = state.best_epoch or state.epoch
    if not epoch:
        return "evaluated without training"
    accuracy = 100 * state.history[epoch - 1]["val_accuracy"]
    return (
        f"epoch {epoch} of {settings.epochs} chosen, validation accuracy "
        f"{accuracy:.2f} %"
    )


# --- State --------------------------------------------------------------------------


def _variables(model: Any) -> list[Any]:
    """Returns all that training changes: weights, random states, velocities."""
    return [*model.variables, *model.optimizer.variables]


def _values(variables: list[Any]) -> list[np.ndarray]:
    # A copy: on torch the array shares the variable's memory.
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _restore(model: Any, state: Checkpoint, run: Run) -> None:
    try:
        _assign(_variables(model), state.variables)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise RunError(
            f"the checkpoint in {run.folder} does not fit: {reason}"
        ) from error


def environment() -> dict[str, Any]:
    """Returns the facts on which the speed of a run depends."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def digests(dataset: data.Dataset) -> dict[str, Any]:
    """Returns digests that identify the data."""
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    return {
        "class_names": list(dataset.class_names),
        "preprocessing": dataclasses.asdict(dataset.preprocessing),
        **{name: split_digest(split) for name, split in splits.items()},
    }


def split_digest(split: data.Split) -> dict[str, Any]:
    """Returns the digest that identifies the samples of a split."""
    digest = hashlib.sha256(np.ascontiguousarray(split.x).data)
    digest.update(np.ascontiguousarray(split.y).data)
    return {"samples": len(split.y), "sha256": digest.hexdigest()}
