"""Keras models: what they return, and layers appended to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_selcal._backend.export import export
from keras_selcal._saving import serializable
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


# Keras's error names this class to whoever loads a file without importing the library.
@serializable
class KerasSelcalModel(keras.Model):
    """A model with a layer of this library appended; see `append_layer`.

    Its file holds nothing of how the model was compiled: an optimizer of one backend
    cannot be loaded on another one, and its state can be twice as large as the model.
    """

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        _drop_compile_config(config)
        return config

    def save(self, *args: Any, **kwargs: Any) -> None:
        with _without_optimizers(self.layers):
            super().save(*args, **kwargs)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """Exports the model, to be served without Keras and this library.

        Outputs keep their names, the batch size is free, and the model need not have
        been called. What the backend cannot export is refused before anything is
        written.

        Args:
            filepath: path of the artifact.
            format: as in `keras.Model.export`.
            verbose: whether to print the path.
            input_signature: as in `keras.Model.export`, whose own way is taken if this
                or another option is given.
            **kwargs: options of `keras.Model.export` for a format.
        """
        if input_signature is None and not kwargs:
            export(self, str(filepath), format)
        else:
            super().export(filepath, format, False, input_signature, **kwargs)
        if verbose:
            print(f"Saved artifact at '{filepath}'.")


def _drop_compile_config(config: Any) -> None:
    """Removes what nested models were compiled with from a config, in place: Keras
    marks objects that occur twice in it.
    """
    if isinstance(config, dict):
        config.pop("compile_config", None)
        config = list(config.values())
    if isinstance(config, list | tuple):
        for part in config:
            _drop_compile_config(part)


@contextmanager
def _without_optimizers(layers: list[Any]) -> Iterator[None]:
    """Takes the optimizers of nested models away until the end of the block."""
    nested = [layer for layer in layers if isinstance(layer, keras.Model)]
    for model in nested:
        nested += [layer for layer in model.layers if isinstance(layer, keras.Model)]
    compiled = [
        (model, model.optimizer)
        for model in dict.fromkeys(nested)
        if getattr(model, "optimizer", None) is not None
    ]
    try:
        for model, _ in compiled:
            model.optimizer = None
        yield
    finally:
        for model, optimizer in compiled:
            model.optimizer = optimizer


def append_layer(
    model: keras.Model, layer: keras.layers.Layer, *others: keras.KerasTensor
) -> keras.Model:
    """Returns the functional model `layer(model(inputs))`, which shares its weights.

    With `others`, it is `layer(model(inputs), *others)`, of a list of inputs.
    """
    check_extensible(model)
    sequential = isinstance(model, keras.Sequential)
    inputs = model.inputs[0] if sequential else model.input
    outputs = layer(model(inputs), *others)
    inputs = [inputs, *others] if others else inputs
    return KerasSelcalModel(inputs, outputs, name=f"{layer.name}_of_{model.name}")


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
