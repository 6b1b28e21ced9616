"""The search for hyperparameters on the validation set.

The paper holds out 5,000 training images and takes the setting with the best validation
loss. It does not say which loss, and the values of a loss with different γ, κ or λ
cannot be compared: (1 + p)^γ ℓ, for example, doubles with each unit of γ where p is
near 1. Settings are therefore compared by the cross-entropy (NLL) on the validation
set; each run's own loss, ECE and accuracy are recorded too, and `by` chooses by them
instead. The checkpoint of each run is the one with the lowest validation value of its
own loss, as in every run.
"""

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from recipes import losses
from recipes.launch import Ended, run_all, training_job
from recipes.progress import Progress, console
from recipes.request import Request, RunError
from recipes.runs import Run
from recipes.search_plots import draw_search
from recipes.search_results import FILES, Search, Trial, named, text
from recipes.settings import CSFS, KDE_REGULARIZATION, TUNED, Settings, smoothing_of
from recipes.tables import remarks
from recipes.tasks import run_name, task_of

PICTURE = "search.png"

# Fields of a request that are not changed by `set`; `epochs` moves the milestones, too.
_OPTIONS = ("csf", "epochs", "batch_size")


def default_grid(
    dataset: str, loss: str, weight_gradient: float = 0.0, csf: str = "msp"
) -> dict[str, tuple[Any, ...]]:
    """Returns the default grid: all values that the paper chose for any model.

    For inverse focal loss, it also has larger γ, which fig:gammaselection shows to be
    worse. The paper does not say which grids it searched. The grid is empty for losses
    without hyperparameters.

    Args:
        dataset: a name that `recipes.data.load` takes.
        loss: one of `recipes.losses.NAMES`.
        weight_gradient: of AU; above 0, the paper's ν are converted for "msp".
        csf: confidence score of AU.

    Example:
    >>> default_grid("cifar10", "inv_focal")
    {'gamma': (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)}
    """

    def chosen(name: str) -> tuple[Any, ...]:
        return tuple(sorted({getattr(tuned, name) for tuned in TUNED.values()}))

    if loss == "inv_focal":
        return {"gamma": (*chosen("inverse"), 4.0, 5.0)}
    if loss == "dual_focal":
        return {"gamma": chosen("dual")}
    if loss == "kde_xe":
        return {"kde_weight": tuple(sorted({*KDE_REGULARIZATION.values()}))}
    if loss == "aurc":
        return {"csf": CSFS}
    if loss == "au":
        smoothing = tuple(
            smoothing_of(dataset, nu, csf, weight_gradient)
            for nu in chosen("smoothing")
        )
        return {"smoothing": smoothing, "coverage": chosen("coverage"), "csf": CSFS}
    return {}


def run_search(
    request: Request,
    *,
    grid: Sequence[str] = (),
    seeds: int = 1,
    by: str = "nll",
    out: str | os.PathLike[str] | None = None,
    engine: str = "local",
    jobs: int | None = None,
    gpus: float = 0.0,
) -> None:
    """Trains every setting of a grid, writes the map, and chooses.

    Args:
        request: the task; its seed is ignored.
        grid: fields with values, such as `"smoothing=0.02,0.1"`; empty for
            `default_grid`.
        seeds: the number of runs of each setting.
        by: the criterion, one of `recipes.search_results.CRITERIA`.
        out: the folder; None for one in `runs`.
        engine: one of `recipes.request.ENGINES`.
        jobs: the number of runs at a time.
        gpus: GPUs of each run on Ray.
    """
    output = console()
    if gpus < 0 or (gpus and engine != "ray"):
        raise RunError(f"`gpus-per-run` is for the engine ray. Received: {gpus:g}")
    try:
        losses.check_name(request.loss)
    except ValueError as error:
        raise RunError(str(error)) from error
    values = grid_of(request, grid)
    folder = _folder(request) if out is None else Path(out)
    said = ", ".join(remarks(vars(task_of(request))))
    title = f"{losses.ALL_TITLES[request.loss]}: {request.model} on {request.dataset}"
    title += f" ({said})" if said else ""
    search = Search(tuple(values), trials_of(request, values, seeds, folder), title, by)
    for trial in search.trials:
        if trial.job.run.finished:
            trial.read()
    done = sum(trial.state == "finished" for trial in search.trials)
    output.print(_plan(search, seeds, done), soft_wrap=True)
    by_name = {trial.job.run.name: trial for trial in search.trials}
    with Progress(output, len(search.trials) - done) as progress:

        def report(ended: Ended) -> None:
            trial = by_name[ended.job.run.name]
            if ended.error is None:
                trial.read()
                assert trial.outcome is not None
                note = (
                    f"NLL {trial.outcome.nll:.3f}, accuracy "
                    f"{100 * trial.outcome.accuracy:.1f} %, {ended.seconds:.0f} s"
                )
            else:
                trial.failure, note = ended, ended.failure()
            progress.end(trial.job.run.name, note)
            search.write(folder)

        all_jobs = [trial.job for trial in search.trials]
        run_all(all_jobs, engine, at_once=jobs, gpus=gpus, report=report)
    drawn = draw_search(search, folder / PICTURE)
    search.write(folder, PICTURE if drawn else None)
    output.print(search.table().rich(bold=output.is_terminal))
    lines = [search.verdict(), *search.remarks()]
    if (command := search.command()) is not None:
        lines.append(f"\n    {command}\n")
    files = [*FILES, *([PICTURE] if drawn else [])]
    lines.append(f"{folder}: {', '.join(files)} and the runs")
    output.print("\n".join(lines), soft_wrap=True)
    failed = sum(trial.state == "failed" for trial in search.trials)
    if failed:
        raise RunError(
            f"{failed} of {len(search.trials)} runs failed, as shown above and in "
            f"{folder / FILES[1]}; the same command tries them again."
        )


