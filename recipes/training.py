"""Training that continues where it was killed, and ends as if it had not been."""

import dataclasses
import hashlib
import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_selcal
from recipes import data, losses, models
from recipes.data.digits import LABEL_NOISE
from recipes.distribution import ONE, Distribution
from recipes.evaluation import evaluate
from recipes.optimizers import L2SGD
from recipes.progress import Progress
from recipes.runs import Checkpoint, Predictions, Run, RunError
from recipes.settings import Settings

_BACKENDS = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "torch": ("torch",)}


@dataclass(frozen=True)
class Task:
    """What a run is to do.

    Args:
        dataset: a name that `recipes.data.load` takes.
        model: one of `recipes.models.NAMES`.
        loss: one of `recipes.losses.NAMES`.
        seed: of weights, order, augmentation and dropout.
        settings: of training.
        label_noise: share of wrong labels, for digits.
        subset: how many training images to use, drawn by class; None for all.
        pretrained: a file of weights to start from.
        data_dir: where the data is. It may move: the run keeps a digest of the data.
    """

    dataset: str
    model: str
    loss: str
    seed: int
    settings: Settings
    label_noise: float | None = None
    subset: int | None = None
    pretrained: str | None = None
    data_dir: str | None = None

    def config(self) -> dict[str, Any]:
        """Returns what the run depends on, but for the data itself."""
        pretrained = None if self.pretrained is None else _file_digest(self.pretrained)
        return {
            "dataset": self.dataset,
            "label_noise": self.label_noise,
            "subset": self.subset,
            "model": self.model,
            "pretrained": pretrained,
            "loss": self.loss,
            "seed": self.seed,
            "settings": dataclasses.asdict(self.settings),
            "dtype": keras.config.dtype_policy().name,
            "backend": keras.backend.backend(),
            "versions": versions(),
        }


def train(
    run: Run,
    task: Task,
    progress: Progress,
    checkpoint_every: int = 1,
    distribution: Distribution = ONE,
) -> None:
    """Trains and evaluates a run; one that is finished stays as it is.

    Args:
        run: its folder.
        task: what to do.
        progress: shows the epochs.
        checkpoint_every: number of epochs from one checkpoint to the next.
        distribution: the devices that share each batch.
    """
    # Layers of an earlier run in this process would change the names of these.
    keras.utils.clear_session(free_memory=False)
    run = distribution.run(run)
    with run.lock(), distribution.scope():
        config = {**task.config(), **distribution.config()}
        if run.finished:
            run.claim({**config, "data": None})
            progress.end(run.name, "was finished already")
            return
        try:
            dataset = load_data(task)
            prepared = _Training(
                run, task, dataset, progress, checkpoint_every, distribution
            )
        except (ValueError, OSError) as error:
            raise RunError(str(error)) from error
        run.claim({**config, "data": _digests(dataset)})
        prepared.complete()
    found = evaluate(run, metrics=("accuracy", "ece"))
    progress.end(
        run.name, f"accuracy {found['accuracy']:.2f} %, ECE {found['ece']:.2f} %"
    )


def run_name(task: Task, marks: Sequence[str] = ()) -> str:
    """Returns the name of a run's folder, `cifar10-resnet50-au-msp-seed0` say."""
    dataset = task.dataset
    if dataset.startswith("folder:"):
        dataset = os.path.basename(os.path.normpath(dataset))
    marks = list(marks)
    if task.subset is not None:
        marks.append(f"subset{task.subset}")
    if task.label_noise not in (None, LABEL_NOISE):
        marks.append(f"noise{task.label_noise:g}")
    if task.pretrained is not None:
        marks.append("pretrained")
    csf = task.settings.loss.get("csf")
    parts = [dataset, task.model, task.loss, *([csf] if csf else [])]
    name = "-".join([*parts, f"seed{task.seed}", *marks])
    return "".join(c if c.isalnum() or c in "-_.+" else "_" for c in name)


