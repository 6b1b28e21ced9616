"""The base class of histogram binning and isotonic calibration."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import arange, cast, is_masked, softmax
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled

# Above every probability: pads the edges of classes that have fewer.
_PADDING = 2.0


class OneVsRest(Calibrator):
    """Base class: a curve f_c for each class, smoothed and renormalised.

    p_c ∝ (n f_c(q_c) + (q_c + 1/k)/2)/(n + 1), with q = softmax(z). The added terms
    count as one more sample, half of it as the model predicts and half uniform: no
    probability is 0, and the model's ranking decides where a curve is constant.
    """

    @abstractmethod
    def _curves(self, q: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        """Returns f_c(q_c) for probabilities (..., k) and tables (k, m).

        For multi-label data these are (..., labels, 2) and (labels, 2, m).
        """

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        q = softmax(logits, xp)
        n = xp.expand_dims(parameters["n"], -1)
        f = self._curves(q, parameters, xp)
        p = (n * f + 0.5 * (q + 1 / int(q.shape[-1]))) / (n + 1)
        p = xp.where(is_masked(logits), xp.zeros_like(p), p)
        return p / xp.sum(p, axis=-1, keepdims=True)


def class_probabilities(data: Labelled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns q = softmax(z), which samples are of each class, and what each counts.

    All are (n, k). q is rounded to the float32 that the curves are applied in. A
    sample does not count for a class that cannot occur in it.
    """
    q = softmax(data.logits.astype("float64"), np).astype("float32").astype("float64")
    hits = data.labels[:, None] == np.arange(data.num_classes)
    weight = np.broadcast_to(data.weight[:, None], q.shape)
    if data.masked is not None:
        weight = np.where(data.masked, 0.0, weight)
    return q, hits, weight


def stack_edges(edges: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the classes' edges as one array (k, 2^L − 1), padded."""
    most = max(len(row) for row in edges)
    width = (1 << max(1, math.ceil(math.log2(most + 1)))) - 1
    return stack_rows(edges, width, [_PADDING] * len(edges))


def stack_rows(
    rows: Sequence[np.ndarray], width: int, padding: Sequence[float]
) -> np.ndarray:
    """Returns rows of different lengths as one array (k, width)."""
    return np.stack(
        [
            np.concatenate([row, np.full(width - len(row), value)])
            for row, value in zip(rows, padding, strict=True)
        ]
    )


def take_by_class(table: Any, position: Any, xp: Any) -> Any:
    """Returns table[c, position[..., c]] for a table (*c, m) and positions (..., *c).

    Positions are floats: TensorFlow computes with int32 on the host.
    """
    classes, m = table.shape[:-1], int(table.shape[-1])
    first = m * arange(math.prod(classes), "int32", xp)
    index = cast(position, "int32", xp) + xp.reshape(first, classes)
    # As an embedding lookup: ONNX export from PyTorch supports no other `take`.
    return xp.take(xp.reshape(table, (-1, 1)), index, axis=0)[..., 0]


def count_below(edges: Any, values: Any, xp: Any) -> Any:
    """Returns how many of its class's edges lie below each value, as floats.

    A binary search in all classes at once: L steps for 2^L − 1 edges. NaN counts as 0.

    Args:
        edges: (*c, 2^L − 1), each row ascending.
        values: (..., *c).
        xp: `keras.ops`, or NumPy.
    """
    position = xp.zeros_like(values)
    step = (int(edges.shape[-1]) + 1) // 2
    while step:
        below = take_by_class(edges, position + (step - 1.0), xp) < values
        position = position + step * cast(below, values.dtype, xp)
        step //= 2
    return position
