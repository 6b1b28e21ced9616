"""What calibrators, selective classifiers and callbacks do with a Keras model."""

from typing import Any

import keras
import numpy as np

from keras_selcal._core.data import LabelledOutputs
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import check_values
from keras_selcal._core.validation import refuse

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
    found: LabelledOutputs, outputs: Outputs, *, told: bool = True
) -> None:
    """Checks by value that outputs, labels and weights are what they are taken for.

    Outputs of sigmoids that all lie in [0, 1] are an error if nobody has told whether
    they are logits.
    """
    sigmoids = outputs.multi_label or outputs.is_one_unit(found.outputs.shape)
    if sigmoids and outputs.from_logits and not told:
        z = found.outputs[np.isfinite(found.outputs)]
        if z.size and z.min() >= 0 and z.max() <= 1:
            refuse(
                "from_logits",
                None,
                "True or False for this model: all of its outputs lie in [0, 1], but "
                "its last operation is no sigmoid",
            )
    check_values(found.labels, found.outputs, outputs, found.weight)