def load_data(task: Task) -> data.Dataset:
    """Returns the data set of a task, or the subset of it that is asked for."""
    options: dict[str, Any] = {}
    if task.label_noise is not None:
        options["label_noise"] = task.label_noise
    dataset = data.load(
        task.dataset, task.data_dir, image_size=task.settings.image_size, **options
    )
    augmentation = task.settings.augmentation
    if augmentation is not None:
        dataset = dataclasses.replace(
            dataset,
            preprocessing=dataclasses.replace(
                dataset.preprocessing, augmentation=augmentation
            ),
        )
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
    steps   η·0.2^j, j milestones being reached
    cosine  η·(1 + cos(π·epoch/epochs))/2
    ```
    """
    if settings.schedule == "cosine":
        wave = math.cos(math.pi * epoch / settings.epochs)
        return settings.learning_rate * (1 + wave) / 2
    reached = sum(epoch >= milestone for milestone in settings.milestones)
    return settings.learning_rate * settings.decay**reached


def validated_epochs(settings: Settings) -> list[int]:
    """Returns the epochs, counted from 1, that end with a validation.

    The last one is among them.
    """
    step, last = settings.validate_every, settings.epochs
    return sorted({*range(step, last + 1, step), last})


def improves(state: Checkpoint, warmup_epochs: int) -> bool:
    """Whether the last epoch has the lowest validation loss since the warm-up.

    NaN is above any other loss.
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
        progress: Progress,
        checkpoint_every: int,
        distribution: Distribution,
    ) -> None:
        self.run, self.task, self.progress = run, task, progress
        self.distribution = distribution
        self.settings = task.settings
        self.checkpoint_every = checkpoint_every
        self.splits = {"val": dataset.val, "test": dataset.test}
        self.batches = data.Batches(
            dataset.train,
            dataset.preprocessing,
            self.settings.batch_size,
            training=True,
            seed=task.seed,
        )
        self.preprocessing = dataset.preprocessing
        keras.utils.set_random_seed(task.seed)
        self.model = models.build(task.model, dataset.num_classes, dataset.input_shape)
        if task.pretrained is not None:
            models.load_pretrained(self.model, task.pretrained)
        self.optimizer = L2SGD(
            self.settings.learning_rate,
            momentum=self.settings.momentum,
            l2=self.settings.weight_decay,
        )
        self.model.compile(
            optimizer=self.optimizer,
            loss=losses.build(
                task.loss,
                {**self.settings.loss, **distribution.loss_arguments(task.loss)},
            ),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        self.optimizer.build(self.model.trainable_variables)
        # All that training changes: weights, statistics, random states, velocities.
        self.weights = list(self.model.variables)
        self.variables = [*self.weights, *self.optimizer.variables]

    def complete(self) -> None:
        state = self.run.load_checkpoint()
        if state is None:
            state = Checkpoint()
        else:
            _assign(self.variables, state.variables)
        self.state = state
        epochs = self.settings.epochs
        self.progress.start(self.run.name, epochs, state.epoch)
        if state.epoch < epochs:
            with self.distribution.fitting(self.model):
                self.model.fit(
                    self.distribution.training(self.batches),
                    validation_data=self.distribution.validation(self._batches("val")),
                    validation_freq=validated_epochs(self.settings),
                    epochs=epochs,
                    initial_epoch=state.epoch,
                    shuffle=False,
                    verbose=0,
                    callbacks=[self.batches.callback, *self._schedule(), _Epochs(self)],
                )
        self._evaluate()

    def _schedule(self) -> list[keras.callbacks.Callback]:
        rise = self.settings.weight_gradient_rise
        if rise is None:
            return []
        share = self.settings.loss["weight_gradient"]
        points = [(rise[0], 0.0), (rise[1], share)]
        return [keras_selcal.LossSchedule(weight_gradient=points)]

    def _batches(self, split: str) -> data.Batches:
        return data.Batches(
            self.splits[split], self.preprocessing, self.settings.batch_size
        )

    def end_epoch(self, row: dict[str, float]) -> None:
        """Takes the epoch into the state, and the state to the disk."""
        state = self.state
        state.epoch = int(row["epoch"])
        state.history.append(row)
        validated = state.epoch in validated_epochs(self.settings)
        if validated and improves(state, self.settings.warmup_epochs):
            state.best_epoch = state.epoch
            state.best = _values(self.weights)
        last = state.epoch == self.settings.epochs
        if last or state.epoch % self.checkpoint_every == 0:
            state.variables = _values(self.variables)
            self.run.save_checkpoint(state)
            self.run.write_history(state.history)
        self.progress.epoch(row)

    def _evaluate(self) -> None:
        """Writes the results of the chosen model."""
        start = time.perf_counter()
        state = self.state
        if state.best is not None:
            _assign(self.weights, state.best)
        samples = 0
        for split, content in self.splits.items():
            batches = self.distribution.prediction(self._batches(split))
            logits = self.model.predict(batches, verbose=0)
            self.run.write_predictions(split, Predictions(logits, content.y))
            samples += len(content)
        evaluation = time.perf_counter() - start
        self.run.save_model(self.model)
        self.run.write_history(state.history)
        training = sum(row["seconds"] for row in state.history)
        images = self.settings.epochs * len(self.batches.split)
        self.run.finish(
            {
                **environment(),
                "device": str(getattr(self.model.variables[0].value, "device", "")),
                "parameters": self.model.count_params(),
                "best_epoch": state.best_epoch,
                "training_seconds": round(training, 3),
                "training_images_per_second": round(images / training, 1),
                "evaluation_seconds": round(evaluation, 3),
                "evaluation_images_per_second": round(samples / evaluation, 1),
                "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            }
        )


class _Epochs(keras.callbacks.Callback):
    """Gives each epoch its seed and learning rate, and keeps what comes of it."""

    # What is done after a batch reads no variable.
    async_safe = True

    def __init__(self, training: _Training) -> None:
        super().__init__()
        self.training = training

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.start = time.perf_counter()
        # Whatever draws from a global source draws the same in a resumed run.
        key = (self.training.task.seed, epoch)
        keras.utils.set_random_seed(
            int(np.random.SeedSequence(key).generate_state(1)[0])
        )
        self.rate = learning_rate(self.training.settings, epoch)
        self.training.optimizer.learning_rate = self.rate

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.training.progress.within((batch + 1) / len(self.training.batches))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = ("loss", "accuracy", "val_loss", "val_accuracy")
        means = {name: float(logs.get(name, math.nan)) for name in names}
        self.training.end_epoch(
            {
                "epoch": epoch + 1,
                **self.training.distribution.means(means),
                "learning_rate": self.rate,
                "seconds": round(time.perf_counter() - self.start, 3),
            }
        )


def _values(variables: list[Any]) -> list[np.ndarray]:
    # A copy: on torch the array shares the variable's memory.
    return [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def versions() -> dict[str, str]:
    """Returns the versions of what results depend on."""
    backend = keras.backend.backend()
    packages = ("keras", "numpy", *_BACKENDS.get(backend, (backend, "jaxlib")))
    found = {"keras_selcal": keras_selcal.__version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Returns what the run's speed depends on."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def _digests(dataset: data.Dataset) -> dict[str, Any]:
    """Returns what tells this data from any other."""
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    return {
        "class_names": list(dataset.class_names),
        "preprocessing": dataclasses.asdict(dataset.preprocessing),
        **{name: split_digest(split) for name, split in splits.items()},
    }


def split_digest(split: data.Split) -> dict[str, Any]:
    """Returns what tells these samples from any others."""
    digest = hashlib.sha256(np.ascontiguousarray(split.x).data)
    digest.update(np.ascontiguousarray(split.y).data)
    return {"samples": len(split.y), "sha256": digest.hexdigest()}


def _file_digest(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}.") from error
    return {"file": Path(path).name, "sha256": digest.hexdigest()}
