"""Choosing settings on the validation set.

The paper holds out 5,000 training images and takes the setting with the best validation
loss. It does not say which loss, and one that has γ, κ or λ in it is another measure
for each of their values: (1 + p)^γ ℓ, say, doubles with each unit of γ where p is near
1, so that by its own value γ = 3 would hardly be chosen over γ = 1, as the paper does
once. Settings are therefore compared by the cross-entropy (NLL) of the validation set,
the loss that all of them share; each run's own loss, ECE and accuracy are recorded too,
and `by` chooses by them instead. The checkpoint of each run is, as always, the one with
the lowest validation value of its own loss.
"""

import argparse
import csv
import io
import itertools
import math
import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal.functional import paper_smoothing
from recipes import losses
from recipes.cli import task_defaults, task_of
from recipes.engines import Job, Result, run_all, training_job
from recipes.evaluation import evaluate
from recipes.progress import Progress, console
from recipes.runs import Run, RunError
from recipes.settings import CLASSES, CSFS, KDE_REGULARIZATION, TUNED, Settings
from recipes.tables import Bold, Table, cell_of

FILES, PICTURE = ("selection.csv", "selection.md"), "selection.png"

# Options of `train` beside --set; --epochs moves the milestones, too.
_OPTIONS = ("csf", "epochs", "batch_size")
# All options that tell a task, and their defaults.
_TASK = task_defaults()

_PANELS = 6  # of a picture

_SYMBOLS = {"gamma": "γ", "smoothing": "ν", "coverage": "κ", "kde_weight": "λ"}
# Where a range ends, nothing lies beyond the grid.
_LIMITS = {"coverage": 1.0, "gamma": 0.0, "kde_weight": 0.0}


class Criterion(NamedTuple):
    """What settings are compared by.

    Attributes:
        title: in tables.
        what: in words.
        higher: whether more is better.
        scale: 100 for what is shown × 10².
    """

    title: str
    what: str
    higher: bool = False
    scale: float = 1.0

    def text(self, values: Sequence[float]) -> str:
        """Returns mean ± standard deviation of the values of some seeds."""
        cell = cell_of([self.scale * value for value in values])
        digits = 2 if self.scale > 1 else 4
        return "NaN" if math.isnan(cell.mean) else cell.text(digits)


CRITERIA = {
    "nll": Criterion("NLL", "cross-entropy (NLL)"),
    "loss": Criterion("own loss", "value of its own loss"),
    "ece": Criterion("ECE", "ECE", scale=100.0),
    "accuracy": Criterion("accuracy", "accuracy", higher=True, scale=100.0),
}


def default_grid(
    dataset: str, loss: str, weight_gradient: float = 0.0
) -> dict[str, tuple[Any, ...]]:
    """Returns what is searched unless told otherwise.

    These are all values that the paper has chosen for some model; it does not tell the
    grids that it has searched. Empty for the losses that have nothing to choose.

    Args:
        dataset: a name that `recipes.data.load` takes.
        loss: one of `recipes.losses.NAMES`.
        weight_gradient: of AU; above 0, the paper's ν are converted.

    Example:
    >>> default_grid("cifar10", "inv_focal")
    {'gamma': (1.0, 1.5, 2.0, 3.0)}
    """

    def chosen(name: str) -> tuple[Any, ...]:
        return tuple(sorted({getattr(tuned, name) for tuned in TUNED.values()}))

    if loss == "inv_focal":
        return {"gamma": chosen("inverse")}
    if loss == "dual_focal":
        return {"gamma": chosen("dual")}
    if loss == "kde_xe":
        return {"kde_weight": tuple(sorted({*KDE_REGULARIZATION.values()}))}
    if loss == "aurc":
        return {"csf": CSFS}
    if loss == "au":
        smoothing = chosen("smoothing")
        if weight_gradient:
            classes = CLASSES[dataset.partition(":")[0]]
            smoothing = tuple(paper_smoothing(nu, classes) for nu in smoothing)
        return {"smoothing": smoothing, "coverage": chosen("coverage"), "csf": CSFS}
    return {}


