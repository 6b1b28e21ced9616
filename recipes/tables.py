"""Tables of text, in Markdown, LaTeX and the terminal; the comparison of runs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from recipes import losses
from recipes.evaluation import METRICS, evaluate, paired
from recipes.runs import Run, flat
from recipes.settings import TRANSFORMERS

# Fields that differ between the runs of one column.
_OF_A_RUN = ("seed", "versions", "data")
_SPLITS = {"train": "Training", "val": "Validation", "test": "Test"}


class Bold(str):
    """The text of a cell that a table emphasises."""


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        heading: the text of the first row.
        rows: the text of the other rows; cells of type `Bold` are emphasised, and
            missing ones are empty.
        title: printed above the table.
        caption: printed below the table.
    """

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""

    def markdown(self) -> str:
        """Returns the table in Markdown.

        Example:
        >>> print(Table(["", "XE"], [["ECE", Bold("1.2")]]).markdown())
        |  | XE |
        |---|---|
        | ECE | **1.2** |
        """
        lines = [f"### {self.title}", ""] if self.title else []
        lines += [_line(self.heading), "|" + "---|" * len(self.heading)]
        width = len(self.heading)
        lines += [_line([*row, *[""] * (width - len(row))]) for row in self.rows]
        if self.caption:
            lines += ["", self.caption]
        return "\n".join(lines)

    def latex(self, label: str) -> str:
        """Returns the table in LaTeX; a row of one cell is a heading of those below."""
        width = len(self.heading)
        lines = [
            r"\begin{table*}[htbp]",
            rf"\caption{{{_in_latex(f'{self.title}. {self.caption}')}}}",
            rf"\label{{{label}}}",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{@{{}}{'l' * width}@{{}}}}",
            r"\toprule",
            rf"{' & '.join(map(_in_latex, self.heading))} \\",
        ]
        for row in self.rows:
            cells = [_in_latex(cell) for cell in row]
            if len(row) == 1:
                lines.append(r"\midrule")
                cells = [rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textbf{{{cells[0]}}}}}"]
            lines.append(rf"{' & '.join(cells)} \\")
        lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]
        return "\n".join(lines)

    def rich(self, *, bold: bool = True) -> Any:
        """Returns the table for a `rich` console.

        Args:
            bold: whether the console can print bold text. If False, a star marks the
                emphasised cells.
        """
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for index, text in enumerate(self.heading):
            table.add_column(
                text, justify="right" if index else "left", no_wrap=not index
            )

        def printed(cell: str) -> Any:
            best = isinstance(cell, Bold)
            if best and not bold:
                cell = f"*{cell}"
            return Text(cell, style="bold" if best and bold else "")

        for row in self.rows:
            table.add_row(*map(printed, row))
        caption = self.caption if bold else self.caption.replace("in bold", "marked *")
        return Group(table, caption) if caption else table


def _line(cells: Sequence[str]) -> str:
    r"""Returns a line of a Markdown table; a bar in a name must not end its cell.

    Example:
    >>> _line(["a|b", Bold("1")])
    '| a\\|b | **1** |'
    """
    escaped = (text.replace("|", r"\|") for text in cells)
    texts = (
        f"**{text}**" if isinstance(cell, Bold) else text
        for cell, text in zip(cells, escaped, strict=True)
    )
    return f"| {' | '.join(texts)} |"


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "²": "$^2$",
    "±": r"$\pm$",
}


def _in_latex(text: str) -> str:
    escaped = "".join(_LATEX.get(mark, mark) for mark in text)
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", escaped)


# --- Means over seeds ---------------------------------------------------------------


class Cell(NamedTuple):
    """Mean, standard deviation (n − 1) and half of the 95 % interval, over seeds.

    The last two are NaN for one seed.
    """

    mean: float
    std: float
    half: float
    best: bool = False

    def text(self, digits: int) -> str:
        """Returns text such as `12.34 ±0.56`, as `Bold` if the cell is the best."""
        text = f"{self.mean:.{digits}f}"
        if not np.isnan(self.std):
            text += f" ±{self.std:.{digits}f}"
        return Bold(text) if self.best else text


def cell_of(values: Sequence[float]) -> Cell:
    """Returns the cell for the values of one or more seeds."""
    std = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return Cell(float(np.mean(values)), std, paired(values).half)


CellOrNone = TypeVar("CellOrNone", bound=Cell | None)


