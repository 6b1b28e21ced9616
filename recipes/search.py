"""The search for hyperparameters on the validation set: `python -m recipes search`.

The paper takes the setting with the best validation loss, and does not say which loss.
The values of a loss with different γ, κ or λ cannot be compared: (1 + p)^γ ℓ, for
example, doubles with each unit of γ where p is near 1. Settings are therefore compared
by the cross-entropy (NLL) on the validation set. The checkpoint of each run is the one
with the lowest validation value of its own loss, as in every run.
"""

import csv
import io
import itertools
import math
import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from recipes import losses
from recipes.engine import ONE, Ended, Job, train_all
from recipes.evaluation import METRICS, evaluate
from recipes.progress import Progress, console
from recipes.runs import Run, writing
from recipes.settings import (
    CSFS,
    KDE_REGULARIZATION,
    SYMBOLS,
    TUNED,
    Settings,
    smoothing_of,
)
from recipes.tables import Bold, Cell, Table, cell_of, remarks
from recipes.tasks import Pool, RunError, Task

FILE, PICTURE = "search.csv", "search.png"
# Metrics of the validation set; the first one chooses.
SHOWN = ("nll", "ece", "accuracy")

# Fields of a task that are not changed by `set`; `epochs` moves the milestones, too.
_OPTIONS = ("csf", "epochs", "batch_size")
# A value at the end of its range has no neighbour outside the grid.
_LIMITS = {"quantile": 1.0, "gamma": 0.0, "kde_weight": 0.0}


