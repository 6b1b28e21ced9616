"""Keras models: which output is meant, what it holds, and layers appended to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    last = _last_operation(model)
    activation = getattr(getattr(last, "activation", None), "__name__", "")
    return (
        type(last).__name__ != "CalibrationLayer"
        and type(last).__name__.lower() not in _PROBABILITIES
        and activation not in _PROBABILITIES
    )


def _last_operation(model: keras.Model) -> Any:
    """Returns the operation that computes a model's only output, None if unknown."""
    last: Any = model
    index, several = 0, isinstance(model, _Part)
    while isinstance(last, keras.Model):
        outputs = getattr(last, "outputs", None)
        if outputs:
            # Of a model inside another one, it may be any of several outputs.
            last, node, index = outputs[index]._keras_history
            several = len(last._inbound_nodes[node].output_tensors) > 1
        elif last.layers and not several:
            last, index = last.layers[-1], 0
        else:
            return None
    return last


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
    if isinstance(model, keras.Sequential):
        # Without an Input of its own, it has the size of the first batch it has seen.
        first = model.inputs[0]
        shape = (None, *first.shape[1:])
        inputs = keras.Input(batch_shape=shape, dtype=first.dtype, name=first.name)
    else:
        inputs = model.input
    outputs = layer(model(inputs), *others)
    inputs = [inputs, *others] if others else inputs
    return KerasSelcalModel(inputs, outputs, name=f"{layer.name}_of_{model.name}")


def check_extensible(model: keras.Model) -> None:
    """Checks that a layer can be appended to a model."""
    if not getattr(model, "inputs", None):
        refuse(
            "model",
            model,
            "a functional model or a built Sequential one (of a subclassed model, make "
            "`keras.Model(inputs, model(inputs))` with `inputs = keras.Input(shape)`)",
        )


class _Part(keras.Model):
    """One of the outputs of a model that is not functional."""

    def __init__(self, whole: keras.Model, key: Any) -> None:
        super().__init__(name=whole.name)
        self.whole = whole
        self._key = key

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        outputs = self.whole(inputs, training=training)
        try:
            return outputs[self._key]
        except (KeyError, IndexError, TypeError):
            refuse("output", self._key, _listed(outputs))


@dataclass(frozen=True)
class OneOutput:
    """One output of a model.

    Attributes:
        model: a model that returns this output alone. It shares the weights.
        key: its key or index in what the whole model returns; None if it is all.
        name: its name: the key, or the name of its layer.
        number: how many outputs there are, if they are in a list and that is known.
    """

    model: keras.Model
    key: Any = None
    name: str | None = None
    number: int | None = None

    @classmethod
    def of(cls, model: keras.Model, output: Any = None) -> "OneOutput":
        """Returns an output by its name or index, or the only one if it is None."""
        if not isinstance(model, keras.Model):
            refuse("model", model, "a Keras model")
        if isinstance(output, bool) or not isinstance(output, str | int | None):
            refuse("output", output, "the name or index of an output, or None")
        found = getattr(model, "output", None) if _is_functional(model) else None
        if found is None:
            if isinstance(model, keras.Sequential) and output not in (None, 0, -1):
                refuse("output", output, "None: the model has one output")
            if output is None or isinstance(model, keras.Sequential):
                return cls(model)
            return cls(_Part(model, output), output, str(output))
        if isinstance(found, keras.KerasTensor):
            if output not in (None, 0, -1, *model.output_names):
                refuse("output", output, "None: the model has one output")
            return cls(model)
        # Where each name or index is. An index has no meaning in a dict.
        if isinstance(found, dict):
            number, names = None, list(found)
            places: dict[Any, Any] = {name: name for name in names}
        else:
            number, names = len(found), [_layer_name(each) for each in model.outputs]
            places = {i: i % number for i in range(-number, number)}
            if len(names) == len(set(names)) == number:
                places |= {name: i for i, name in enumerate(names)}
            else:
                names = [str(i) for i in range(number)]
        if output is None and len(found) == 1:
            output = next(iter(places))
        if output not in places:
            refuse("output", output, _listed(found, [*places]))
        key = places[output]
        if not isinstance(found[key], keras.KerasTensor):
            refuse("output", output, "an output that is one tensor")
        part = keras.Model(model.input, found[key], name=model.name)
        name = key if number is None else names[key]
        return cls(part, key, name, number)

    def part(self, argument: str, value: Any) -> Any:
        """Returns the labels or weights of this output, which may come for it alone, or
        for all outputs in a dict or list, as Keras takes them.
        """
        if self.key is None or value is None:
            return value
        if isinstance(value, dict):
            if self.name not in value:
                refuse(argument, list(value), f"a dict with the key {self.name!r}")
            return value[self.name]
        if are_several(value):
            if isinstance(self.key, str) or self.number not in (None, len(value)):
                allowed = f"given for output {self.name!r} alone, or for all outputs"
                refuse(argument, f"{len(value)} arrays", allowed)
            return value[self.key]
        return value


def _layer_name(tensor: Any) -> str:
    """Returns the name of the layer that computes a tensor; of a calibration,
    that of the layer before it.
    """
    layer, node, _ = tensor._keras_history
    if type(layer).__name__ == "CalibrationLayer":
        return _layer_name(layer._inbound_nodes[node].input_tensors[0])
    return str(layer.name)


def are_several(value: Any) -> bool:
    """Returns whether labels or weights are given for several outputs."""
    return isinstance(value, dict) or (
        isinstance(value, list | tuple)
        and all(len(getattr(part, "shape", ())) > 0 for part in value)
    )


def _is_functional(model: keras.Model) -> bool:
    return bool(getattr(model, "inputs", None)) and not isinstance(
        model, keras.Sequential
    )


def _listed(outputs: Any, places: Any = None) -> str:
    """Returns in words which outputs there are, by name or index."""
    if not isinstance(outputs, dict | list | tuple):
        return "None: the model has one output"
    if places is None:
        places = outputs if isinstance(outputs, dict) else range(len(outputs))
    listed = [repr(place) for place in places if isinstance(place, str) or place >= 0]
    return f"one of {', '.join(listed)}: the model has several outputs"


def refuse_several(outputs: Any) -> None:
    """Refuses what a model returns, if that is not one output."""
    refuse("output", None, _listed(outputs))


def map_output(
    model: keras.Model, layer: keras.layers.Layer, output: OneOutput
) -> keras.Model:
    """Returns the model with an output that goes through a layer; other outputs stay as
    they are.
    """
    if output.key is None:
        return append_layer(model, layer)
    check_extensible(output.model)
    found, key = model.output, output.key
    outputs = dict(found) if isinstance(found, dict) else list(found)
    outputs[key] = layer(found[key])
    name = f"{layer.name}_of_{model.name}"
    return KerasSelcalModel(model.input, outputs, name=name)
