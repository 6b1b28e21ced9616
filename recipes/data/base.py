"""What a data set is: three splits, the names of its classes, its preprocessing."""

import dataclasses
from dataclasses import dataclass

import numpy as np

AUGMENTATIONS = ("crop_flip", "flip", "none")


class DataError(ValueError):
    """Data that is missing, or is not what it should be."""


@dataclass(frozen=True)
class Split:
    """Images (n, h, w, c), uint8 or float32, and class indices (n,), int32."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index) -> "Split":
        return Split(self.x[index], self.y[index])


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a model's input: (image / scale − mean) / std.

    Every field is a number, a string or a tuple, so that `dataclasses.asdict` goes into
    a JSON file and `Preprocessing(**fields)` comes back from it.

    Args:
        image_size: (height, width) of the model's input. Images of another size are
            resized, bilinearly.
        mean: mean of each channel, of images divided by `scale`.
        std: standard deviation of each channel, likewise.
        scale: the largest pixel value.
        augmentation: of training images: `"crop_flip"` (pad by `padding` black pixels,
            crop at random, flip half of them), `"flip"`, or `"none"`.
        padding: black pixels on each side before a random crop.
    """

    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    augmentation: str = "none"
    padding: int = 4

    def __post_init__(self) -> None:
        if self.augmentation not in AUGMENTATIONS:
            raise ValueError(
                f"`augmentation` must be one of {', '.join(AUGMENTATIONS)}. "
                f"Received: augmentation={self.augmentation!r}"
            )
        for field in ("image_size", "mean", "std"):  # JSON has no tuples
            object.__setattr__(self, field, tuple(getattr(self, field)))


@dataclass(frozen=True)
class Dataset:
    """Training images (those held out for validation removed), validation, test."""

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    preprocessing: Preprocessing

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Shape of a model's input: (height, width, channels)."""
        return (*self.preprocessing.image_size, self.train.x.shape[-1])

    def resized(self, image_size: int) -> "Dataset":
        """Returns the same images for a model of larger inputs, as transformers take.

        They are resized batch by batch; training images are flipped, not cropped.
        """
        preprocessing = dataclasses.replace(
            self.preprocessing,
            image_size=(image_size, image_size),
            augmentation="none"
            if self.preprocessing.augmentation == "none"
            else "flip",
        )
        return dataclasses.replace(self, preprocessing=preprocessing)
