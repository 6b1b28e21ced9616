"""Batches of normalised samples; images are augmented for training."""

import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_selcal._validation import check_count
from recipes.data.base import Preprocessing, Split
from recipes.data.images import resize

Batch = tuple[np.ndarray, np.ndarray]


class Batches(keras.utils.PyDataset):
    """Batches of a split, for `fit`, `evaluate` and `predict` on any backend.

    Order and augmentation depend only on (seed, epoch, index), so that a resumed run
    sees the same batches as an uninterrupted one. The last batch may be smaller.

    Keras does not tell a data set which epoch it is, nor whether it only read the first
    batch to build the model. Pass `callback` to `fit`, which sets the epoch, and do not
    let `fit` shuffle:

    ```python
    batches = Batches(data.train, data.preprocessing, 128, training=True, seed=0)
    model.fit(batches, shuffle=False, callbacks=[batches.callback], initial_epoch=7)
    ```

    Args:
        split: images and labels.
        preprocessing: normalisation, size and augmentation.
        batch_size: number of images in a batch.
        training: whether to shuffle and augment.
        augmented: whether to augment without shuffling.
        seed: seed of order and augmentation.
        epoch: the first epoch.
        workers: number of threads that prepare the next batches.
    """

    def __init__(
        self,
        split: Split,
        preprocessing: Preprocessing,
        batch_size: int,
        *,
        training: bool = False,
        augmented: bool = False,
        seed: int = 0,
        epoch: int = 0,
        workers: int = 1,
    ) -> None:
        # Keras's own workers mix up batches if `fit` builds the model: batches that
        # they read ahead come first in the first epoch, and others never come.
        super().__init__(workers=1)
        if not len(split):
            raise ValueError("`split` must have at least one sample. Received: none")
        check_count("batch_size", batch_size)
        channels = split.x.shape[-1]
        if len(preprocessing.mean) != channels or len(preprocessing.std) != channels:
            raise ValueError(
                f"`preprocessing` is for images of {len(preprocessing.mean)} channels. "
                f"Received: images of {channels} channels"
            )
        self.split = split
        self.preprocessing = preprocessing
        self.batch_size = batch_size
        self.training = training
        self.augmented = training or augmented
        self.seed = seed
        # One factor for each value of a row: NumPy is slow along an axis of length 3.
        size = preprocessing.image_size
        width = 1 if split.x.ndim == 2 else size[1] if size else split.x.shape[2]
        mean, std = (
            np.tile(preprocessing.mean, width),
            np.tile(preprocessing.std, width),
        )
        self._factor = (1 / (preprocessing.scale * std)).astype("float32")
        self._offset = (-mean / std).astype("float32")
        self._threads = workers
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.epoch = epoch

    @property
    def epoch(self) -> int:
        """The epoch whose batches are returned."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        with self._lock:
            self._epoch = epoch
            self._begun = 0
            self._ahead: dict[int, Future[Batch]] = {}
            self._order = np.arange(len(self.split))
            if self.training:
                self._order = self._rng(0).permutation(len(self.split))

    @property
    def callback(self) -> keras.callbacks.Callback:
        """A callback for `fit` that sets `epoch`."""

        def follow(epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        return keras.callbacks.LambdaCallback(on_epoch_begin=follow)

    def on_epoch_begin(self) -> None:
        # Keras calls this once to build the model and once to train. A third call means
        # that the epoch was not set.
        self._begun += 1
        if self.training and self._begun > 2:
            raise RuntimeError(
                f"Epoch {self.epoch} was started twice. Pass the callback of this data "
                "set to `fit`: `callbacks=[batches.callback]`."
            )

    def __len__(self) -> int:
        return math.ceil(len(self.split) / self.batch_size)

    def __getitem__(self, index: int) -> Batch:
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

    def _batch(self, index: int) -> Batch:
        start = index * self.batch_size
        chosen: Any = slice(start, start + self.batch_size)
        if self.training:
            chosen = self._order[chosen]
        images = self.split.x[chosen]
        if self.augmented:
            images = augment(images, self.preprocessing, self._rng(1 + index))
        return self._inputs(images), self.split.y[chosen]

    def _inputs(self, images: np.ndarray) -> np.ndarray:
        """Returns normalised samples, float32; images are resized."""
        size = self.preprocessing.image_size
        if size is not None and images.shape[1:3] != size:
            images = resize(images, size)
        rows = images.astype("float32")
        if images.ndim == 4:
            rows = rows.reshape(*images.shape[:2], -1)
        rows *= self._factor
        rows += self._offset
        return rows.reshape(images.shape)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, self._epoch, *key))


def augment(
    images: np.ndarray, preprocessing: Preprocessing, rng: np.random.Generator
) -> np.ndarray:
    """Returns the images, each cropped and flipped at random."""
    if preprocessing.augmentation == "none" or images.ndim != 4:
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
    # Taking whole pixels from a flat array is three times as fast as three indices.
    padded_height, padded_width = images.shape[1:3]
    rows = rows + padded_height * np.arange(n)[:, None]
    pixels = rows[:, :, None] * padded_width + columns[:, None, :]
    pixel = np.dtype((np.void, images.itemsize * channels))
    taken = np.ascontiguousarray(images).view(pixel).reshape(-1).take(pixels)
    return taken.view(images.dtype).reshape(n, height, width, channels)
