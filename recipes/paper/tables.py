"""The paper's tables from runs: `python -m recipes tables RUNS -o FOLDER`.

A cell has the mean of our runs over their seeds beside the number that the paper has
published, and is empty where there are no runs. All is computed from the logits that
runs have saved; temperatures and Meta-Cal are fitted on those of the validation set.
"""

import csv
import dataclasses
import functools
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_selcal import MetaAcc, MetaMis, TemperatureScaling
from recipes import settings
from recipes.data.digits import LABEL_NOISE
from recipes.evaluation import METRICS, measure
from recipes.losses import TITLES
from recipes.paper import published
from recipes.runs import Predictions, Run, flat
from recipes.table import Cell, best, cell_of, setting_of

# Meta-Cal's targets, by the paper's sources; there is none for other data sets.
MISCOVERAGE = 0.05
ACCURACY = {"cifar10": 0.97, "cifar100": 0.87, "tiny-imagenet": 0.85}

_DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}
MODELS = {
    "resnet50": "ResNet50",
    "resnet110": "ResNet110",
    "wrn28_10": "WRN",
    "preresnet56": "PreResNet56",
    "vit_small": "ViT-Small",
    "swin_tiny": "Swin-Tiny",
}
_POSTHOC = {"ts": "+TS", "metamis": "+MetaMis", "metaacc": "+MetaAcc"}


class Line(NamedTuple):
    """A row of a model: what is done to its logits, and what is printed of them."""

    posthoc: str
    metrics: tuple[str, ...]


class Form(NamedTuple):
    """The form of one of the paper's tables.

    Attributes:
        label: the paper's.
        title: what it shows.
        blocks: the rows that each model has, under a heading.
        digits: after the point, by metric.
    """

    label: str
    title: str
    blocks: Mapping[str, tuple[Line, ...]]
    digits: Mapping[str, int]


