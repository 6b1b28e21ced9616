"""Images of one's own: a folder for each class."""

from pathlib import Path

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split
from recipes.data.images import SUFFIXES, read_images
from recipes.data.split import holdout_size, stratified_holdout

IMAGE_SIZE = 64
_SEED = 0


def load(path, *, seed: int = 0, image_size: int = IMAGE_SIZE) -> Dataset:
    """Returns the images of a folder that has a folder for each class.

    The folders of classes are in `path` itself, or in its folders `train`, `val` and
    `test`. What of these is missing is a fifth of the training images, stratified: the
    test images always the same, the validation images by `seed`. Images are resized and
    cropped to a square, and normalised by the means and deviations of the training
    images.

    Args:
        path: the folder.
        seed: of the hold-out.
        image_size: height and width of the images.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"There is no folder {root}.")
    parts = {part: root / part for part in ("train", "val", "test")}
    if not parts["train"].is_dir():
        parts = {"train": root}
    folders = _class_folders(parts["train"])
    names = tuple(folder.name for folder in folders)
    if len(names) < 2:
        raise DataError(
            f"{parts['train']} must have a folder for each of at least 2 classes. "
            f"Received: {', '.join(names) or 'none'}"
        )
    splits = {
        part: _read(folder, names, image_size)
        for part, folder in parts.items()
        if folder.is_dir()
    }
    for part, by in (("test", _SEED), ("val", seed)):
        if part not in splits:
            splits["train"], splits[part] = _part(parts["train"], splits["train"], by)
    mean, std = _moments(splits["train"].x)
    return Dataset(
        name=f"folder:{path}",
        **splits,
        class_names=names,
        preprocessing=Preprocessing(
            (image_size, image_size), mean, std, augmentation="crop_flip"
        ),
    )


def _class_folders(folder: Path) -> list[Path]:
    return sorted(
        one for one in folder.iterdir() if one.is_dir() and one.name[0] != "."
    )


def _read(folder: Path, names: tuple[str, ...], image_size: int) -> Split:
    index = {name: i for i, name in enumerate(names)}
    paths, labels = [], []
    for of_class in _class_folders(folder):
        if of_class.name not in index:
            raise DataError(f"{of_class} is a class without training images.")
        files = sorted(
            file
            for file in of_class.rglob("*")
            if file.suffix.lower() in SUFFIXES and file.is_file()
        )
        if not files:
            raise DataError(
                f"{of_class} has no images ({', '.join(sorted(SUFFIXES))})."
            )
        paths += files
        labels += [index[of_class.name]] * len(files)
    if not paths:
        raise DataError(f"{folder} has no folders of classes.")
    images = read_images(paths, image_size, fit=True)
    return Split(images, np.asarray(labels, "int32"))


def _part(folder: Path, split: Split, seed: int) -> tuple[Split, Split]:
    size = holdout_size(len(split))
    if not size:
        raise DataError(
            f"{folder} has {len(split)} images: too few to hold a fifth out."
        )
    try:
        kept, held = stratified_holdout(split.y, size, seed)
    except ValueError as error:
        raise DataError(f"{folder} has too few images of a class: {error}") from error
    return split[kept], split[held]


def _moments(images: np.ndarray):
    """Returns mean and standard deviation of each channel, of images / 255."""
    counts = [
        np.bincount(images[..., c].ravel(), minlength=256)
        for c in range(images.shape[-1])
    ]
    values = np.arange(256) / 255
    mean = [np.average(values, weights=count) for count in counts]
    std = [
        np.sqrt(np.average((values - m) ** 2, weights=count))
        for m, count in zip(mean, counts, strict=True)
    ]
    # A channel without contrast is left as it is.
    return tuple(float(m) for m in mean), tuple(float(s) or 1.0 for s in std)