def _plan(search: Search, seeds: int, done: int) -> str:
    counts = [str(len(axis)) for axis in search.axes()]
    settings = _plural(len(search.settings), "setting")
    product = f"{' × '.join(counts)} = {settings}" if len(counts) > 1 else settings
    each = f", {seeds} seeds each" if seeds > 1 else ""
    runs = _plural(len(search.trials), "run")
    finished = f", {done} of them finished already" if done else ""
    names = " × ".join(named(name) for name in search.fields)
    return f"{search.title}\n{names}: {product}{each}; {runs}{finished}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def trials_of(
    request: Request, grid: Mapping[str, Sequence[str]], seeds: int, folder: Path
) -> list[Trial]:
    """Returns the runs of a grid; refuses settings that cannot be trained.

    Args:
        request: the task.
        grid: the searched fields, with the texts of their values.
        seeds: the number of runs of each setting.
        folder: for the runs.
    """
    found = []
    for point in itertools.product(*grid.values()):
        for seed in range(seeds):
            asked = _asked(request, dict(zip(grid, point, strict=True)), seed)
            task = task_of(asked)
            try:
                with warnings.catch_warnings():
                    # They are in the log of the run.
                    warnings.simplefilter("ignore")
                    losses.build(task.loss, task.settings.loss)
            except ValueError as error:
                raise RunError(str(error)) from error
            run = Run(folder / run_name(task))
            if run.finished:
                run.claim({**task.config(), "data": None})
            values = tuple(_value(task.settings, name) for name in grid)
            job = training_job(run, asked.arguments())
            found.append(Trial(values, seed, asked.arguments(), job))
    return found


def grid_of(request: Request, asked: Sequence[str]) -> dict[str, list[str]]:
    """Returns the searched fields, with the texts of their values.

    Args:
        request: the task; what it fixes is not searched.
        asked: fields with values, such as `"smoothing=0.02,0.1"`.
    """
    arguments = losses.defaults(request.loss)
    known = [
        *arguments,
        *(f.name for f in fields(Settings) if f.name not in ("loss", "source")),
    ]
    changes = request.changes()
    fixed = {name.removeprefix("loss.") for name in changes}
    fixed |= {name for name in _OPTIONS if getattr(request, name) is not None}
    grid: dict[str, list[str]] = {}
    for words in asked:
        name, _, values = words.partition("=")
        name = name.removeprefix("loss.")
        if name not in known:
            raise RunError(
                f"`grid` must name one of {', '.join(known)}. Received: {words!r}"
            )
        if name in fixed or name in grid:
            raise RunError(f"`grid` has {name}, which is given twice.")
        grid[name] = list(dict.fromkeys(_canonical(one) for one in values.split(",")))
    if grid:
        return grid
    try:
        weight_gradient = float(changes.get("loss.weight_gradient", 0))
    except ValueError:
        weight_gradient = 0.0  # `task_of` refuses it
    csf = request.csf or "msp"
    default = default_grid(request.dataset, request.loss, weight_gradient, csf)
    grid = {n: [*map(text, values)] for n, values in default.items() if n not in fixed}
    if not grid:
        raise RunError(
            f"there is nothing to search for {request.loss}: name settings and values "
            "by --grid, such as --grid learning_rate=0.05,0.1."
        )
    return grid


def _canonical(value: str) -> str:
    """Returns one text for equal numbers: 1.0 and 1 are one run."""
    try:
        return text(float(value))
    except ValueError:
        return value.strip()


def _asked(request: Request, point: Mapping[str, str], seed: int) -> Request:
    """Returns the request of a point of the grid."""
    changes: dict[str, Any] = {"seed": seed, "set": request.set}
    arguments = losses.defaults(request.loss)
    for name, value in point.items():
        if name in _OPTIONS:
            whole = name != "csf" and value.isdigit()
            changes[name] = int(value) if whole else value
        else:
            prefix = "loss." if name in arguments else ""
            changes["set"] += (f"{prefix}{name}={value}",)
    return replace(request, **changes)


def _value(settings: Settings, name: str) -> Any:
    return settings.loss[name] if name in settings.loss else getattr(settings, name)


def _folder(request: Request) -> Path:
    """Returns the folder of a search: the name of a run, without what is searched."""
    _, _, marks = run_name(task_of(replace(request, seed=0))).partition("-seed0")
    dataset = os.path.basename(os.path.normpath(request.dataset.rpartition(":")[2]))
    csf = [] if request.csf is None else [request.csf]
    name = "-".join(["search", dataset, request.model, request.loss, *csf])
    return Path("runs", f"{name}{marks}")