_ECE_A = ("adaptive_ece", "accuracy")
FORMS = (
    Form(
        "combined_acc_ece",
        "Accuracy and ECE",
        {
            "accuracy ↑": (Line("none", ("accuracy",)),),
            "ECE ↓": (Line("none", ("ece",)),),
        },
        {"accuracy": 2, "ece": 2},
    ),
    Form(
        "cwece_ts_split",
        "cwECE, before and after temperature scaling",
        {
            "cwECE ↓ (T)": (
                Line("none", ("cwece",)),
                Line("ts", ("cwece", "temperature")),
            )
        },
        {"cwece": 3, "temperature": 1},
    ),
    Form(
        "ece_a_ts_split",
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

# --- Numbers of a run ---------------------------------------------------------------


def posthoc_values(
    val: Predictions, test: Predictions, accuracy: float | None = None
) -> tuple[dict[tuple[str, str], float], list[str]]:
    """Returns all that the tables print of a run, and what could not be fitted.

    Samples that Meta-Cal rejects have the uniform distribution, and 1/k of them count
    as right.

    Args:
        val: to fit on.
        test: to evaluate on.
        accuracy: target of MetaAcc; None leaves it out.

    Returns:
        Values × 10² by (posthoc, metric), temperatures as they are; and the errors of
        the calibrators that refused.
    """
    logits, labels = test
    values = _metrics("none", labels, logits, ("accuracy", "ece", *_ECE_A, "cwece"))
    ts = TemperatureScaling(objective="ece").fit(*val)
    scaled = logits / ts.temperature
    values |= _metrics("ts", labels, scaled, (*_ECE_A, "cwece"))
    values["ts", "temperature"] = ts.temperature
    errors = []
    calibrators: dict[str, Any] = {"metamis": MetaMis(MISCOVERAGE)}
    if accuracy is not None:
        calibrators["metaacc"] = MetaAcc(accuracy)
    for name, calibrator in calibrators.items():
        try:
            calibrator.fit(*val)
        except ValueError as error:
            errors.append(f"{_POSTHOC[name]}: {error}")
            continue
        accepted = np.asarray(ops.convert_to_numpy(calibrator.accepts(logits)))
        answered = np.where(accepted[:, None], logits / calibrator.temperature, 0.0)
        values |= _metrics(name, labels, answered, ("adaptive_ece",))
        found = calibrator.evaluate(logits, labels)
        values[name, "accuracy"] = 100 * found["uniform_accuracy"]
    return values, errors


def _metrics(
    posthoc: str, labels: Any, logits: Any, names: Iterable[str]
) -> dict[tuple[str, str], float]:
    return {
        (posthoc, name): value
        for name, value in measure(labels, logits, dict.fromkeys(names)).items()
    }


# --- Runs to rows -------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Runs of a data set and a model that differ in loss and seed alone.

    Attributes:
        dataset: its name.
        model: its name.
        setup: what differs from the paper's training, in words; "" for nothing.
        values: what `posthoc_values` gives of each seed, by loss.
    """

    dataset: str
    model: str
    setup: str = ""
    values: Mapping[str, list[dict[tuple[str, str], float]]] = dataclasses.field(
        default_factory=dict
    )

    @property
    def title(self) -> str:
        """The model, and what differs from the paper's training."""
        name = MODELS.get(self.model, self.model)
        return f"{name} ({self.setup})" if self.setup else name

    def ours(self, posthoc: str, metric: str, loss: str) -> Cell | None:
        """Returns mean and deviation over seeds; None unless every seed has it."""
        found = [one.get((posthoc, metric)) for one in self.values.get(loss, ())]
        return cell_of(found) if found and None not in found else None

    def paper(self, table: str, posthoc: str, metric: str, loss: str) -> Any:
        """Returns the paper's `Figure`, or None."""
        model = settings.ALIASES.get(self.model, self.model)
        key = published.Key(table, self.dataset, model, posthoc, metric, loss)
        return published.figures().get(key)


def groups(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Returns the paper's models with our runs, then our other models, and notes.

    A loss that was trained with several arguments counts with the paper's; a note
    tells what was left out.
    """
    notes: list[str] = []
    found = grouped(runs)
    made = []
    for pair in dict.fromkeys([*published.pairs(), *found]):
        for setup, losses in found.get(pair, {}).items():
            group = Group(*pair, setup)
            values = {
                loss: _values(chosen(group, loss, arguments, notes), notes)
                for loss, arguments in losses.items()
            }
            made.append(dataclasses.replace(group, values=values))
        if pair not in found:
            made.append(Group(*pair))
    order = list(dict.fromkeys(group.dataset for group in made))
    return sorted(made, key=lambda group: order.index(group.dataset)), notes


# Runs by the arguments of their loss, as JSON, and these by loss and by setup.
Candidates = dict[str, list[Run]]
Setups = dict[str, dict[str, Candidates]]


def grouped(runs: Iterable[Run]) -> dict[tuple[str, str], Setups]:
    """Returns runs by data set and model, then by what differs in their training."""
    found: dict[tuple[str, str], dict[str, list[tuple[str, Run]]]] = {}
    for run in runs:
        config = run.config()
        setup, arguments = _setup_and_arguments(config)
        pair = found.setdefault((config["dataset"], config["model"]), {})
        pair.setdefault(setup, []).append((arguments, run))
    named: dict[tuple[str, str], Setups] = {}
    for pair, setups in found.items():
        words = _in_words(pair, list(setups))
        for setup, members in setups.items():
            # Runs from before a setting was there share the words of its default.
            losses = named.setdefault(pair, {}).setdefault(words[setup], {})
            for arguments, run in members:
                candidates = losses.setdefault(run.config()["loss"], {})
                candidates.setdefault(arguments, []).append(run)
    return named


def _setup_and_arguments(config: Mapping[str, Any]) -> tuple[str, str]:
    """Returns how a run was trained, and the arguments of its loss, as JSON."""
    setup, arguments = {}, {}
    for key, value in setting_of(config).items():
        name = key.removeprefix("settings.")
        if name.startswith("loss."):
            arguments[name.removeprefix("loss.")] = value
        elif name not in ("dataset", "model", "loss", "source"):
            setup[name] = value
    return json.dumps(setup), json.dumps(arguments)


def _in_words(pair: tuple[str, str], setups: Sequence[str]) -> dict[str, str]:
    """Returns what tells each setup from the paper's and from one another."""
    parsed = {setup: json.loads(setup) for setup in setups}
    words = {}
    for setup, fields in parsed.items():
        usual = _usual(pair, fields.get("epochs"))
        told = []
        for key, value in fields.items():
            if key in usual:
                same = value == usual[key]
            else:
                same = all(other.get(key) == value for other in parsed.values())
            if same:
                continue
            if key == "pretrained":
                told.append("from scratch" if value is None else "pretrained")
            else:
                told.append(f"{key} {json.dumps(value)}".replace('"', ""))
        words[setup] = ", ".join(told)
    return words


def _usual(pair: tuple[str, str], epochs: int | None) -> dict[str, Any]:
    """Returns the paper's setup, with what follows from another number of epochs."""
    paper = settings.settings(*pair, "xe")
    if epochs is not None:
        paper = dataclasses.replace(
            settings.with_epochs(paper, epochs), epochs=paper.epochs
        )
    usual = flat(json.loads(json.dumps(dataclasses.asdict(paper))))
    usual["subset"] = None
    usual["label_noise"] = LABEL_NOISE if pair[0] == "digits" else None
    if pair[1] not in settings.TRANSFORMERS:  # which the paper takes pretrained
        usual["pretrained"] = None
    return usual


def chosen(
    group: Group, loss: str, candidates: Candidates, notes: list[str]
) -> list[Run]:
    """Returns the runs of one choice of the loss's arguments: the paper's, or all."""
    asked = settings.settings(group.dataset, group.model, loss).loss
    paper = json.loads(json.dumps(asked))

    def changed(arguments: str) -> str:
        given = json.loads(arguments)
        return ", ".join(
            f"{name} {given[name]}" for name in given if given[name] != paper.get(name)
        )

    place = f"{dataset_title(group.dataset)}, {group.title}, {TITLES[loss]}"
    named = {arguments: changed(arguments) for arguments in candidates}
    if len(candidates) == 1:
        ((arguments, runs),) = candidates.items()
        if named[arguments]:
            notes.append(f"{place}: trained with {named[arguments]}.")
        return runs
    left = "; ".join(words for words in named.values() if words)
    for arguments, runs in candidates.items():
        if not named[arguments]:
            notes.append(f"{place}: runs with {left} are left out.")
            return runs
    notes.append(f"{place}: empty, for none of several runs has the paper's: {left}.")
    return []


def _values(runs: Sequence[Run], notes: list[str]) -> list[Any]:
    values = []
    for run in runs:
        target = ACCURACY.get(run.config()["dataset"])
        found, errors = posthoc_values(
            run.predictions("val"), run.predictions("test"), target
        )
        values.append(found)
        notes += [f"{run.name}, {' '.join(error.split())}" for error in errors]
    return values


# --- Tables -------------------------------------------------------------------------


class Number(NamedTuple):
    """Our mean and the paper's figure, either of which may be missing."""

    metric: str
    digits: int
    ours: Cell | None
    paper: published.Figure | None


class Row(NamedTuple):
    """A row of a table: what it belongs to, and its numbers by loss."""

    block: str
    group: Group
    posthoc: str
    cells: Mapping[str, tuple[Number, ...]]

    @property
    def title(self) -> str:
        """The model, or what is done to its logits."""
        return _POSTHOC.get(self.posthoc, self.group.title)


def rows(form: Form, found: Sequence[Group]) -> list[Row]:
    """Returns the rows of a table, the best of ours marked in each."""
    made = []
    datasets = dict.fromkeys(group.dataset for group in found)
    for dataset in datasets:
        for block, lines in form.blocks.items():
            for group in found:
                if group.dataset == dataset:
                    made += [_row(form, block, group, line) for line in lines]
    # A method without a target for this data set has no row.
    return [row for row in made if row.posthoc == "none" or _any(row)]


def _any(row: Row) -> bool:
    numbers = [number for cell in row.cells.values() for number in cell]
    return any(number.ours or number.paper for number in numbers)


def _row(form: Form, block: str, group: Group, line: Line) -> Row:
    columns = []
    for metric in line.metrics:
        digits = form.digits[metric]
        ours: Sequence[Cell | None]
        ours = [group.ours(line.posthoc, metric, loss) for loss in TITLES]
        if metric != "temperature":
            ours = best(ours, digits, METRICS[metric].higher)
        papers = [
            group.paper(form.label, line.posthoc, metric, loss) for loss in TITLES
        ]
        columns.append(
            [Number(metric, digits, *pair) for pair in zip(ours, papers, strict=True)]
        )
    cells = dict(zip(TITLES, zip(*columns, strict=True), strict=True))
    return Row(block, group, line.posthoc, cells)


_BRACKETS = {"accuracy": "[{}]", "temperature": "({})"}


def _cell(numbers: Sequence[Number], bold: str) -> str:
    """Returns `ours / the paper's`, each as `2.97 [94.5] (1.1)`; "" for neither."""

    def side(values: Sequence[tuple[float, bool] | None]) -> str:
        texts = []
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                return ""
            text = f"{value[0]:.{number.digits}f}"
            text = bold.format(text) if value[1] else text
            texts.append(_BRACKETS[number.metric].format(text) if texts else text)
        return " ".join(texts)

    ours = side([n.ours and (n.ours.mean, n.ours.best) for n in numbers])
    paper = side([n.paper and (n.paper.value, n.paper.bold) for n in numbers])
    return f"{ours} / {paper}".strip() if ours or paper else ""


def dataset_title(dataset: str) -> str:
    """Returns the name that the paper prints, or that of the folder."""
    if dataset.startswith("folder:"):
        return os.path.basename(os.path.normpath(dataset))
    return _DATASETS.get(dataset, dataset)


def _caption(form: Form, found: Sequence[Group]) -> str:
    seeds = [len(one) for group in found for one in group.values.values() if one]
    few, many = min(seeds, default=0), max(seeds, default=0)
    count = f"{many}" if few == many else f"{few} to {many}"
    ours = f"ours the mean over {count} seed{'s' * (many > 1)}"
    text = (
        "Ours / the paper's, on the test set, × 10²; "
        f"{ours if seeds else 'no runs of ours yet'}. "
        "The best of either in bold."
    )
    if "temperature" in form.digits:
        text += " T in parentheses, chosen by ECE on the validation set."
    if "accuracy" in form.digits and "temperature" in form.digits:
        text += (
            " Meta-Cal has the targets of the paper's sources: miscoverage "
            f"{MISCOVERAGE}; accuracy {', '.join(map(str, ACCURACY.values()))}. "
            "What it rejects counts as a guess."
        )
    return text


def markdown(found: Sequence[Group], notes: Sequence[str] = ()) -> str:
    """Returns the three tables in Markdown."""
    lines = ["# The paper's tables", ""]
    for form in FORMS:
        lines += [f"## {form.title}", "", _caption(form, found), ""]
        lines += [f"| | {' | '.join(TITLES.values())} |"]
        lines += [f"|---|{'---|' * len(TITLES)}"]
        section = None
        for row in rows(form, found):
            heading = f"{dataset_title(row.group.dataset)}, {row.block}"
            if heading != section:
                section = heading
                lines.append(f"| **{_escaped(heading)}** |{' |' * len(TITLES)}")
            cells = [_cell(numbers, "**{}**") for numbers in row.cells.values()]
            lines.append(f"| {_escaped(row.title)} | {' | '.join(cells)} |")
        lines.append("")
    if notes:
        lines += ["## Notes", "", *(f"- {_escaped(note)}" for note in notes), ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("_", "\\_")


def latex(found: Sequence[Group]) -> str:
    """Returns the three tables in LaTeX."""
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for form in FORMS:
        lines += [
            "",
            r"\begin{table*}[htbp]",
            rf"\caption{{{_in_latex(f'{form.title}. {_caption(form, found)}')}}}",
            rf"\label{{tab:{form.label}}}",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{@{{}}l{'l' * len(TITLES)}@{{}}}}",
            r"\toprule",
            rf"& {' & '.join(TITLES.values())} \\",
        ]
        section = None
        for row in rows(form, found):
            heading = f"{dataset_title(row.group.dataset)}, {row.block}"
            if heading != section:
                section = heading
                span = rf"\multicolumn{{{1 + len(TITLES)}}}{{@{{}}l}}"
                lines += [
                    r"\midrule",
                    rf"{span}{{\textbf{{{_in_latex(heading)}}}}} \\",
                ]
            title = _in_latex(row.title)
            if row.posthoc != "none":
                title = rf"\hspace{{1em}}{title}"
            cells = [_cell(numbers, r"\textbf{{{}}}") for numbers in row.cells.values()]
            lines.append(rf"{title} & {' & '.join(cells)} \\")
        lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]
    return "\n".join([*lines, ""])


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "²": "$^2$",
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in text)


def table_csv(found: Sequence[Group]) -> str:
    """Returns a line for every number of the three tables."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _FIELDS, lineterminator="\n")
    writer.writeheader()
    for form in FORMS:
        for row in rows(form, found):
            place = {
                "table": form.label,
                "dataset": row.group.dataset,
                "model": row.group.model,
                "setup": row.group.setup,
                "posthoc": row.posthoc,
            }
            for loss, numbers in row.cells.items():
                seeds = len(row.group.values.get(loss, ()))
                for number in numbers:
                    if number.ours or number.paper:
                        it = {"metric": number.metric, "loss": loss}
                        writer.writerow({**place, **it, **_fields(number, seeds)})
    return text.getvalue()


_FIELDS = ("table", "dataset", "model", "setup", "posthoc", "metric", "loss")
_FIELDS += ("ours", "std", "seeds", "best", "paper", "paper_bold")


def _fields(number: Number, seeds: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if number.ours is not None:
        fields["ours"] = f"{number.ours.mean:.4f}"
        if seeds > 1:
            fields["std"] = f"{number.ours.std:.4f}"
        fields |= {"seeds": seeds, "best": int(number.ours.best)}
    if number.paper is not None:
        fields["paper"] = f"{number.paper.value:.{number.digits}f}"
        fields["paper_bold"] = int(number.paper.bold)
    return fields


def write_tables(
    runs: Iterable[Run], folder: str | os.PathLike[str]
) -> tuple[list[Path], list[str]]:
    """Writes `tables.md`, `tables.csv` and `tables.tex`.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; made if need be.

    Returns:
        The files, and notes on what the tables leave out or could not have.
    """
    found, notes = groups(runs)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, write in {
        "tables.md": functools.partial(markdown, notes=notes),
        "tables.csv": table_csv,
        "tables.tex": latex,
    }.items():
        (folder / name).write_text(write(found), encoding="utf-8")
        written.append(folder / name)
    return written, notes
