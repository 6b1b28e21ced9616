"""Validation data in every form that `fit` takes, and a model's answers to it."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal._core.models import batches, check_outputs, gives_logits, is_array
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import Array, to_numpy, to_weight
from keras_selcal._core.validation import check_count, refuse

# That of `keras.Model.predict`.
_BATCH_SIZE = 32

_ALLOWED = (
    "(x, y) or (x, y, sample_weight) of arrays, or a data set of such batches that "
    "can be walked through again: a PyDataset, a tf.data.Dataset, a DataLoader"
)


class Predictions(NamedTuple):
    """A model's outputs for validation data, with what the metrics need beside them.

    Attributes:
        y_true: labels, as the data have them.
        y_pred: probabilities or logits, (..., k).
        from_logits: which of the two.
        sample_weight: as the data have them, or None.
    """

    y_true: Array
    y_pred: Array
    from_logits: bool
    sample_weight: Array | None


class ValidationData:
    """Validation data that a callback walks through again and again.

    Args:
        data: as `keras.Model.fit` takes its `validation_data`, but a data set must
            start anew each time it is walked through.
        batch_size: of arrays; 32 by default.
        steps: how many batches are read; all by default.
    """

    def __init__(
        self, data: Any, batch_size: int | None = None, steps: int | None = None
    ) -> None:
        size = _BATCH_SIZE if batch_size is None else batch_size
        self.batch_size = check_count("batch_size", size)
        self.steps = None if steps is None else check_count("steps", steps)
        if isinstance(data, tuple | list):
            data = _Arrays(data, self.batch_size)
        elif (
            isinstance(data, Mapping | Iterator)
            or is_array(data)
            or not (isinstance(data, keras.utils.PyDataset | Iterable))
        ):
            refuse("validation_data", data, _ALLOWED)
        self._data = data

    def __iter__(self) -> Iterator[tuple[Any, Array, Array | None]]:
        for batch in itertools.islice(batches(self._data), self.steps):
            if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
                refuse("validation_data", type(batch), _ALLOWED)
            x, y, weight = (*batch, None)[:3]
            if not _is_one_array(y):
                refuse("validation_data", y, "with one array of labels a batch")
            x = keras.tree.map_structure(_own_tensor, x)
            yield x, to_numpy(y), None if weight is None else to_numpy(weight)

    def predict(
        self, model: keras.Model, from_logits: bool | None, first: bool = False
    ) -> Predictions:
        """Returns the model's outputs, checked, for all of the data or a first batch.

        Training does not notice: weights, metrics, and the random state of layers
        stay as they are. `keras.Model.predict` would draw from PyTorch's global
        generator, which shuffles the training data.
        """
        if keras.backend.backend() == "torch":
            model.eval()
        drawn_from = _seed_states(model)
        before = [np.array(ops.convert_to_numpy(state)) for state in drawn_from]
        outputs, labels, weights = [], [], []
        for x, y, weight in itertools.islice(self, 1 if first else None):
            output = model.predict_on_batch(x)
            if not isinstance(output, np.ndarray):
                refuse("model", model, "a model of one output")
            outputs.append(output)
            labels.append(y)
            weights.append(weight)
        for state, value in zip(drawn_from, before, strict=True):
            state.assign(value)
        if not outputs:
            refuse("validation_data", self._data, "of at least one batch")
        weighted = [weight for weight in weights if weight is not None]
        if len(weighted) not in (0, len(weights)):
            refuse("validation_data", self._data, "with weights in all batches or none")
        predictions = Predictions(
            np.concatenate(labels),
            np.concatenate(outputs),
            gives_logits(model, from_logits),
            np.concatenate(weighted) if weighted else None,
        )
        _check(predictions)
        return predictions


class _Arrays:
    """Arrays, cut into batches."""

    def __init__(self, data: Any, batch_size: int) -> None:
        if len(data) not in (2, 3) or not is_array(data[0]):
            refuse("validation_data", data, _ALLOWED)
        self._data = tuple(part for part in data if part is not None)
        if len(self._data) < 2 or not all(map(_is_one_array, self._data[1:])):
            refuse("validation_data", data, "with one array of labels, and of weights")
        lengths = {int(leaf.shape[0]) for leaf in keras.tree.flatten(self._data)}
        if len(lengths) != 1:
            refuse("validation_data", sorted(lengths), "arrays of one length")
        self._n = lengths.pop()
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, self._n, self._batch_size):
            rows = slice(start, start + self._batch_size)
            yield keras.tree.map_structure(lambda part, r=rows: part[r], self._data)


def _check(predictions: Predictions) -> None:
    """Checks that outputs, labels and weights belong together."""
    y_true, y_pred, from_logits, sample_weight = predictions
    outputs = Outputs(from_logits=bool(from_logits))
    outputs.check_shapes(y_true.shape, y_pred.shape)
    to_weight(sample_weight, outputs.sample_shape(y_pred.shape))
    rows = y_pred.reshape(-1, y_pred.shape[-1])
    # A network that diverged shows so in its metrics.
    finite = rows[np.isfinite(rows).all(axis=-1)]
    if len(finite):
        check_outputs(finite, from_logits)


def _is_one_array(part: Any) -> bool:
    return not isinstance(part, tuple | list | dict) and is_array(part)


def _own_tensor(x: Any) -> Any:
    """Returns a tensor of this backend as it is, and all else as a NumPy array."""
    return x if ops.is_tensor(x) else np.asarray(x)


def _seed_states(model: keras.Model) -> list[Any]:
    """Returns the states of the model's random generators.

    They are what Keras counts as variables but not as weights.
    """
    weights = {id(weight) for weight in model.weights}
    return [
        variable
        for variable in model.non_trainable_variables
        if id(variable) not in weights
    ]
