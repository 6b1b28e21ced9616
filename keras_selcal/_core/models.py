"""What calibrators, selective classifiers and callbacks do with a Keras model."""

import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import refuse


def gives_logits(model: keras.Model, from_logits: bool | None = None) -> bool:
    """Returns whether `model` answers in logits, as told or else as it is built.

    It is built to give probabilities where its last operation is a softmax or one of
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
    return not (
        type(last).__name__ in ("Softmax", "CalibrationLayer")
        or getattr(last, "activation", None) is keras.activations.softmax
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


def check_outputs(outputs: np.ndarray, from_logits: bool) -> None:
    """Checks that a model's outputs (..., k) are what they are taken for."""
    # Half precision leaves sums that are 1 to within a percent.
    sums = outputs.sum(axis=-1, dtype="float64")
    distributions = bool((outputs >= 0).all()) and np.allclose(sums, 1, atol=0.02)
    if distributions and from_logits:
        warnings.warn(
            "The model's outputs are taken for logits, but each row sums to one. If "
            "they are probabilities, pass `from_logits=False`.",
            stacklevel=3,
        )
    if not distributions and not from_logits:
        refuse(
            "from_logits",
            from_logits,
            "True for this model: its outputs are not rows that sum to one",
        )


def is_array(x: Any) -> bool:
    """Returns whether `x` is an array, a tensor, or a structure of them."""
    return all(
        hasattr(leaf, "__array__") and hasattr(leaf, "shape")
        for leaf in keras.tree.flatten(x)
    )


def predict_with_labels(
    model: keras.Model,
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    verbose: Any = "auto",
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the model's outputs and the labels, in the same order.

    A data set is read once, batch by batch: one that shuffles gives other batches the
    second time.

    Args:
        model: a Keras model of one output.
        x: arrays, or a data set of (x, y) batches: `tf.data.Dataset`,
            `keras.utils.PyDataset`, PyTorch's `DataLoader`, any iterable.
        y: labels, where `x` is arrays.
        batch_size: where `x` is arrays.
        verbose: as in `keras.Model.predict`.
    """
    if is_array(x):
        if y is None:
            refuse("y", y, "the labels of `x`, where `x` is arrays")
        outputs = model.predict(x, batch_size=batch_size, verbose=verbose)
        return outputs, to_numpy(y)
    if y is not None:
        refuse("y", y, "left out where `x` is a data set, which brings its labels")
    steps = len(x) if hasattr(x, "__len__") else None
    progress = keras.utils.Progbar(steps, verbose=1 if verbose == "auto" else verbose)
    collected, labels = [], []
    for batch in batches(x):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            refuse("x", type(batch), "a data set of (x, y) batches, without weights")
        collected.append(model.predict_on_batch(batch[0]))
        labels.append(to_numpy(batch[1]))
        progress.update(len(collected))
    if not collected:
        refuse("x", x, "a data set of at least one batch")
    progress.update(len(collected), finalize=True)
    return np.concatenate(collected), np.concatenate(labels)


def batches(dataset: Any) -> Iterable[Any]:
    """Returns the batches of a data set, to be walked through once."""
    # A PyDataset ends by its length, not by an IndexError.
    if isinstance(dataset, keras.utils.PyDataset):
        return (dataset[i] for i in range(len(dataset)))
    return dataset
