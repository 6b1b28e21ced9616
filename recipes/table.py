"""Tables in the paper's form: losses across, mean ± standard deviation over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from recipes.evaluation import METRICS, evaluate
from recipes.losses import TITLES
from recipes.runs import Run, flat

# What tells runs of one column apart; the rest of a configuration tells columns apart.
_OF_A_RUN = ("seed", "versions", "data")
_SPLITS = {"val": "Validation", "test": "Test"}


class Cell(NamedTuple):
    """Mean and standard deviation (n − 1) over seeds; NaN of one seed."""

    mean: float
    std: float
    best: bool = False

    def text(self, digits: int, start: str = "", end: str = "") -> str:
        """Returns the cell as text, such as `12.34 ±0.56`.

        Args:
            digits: after the point.
            start: before the best one.
            end: after it.
        """
        text = f"{self.mean:.{digits}f}"
        if not np.isnan(self.std):
            text += f" ±{self.std:.{digits}f}"
        return f"{start}{text}{end}" if self.best else text


@dataclass(frozen=True)
class Table:
    """The metrics of some runs on one data set and model.

    Attributes:
        title: data set and model.
        columns: losses, in the paper's order.
        rows: the cells of each metric, by its name in `METRICS`.
        seeds: how many runs each column has.
        split: `"val"` or `"test"`.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Cell, ...]]
    seeds: tuple[int, ...]
    split: str = "test"

    @property
    def caption(self) -> str:
        """What the numbers are."""
        unscaled = [
            METRICS[name].title for name in self.rows if METRICS[name].digits == 3
        ]
        scaled = f"× 10² but for {' and '.join(unscaled)}" if unscaled else "× 10²"
        few, many = min(self.seeds), max(self.seeds)
        seeds = "one seed"
        if many > 1:
            count = f"{many}" if few == many else f"{few} to {many}"
            seeds = f"mean ± standard deviation over {count} seeds"
        best = ". Best in bold." if len(self.columns) > 1 else "."
        return f"{_SPLITS[self.split]} set; {scaled}; {seeds}{best}"

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        rows = [
            [
                METRICS[name].heading,
                *(cell.text(METRICS[name].digits, "**", "**") for cell in cells),
            ]
            for name, cells in self.rows.items()
        ]
        lines = markdown_table([self.title, *self.columns], rows)
        return "\n".join([lines, "", self.caption, ""])

    def rich(self, bold: bool = True) -> Any:
        """Returns the table for a `rich` console; narrow ones break at the ±.

        Args:
            bold: whether the console can print bold; a star stands for it otherwise.
        """
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable

        table = RichTable(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        table.add_column("", no_wrap=True)
        for column in self.columns:
            table.add_column(column, justify="right")
        for name, cells in self.rows.items():
            marks = ("[bold]", "[/bold]") if bold else ("*", "")
            texts = [cell.text(METRICS[name].digits, *marks) for cell in cells]
            table.add_row(METRICS[name].heading, *texts)
        caption = self.caption if bold else self.caption.replace("in bold", "marked *")
        return Group(table, caption)


def markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown, of cells that are text."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (heading, *rows))
    return "\n".join([first, "|" + "---|" * len(heading), *others])


def tables(
    runs: Iterable[Run],
    metrics: Sequence[str] = tuple(METRICS),
    split: str = "test",
) -> list[Table]:
    """Returns a table for each data set and model of some finished runs.

    Args:
        runs: finished runs. Those that differ in the seed alone make a column.
        metrics: names in `METRICS`.
        split: `"val"` or `"test"`.
    """
    pairs: dict[tuple[str, str], dict[str, _Column]] = {}
    for run in runs:
        config = run.config()
        setting = setting_of(config)
        columns = pairs.setdefault((config["dataset"], config["model"]), {})
        columns.setdefault(repr(setting), _Column(setting, [])).runs.append(run)
    return [
        _table(f"{dataset}, {model}", list(columns.values()), metrics, split)
        for (dataset, model), columns in pairs.items()
    ]


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a configuration that runs of other seeds share."""
    return {
        key: value
        for key, value in flat(config).items()
        if key.split(".")[0] not in _OF_A_RUN
    }


class _Column(NamedTuple):
    """Runs that differ in the seed alone, and what they have in common."""

    setting: dict[str, Any]
    runs: list[Run]


def _table(
    title: str, columns: list[_Column], metrics: Sequence[str], split: str
) -> Table:
    order = list(TITLES)
    columns = sorted(columns, key=lambda column: order.index(column.setting["loss"]))
    values = [
        [evaluate(run, split, metrics) for run in column.runs] for column in columns
    ]
    rows = {}
    for name in metrics:
        cells = [cell_of([one[name] for one in runs]) for runs in values]
        rows[name] = best(cells, METRICS[name].digits, METRICS[name].higher)
    names = _names([column.setting for column in columns])
    return Table(title, names, rows, tuple(len(c.runs) for c in columns), split)


def cell_of(values: Sequence[float]) -> Cell:
    """Returns the cell of the values of some seeds."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return Cell(float(np.mean(values)), std)


def best(cells: Sequence[Any], digits: int, higher: bool) -> tuple[Any, ...]:
    """Marks the best; those that print alike share the honour.

    Args:
        cells: of a row, None where there is none.
        digits: after the point.
        higher: whether more is better.
    """
    there = sum(cell is not None for cell in cells)
    shown = np.round([np.nan if c is None else c.mean for c in cells], digits)
    if there < 2 or np.isnan(shown).all():
        return tuple(cells)
    most = np.nanmax(shown) if higher else np.nanmin(shown)
    return tuple(
        cell and cell._replace(best=bool(value == most))
        for cell, value in zip(cells, shown, strict=True)
    )


def _names(settings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names columns by their loss, and by what differs where that is not enough."""
    names = []
    for setting in settings:
        same = [other for other in settings if other["loss"] == setting["loss"]]
        differing = [
            f"{key.rpartition('.')[2]} {setting.get(key)}"
            for key in sorted({key for other in same for key in other})
            if any(other.get(key) != setting.get(key) for other in same)
        ]
        name = TITLES[setting["loss"]]
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return tuple(names)
