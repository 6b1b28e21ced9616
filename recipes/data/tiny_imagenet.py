"""Tiny-ImageNet: 200 classes, 64×64 pixels, in its original folder layout."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split
from recipes.data.images import read_images

_FOLDER = "tiny-imagenet-200"
_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

# The channel means and deviations of ImageNet, which Mukhoti et al. (2020) use.
_PREPROCESSING = Preprocessing(
    image_size=(64, 64),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    augmentation="crop_flip",
)


def load(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    halved: bool = False,
) -> Dataset:
    """Returns Tiny-ImageNet, with 5,000 training images held out.

    The test images are those of the folder `val`, because the original test images have
    no labels.

    Args:
        data_dir: the folder `tiny-imagenet-200`, or the folder that contains it.
        seed: seed of the hold-out.
        halved: whether half of the folder `val`, by class, is for validation instead,
            and all training images are for training.
    """
    root = _root(data_dir)
    wnids = sorted(_lines(root / "wnids.txt"))
    index = {wnid: i for i, wnid in enumerate(wnids)}
    train, test = _read(*_training_files(root, index)), _read(*_test_files(root, index))
    if halved:
        test, val = test.hold_out(seed, len(test) // 2)
    else:
        train, val = train.hold_out(seed)
    return Dataset(
        name="tiny-imagenet",
        train=train,
        val=val,
        test=test,
        class_names=_class_names(root, wnids),
        preprocessing=_PREPROCESSING,
    )


def _root(data_dir: str | os.PathLike[str] | None) -> Path:
    get = f"Download {_URL}, unzip it, and pass the folder {_FOLDER} as data_dir."
    if data_dir is None:
        raise DataError(f"tiny-imagenet needs data_dir. {get}")
    path = Path(data_dir).expanduser()
    for root in (path, path / _FOLDER):
        if (root / "wnids.txt").is_file():
            return root
    raise DataError(
        f"tiny-imagenet was not found. Looked for wnids.txt in {path} and in "
        f"{path / _FOLDER}. {get}"
    )


Files = tuple[list[Path], list[int]]


def _training_files(root: Path, index: dict[str, int]) -> Files:
    paths: list[Path] = []
    labels: list[int] = []
    for wnid, label in index.items():
        folder = root / "train" / wnid / "images"
        files = sorted(folder.glob("*.JPEG"))
        if not files:
            raise DataError(f"{folder} has no images (*.JPEG).")
        paths += files
        labels += [label] * len(files)
    return paths, labels


def _test_files(root: Path, index: dict[str, int]) -> Files:
    table = root / "val" / "val_annotations.txt"
    paths, labels = [], []
    for number, line in enumerate(_lines(table), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in index:
            raise DataError(
                f"{table}, line {number}: expected an image, a tab, and a class of "
                f"wnids.txt. Received: {line!r}"
            )
        paths.append(root / "val" / "images" / fields[0])
        labels.append(index[fields[1]])
    return paths, labels


def _class_names(root: Path, wnids: Sequence[str]) -> tuple[str, ...]:
    """Returns the first name of each class; words.txt has the names of all ImageNet."""
    words = dict(line.partition("\t")[::2] for line in _lines(root / "words.txt"))
    return tuple(words.get(wnid, wnid).partition(",")[0] for wnid in wnids)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty.")
    return lines


def _read(paths: Sequence[Path], labels: Sequence[int]) -> Split:
    return Split(read_images(paths, 64), np.asarray(labels, "int32"))
