"""Several predictions of one input: deep ensembles, MC dropout, augmented inputs.

A stack has shape (s, n, k): predictions of s members for n samples. Its mean
probability is a prediction like any other; `scores` adds two scores that only a stack
has.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csfs
from keras_selcal._core.samples import Array, to_numpy
from keras_selcal._core.validation import check_count, refuse

_STACKED = ("neg_mutual_information", "agreement")


def _members(stack: Any, from_logits: bool) -> Array:
    """Returns the probabilities of a stack, (s, n, k), in float64."""
    p = to_numpy(stack).astype("float64")
    if p.ndim != 3 or 0 in p.shape or p.shape[-1] < 2:
        refuse("stack", p.shape, "of shape (s, n, k) with k of at least 2")
    if from_logits:
        p = np.exp(p - p.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
    return p


def mean_probabilities(stack: Any, *, from_logits: bool = False) -> Array:
    """Returns the mean probabilities of a stack, (n, k), for every other function.

    Args:
        stack: predictions (s, n, k).
        from_logits: whether they are logits.

    Example:
    >>> mean_probabilities([[[0.9, 0.1]], [[0.5, 0.5]]]).round(2).tolist()
    [[0.7, 0.3]]
    """
    return np.asarray(_members(stack, from_logits).mean(axis=0))


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
        stack: predictions (s, n, k).
        csf: `"neg_mutual_information"`, `"agreement"`, or a score of probabilities as
            `keras_selcal.csf.get` takes it.
        from_logits: whether the stack holds logits.

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
    p = _members(stack, from_logits)
    mean = p.mean(axis=0)
    if isinstance(csf, str) and csf in _STACKED:
        if csf == "agreement":
            return np.asarray((p.argmax(axis=-1) == mean.argmax(axis=-1)).mean(axis=0))
        of_mean, of_members = (csfs.neg_entropy.scores(x, np) for x in (mean, p))
        # Rounding must not make the information negative.
        return np.minimum(of_mean - of_members.mean(axis=0), 0.0)
    return np.asarray(csfs.get(csf, from_logits=False).scores(mean, np))


def mc_dropout(
    model: keras.Model, x: Any, passes: int = 20, *, batch_size: int = 32
) -> Array:
    """Returns a stack of predictions with dropout on, (passes, n, k).

    The model runs as in training, except that batch normalization keeps its moving
    averages. Other random layers, such as noise, are on as well.

    Args:
        model: a Keras model.
        x: an array of inputs.
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
    passes = check_count("passes", passes)
    kind = keras.layers.BatchNormalization
    # Frozen, such a layer uses its moving averages in training, and keeps them.
    thawed = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, kind) and layer.trainable
    ]
    for layer in thawed:
        layer.trainable = False
    try:
        parts = [x[i : i + batch_size] for i in range(0, len(x), batch_size)]
        return np.stack(
            [
                np.concatenate(
                    [ops.convert_to_numpy(model(part, training=True)) for part in parts]
                )
                for _ in range(passes)
            ]
        )
    finally:
        for layer in thawed:
            layer.trainable = True
