"""Weight and gradient of a loss as functions of p, the true class's probability."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal import losses as library
from keras_selcal._arrays import Array, Tensor, to_numpy
from keras_selcal._backend.ops import gradient
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import (
    check_choice,
    check_count,
    check_number,
    refuse,
)
from keras_selcal.losses import ReweightedLoss
from keras_selcal.losses.au_loss import drag

__all__ = ["LossCurve", "SampleGradients", "drag", "loss_curve", "sample_gradients"]

_P = np.arange(1, 256) / 256
# A gradient smaller than this share of the largest one is rounding.
_ROUNDING = 1e-6
# A sample's p is clipped to this distance from 0 and 1; 1 − p is exact in float32.
_LEAST_P = 2.0**-20

# Weight of the reference batch, in which a point of the curve has weight 1: large, so
# that the points have little effect on it, and exact in float32.
_REFERENCE_MASS = 2**22
_REFERENCE_SIZE = 1024


@dataclass(frozen=True)
class LossCurve:
    """The loss of one sample as a function of p, the probability of its true class.

    Attributes:
        p: 1/256, 2/256, …, 255/256.
        weight: w(p); 1 for a loss without weights.
        loss: w(p) ℓ(p).
        gradient: ∂(w ℓ)/∂p.
        positive: the intervals (from, to) of p where the gradient is above 0, and
            training lowers p of the true class; () if there are none. Their ends are
            interpolated between the points of `p`.
    """

    p: Array
    weight: Array
    loss: Array
    gradient: Array
    positive: tuple[tuple[float, float], ...]


def loss_curve(
    loss: Any,
    num_classes: int = 10,
    *,
    y_pred: Any | None = None,
    rival: float | None = None,
) -> LossCurve:
    """Returns weight, loss and gradient of a sample as functions of p.

    Training lowers p of the true class where the gradient is positive. Inverse focal
    loss does that for γ > 1/W(1/e) ≈ 3.591 (W Lambert's function), first at
    p = W(1/e) ≈ 0.278; `AULoss` with a `weight_gradient` does it at low p, and `drag`
    measures the effect at the start of training.

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p
    ```

    with s the share of the weight's own gradient that the loss keeps: `weight_gradient`
    of `AULoss`, 0 for `AURCLoss`, 1 otherwise. The derivative is computed by
    the backend's automatic differentiation, as in training.

    The prediction at p has p for the true class; the other classes share 1 − p and move
    with it. Statistics of a whole batch (weights of AU and AURC, kernels of
    `KDECrossentropy`) are computed in a large batch with the distribution of `y_pred`,
    or with `msp` uniform on [1/k, 1].

    Args:
        loss: a loss of this library or of Keras, the name of one, or a function of
            (y_true, y_pred) that returns a value for each sample. All but the losses
            of this library and Keras's sparse ones receive one-hot labels.
        num_classes: k.
        y_pred: probabilities (..., k) that represent the batch; they determine k.
        rival: the share of 1 − p that one other class has; the rest is shared evenly.
            By default all other classes have the same share. With 1 the sample is
            misclassified where p < ½.

    Returns:
        A `LossCurve`.

    Example:
    >>> curve = loss_curve("categorical_crossentropy")
    >>> curve.p[127].item(), curve.gradient[127].round(3).item()      # −1/p
    (0.5, -2.0)
    >>> from keras_selcal import InverseFocalLoss
    >>> loss_curve(InverseFocalLoss(gamma=3.5)).positive
    ()

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, App. gradient
    """
    loss = _reweighted(loss)
    if y_pred is None:
        k = check_count("num_classes", num_classes, least=2)
        position = (np.arange(_REFERENCE_SIZE) + 0.5)[:, None] / _REFERENCE_SIZE
        confidence = 1 / k + (1 - 1 / k) * position
        reference = confidence * np.eye(k)[:1] + (1 - confidence) * _shares(k)
    else:
        reference = to_numpy(y_pred).astype("float64")
        if reference.ndim < 2 or reference.shape[-1] < 2 or reference.size == 0:
            refuse("y_pred", reference.shape, "of shape (..., k) with k ≥ 2, not empty")
        reference = reference.reshape(-1, reference.shape[-1])
        if not np.all((reference >= 0) & (reference <= 1)):
            refuse("y_pred", y_pred, "probabilities, in [0, 1]")
    if rival is not None:
        k = reference.shape[-1]
        least = 1 / (k - 1)
        allowed = f"a number from 1/(k − 1) = {least:.3g} to 1"
        rival = check_number("rival", rival, allowed, least=least, most=1)
    n, k = len(_P), reference.shape[-1]
    y_true = np.zeros(n + len(reference), "int32")
    if _takes_one_hot(loss):
        # The reference is calibrated: its labels are its probabilities.
        y_true = np.concatenate([np.eye(k)[y_true[:n]], reference])
    counts = np.ones(len(y_true))
    counts[n:] = max(2, _REFERENCE_MASS // len(reference))
    slope, weight, values = _differentiate(
        loss, y_true, _P, np.eye(k)[:1], _shares(k, rival), reference, counts
    )
    rounding = _ROUNDING * np.abs(slope).max()
    positive = _positive(np.where(np.abs(slope) > rounding, slope, 0.0))
    return LossCurve(_P.copy(), weight, values, slope, positive)


class SampleGradients(NamedTuple):
    """Weights and gradients of single samples, (n,) each.

    Attributes:
        p: probability of the true class, or of the predicted one.
        weight: w; 1 for a loss without weights.
        gradient: ∂(w ℓ)/∂p.
    """

    p: Array
    weight: Array
    gradient: Array


def sample_gradients(
    loss: Any,
    y_true: Any,
    y_pred: Any,
    *,
    from_logits: bool = False,
    of: str = "label",
) -> SampleGradients:
    """Returns the gradient of a loss with respect to one probability of each sample.

    `loss_curve` describes any sample; this function describes the given samples, with
    the weights that they have in one batch of all of them. As p changes, the other
    classes keep their proportions. The gradient is n ∂L/∂p of the batch's mean loss L:
    if samples interact (`KDECrossentropy`, `AULoss` with `through="cdf"`), it includes
    the effect of p on the others. p is clipped to [1e-6, 1 − 1e-6].

    With `of="prediction"`, p is the confidence `msp`, and a positive mean gradient
    means that training lowers the confidence of the batch as a whole.

    Args:
        loss: as in `loss_curve`.
        y_true: class indices (...) or (..., 1).
        y_pred: probabilities or logits, (..., k), or (..., 1) for one sigmoid unit.
        from_logits: whether `y_pred` holds logits.
        of: the class that p belongs to: `"label"`, the true one, or `"prediction"`, the
            most probable one.

    Returns:
        A `SampleGradients`.

    Example:
    >>> import numpy as np
    >>> found = sample_gradients(
    ...     "categorical_crossentropy", [0, 1], np.array([[0.5, 0.5], [0.75, 0.25]])
    ... )
    >>> found.gradient.round(2).tolist()                              # −1/p
    [-2.0, -4.0]

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. gradients_over_epochs
    """
    loss = _reweighted(loss)
    check_choice("of", of, ("label", "prediction"))
    samples = Samples.given(y_true, y_pred, from_logits=from_logits)
    if not samples.sparse:
        refuse("y_true", np.shape(y_true), "class indices")
    predictions = samples.y_pred.astype("float64")
    if from_logits:
        predictions = np.exp(predictions - predictions.max(-1, keepdims=True))
        predictions /= predictions.sum(-1, keepdims=True)
    if np.isnan(predictions).any():
        refuse("y_pred", y_pred, "free of NaN")
    n, k = predictions.shape
    labels = samples.labels.astype("int32")
    classes = labels if of == "label" else predictions.argmax(-1)
    of_class = np.eye(k)[classes]
    others = np.where(of_class, 0.0, predictions)
    mass = others.sum(-1, keepdims=True)
    others = np.where(mass > 0, others / np.where(mass > 0, mass, 1), 1 / (k - 1))
    others = np.where(of_class, 0.0, others)
    p = predictions[np.arange(n), classes]
    slope, weight, _ = _differentiate(
        loss,
        np.eye(k)[labels] if _takes_one_hot(loss) else labels,
        np.clip(p, _LEAST_P, 1 - _LEAST_P),
        of_class,
        others,
    )
    return SampleGradients(p, weight, slope)


def _differentiate(
    loss: ReweightedLoss,
    y_true: Array,
    p: Array,
    of_class: Array,
    others: Array,
    reference: Array | None = None,
    counts: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Returns ∂(w ℓ)/∂p, w and w ℓ of predictions that have p at one class.

    Args:
        loss: the loss.
        y_true: labels of the predictions and the reference.
        p: probabilities of that class, (n,).
        of_class: that class, one-hot, (n, k) or (1, k).
        others: the shares of 1 − p of the other classes, (n, k) or (1, k).
        reference: further predictions of the batch.
        counts: weights of the predictions and the reference.
    """
    n = len(p)
    of_class, others = (ops.cast(x, "float32") for x in (of_class, others))
    weight = None if counts is None else ops.cast(counts, "float32")

    def total(p: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        column = ops.expand_dims(p, -1)
        y_pred = column * of_class + (1.0 - column) * others
        if reference is not None:
            y_pred = ops.concatenate([y_pred, ops.cast(reference, "float32")])
        batch = Batch.of(y_true, y_pred, Outputs(), weight)
        values = loss.sample_losses(batch)[:n]
        weights = ops.reshape(loss.weights(batch), (-1,))[:n]
        return ops.sum(values), (weights, values)

    slope, (weights, values) = gradient(total, ops.cast(p, "float32"))
    slope, weights, values = (
        to_numpy(x).astype("float64") for x in (slope, weights, values)
    )
    # As in `ReweightedLoss.sample_losses`.
    return slope, 1 + loss.strength * (weights - 1), values


class _Unweighted(ReweightedLoss):
    """Any loss, with weights of 1."""

    def weights(self, batch: Batch) -> Tensor:
        return ops.ones_like(batch.y_pred[:, 0])


def _reweighted(loss: Any) -> ReweightedLoss:
    allowed = "a loss, its name, or a function of a value for each sample"
    if isinstance(loss, str):
        loss = library.get(loss)
    if isinstance(loss, ReweightedLoss):
        return loss
    if not callable(loss):
        refuse("loss", loss, allowed)
    return _Unweighted(loss)


def _shares(k: int, rival: float | None = None) -> Array:
    """Returns the shares of 1 − p that each class has, (1, k); the first has none."""
    share = np.zeros((1, k))
    share[0, 1] = 1 / (k - 1) if rival is None else rival
    share[0, 2:] = (1 - share[0, 1]) / max(k - 2, 1)
    return share


def _takes_one_hot(loss: ReweightedLoss) -> bool:
    """Returns whether a loss other than this library's receives one-hot labels."""
    if not isinstance(loss, _Unweighted):
        return False
    return not (
        isinstance(loss.base_loss, keras.losses.SparseCategoricalCrossentropy)
        or loss.base_loss is keras.losses.sparse_categorical_crossentropy
    )


def _positive(gradient: Array) -> tuple[tuple[float, float], ...]:
    """Returns the intervals of p where the gradient is above 0."""
    above = np.concatenate([[False], gradient > 0, [False]])
    starts = np.flatnonzero(~above[:-1] & above[1:]).tolist()
    ends = (np.flatnonzero(above[:-1] & ~above[1:]) - 1).tolist()

    def crossing(inside: int, outside: int) -> float:
        if not 0 <= outside < len(gradient):
            return float(_P[inside])
        high, low = gradient[inside], gradient[outside]
        return float(_P[inside] + (_P[outside] - _P[inside]) * high / (high - low))

    return tuple(
        (crossing(start, start - 1), crossing(end, end + 1))
        for start, end in zip(starts, ends, strict=True)
    )
