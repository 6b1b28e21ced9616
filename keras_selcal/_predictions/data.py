"""Labelled data in every form that Keras takes, and a model's outputs for it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Array, to_numpy
from keras_selcal._backend.ops import mask_of
from keras_selcal._predictions.models import OneOutput, are_several, refuse_several
from keras_selcal._validation import check_count, check_unmasked, refuse

# The default of `keras.Model.predict`.
_BATCH_SIZE = 32


def is_array(x: Any) -> bool:
    """Returns whether `x` is an array, a tensor, or a structure of them."""
    return all(
        hasattr(leaf, "__array__") and hasattr(leaf, "shape")
        for leaf in keras.tree.flatten(x)
    )


def _input(leaf: Any) -> Any:
    """Returns an input as a tensor or an array."""
    if ops.is_tensor(leaf):
        return leaf
    check_unmasked("x", leaf)
    return np.asarray(leaf)


def _are_batches(x: Any) -> bool:
    """Returns whether a list holds batches, not an array for each input."""
    return isinstance(x, list) and all(isinstance(part, tuple) for part in x)


class Forward:
    """Computes a model's outputs and their Keras mask batch by batch.

    Training is not affected: weights, metrics, and the random state of layers stay as
    they are. (`keras.Model.predict` drops masks, and it would draw from PyTorch's
    global generator, which shuffles the training data.)

    Args:
        model: a Keras model with one output.
        steps: the number of batches, if it is known.
        verbose: as in `keras.Model.predict`.
    """

    def __init__(
        self, model: keras.Model, steps: int | None = None, verbose: Any = 0
    ) -> None:
        self._model = model
        self._bar = keras.utils.Progbar(
            steps, verbose=int(verbose == "auto" or verbose)
        )
        self._masked = True
        self._done = 0
        # `wrap` and `as_model` know nothing of a `predict_step` of the model's own.
        self._compiled = type(model).predict_step is keras.Model.predict_step

    def __enter__(self) -> "Forward":
        if hasattr(self._model, "eval"):
            # A module of PyTorch.
            self._model.eval()
        # Keras counts the states of random generators as variables, but not as weights.
        weights = {id(weight) for weight in self._model.weights}
        self._states = [
            (variable, np.array(ops.convert_to_numpy(variable)))
            for variable in self._model.non_trainable_variables
            if id(variable) not in weights
        ]
        return self

    def __call__(self, x: Any) -> tuple[Array, Array | None]:
        x = keras.tree.map_structure(_input, x)
        mask = None
        # A model's outputs always have a mask or never: the first batch decides.
        if self._masked or not self._compiled:
            output = self._model(x, training=False)
            mask = mask_of(output) if ops.is_tensor(output) else None
            mask = None if mask is None else ops.convert_to_numpy(mask)
            self._masked = mask is not None
            output = keras.tree.map_structure(ops.convert_to_numpy, output)
        else:
            output = self._model.predict_on_batch(x)
        if not isinstance(output, np.ndarray):
            refuse_several(output)
        self._done += 1
        self._bar.update(self._done)
        return output, mask

    def __exit__(self, *error: Any) -> None:
        for state, value in self._states:
            state.assign(value)
        if self._done:
            self._bar.update(self._done, finalize=True)


class LabelledData:
    """Labelled data in every form that Keras takes.

    Args:
        x: arrays, or a data set of (x, y) or (x, y, sample_weight) batches:
            `tf.data.Dataset`, `keras.utils.PyDataset`, PyTorch's `DataLoader`, any
            iterable.
        y: labels, if `x` is arrays.
        sample_weight: weights, if `x` is arrays, or None.
        batch_size: batch size for arrays. Defaults to 32.
        steps: how many batches are read. By default all are.
        name: the caller's name for `x`, which errors use.
        several: whether labels and weights may be given for several outputs.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        name: str = "x",
        several: bool = False,
    ) -> None:
        size = _BATCH_SIZE if batch_size is None else batch_size
        self.batch_size = check_count("batch_size", size)
        self.steps = None if steps is None else check_count("steps", steps)
        if y is not None and isinstance(x, list) and not is_array(x):
            refuse(name, f"a list of {type(x[0]).__name__}", "arrays or a data set")
        self._several = several
        y, sample_weight = (
            np.asarray(part)
            if isinstance(part, list) and not (several and are_several(part))
            else part
            for part in (y, sample_weight)
        )
        self.arrays = is_array(x) and not (y is None and _are_batches(x))
        self._name = name
        if not self.arrays:
            for argument, part in (("y", y), ("sample_weight", sample_weight)):
                if part is not None:
                    refuse(argument, part, "left out if `x` is a data set with its own")
            if not isinstance(x, keras.utils.PyDataset | Iterable):
                refuse(name, x, "arrays or a data set of (x, y) batches")
            self._data: Any = x
            return
        if y is None:
            refuse("y", y, "the labels of `x`, if `x` is arrays")
        parts = (x, y) if sample_weight is None else (x, y, sample_weight)
        for argument, part in zip(("y", "sample_weight"), parts[1:], strict=False):
            if not self._is_allowed(part):
                refuse(argument, type(part), "one array")
        lengths = {int(leaf.shape[0]) for leaf in keras.tree.flatten(parts)}
        if len(lengths) != 1:
            refuse(name, sorted(lengths), "arrays of one length")
        if lengths == {0}:
            refuse(name, "no samples", "arrays of at least one sample")
        self._data = _Arrays(parts, lengths.pop(), self.batch_size)

    @classmethod
    def for_validation(
        cls,
        data: Any,
        batch_size: int | None = None,
        steps: int | None = None,
        *,
        several: bool = False,
    ) -> "LabelledData":
        """Builds the data from what `keras.Model.fit` takes as `validation_data`.

        A data set must allow more than one iteration.
        """
        arrays = isinstance(data, tuple | list)
        if arrays:
            allowed = len(data) in (2, 3) and is_array(data[0])
            allowed = allowed and (_is_one_array(data[1]) or several)
        else:
            allowed = isinstance(data, keras.utils.PyDataset | Iterable) and not (
                isinstance(data, Mapping | Iterator) or is_array(data)
            )
        if not allowed:
            refuse(
                "validation_data",
                data,
                "(x, y) or (x, y, sample_weight) of arrays, or a data set of such "
                "batches that can be iterated over more than once: a PyDataset, a "
                "tf.data.Dataset, a DataLoader",
            )
        return cls(
            *(data if arrays else (data,)),
            batch_size=batch_size,
            steps=steps,
            name="validation_data",
            several=several,
        )

    def _is_allowed(self, part: Any) -> bool:
        return _is_one_array(part) or (self._several and is_array(part))

    def _read(self, of: OneOutput) -> Iterator[tuple[Any, Array, Array | None]]:
        """Yields the batches with the labels and weights of one output."""
        for batch in itertools.islice(_batches(self._data), self.steps):
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                allowed = "of (x, y) or (x, y, sample_weight) batches"
                refuse(self._name, type(batch), allowed)
            x, y, weight = (*batch, None)[:3]
            y, weight = of.part("y", y), of.part("sample_weight", weight)
            if not _is_one_array(y):
                refuse(self._name, y, "of one array of labels in each batch")
            yield x, to_numpy(y), None if weight is None else to_numpy(weight)

    def predict(
        self,
        output: OneOutput,
        *,
        verbose: Any = 0,
        first: bool = False,
        axis: int = -1,
    ) -> tuple[Array, Array, Array | None]:
        """Returns an output of a model for all of the data, or for the first batch,
        with labels and weights, in the order of the data.

        The weights are the product of sample weights and the outputs' Keras mask, or
        None where every sample counts once. A data set is read once, because one that
        shuffles returns other batches the next time. `axis` is the axis of the classes
        in the outputs.
        """
        steps = 1 if first else self.steps
        if steps is None and hasattr(self._data, "__len__"):
            steps = len(self._data)
        found: list[tuple[Array, Array, Array | None]] = []
        with Forward(output.model, steps, verbose) as forward:
            for x, y, weight in itertools.islice(
                self._read(output), 1 if first else None
            ):
                y_pred, mask = forward(x)
                found.append((y_pred, y, _product(weight, mask)))
        if not found:
            refuse(self._name, self._data, "of at least one batch")
        return self._joined(found, axis)

    def _joined(
        self, found: list[tuple[Array, Array, Array | None]], axis: int
    ) -> tuple[Array, Array, Array | None]:
        """Returns batches as one; shorter ones are padded with samples of weight 0."""
        outputs, labels, weights = zip(*found, strict=True)
        weights = _without_padding(outputs, weights, axis)
        weighted = [weight for weight in weights if weight is not None]
        if len(weighted) not in (0, len(weights)):
            refuse(self._name, self._data, "of weights in all batches or in none")
        return (
            _concatenated(outputs),
            _concatenated(labels),
            _concatenated(weighted) if weighted else None,
        )


