"""Checked arrays for prediction sets: probabilities, classes and the level α."""

import warnings
from typing import Any

import numpy as np

from keras_selcal._core.outputs import two_columns
from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import SUM_TOLERANCE, check_number, refuse


def to_probabilities(outputs: Any, from_logits: bool) -> np.ndarray:
    """Returns checked probabilities (..., k) in float64.

    One sigmoid unit, (n,) or (..., 1), becomes the columns (1 − p, p).
    """
    z = to_numpy(outputs).astype("float64")
    if z.ndim == 0 or z.size == 0:
        refuse("probabilities", z.shape, "(..., k) with at least one sample")
    if z.ndim == 1 or z.shape[-1] == 1:
        z = two_columns(z if z.ndim == 1 else z[..., 0], from_logits, np)
    if not np.isfinite(z.max(axis=-1)).all():
        allowed = "finite (a logit may be −inf, but not all of a sample)"
        refuse("probabilities", "NaN or infinite", allowed)
    if from_logits:
        z = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(z / z.sum(axis=-1, keepdims=True))
    if z.min() < 0 or np.abs(z.sum(axis=-1) - 1).max() > SUM_TOLERANCE:
        refuse(
            "probabilities",
            z.reshape(-1, z.shape[-1])[0],
            "numbers in [0, 1] that sum to 1 in each row (pass `from_logits=True` if "
            "they are logits)",
        )
    return z


def check_classes(labels: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Returns class indices (...) for probabilities of a shape (..., k)."""
    y, k = to_numpy(labels), shape[-1]
    if y.shape == shape:
        if not (np.isin(y, (0, 1)).all() and (y.sum(axis=-1) == 1).all()):
            refuse("labels", y, "class indices or one-hot; soft labels are not taken")
        return np.asarray(y.argmax(axis=-1))
    if y.shape not in (shape[:-1], (*shape[:-1], 1)):
        refuse("labels", y.shape, f"one a sample for probabilities of shape {shape}")
    if not np.all((y == np.floor(y)) & (y >= 0) & (y < k)):
        refuse("labels", np.unique(y), f"class indices from 0 to {k - 1}")
    return y.reshape(shape[:-1]).astype("int64")


def check_alpha(alpha: Any) -> float:
    """Returns the checked α; one above ½ earns a warning."""
    allowed = "a number in (0, 1): the share of sets that may miss the label"
    number = check_number("alpha", alpha, allowed, above=0, below=1)
    if number > 0.5:
        warnings.warn(
            f"alpha={number:g} lets {100 * number:g} % of the sets miss the label. For "
            f"a coverage of {number:g} pass alpha={1 - number:g}.",
            stacklevel=3,
        )
    return number
