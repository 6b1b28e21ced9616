"""Post-hoc calibration of the authors' own logits: `python -m recipes.paper.authors`.

The history of the paper's repository (https://github.com/han678/CalibWeightedRisk,
commit cb661b4) has the logits of three CIFAR-10 ResNet-50, of older runs than those of
the tables. `python -m recipes.paper.authors FOLDER` writes `authors.csv`, from which
the claim `table_a` is computed. FOLDER has `focal_train.npz`, `focal_test.npz` and so
on for `dual_focal` and `ece_kde`, each with arrays `logits` and `targets`.
"""

import csv
import sys
from pathlib import Path
from typing import Any

from recipes.paper import posthoc
from recipes.runs import Predictions

RESULTS = Path(__file__).with_name("authors.csv")
# The names of the losses here and there.
LOSSES = {"fl53": "focal", "dual_focal": "dual_focal", "kde_xe": "ece_kde"}
FIELDS = ("loss", "fitted_on", "accuracy", "temperature", "metamis")


def read() -> list[dict[str, Any]]:
    """Returns the rows of authors.csv."""
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts = ("loss", "fitted_on")
    return [{k: v if k in texts else float(v) for k, v in r.items()} for r in rows]


def measured(folder: Path) -> list[dict[str, Any]]:
    """Returns accuracies and temperatures of the logits in a folder."""
    import numpy as np

    def load(loss: str, split: str) -> Predictions:
        with np.load(folder / f"{LOSSES[loss]}_{split}.npz") as file:
            logits, labels = file["logits"], file["targets"]
        return Predictions(logits.astype("float32"), labels.astype("int32"))

    rows = []
    for loss in LOSSES:
        test = load(loss, "test")
        even, odd = (Predictions(test.logits[i::2], test.labels[i::2]) for i in (0, 1))
        splits = {
            "training images": (load(loss, "train"), test),
            "half of the test images": (even, odd),
        }
        for split, (fitted, tested) in splits.items():
            found, _ = posthoc.posthoc_values(fitted, tested)
            numbers = (
                found["none", "accuracy"],
                found["ts", "temperature"],
                found["metamis", "accuracy"],
            )
            texts = (f"{number:.2f}" for number in numbers)
            rows.append(dict(zip(FIELDS, (loss, split, *texts), strict=True)))
    return rows


if __name__ == "__main__":
    made = measured(Path(sys.argv[1]))
    with RESULTS.open("w", newline="", encoding="utf-8") as target:
        writer = csv.DictWriter(target, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)
