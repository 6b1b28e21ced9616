"""The results of STUDY.md, and their tables."""

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_selcal import TemperatureScaling, analysis
from recipes.data.digits import LABEL_NOISE
from recipes.evaluation import METRICS, evaluate, measure
from recipes.losses import NAMES, TITLES
from recipes.runs import Run
from recipes.settings import CSFS
from recipes.study_plan import (
    BEDS,
    CHOICES,
    COMPARED,
    SEEDS,
    SMOOTHINGS,
    WEIGHT_GRADIENTS,
    Experiment,
    experiments,
    rising,
)
from recipes.tables import Table, best, cell_of

RESULTS = Path(__file__).with_name("study.csv")

_MEASURED = ("accuracy", "ece", "adaptive_ece", "cwece", "aurc", "nll")
# Metrics that temperature scaling changes.
SCALED = _MEASURED[1:]
# What the first cell of a table says about its data.
_NOTES = {"digits": f"{100 * LABEL_NOISE:g} % of the labels are wrong"}
_NOT_COMPARED = {"training_accuracy": "training accuracy", "temperature": "T"}


class StudyResult(NamedTuple):
    """A finished experiment and its numbers, × 10² except NLL and T."""

    experiment: Experiment
    values: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns a row of `results.csv`."""
        shown = {key: f"{value:.6g}" for key, value in self.values.items()}
        return {"run": self.experiment.name, **shown}


def result_of(experiment: Experiment, run: Run) -> StudyResult:
    """Returns the numbers of a finished run; T minimises the validation ECE."""
    values = evaluate(run, metrics=_MEASURED)
    temperature = TemperatureScaling("ece").fit(*run.predictions("val")).temperature
    logits, labels = run.predictions("test")
    scaled = measure(labels, logits / temperature, SCALED)
    values |= {f"{name}_ts": value for name, value in scaled.items()}
    last = run.history()[-1]
    return StudyResult(
        experiment,
        {
            **values,
            "temperature": temperature,
            "training_accuracy": 100 * last["accuracy"],
            "seconds": run.environment()["training_seconds"],
        },
    )


def write_results(results: Sequence[StudyResult], path: str | os.PathLike[str]) -> None:
    """Writes results to a CSV file."""
    rows = [result.row() for result in results]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_results(path: str | os.PathLike[str] | None = None) -> list[StudyResult]:
    """Returns the results in a CSV file, by default those of the page."""
    with open(path or RESULTS, newline="", encoding="utf-8") as file:
        rows = {row.pop("run"): row for row in csv.DictReader(file)}
    return [
        StudyResult(one, {key: float(value) for key, value in rows[one.name].items()})
        for one in experiments()
        if one.name in rows
    ]


# --- Tables -------------------------------------------------------------------------


def tables(results: Sequence[StudyResult]) -> dict[str, str]:
    """Returns the tables of the page in Markdown, by their names there."""
    by_loss = {
        bed: {TITLES[loss]: _of(results, Experiment(bed, loss)) for loss in NAMES}
        for bed in BEDS
    }
    by_csf = {csf: _of(results, Experiment("scratch", "au", csf)) for csf in CSFS}
    risen = {_named(r.experiment): [r] for r in results if r.experiment in rising()}
    return {
        **{bed: _columns(by_loss[bed], _NOTES.get(bed, "")) for bed in BEDS},
        "csf": _columns(by_csf),
        "drag": _map(results, lambda e, _: f"{_drag(e):.2g}"),
        "accuracy": _map(results, lambda _, v: f"{v['accuracy']:.1f}"),
        "training": _map(results, lambda _, v: f"{v['training_accuracy']:.1f}"),
        "ece": _map(results, lambda _, v: f"{v['ece']:.1f}"),
        "ece_ts": _map(results, lambda _, v: f"{v['ece_ts']:.1f}"),
        "rise": _columns(risen),
        **{f"choices_{bed}": _choices(results, bed) for bed in (*COMPARED, "long")},
    }


def _of(results: Sequence[StudyResult], experiment: Experiment) -> list[StudyResult]:
    """Returns the results of an experiment, of any seed."""
    seeds = [dataclasses.replace(experiment, seed=seed) for seed in SEEDS]
    return [r for r in results if r.experiment in seeds]


def _columns(columns: Mapping[str, Sequence[StudyResult]], note: str = "") -> str:
    """Returns metrics by columns, as mean ± standard deviation over the results."""
    columns = {title: results for title, results in columns.items() if results}
    if not columns:
        return "Not run yet."
    names = ("training_accuracy", *_MEASURED, *(f"{name}_ts" for name in SCALED))
    names += ("temperature",)
    rows = [[_heading(name), *_texts(name, columns.values())] for name in names]
    runs = ["runs", *(str(len(results)) for results in columns.values())]
    return Table([note, *columns], [*rows, runs]).markdown()


def _choices(results: Sequence[StudyResult], bed: str) -> str:
    """Returns cross-entropy and the choices of ν and w of AU, by metrics."""
    rows = {TITLES["xe"]: _of(results, Experiment(bed, "xe"))}
    for choice in CHOICES:
        one = Experiment(bed, "au", "msp", *choice)
        rows[_named(one)] = _of(results, one)
    rows = {title: found for title, found in rows.items() if found}
    if not rows:
        return "Not run yet."
    names = ("accuracy", "ece", "aurc", "nll", "ece_ts", "nll_ts")
    columns = [_texts(name, rows.values()) for name in names]
    lines = [list(line) for line in zip(rows, *columns, strict=True)]
    return Table([_NOTES.get(bed, ""), *map(_heading, names)], lines).markdown()


def _named(experiment: Experiment) -> str:
    """Returns ν and w of an experiment in words."""
    name = f"ν = {experiment.smoothing:g}, w = {experiment.weight_gradient:g}"
    if experiment.rises:
        name += ", rising"
    default = Experiment(experiment.bed, "au", seed=experiment.seed)
    return f"{name} (default)" if experiment == default else name


def _heading(name: str) -> str:
    if name in _NOT_COMPARED:
        return _NOT_COMPARED[name]
    heading = METRICS[name.removesuffix("_ts")].heading
    return f"{heading.replace(' ↓', '')} + TS ↓" if name.endswith("_ts") else heading


def _texts(name: str, groups: Iterable[Sequence[StudyResult]]) -> list[str]:
    """Returns mean ± deviation of a value for each group of results."""
    cells = [cell_of([r.values[name] for r in results]) for results in groups]
    if name in _NOT_COMPARED:
        return [cell.text(digits=1) for cell in cells]
    metric = METRICS[name.removesuffix("_ts")]
    marked = best(cells, metric.digits, metric.higher)
    return [cell.text(metric.digits) for cell in marked]


def _map(
    results: Sequence[StudyResult], text: Callable[[Experiment, dict[str, float]], str]
) -> str:
    """Returns a table of w by ν, for constant weight gradients and the first seed."""
    values = {r.experiment: r.values for r in results}
    rows = []
    for w in WEIGHT_GRADIENTS:
        wanted = [Experiment("scratch", "au", "msp", nu, w) for nu in SMOOTHINGS]
        cells = [text(one, values[one]) if one in values else "" for one in wanted]
        rows.append([f"{w:g}", *cells])
    return Table(["w \\ ν", *(f"{nu:g}" for nu in SMOOTHINGS)], rows).markdown()


def _drag(experiment: Experiment) -> float:
    return analysis.drag(experiment.weight_gradient, experiment.smoothing, 10)


_TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.DOTALL)


def tables_in(page: str) -> list[str]:
    """Returns the names of the tables in a page.

    Each is between the lines `<!-- table NAME -->` and `<!-- end -->`.
    """
    return _TABLE.findall(page)


def with_tables(page: str, results: Sequence[StudyResult]) -> str:
    """Returns the page with updated tables."""
    made = tables(results)

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{made[match[1]]}\n\n<!-- end -->"

    return _TABLE.sub(replaced, page)
