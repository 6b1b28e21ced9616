"""The matrix of the paper: every cell of its tables, by `python -m recipes reproduce`.

All tables are made from the same runs: 10 pairs of a data set and a model, 7 losses and
3 seeds.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from recipes import losses, models, settings
from recipes.launch import Ended, Job, run_all, training_job
from recipes.optimizers import TorchSGD
from recipes.paper import published
from recipes.paper.table_files import write_tables
from recipes.paper.tables import TABLES
from recipes.progress import Progress, console
from recipes.request import Request
from recipes.runs import Run, RunError
from recipes.tables import Table
from recipes.tasks import run_name, task_of
from recipes.training import train

# Training images without those held out, and the size of the images.
_SIZES = {
    **dict.fromkeys(("cifar10", "cifar100"), (45_000, (32, 32, 3))),
    "tiny-imagenet": (95_000, (64, 64, 3)),
    "digits": (640, (8, 8, 1)),
}
# A step of this many images tells whether a step of a whole batch is quick to time.
_FEW, _QUICK = 8, 0.25


@dataclass(frozen=True)
class Matrix:
    """What to train.

    Args:
        datasets: names of data sets; empty for the paper's.
        models: names of models; empty for the paper's on each data set.
        losses: names of losses, `"all"` for the paper's seven, or `"released"` for
            those of its public code; empty for all seven.
        seeds: runs of each cell.
        scale: share of the training images and of the epochs, in (0, 1]. Below 1,
            small networks stand in for the paper's, transformers start from random
            weights, and the runs are trained in this process, if `jobs` is None.
        data_dir: folder of the data sets.
        pretrained: file of weights by model, for transformers.
        from_scratch: whether transformers may start from random weights.
    """

    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    seeds: int = 3
    scale: float = 1.0
    data_dir: str | None = None
    pretrained: Mapping[str, str] | None = None
    from_scratch: bool = False

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the data sets and models.

        Example:
        >>> Matrix(datasets=("tiny-imagenet",)).pairs()
        [('tiny-imagenet', 'vit_small'), ('tiny-imagenet', 'swin_tiny')]
        """
        paper = published.pairs()
        datasets = self.datasets or tuple(dict.fromkeys(d for d, _ in paper))
        return [
            (dataset, model)
            for dataset in datasets
            for model in self.models or [m for d, m in paper if d == dataset]
            if (dataset, model) in paper or (self.datasets and self.models)
        ]

    def requests(self) -> list[Request]:
        """Returns the runs, one seed of the whole matrix after the other."""
        if not 0 < self.scale <= 1:
            raise RunError(f"`scale` must be in (0, 1]. Received: scale={self.scale:g}")
        names: list[str] = []
        for name in self.losses or ("all",):
            groups = {"all": losses.NAMES, "released": losses.RELEASED}
            names += groups.get(name, (name,))
        found = [
            self._request(dataset, model, loss, seed)
            for seed in range(self.seeds)
            for dataset, model in self.pairs()
            for loss in dict.fromkeys(names)
        ]
        if not found:
            listed = ", ".join(f"{d} with {m}" for d, m in published.pairs())
            raise RunError(f"the paper has none of these pairs. It has {listed}.")
        return found

    def _request(self, dataset: str, model: str, loss: str, seed: int) -> Request:
        transformer = model in settings.TRANSFORMERS
        weights = (self.pretrained or {}).get(model)
        small: dict[str, Any] = {}
        if self.scale < 1:
            if dataset not in _SIZES:
                raise RunError(f"`scale` is for {', '.join(_SIZES)}, not {dataset}.")
            try:
                epochs = settings.settings(dataset, model, loss).epochs
            except ValueError as error:
                raise RunError(str(error)) from error
            if self.pretrained:
                raise RunError("`scale` trains stand-ins, without `pretrained`.")
            if model in models.STAND_INS:
                small["stand_in"] = True
                small["set"] = (f"image_size={28 if transformer else 16}",)
            images = round(self.scale * _SIZES[dataset][0])
            small["epochs"] = max(1, round(self.scale * epochs))
            small["subset"] = max(2 * settings.CLASSES[dataset], images)
        return Request(
            dataset,
            model,
            loss,
            seed=seed,
            data_dir=None if dataset == "digits" else self.data_dir,
            pretrained=weights if transformer else None,
            from_scratch=transformer
            and weights is None
            and (self.from_scratch or self.scale < 1),
            **small,
        )


