"""The matrix of the paper: every cell of its tables, by `python -m recipes reproduce`.

All tables are made from the same runs: 10 pairs of a data set and a model, 7 losses and
3 seeds.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_selcal._validation import check_choice
from recipes import data, losses, models, settings, tasks
from recipes.engine import ONE, Job, train_all
from recipes.optimizers import TorchSGD
from recipes.paper import published
from recipes.paper.tables import TABLES, write_tables
from recipes.progress import Progress, console, duration
from recipes.runs import Run
from recipes.tables import Table
from recipes.tasks import Pool, RunError, Task
from recipes.training import data_key, load_data, read_data

# Training images without those held out, and the shape of the images.
_SIZES: dict[str, tuple[int, tuple[int, ...]]] = {
    **dict.fromkeys(("cifar10", "cifar100"), (45_000, (32, 32, 3))),
    "tiny-imagenet": (95_000, (64, 64, 3)),
    "fashion-mnist": (50_000, (28, 28, 1)),
    "digits": (640, (8, 8, 1)),
}
# A step of this many images tells whether a step of a whole batch is quick to time.
_FEW, _QUICK = 8, 0.25


@dataclass(frozen=True)
class Matrix:
    """What to train: the options of the command.

    Names that are empty stand for the paper's. Changes of a loss's argument apply to
    the losses that have it.
    """

    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    seeds: int = 3
    scale: float = 1.0
    data_dir: str | None = None
    pretrained: Mapping[str, str] = field(default_factory=dict)
    from_scratch: bool = False
    changes: tuple[str, ...] = ()

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the data sets and models: those of the paper among the names.

        A name that has no partner of the paper among the others is combined with all
        of them. Such a pair is not in the paper.

        Example:
        >>> Matrix(datasets=("tiny-imagenet",)).pairs()
        [('tiny-imagenet', 'vit_small'), ('tiny-imagenet', 'swin_tiny')]
        """
        paper = published.pairs()
        datasets = self.datasets or tuple(dict.fromkeys(d for d, _ in paper))
        models = self.models or tuple(dict.fromkeys(m for _, m in paper))
        found = [(d, m) for d in datasets for m in models if (d, m) in paper]
        used = {name for pair in found for name in pair}
        alone = {*self.datasets, *self.models} - used
        if alone and not (self.datasets and self.models):
            other = "--model" if self.datasets else "--dataset"
            listed = ", ".join(f"{d} with {m}" for d, m in paper)
            raise RunError(
                f"the paper does not have {min(alone)}: it has {listed}. Name what to "
                f"combine it with by {other}."
            )
        every = [(d, m) for d in datasets for m in models]
        return [pair for pair in every if pair in found or alone & {*pair}]

    def columns(self) -> tuple[str, ...]:
        """Returns the names of the losses."""
        groups = {"all": losses.NAMES, "released": losses.RELEASED}
        named = [groups.get(name, (name,)) for name in self.losses or ("all",)]
        return tuple(dict.fromkeys(name for names in named for name in names))

    def tasks(self) -> list[Task]:
        """Returns the runs, one seed of the whole matrix after the other."""
        try:
            for dataset in self.datasets:
                settings.family_of(dataset)
            for model in self.models:
                check_choice("model", model, settings.MODELS)
            for loss in self.columns():
                check_choice("losses", loss, (*losses.NAMES, *losses.RELEASED))
        except ValueError as error:
            raise RunError(str(error)) from error
        pairs = self.pairs()
        self._check_weights({model for _, model in pairs})
        self._check_scale(pairs)
        return [
            self._task(dataset, model, loss, seed)
            for seed in range(self.seeds)
            for dataset, model in pairs
            for loss in self.columns()
        ]

    def _check_weights(self, selected: set[str]) -> None:
        if others := [name for name in self.pretrained if name not in selected]:
            raise RunError(
                f"`pretrained` has weights of {others[0]}, which is not among the "
                f"models to train: {', '.join(sorted(selected))}."
            )
        if self.scale == 1 and not self.from_scratch:
            for model in sorted(selected & {*settings.TRANSFORMERS}):
                if model not in self.pretrained:
                    raise RunError(tasks.fine_tuned(model, f"{model}=FILE"))

    def _check_scale(self, pairs: Sequence[tuple[str, str]]) -> None:
        if not 0 < self.scale <= 1:
            raise RunError(f"`scale` must be in (0, 1]. Received: scale={self.scale:g}")
        if self.scale == 1:
            return
        if self.pretrained:
            raise RunError("`scale` trains stand-ins, without `pretrained`.")
        for dataset, _ in pairs:
            if dataset not in _SIZES:
                raise RunError(f"`scale` is for {', '.join(_SIZES)}, not {dataset}.")

    def _task(self, dataset: str, model: str, loss: str, seed: int) -> Task:
        transformer = model in settings.TRANSFORMERS
        weights = self.pretrained.get(model)
        arguments = losses.defaults(loss)
        changes = tuple(
            change
            for change in self.changes
            if not change.startswith("loss.")
            or change[len("loss.") :].partition("=")[0] in arguments
        )
        small: dict[str, Any] = {"set": changes}
        if self.scale < 1:
            epochs = settings.settings(dataset, model, loss).epochs
            if model in models.STAND_INS:
                small["stand_in"] = True
                size = 28 if transformer else 16
                small["set"] = (f"image_size={size}", *changes)
            # At least an epoch, and two images of each class.
            small["epochs"] = max(1, round(self.scale * epochs))
            images = round(self.scale * _SIZES[dataset][0])
            small["subset"] = max(2 * settings.CLASSES[dataset], images)
        return Task(
            dataset,
            model,
            loss,
            seed=seed,
            data_dir=None if dataset == "digits" else self.data_dir,
            pretrained=weights,
            from_scratch=transformer and weights is None,
            **small,
        )


