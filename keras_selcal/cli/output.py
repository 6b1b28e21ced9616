"""Writes predictions, in the formats that `files` reads, and parameters."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._writing import replacing
from keras_selcal.calibrators import Calibrator
from keras_selcal.cli.files import read_predictions
from keras_selcal.cli.labels import class_numbers, fail, labels_to_write
from keras_selcal.cli.predictions import PredictionFile
from keras_selcal.selective import SelectivePrediction

# What a table says of a sample that is not answered.
ABSTAIN = "abstain"


def check_output(path: str, *suffixes: str) -> Path:
    """Returns a path of a folder that exists and of one of the suffixes, if any."""
    made = Path(path)
    if suffixes and made.suffix.lower() not in suffixes:
        raise ValueError(f"{path}: the name must end in {' or '.join(suffixes)}")
    if not made.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {made.parent}")
    return made


def write_predictions(path: Path, data: PredictionFile, multi_label: bool) -> None:
    """Writes probabilities with the labels and class names of a file.

    The classes are in the order of that file. What is read back is the same; what a
    format cannot hold is refused.
    """
    data = data.in_file_order()
    with replacing(path) as written:
        if path.suffix.lower() == ".npz":
            _write_npz(written, data, multi_label)
            return
        columns = _columns(path, data, multi_label)
        if path.suffix.lower() == ".csv":
            _write_csv(written, columns)
        else:
            _write_parquet(written, columns)
        try:
            read = read_predictions(written, multi_label, needs_labels=False)
        except ValueError as error:
            problem = str(error).partition(": ")[2]
        else:
            if _same(read, data, multi_label):
                return
            problem = "the columns would be read as others"
        fail(path, f"a table cannot hold these class names ({problem}); write .npz")


def write_answers(
    path: Path, data: PredictionFile, answers: SelectivePrediction, multi_label: bool
) -> None:
    """Writes answers, confidences and calibrated probabilities.

    A table has a column `answer`, which is a class or `abstain`; of several labels
    `answer` lists the true ones and `abstain` those that are not answered.

    Args:
        path: path of the file.
        data: probabilities, with the labels and class names of a file.
        answers: in the order of these classes.
        multi_label: whether several labels can be true at once.
    """
    with replacing(path) as written:
        if path.suffix.lower() == ".npz":
            parts = {
                "answers": answers.labels,
                "accepted": answers.accepted,
                "confidence": answers.confidence,
            }
            _write_npz(written, data, multi_label, **parts)
            return
        columns = _answer_columns(path, data, answers, multi_label)
        columns += _columns(path, data, multi_label)
        names = [name for name, _ in columns]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            fail(path, f"two columns would have the name {twice!r}; write .npz")
        write = _write_csv if path.suffix.lower() == ".csv" else _write_parquet
        write(written, columns)


def _answer_columns(
    path: Path, data: PredictionFile, answers: SelectivePrediction, multi_label: bool
) -> list[tuple[str, list[Any]]]:
    k, confidence = data.num_classes, answers.confidence
    names = data.class_names or [str(i) for i in range(k)]
    if not multi_label:
        if ABSTAIN in names:
            fail(path, f"a class has the name {ABSTAIN!r}; write .npz")
        words = [*names, ABSTAIN]  # −1 is the last one
        cells = [words[i] for i in answers.labels.tolist()]
        return [("answer", cells), ("confidence", confidence.tolist())]

    def listed(chosen: Array) -> list[str]:
        return [
            ";".join(names[i] for i in np.flatnonzero(row))
            for row in np.asarray(chosen)
        ]

    each = zip(names, confidence.T.tolist(), strict=True)
    return [
        ("answer", listed(answers.labels == 1)),
        (ABSTAIN, listed(~answers.accepted)),
        *((f"confidence of {name}", values) for name, values in each),
    ]


def _write_npz(
    path: Path, data: PredictionFile, multi_label: bool, **answers: Array
) -> None:
    labels, names = data.labels, data.class_names
    if labels is not None and not multi_label and _are_indices(labels, data):
        indices = labels.reshape(-1).astype(int)
        form = labels_to_write(path, indices, names, data.num_classes)
        labels = np.array(form)[indices]
    parts: dict[str, Any] = {
        "labels": labels,
        "class_names": names,
        "images": data.images,
        "calibrator": data.calibrator,
        **answers,
    }
    given = {name: x for name, x in parts.items() if x is not None}
    with path.open("wb") as file:
        np.savez(file, probs=data.y_pred, **given)


def _columns(
    path: Path, data: PredictionFile, multi_label: bool
) -> list[tuple[str, list[Any]]]:
    """Returns the names and cells of the columns of a table."""
    probs, names, k = data.y_pred, data.class_names, data.num_classes
    columns: list[tuple[str, list[Any]]] = []
    if data.labels is not None:
        columns.append(("label", _label_cells(path, data.labels, data, multi_label)))
    if probs.ndim == 1:
        return [*columns, (names[1] if names else "p", probs.tolist())]
    heads = names or [f"p{i}" for i in range(k)]
    return [*columns, *zip(heads, probs.T.tolist(), strict=True)]


def _label_cells(
    path: Path, labels: Array, data: PredictionFile, multi_label: bool
) -> list[Any]:
    k, classes = data.num_classes, labels.reshape(-1)
    if multi_label or not _are_indices(labels, data):
        if not np.isin(labels, (0, 1)).all():
            fail(path, "a table cannot hold soft labels; write .npz")
        classes = np.nonzero(labels)[-1]
    form = labels_to_write(path, classes.astype(int), data.class_names, k)
    if multi_label:
        rows = [np.flatnonzero(row).tolist() for row in labels]
        return [";".join(str(form[i]) for i in row) for row in rows]
    return [form[int(i)] for i in classes]


def _are_indices(labels: Array, data: PredictionFile) -> bool:
    """Returns whether labels are class indices, not distributions or soft labels."""
    if data.y_pred.ndim == 2 and labels.shape[1:] == data.y_pred.shape[1:]:
        return False
    return bool((labels == np.floor(labels)).all())


def _same(read: PredictionFile, data: PredictionFile, multi_label: bool) -> bool:
    """Returns whether a table has been read as what was written."""
    data, labels = data.by_number(), data.by_number().labels
    if labels is not None and not multi_label and not _are_indices(labels, data):
        labels = labels.argmax(axis=-1)
    pairs = [(read.y_pred, data.y_pred), (read.labels, labels)]
    heads = [
        class_numbers(each.class_names)
        or each.class_names
        or [*range(each.num_classes)]
        for each in (read, data)
    ]
    # Of one sigmoid unit, a table names the second class only.
    first = 1 if data.y_pred.ndim == 1 else 0
    return (
        heads[0][first:] == heads[1][first:]
        and read.from_logits == data.from_logits
        and all(
            x is y or np.array_equal(np.ravel(x), np.ravel(y))  # type: ignore[arg-type]
            for x, y in pairs
        )
    )


def _write_csv(path: Path, columns: list[tuple[str, list[Any]]]) -> None:
    names, cells = zip(*columns, strict=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*cells, strict=True))


def _write_parquet(path: Path, columns: list[tuple[str, list[Any]]]) -> None:
    try:
        from pyarrow import parquet, table
    except ImportError:
        fail(path.name, "writing .parquet needs pyarrow: `pip install pyarrow`")
    parquet.write_table(table(dict(columns)), path)


def write_parameters(path: Path, calibrator: Calibrator) -> None:
    """Writes a fitted calibrator, as .npz to load or as .json to read."""
    with replacing(path) as written:
        if path.suffix.lower() == ".npz":
            calibrator.save(written)
            return
        record = {
            "calibrator": type(calibrator).__name__,
            "config": calibrator.get_config(),
            "parameters": {
                name: np.asarray(value).tolist()
                for name, value in calibrator.parameters.items()
            },
        }
        written.write_text(json.dumps(record, indent=2) + "\n", "utf-8")
