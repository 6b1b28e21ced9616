"""Data sets, by name, and batches of them."""

from typing import Any

from recipes.data import cifar, digits, folder, tiny_imagenet
from recipes.data.base import DataError, Dataset, Preprocessing, Split
from recipes.data.pipeline import Batches

__all__ = [
    "NAMES",
    "Batches",
    "DataError",
    "Dataset",
    "Preprocessing",
    "Split",
    "load",
]

NAMES = ("cifar10", "cifar100", "tiny-imagenet", "digits")


def load(
    name: str,
    data_dir: Any = None,
    *,
    seed: int = 0,
    image_size: int | None = None,
    label_noise: float = digits.LABEL_NOISE,
) -> Dataset:
    """Returns a data set, with validation images held out of its training images.

    Args:
        name: one of `NAMES`, or `"folder:PATH"` for images in a folder for each class.
        data_dir: where the data is, in one of the forms that `cifar.load` and
            `tiny_imagenet.load` tell. CIFAR is downloaded by Keras without.
        seed: which images are held out: 5,000 of CIFAR and Tiny-ImageNet, a fifth of
            the others, stratified.
        image_size: height and width of a model's input, as `Settings.image_size` has
            it. Defaults to that of the images.
        label_noise: share of wrong labels, of digits.
    """
    kind, _, path = name.partition(":")
    if kind == "folder" and path:
        size = image_size or folder.IMAGE_SIZE
        dataset = folder.load(path, seed=seed, image_size=size)
    elif name not in NAMES:
        raise ValueError(
            f"`dataset` must be one of {', '.join(NAMES)} or folder:PATH. "
            f"Received: dataset={name!r}"
        )
    elif name == "digits":
        dataset = digits.load(seed=seed, label_noise=label_noise)
    elif name == "tiny-imagenet":
        dataset = tiny_imagenet.load(data_dir, seed=seed)
    else:
        dataset = cifar.load(name, data_dir, seed=seed)
    return dataset if image_size is None else dataset.resized(image_size)
