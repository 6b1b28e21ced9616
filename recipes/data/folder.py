"""Your own images: a folder for each class."""

import os
from pathlib import Path

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split
from recipes.data.images import SUFFIXES, read_images

IMAGE_SIZE = 64
_SEED = 0


def load(
    path: str | os.PathLike[str], *, seed: int = 0, image_size: int = IMAGE_SIZE
) -> Dataset:
    """Returns the images of a folder that has a subfolder for each class.

    The folders of classes are in `path` itself, or in its subfolders `train`, `val` and
    `test`. If `val` or `test` is missing, a fifth of the training images, at most
    5,000, is held out instead, stratified by class: the test images are always the
    same, the validation images depend on `seed`. Images are resized and cropped to a
    square, and normalised by the means and deviations of the training images.

    Args:
        path: the folder.
        seed: seed of the hold-out.
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
            try:
                splits["train"], splits[part] = splits["train"].hold_out(by)
            except DataError as error:
                raise DataError(f"{parts['train']}: {error}") from error
    mean, std = _moments(splits["train"].x)
    return Dataset(
        name=f"folder:{path}",
        train=splits["train"],
        val=splits["val"],
        test=splits["test"],
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
    paths: list[Path] = []
    labels: list[int] = []
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
        raise DataError(f"{folder} has no folder for a class.")
    images = read_images(paths, image_size, fit=True)
    return Split(images, np.asarray(labels, "int32"))


def _moments(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel, of images / 255."""
    mean, std = [], []
    for channel in np.moveaxis(images, -1, 0):
        counts = np.bincount(channel.ravel(), minlength=256)
        values = np.arange(256) / 255
        mean.append(float(np.average(values, weights=counts)))
        variance = np.average((values - mean[-1]) ** 2, weights=counts)
        # A channel without contrast is not scaled.
        std.append(float(np.sqrt(variance)) or 1.0)
    return tuple(mean), tuple(std)