def reproduce(
    matrix: Matrix,
    out: str | os.PathLike[str],
    *,
    table: str | None = None,
    fit_on: str = "val",
    pool: Pool = ONE,
    estimate_only: bool = False,
) -> None:
    """Trains the runs that are missing and writes the tables, as the command says."""
    output, folder = console(), Path(out)
    if estimate_only:  # needs no weights
        matrix = replace(matrix, from_scratch=True)
    jobs = [Job(Run(folder / one.name), one) for one in matrix.tasks()]
    missing = [job for job in jobs if not job.run.finished]
    output.print(f"{len(jobs)} runs, {len(jobs) - len(missing)} finished already")
    outside = [" with ".join(p) for p in matrix.pairs() if p not in published.pairs()]
    if outside:
        output.print(f"Not in the paper: {', '.join(outside)}.", soft_wrap=True)
    if matrix.scale < 1:
        output.print(
            f"Scale {matrix.scale:g}: a subset of the images, few epochs and small "
            "stand-ins for the networks. These numbers are no reproduction of the "
            "paper's.",
            soft_wrap=True,
        )
    if missing:
        sizes = _check([job.task for job in missing], estimate_only)
        text = estimate([job.task for job in missing], sizes, pool.jobs)
        output.print(text.rich(bold=output.is_terminal))
    if estimate_only:
        return
    with Progress(output, len(missing)) as progress:
        ended = train_all(missing, progress, pool)
    done = [job.run for job in jobs if job.run.finished]
    if done:
        files, notes = write_tables(
            done,
            folder,
            fit_on,
            [one for one in TABLES if table in (None, one.number)],
            pairs=matrix.pairs(),
            columns=matrix.columns(),
        )
        output.print("\n".join([*notes, ", ".join(map(str, files))]), soft_wrap=True)
    if failed := sum(one.error is not None for one in ended):
        raise RunError(f"{failed} runs failed; the same command tries them again.")


Pair = tuple[str, str]


def _check(
    wanted: Sequence[Task], estimate_only: bool
) -> dict[Pair, tuple[int, tuple[int, ...]]]:
    """Checks data and weights, and returns how many images there are of which shape.

    Args:
        wanted: the tasks.
        estimate_only: whether published sizes do where no data is named.
    """
    sizes: dict[Pair, tuple[int, tuple[int, ...]]] = {}
    loaded: dict[Any, data.Dataset] = {}
    for (name, model), task in {(t.dataset, t.model): t for t in wanted}.items():
        classes = settings.CLASSES[settings.family_of(name)]
        side = task.settings.image_size
        try:
            if estimate_only and task.data_dir is None and name in _SIZES:
                images, shape = _SIZES[name]
                images = task.subset or images
                shape = shape if side is None else (side, side, 3)
            else:
                if (key := data_key(task)) not in loaded:
                    loaded = {key: read_data(task)}
                dataset = load_data(task, loaded[key])
                images, shape = len(dataset.train), dataset.input_shape
                classes = dataset.num_classes
            if task.pretrained is not None:
                network = models.build(model, classes, shape)
                models.load_pretrained(network, task.pretrained)
        except (ValueError, OSError) as error:
            raise RunError(str(error)) from error
        sizes[name, model] = images, shape
    return sizes


def estimate(
    wanted: Sequence[Task],
    sizes: Mapping[Pair, tuple[int, tuple[int, ...]]],
    jobs: int,
) -> Table:
    """Returns the hours that runs take here, from a timed step of each model.

    Args:
        wanted: the tasks.
        sizes: number and shape of the images, by data set and model.
        jobs: the number of runs at a time.
    """
    rows, total = [], 0.0
    for (dataset, model), (images, shape) in sizes.items():
        members = [t for t in wanted if (t.dataset, t.model) == (dataset, model)]
        task = members[0]
        options = {"stand_in": True} if task.stand_in else {}
        seconds = seconds_per_image(model, shape, task.settings.batch_size, **options)
        whole = len(members) * task.settings.epochs * images * seconds
        total += whole
        count, speed = str(len(members)), f"{1 / seconds:.0f}"
        rows.append([dataset, model, count, speed, duration(whole)])
    rows.append(["all", "", str(len(wanted)), "", duration(total / jobs)])
    together = f", divided by {jobs} for the runs at a time" if jobs > 1 else ""
    return Table(
        ["data set", "model", "runs", "images/s", "time"],
        rows,
        "Estimate",
        "Timed with cross-entropy on random images, without validation" + together,
    )


def seconds_per_image(model: str, shape: Any, batch_size: int, **options: Any) -> float:
    """Returns the time of a training step, divided by its number of images."""
    rng = np.random.default_rng(0)
    network = models.build(model, 10, shape, **options)
    network.compile(TorchSGD(0.0), losses.build("xe"))

    def step(count: int) -> float:
        x = rng.normal(size=(count, *shape)).astype("float32")
        y = rng.integers(0, 10, count)
        network.train_on_batch(x, y)  # compiles
        start = time.perf_counter()
        network.train_on_batch(x, y)
        return (time.perf_counter() - start) / count

    found = step(few := min(_FEW, batch_size))
    if found * few < _QUICK:
        found = step(batch_size)
    keras.utils.clear_session(free_memory=False)
    return found
