"""The results of a search: the choice, its tables and its files."""

import csv
import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.evaluation import evaluate
from recipes.launch import Ended, Job
from recipes.tables import Bold, Table, cell_of

FILES = ("search.csv", "search.md")

SYMBOLS = {"gamma": "γ", "smoothing": "ν", "coverage": "κ", "kde_weight": "λ"}
# A value at the end of its range has no neighbour outside the grid.
_LIMITS = {"coverage": 1.0, "gamma": 0.0, "kde_weight": 0.0}


class Criterion(NamedTuple):
    """A criterion by which settings are compared.

    Attributes:
        title: its name in tables.
        what: its name in sentences.
        higher: whether higher is better.
        scale: 100 for a criterion that is shown × 10².
    """

    title: str
    what: str
    higher: bool = False
    scale: float = 1.0

    @property
    def superlative(self) -> str:
        """The word for the best value."""
        return "highest" if self.higher else "lowest"

    def text(self, values: Sequence[float]) -> str:
        """Returns the mean ± standard deviation over seeds."""
        cell = cell_of([self.scale * value for value in values])
        digits = 2 if self.scale > 1 else 4
        return "NaN" if math.isnan(cell.mean) else cell.text(digits)


CRITERIA = {
    "nll": Criterion("NLL", "cross-entropy (NLL)"),
    "loss": Criterion("own loss", "value of its own loss"),
    "ece": Criterion("ECE", "ECE", scale=100.0),
    "accuracy": Criterion("accuracy", "accuracy", higher=True, scale=100.0),
}


class Outcome(NamedTuple):
    """The results of a finished run on the validation set, at its best epoch."""

    loss: float
    nll: float
    accuracy: float
    ece: float
    epoch: int


@dataclass
class Trial:
    """A run of the search.

    Args:
        values: values of the searched fields.
        seed: the seed of the run.
        arguments: of `python -m recipes train`.
        job: the run as a command.
        outcome: the results of a finished run.
        failure: how a failed run ended.
    """

    values: tuple[Any, ...]
    seed: int
    arguments: tuple[str, ...]
    job: Job
    outcome: Outcome | None = None
    failure: Ended | None = None

    @property
    def state(self) -> str:
        """`"finished"`, `"failed"` or `"open"`."""
        if self.outcome is not None:
            return "finished"
        return "open" if self.failure is None else "failed"

    def read(self) -> None:
        """Reads the results of the finished run."""
        run = self.job.run
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


