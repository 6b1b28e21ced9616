"""Predictions in files from any framework: .npz, .csv and .parquet."""

import csv
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._validation import SUM_TOLERANCE
from keras_selcal.cli.labels import fail, number_of, read_indices, read_multi_hot
from keras_selcal.cli.predictions import PredictionFile


def read_predictions(
    path: str | Path,
    multi_label: bool = False,
    *,
    needs_labels: bool = True,
    extra: Sequence[str] = (),
) -> PredictionFile:
    """Reads predictions and labels; errors name the file and the sample.

    Columns (or arrays) named in `extra` are not predictions; a file may lack them.

    The formats are those that `keras-selcal report --help` describes. The unnamed
    index column that pandas writes is ignored. Samples are counted from 0. Classes that
    are numbered 0 … k − 1 are returned in the order of their numbers.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path, bool, Sequence[str]], PredictionFile]] = {
        ".npz": _read_npz,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        fail(path, "the name must end in .npz, .csv or .parquet")
    if not path.is_file():
        fail(path, "there is no such file")
    if path.stat().st_size == 0:
        fail(path, "the file is empty")
    read = readers[suffix](path, multi_label, extra)
    if needs_labels and read.labels is None:
        needed = "the key `labels`" if suffix == ".npz" else "one column `label`"
        fail(path, f"needs {needed}. Found: {', '.join(read.found[:12])}")
    _check(path, read, multi_label)
    _note_columns_of_zeros(path, read)
    return read._replace(path=str(path)).by_number()


def _note_columns_of_zeros(path: Path, read: PredictionFile) -> None:
    """Warns of columns that may be no classes, such as the number of a fold."""
    if read.from_logits or read.class_names is None or read.y_pred.ndim != 2:
        return
    named = zip(read.class_names, read.y_pred.T, strict=True)
    empty = [repr(name) for name, column in named if not column.any()]
    if empty:
        warnings.warn(
            f"{path}: {', '.join(empty[:5])} has probability 0 in every sample; remove "
            "columns that are not classes",
            stacklevel=3,
        )


def _read_npz(path: Path, multi_label: bool, extra: Sequence[str]) -> PredictionFile:
    if not zipfile.is_zipfile(path):
        array = path.read_bytes()[:6] == b"\x93NUMPY"
        found = "a .npy array" if array else "another kind of file"
        fail(
            path,
            f"not a .npz archive but {found}; write it with "
            "numpy.savez(path, probs=…, labels=…)",
        )
    try:
        _check_headers(path)
        with np.load(path, allow_pickle=False) as file:
            data = {key: file[key] for key in file.files}
    except MemoryError:
        fail(path, "the arrays do not fit in memory")
    except Exception as e:  # a damaged or encrypted archive fails in many ways
        fail(path, f"not a .npz archive of plain arrays ({e})")
    found = ", ".join(f"`{key}`" for key in data) or "none"
    given = [key for key in ("logits", "probs") if key in data]
    if len(given) != 1:
        fail(path, f"needs one of the keys `logits` and `probs`. Found: {found}")
    y_pred, labels = data[given[0]], data.get("labels")
    if y_pred.ndim == 2 and y_pred.shape[1] == 1 and not multi_label:
        y_pred = y_pred[:, 0]
    names = data.get("class_names")
    class_names = None if names is None else _strings(path, "class_names", names)
    k = y_pred.shape[1] if y_pred.ndim == 2 else 2
    if labels is not None and not multi_label and _are_cells(labels, class_names):
        cells = _strings(path, "labels", labels)
        labels, class_names = read_indices(path, cells, class_names, k)
    calibrator = str(data["calibrator"]) if "calibrator" in data else None
    read = PredictionFile(y_pred, labels, given == ["logits"], class_names)
    return read._replace(
        images=data.get("images"),
        found=list(data),
        calibrator=calibrator,
        extra={name: data[name] for name in extra if name in data},
    )


def _strings(path: Path, key: str, array: Array) -> list[str]:
    """Returns the entries of an array as strings; bytes must be UTF-8."""
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            fail(path, f"`{key}` must be strings, or bytes in UTF-8 ({error})")
    return array.reshape(-1).astype(str).tolist()


def _are_cells(labels: Array, class_names: Sequence[str] | None) -> bool:
    """Returns whether labels are names, or numbers to look up in the names."""
    if labels.ndim != 1 and labels.shape[1:] != (1,):
        return False
    if labels.dtype.kind == "f":
        whole = bool((labels == np.floor(labels)).all())  # others are soft labels
        return whole and class_names is not None
    kinds = "US" if class_names is None else "USbiu"
    return labels.dtype.kind in kinds


def _check_headers(path: Path) -> None:
    """Refuses arrays that claim more bytes than the archive holds."""
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_2_0
                if version == (1, 0):
                    read = np.lib.format.read_array_header_1_0
                shape, _, dtype = read(member)
            name = info.filename.removesuffix(".npy")
            if dtype.hasobject:
                raise ValueError(
                    f"`{name}` holds Python objects; store numbers or strings"
                )
            if math.prod(shape) * dtype.itemsize > info.file_size:
                raise ValueError(
                    f"`{name}` claims the shape {shape} but has {info.file_size} bytes"
                )


def _read_csv(path: Path, multi_label: bool, extra: Sequence[str]) -> PredictionFile:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            table = [row for row in csv.reader(file) if row]
        except (csv.Error, UnicodeDecodeError) as error:
            fail(path, f"not a table of comma-separated values in UTF-8 ({error})")
    if not table:
        fail(path, "the file has blank lines only")
    head, *rows = table
    head = [cell.strip() for cell in head]
    if len(head) == 1 and re.search(r"[;\t]", head[0]):
        fail(path, "the cells must be separated by commas")
    for i, row in enumerate(rows):
        if len(row) != len(head):
            fail(path, f"sample {i} has {len(row)} cells, the header {len(head)}")
    if head[0] in ("", "Unnamed: 0"):
        head, rows = head[1:], [row[1:] for row in rows]
    beside = {
        name: np.array([row[head.index(name)].strip() for row in rows])
        for name in extra
        if name in head
    }
    columns = [i for i, x in enumerate(head) if x != "label" and x not in beside]
    names = [head[i] for i in columns]
    numbers = _numbers(path, names, [[row[i] for i in columns] for row in rows])
    cells = None
    if "label" in head:
        cells = [row[head.index("label")].strip() for row in rows]
    return _from_table(path, head, numbers, cells, multi_label, beside)


def _read_parquet(
    path: Path, multi_label: bool, extra: Sequence[str]
) -> PredictionFile:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        fail(path, "reading .parquet needs pyarrow: `pip install pyarrow`")
    try:
        table = parquet.read_table(path)
    except (ArrowInvalid, OSError) as error:
        fail(path, f"not a .parquet file ({error})")
    head = [name for name in table.column_names if not name.startswith("__index_")]
    beside = {x: table[x].to_numpy() for x in extra if x in head}
    try:
        numbers = [
            np.asarray(table[name].to_numpy(), "float64")
            for name in head
            if name != "label" and name not in beside
        ]
    except (TypeError, ValueError) as error:
        fail(path, f"a column is not of numbers ({error})")
    cells = None
    if "label" in head:
        cells = [
            ";".join(map(str, cell)) if isinstance(cell, list) else str(cell)
            for cell in table["label"].to_pylist()
        ]
    stacked = np.stack(numbers, axis=-1) if numbers else np.zeros((table.num_rows, 0))
    return _from_table(path, head, stacked, cells, multi_label, beside)


def _from_table(
    path: Path,
    head: Sequence[str],
    numbers: Array,
    cells: Sequence[str] | None,
    multi_label: bool,
    extra: Mapping[str, Array],
) -> PredictionFile:
    """Interprets the columns of a table.

    Args:
        path: path of the file, for errors.
        head: names of all columns.
        numbers: the columns of predictions, (n, columns).
        cells: the column `label`, or None.
        multi_label: whether a cell may list several labels.
        extra: the columns that are not predictions.
    """
    twice = [name for name, count in Counter(head).items() if count > 1]
    if twice:
        fail(path, f"two columns have the name {twice[0]!r}")
    # One look-up for each name: there may be thousands of classes.
    no_classes = {"label", *extra}
    classes = [name for name in head if name not in no_classes]
    letter = "".join({name[:1] for name in classes})
    names: list[str] | None = None
    if len(classes) == 1 and not multi_label:
        (name,) = classes
        number = number_of(name)
        if number == 0 or (number is None and re.search("[^0-9]0+$", name)):
            call, other = ("z", "−z") if name == "z0" else ("p", "1 − p")
            fail(
                path,
                f"is `{name}` of class 1? Then call it `{call}`. If it is of class 0, "
                f"write {other} as `{call}`",
            )
        numbers = numbers.reshape(-1)
        if name not in ("p", "z", "p1", "z1"):
            letter = "p"
            # A column `1` or `True` belongs to class 1, as p1.
            names = None if number == 1 else [f"not {name}", name]
    elif all(re.fullmatch(r"[pz]\d+", name) for name in classes):
        order = [int(name[1:]) for name in classes]
        if len(letter) > 1 or sorted(order) != list(range(len(classes))):
            fail(path, f"columns p0, p1, … or z0, z1, … count from 0. Found: {head}")
        numbers = numbers[:, np.argsort(order)] if len(numbers) else numbers
    elif {"p0", "p1"} <= set(classes) or {"z0", "z1"} <= set(classes):
        others = [name for name in classes if not re.fullmatch(r"[pz]\d+", name)]
        fail(
            path,
            f"columns that are not predictions must be removed, or named by --groups "
            f"or --slices: {', '.join(others)}",
        )
    else:
        letter, names = "p", classes
    k = len(classes)
    labels: Array | None = None
    if cells is not None and multi_label:
        labels = read_multi_hot(path, cells, names, k)
    elif cells is not None:
        labels, names = read_indices(path, cells, names, max(k, 2))
    read = PredictionFile(numbers, labels, letter == "z", names, found=head)
    return read._replace(extra=extra)


def _numbers(path: Path, names: list[str], rows: list[list[str]]) -> Array:
    try:
        return np.array(rows, dtype="float64")
    except ValueError:
        for i, row in enumerate(rows):
            for name, cell in zip(names, row, strict=True):
                try:
                    float(cell)
                except ValueError:
                    fail(
                        path,
                        f"{cell!r} in sample {i} is not a number (column `{name}`; "
                        "labels belong in a column `label`, and other columns must go "
                        "or be named by --groups or --slices)",
                    )
        raise


def _check(path: Path, read: PredictionFile, multi_label: bool) -> None:
    """Refuses values that are not predictions, and names the sample."""
    name = "logits" if read.from_logits else "probs"
    shape, labels = read.y_pred.shape, read.labels
    if len(shape) not in (1, 2) or 0 in shape or (multi_label and len(shape) == 1):
        wanted = "(n, k) with n ≥ 1 samples, or (n,) for one sigmoid unit"
        fail(path, f"`{name}` must have shape {wanted}. Received: {shape}")
    n, k = shape[0], shape[1] if len(shape) == 2 else 2
    allowed = {(n, k)} if multi_label else {(n,), (n, 1), (n, *shape[1:])}
    if labels is not None and labels.shape not in allowed:
        wanted = " or ".join(map(str, sorted(allowed, key=len)))
        fail(path, f"`labels` must have shape {wanted}. Received: {labels.shape}")
    for key, array in ((name, read.y_pred), ("labels", labels)):
        if array is not None and array.dtype.kind not in "fiub":
            fail(path, f"`{key}` must be numbers. Received: {array.dtype}")
    names, images = read.class_names, read.images
    if names is not None and len(names) != k:
        fail(path, f"`class_names` must be {k} names. Received: {len(names)}")
    for key, array in read.extra.items():
        if array.shape not in ((n,), (n, 1)):
            fail(path, f"`{key}` must have shape {(n,)}. Received: {array.shape}")
    if images is not None and images.shape[:1] != (n,):
        fail(path, f"`images` must be {n} images. Received: shape {images.shape}")
    events = len(shape) == 1 or multi_label
    found = _bad_predictions(path, name, _rows(read.y_pred), events)
    if labels is not None:
        found += _bad_labels(_rows(labels), events, k)
    for bad, what, rows in found:
        broken = np.asarray(bad).reshape(n, -1).any(axis=-1)
        if broken.any():
            i = int(np.argmax(broken))
            more = ", …" if rows.shape[1] > 4 else ""
            values = ", ".join(f"{value:g}" for value in rows[i, :4]) + more
            fail(path, f"{what.replace('SAMPLE', f'sample {i}')}. Received: {values}")


def _rows(x: Array) -> Array:
    return x.astype("float64").reshape(len(x), -1)


# Which entries or rows are bad, what is wrong with them, and the rows.
_Bad = tuple[Array, str, Array]


def _bad_predictions(path: Path, name: str, rows: Array, events: bool) -> list[_Bad]:
    sums = np.abs(rows.sum(axis=-1) - 1) > SUM_TOLERANCE
    infinite = np.isnan(rows) | (rows == np.inf)
    bad = [(infinite, f"`{name}` of SAMPLE must be finite numbers", rows)]
    if name == "logits":
        inside = ((rows >= 0) & (rows <= 1)).all() and len(rows) > 1
        if inside and (events or not sums.any()):
            and_sum = "" if events else " and sum to 1"
            fail(
                path,
                f"`logits` hold probabilities: all are in [0, 1]{and_sum}; call them "
                "`probs` (in a table: p, or p0, p1, …)",
            )
        masked = np.isneginf(rows).all(axis=-1)
        return [*bad, (masked, "`logits` of SAMPLE must not all be −∞", rows)]
    remedy = "; if they are logits, call them `logits` (in a table: z, or z0, z1, …)"
    outside = (rows < 0) | (rows > 1 + SUM_TOLERANCE)
    bad.append((outside, f"`probs` of SAMPLE must be in [0, 1]{remedy}", rows))
    if not events:
        remedy += "; if several labels can be true at once, pass --multi-label"
        bad.append((sums, f"`probs` of SAMPLE must sum to 1{remedy}", rows))
    return bad


def _bad_labels(rows: Array, events: bool, k: int) -> list[_Bad]:
    if events:
        return [
            (~((rows >= 0) & (rows <= 1)), "the label of SAMPLE must be 0 or 1", rows)
        ]
    if rows.shape[1] == 1:
        bad = ~((rows >= 0) & (rows < k) & (rows == np.floor(rows)))
        return [(bad, f"the label of SAMPLE must be one of 0 … {k - 1}", rows)]
    bad = ~(np.abs(rows.sum(axis=-1) - 1) <= SUM_TOLERANCE) | (rows < 0).any(axis=-1)
    what = "must sum to 1; pass --multi-label if several labels can be true"
    return [(bad, f"`labels` of SAMPLE {what}", rows)]
