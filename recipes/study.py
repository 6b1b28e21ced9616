"""The tables of STUDY.md, from the results in study.csv: `python -m recipes.study`.

The study was trained by an earlier version of these recipes; its figures are kept as
evidence. `python -m recipes compare` compares losses by the same rules, on your data.
"""

import csv
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.evaluation import Gap, paired
from recipes.tables import Table

PAGE = Path(__file__).with_name("STUDY.md")
RESULTS = Path(__file__).with_name("study.csv")
PROTOCOLS = {"last": "last epoch", "best": "best epoch", "search": "searched"}
# Settings of each loss that the search tried.
CONFIGURATIONS = 6

LOSSES = {
    "xe": "cross-entropy",
    "xe_smoothed": "+ label smoothing",
    "xe_dropout": "+ dropout",
    "focal": "focal, γ = 2",
    "fl53": "FL-53",
    "dual_focal": "dual focal",
    "inv_focal": "inverse focal",
    "brier": "Brier",
    "kde_xe": "KDE-XE",
    "aurc": "AURC",
    "au": "AU",
    "au_cdf": "AU, whole gradient",
}


class Bed(NamedTuple):
    """A test bed: its title, and the sizes of its training."""

    title: str
    train: int
    val: int
    epochs: int
    classes: int


BEDS = {
    "goemotions": Bed("GoEmotions", 8064, 2000, 15, 28),
    "banking77": Bed("Banking77", 7936, 2000, 15, 77),
    "clinc150": Bed("CLINC150", 7552, 2000, 15, 150),
    "cifar10": Bed("CIFAR-10", 4096, 2000, 10, 10),
    "cifar10n_worst": Bed("CIFAR-10N worst", 4096, 2000, 10, 10),
    "cifar10n_random": Bed("CIFAR-10N random", 4096, 2000, 10, 10),
    "digits": Bed("digits, noisy", 640, 160, 40, 10),
    "adult": Bed("Adult", 8064, 2000, 10, 2),
}

Row = dict[str, Any]
# The rows of one loss, bed and protocol, by seed.
Cells = Mapping[tuple[str, str, str], dict[int, Row]]
# What decides, and what is shown beside it.
PRIMARY = ("nll_ts", "aurc_ts")
_SHOWN = ("accuracy", *PRIMARY, "ece_ts", "coverage_ts", "ece")
_METRICS = ("accuracy", "aurc", "eaurc", "ece", "nll", "coverage")
_TITLES = {
    "accuracy": "accuracy ↑",
    "aurc": "AURC ↓",
    "eaurc": "E-AURC ↓",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "coverage": "coverage at 5 % risk ↑",
    "unknown_auroc": "AUROC of unknown ↑",
    "people_nll": "NLL, people ↓",
}
# Columns that are no figures.
_KEYS = ("bed", "loss", "protocol", "trial", "seed", "setting")


def read_results(path: str | os.PathLike[str] = RESULTS) -> list[Row]:
    """Returns the rows of the results."""
    with open(path, newline="", encoding="utf-8") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for row in rows:
        for name in row.keys() - set(_KEYS):
            row[name] = float(row[name]) if row[name] else math.nan
        row["trial"], row["seed"] = int(row["trial"]), int(row["seed"])
    return rows


def cells(rows: Sequence[Row]) -> Cells:
    """Returns the rows that count, by bed, loss and protocol.

    The rows of `"search"` are those of the trial with the lowest validation NLL, once
    all trials of a bed and loss are there.
    """
    trials: dict[tuple[str, str, str], dict[int, dict[int, Row]]] = {}
    for row in rows:
        key = (row["bed"], row["loss"], row["protocol"])
        trials.setdefault(key, {}).setdefault(row["trial"], {})[row["seed"]] = row
    found = {key: by_trial[0] for key, by_trial in trials.items() if 0 in by_trial}
    for (bed, loss, protocol), by_trial in trials.items():
        if protocol == "best" and all(
            0 in by_trial.get(trial, {}) for trial in range(CONFIGURATIONS)
        ):
            best = min(by_trial, key=lambda trial: by_trial[trial][0]["val_nll"])
            found[bed, loss, "search"] = by_trial[best]
    return found


def gaps(found: Cells, protocol: str, one: str, other: str, metric: str) -> list[Gap]:
    """Returns a loss minus another one on each bed that has both, paired by seeds."""
    made = []
    for bed in BEDS:
        pair = [found.get((bed, loss, protocol), {}) for loss in (one, other)]
        seeds = sorted(pair[0].keys() & pair[1].keys())
        values = [pair[0][seed][metric] - pair[1][seed][metric] for seed in seeds]
        if values and not math.isnan(values[0]):
            made.append(paired(values))
    return made


def mean(seeds: Mapping[int, Row], name: str) -> float:
    """Returns the mean of a column over seeds."""
    return float(np.mean([row[name] for row in seeds.values()]))


def titled(name: str) -> str:
    """Returns the title of a metric, with an arrow to what is better."""
    title = _TITLES[name.removeprefix("test_").removesuffix("_ts")]
    return f"{title[:-2]} + TS{title[-2:]}" if name.endswith("_ts") else title


