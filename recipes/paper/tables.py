"""The paper's tables from runs: `python -m recipes tables RUNS -o FOLDER`.

A cell holds the mean of our runs over their seeds, with its 95 % interval, beside the
number that the paper prints; it is empty where there are no runs. All numbers are
computed from the logits that the runs saved. Temperatures and Meta-Cal are fitted on
the validation set, or on the training set (`--fit-on train`).
"""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recipes.evaluation import METRICS
from recipes.losses import TITLES, column_of
from recipes.paper import posthoc, published
from recipes.paper.groups import Group, dataset_title, groups
from recipes.runs import Run
from recipes.tables import Bold, Cell, Table, best, cell_of


class Line(NamedTuple):
    """A row that each model has: how its logits are calibrated, and what is printed."""

    posthoc: str
    metrics: tuple[str, ...]


class PaperTable(NamedTuple):
    """The form of one of the paper's tables.

    Attributes:
        label: label in the paper's source.
        number: its number in the paper, "A" for the one in the appendix.
        title: what the table shows.
        blocks: the rows that each model has, under a heading.
        digits: digits after the decimal point, by metric.
    """

    label: str
    number: str
    title: str
    blocks: Mapping[str, tuple[Line, ...]]
    digits: Mapping[str, int]


_ECE_A = ("adaptive_ece", "accuracy")
TABLES = (
    PaperTable(
        "combined_acc_ece",
        "2",
        "Accuracy and ECE",
        {
            "accuracy ↑": (Line("none", ("accuracy",)),),
            "ECE ↓": (Line("none", ("ece",)),),
        },
        {"accuracy": 2, "ece": 2},
    ),
    PaperTable(
        "cwece_ts_split",
        "1",
        "cwECE, before and after temperature scaling",
        {
            "cwECE ↓ (T)": (
                Line("none", ("cwece",)),
                Line("ts", ("cwece", "temperature")),
            )
        },
        {"cwece": 3, "temperature": 1},
    ),
    PaperTable(
        "ece_a_ts_split",
        "A",
        "Adaptive ECE, before and after post-hoc calibration",
        {
            "adaptive ECE ↓ [accuracy ↑] (T)": (
                Line("none", _ECE_A),
                Line("ts", (*_ECE_A, "temperature")),
                Line("metamis", _ECE_A),
                Line("metaacc", _ECE_A),
            )
        },
        {"adaptive_ece": 2, "accuracy": 1, "temperature": 1},
    ),
)


class Measured(NamedTuple):
    """A group of runs, and what `posthoc_values` returns for each seed, by loss."""

    group: Group
    values: Mapping[str, Sequence[posthoc.Values]]

    def ours(self, line: str, metric: str, loss: str) -> Cell | None:
        """Returns mean and deviation over seeds, or None if a seed lacks the value."""
        found = [
            one[line, metric] for one in self.values[loss] if (line, metric) in one
        ]
        complete = found and len(found) == len(self.values[loss])
        return cell_of(found) if complete else None


def measured(
    runs: Iterable[Run],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
    pairs: Iterable[tuple[str, str]] | None = None,
    columns: Iterable[str] = tuple(TITLES),
) -> tuple[list[Measured], list[str]]:
    """Returns the paper's models with our runs, then our other models, and notes.

    The notes tell which runs differ from the paper's or are left out.

    Args:
        runs: finished runs.
        fit_on: name in `posthoc.FIT_ON`: where calibrators are fitted.
        tables: those of `TABLES` that will be written.
        pairs: data sets and models that have rows without runs, too. Defaults to the
            paper's.
        columns: losses that have columns.
    """
    notes: list[str] = []
    said: dict[str, list[str]] = {}
    by_pair: dict[tuple[str, str], list[Group]] = {
        pair: [] for pair in (published.pairs() if pairs is None else pairs)
    }
    for group in groups(runs):
        by_pair.setdefault((group.dataset, group.model), []).append(group)
    ours = [one for pair, found in by_pair.items() for one in found or [Group(*pair)]]
    shown = [line for one in tables for block in one.blocks.values() for line in block]
    methods = {line.posthoc for line in shown}
    named = {column_of(name) for name in columns}

    def values(group: Group, loss: str) -> Iterator[posthoc.Values]:
        target = posthoc.ACCURACY.get(group.dataset)
        for run in group.chosen(loss, notes):
            fitted = {split: run.predictions(split) for split in posthoc.FIT_ON[fit_on]}
            scaling, meta_cal = (fitted[split] for split in posthoc.FIT_ON[fit_on])
            found, words = posthoc.posthoc_values(
                *(scaling, run.predictions("test"), target, methods, meta_cal)
            )
            for one in words:
                said.setdefault(one, []).append(run.name)
            yield found

    losses = [loss for loss in TITLES if loss in named]
    made = [
        Measured(one, {loss: [*values(one, loss)] for loss in losses}) for one in ours
    ]
    for words, names in said.items():
        others = f" and {len(names) - 3} other runs" * (len(names) > 3)
        notes.append(f"{words}: {', '.join(names[:3])}{others}.")
    return made, notes


