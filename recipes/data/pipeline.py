"""Batches of normalised images, augmented for training."""

import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import keras
import numpy as np

from recipes.data.base import Preprocessing, Split


class Batches(keras.utils.PyDataset):
    """Batches of a split, for `fit`, `evaluate` and `predict` on any backend.

    Order and augmentation depend on (seed, epoch, index) alone: whatever came before, a
    resumed run sees the batches that an undisturbed one would have seen. The last batch
    may be short.

    Keras tells a data set neither which epoch it is nor whether an epoch that ends was
    only a look at the first batch, so `callback` tells it; and `fit` must leave the
    order alone:

    ```python
    batches = Batches(data.train, data.preprocessing, 128, training=True, seed=0)
    model.fit(batches, shuffle=False, callbacks=[batches.callback], initial_epoch=7)
    ```

    Args:
        split: images and labels.
        preprocessing: normalisation, size and augmentation.
        batch_size: number of images in a batch.
        training: whether to shuffle and to augment.
        seed: of order and augmentation.
        epoch: the first epoch.
        workers: threads that prepare the next batches; 0 for none.
    """

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        batch_size: int,
        *,
        training: bool = False,
        seed: int = 0,
        epoch: int = 0,
        workers: int = 1,
    ) -> None:
        # Keras's own workers mix up batches when a model is built by `fit`: the batches
        # they have read ahead then come first in the first epoch, and others never.
        super().__init__(workers=1)
        if not len(split):
            raise ValueError("`split` must have at least one sample. Received: none")
        if batch_size < 1:
            raise ValueError(
                f"`batch_size` must be at least 1. Received: batch_size={batch_size}"
            )
        self.split = split
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.training = training
        self.seed = seed
        self._inputs = Inputs(preprocessing, split.x.shape[1:])
        self._threads = workers
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.epoch = epoch

    @property
    def epoch(self) -> int:
        """The epoch whose batches are given."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        with self._lock:
            self._epoch = epoch
            self._begun = 0
            self._ahead: dict[int, Future] = {}
            self._order = np.arange(len(self.split))
            if self.training:
                self._order = self._rng(0).permutation(len(self.split))

    @property
    def callback(self) -> keras.callbacks.Callback:
        """A callback for `fit` that keeps `epoch` in step."""

        def follow(epoch, logs=None):
            self.epoch = epoch

        return keras.callbacks.LambdaCallback(on_epoch_begin=follow)

    def on_epoch_begin(self) -> None:
        # Once to build the model, once to train: a third time is another epoch.
        self._begun += 1
        if self.training and self._begun > 2:
            raise RuntimeError(
                f"Epoch {self.epoch} begins again: give `fit` this data set's "
                "callback, `callbacks=[batches.callback]`."
            )

    def __len__(self) -> int:
        return math.ceil(len(self.split) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} batches. Received: index={index}")
        if not self._threads:
            return self._batch(index)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "batches")
            last = min(index + self._threads + 1, len(self))
            ahead = {
                i: self._ahead.get(i) or self._pool.submit(self._batch, i)
                for i in range(index, last)
            }
            self._ahead = ahead
        return ahead[index].result()

    def _batch(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = index * self.batch_size
        chosen = self._order[start : start + self.batch_size]
        if not self.training:
            chosen = slice(start, start + self.batch_size)
        rng = self._rng(1 + index) if self.training else None
        return self._inputs(self.split.x[chosen], rng), self.split.y[chosen]

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, self._epoch, *key))


class Inputs:
    """Turns images into a model's inputs, many at a time.

    Args:
        preprocessing: normalisation, size and augmentation.
        image_shape: (height, width, channels) of the images.
    """

    def __init__(self, preprocessing: Preprocessing, image_shape) -> None:
        self.preprocessing = p = preprocessing
        height, width, channels = image_shape
        if len(p.mean) != channels or len(p.std) != channels:
            raise ValueError(
                f"`preprocessing` is for images of {len(p.mean)} channels. "
                f"Received: images of {channels} channels"
            )
        # One factor for each value of a row: NumPy is slow along an axis of 3.
        mean, std = np.tile(p.mean, width), np.tile(p.std, width)
        self._factor = (1 / (p.scale * std)).astype("float32")
        self._offset = (-mean / std).astype("float32")
        self._resize = None
        if (height, width) != p.image_size:
            self._resize = Resize((height, width), p.image_size, channels)

    def __call__(self, images: np.ndarray, rng=None) -> np.ndarray:
        """Returns inputs (n, height, width, channels), float32.

        Args:
            images: (n, h, w, c).
            rng: source of the augmentation; none is done without.
        """
        if rng is not None:
            images = augment(images, self.preprocessing, rng)
        n, height, _, channels = images.shape
        inputs = images.reshape(n, height, -1).astype("float32")
        inputs *= self._factor
        inputs += self._offset
        if self._resize is not None:
            inputs = self._resize(inputs)
        return inputs.reshape(n, *self.preprocessing.image_size, channels)


def augment(images, preprocessing: Preprocessing, rng) -> np.ndarray:
    """Returns the images cropped at random and flipped, each in its own way."""
    if preprocessing.augmentation == "none":
        return images
    n, height, width, channels = images.shape
    rows, columns = np.arange(height), np.arange(width)
    flipped = rng.random((n, 1)) < 0.5
    columns = np.where(flipped, columns[::-1], columns)
    rows = np.broadcast_to(rows, (n, height))
    if preprocessing.augmentation == "crop_flip":
        pad = preprocessing.padding
        images = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        shift = rng.integers(0, 2 * pad + 1, (2, n, 1))
        rows, columns = rows + shift[0], columns + shift[1]
    # All from one list of pixels, each a single item: thrice as fast as three indices.
    padded_height, padded_width = images.shape[1:3]
    rows = rows + padded_height * np.arange(n)[:, None]
    pixels = rows[:, :, None] * padded_width + columns[:, None, :]
    pixel = np.dtype((np.void, images.itemsize * channels))
    taken = np.ascontiguousarray(images).view(pixel).reshape(-1).take(pixels)
    return taken.view(images.dtype).reshape(n, height, width, channels)


class Resize:
    """Bilinear resizing of many images at once, by products of small matrices.

    A new pixel lies between two old ones, so nearly all of a matrix of interpolation is
    zero: it is cut into bands of rows, and each multiplies only what it reaches.

    Args:
        size: (height, width) of the images.
        new_size: that of the result.
        channels: number of channels.
    """

    def __init__(self, size, new_size, channels: int) -> None:
        (self.height, self.width), (new_height, new_width) = size, new_size
        self.shape = (new_height, new_width * channels)
        self._rows = list(_bands(interpolation(self.height, new_height)))
        each = np.eye(channels, dtype="float32")
        self._columns = [
            (_times(new, channels), _times(old, channels), np.kron(band, each).T.copy())
            for new, old, band in _bands(interpolation(self.width, new_width))
        ]

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Returns images (n, h, w · c) as (n, new h, new w · c)."""
        n = len(images)
        wide = np.empty((n * self.height, self.shape[1]), "float32")
        flat = images.reshape(n * self.height, -1)
        for new, old, band in self._columns:
            np.matmul(flat[:, old], band, out=wide[:, new])
        wide = wide.reshape(n, self.height, -1)
        resized = np.empty((n, *self.shape), "float32")
        for new, old, band in self._rows:
            np.matmul(band, wide[:, old], out=resized[:, new])
        return resized


def interpolation(size: int, new_size: int) -> np.ndarray:
    """Returns the (new_size, size) matrix of bilinear interpolation in one direction.

    Pixels are areas: the centre of the new pixel i lies at (i + ½) · size / new_size.
    Where images shrink, the kernel widens with the ratio, so that no pixel is lost.
    """
    ratio = size / new_size
    reach = max(ratio, 1.0)
    centres = (np.arange(new_size) + 0.5) * ratio
    distance = np.abs(centres[:, None] - (np.arange(size) + 0.5)) / reach
    weights = np.maximum(1 - distance, 0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")


_BAND = 16


def _bands(matrix: np.ndarray):
    """Yields (rows, columns, block) that make up a matrix of mostly zeros."""
    for start in range(0, len(matrix), _BAND):
        rows = slice(start, min(start + _BAND, len(matrix)))
        reached = np.flatnonzero(matrix[rows].any(axis=0))
        columns = slice(reached[0], reached[-1] + 1)
        yield rows, columns, matrix[rows, columns].copy()


def _times(part: slice, factor: int) -> slice:
    return slice(part.start * factor, part.stop * factor)
