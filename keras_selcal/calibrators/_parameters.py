"""Fitted parameters: of several labels at once, and in a file."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import TINY, cast

Parameters = Mapping[str, np.ndarray]

_PREFIX = "parameters/"


@dataclass(frozen=True)
class Fitted:
    """What a calibrator was fitted on.

    Attributes:
        num_classes: k, or the number of labels of multi-label data.
        num_samples: n, the sum of the weights; None if it is not known.
        floor: the smallest probability; smaller ones, such as 0, are replaced by it.
        from_logits: whether the outputs were logits; None if it is not known.
        chosen: the name of the candidate that `AutoCalibration` has chosen.
        scores: name, log loss and standard error of each of its candidates.
    """

    num_classes: int
    num_samples: float | None = None
    floor: float = TINY
    from_logits: bool | None = None
    chosen: str | None = None
    scores: list[list[Any]] = field(default_factory=list, compare=False)


def stack(each: Sequence[Parameters]) -> Parameters:
    """Returns the parameters of all labels, with the labels in the first axis.

    Curves with fewer knots are padded with their last value.
    """

    def padded(name: str) -> list[np.ndarray]:
        values = [np.asarray(parameters[name]) for parameters in each]
        if values[0].ndim == 0:
            return values
        most = np.max([value.shape for value in values], axis=0)
        return [
            np.pad(
                value,
                [(0, int(m) - s) for m, s in zip(most, value.shape, strict=True)],
                mode="edge",
            )
            for value in values
        ]

    return {name: np.stack(padded(name)) for name in each[0]}


def cast_all(parameters: Mapping[str, Any], dtype: Any, xp: Any) -> dict[str, Any]:
    """Returns the parameters as tensors of a dtype, or as arrays."""
    return {
        name: cast(value if xp is np else xp.convert_to_tensor(value), dtype, xp)
        for name, value in parameters.items()
    }


def write_file(
    path: str | os.PathLike[str], record: Mapping[str, Any], parameters: Parameters
) -> None:
    """Writes an .npz file that holds a record as JSON, and arrays."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {_PREFIX + name: x for name, x in parameters.items()}
    np.savez(content, calibrator=np.asarray(json.dumps(record)), **arrays)
    Path(path).write_bytes(content.getvalue())


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Parameters]:
    """Returns the record and the arrays of a file written by `write_file`."""
    with np.load(path, allow_pickle=False) as file:
        record = json.loads(str(file["calibrator"]))
        names = [name for name in file.files if name.startswith(_PREFIX)]
        return record, {name.removeprefix(_PREFIX): file[name] for name in names}
