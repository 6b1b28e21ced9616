"""What calibrators, selective classifiers and callbacks do with a Keras model."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_selcal._core.data import LabelledOutputs
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import check_values
from keras_selcal._core.validation import SUM_TOLERANCE, refuse

_PROBABILITIES = ("softmax", "sigmoid")


def gives_logits(model: keras.Model, from_logits: bool | None = None) -> bool:
    """Returns whether `model` gives logits, as told or else as it is built.

    A model gives probabilities if its last operation is a softmax, a sigmoid or one of
    this library's calibration layers. Values are never looked at.
    """
    if from_logits is not None:
        return bool(from_logits)
    last: Any = model
    while isinstance(last, keras.Model):
        operations = getattr(last, "operations", None) or last.layers
        if not operations:
            return True
        last = operations[-1]
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    return (
        type(last).__name__ != "CalibrationLayer"
        and type(last).__name__.lower() not in _PROBABILITIES
        and activation not in _PROBABILITIES
    )


def append_layer(model: keras.Model, layer: keras.layers.Layer) -> keras.Model:
    """Returns the functional model `layer(model(inputs))`, which shares its weights."""
    check_extensible(model)
    sequential = isinstance(model, keras.Sequential)
    inputs = model.inputs[0] if sequential else model.input
    outputs = layer(model(inputs))
    return keras.Model(inputs, outputs, name=f"{layer.name}_of_{model.name}")


def check_extensible(model: keras.Model) -> None:
    """Checks that a layer can be put behind a model."""
    if not getattr(model, "inputs", None):
        refuse(
            "model",
            model,
            "a functional model or a built Sequential one (make one of a subclassed "
            "model by `keras.Sequential([keras.Input(shape), model])`)",
        )
    if len(model.outputs) != 1:
        refuse("model", model, "a model of one output")


def check_outputs(
    found: LabelledOutputs, outputs: Outputs, *, told: bool = True, stacklevel: int = 3
) -> None:
    """Checks by value that outputs, labels and weights are what they are taken for.

    If logits are expected and the values look like probabilities, it warns; for
    sigmoids of which nobody has told that they are logits, it raises an error.
    """
    rows = check_values(found.labels, found.outputs, outputs, found.weight).y_pred
    if not outputs.from_logits:
        return
    events = outputs.multi_label or outputs.is_one_unit(found.outputs.shape)
    if events:
        rows = np.stack([1 - rows[:, 1], rows[:, 1]], axis=-1)
    # Rows of NaN, of a network that diverged, are not judged.
    rows = rows[np.isfinite(rows).all(axis=-1)]
    sums = rows.sum(axis=-1, dtype="float64")
    if len(rows) and (rows >= 0).all() and np.allclose(sums, 1, atol=SUM_TOLERANCE):
        if events and not told:
            refuse(
                "from_logits",
                None,
                "True or False for this model: all of its outputs lie in [0, 1], but "
                "its last operation is no sigmoid",
            )
        warnings.warn(
            "The model's outputs are taken for logits, but they lie in [0, 1], and "
            "each row sums to one. If they are probabilities, pass "
            "`from_logits=False`.",
            stacklevel=stacklevel,
        )