def reproduce(
    matrix: Matrix,
    out: str | os.PathLike[str],
    *,
    table: str | None = None,
    fit_on: str = "val",
    jobs: int | None = None,
    engine: str = "local",
    estimate_only: bool = False,
) -> None:
    """Trains the runs that are missing and writes the tables.

    Args:
        matrix: what to train.
        out: the folder for runs and tables.
        table: the table to write, `"1"`, `"2"` or `"A"`; None for all.
        fit_on: the split on which calibrators are fitted.
        jobs: the number of runs at a time.
        engine: one of `recipes.launch.ENGINES`.
        estimate_only: whether to stop after the estimate of the hours.
    """
    output, folder = console(), Path(out)
    runs = [(one, Run(folder / run_name(task_of(one)))) for one in matrix.requests()]
    missing = [(one, run) for one, run in runs if not run.finished]
    output.print(f"{len(runs)} runs, {len(runs) - len(missing)} finished already")
    if matrix.scale < 1:
        output.print(
            f"Scale {matrix.scale:g}: a subset of the images, few epochs and small "
            "stand-ins for the networks. These numbers are no reproduction of the "
            "paper's.",
            soft_wrap=True,
        )
    if missing:
        text = estimate([one for one, _ in missing], jobs or 1)
        output.print(text.rich(bold=output.is_terminal))
    if estimate_only:
        return
    ended: list[Ended] = []
    if matrix.scale < 1 and jobs is None and engine == "local":
        # Starting a process would take longer than the training.
        with Progress(output, len(missing)) as progress:
            for one, run in missing:
                train(run, task_of(one), progress)
    else:
        todo = [training_job(run, one.arguments()) for one, run in missing]
        ended = _train(todo, output, engine, jobs)
    done = [run for _, run in runs if run.finished]
    if done:
        shown = [one for one in TABLES if table in (None, one.number)]
        files, notes = write_tables(done, folder, fit_on, shown)
        output.print("\n".join([*notes, ", ".join(map(str, files))]), soft_wrap=True)
    if failed := sum(one.error is not None for one in ended):
        raise RunError(f"{failed} runs failed; the same command tries them again.")


def _train(
    jobs: Sequence[Job], output: Any, engine: str, at_once: int | None
) -> list[Ended]:
    with Progress(output, len(jobs)) as progress:

        def report(one: Ended) -> None:
            note = one.failure() if one.error else f"{one.seconds:.0f} s"
            progress.end(one.job.run.name, note)

        return run_all(jobs, engine, at_once=at_once, report=report)


def estimate(requests: Sequence[Request], jobs: int) -> Table:
    """Returns the hours that runs take here, from a timed step of each model.

    Args:
        requests: the runs.
        jobs: the number of runs at a time.
    """
    pairs: dict[tuple[str, str], list[Request]] = {}
    for one in requests:
        pairs.setdefault((one.dataset, one.model), []).append(one)
    rows, total = [], 0.0
    for (dataset, model), members in pairs.items():
        task = task_of(members[0])
        size, shape = _SIZES.get(dataset, (None, None))
        images = task.subset or size
        if images is None:
            rows.append([dataset, model, str(len(members)), "", "unknown"])
            continue
        if task.settings.image_size is not None:
            shape = (task.settings.image_size,) * 2 + (3,)
        options = {"stand_in": True} if task.stand_in else {}
        seconds = seconds_per_image(model, shape, task.settings.batch_size, **options)
        hours = len(members) * task.settings.epochs * images * seconds / 3600
        total += hours
        speed = f"{1 / seconds:.0f}"
        rows.append([dataset, model, str(len(members)), speed, f"{hours:.3g}"])
    rows.append(["all", "", str(len(requests)), "", f"{total / jobs:.3g}"])
    together = f", divided by {jobs} for the runs at a time" if jobs > 1 else ""
    return Table(
        ["data set", "model", "runs", "images/s", "hours"],
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
