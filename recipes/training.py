"""Training that continues after it was killed, with bit-identical results."""

import contextlib
import dataclasses
import hashlib
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import keras
import numpy as np

import keras_selcal
from keras_selcal._validation import refuse
from recipes import data, losses, models
from recipes.data.pipeline import Batches
from recipes.devices import ONE, Devices, Processes
from recipes.optimizers import DistributedSGD, TorchSGD
from recipes.paper.released import ReleasedScores
from recipes.progress import Progress
from recipes.request import RunError
from recipes.runs import Checkpoint, Predictions, Run
from recipes.settings import Settings
from recipes.tasks import Task

# As many as in fig:gradients_over_epochs.
_MOST_IN_SNAPSHOT = 20_000


def train(
    run: Run,
    task: Task,
    progress: Progress,
    checkpoint_every: int = 1,
    devices: Devices = ONE,
    snapshots: Sequence[int] = (),
    dataset: data.Dataset | None = None,
) -> None:
    """Trains a run and saves its logits; a finished run stays as it is.

    Args:
        run: the folder of the run.
        task: what to do.
        progress: shows the epochs.
        checkpoint_every: number of epochs from one checkpoint to the next.
        devices: the devices that share each batch.
        snapshots: epochs after which the logits of training images are kept.
        dataset: what `data.load` returned for the task, where runs share it.
    """
    # Layers of an earlier run in this process would change the names of these.
    keras.utils.clear_session(free_memory=False)
    first = devices.rank == 0
    with run.lock() if first else contextlib.nullcontext():
        config = task.config()
        if devices.count > 1:
            config["devices"] = devices.count
        if run.finished:
            run.claim({**config, "data": None})
            progress.end(run.name, "was finished already")
            return
        try:
            dataset = load_data(task, dataset)
            config["data"] = _digests(dataset)
            with devices.scope():
                training = _Training(run, task, dataset, config, devices, snapshots)
        except (ValueError, OSError) as error:
            raise RunError(str(error)) from error
        run.claim(config, write=first)
        training.fit(progress, checkpoint_every)
        if first:
            training.evaluate()
            progress.end(run.name, training.summary())


def load_data(task: Task, dataset: data.Dataset | None = None) -> data.Dataset:
    """Returns the data set of a task, or the requested subset of it."""
    options: dict[str, Any] = {}
    if task.label_noise is not None:
        options["label_noise"] = task.label_noise
    size = task.settings.image_size
    if dataset is None:
        dataset = data.load(task.dataset, task.data_dir, image_size=size, **options)
    elif size is not None:
        dataset = dataset.resized(size)
    names = ("augmentation", "mean", "std")
    chosen = {name: getattr(task.settings, name) for name in names}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    for name in chosen.keys() & {"mean", "std"}:
        if len(chosen[name]) != (channels := dataset.input_shape[-1]):
            refuse(name, chosen[name], f"a number for each of {channels} channels")
    preprocessing = dataclasses.replace(dataset.preprocessing, **chosen)
    dataset = dataclasses.replace(dataset, preprocessing=preprocessing)
    if task.subset is None:
        return dataset
    if not dataset.num_classes <= task.subset <= len(dataset.train):
        raise RunError(
            f"`subset` must be from {dataset.num_classes} to {len(dataset.train)} "
            f"training images. Received: subset={task.subset}"
        )
    if task.subset == len(dataset.train):
        return dataset
    _, drawn = dataset.train.hold_out(seed=0, size=task.subset)
    return dataclasses.replace(dataset, train=drawn)


def learning_rate(settings: Settings, epoch: int) -> float:
    """Returns the learning rate of an epoch, counted from 0.

    Formula:

    ```
    steps   η·decay^j after j milestones
    cosine  η·(1 + cos(π·epoch/epochs))/2
    ```

    Example:
    >>> from recipes.settings import settings
    >>> learning_rate(settings("cifar10", "resnet50", "xe"), 60)
    0.020000000000000004
    """
    if settings.schedule == "cosine":
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