def default_grid(
    dataset: str, loss: str, weight_gradient: float = 0.0, csf: str = "msp"
) -> dict[str, tuple[Any, ...]]:
    """Returns the default grid: all values that the paper chose for any model.

    For inverse focal loss, it also has larger γ, which fig:gammaselection shows to be
    worse. The paper does not say which grids it searched. The grid is empty for losses
    without hyperparameters.

    Args:
        dataset: a name that `recipes.data.load` takes.
        loss: a name of `recipes.losses`.
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
        return {"smoothing": smoothing, "quantile": chosen("quantile"), "csf": CSFS}
    return {}


def run_search(
    task: Task,
    *,
    grid: Sequence[str] = (),
    seeds: int = 1,
    out: str | os.PathLike[str] | None = None,
    pool: Pool = ONE,
) -> None:
    """Trains every setting of a grid, writes the map, and chooses.

    The arguments are those of the command. Without a grid, `default_grid` is searched.
    """
    output = console()
    try:
        losses.check_name(task.loss)
    except ValueError as error:
        raise RunError(str(error)) from error
    values = grid_of(task, grid)
    folder = _folder(task) if out is None else Path(out)
    said = ", ".join(remarks(task.config()))
    title = f"{losses.title(task.loss)}: {task.model} on {task.dataset}"
    title += f" ({said})" if said else ""
    search = Search(tuple(values), trials_of(task, values, seeds, folder))
    counts = " × ".join(f"{len(texts)} {name}" for name, texts in values.items())
    output.print(f"{title}\n{counts}, {len(search.trials)} runs", soft_wrap=True)
    by_name = {trial.job.run.name: trial for trial in search.trials}
    with Progress(output, len(search.trials)) as progress:

        def report(ended: Ended) -> None:
            by_name[ended.job.run.name].end(ended)
            search.write(folder)

        train_all([trial.job for trial in search.trials], progress, pool, report)
    drawn = search.draw(folder / PICTURE)
    output.print(search.table().rich(bold=output.is_terminal))
    lines = [search.verdict(), *search.remarks()]
    if (command := search.command()) is not None:
        lines.append(f"\n    {command}\n")
    files = [FILE, *([PICTURE] if drawn else [])]
    lines.append(f"{folder}: {', '.join(files)} and the runs")
    output.print("\n".join(lines), soft_wrap=True)
    if failed := sum(trial.failure is not None for trial in search.trials):
        raise RunError(
            f"{failed} of {len(search.trials)} runs failed, as shown above; the same "
            "command tries them again."
        )


@dataclass
class Trial:
    """A run of the search: its values of the searched fields, and its results.

    `results` is empty until the run is finished; otherwise it has `SHOWN` and
    the run's own loss at the best epoch, and that epoch.
    """

    values: tuple[Any, ...]
    job: Job
    results: dict[str, float]
    failure: str | None = None

    @property
    def state(self) -> str:
        """`"finished"`, `"failed"` or `"open"`."""
        if self.results:
            return "finished"
        return "open" if self.failure is None else "failed"

    def end(self, ended: Ended) -> None:
        """Takes the results of a finished run, or why it failed."""
        self.failure = ended.error
        if ended.error is not None:
            return
        run = self.job.run
        history = run.history()
        epoch = run.environment().get("best_epoch") or len(history)
        self.results = evaluate(run, "val", SHOWN)
        self.results |= {"loss": history[epoch - 1]["val_loss"], "epoch": epoch}


def trials_of(
    task: Task, grid: Mapping[str, Sequence[str]], seeds: int, folder: Path
) -> list[Trial]:
    """Returns the runs of a grid; refuses settings that cannot be trained.

    Args:
        task: what to train.
        grid: the searched fields, with the texts of their values.
        seeds: the number of runs of each setting.
        folder: for the runs.
    """
    found = []
    for point in itertools.product(*grid.values()):
        for seed in range(seeds):
            one = _at(task, dict(zip(grid, point, strict=True)), seed)
            try:
                with warnings.catch_warnings():
                    # They are shown when the run is trained.
                    warnings.simplefilter("ignore")
                    losses.build(one.loss, one.settings.loss)
            except ValueError as error:
                raise RunError(str(error)) from error
            values = tuple(_value(one.settings, name) for name in grid)
            found.append(Trial(values, Job(Run(folder / one.name), one), {}))
    return found


def grid_of(task: Task, asked: Sequence[str]) -> dict[str, list[str]]:
    """Returns the searched fields, with the texts of their values.

    Args:
        task: what to train; what it fixes is not searched.
        asked: fields with values, such as `"smoothing=0.02,0.1"`.
    """
    arguments = losses.defaults(task.loss)
    known = [
        *arguments,
        *(f.name for f in fields(Settings) if f.name not in ("loss", "source")),
    ]
    changes = task.changes()
    fixed = {name.removeprefix("loss.") for name in changes}
    fixed |= {name for name in _OPTIONS if getattr(task, name) is not None}
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
        weight_gradient = 0.0  # `Task.settings` refuses it
    csf = task.csf or "msp"
    default = default_grid(task.dataset, task.loss, weight_gradient, csf)
    grid = {n: [*map(text, values)] for n, values in default.items() if n not in fixed}
    if not grid:
        raise RunError(
            f"there is nothing to search for {task.loss}: name settings and values "
            "by --grid, such as --grid learning_rate=0.05,0.1."
        )
    return grid


def _canonical(value: str) -> str:
    """Returns one text for equal numbers: 1.0 and 1 are one run."""
    try:
        return text(float(value))
    except ValueError:
        return value.strip()


def text(value: Any) -> str:
    """Returns a value as text, which is the same for equal numbers.

    Example:
    >>> text(0.10), text("msp")
    ('0.1', 'msp')
    """
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _at(task: Task, point: Mapping[str, str], seed: int) -> Task:
    """Returns the task of a point of the grid."""
    changes: dict[str, Any] = {"seed": seed, "set": task.set}
    arguments = losses.defaults(task.loss)
    for name, value in point.items():
        if name in _OPTIONS:
            whole = name != "csf" and value.isdigit()
            changes[name] = int(value) if whole else value
        else:
            prefix = "loss." if name in arguments else ""
            changes["set"] += (f"{prefix}{name}={value}",)
    return replace(task, **changes)


def _value(settings: Settings, name: str) -> Any:
    return settings.loss[name] if name in settings.loss else getattr(settings, name)


def _folder(task: Task) -> Path:
    """Returns the folder of a search: the name of a run, without what is searched."""
    _, _, marks = replace(task, seed=0).name.partition("-seed0")
    dataset = os.path.basename(os.path.normpath(task.dataset.rpartition(":")[2]))
    csf = [] if task.csf is None else [task.csf]
    name = "-".join(["search", dataset, task.model, task.loss, *csf])
    return Path("runs", f"{name}{marks}")


# --- Results ------------------------------------------------------------------------


class Search:
    """The runs of a search, and the choice among them.

    Args:
        names: names of the searched settings.
        trials: the runs, in the order of the grid.
    """

    def __init__(self, names: tuple[str, ...], trials: Sequence[Trial]) -> None:
        self.names, self.trials = names, trials
        self.settings: dict[tuple[Any, ...], list[Trial]] = {}
        for trial in trials:
            self.settings.setdefault(trial.values, []).append(trial)

    def cell(self, setting: tuple[Any, ...], name: str) -> Cell | None:
        """Returns a metric over the finished runs of a setting."""
        found = [one.results[name] for one in self.settings[setting] if one.results]
        return cell_of(found) if found else None

    def choice(self, name: str = SHOWN[0]) -> tuple[Any, ...] | None:
        """Returns the setting that is best by a metric, or None.

        Settings that lack a seed or have a NaN are not candidates.
        """
        sign = -1 if METRICS[name].higher else 1
        costs = {
            one: sign * cell.mean
            for one, trials in self.settings.items()
            if all(trial.results for trial in trials)
            and (cell := self.cell(one, name)) is not None
            and not math.isnan(cell.mean)
        }
        return min(costs, key=lambda one: costs[one], default=None)

    def command(self) -> str | None:
        """Returns the command that trains the choice with the first seed."""
        choice = self.choice()
        if choice is None:
            return None
        arguments = self.settings[choice][0].job.task.arguments()
        return f"python -m recipes train {shlex.join(arguments)}"

    def verdict(self) -> str:
        """Returns a sentence on the choice."""
        choice = self.choice()
        if choice is None:
            return "No setting is chosen: none has all its runs finished."
        return f"Chosen: {self._named(choice, SHOWN[0])}."

    def remarks(self) -> list[str]:
        """Returns sentences on what speaks against the choice."""
        choice = self.choice()
        if choice is None:
            return []
        said = []
        for place, (name, value) in enumerate(zip(self.names, choice, strict=True)):
            axis = {values[place] for values in self.settings}
            numbers = all(isinstance(one, (int, float)) for one in axis)
            if len(axis) == 1 or not numbers or value == _LIMITS.get(name):
                continue
            for end, words in ((min(axis), "smallest"), (max(axis), "largest")):
                if value == end:
                    beyond = words.removesuffix("st") + "r"
                    said.append(
                        f"{name} = {text(value)} is the {words} value of the grid: a "
                        f"{beyond} one may be better."
                    )
        for name in SHOWN[1:]:
            other = self.choice(name)
            if other is not None and self.cell(other, name) != self.cell(choice, name):
                said.append(f"But {self._named(other, name)}.")
        return said

    def _named(self, setting: tuple[Any, ...], name: str) -> str:
        """Says that a setting is the best by a metric."""
        pairs = zip(self.names, setting, strict=True)
        values = ", ".join(f"{name} {text(value)}" for name, value in pairs)
        metric, cell = METRICS[name], self.cell(setting, name)
        end = "highest" if metric.higher else "lowest"
        shown = cell and cell.text(metric.digits)
        return f"{values} has the {end} {metric.title} on the validation set, {shown}"

    def table(self) -> Table:
        """Returns all settings, with all metrics."""
        choice = self.choice()
        lines = []
        for setting in self.settings:
            line = [*map(text, setting), *(self._text(setting, n) for n in SHOWN)]
            lines.append([*map(Bold, line)] if setting == choice else line)
        head = [f"{name} {SYMBOLS.get(name, '')}".strip() for name in self.names]
        head += [METRICS[name].heading for name in SHOWN]
        seeds = max(len(trials) for trials in self.settings.values())
        mean = f"mean ± standard deviation over {seeds} seeds"
        caption = (
            "Validation set; ECE and accuracy × 10²; "
            f"{mean if seeds > 1 else 'one seed'}. The choice in bold."
        )
        return Table(head, lines, "", caption)

    def _text(self, setting: tuple[Any, ...], name: str) -> str:
        cell, trials = self.cell(setting, name), self.settings[setting]
        missing = "failed" if any(t.failure is not None for t in trials) else "open"
        if cell is None:
            return missing
        lacking = sum(not trial.results for trial in trials)
        shown = "NaN" if math.isnan(cell.mean) else cell.text(METRICS[name].digits)
        return f"{shown} ({lacking} {missing})" if lacking else shown

    def csv(self) -> str:
        """Returns a line for each run; accuracy and ECE are in %."""
        names = ("loss", *SHOWN)
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        columns = [*self.names, "seed", *(f"val_{name}" for name in names)]
        writer.writerow([*columns, "epoch", "run", "state"])
        for trial in self.trials:
            found = [trial.results.get(name, "") for name in (*names, "epoch")]
            numbers = [f"{x:.6g}" if isinstance(x, float) else x for x in found]
            values = [*map(text, trial.values), trial.job.task.seed]
            writer.writerow([*values, *numbers, trial.job.run.name, trial.state])
        return buffer.getvalue()

    def write(self, folder: Path) -> None:
        """Writes `search.csv`, completely or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        with writing(folder / FILE) as path:
            path.write_text(self.csv(), encoding="utf-8")

    def draw(self, path: Path) -> bool:
        """Draws the map of the search.

        Returns:
            Whether there is a picture: it needs a choice, one or two varied numbers,
            and at most 6 combinations of other fields.
        """
        from recipes.paper.search_figures import read_search, search_figure

        if self.choice() is None:
            return False
        figure = search_figure(read_search(self.csv().splitlines()))
        if figure is not None:
            figure.savefig(path, dpi=100, bbox_inches="tight")
        return figure is not None