def predict_masked(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: Any = "auto",
    axis: int = -1,
    name: str = "x",
) -> tuple[Array, Array | None]:
    """Returns a model's outputs and their mask, for what Keras's `predict` takes.

    Where batches differ in size, shorter ones are padded with NaN, which is masked.
    `axis` is the axis of the classes in the outputs; errors use the `name` of `x`.
    """
    if is_array(x) and not _are_batches(x):
        n = int(keras.tree.flatten(x)[0].shape[0])
        size = _BATCH_SIZE if batch_size is None else batch_size
        size = check_count("batch_size", size)
        if n == 0:
            refuse(name, "no samples", "arrays of at least one sample")
        x = _Arrays((x,), n, size)
    steps = len(x) if hasattr(x, "__len__") else None
    with Forward(model, steps, verbose) as forward:
        found = [
            forward(keras.utils.unpack_x_y_sample_weight(batch)[0])
            for batch in _batches(x)
        ]
    if not found:
        refuse(name, x, "of at least one batch")
    outputs, masks = zip(*found, strict=True)
    masks = _without_padding(outputs, masks, axis)
    mask = None if masks[0] is None else _concatenated(masks).astype(bool)
    return _concatenated(outputs, np.nan), mask


def find_labels(data: Any) -> tuple[bool, Any]:
    """Returns whether `data` is a data set with labels, and it with no batch read."""
    if is_array(data) and not _are_batches(data):
        return False, data
    first = next(iter(_batches(data)), None)
    if isinstance(data, Iterator):
        data = itertools.chain([] if first is None else [first], data)
    return keras.utils.unpack_x_y_sample_weight(first)[1] is not None, data


