"""The files of results: a row for each checkpoint and scaling of a run."""

import csv
import fcntl
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recipes.evaluation import scaled_measures
from recipes.runs import Predictions, Run

RESULTS = Path(__file__).with_name("results.csv")
GAINS = Path(__file__).with_name("free_gains.csv")
KEY = ("bed", "arm", "seed", "checkpoint", "scaling")
METRICS = ("accuracy", "ece", "adaptive_ece", "cwece", "nll", "aurc")
CHECKPOINTS, SCALINGS = ("last", "best"), ("none", "ts")
FIELDS = (
    *KEY,
    *("epochs", "epoch", "temperature"),
    *(f"{split}_{metric}" for split in ("val", "test") for metric in METRICS),
    "cpu_seconds",
)

Row = dict[str, Any]


def rows_of(key: Row, runs: Sequence[Run], csf: str = "msp") -> list[Row]:
    """Returns the rows of finished runs, whose probabilities are averaged.

    Metrics are in %, except NLL.

    Args:
        key: bed, arm and seed.
        runs: one run, or the members of an ensemble.
        csf: the score of AURC, or `"auto"`.
    """
    found = []
    epochs = int(runs[0].history()[-1]["epoch"])
    seconds = sum(row["cpu_seconds"] for run in runs for row in run.history())
    chosen = {"last": epochs, "best": runs[0].environment()["best_epoch"]}
    for checkpoint, epoch in chosen.items():
        start = "last-" if checkpoint == "last" else ""
        val, test = (average(runs, f"{start}{split}") for split in ("val", "test"))
        measured = scaled_measures(val, test, METRICS, csf=csf)
        for scaling, end in zip(SCALINGS, ("", "_ts"), strict=True):
            figures = {name: measured[f"{name}{end}"] for name in FIELDS[8:-1]}
            found.append(
                {
                    **{**key, "checkpoint": checkpoint, "scaling": scaling},
                    **{"epochs": epochs, "epoch": epoch},
                    "temperature": measured["temperature"] if end else 1.0,
                    **{**figures, "cpu_seconds": round(seconds)},
                }
            )
    return found


def rows_of_diverged(key: Row, epochs: int) -> list[Row]:
    """Returns the rows of a run that diverged: its figures are NaN."""
    return [
        {
            **dict.fromkeys(FIELDS, math.nan),
            **{**key, "checkpoint": checkpoint, "scaling": scaling},
            **{"epochs": epochs, "epoch": 0, "cpu_seconds": 0},
        }
        for checkpoint in CHECKPOINTS
        for scaling in SCALINGS
    ]


def average(runs: Sequence[Run], split: str) -> Predictions:
    """Returns logits of the mean probabilities of runs with the same samples."""
    found = [run.predictions(split) for run in runs]
    labels = found[0].labels
    if any(not np.array_equal(one.labels, labels) for one in found):
        names = ", ".join(run.name for run in runs)
        raise ValueError(f"The runs must have the same {split} samples: {names}")
    if len(found) == 1:
        return found[0]
    logits = np.stack([one.logits for one in found]).astype("float64")
    log_p = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
    return Predictions(np.logaddexp.reduce(log_p, 0) - math.log(len(runs)), labels)


def read(path: Path = RESULTS) -> list[Row]:
    """Returns the rows of a file, with numbers for figures."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        {k: v if k in KEY and k != "seed" else float(v) for k, v in row.items()}
        for row in rows
    ]


def done(path: Path) -> set[tuple[str, str, int]]:
    """Returns bed, arm and seed of all that a file has."""
    return {(row["bed"], row["arm"], int(row["seed"])) for row in read(path)}


def append(rows: Sequence[Row], path: Path) -> None:
    """Appends rows of one arm and seed: all of them in one write, and only once."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    with path.open("a", newline="", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if tuple(rows[0][name] for name in KEY[:3]) in done(path):
            return
        if not file.tell():
            writer.writeheader()
        for row in rows:
            figures = {k: f"{v:.6g}" for k, v in row.items() if isinstance(v, float)}
            writer.writerow({**row, **figures})
        file.write(text.getvalue())
