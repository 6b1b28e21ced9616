"""A data set: three splits, the names of its classes, and its preprocessing."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_selcal._validation import check_choice

AUGMENTATIONS = ("crop_flip", "flip", "none")


class DataError(ValueError):
    """Data that is missing or not in the expected form."""


@dataclass(frozen=True)
class Split:
    """Samples and class indices (n,) of type int32.

    Samples are images (n, h, w, c), of type uint8 unless they are your own, or features
    (n, d).
    """

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> "Split":
        return Split(self.x[index], self.y[index])

    def hold_out(self, seed: int, size: int | None = None) -> tuple["Split", "Split"]:
        """Returns two splits: the samples that are kept, and those held out.

        The hold-out is stratified by class.

        Args:
            seed: decides which samples are held out.
            size: number of samples to hold out. Defaults to a fifth, at most 5,000.
        """
        from sklearn.model_selection import train_test_split

        size = min(len(self) // 5, 5000) if size is None else size
        try:
            kept, held = train_test_split(
                np.arange(len(self)), test_size=size, random_state=seed, stratify=self.y
            )
        except ValueError as error:
            classes, counts = np.unique(self.y, return_counts=True)
            raise DataError(
                f"cannot hold out {size} of {len(self)} samples by class: each of the "
                f"{len(classes)} classes needs at least two samples, and one of them "
                f"held out. The fewest are {counts.min()} of class "
                f"{classes[counts.argmin()]}."
            ) from error
        return self[np.sort(kept)], self[np.sort(held)]


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes a model's input: (image / scale − mean) / std.

    Every field is a number, a string or a tuple, so that `dataclasses.asdict` can be
    written to a JSON file, and `Preprocessing(**fields)` restores it.

    Args:
        image_size: (height, width) of the model's input. Images of another size are
            resized by bilinear interpolation. None for features, and for images that
            are not resized.
        mean: mean of each channel, of images divided by `scale`.
        std: standard deviation of each channel, of images divided by `scale`.
        scale: the largest pixel value.
        augmentation: augmentation of training images: `"crop_flip"` (pad by `padding`
            black pixels, crop at random, flip half of the images), `"flip"` or
            `"none"`.
        padding: black pixels on each side before a random crop.
    """

    image_size: tuple[int, int] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    augmentation: str = "none"
    padding: int = 4

    def __post_init__(self) -> None:
        check_choice("augmentation", self.augmentation, AUGMENTATIONS)
        for field in ("image_size", "mean", "std"):  # JSON has no tuples
            if getattr(self, field) is not None:
                object.__setattr__(self, field, tuple(getattr(self, field)))


@dataclass(frozen=True)
class Dataset:
    """Training images without those held out for validation, validation, and test.

    `augmented_val` is whether validation images are augmented like training images, as
    in the paper's public code.
    """

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    preprocessing: Preprocessing
    augmented_val: bool = False

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a model's input: (height, width, channels), or (features,)."""
        size = self.preprocessing.image_size
        shape = self.train.x.shape[1:]
        return shape if size is None else (*size, shape[-1])

    def resized(self, image_size: int) -> "Dataset":
        """Returns the same images for a model with larger inputs.

        They are resized batch by batch; training images are flipped but not cropped.
        """
        if self.train.x.ndim != 4 or self.train.x.dtype != np.uint8:
            raise DataError(
                "`image_size` is for images of type uint8. Received: samples of type "
                f"{self.train.x.dtype} and shape {self.train.x.shape[1:]}"
            )
        preprocessing = dataclasses.replace(
            self.preprocessing,
            image_size=(image_size, image_size),
            augmentation="none"
            if self.preprocessing.augmentation == "none"
            else "flip",
        )
        return dataclasses.replace(self, preprocessing=preprocessing)