# --- The search ---------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a finished run has reached on the validation set, at its best epoch."""

    loss: float
    nll: float
    accuracy: float
    ece: float
    epoch: int


@dataclass
class Trial:
    """A run of the search: values of the searched fields, and a seed."""

    values: tuple[Any, ...]
    seed: int
    arguments: tuple[str, ...]
    job: Job
    outcome: Outcome | None = None
    failure: Result | None = None

    @property
    def state(self) -> str:
        """`"finished"`, `"failed"` or `"open"`."""
        if self.outcome is not None:
            return "finished"
        return "open" if self.failure is None else "failed"

    def read(self) -> None:
        """Takes up the results of a finished run."""
        run = Run(self.job.folder)
        found = evaluate(run, "val", ("nll", "accuracy", "ece"))
        history = run.history()
        epoch = run.environment().get("best_epoch") or len(history)
        self.outcome = Outcome(
            history[epoch - 1]["val_loss"],
            found["nll"],
            found["accuracy"] / 100,
            found["ece"] / 100,
            epoch,
        )


def select(options: argparse.Namespace) -> None:
    """Trains every setting of a grid, writes the map, and chooses.

    Args:
        options: of `python -m recipes select`.
    """
    output = console()
    gpus = options.gpus_per_run
    if gpus < 0 or (gpus and options.engine != "ray"):
        raise RunError(f"`gpus-per-run` is for the engine ray. Received: {gpus:g}")
    selection = Selection(*_trials(options), title=_title(options), by=options.by)
    trials = selection.trials
    for trial in trials:
        if trial.job.finished:
            trial.read()
    done = sum(trial.state == "finished" for trial in trials)
    _say(output, _plan(selection, options, done))
    by_name = {trial.job.name: trial for trial in trials}
    folder = _folder(options)

    with Progress(output, len(trials) - done) as progress:

        def report(result: Result) -> None:
            trial = by_name[result.job.name]
            if result.finished:
                trial.read()
                assert trial.outcome is not None
                note = (
                    f"NLL {trial.outcome.nll:.3f}, accuracy "
                    f"{100 * trial.outcome.accuracy:.1f} %, {result.seconds:.0f} s"
                )
            else:
                trial.failure, note = result, result.failure()
            progress.end(trial.job.name, note)
            selection.write(folder)

        run_all(
            [trial.job for trial in trials],
            options.engine,
            at_once=options.jobs,
            gpus=gpus,
            report=report,
        )
    drawn = selection.draw(folder / PICTURE)
    selection.write(folder, PICTURE if drawn else None)
    for table in selection.maps():
        output.print(table.rich(bold=output.is_terminal))
    _say(output, selection.verdict(), *selection.remarks())
    if (command := selection.command()) is not None:
        _say(output, f"\n    {command}\n")
    files = [*FILES, *([PICTURE] if drawn else [])]
    _say(output, f"{folder}: {', '.join(files)} and the runs")
    failed = sum(trial.state == "failed" for trial in trials)
    if failed:
        raise RunError(
            f"{failed} of {len(trials)} runs failed, as told above and in "
            f"{folder / FILES[1]}; the same command tries them again."
        )


def _say(output: Any, *lines: str) -> None:
    for line in lines:
        output.print(line, markup=False, soft_wrap=True)


def _title(options: argparse.Namespace) -> str:
    return f"{losses.TITLES[options.loss]}: {options.model} on {options.dataset}"


