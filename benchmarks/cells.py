"""Errors of the streaming metrics by the number of cells, on logits of real networks.

    KERAS_BACKEND=torch KERAS_SELCAL_DATA=FOLDER python -m benchmarks.cells

Streams each set of logits through the metrics in batches of 1,000, and prints the
largest distance from the exact functions as a Markdown table, one row for each metric
and one column for each number of cells. Every .npz file below FOLDER/logits with logits
and labels is a set, or two (validation and test). A second table is of an untrained
network, whose predictions are nearly uniform.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal import functional, metrics

CELLS = (1024, 4096, 16_384)
BATCH = 1000
# Of a file: the keys of the logits and of the labels.
KEYS = (("logits", "targets"), ("val_logits", "val_labels"))
KEYS += (("test_logits", "test_labels"),)


# A streaming metric of a number of cells, and its exact function of labels and logits.
Pair = tuple[Callable[[int], Any], Callable[[Any, Any], float]]


def pair(metric: Any, exact: Any, *level: float, **options: Any) -> Pair:
    """Returns a streaming metric and its exact function, from logits."""
    options["from_logits"] = True
    return (
        lambda cells: metric(*level, num_cells=cells, **options),
        lambda y, z: exact(y, z, *level, **options),
    )


def adaptive_ece(norm: str) -> Pair:
    streaming, exact = metrics.ExpectedCalibrationError, functional.ece
    return pair(streaming, exact, binning="adaptive", norm=norm)


METRICS = {
    "`AURC`": [pair(metrics.AURC, functional.aurc)],
    "`ExcessAURC`": [pair(metrics.ExcessAURC, functional.excess_aurc)],
    "`AUGRC`": [pair(metrics.AUGRC, functional.augrc)],
    "`FailureAUROC`": [pair(metrics.FailureAUROC, functional.failure_auroc)],
    "`RiskAtCoverage`, 50, 80 and 90 %": [
        pair(metrics.RiskAtCoverage, functional.risk_at_coverage, coverage)
        for coverage in (0.5, 0.8, 0.9)
    ],
    "`CoverageAtRisk`, 1, 2 and 5 %": [
        pair(metrics.CoverageAtRisk, functional.coverage_at_risk, risk)
        for risk in (0.01, 0.02, 0.05)
    ],
    'adaptive ECE, `norm="l1"`': [adaptive_ece("l1")],
    'adaptive ECE, `norm="max"`': [adaptive_ece("max")],
}


def logit_sets(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields name, labels and logits of each set below a folder."""
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path) as data:
            for logits, labels in KEYS:
                if logits in data and labels in data:
                    name = f"{path.stem} {logits.removesuffix('logits')}"
                    yield name, data[labels].reshape(-1), data[logits]


def untrained(n: int = 10_000, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and logits of a network that has learned next to nothing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, n)
    logits = rng.normal(size=(n, k), scale=0.01) + 0.002 * np.eye(k)[labels]
    return labels, logits.astype("float32")


def error(make: Any, exact: Any, cells: int, y: np.ndarray, z: np.ndarray) -> float:
    """Returns |streaming − exact| of a metric; 0 where neither has a value."""
    metric = make(cells)
    for start in range(0, len(y), BATCH):
        rows = slice(start, start + BATCH)
        metric.update_state(y[rows], z[rows])
    streamed, value = float(metric.result()), exact(y, z)
    # Without a single error there is no AUROC of failures.
    return 0.0 if np.isnan(streamed) and np.isnan(value) else abs(streamed - value)


def errors(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Returns the largest error in each row of the table, by the number of cells."""
    return np.array(
        [
            [max(error(*each, cells, y, z) for each in pairs) for cells in CELLS]
            for pairs in METRICS.values()
        ]
    )


def show(title: str, found: np.ndarray) -> None:
    print(
        f"\n{title}\n\n| metric | " + " | ".join(f"{c:,} cells" for c in CELLS) + " |"
    )
    print("|---|" + "--:|" * len(CELLS))
    for name, row in zip(METRICS, found, strict=True):
        print(f"| {name} | " + " | ".join(f"{x:.1e}" for x in row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cells", description=__doc__.splitlines()[0]
    )
    parser.parse_args()
    if "KERAS_SELCAL_DATA" not in os.environ:
        parser.error("set KERAS_SELCAL_DATA to the folder of the logits")
    sets = [*logit_sets(Path(os.environ["KERAS_SELCAL_DATA"]) / "logits")]
    if not sets:
        sys.exit("There are no logits in the folder that KERAS_SELCAL_DATA names.")
    found = []
    for name, y, z in sets:
        print(f"{name.strip()}: {len(z):,} × {z.shape[1]}", file=sys.stderr)
        found.append(errors(y, z))
    show(f"Largest error on {len(sets)} sets of logits", np.max(found, axis=0))
    show("Error on an untrained network", errors(*untrained()))


if __name__ == "__main__":
    main()
