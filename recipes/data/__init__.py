"""Data sets, by name, and batches of them."""

from recipes.data import digits
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
    data_dir=None,
    *,
    seed: int = 0,
    image_size: int | None = None,
    label_noise: float = digits.LABEL_NOISE,
) -> Dataset:
    """Returns a data set, with validation images held out of its training images."""
    dataset = digits.load(seed=seed, label_noise=label_noise)
    return dataset.resized(image_size) if image_size else dataset
