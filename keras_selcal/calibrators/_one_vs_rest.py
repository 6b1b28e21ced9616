"""The base class of histogram binning and isotonic calibration."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._predictions.labelled import Labelled
from keras_selcal.calibrators._affine import log_softmax
from keras_selcal.calibrators.base import Calibrator

# Above every probability: pads the edges of classes that have fewer.
_PADDING = 2.0


class OneVsRest(Calibrator):
    """Base class: a curve f_c for each class, smoothed and renormalised.

    p_c ∝ (n f_c(q_c) + (q_c + 1/k)/2)/(n + 1), with q = softmax(z). The added terms
    count as one more sample, half of it as the model predicts and half uniform: no
    probability is 0, and the model's ranking decides where a curve is constant.
    """

    @abstractmethod
    def _curves(self, q: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """Returns f_c(q_c) for probabilities (rows, k) and tables (k, m)."""

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        q = ops.softmax(logits, axis=-1)
        n, k = parameters["n"], q.shape[-1]
        tables = {
            name: ops.reshape(value, (-1, value.shape[-1]))
            for name, value in parameters.items()
            if name != "n"
        }
        # The tables of multi-label data are (labels, 2, m): one row for each curve.
        rows = next(iter(tables.values())).shape[0]
        f = ops.reshape(self._curves(ops.reshape(q, (-1, rows)), tables), ops.shape(q))
        if len(n.shape) > 0:
            n = ops.expand_dims(n, -1)
        p = (n * f + 0.5 * (q + 1 / k)) / (n + 1)
        p = ops.where(logits == -np.inf, 0.0, p)
        return p / ops.sum(p, axis=-1, keepdims=True)


def class_probabilities(data: Labelled) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns q = softmax(z), which samples are of each class, and what each counts.

    All are (n, k). q is rounded to the float32 that the curves are applied in. A
    sample does not count for a class that cannot occur in it.
    """
    q = np.exp(log_softmax(data.logits)).astype("float32").astype("float64")
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


def take_by_class(table: Tensor, position: Tensor) -> Tensor:
    """Returns table[c, position[..., c]] for a table (k, m) and positions (..., k)."""
    k, m = table.shape
    index = position + ops.arange(k, dtype="int32") * m
    # As an embedding lookup: ONNX export from PyTorch supports no other `take`.
    return ops.squeeze(ops.take(ops.reshape(table, (-1, 1)), index, axis=0), -1)


def count_below(edges: Tensor, values: Tensor) -> Tensor:
    """Returns how many of its class's edges lie below each value.

    A binary search in all classes at once: L steps for 2^L − 1 edges.

    Args:
        edges: (k, 2^L − 1), each row ascending.
        values: (..., k).
    """
    position = ops.zeros_like(values, dtype="int32")
    step = (int(edges.shape[1]) + 1) // 2
    while step:
        below = take_by_class(edges, position + (step - 1)) < values
        position = position + ops.where(below, step, 0)
        step //= 2
    return position