# --- Rows ---------------------------------------------------------------------------


class Number(NamedTuple):
    """Our mean and the paper's number, either of which may be missing."""

    metric: str
    digits: int
    ours: Cell | None
    paper: published.Figure | None
    seeds: int = 0

    @property
    def interval(self) -> float | None:
        """Half of the 95 % interval of the mean over seeds (Student's t)."""
        return None if self.ours is None or self.seeds < 2 else self.ours.half


class Row(NamedTuple):
    """A row of a table, with its numbers by loss."""

    heading: str
    found: Measured
    posthoc: str
    cells: Mapping[str, tuple[Number, ...]]

    @property
    def title(self) -> str:
        """The model, or how its logits are calibrated."""
        return posthoc.TITLES.get(self.posthoc, self.found.group.title)


def rows(table: PaperTable, found: Sequence[Measured]) -> Iterator[Row]:
    """Yields the rows of a table, in which the best of our numbers are marked."""
    for dataset in dict.fromkeys(one.group.dataset for one in found):
        for block, lines in table.blocks.items():
            heading = f"{dataset_title(dataset)}, {block}"
            for one in found:
                if one.group.dataset != dataset:
                    continue
                for line in lines:
                    cells = _cells(table, one, line)
                    numbers = [number for cell in cells.values() for number in cell]
                    # MetaAcc has no target, and no row, for other data sets.
                    if line.posthoc == "none" or any(
                        n.ours or n.paper for n in numbers
                    ):
                        yield Row(heading, one, line.posthoc, cells)


def _cells(
    table: PaperTable, found: Measured, line: Line
) -> dict[str, tuple[Number, ...]]:
    columns = []
    for metric in line.metrics:
        digits = table.digits[metric]
        ours = [found.ours(line.posthoc, metric, loss) for loss in found.values]
        # One seed tells no loss from another.
        if metric != "temperature" and max(map(len, found.values.values())) > 1:
            ours = list(best(ours, digits, METRICS[metric].higher))
        columns.append(
            [
                Number(
                    metric,
                    digits,
                    cell,
                    found.group.paper(table.label, line.posthoc, metric, loss),
                    len(found.values[loss]),
                )
                for loss, cell in zip(found.values, ours, strict=True)
            ]
        )
    return dict(zip(found.values, zip(*columns, strict=True), strict=True))


# --- Text ---------------------------------------------------------------------------

_BRACKETS = {"accuracy": "[{}]", "temperature": "({})"}


def cell_text(numbers: Sequence[Number]) -> str:
    """Returns `ours / the paper's`, each as `2.97 [94.5] (1.1)`; "" for neither."""

    def side(values: Sequence[tuple[float, bool, float | None] | None]) -> str:
        texts: list[str] = []
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                return ""
            text = f"{value[0]:.{number.digits}f}"
            text = f"**{text}**" if value[1] else text
            if value[2] is not None:
                text += f" ±{value[2]:.{number.digits}f}"
            texts.append(_BRACKETS[number.metric].format(text) if texts else text)
        return " ".join(texts)

    ours = side([n.ours and (n.ours.mean, n.ours.best, n.interval) for n in numbers])
    paper = side([n.paper and (n.paper.value, n.paper.bold, None) for n in numbers])
    return f"{ours} / {paper}".strip() if ours or paper else ""