def _digits(metric: str) -> int:
    return 3 if "nll" in metric else 2


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the tables of the page in Markdown, by their names there."""
    found = cells(rows)
    made = {"runs": _runs(found), "defaults": _defaults(found), "whole": _whole(found)}
    for protocol in PROTOCOLS:
        made[f"summary_{protocol}"] = _summary(found, protocol)
        for metric in PRIMARY:
            made[f"{metric}_{protocol}"] = _by_bed(found, protocol, metric)
        made[f"all_{protocol}"] = _everything(found, protocol)
    return made


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(heading, rows).markdown() if rows else "Not run yet."


def _runs(found: Cells) -> str:
    """The sizes of the beds, and the number of seeds that every loss has."""
    rows = []
    for name, bed in BEDS.items():
        sizes = [f"{bed.train:,}", f"{bed.val:,}", str(bed.classes), str(bed.epochs)]
        seeds = [
            str(min(len(found.get((name, loss, p), {})) for loss in LOSSES))
            for p in PROTOCOLS
        ]
        rows.append([bed.title, *sizes, *seeds])
    heading = ["bed", "training", "validation", "classes", "epochs"]
    return _table(
        [*heading, *(f"seeds, {title}" for title in PROTOCOLS.values())], rows
    )


def _rivals(found: Cells, protocol: str) -> list[str]:
    """Returns the losses beside cross-entropy that have results."""
    there = {loss for _, loss, p in found if p == protocol}
    return [loss for loss in LOSSES if loss != "xe" and loss in there]


def _summary(found: Cells, protocol: str) -> str:
    """On how many beds a loss is better and worse than cross-entropy."""
    rows = []
    for loss in _rivals(found, protocol):
        texts = []
        for metric in _SHOWN:
            said = [
                gap.verdict(metric)
                for gap in gaps(found, protocol, loss, "xe", f"test_{metric}")
            ]
            counts = f"{said.count('better')} : {said.count('worse')}"
            texts.append(f"{counts} of {len(said)}")
        rows.append([LOSSES[loss], *texts])
    return _table(["better : worse", *map(titled, _SHOWN)], rows)


def _by_bed(found: Cells, protocol: str, metric: str) -> str:
    """Cross-entropy on each bed, and the differences of the other losses from it."""
    beds = [bed for bed in BEDS if (bed, "xe", protocol) in found]
    name, digits = f"test_{metric}", _digits(metric)
    first = [f"{mean(found[bed, 'xe', protocol], name):.{digits}f}" for bed in beds]
    rows = [["cross-entropy", *first]]
    for loss in _rivals(found, protocol):
        each = gaps(found, protocol, loss, "xe", name)
        rows.append([LOSSES[loss], *(gap.text(metric, digits) for gap in each)])
    heading = [titled(metric), *(BEDS[bed].title for bed in beds)]
    return _table(heading, rows if beds else [])


def _defaults(found: Cells) -> str:
    """The rule for defaults: validation data, mean over beds with its interval."""
    rows = []
    metrics = (*PRIMARY, "accuracy")
    for one, other in (("au", "xe"), ("au_cdf", "au"), ("au_cdf", "xe")):
        for protocol, title in PROTOCOLS.items():
            texts = []
            for metric in metrics:
                each = gaps(found, protocol, one, other, f"val_{metric}")
                gap = paired([gap.mean for gap in each])
                texts.append(gap.text(metric, _digits(metric)) if each else "")
            rows.append([f"{LOSSES[one]} − {LOSSES[other]}", title, *texts])
    return _table(["validation, mean over beds", "", *map(titled, metrics)], rows)


def _whole(found: Cells) -> str:
    """AU with the whole gradient minus AU, on the test data of each bed."""
    rows = []
    for protocol, title in PROTOCOLS.items():
        for metric in PRIMARY:
            each = gaps(found, protocol, "au_cdf", "au", f"test_{metric}")
            texts = [gap.text(metric, _digits(metric)) for gap in each]
            if texts:
                rows.append([title, titled(metric), *texts])
    return _table(["", "", *(bed.title for bed in BEDS.values())], rows)


def _everything(found: Cells, protocol: str) -> str:
    """The mean of every figure over seeds, a table for each bed."""
    names = [f"test_{name}{end}" for name in _METRICS for end in ("", "_ts")]
    names.remove("test_accuracy_ts")
    names += [f"{n}{e}" for n in ("unknown_auroc", "people_nll") for e in ("", "_ts")]
    parts = []
    for bed, one in BEDS.items():
        seeds = {loss: found.get((bed, loss, protocol)) for loss in LOSSES}
        there = {loss: rows for loss, rows in seeds.items() if rows}
        if not there:
            continue
        first = next(iter(next(iter(there.values())).values()))
        shown = [name for name in names if not math.isnan(first[name])]
        columns = ("fitted", "epoch", "temperature", *shown)
        lines = [
            [LOSSES[loss]]
            + [f"{mean(rows, n):.{3 if 'nll' in n else 1}f}" for n in columns]
            for loss, rows in there.items()
        ]
        heading = [one.title, "fitted", "epoch", "T", *map(titled, shown)]
        parts.append(_table(heading, lines))
    return "\n\n".join(parts) or "Not run yet."


# A table is between the lines `<!-- table NAME -->` and `<!-- end -->`.
_PLACE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.DOTALL)


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """Returns the page with updated tables."""
    made = tables(rows)

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{made[match[1]]}\n\n<!-- end -->"

    return _PLACE.sub(replaced, page)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(text, read_results()), encoding="utf-8")
