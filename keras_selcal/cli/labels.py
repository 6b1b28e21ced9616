"""Names and numbers of classes, and labels that are written as either.

The rule, which `docs/arrays.md` has in words: a label that is a name means the class of
that name. A label that is a number means the class of that number if `class_numbers`
finds numbers in the names, and else a position, counted from 0.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from keras_selcal._arrays import Array

_BOOLS = {"false": 0, "true": 1}


def fail(path: Path | str, what: str) -> NoReturn:
    """Raises the error for a file."""
    raise ValueError(f"{path}: {what}")


def number_of(cell: str) -> int | None:
    """Returns the number in a cell such as 2, 2.0 or True, or None."""
    if re.fullmatch(r"-?[0-9]+(\.0*)?", cell):
        return int(cell.partition(".")[0])
    return _BOOLS.get(cell.lower())


def class_numbers(names: Sequence[str] | None) -> list[int]:
    """Returns the number of each class, or [] if the names are not class numbers.

    They are if all are numbers, or differ only in a number, and these are 0 … k − 1 in
    any order.
    """
    names = names or []
    numbers = [number for number in map(number_of, names) if number is not None]
    if len(numbers) == len(names):
        return numbers
    numbers = _differing_numbers(names)
    return numbers if sorted(numbers) == list(range(len(names))) else []


def _differing_numbers(names: Sequence[str]) -> list[int]:
    """Returns the numbers of names that differ in one number only, or []."""
    # Texts are at even positions, numbers at odd ones.
    parts = [re.split("([0-9]+)", name) for name in names]
    if len({len(part) for part in parts}) != 1:
        return []
    columns = enumerate(zip(*parts, strict=True))
    differing = [(i, column) for i, column in columns if len(set(column)) > 1]
    if [i % 2 for i, _ in differing] != [1]:
        return []
    numbers = [int(cell) for cell in differing[0][1]]
    return numbers if len(set(numbers)) == len(names) else []


def find_classes(
    path: Path, labels: Iterable[str], names: Sequence[str] | None, k: int
) -> dict[str, int]:
    """Returns the class of each label, −1 if there is none; refuses labels that can be
    read in two ways.
    """
    distinct, names = set(labels), names or []
    positions = {x: i for x in distinct if (i := number_of(x)) is not None}
    words = distinct - positions.keys()
    by_name, numbers = {name: i for i, name in enumerate(names)}, class_numbers(names)
    if words and len(by_name) < len(names):
        fail(path, "two classes have the same name, so labels cannot be names")
    if len(set(numbers)) < len(numbers):
        fail(path, f"two classes have the same number: {_some(names)}")
    in_names = numbers or _differing_numbers(names) or map(number_of, names)
    by_number = {number: i for i, number in enumerate(in_names)}
    named = {
        label: by_name.get(label, by_number.get(number, -1))
        for label, number in positions.items()
    }
    found = {word: by_name.get(word, -1) for word in words}
    if numbers:
        return found | named
    # Numbers in the names of other classes than these: all labels are read in one way.
    if -1 in named.values() or named == positions:
        return found | positions
    if not words and all(0 <= i < k for i in positions.values()):
        fail(
            path,
            f"are labels such as {min(positions)} positions, counted from 0, or the "
            f"numbers in {_some(names)}? Write labels as names",
        )
    return found | named


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def read_indices(
    path: Path, cells: Sequence[str], names: list[str] | None, k: int
) -> tuple[Array, list[str] | None]:
    """Returns class indices of labels that are written as numbers or names."""
    is_word = [number_of(cell) is None for cell in cells]
    if names is None and any(is_word):
        distinct = sorted(set(cells))
        if len(distinct) != k or not all(is_word):
            i = is_word.index(True)
            fail(
                path,
                f"the label {cells[i]!r} of sample {i} is not a class index, and "
                "there are no class names to look it up",
            )
        names = distinct
        alone = f"; a single column is {names[1]}" if k == 2 else ""
        warnings.warn(
            f"{path}: the classes have no names, and labels are names; columns are "
            "read in sorted order, as scikit-learn has them: "
            f"{', '.join(names)}{alone}",
            stacklevel=2,
        )
    classes = find_classes(path, cells, names, k)
    for i, cell in enumerate(cells):
        if classes[cell] < 0 and names is not None:
            fail(
                path,
                f"the label {cell!r} of sample {i} is not a class index or one of "
                f"the class names: {_some(names)}",
            )
    return np.array([classes[cell] for cell in cells], dtype=np.int64), names


def read_multi_hot(
    path: Path, cells: Sequence[str], names: list[str] | None, k: int
) -> Array:
    """Returns multi-hot labels of cells such as `joy; love` or `2; 5`."""
    parts = [[x for x in map(str.strip, cell.split(";")) if x] for cell in cells]
    classes = find_classes(path, (x for row in parts for x in row), names, k)
    labels = np.zeros((len(cells), k))
    for i, row in enumerate(parts):
        for part in row:
            if not 0 <= classes[part] < k:
                fail(path, f"the label {part!r} of sample {i} is not one of {k}")
            if labels[i, classes[part]]:
                fail(
                    path,
                    f"the label {part!r} of sample {i} is there twice; a cell lists "
                    "the labels that are true, as 0; 2 for 1, 0, 1",
                )
            labels[i, classes[part]] = 1
    return labels


def labels_to_write(
    path: Path, present: Iterable[int], names: Sequence[str] | None, k: int
) -> Sequence[int] | Sequence[str]:
    """Returns the label of each class that a reader takes for it: a number if
    possible, else the name.

    Args:
        path: path of the file, for errors.
        present: the classes that occur in the file.
        names: a name for each class, or None.
        k: number of classes.
    """
    given = sorted({int(i) for i in present})
    for form in (class_numbers(names) or range(k), names or ()):
        written = {str(form[i]): i for i in given if i < len(form)}
        try:
            found = find_classes(path, written, names, k)
        except ValueError:
            continue
        if found == written and len(found) == len(given):
            return form
    fail(
        path,
        f"labels could be read in two ways beside the class names {_some(names or [])}",
    )