def _plan(selection: "Selection", options: argparse.Namespace, done: int) -> str:
    counts = [str(len(axis)) for axis in selection.axes()]
    settings = _plural(len(selection.settings()), "setting")
    product = f"{' × '.join(counts)} = {settings}" if len(counts) > 1 else settings
    seeds = f", {options.seeds} seeds each" if options.seeds > 1 else ""
    runs = _plural(len(selection.trials), "run")
    finished = f", {done} of them finished already" if done else ""
    named = " × ".join(_named(name) for name in selection.fields)
    return f"{selection.title}\n{named}: {product}{seeds}; {runs}{finished}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _trials(options: argparse.Namespace) -> tuple[tuple[str, ...], list[Trial]]:
    """Returns the searched fields, and the runs; refuses what cannot be trained."""
    try:
        losses.check_name(options.loss)
    except ValueError as error:
        raise RunError(str(error)) from error
    grid = _grid(options)
    folder = _folder(options)
    trials = []
    for texts in itertools.product(*grid.values()):
        for seed in range(options.seeds):
            asked = _asked(options, dict(zip(grid, texts, strict=True)), seed)
            task, name = task_of(asked)
            try:
                with warnings.catch_warnings():
                    # The run's log has them.
                    warnings.simplefilter("ignore")
                    losses.build(task.loss, task.settings.loss)
            except ValueError as error:
                raise RunError(str(error)) from error
            run = Run(folder / name)
            if run.finished:
                run.claim({**task.config(), "data": None})
            values = tuple(_value(task.settings, name) for name in grid)
            arguments = _arguments(asked)
            trials.append(Trial(values, seed, arguments, training_job(run, arguments)))
    return tuple(grid), trials


