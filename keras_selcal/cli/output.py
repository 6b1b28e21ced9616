"""Writes predictions, in the formats that `files` reads, and parameters."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal.calibrators import Calibrator
from keras_selcal.cli.files import PredictionFile


def check_output(path: str, *suffixes: str) -> Path:
    """Returns a path of a folder that exists and of one of the suffixes, if any."""
    made = Path(path)
    if suffixes and made.suffix.lower() not in suffixes:
        raise ValueError(f"{path}: the name must end in {' or '.join(suffixes)}")
    if not made.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {made.parent}")
    return made


def write_predictions(path: Path, data: PredictionFile, multi_label: bool) -> None:
    """Writes probabilities with the labels and class names of a file."""
    probs, labels, names = data.y_pred, data.labels, data.class_names
    if path.suffix.lower() == ".npz":
        parts = {"labels": labels, "class_names": names, "images": data.images}
        given = {name: x for name, x in parts.items() if x is not None}
        with path.open("wb") as file:
            np.savez(file, probs=probs, **given)  # type: ignore[arg-type]
        return
    columns: dict[str, list[Any]] = {}
    if labels is not None:
        columns["label"] = _label_cells(labels, probs.ndim, multi_label)
    if probs.ndim == 1:
        columns[names[1] if names else "p"] = probs.tolist()
    else:
        heads = names or [f"p{i}" for i in range(probs.shape[1])]
        columns |= dict(zip(heads, probs.T.tolist(), strict=True))
    if path.suffix.lower() == ".parquet":
        try:
            from pyarrow import parquet, table
        except ImportError:
            raise ValueError(
                f"{path}: writing .parquet needs pyarrow: `pip install pyarrow`"
            ) from None
        parquet.write_table(table(columns), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _label_cells(labels: Any, ndim: int, multi_label: bool) -> list[Any]:
    if multi_label:
        return [";".join(map(str, np.flatnonzero(row))) for row in labels]
    if labels.ndim == 2 and labels.shape[1] == ndim > 1:
        # One-hot or soft labels: a table has room for one class only.
        return np.argmax(labels, axis=-1).tolist()
    return labels.reshape(-1).tolist()


def write_parameters(path: Path, calibrator: Calibrator) -> None:
    """Writes a fitted calibrator, as .npz to load or as .json to read."""
    if path.suffix.lower() == ".npz":
        calibrator.save(path)
        return
    record = {
        "calibrator": type(calibrator).__name__,
        "config": calibrator.get_config(),
        "parameters": {
            name: np.asarray(value).tolist()
            for name, value in calibrator.parameters.items()
        },
    }
    path.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
