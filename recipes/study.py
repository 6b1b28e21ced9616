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


def difference(
    found: Cells,
    where: tuple[str, str],
    losses: tuple[str, str],
    metric: str,
) -> Gap | None:
    """Returns a loss minus another one on a bed, over the seeds that both have."""
    bed, protocol = where
    one, other = (found.get((bed, loss, protocol), {}) for loss in losses)
    seeds = sorted(one.keys() & other.keys())
    values = [one[seed][metric] - other[seed][metric] for seed in seeds]
    return paired(values) if values and not math.isnan(values[0]) else None


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the tables of the page in Markdown, by their names there."""
    found = cells(rows)
    made = {"runs": _counts(found)}
    for protocol in PROTOCOLS:
        made[f"summary_{protocol}"] = _summary(found, protocol)
        for metric in PRIMARY:
            made[f"{metric}_{protocol}"] = _by_bed(found, protocol, metric)
        made[f"all_{protocol}"] = _everything(found, protocol)
    made["defaults"] = _validation(found)
    made["whole"] = _whole(found)
    return made


def _counts(found: Cells) -> str:
    """The number of seeds of each bed and protocol that every loss has."""
    rows = [
        [
            bed.title,
            f"{bed.train:,}",
            f"{bed.val:,}",
            str(bed.classes),
            str(bed.epochs),
            *(
                str(min(len(found.get((name, loss, p), {})) for loss in LOSSES))
                for p in PROTOCOLS
            ),
        ]
        for name, bed in BEDS.items()
    ]
    seeds = [f"seeds, {title}" for title in PROTOCOLS.values()]
    heading = ["bed", "training", "validation", "classes", "epochs", *seeds]
    return Table(heading, rows).markdown()


def _rivals(found: Cells, protocol: str) -> list[str]:
    """Returns the losses beside cross-entropy that have results."""
    return [
        loss
        for loss in LOSSES
        if loss != "xe" and any((bed, loss, protocol) in found for bed in BEDS)
    ]


def _summary(found: Cells, protocol: str) -> str:
    """On how many beds a loss is better and worse than cross-entropy."""
    rows = []
    for loss in _rivals(found, protocol):
        texts = []
        for metric in _SHOWN:
            verdicts = [
                gap.verdict(metric)
                for bed in BEDS
                if (
                    gap := difference(
                        found, (bed, protocol), (loss, "xe"), f"test_{metric}"
                    )
                )
            ]
            better, worse = verdicts.count("better"), verdicts.count("worse")
            texts.append(f"{better} : {worse} of {len(verdicts)}")
        rows.append([LOSSES[loss], *texts])
    return _table(["better : worse", *map(titled, _SHOWN)], rows)


def _by_bed(found: Cells, protocol: str, metric: str) -> str:
    """Cross-entropy on each bed, and the differences of the other losses from it."""
    beds = [bed for bed in BEDS if (bed, "xe", protocol) in found]
    digits = 3 if "nll" in metric else 2
    first = [
        f"{mean(found[bed, 'xe', protocol], f'test_{metric}'):.{digits}f}"
        for bed in beds
    ]
    rows = [["cross-entropy", *first]]
    for loss in _rivals(found, protocol):
        gaps = [
            difference(found, (bed, protocol), (loss, "xe"), f"test_{metric}")
            for bed in beds
        ]
        texts = ["" if gap is None else gap.text(metric, digits) for gap in gaps]
        rows.append([LOSSES[loss], *texts])
    heading = [titled(metric), *(BEDS[bed].title for bed in beds)]
    return _table(heading, rows if beds else [])


def _validation(found: Cells) -> str:
    """The rule for defaults: validation data, mean over beds with its interval."""
    rows = []
    pairs = (("au", "xe"), ("au_cdf", "au"), ("au_cdf", "xe"))
    metrics = (*PRIMARY, "accuracy")
    for losses in pairs:
        for protocol in PROTOCOLS:
            texts = []
            for metric in metrics:
                gaps = [
                    gap.mean
                    for bed in BEDS
                    if (
                        gap := difference(
                            found, (bed, protocol), losses, f"val_{metric}"
                        )
                    )
                ]
                texts.append(
                    paired(gaps).text(metric, 3 if "nll" in metric else 2)
                    if gaps
                    else ""
                )
            name = " − ".join(LOSSES[loss] for loss in losses)
            rows.append([name, PROTOCOLS[protocol], *texts])
    heading = ["validation, mean over beds", "", *map(titled, metrics)]
    return _table(heading, rows)


def _whole(found: Cells) -> str:
    """AU with the whole gradient minus AU, on the test data of each bed."""
    rows = []
    for protocol in PROTOCOLS:
        for metric in PRIMARY:
            gaps = [
                difference(found, (bed, protocol), ("au_cdf", "au"), f"test_{metric}")
                for bed in BEDS
            ]
            digits = 3 if "nll" in metric else 2
            texts = ["" if gap is None else gap.text(metric, digits) for gap in gaps]
            if any(texts):
                rows.append([PROTOCOLS[protocol], titled(metric), *texts])
    return _table(["", "", *(bed.title for bed in BEDS.values())], rows)


def _everything(found: Cells, protocol: str) -> str:
    """The mean of every figure over seeds, a table for each bed."""
    names = [f"test_{name}{end}" for name in _METRICS for end in ("", "_ts")]
    names.remove("test_accuracy_ts")
    names += [
        f"{n}{end}" for n in ("unknown_auroc", "people_nll") for end in ("", "_ts")
    ]
    parts = []
    for bed, one in BEDS.items():
        rows = []
        shown = []
        for loss in LOSSES:
            if not (seeds := found.get((bed, loss, protocol))):
                continue
            shown = [n for n in names if not math.isnan(next(iter(seeds.values()))[n])]
            values = [
                f"{mean(seeds, n):.{3 if 'nll' in n else 1}f}"
                for n in ("fitted", "epoch", "temperature", *shown)
            ]
            rows.append([LOSSES[loss], *values])
        heading = [one.title, "fitted", "epoch", "T", *map(titled, shown)]
        if rows:
            parts.append(_table(heading, rows))
    return "\n\n".join(parts) or "Not run yet."


def _table(heading: list[str], rows: list[list[str]]) -> str:
    return Table(heading, rows).markdown() if rows else "Not run yet."


def titled(name: str) -> str:
    """Returns the title of a metric, with an arrow to what is better."""
    name = name.removeprefix("test_")
    title = _TITLES[name.removesuffix("_ts")]
    return f"{title[:-2]} + TS{title[-2:]}" if name.endswith("_ts") else title


def mean(seeds: Mapping[int, Row], name: str) -> float:
    """Returns the mean of a column over seeds."""
    return float(np.mean([row[name] for row in seeds.values()]))


_TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.DOTALL)


def tables_in(page: str) -> list[str]:
    """Returns the names of the tables in a page.

    Each is between the lines `<!-- table NAME -->` and `<!-- end -->`.
    """
    return _TABLE.findall(page)


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """Returns the page with updated tables."""
    made = tables(rows)

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{made[match[1]]}\n\n<!-- end -->"

    return _TABLE.sub(replaced, page)


def main() -> None:
    """Writes the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(text, read_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
