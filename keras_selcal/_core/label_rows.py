"""Labels of every form as rows of a `Batch`."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.outputs import Arranged, Outputs


def label_rows(
    arranged: Arranged, outputs: Outputs, y_pred: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Returns the rows' labels, and which rows `ignore_class` keeps (n,), or None."""
    y_true, k, ignored = arranged.y_true, int(y_pred.shape[-1]), outputs.ignore_class
    if arranged.sparse:
        flat = ops.reshape(y_true, (-1,))
        kept = None if ignored is None else flat != ignored
        return ops.expand_dims(_indices(flat), -1), kept
    if arranged.sparse is None:
        return _labels_at_run_time(y_true, y_pred, ignored)
    labels = ops.cast(ops.reshape(y_true, (-1, k)), y_pred.dtype)
    # Of the two columns of a sigmoid's labels, the last is the label itself.
    return labels, None if ignored is None else labels[:, 1] != ignored


def _indices(labels: Tensor) -> Tensor:
    """Returns class indices as int32; −1 for a fraction or NaN."""
    if "float" not in keras.backend.standardize_dtype(labels.dtype):
        return ops.cast(labels, "int32")
    whole = ops.equal(labels, ops.floor(labels))
    return ops.cast(ops.where(whole, labels, -1.0), "int32")


def _labels_at_run_time(
    y_true: Tensor, y_pred: Tensor, ignored: int | None
) -> tuple[Tensor, Tensor | None]:
    """Returns distributions, where only the number of labels tells what they are.

    TensorFlow forgets the shape of labels once a model has met two different ones.
    """
    n, k = ops.shape(y_pred)
    flat = ops.reshape(y_true, (-1,))
    are_indices = ops.equal(ops.shape(flat)[0], n)

    def of_indices() -> Tensor:
        # A label that is no class becomes a row of zeros, which is not valid.
        return ops.one_hot(_indices(flat), k, dtype=y_pred.dtype)

    def of_distributions() -> Tensor:
        return ops.cast(ops.reshape(flat, (-1, k)), y_pred.dtype)

    labels = ops.cond(are_indices, of_indices, of_distributions)
    if ignored is None:
        return labels, None
    kept = ops.cond(
        are_indices,
        lambda: flat != ignored,
        lambda: ops.ones((n,), dtype="bool"),
    )
    return labels, kept


def first_class(labels: Tensor, sparse: bool | None) -> Any:
    """Returns the label of class 0."""
    if sparse:
        return ops.zeros_like(labels)
    k = int(labels.shape[-1])
    return ops.cast(np.arange(k) == 0, labels.dtype)
