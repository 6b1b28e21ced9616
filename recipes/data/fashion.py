"""Fashion-MNIST: 10 classes of clothes, 28 × 28 pixels, in its original files."""

import gzip
import os
from pathlib import Path

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split

_VALIDATION = 10_000
_FILES = ("{}-images-idx3-ubyte.gz", "{}-labels-idx1-ubyte.gz")
# The length of the files' headers.
_OFFSETS = (16, 8)
_NAMES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def load(data_dir: str | os.PathLike[str] | None = None, *, seed: int = 0) -> Dataset:
    """Returns Fashion-MNIST, with 10,000 training images held out.

    Args:
        data_dir: the folder of the four files, such as `train-images-idx3-ubyte.gz`.
            Debian packages them as `dataset-fashion-mnist`.
        seed: seed of the hold-out.
    """
    if data_dir is None:
        raise DataError("fashion-mnist needs data_dir, the folder of its four files.")
    folder = Path(data_dir).expanduser()
    train, val = _read(folder, "train").hold_out(seed, _VALIDATION)
    return Dataset(
        name="fashion-mnist",
        train=train,
        val=val,
        test=_read(folder, "t10k"),
        class_names=_NAMES,
        # Mean and deviation of all training pixels.
        preprocessing=Preprocessing((28, 28), (0.2860,), (0.3530,)),
    )


def _read(folder: Path, part: str) -> Split:
    arrays = []
    for form, offset in zip(_FILES, _OFFSETS, strict=True):
        path = folder / form.format(part)
        try:
            content = gzip.decompress(path.read_bytes())
            arrays.append(np.frombuffer(content, "uint8", offset=offset))
        except (OSError, EOFError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
    pixels, labels = arrays
    if not len(labels) or len(pixels) != 784 * len(labels) or labels.max() > 9:
        raise DataError(
            f"{folder} must have images of 28 × 28 pixels and a label from 0 to 9 for "
            f"each. Received: {len(pixels)} pixels and {len(labels)} labels of {part}"
        )
    return Split(pixels.reshape(-1, 28, 28, 1), labels.astype("int32"))
