"""Several predictions of one input: deep ensembles, MC dropout, augmented inputs.

A stack has shape (s, n, k): predictions of s members for n samples; of one sigmoid
unit, (s, n, 1) or (s, n). Adding a number to all logits of a sample does not change
their softmax. So a stack fits into logits (n, k): `combine` gives those of which the
softmax is the mean probability, and the largest is a score of the stack. Every part of
this library then takes it, with `from_logits=True` and `csf="max_logit"`. The layer
`Combine` does the same in a model, and `MCDropout` makes members of a model with
dropout.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, Tensor, to_numbers
from keras_selcal._formulas.functions import TINY
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import serializable
from keras_selcal._validation import (
    check_count,
    check_logits,
    check_probabilities,
    refuse,
)
from keras_selcal.csf.names import BUILT_IN

_STACKED = ("neg_mutual_information", "agreement")


def _softmax(z: Any, xp: Any) -> Any:
    p = xp.exp(z - xp.amax(z, axis=-1, keepdims=True))
    return p / xp.sum(p, axis=-1, keepdims=True)


def _columns(stack: Any, from_logits: bool, xp: Any) -> Any:
    """Returns a stack with two columns, (s, ..., 2), for one sigmoid unit."""
    stack = stack[..., None] if len(stack.shape) == 2 else stack
    return Outputs().columns(stack, from_logits, xp)


def _members(stack: Any, from_logits: bool) -> tuple[Array, Any]:
    """Returns the probabilities of a stack (s, ..., k) in float64, two columns for one
    sigmoid unit, and the shape of a member's predictions.
    """
    z = to_numbers("stack", stack).astype("float64")
    if z.ndim < 2 or 0 in z.shape:
        refuse(
            "stack", z.shape, "of shape (s, n, k), or (s, n, 1) or (s, n) of sigmoids"
        )
    shape, p = z.shape[1:], _columns(z, from_logits, np)
    rows = p.reshape(-1, p.shape[-1])
    if from_logits:
        check_logits(rows, Outputs().is_one_unit(shape), "stack")
        return _softmax(p, np), shape
    check_probabilities(rows, "stack")
    return p, shape


def _checked(csf: Any) -> Any:
    """Returns the name of a score of stacks, or a score of the mean probability."""
    if isinstance(csf, str) and csf in _STACKED:
        return csf
    unknown = isinstance(csf, str) and csf not in BUILT_IN
    score = None if unknown else csfs.get(csf)
    if score is None or score.needs == "logits":
        of_mean = (name for name, s in BUILT_IN.items() if s.needs != "logits")
        listed = ", ".join(repr(name) for name in (*_STACKED, *of_mean))
        refuse("csf", csf, f"one of {listed}, or a callable of probabilities")
    return score


def _scores(p: Any, csf: Any, xp: Any) -> Any:
    """Returns the confidence of probabilities (s, ..., k), of shape (...)."""
    mean = xp.mean(p, axis=0)
    if csf not in _STACKED:
        return csf.scores(mean, xp)
    if csf == "agreement":
        same = xp.argmax(p, axis=-1) == xp.argmax(mean, axis=-1)
        # The comparison loses NaN, the sum keeps it.
        lost = 0.0 * xp.sum(mean, axis=-1)
        return xp.mean(xp.where(same, xp.ones_like(p[..., 0]), 0.0), axis=0) + lost
    of_members = xp.mean(csfs.neg_entropy.scores(p, xp), axis=0)
    # Rounding must not make the information negative.
    return xp.minimum(csfs.neg_entropy.scores(mean, xp) - of_members, 0.0)


def _combined(p: Any, csf: Any, xp: Any) -> Any:
    """Returns ln p̄ − ln max p̄ plus the score, (..., k): the largest is the score
    without rounding, so that ties stay ties.
    """
    log_p = xp.log(xp.maximum(xp.mean(p, axis=0), TINY))
    log_p = log_p - xp.amax(log_p, axis=-1, keepdims=True)
    return log_p + _scores(p, csf, xp)[..., None]


def mean_probabilities(stack: Any, *, from_logits: bool = False) -> Array:
    """Returns the mean probabilities of a stack, (n, k), for every other function.

    Args:
        stack: predictions (s, n, k), or (s, n, 1) or (s, n) of one sigmoid unit, of
            which the mean has shape (n, 1) or (n,).
        from_logits: whether they are logits.

    Example:
    >>> mean_probabilities([[[0.9, 0.1]], [[0.5, 0.5]]]).round(2).tolist()
    [[0.7, 0.3]]
    """
    p, shape = _members(stack, from_logits)
    return np.asarray(Outputs().restored(p.mean(axis=0), np, shape))


def scores(stack: Any, csf: Any = "msp", *, from_logits: bool = False) -> Array:
    """Returns the confidence of a stack, (n,).

    Formula:

    ```
    p̄ = (1/s) Σ_m p_m
    msp, neg_entropy, …      g(p̄): the mean probability, the predictive entropy
    neg_mutual_information   −(H(p̄) − (1/s) Σ_m H(p_m)) ∈ [−ln k, 0]
    agreement                share of members that predict argmax p̄ ∈ [0, 1]
    ```

    Mutual information is the part of the entropy that is due to the members' different
    opinions. Disagreement is 1 − agreement.

    Args:
        stack: predictions (s, n, k), or (s, n, 1) or (s, n) of one sigmoid unit.
        csf: `"neg_mutual_information"`, `"agreement"`, or a score of probabilities as
            `keras_selcal.csf.get` takes it.
        from_logits: whether the stack holds logits.

    Returns:
        The scores, (n,); NaN where a prediction is NaN.

    Example:
    >>> stack = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.1, 0.9]]]
    >>> scores(stack, "agreement").tolist()
    [1.0, 0.5]

    References:
    - Lakshminarayanan et al., [Simple and Scalable Predictive Uncertainty Estimation
      using Deep Ensembles](https://arxiv.org/abs/1612.01474)
    - Houlsby et al., [Bayesian Active Learning for Classification and Preference
      Learning](https://arxiv.org/abs/1112.5745) (mutual information)
    """
    return np.asarray(_scores(_members(stack, from_logits)[0], _checked(csf), np))


def combine(
    stack: Any, csf: Any = "neg_mutual_information", *, from_logits: bool = False
) -> Array:
    """Returns logits (n, k) that hold the mean probability and a score of a stack.

    Formula:

    ```
    z = ln p̄ − ln max p̄ + g,     softmax(z) = p̄,     max z = g
    ```

    Pass them with `from_logits=True` to metrics, reports, plots and `csf.compare`, with
    `csf="max_logit"` for the score g of the stack.

    Args:
        stack: as in `scores`.
        csf: g, as in `scores`.
        from_logits: whether the stack holds logits.

    Returns:
        Logits (n, k); two columns (n, 2) for one sigmoid unit, whose one logit could
        not hold a score beside its probability.

    Example:
    >>> from keras_selcal import functional
    >>> stack = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.1, 0.9]]]
    >>> z = combine(stack, "agreement")
    >>> functional.aurc([0, 0], z, csf="max_logit", from_logits=True)  # (0 + ½)/2
    0.25
    """
    return np.asarray(_combined(_members(stack, from_logits)[0], _checked(csf), np))


@serializable
class Combine(keras.layers.Layer):
    """Combines the predictions of several members, as `combine` does, in a model.

    Its inputs are a list of s predictions (..., k); its output are logits (..., k), two
    columns for one sigmoid unit (..., 1), of which the softmax is the mean probability
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
        self.csf = _checked(csf)
        self.from_logits = bool(from_logits)

    def call(self, inputs: Any) -> Tensor:
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            refuse("inputs", inputs, "a list of two or more predictions")
        stack = ops.stack([ops.cast(x, "float32") for x in inputs])
        p = _columns(stack, self.from_logits, ops)
        return _combined(_softmax(p, ops) if self.from_logits else p, self.csf, ops)

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
    """Returns a stack of predictions with dropout on, (passes, n, k).

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
