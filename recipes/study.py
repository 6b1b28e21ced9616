"""The tables of STUDY.md, from the results in study.csv: `python -m recipes.study`.

The study was trained by an earlier version of these recipes; its figures are kept as
evidence. `python -m recipes compare` compares losses by the same rules, on your data.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recipes.evaluation import COVERAGE, Gap, digits_of, paired, titled
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
BEDS = {
    "goemotions": "GoEmotions",
    "banking77": "Banking77",
    "clinc150": "CLINC150",
    "cifar10": "CIFAR-10",
    "cifar10n_worst": "CIFAR-10N worst",
    "cifar10n_random": "CIFAR-10N random",
    "digits": "digits, noisy",
    "adult": "Adult",
}

Row = dict[str, Any]
# The rows of one loss, bed and protocol, by seed.
Cells = Mapping[tuple[str, str, str], dict[int, Row]]
# What decides, and all that is shown, by its name here and in `evaluation`.
PRIMARY = ("nll_ts", "aurc_ts")
_SHOWN = {name: name for name in ("accuracy", *PRIMARY, "ece_ts")}
_SHOWN |= {"coverage_ts": f"{COVERAGE}_ts", "ece": "ece"}
# Columns that are no figures.
_KEYS = ("bed", "loss", "protocol", "trial", "seed", "setting")


def read_results() -> list[Row]:
    """Returns the rows of the results."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
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


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the tables of the page in Markdown, by their names there."""
    found = cells(rows)
    made = {"defaults": _defaults(found), "whole": _whole(found)}
    for protocol in PROTOCOLS:
        made[f"summary_{protocol}"] = _summary(found, protocol)
        for metric in PRIMARY:
            made[f"{metric}_{protocol}"] = _by_bed(found, protocol, metric)
    return made


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(heading, rows).markdown() if rows else "Not run yet."


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
    return _table(["better : worse", *map(titled, _SHOWN.values())], rows)


def _by_bed(found: Cells, protocol: str, metric: str) -> str:
    """Cross-entropy on each bed, and the differences of the other losses from it."""
    beds = [bed for bed in BEDS if (bed, "xe", protocol) in found]
    name, rows = f"test_{metric}", [["cross-entropy"]]
    for bed in beds:
        mean = np.mean([row[name] for row in found[bed, "xe", protocol].values()])
        rows[0].append(f"{mean:.{digits_of(metric)}f}")
    for loss in _rivals(found, protocol):
        each = gaps(found, protocol, loss, "xe", name)
        rows.append([LOSSES[loss], *(gap.text(metric) for gap in each)])
    return _table([titled(metric), *(BEDS[bed] for bed in beds)], rows if beds else [])


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
                texts.append(gap.text(metric) if each else "")
            rows.append([f"{LOSSES[one]} − {LOSSES[other]}", title, *texts])
    return _table(["validation, mean over beds", "", *map(titled, metrics)], rows)


def _whole(found: Cells) -> str:
    """AU with the whole gradient minus AU, on the test data of each bed."""
    rows = []
    for protocol, title in PROTOCOLS.items():
        for metric in PRIMARY:
            each = gaps(found, protocol, "au_cdf", "au", f"test_{metric}")
            if each:
                texts = [gap.text(metric) for gap in each]
                rows.append([title, titled(metric), *texts])
    return _table(["", "", *BEDS.values()], rows)


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