def caption(table: PaperTable, found: Sequence[Measured], fit_on: str) -> str:
    """Returns what the numbers of a table are."""
    seeds = [len(runs) for one in found for runs in one.values.values() if runs]
    few, many = min(seeds, default=0), max(seeds, default=0)
    count = f"{many}" if few == many else f"{few} to {many}"
    ours = f"ours are means over {count} seed{'s' * (many > 1)}"
    if many > 1:
        ours += ", ± half of their 95 % interval"
    scaling, meta_cal = (posthoc.SPLITS[split] for split in posthoc.FIT_ON[fit_on])
    text = (
        "Ours / the paper's, on the test set, × 10²; "
        f"{ours if seeds else 'there are no runs of ours yet'}. "
        "In bold: the paper's best; and our best with all that the 95 % intervals do "
        "not tell from it, none where they tell nothing apart. AU is trained with "
        "constant weights (w = 0), which is not the paper's gradient, unless a note "
        "says otherwise: `reproduce --set loss.weight_gradient=1` trains that."
    )
    if "temperature" in table.digits:
        text += f" T, in parentheses, minimises the ECE of the {scaling} set."
    if "accuracy" in table.digits and "temperature" in table.digits:
        targets = ", ".join(map(str, posthoc.ACCURACY.values()))
        text += (
            f" Meta-Cal is fitted on the {meta_cal} set, with the targets of the "
            f"paper's sources: miscoverage {posthoc.MISCOVERAGE}; accuracy {targets}, "
            "raised where the model exceeds it. Rejected samples count as guesses."
        )
    return text


def text_tables(
    found: Sequence[Measured], fit_on: str, tables: Sequence[PaperTable]
) -> Iterator[tuple[PaperTable, Table]]:
    """Yields tables of text; rows without cells are headings of those below."""
    for table in tables:
        lines: list[list[str]] = []
        heading = ""
        for row in rows(table, found):
            if row.heading != heading:
                heading = row.heading
                lines.append([Bold(heading)])
            lines.append([row.title, *map(cell_text, row.cells.values())])
        text = caption(table, found, fit_on)
        columns = [TITLES[loss] for loss in found[0].values]
        yield table, Table(["", *columns], lines, table.title, text)


def markdown(
    found: Sequence[Measured],
    notes: Sequence[str] = (),
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
) -> str:
    """Returns the tables and the notes in Markdown."""
    made = text_tables(found, fit_on, tables)
    parts = ["# The paper's tables", *(table.markdown() for _, table in made)]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def latex(
    found: Sequence[Measured],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
) -> str:
    """Returns the tables in LaTeX."""
    made = text_tables(found, fit_on, tables)
    parts = [table.latex(f"tab:{paper.label}") for paper, table in made]
    return "\n\n".join([r"% \usepackage{booktabs,graphicx}", *parts]) + "\n"


_PLACE = ("table", "dataset", "model", "setup", "posthoc", "metric", "loss")
_NUMBERS = ("ours", "std", "interval", "seeds", "best", "paper", "paper_bold")


def table_csv(found: Sequence[Measured], tables: Sequence[PaperTable] = TABLES) -> str:
    """Returns a line for every number of the tables."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*_PLACE, *_NUMBERS), lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in rows(table, found):
            group = row.found.group
            place = (table.label, group.dataset, group.model, group.setup, row.posthoc)
            for loss, numbers in row.cells.items():
                for number in numbers:
                    if number.ours or number.paper:
                        it = zip(_PLACE, (*place, number.metric, loss), strict=True)
                        writer.writerow({**dict(it), **_fields(number)})
    return text.getvalue()


def _fields(number: Number) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if number.ours is not None:
        fields["ours"] = f"{number.ours.mean:.4f}"
        if number.seeds > 1:
            fields["std"] = f"{number.ours.std:.4f}"
            fields["interval"] = f"{number.interval:.4f}"
        fields |= {"seeds": number.seeds, "best": int(number.ours.best)}
    if number.paper is not None:
        fields["paper"] = f"{number.paper.value:.{number.digits}f}"
        fields["paper_bold"] = int(number.paper.bold)
    return fields


def write_tables(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
    **selected: Any,
) -> tuple[list[Path], list[str]]:
    """Writes `tables.md`, `tables.csv` and `tables.tex`.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; created if it does not exist.
        fit_on: name in `posthoc.FIT_ON`: where calibrators are fitted.
        tables: those of `TABLES` to write.
        **selected: `pairs` and `columns`, as in `measured`.

    Returns:
        The files, and notes on what the tables leave out.
    """
    found, notes = measured(runs, fit_on, tables, **selected)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "tables.md": markdown(found, notes, fit_on, tables),
        "tables.csv": table_csv(found, tables),
        "tables.tex": latex(found, fit_on, tables),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts], notes
