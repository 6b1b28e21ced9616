"""Scores of past batches, by which those of a small one are ranked."""

import base64
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._ops import Tensor
from keras_selcal._validation import check_number, refuse
from keras_selcal.functional.cdf import memory_shape


def check_momentum(momentum: Any) -> float:
    """Returns the checked m."""
    most = math.nextafter(1.0, 0.0)
    return check_number("momentum", momentum, "a number in [0, 1)", least=0, most=most)


class ScoreMemory:
    """Exponentially decaying counts of confidence scores, by bin and cell.

    Formula:

    ```
    H ← m H + h
    ```

    with h the counts of a batch. H is not normalised: the first batch stands alone,
    and the scores remembered are at most 1/(1 − m) batches.

    Args:
        num_bins: M of the soft CDF.
        momentum: m in [0, 1).
        counts: H as text, as `get_config` gives it. Defaults to none.
    """

    def __init__(
        self, num_bins: int, momentum: float, counts: str | None = None
    ) -> None:
        self.momentum = check_momentum(momentum)
        self.counts = np.zeros(memory_shape(num_bins), "float32")
        # Stands for the counts while a model trains, as a part of its state.
        self.variable: Any = None
        if counts is not None:
            self.counts = _decoded(counts, self.counts.shape)
        # Steps of training under way: several, where replicas are threads.
        self._steps = 0

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Has batches that are ranked inside the `with` block remembered."""
        self._steps += 1
        try:
            yield
        finally:
            self._steps -= 1

    def with_batch(self, counts: Tensor) -> Tensor:
        """Returns m H + h, which is the new H in training."""
        past = self.counts if self.variable is None else self.variable
        past = ops.cast(ops.convert_to_tensor(past), counts.dtype)
        counts = self.momentum * past + counts
        if self._steps > 0:
            if self.variable is None:
                refuse("memory", self, "part of a model's state, to learn in training")
            self.variable.assign(counts)
        return counts

    def release(self) -> None:
        """Takes the counts back from the variable that stands for them, if any."""
        self.counts = self._current()
        self.variable = None

    def _current(self) -> np.ndarray:
        if self.variable is None:
            return self.counts
        return np.array(ops.convert_to_numpy(self.variable), "float32")

    def get_config(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "counts": _encoded(self._current())}


def _encoded(counts: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(counts.astype("<f4").tobytes())).decode()


def _decoded(text: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        counts = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f4")
        return counts.reshape(shape).astype("float32")
    except (TypeError, ValueError, zlib.error):
        refuse("counts", text, f"what a memory of shape {shape} was saved as")
