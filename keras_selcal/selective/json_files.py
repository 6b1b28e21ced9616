"""Files of strict JSON: plain entries, infinities and NaN as words, no code."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._validation import refuse
from keras_selcal._writing import replacing

T = TypeVar("T")

VERSION = 1
_WRONG = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def write_json(
    path: str | os.PathLike[str], kind: str, entries: Mapping[str, Any]
) -> None:
    """Writes a line for each entry.

    Args:
        path: path of the file.
        kind: name of the class that the file holds.
        entries: dicts, lists, arrays, numbers and strings.
    """
    head = {"format": f"keras_selcal.{kind}", "version": VERSION}
    lines = [
        f"{json.dumps(name)}: {json.dumps(_plain(x), allow_nan=False)}"
        for name, x in {**head, **entries}.items()
    ]
    with replacing(Path(path)) as written:
        written.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def read_json(
    path: str | os.PathLike[str],
    kind: str,
    names: list[str],
    make: Callable[[dict[str, Any]], T],
) -> T:
    """Returns what `make` makes of the entries of a file that `write_json` has written;
    any other file is refused in one sentence.

    Args:
        path: path of the file.
        kind: name of the class that the file holds.
        names: the entries that the file must have; it must have no others.
        make: maps entries to an object, or raises an error.
    """
    allowed = f"a file saved by `{kind}.save`"
    text = Path(path).read_bytes()
    try:
        entries = json.loads(text, parse_constant=_refuse_constant)
        if entries.pop("format") != f"keras_selcal.{kind}":
            raise KeyError("format")
        version = entries.pop("version")
    except (*_WRONG, RecursionError):
        refuse("path", str(path), allowed)
    if version != VERSION:
        refuse(
            "path",
            str(path),
            f"of version {VERSION}; this file, of version {version}, was written by a "
            "newer keras_selcal, which can read it",
        )
    try:
        unknown = entries.keys() - names
        if unknown:
            raise ValueError(f"unknown entries: {', '.join(sorted(unknown))}")
        return make({name: entries[name] for name in names})
    except _WRONG as error:
        what = f"no entry {error}" if isinstance(error, KeyError) else str(error)
        refuse("path", str(path), f"{allowed}; this one is not valid ({what})")


def to_array(value: Any) -> Array:
    """Returns numbers of a file, infinities as words included, as an array."""
    return np.asarray(value).astype("float64")


def _plain(value: Any) -> Any:
    """Returns a value that strict JSON can hold."""
    if isinstance(value, Mapping):
        return {name: _plain(x) for name, x in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")