@dataclass
class Search:
    """The runs of a search, the choice among them, and tables of both.

    Args:
        fields: names of the searched settings.
        trials: the runs, in the order of the grid.
        title: loss, model and data set.
        by: the criterion of the choice, one of `CRITERIA`.
    """

    fields: tuple[str, ...]
    trials: list[Trial]
    title: str = ""
    by: str = "nll"
    settings: dict[tuple[Any, ...], list[Trial]] = field(init=False)

    def __post_init__(self) -> None:
        self.settings = {}
        for trial in self.trials:
            self.settings.setdefault(trial.values, []).append(trial)

    def axes(self) -> list[list[Any]]:
        """Returns the values of each field, in the order of the grid."""
        return [
            list(dict.fromkeys(values[axis] for values in self.settings))
            for axis in range(len(self.fields))
        ]

    def results(self, setting: tuple[Any, ...], by: str) -> list[float]:
        """Returns the values of a criterion in the finished runs of a setting."""
        outcomes = (trial.outcome for trial in self.settings[setting])
        return [getattr(outcome, by) for outcome in outcomes if outcome is not None]

    def choice(self, by: str | None = None) -> tuple[Any, ...] | None:
        """Returns the best setting, or None if no setting is complete.

        Settings that lack a seed or have a NaN are not candidates.
        """
        costs = {
            setting: self._cost(setting, by or self.by) for setting in self.settings
        }
        complete = [setting for setting, cost in costs.items() if not math.isnan(cost)]
        return min(complete, key=lambda setting: costs[setting], default=None)

    def _cost(self, setting: tuple[Any, ...], by: str) -> float:
        """Returns the mean over seeds, lower is better; NaN if a seed is missing."""
        values = self.results(setting, by)
        if len(values) < len(self.settings[setting]):
            return math.nan
        return float(np.mean(values)) * (-1 if CRITERIA[by].higher else 1)

    def command(self) -> str | None:
        """Returns the command that trains the choice with the first seed."""
        choice = self.choice()
        if choice is None:
            return None
        arguments = self.settings[choice][0].arguments
        return f"python -m recipes train {shlex.join(arguments)}"

    def verdict(self) -> str:
        """Returns a sentence on the choice."""
        choice, criterion = self.choice(), CRITERIA[self.by]
        if choice is None:
            return "No setting is chosen: none has all its runs finished."
        value = criterion.text(self.results(choice, self.by))
        return (
            f"Chosen: {self._named(choice)}, with the {criterion.superlative} "
            f"{criterion.what} on the validation set, {value}."
        )

    def remarks(self) -> list[str]:
        """Returns sentences on what speaks against the choice."""
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
                        f"{named(name)} = {text(value)} is the {words} value of the "
                        f"grid: a {beyond} one may be better."
                    )
        for by, criterion in CRITERIA.items():
            other = self.choice(by)
            if other is None or self._cost(other, by) == self._cost(choice, by):
                continue
            value = criterion.text(self.results(other, by))
            said.append(
                f"{self._named(other)} has the {criterion.superlative} "
                f"{criterion.what}: {value}."
            )
        return said

    def _named(self, setting: tuple[Any, ...]) -> str:
        pairs = zip(self.fields, setting, strict=True)
        return ", ".join(f"{name} {text(value)}" for name, value in pairs)

    # --- Tables ---------------------------------------------------------------------

    def table(self) -> Table:
        """Returns all settings, with all criteria."""
        choice = self.choice()
        lines = []
        for setting in self.settings:
            cells = (self._cell(setting, by) for by in CRITERIA)
            line = [*map(text, setting), *cells]
            lines.append([*map(Bold, line)] if setting == choice else line)
        head = [named(name) for name in self.fields]
        head += [f"{c.title} {'↑' if c.higher else '↓'}" for c in CRITERIA.values()]
        seeds = max(len(trials) for trials in self.settings.values())
        mean = f"mean ± standard deviation over {seeds} seeds"
        caption = (
            "Validation set; ECE and accuracy × 10²; "
            f"{mean if seeds > 1 else 'one seed'}. The choice in bold."
        )
        return Table(head, lines, "", caption)

    def _cell(self, setting: tuple[Any, ...], by: str) -> str:
        values = self.results(setting, by)
        trials = self.settings[setting]
        missing = "failed" if any(t.state == "failed" for t in trials) else "open"
        if not values:
            return missing
        lacking = len(trials) - len(values)
        shown = CRITERIA[by].text(values)
        return f"{shown} ({lacking} {missing})" if lacking else shown

    # --- Files ----------------------------------------------------------------------

    def csv(self) -> str:
        """Returns a line for each run; accuracy and ECE are between 0 and 1."""
        names = ("seed", "val_loss", "val_nll", "val_accuracy", "val_ece", "epoch")
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*self.fields, *names, "run", "state"])
        for trial in self.trials:
            found = trial.outcome or ("",) * len(Outcome._fields)
            numbers = [f"{x:.6g}" if isinstance(x, float) else x for x in found]
            values = [text(value) for value in trial.values]
            name = trial.job.run.name
            writer.writerow([*values, trial.seed, *numbers, name, trial.state])
        return buffer.getvalue()

    def markdown(self, picture: str | None = None) -> str:
        """Returns the choice, all settings, and the failures.

        Args:
            picture: a file with a picture of the map.
        """
        parts = [f"# {self.title}", self.verdict()]
        if remarks := self.remarks():
            parts.append("\n".join(f"- {remark}" for remark in remarks))
        if (command := self.command()) is not None:
            parts.append(f"```sh\n{command}\n```")
        parts.append(self.table().markdown())
        if picture is not None:
            parts.append(f"![the map]({picture})")
        failures = [trial.failure for trial in self.trials if trial.failure is not None]
        if failures:
            parts.append("## Failed")
        for ended in failures:
            parts.append(f"`{ended.job.run.name}`\n\n```\n{ended.failure()}\n```")
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path, picture: str | None = None) -> None:
        """Writes `search.csv` and `search.md`, each completely or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        contents = (self.csv(), self.markdown(picture))
        for name, content in zip(FILES, contents, strict=True):
            partial = folder / f".partial-{name}"
            partial.write_text(content, encoding="utf-8")
            partial.replace(folder / name)


def named(name: str) -> str:
    """Returns the name of a field with its symbol.

    Example:
    >>> named("smoothing")
    'smoothing ν'
    """
    return f"{name} {SYMBOLS[name]}" if name in SYMBOLS else name


def text(value: Any) -> str:
    """Returns a value as text, which is the same for equal numbers.

    Example:
    >>> text(0.10), text("msp")
    ('0.1', 'msp')
    """
    return f"{value:.6g}" if isinstance(value, float) else str(value)
