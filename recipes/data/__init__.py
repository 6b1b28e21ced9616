"""Data sets by name, and batches of their images."""

import dataclasses
import os

from keras_selcal._validation import refuse
from recipes.data import cifar, digits, fashion, folder, own, tiny_imagenet
from recipes.data.base import DataError, Dataset, Preprocessing, Split

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "Preprocessing",
    "Split",
    "load",
]

NAMES = ("cifar10", "cifar100", "tiny-imagenet", "fashion-mnist", "digits")


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    seed: int = 0,
    image_size: int | None = None,
    label_noise: float = digits.LABEL_NOISE,
    splits: str = "held_out",
) -> Dataset:
    """Returns a data set, with validation images held out of its training images.

    Args:
        name: one of `NAMES`; or your own: `"folder:PATH"` with a folder of images for
            each class, or `"npz:PATH"` or `"text:PATH"`, as `own.load` describes.
        data_dir: path of the data, in one of the forms that `cifar.load`,
            `tiny_imagenet.load` and `fashion.load` describe. If None, Keras downloads
            CIFAR.
        seed: seed of the stratified hold-out: a fifth of the training images, at most
            5,000 (10,000 of Fashion-MNIST).
        image_size: height and width of a model's input. Defaults to the size of the
            images.
        label_noise: share of wrong labels in digits.
        splits: `"held_out"`, or `"released"` for CIFAR's and Tiny-ImageNet's splits of
            the paper's public code, as `recipes.settings.Settings` describes them.
    """
    kind, _, path = name.partition(":")
    if splits != "held_out" and name not in ("cifar10", "cifar100", "tiny-imagenet"):
        refuse("splits", splits, "held_out, except for CIFAR and Tiny-ImageNet")
    if kind == "folder" and path:
        size = image_size or folder.IMAGE_SIZE
        dataset = folder.load(path, seed=seed, image_size=size)
    elif kind in ("npz", "text") and path:
        dataset = own.load(kind, path, seed=seed)
    elif name not in NAMES:
        allowed = f"{', '.join(NAMES)}, folder:PATH, npz:PATH, text:PATH"
        refuse("dataset", name, f"one of {allowed}")
    elif name == "digits":
        dataset = digits.load(seed=seed, label_noise=label_noise)
    elif name == "tiny-imagenet":
        dataset = tiny_imagenet.load(data_dir, seed=seed, halved=splits == "released")
    elif name == "fashion-mnist":
        dataset = fashion.load(data_dir, seed=seed)
    else:
        dataset = cifar.load(name, data_dir, seed=seed)
        dataset = dataclasses.replace(dataset, augmented_val=splits == "released")
    return dataset if image_size is None else dataset.resized(image_size)
