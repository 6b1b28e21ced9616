"""Layers that combine the predictions of several members in a model."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._arrays import Array, Tensor
from keras_selcal._formulas.functions import softmax
from keras_selcal._saving import serializable
from keras_selcal._validation import check_count, refuse
from keras_selcal.stacks.arrays import checked, columns, combined


@serializable
class Combine(keras.layers.Layer):
    """Combines the predictions of several members, as `combine` does, in a model.

    The inputs are a list of s predictions (..., k). The output is logits (..., k), or
    two columns for one sigmoid unit (..., 1): their softmax is the mean probability,
    and the largest is a score of the stack.
    `SelectiveClassifier(model, csf="max_logit")` abstains by that score. Members may be
    models, one model for augmented inputs, or `MCDropout`.

    Args:
        csf: `"neg_mutual_information"`, `"agreement"`, or a score of probabilities, as
            in `scores`.
        from_logits: whether the predictions are logits.
        **kwargs: arguments of `keras.layers.Layer`.

    Example:
    >>> import keras
    >>> from keras_selcal import SelectiveClassifier
    >>> members = [
    ...     keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    ...     for _ in range(5)
    ... ]
    >>> x = keras.Input((4,))
    >>> z = Combine(from_logits=True)([member(x) for member in members])
    >>> classifier = SelectiveClassifier(keras.Model(x, z), csf="max_logit")
    """

    def __init__(
        self,
        csf: Any = "neg_mutual_information",
        *,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        # Mixed precision must not round the predictions again.
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.csf = checked(csf)
        self.from_logits = bool(from_logits)

    def call(self, inputs: Any) -> Tensor:
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            refuse("inputs", inputs, "a list of two or more predictions")
        stack = ops.stack([ops.cast(x, "float32") for x in inputs])
        p = columns(stack, self.from_logits, ops)
        return combined(softmax(p, ops) if self.from_logits else p, self.csf, ops)

    def get_config(self) -> dict[str, Any]:
        csf = self.csf if isinstance(self.csf, str) else self.csf.serialize()
        return {**super().get_config(), "csf": csf, "from_logits": self.from_logits}


@contextmanager
def _moving_averages(model: keras.layers.Layer) -> Iterator[None]:
    """Lets batch normalization use its moving averages in training, and keep them."""
    kind = keras.layers.BatchNormalization
    layers = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, kind) and layer.trainable
    ]
    for layer in layers:
        layer.trainable = False
    try:
        yield
    finally:
        for layer in layers:
            layer.trainable = True


@serializable
class MCDropout(keras.layers.Wrapper):
    """A model whose dropout stays on in predictions.

    Keras turns dropout off in `predict`, also where a model was called with
    `training=True` when it was built. Batch normalization keeps its moving averages;
    other random layers, such as noise, are on as well.

    Args:
        layer: a model or layer.
        **kwargs: arguments of `keras.layers.Layer`.

    Example:
    >>> import keras
    >>> network = keras.Sequential(
    ...     [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    ... )
    >>> x, noisy = keras.Input((3,)), MCDropout(network)
    >>> z = Combine(from_logits=True)([noisy(x) for _ in range(10)])
    >>> model = keras.Model(x, z)

    References:
    - Gal & Ghahramani, [Dropout as a Bayesian
      Approximation](https://arxiv.org/abs/1506.02142)
    """

    def call(self, inputs: Any) -> Tensor:
        with _moving_averages(self.layer):
            return self.layer(inputs, training=True)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.layer.compute_output_shape(input_shape)


def mc_dropout(
    model: keras.Model, x: Any, passes: int = 20, *, batch_size: int = 32
) -> Array:
    """Predicts a stack with dropout on, (passes, n, k).

    As `MCDropout`, for arrays. Warns if all passes give the same predictions.

    Args:
        model: a Keras model.
        x: an array of inputs, or the structure of arrays that the model takes.
        passes: number of predictions of each input.
        batch_size: of the predictions.

    Example:
    >>> import numpy as np
    >>> model = keras.Sequential(
    ...     [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    ... )
    >>> mc_dropout(model, np.ones((4, 3)), passes=5).shape
    (5, 4, 2)

    References:
    - Gal & Ghahramani, [Dropout as a Bayesian
      Approximation](https://arxiv.org/abs/1506.02142)
    """
    passes, size = check_count("passes", passes), check_count("batch_size", batch_size)
    starts = range(0, len(keras.tree.flatten(x)[0]), size)
    if not starts:
        refuse("x", "no samples", "arrays of at least one sample")

    def drawn(start: int) -> Array:
        batch = keras.tree.map_structure(lambda part: part[start : start + size], x)
        return ops.convert_to_numpy(model(batch, training=True))

    with _moving_averages(model):
        stack = np.stack(
            [np.concatenate([drawn(i) for i in starts]) for _ in range(passes)]
        )
    if passes > 1 and (stack == stack[0]).all():
        warnings.warn(
            "All passes give the same predictions: the model has no dropout.",
            stacklevel=2,
        )
    return stack
