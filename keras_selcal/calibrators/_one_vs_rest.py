"""What histogram binning and isotonic calibration share: a curve for each class."""

import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal.calibrators._linear import log_softmax

# Above every probability: fills up the edges of classes that have fewer.
_PADDING = 2.0


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    """Returns softmax(z), rounded to the float32 that the curves are applied in."""
    return np.exp(log_softmax(logits)).astype("float32").astype("float64")


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
    # As an embedding lookup: ONNX export from PyTorch knows no other `take`.
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


def renormalize(probabilities: Tensor) -> Tensor:
    """Returns p/Σp, and the uniform vector where Σp = 0."""
    total = ops.sum(probabilities, axis=-1, keepdims=True)
    uniform = 1 / probabilities.shape[-1]
    return ops.where(
        total > 0, probabilities / ops.where(total > 0, total, 1.0), uniform
    )
