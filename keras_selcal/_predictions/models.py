"""Keras models: what they return, and layers appended to them."""

from typing import Any

import keras

from keras_selcal._validation import refuse

_PROBABILITIES = ("softmax", "sigmoid")


def gives_logits(model: keras.Model, from_logits: bool | None = None) -> bool:
    """Returns `from_logits`, or, if it is None, whether `model` returns logits.

    A model returns probabilities if its last operation is a softmax, a sigmoid or a
    calibration layer of this library. Values are not considered.
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
    """Checks that a layer can be appended to a model."""
    if not getattr(model, "inputs", None):
        refuse(
            "model",
            model,
            "a functional model or a built Sequential one (wrap a subclassed model as "
            "`keras.Sequential([keras.Input(shape), model])`)",
        )
    if len(model.outputs) != 1:
        refuse("model", model, "a model with one output")