def _grid(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the searched fields, and the texts of their values."""
    arguments = losses.defaults(options.loss)
    known = [
        *arguments,
        *(f.name for f in fields(Settings) if f.name not in ("loss", "source")),
    ]
    fixed = {change.partition("=")[0].removeprefix("loss.") for change in options.set}
    fixed |= {name for name in _OPTIONS if getattr(options, name) is not None}
    grid: dict[str, list[str]] = {}
    for text in options.grid:
        name, _, values = text.partition("=")
        name = name.removeprefix("loss.")
        if name not in known:
            raise RunError(
                f"`grid` must name one of {', '.join(known)}. Received: {text!r}"
            )
        if name in fixed or name in grid:
            raise RunError(f"`grid` has {name}, which is given twice.")
        grid[name] = list(dict.fromkeys(_canonical(one) for one in values.split(",")))
    if grid:
        return grid
    given = dict(change.partition("=")[::2] for change in options.set)
    try:
        weight_gradient = float(given.get("loss.weight_gradient", 0))
    except ValueError:
        weight_gradient = 0.0  # refused with the other settings
    grid = {
        name: [_text(value) for value in values]
        for name, values in default_grid(
            options.dataset, options.loss, weight_gradient
        ).items()
        if name not in fixed
    }
    if not grid:
        raise RunError(
            f"there is nothing to choose for {options.loss}: name settings and values "
            "by --grid, such as --grid learning_rate=0.05,0.1."
        )
    return grid


def _canonical(text: str) -> str:
    """Returns one text for equal numbers: 1.0 and 1 are one run."""
    try:
        return _text(float(text))
    except ValueError:
        return text.strip()


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _asked(
    options: argparse.Namespace, point: Mapping[str, str], seed: int
) -> argparse.Namespace:
    """Returns the options of `train` for a point of the grid."""
    asked = argparse.Namespace(**{key: getattr(options, key) for key in _TASK})
    asked.seed, asked.set = seed, list(options.set)
    arguments = losses.defaults(options.loss)
    for name, text in point.items():
        if name in _OPTIONS:
            whole = name != "csf" and text.isdigit()
            setattr(asked, name, int(text) if whole else text)
        else:
            prefix = "loss." if name in arguments else ""
            asked.set.append(f"{prefix}{name}={text}")
    return asked


def _arguments(asked: argparse.Namespace) -> tuple[str, ...]:
    """Returns the arguments of `train` that options come from."""
    arguments = []
    for key, value in vars(asked).items():
        for one in value if isinstance(value, list) else [value]:
            if one != _TASK.get(key):
                arguments += [f"--{key.replace('_', '-')}", str(one)]
    return tuple(arguments)


def _value(settings: Settings, name: str) -> Any:
    return settings.loss[name] if name in settings.loss else getattr(settings, name)


def _folder(options: argparse.Namespace) -> Path:
    if options.out is not None:
        return Path(options.out)
    # The name of a run, without what is searched.
    asked = _asked(options, {}, 0)
    _, _, marks = task_of(asked)[1].partition("-seed0")
    csf = [] if options.csf is None else [options.csf]
    dataset = os.path.basename(os.path.normpath(options.dataset.rpartition(":")[2]))
    name = "-".join(["select", dataset, options.model, options.loss, *csf])
    return Path("runs", name + marks)


# --- The map and the choice ---------------------------------------------------------


@dataclass
class Selection:
    """The runs of a search, and what they tell.

    Args:
        fields: names of what is searched.
        trials: the runs, in the grid's order.
        title: loss, model and data set.
        by: one of `CRITERIA`.
    """

    fields: tuple[str, ...]
    trials: list[Trial]
    title: str = ""
    by: str = "nll"
    _settings: dict[tuple[Any, ...], list[Trial]] = field(init=False)

    def __post_init__(self) -> None:
        self._settings = {}
        for trial in self.trials:
            self._settings.setdefault(trial.values, []).append(trial)

    def settings(self) -> list[tuple[Any, ...]]:
        """Returns the points of the grid."""
        return list(self._settings)

    def axes(self) -> list[list[Any]]:
        """Returns the values of each field, in the grid's order."""
        return [
            list(dict.fromkeys(values[axis] for values in self._settings))
            for axis in range(len(self.fields))
        ]

    def results(self, setting: tuple[Any, ...], by: str) -> list[float]:
        """Returns the values of a criterion of the finished runs of a setting."""
        outcomes = (trial.outcome for trial in self._settings[setting])
        return [getattr(outcome, by) for outcome in outcomes if outcome is not None]

    def choice(self, by: str | None = None) -> tuple[Any, ...] | None:
        """Returns the best setting, or None where no setting is complete.

        Settings that lack a seed are no candidates, nor are those that ended in NaN.
        """
        by = by or self.by
        means = {setting: self._loss(setting, by) for setting in self._settings}
        there = [setting for setting, mean in means.items() if not math.isnan(mean)]
        return min(there, key=lambda setting: means[setting], default=None)

    def _loss(self, setting: tuple[Any, ...], by: str) -> float:
        """Returns the mean over all seeds, less is better; NaN where one lacks."""
        values = self.results(setting, by)
        if len(values) < len(self._settings[setting]):
            return math.nan
        return float(np.mean(values)) * (-1 if CRITERIA[by].higher else 1)

    def command(self) -> str | None:
        """Returns the command that trains the choice with the first seed."""
        choice = self.choice()
        if choice is None:
            return None
        arguments = self._settings[choice][0].arguments
        return f"python -m recipes train {shlex.join(arguments)}"

    def verdict(self) -> str:
        """Says what is chosen, and by what."""
        choice, criterion = self.choice(), CRITERIA[self.by]
        if choice is None:
            return "Nothing is chosen: no setting has all its runs finished."
        value = criterion.text(self.results(choice, self.by))
        most = "highest" if criterion.higher else "lowest"
        return (
            f"Chosen: {self._told(choice)}, with the {most} {criterion.what} on the "
            f"validation set, {value}."
        )

    def remarks(self) -> list[str]:
        """Says what speaks against the choice."""
        choice = self.choice()
        if choice is None:
            return []
        said = []
        for name, value, axis in zip(self.fields, choice, self.axes(), strict=True):
            numbers = all(isinstance(one, (int, float)) for one in axis)
            if len(axis) == 1 or not numbers or value == _LIMITS.get(name):
                continue
            for end, words in ((min(axis), "smallest"), (max(axis), "largest")):
                if value == end:
                    beyond = words.removesuffix("st") + "r"
                    said.append(
                        f"{_named(name)} = {_text(value)} is the {words} of its grid: "
                        f"a {beyond} one may be better still."
                    )
        for by, criterion in CRITERIA.items():
            other = self.choice(by)
            # Where the choice is as good, there is nothing to say.
            if other is None or self._loss(other, by) == self._loss(choice, by):
                continue
            value = criterion.text(self.results(other, by))
            most = "highest" if criterion.higher else "lowest"
            said.append(
                f"{self._told(other)} has the {most} {criterion.what}: {value}."
            )
        return said

    def _told(self, setting: tuple[Any, ...]) -> str:
        pairs = zip(self.fields, setting, strict=True)
        return ", ".join(f"{name} {_text(value)}" for name, value in pairs)

    def maps(self) -> list[Table]:
        """Returns the criterion over the grid, two fields to a table.

        One field has all criteria beside it.
        """
        if len(self.fields) == 1:
            return [self.listing()]
        choice = self.choice()
        rows, columns, *rest = self.axes()
        row_name, column_name, *rest_names = self.fields
        found = []
        for others in itertools.product(*rest):
            title = ", ".join(
                f"{name} {_text(value)}"
                for name, value in zip(rest_names, others, strict=True)
            )
            lines = []
            for row in rows:
                cells = [_text(row)]
                for column in columns:
                    setting = (row, column, *others)
                    text = self._cell(setting, self.by)
                    cells.append(Bold(text) if setting == choice else text)
                lines.append(cells)
            down, right = (_SYMBOLS.get(n, n) for n in (row_name, column_name))
            corner = f"{down} ↓ {right} →"
            head = [corner, *(_text(column) for column in columns)]
            found.append(Table(head, lines, title))
        caption = self._caption(CRITERIA[self.by].title)
        return [*found[:-1], replace(found[-1], caption=caption)]

    def listing(self) -> Table:
        """Returns all settings, with all criteria."""
        choice = self.choice()
        lines = [
            [*map(_text, setting), *(self._cell(setting, by) for by in CRITERIA)]
            for setting in self._settings
        ]
        lines = [
            [*map(Bold, line)] if setting == choice else line
            for setting, line in zip(self._settings, lines, strict=True)
        ]
        arrows = {True: "↑", False: "↓"}
        head = [_named(name) for name in self.fields]
        head += [f"{c.title} {arrows[c.higher]}" for c in CRITERIA.values()]
        return Table(head, lines, "", self._caption("ECE and accuracy × 10²"))

    def _cell(self, setting: tuple[Any, ...], by: str) -> str:
        values = self.results(setting, by)
        trials = self._settings[setting]
        missing = "failed" if any(t.state == "failed" for t in trials) else "open"
        if not values:
            return missing
        text = CRITERIA[by].text(values)
        lacking = len(trials) - len(values)
        return text if not lacking else f"{text} ({lacking} {missing})"

    def _caption(self, what: str) -> str:
        seeds = max(len(trials) for trials in self._settings.values())
        mean = f"mean ± standard deviation over {seeds} seeds"
        scale = ", × 10²" if what == CRITERIA[self.by].title and self._scaled else ""
        return (
            f"Validation set; {what}{scale}; {mean if seeds > 1 else 'one seed'}. "
            "The choice in bold."
        )

    @property
    def _scaled(self) -> bool:
        return CRITERIA[self.by].scale > 1

    # --- Files ----------------------------------------------------------------------

    def csv(self) -> str:
        """Returns a line for each run; accuracy and ECE from 0 to 1."""
        names = ("seed", "val_loss", "val_nll", "val_accuracy", "val_ece", "epoch")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.fields, *names, "run", "state"])
        for trial in self.trials:
            found = trial.outcome or ("",) * len(Outcome._fields)
            numbers = [f"{x:.6g}" if isinstance(x, float) else x for x in found]
            values = [_text(value) for value in trial.values]
            name = trial.job.name
            writer.writerow([*values, trial.seed, *numbers, name, trial.state])
        return text.getvalue()

    def markdown(self, picture: str | None = None) -> str:
        """Returns the choice, the map, and what failed.

        Args:
            picture: a file with a picture of the map.
        """
        parts = [f"# {self.title}", self.verdict()]
        if remarks := self.remarks():
            parts.append("\n".join(f"- {remark}" for remark in remarks))
        if (command := self.command()) is not None:
            parts.append(f"```sh\n{command}\n```")
        parts += [table.markdown() for table in self.maps()]
        if picture is not None:
            parts.append(f"![the map]({picture})")
        if len(self.fields) > 1:
            parts += ["## All settings", self.listing().markdown()]
        failures = [trial.failure for trial in self.trials if trial.failure is not None]
        if failures:
            parts.append("## Failed")
        for result in failures:
            parts.append(f"`{result.job.name}`\n\n```\n{result.failure()}\n```")
        return "\n\n".join(parts) + "\n"

    def draw(self, path: Path) -> bool:
        """Draws the map, or returns False where that is not possible.

        A field of words makes a panel for each; matplotlib may be absent.
        """
        numbers = [
            name
            for name, axis in zip(self.fields, self.axes(), strict=True)
            if len(axis) > 1 and all(isinstance(one, (int, float)) for one in axis)
        ][:2]
        panels: dict[str, list[tuple[Any, ...]]] = {}
        for setting in self._settings:
            values = zip(self.fields, setting, strict=True)
            rest = (f"{n} {_text(v)}" for n, v in values if n not in numbers)
            panels.setdefault(", ".join(rest), []).append(setting)
        if not numbers or len(panels) > _PANELS or self.choice() is None:
            return False
        try:
            import matplotlib
        except ImportError:
            return False
        matplotlib.use("Agg")
        from matplotlib import pyplot

        from recipes.search_plots import search_curve, search_map

        size = (5.2 * len(panels), 4.2)
        figure, axes = pyplot.subplots(1, len(panels), figsize=size, squeeze=False)
        best = "max" if CRITERIA[self.by].higher else "min"
        draw: Any = search_map
        if len(numbers) == 1:
            draw = search_curve
        for ax, (title, settings) in zip(axes[0], panels.items(), strict=True):
            value = f"val_{self.by}"
            draw(self._columns(settings), *numbers, value, best=best, ax=ax)
            if title:
                # A map has its legend between title and cells.
                heading = f"validation {CRITERIA[self.by].title}, {title}"
                ax.set_title(heading, loc="left", pad=26 if len(numbers) == 2 else None)
        figure.savefig(path, dpi=100, bbox_inches="tight")
        pyplot.close(figure)
        return True

    def _columns(self, settings: list[tuple[Any, ...]]) -> dict[str, list[Any]]:
        """Returns fields and criterion of trials; NaN where a setting lacks a seed."""
        columns: dict[str, list[Any]] = {name: [] for name in self.fields}
        columns[f"val_{self.by}"] = []
        for setting in settings:
            lacking = math.isnan(self._loss(setting, self.by))
            values = [math.nan] if lacking else self.results(setting, self.by)
            for value in values:
                for name, one in zip(columns, (*setting, value), strict=True):
                    columns[name].append(one)
        return columns

    def write(self, folder: Path, picture: str | None = None) -> None:
        """Writes `selection.csv` and `selection.md`, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = (self.csv(), self.markdown(picture))
        for name, text in zip(FILES, texts, strict=True):
            partial = folder / f".partial-{name}"
            partial.write_text(text, encoding="utf-8")
            partial.replace(folder / name)


def _named(name: str) -> str:
    return f"{name} {_SYMBOLS[name]}" if name in _SYMBOLS else name