def improves(state: Checkpoint, warmup_epochs: int) -> bool:
    """Whether the last epoch has the lowest validation loss since the warm-up.

    NaN counts as higher than any other loss.
    """
    epoch = len(state.history)
    if epoch <= warmup_epochs or state.best_epoch is None:
        return epoch > warmup_epochs
    loss = state.history[-1]["val_loss"]
    lowest = state.history[state.best_epoch - 1]["val_loss"]
    return loss < lowest or (math.isnan(lowest) and not math.isnan(loss))


class _Training:
    """A run in this process."""

    def __init__(
        self,
        run: Run,
        task: Task,
        dataset: data.Dataset,
        config: Mapping[str, Any],
        devices: Devices,
        snapshots: Sequence[int],
    ) -> None:
        self.run, self.task, self.config, self.devices = run, task, config, devices
        self.snapshots = snapshots
        self.settings, self.dataset = task.settings, dataset
        self.model = self._build(devices)
        self.batches = Batches(
            dataset.train,
            dataset.preprocessing,
            self.settings.batch_size,
            training=True,
            seed=task.seed,
        )
        # All that training changes: weights, statistics, random states, velocities.
        self.weights = list(self.model.variables)
        self.variables = [*self.weights, *self.model.optimizer.variables]

    def _build(self, devices: Devices) -> Any:
        """Returns a compiled model."""
        task, chosen = self.task, self.settings
        keras.utils.set_random_seed(task.seed)
        options: dict[str, Any] = {"preset": task.preset, "stand_in": task.stand_in}
        model = models.build(
            task.model,
            self.dataset.num_classes,
            self.dataset.input_shape,
            **{name: value for name, value in options.items() if value},
        )
        if task.pretrained is not None:
            models.load_pretrained(model, task.pretrained)
        devices.synchronize(model)
        averaged = isinstance(devices, Processes)
        optimizer = (DistributedSGD if averaged else TorchSGD)(
            chosen.learning_rate, momentum=chosen.momentum, l2=chosen.weight_decay
        )
        arguments = dict(chosen.loss)
        if task.loss == "au" and devices.count > 1:
            arguments["synchronized"] = True
        model.compile(
            optimizer=optimizer,
            loss=losses.build(task.loss, arguments),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        optimizer.build(model.trainable_variables)
        return model

    def fit(self, progress: Progress, checkpoint_every: int) -> None:
        """Trains the epochs that are left."""
        self.state = self.run.load_checkpoint(self.config) or Checkpoint()
        epoch, epochs = self.state.epoch, self.settings.epochs
        progress.start(self.run.name, epochs, epoch)
        with self.devices.scope():
            if epoch:
                try:
                    _assign(self.variables, self.state.variables)
                except ValueError as error:
                    reason = " ".join(str(error).split())
                    raise RunError(
                        f"the checkpoint in {self.run.folder} does not fit: {reason}"
                    ) from error
            if epoch == epochs:
                return
            callbacks = [self.batches.callback, *self._schedule()]
            self.model.fit(
                self.devices.shares(self.batches),
                validation_data=self.devices.shares(self._batches(self.dataset.val)),
                validation_freq=validated_epochs(self.settings),
                epochs=epochs,
                initial_epoch=epoch,
                shuffle=False,
                verbose=0,
                callbacks=[*callbacks, _Epochs(self, progress, checkpoint_every)],
            )

    def _schedule(self) -> list[keras.callbacks.Callback]:
        if self.task.loss == "au_released":
            return [ReleasedScores()]
        rise = self.settings.weight_gradient_rise
        if rise is None:
            return []
        share = self.settings.loss["weight_gradient"]
        points = [(rise[0], 0.0), (rise[1], share)]
        return [keras_selcal.LossSchedule(weight_gradient=points)]

    def _batches(self, split: data.Split) -> Batches:
        preprocessing, size = self.dataset.preprocessing, self.settings.batch_size
        return Batches(split, preprocessing, size)

    def end_epoch(self, row: dict[str, float], save: bool) -> None:
        """Adds an epoch to the state, and writes the state to the disk."""
        state = self.state
        state.epoch = int(row["epoch"])
        state.history.append(row)
        validated = state.epoch in validated_epochs(self.settings)
        if validated and improves(state, self.settings.warmup_epochs):
            state.best_epoch = state.epoch
            state.best = _values(self.weights)
        if state.epoch in self.snapshots and self.devices.rank == 0:
            seen = self.dataset.train[:_MOST_IN_SNAPSHOT]
            found = self._predict(self.model, seen)
            self.run.write_predictions(f"train-epoch{state.epoch}", found)
        if save or state.epoch == self.settings.epochs:
            state.variables = _values(self.variables)
            if self.devices.rank == 0:
                self.run.save_checkpoint(state, self.config)
                self.run.write_history(state.history)

    def evaluate(self) -> None:
        """Writes the results of the chosen model, which one device computes."""
        start = time.perf_counter()
        state, model = self.state, self.model
        if self.devices.count > 1:
            model = self._build(ONE)
            _assign([*model.variables, *model.optimizer.variables], state.variables)
        if state.best is not None:
            _assign(model.variables, state.best)
        names = ("train", "val", "test")
        splits = {name: getattr(self.dataset, name) for name in names}
        for name, split in splits.items():
            self.run.write_predictions(name, self._predict(model, split))
        evaluation = time.perf_counter() - start
        self.run.save_model(model)
        if state.history:
            self.run.write_history(state.history)
        training = sum(row["seconds"] for row in state.history)
        images = self.settings.epochs * len(self.batches.split)
        samples = sum(map(len, splits.values()))
        self.run.finish(
            {
                **environment(),
                "device": str(getattr(self.weights[0].value, "device", "")),
                "parameters": model.count_params(),
                "best_epoch": state.best_epoch,
                "training_seconds": round(training, 3),
                "training_images_per_second": round(images / (training or 1), 1),
                "evaluation_seconds": round(evaluation, 3),
                "evaluation_images_per_second": round(samples / evaluation, 1),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
        )

    def _predict(self, model: Any, split: data.Split) -> Predictions:
        return Predictions(model.predict(self._batches(split), verbose=0), split.y)

    def summary(self) -> str:
        """Returns a few words on the chosen epoch."""
        epoch = self.state.best_epoch or self.state.epoch
        if not epoch:
            return "evaluated without training"
        row = self.state.history[epoch - 1]
        return (
            f"epoch {epoch} of {self.settings.epochs} chosen, "
            f"validation accuracy {100 * row['val_accuracy']:.2f} %"
        )


class _Epochs(keras.callbacks.Callback):
    """Gives each epoch its seed and learning rate, and records its results."""

    # What is done after a batch reads no variable.
    async_safe = True

    def __init__(
        self, training: _Training, progress: Progress, checkpoint_every: int
    ) -> None:
        super().__init__()
        self.training, self.progress = training, progress
        self.checkpoint_every = checkpoint_every

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.start = time.perf_counter()
        # Whatever draws from a global source draws the same in a resumed run.
        key = (self.training.task.seed, epoch)
        keras.utils.set_random_seed(
            int(np.random.SeedSequence(key).generate_state(1)[0])
        )
        self.rate = learning_rate(self.training.settings, epoch)
        self.model.optimizer.learning_rate = self.rate

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.progress.within((batch + 1) / len(self.training.batches))

    def on_test_begin(self, logs: Any = None) -> None:
        self.training.devices.agree(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.training.devices.agree(self.model)
        names = ("loss", "accuracy", "val_loss", "val_accuracy")
        means = {name: float(logs.get(name, math.nan)) for name in names}
        row = {
            "epoch": epoch + 1,
            **self.training.devices.means(means),
            "learning_rate": self.rate,
            "seconds": round(time.perf_counter() - self.start, 3),
        }
        self.training.end_epoch(row, (epoch + 1) % self.checkpoint_every == 0)
        self.progress.epoch(row)


def _values(variables: list[Any]) -> list[np.ndarray]:
    # A copy: on torch the array shares the variable's memory.
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def environment() -> dict[str, Any]:
    """Returns the facts on which the speed of a run depends."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def _digests(dataset: data.Dataset) -> dict[str, Any]:
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