def check_order(data: Any, **arrays: Any) -> None:
    """Refuses arrays beside a data set that shuffles: they have another order."""
    for argument, value in arrays.items():
        if value is not None and not isinstance(value, str) and _shuffles(data):
            allowed = "left out beside a data set that shuffles its samples"
            refuse(argument, type(value), allowed)


def _shuffles(data: Any) -> bool:
    """Returns whether a `DataLoader` or a `tf.data.Dataset` is known to shuffle."""
    if type(getattr(data, "sampler", None)).__name__ == "RandomSampler":
        return True
    if type(data).__name__.lstrip("_") == "ShuffleDataset":
        return True
    return hasattr(data, "_inputs") and any(map(_shuffles, data._inputs()))


def _batches(data: Any) -> Iterable[Any]:
    # The end of a PyDataset is its length; it need not raise an IndexError there.
    if isinstance(data, keras.utils.PyDataset):
        return (data[i] for i in range(len(data)))
    return data


class _Arrays:
    """Arrays, cut into batches."""

    def __init__(self, parts: tuple[Any, ...], n: int, batch_size: int) -> None:
        # With an index of floats, a slice of pandas is one of labels.
        self._parts = keras.tree.map_structure(
            lambda part: np.asarray(part) if hasattr(part, "iloc") else part, parts
        )
        self._starts = range(0, n, batch_size)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Any]:
        for start in self._starts:
            rows = slice(start, start + self._batch_size)
            yield keras.tree.map_structure(lambda part, r=rows: part[r], self._parts)


def _is_one_array(part: Any) -> bool:
    return not isinstance(part, tuple | list | dict) and is_array(part)


def _product(*factors: Any) -> Array | None:
    """Returns the product of weights and masks; one of fewer dimensions belongs to
    the leading ones.
    """
    arrays = [
        to_numpy(factor).astype("float32") for factor in factors if factor is not None
    ]
    if not arrays:
        return None
    rank = max(array.ndim for array in arrays)
    result = np.ones((), "float32")
    for array in arrays:
        result = result * array.reshape(array.shape + (1,) * (rank - array.ndim))
    return result


def _without_padding(outputs: Any, weights: Any, axis: int) -> Any:
    """Returns the weights or masks of batches, one for every sample if batches differ
    in size: joined by `_concatenated`, they are then 0 for padding.
    """
    if len({batch.shape[1:] for batch in outputs}) == 1:
        return weights
    numbers = sorted({batch.shape[axis] for batch in outputs})
    if len(numbers) > 1:
        allowed = "one whose outputs have the same number of classes in all batches"
        refuse("model", f"outputs of {numbers} classes", allowed)
    return [
        _product(weight, np.ones(np.delete(batch.shape, axis)))
        for batch, weight in zip(outputs, weights, strict=True)
    ]


def _concatenated(parts: Any, fill: float = 0) -> Array:
    """Returns arrays joined in the first axis, padded with `fill` to one size."""
    if len({part.ndim for part in parts}) == 1:
        sizes = np.max([part.shape[1:] for part in parts], axis=0, initial=0)
        parts = [
            np.pad(part, [(0, 0), *((0, m) for m in missing)], constant_values=fill)
            if missing.any()
            else part
            for part in parts
            for missing in [sizes - part.shape[1:]]
        ]
    return np.concatenate(parts)
