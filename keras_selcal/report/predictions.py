"""Predictions in files, from whatever framework: .npz and .csv."""

import csv
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from keras_selcal._core.samples import Array

# Probabilities are printed with few digits, or kept in float16.
_SUM_TOLERANCE = 1e-2


class Predictions(NamedTuple):
    """What a file says of a model.

    Attributes:
        y_pred: probabilities or logits, (n, k).
        labels: class indices (n,), or distributions (n, k).
        from_logits: whether `y_pred` holds logits.
        class_names: a name for each class, or None.
        images: of the samples, or None.
    """

    y_pred: Array
    labels: Array
    from_logits: bool
    class_names: list[str] | None = None
    images: Array | None = None


def read_predictions(path: str | Path) -> Predictions:
    """Reads predictions and labels; errors tell the file and the sample.

    `.npz`: `logits` or `probs`, (n, k), and `labels`, class indices (n,) or
    distributions (n, k); `class_names` (k,) and `images` (n, h, w) or (n, h, w, c) if
    there are any. `.csv`: a header; the column `label` has class indices or names, the
    others are the classes: `p0`, `p1`, … for probabilities, `z0`, `z1`, … for logits,
    or the names of the classes, for probabilities. Samples are counted from 0.
    """
    path = Path(path)
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers:
        _fail(path, "must end in .npz or .csv")
    if not path.is_file():
        _fail(path, "there is no such file")
    read = readers[path.suffix](path)
    _check(path, read)
    return read


def _fail(path: Path, what: str) -> NoReturn:
    raise ValueError(f"{path}: {what}")


def _read_npz(path: Path) -> Predictions:
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
    except (ValueError, zipfile.BadZipFile, OSError) as error:
        _fail(path, f"no .npz file of plain arrays ({error})")
    found = ", ".join(f"`{key}`" for key in data) or "none"
    given = [key for key in ("logits", "probs") if key in data]
    if len(given) != 1:
        _fail(path, f"needs one of the keys `logits` and `probs`. Found: {found}")
    if "labels" not in data:
        _fail(path, f"needs the key `labels`. Found: {found}")
    names = data.get("class_names")
    return Predictions(
        data[given[0]],
        data["labels"],
        given == ["logits"],
        None if names is None else [str(name) for name in names.reshape(-1)],
        data.get("images"),
    )


def _read_csv(path: Path) -> Predictions:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            head, *rows = (row for row in csv.reader(file) if row)
        except (csv.Error, UnicodeDecodeError, ValueError) as error:
            _fail(path, f"no table of commas with a header ({error})")
    head = [cell.strip() for cell in head]
    if head.count("label") != 1:
        _fail(path, f"needs one column `label`. Found: {', '.join(head[:12])}")
    for i, row in enumerate(rows):
        if len(row) != len(head):
            _fail(path, f"sample {i} has {len(row)} cells, the header {len(head)}")
    column = head.index("label")
    classes = head[:column] + head[column + 1 :]
    numbers = [row[:column] + row[column + 1 :] for row in rows]
    numbered = {
        letter: all(re.fullmatch(f"{letter}{i}", c) for i, c in enumerate(classes))
        for letter in "pz"
    }
    names = None if any(numbered.values()) else classes
    labels = _csv_labels(path, [row[column].strip() for row in rows], names)
    return Predictions(_csv_numbers(path, numbers), labels, numbered["z"], names)


def _csv_numbers(path: Path, rows: list[list[str]]) -> Array:
    try:
        return np.array(rows, dtype="float64")
    except ValueError:
        for i, row in enumerate(rows):
            for cell in row:
                try:
                    float(cell)
                except ValueError:
                    _fail(path, f"{cell!r} in sample {i} is no number")
        raise


def _csv_labels(path: Path, cells: list[str], names: list[str] | None) -> Array:
    index = {name: i for i, name in enumerate(names or [])}
    labels = []
    for i, cell in enumerate(cells):
        if cell not in index and not re.fullmatch(r"-?\d+", cell):
            wanted = "a class index" + (
                " or one of the header's names" if names else ""
            )
            _fail(path, f"the label {cell!r} of sample {i} is not {wanted}")
        labels.append(index[cell] if cell in index else int(cell))
    return np.array(labels)


def _check(path: Path, read: Predictions) -> None:
    """Refuses what is no prediction, and names the sample."""
    name = "logits" if read.from_logits else "probs"
    shape = read.y_pred.shape
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        wanted = "(n, k) with n ≥ 1 samples and k ≥ 2 classes"
        _fail(path, f"`{name}` must be of shape {wanted}. Received: {shape}")
    n, k = shape
    if read.y_pred.dtype.kind not in "fiu":
        _fail(path, f"`{name}` must be numbers. Received: {read.y_pred.dtype}")
    _check_rows(path, name, read.y_pred.astype("float64"), read.from_logits)
    labels = read.labels
    if labels.shape not in ((n,), (n, 1), (n, k)):
        _fail(path, f"`labels` must be of shape ({n},). Received: {labels.shape}")
    if labels.dtype.kind not in "fiu":
        _fail(path, f"`labels` must be class indices. Received: {labels.dtype}")
    if labels.shape == (n, k):
        _check_rows(path, "labels", labels.astype("float64"), from_logits=False)
    else:
        flat = labels.reshape(-1)
        _first(
            path,
            ~((flat >= 0) & (flat < k) & (flat == np.floor(flat))),
            lambda i: f"the label of sample {i} is {flat[i]}, none of 0 … {k - 1}",
        )
    if read.class_names is not None and len(read.class_names) != k:
        given = len(read.class_names)
        _fail(path, f"`class_names` must be {k} names, one a class. Received: {given}")
    if read.images is not None and len(np.atleast_1d(read.images)) != n:
        _fail(path, f"`images` must be {n}, one a sample. Received: {len(read.images)}")


def _check_rows(path: Path, name: str, rows: Array, from_logits: bool) -> None:
    broken = np.isnan(rows) | (rows == np.inf)
    _first(
        path, broken.any(axis=-1), lambda i: f"`{name}` of sample {i} holds no number"
    )
    if from_logits:
        infinite = np.isneginf(rows).all(axis=-1)
        _first(path, infinite, lambda i: f"`logits` of sample {i} are all −∞")
        return
    negative = (rows < 0).any(axis=-1)
    hint = "; are these logits?" if name == "probs" else ""
    _first(
        path,
        negative,
        lambda i: f"`{name}` of sample {i} are negative ({rows[i].min():g}){hint}",
    )
    total = rows.sum(axis=-1)
    _first(
        path,
        np.abs(total - 1) > _SUM_TOLERANCE,
        lambda i: f"`{name}` of sample {i} add up to {total[i]:g}, not to 1{hint}",
    )


def _first(path: Path, broken: Any, tell: Callable[[int], str]) -> None:
    """Refuses the first sample that is broken."""
    if broken.any():
        _fail(path, tell(int(np.argmax(broken))))
