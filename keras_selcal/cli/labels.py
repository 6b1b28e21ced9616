"""Labels in files of predictions: class indices, names, or several of them."""

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from keras_selcal._core.samples import Array

_BOOLS = {"false": 0, "true": 1}


def fail(path: Path, what: str) -> NoReturn:
    """Raises the error for a file."""
    raise ValueError(f"{path}: {what}")


def _index_of(cell: str) -> int | None:
    """Returns the class index in a cell such as 2, 2.0 or True, or None."""
    if re.fullmatch(r"-?\d+(\.0*)?", cell):
        return int(float(cell))
    return _BOOLS.get(cell.lower())


def numbered(names: Sequence[str] | None) -> dict[int, int] | None:
    """Returns the position of each class by its number, if the names are numbers
    other than the positions themselves; else None.
    """
    values = [_index_of(name) for name in names or []]
    if None in values or values == list(range(len(values))):
        return None
    return {value: i for i, value in enumerate(values) if value is not None}


def _finder(names: Sequence[str] | None) -> Callable[[str], int | None]:
    """Returns the function that finds the class of a label: by its name; by its number
    if the names are numbers; else a number is the position of a class.
    """
    index, values = {name: i for i, name in enumerate(names or [])}, numbered(names)

    def find(label: str) -> int | None:
        number = _index_of(label)
        if values is not None and number is not None:
            number = values.get(number)
        return index.get(label, number)

    return find


def read_indices(
    path: Path, cells: Sequence[str], names: list[str] | None, k: int
) -> tuple[Array, list[str] | None]:
    """Returns class indices of labels that are written as indices or names."""
    if names is not None and len(set(names)) < len(names):
        fail(path, "two classes have the same name, so labels cannot be names")
    found = [_index_of(cell) for cell in cells]
    if names is None and any(index is None for index in found):
        distinct = sorted(set(cells))
        if len(distinct) != k or set(found) != {None}:
            i = found.index(None)
            fail(
                path,
                f"the label {cells[i]!r} of sample {i} is not a class index, and "
                "there are no class names to look it up",
            )
        names = distinct
        warnings.warn(
            f"{path}: the classes have no names, and labels are names; columns are "
            f"read in sorted order, as scikit-learn has them: {', '.join(names)}",
            stacklevel=2,
        )
    find, labels = _finder(names), []
    for i, cell in enumerate(cells):
        label = find(cell)
        if label is None:
            fail(
                path,
                f"the label {cell!r} of sample {i} is not a class index or one of "
                f"the class names: {', '.join((names or [])[:12])}",
            )
        labels.append(label)
    return np.array(labels, dtype=np.int64), names


def read_multi_hot(
    path: Path, cells: Sequence[str], names: list[str] | None, k: int
) -> Array:
    """Returns multi-hot labels of cells such as `joy; love` or `2; 5`."""
    labels, find = np.zeros((len(cells), k)), _finder(names)
    for i, cell in enumerate(cells):
        for part in filter(None, (part.strip() for part in cell.split(";"))):
            label = find(part)
            if label is None or not 0 <= label < k:
                fail(path, f"the label {part!r} of sample {i} is not one of {k}")
            labels[i, label] = 1
    return labels
