"""Tiny-ImageNet: 200 classes, 64×64 pixels, in its original folder layout."""

from pathlib import Path

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split
from recipes.data.images import read_images
from recipes.data.split import holdout_size, stratified_holdout

HELD_OUT = 5000
_FOLDER = "tiny-imagenet-200"
_URL = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"

# Channel means and deviations that Mukhoti et al. (2020) use: ImageNet's.
_PREPROCESSING = Preprocessing(
    image_size=(64, 64),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    augmentation="crop_flip",
)


def load(data_dir=None, *, seed: int = 0) -> Dataset:
    """Returns Tiny-ImageNet, 5,000 training images held out.

    The test images are those of the folder `val`: the original test images have no
    labels. Of an incomplete set a fifth is held out, if that is less than 5,000.

    Args:
        data_dir: the folder `tiny-imagenet-200`, or the folder that it is in.
        seed: of the hold-out.
    """
    root = _root(data_dir)
    wnids = sorted(_lines(root / "wnids.txt"))
    index = {wnid: i for i, wnid in enumerate(wnids)}
    training = _read(*_training_files(root, index))
    size = holdout_size(len(training), HELD_OUT)
    kept, held = stratified_holdout(training.y, size, seed)
    return Dataset(
        name="tiny-imagenet",
        train=training[kept],
        val=training[held],
        test=_read(*_test_files(root, index)),
        class_names=_class_names(root, wnids),
        preprocessing=_PREPROCESSING,
    )


def _root(data_dir) -> Path:
    get = f"Download {_URL}, unzip it, and give the folder {_FOLDER} as data_dir."
    if data_dir is None:
        raise DataError(f"tiny-imagenet needs data_dir, its folder. {get}")
    path = Path(data_dir).expanduser()
    for root in (path, path / _FOLDER):
        if (root / "wnids.txt").is_file():
            return root
    raise DataError(
        f"tiny-imagenet is not there. Looked for wnids.txt in {path} and in "
        f"{path / _FOLDER}. {get}"
    )


def _training_files(root: Path, index: dict[str, int]):
    paths, labels = [], []
    for wnid, label in index.items():
        folder = root / "train" / wnid / "images"
        files = sorted(folder.glob("*.JPEG"))
        if not files:
            raise DataError(f"{folder} has no images (*.JPEG).")
        paths += files
        labels += [label] * len(files)
    return paths, labels


def _test_files(root: Path, index: dict[str, int]):
    table = root / "val" / "val_annotations.txt"
    paths, labels = [], []
    for number, line in enumerate(_lines(table), 1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in index:
            raise DataError(
                f"{table}, line {number}: an image and its class of wnids.txt, with a "
                f"tab between, are expected. Received: {line!r}"
            )
        paths.append(root / "val" / "images" / fields[0])
        labels.append(index[fields[1]])
    return paths, labels


def _class_names(root: Path, wnids) -> tuple[str, ...]:
    """Returns the first of each class's names; words.txt has those of all ImageNet."""
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


def _read(paths, labels) -> Split:
    return Split(read_images(paths, 64), np.asarray(labels, "int32"))