def best(
    cells: Sequence[CellOrNone], digits: int, higher: bool
) -> tuple[CellOrNone, ...]:
    """Marks the best cell of a row, and all that cannot be told from it.

    With one seed, these are the cells that print the same. With several, the 95 %
    intervals decide, and nothing is marked if they tell no cell from the best.

    Args:
        cells: the cells of the row, None for an empty one.
        digits: number of digits after the decimal point.
        higher: whether higher is better.
    """
    shown = np.round([np.nan if c is None else c.mean for c in cells], digits)
    if sum(cell is not None for cell in cells) < 2 or np.isnan(shown).all():
        return tuple(cells)
    top = np.nanargmax(shown) if higher else np.nanargmin(shown)
    marked = shown == shown[top]
    half = np.array([np.nan if c is None else c.half for c in cells])
    if not np.isnan(half).all():
        # One seed among several may be anywhere.
        width = np.hypot(half, half[top])
        marked |= ~(np.abs(shown - shown[top]) > width) & ~np.isnan(shown)
        if marked.sum() == (~np.isnan(shown)).sum():
            return tuple(cells)
    given: Sequence[Any] = cells
    return tuple(
        cell and cell._replace(best=bool(mark))
        for cell, mark in zip(given, marked, strict=True)
    )


# --- Comparison of runs -------------------------------------------------------------


def comparisons(
    runs: Iterable[Run],
    metrics: Sequence[str] = tuple(METRICS),
    split: str = "test",
) -> list[Table]:
    """Returns a table for each data set and model of finished runs.

    Args:
        runs: finished runs, at most one for each setting and seed. Runs that differ
            only in the seed share a column.
        metrics: names in `METRICS`.
        split: `"val"` or `"test"`.
    """
    titles: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        config = run.config()
        said = ", ".join(remarks(config))
        title = f"{config['dataset']}, {config['model']}{said and f' ({said})'}"
        columns = titles.setdefault(title, {})
        columns.setdefault(repr(setting_of(config)), []).append(run)
    return [
        _comparison(title, list(columns.values()), metrics, split)
        for title, columns in titles.items()
    ]


def remarks(config: Mapping[str, Any]) -> list[str]:
    """Returns what every table must say about the data and the weights of a run.

    Example:
    >>> remarks({"model": "cnn", "label_noise": 0.2})
    ['20 % of the labels are wrong']
    """
    said = []
    if noise := config.get("label_noise"):
        said.append(f"{100 * noise:g} % of the labels are wrong")
    pretrained = config.get("pretrained") is not None
    if pretrained != (config["model"] in TRANSFORMERS):
        said.append("pretrained" if pretrained else "from scratch")
    if config.get("stand_in"):
        said.append("a small stand-in for the network")
    return said


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a configuration that do not depend on the seed."""
    return {
        key: value
        for key, value in flat(config).items()
        if key.split(".")[0] not in _OF_A_RUN
    }


def _comparison(
    title: str, columns: list[list[Run]], metrics: Sequence[str], split: str
) -> Table:
    """Returns the table of the runs of each column, with the best in bold."""
    order = list(losses.ALL_TITLES)

    def place(runs: list[Run]) -> int:
        name = runs[0].config()["loss"]
        return order.index(name) if name in order else len(order)

    columns.sort(key=place)
    configs = [runs[0].config() for runs in columns]
    values = [[evaluate(run, split, metrics) for run in runs] for runs in columns]
    rows = []
    for name in metrics:
        metric = METRICS[name]
        cells = [cell_of([one[name] for one in runs]) for runs in values]
        marked = best(cells, metric.digits, metric.higher)
        rows.append([metric.heading, *(cell.text(metric.digits) for cell in marked)])
    epochs = [str(config["settings"]["epochs"]) for config in configs]
    if len(set(epochs)) > 1:
        rows.append(["epochs", *epochs])
    heading = ["", *_column_names([setting_of(config) for config in configs])]
    return Table(heading, rows, title, _caption(columns, metrics, split))


def _caption(columns: list[list[Run]], metrics: Sequence[str], split: str) -> str:
    unscaled = [METRICS[name].title for name in metrics if METRICS[name].digits == 3]
    scaled = f"× 10² except {' and '.join(unscaled)}" if unscaled else "× 10²"
    few, many = min(map(len, columns)), max(map(len, columns))
    seeds = "one seed"
    if many > 1:
        count = f"{many}" if few == many else f"{few} to {many}"
        seeds = f"mean ± standard deviation over {count} seeds"
    bold = " Best in bold." if len(columns) > 1 else ""
    if bold and many > 1:
        bold = " Best in bold, with all that the 95 % intervals do not tell from it."
    return f"{_SPLITS[split]} set; {scaled}; {seeds}.{bold}"


def _column_names(settings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names columns by loss, and by what differs between columns of one loss."""
    names = []
    for setting in settings:
        same = [other for other in settings if other["loss"] == setting["loss"]]
        differing = [
            f"{key.rpartition('.')[2]} {setting.get(key)}"
            for key in sorted({key for other in same for key in other})
            if any(other.get(key) != setting.get(key) for other in same)
        ]
        name = losses.title(setting["loss"])
        names.append(f"{name} ({', '.join(differing)})" if differing else name)
    return tuple(names)
