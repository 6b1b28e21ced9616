"""Weights and gradients of the reweighted losses, against p of the true class."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_selcal import losses as library
from keras_selcal._batch import Batch
from keras_selcal._validation import check_count, refuse
from keras_selcal.functional._samples import Array, to_numpy
from keras_selcal.losses import AURCLoss, ReweightedLoss
from keras_selcal.plots import _canvas as canvas

# p, the steps around it, and 1 − p are whole multiples of a power of 2: exact in
# float32, which is all that some backends have.
_P = np.arange(1, 256) / 256
_STEP = 2.0**-12
_STEPS = (-2, -1, 0, 1, 2)
# f′(p) = Σ c_j f(p + j h)/h + O(h⁴)
_SLOPE = np.array([1 / 12, -2 / 3, 0.0, 2 / 3, -1 / 12])

# How much the reference counts, the curve's own points counting 1: large, so that they
# change next to nothing in it, and whole in float32.
_REFERENCE_MASS = 2**22
_REFERENCE_SIZE = 1024


class _Curve(NamedTuple):
    """Weight and ∂(w ℓ)/∂p of a loss at each of `_P`."""

    weight: Array
    gradient: Array


def loss_weights(
    losses: Any,
    num_classes: int = 10,
    y_pred: Any | None = None,
    normalize: bool = True,
    *,
    ax: Any = None,
) -> Any:
    """Draws the weight that a loss gives a sample, against p of its true class.

    The prediction at p has p for the true class and (1 − p)/(k − 1) for each other.
    Focal weights depend on p alone. Those of AU and AURC depend on where the sample's
    confidence stands among others: here, in a large batch distributed as `y_pred`, or
    of `msp` uniform on [1/k, 1].

    Formula:

    ```
    w(p)/mean(w),     the mean over p uniform on (0, 1)
    ```

    Args:
        losses: a `ReweightedLoss` or its name, a list of such, or a mapping of labels.
            `FocalLoss(gamma=0)` is cross-entropy.
        num_classes: k.
        y_pred: probabilities (..., k) that stand for the batch; k is then theirs.
        normalize: whether to divide by the mean, so that curves compare.
        ax: where to draw, an Axes. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> from keras_selcal import FocalLoss
    >>> ax = loss_weights({"focal": FocalLoss(gamma=1)}, normalize=False)
    >>> ax.get_lines()[0].get_ydata()[127].round(4).item()        # 1 − p at p = ½
    0.5

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. weightandloss
    """
    curves = _curves(losses, num_classes, y_pred)
    (ax,) = canvas.axes(ax)
    for index, (name, curve) in enumerate(curves.items()):
        scale = curve.weight.mean() if normalize else 1.0
        style = canvas.line_style(index)
        ax.plot(_P, curve.weight / scale, **style, linewidth=1.8, label=name)
    ax.set_xlim(0, 1)
    ax.set_ylim(bottom=0)
    label = "weight of the sample"
    _finish(ax, f"{label} (mean 1)" if normalize else label)
    return ax


def loss_gradients(
    losses: Any,
    num_classes: int = 10,
    y_pred: Any | None = None,
    normalize: bool = True,
    *,
    ax: Any = None,
) -> Any:
    """Draws the gradient of a loss with respect to p of the true class.

    Negative: training raises p. Positive: training lowers it, as inverse focal loss
    with γ above 4 does in places.

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p
    ```

    with s the share of the weight's own gradient that the loss keeps: `weight_gradient`
    of `AULoss`, 0 for `AURCLoss`, 1 otherwise. Predictions, batch and normalisation
    are as in `loss_weights`; the other classes move with p. Derivatives are central
    differences of fourth order, in the backend's precision: in float32 good to about
    1e-3 for focal weights and 5e-3 for the weight of `AULoss`, less at corners (τ, and
    p = 1/k). They know nothing of a `stop_gradient` in a loss of one's own. Near p = 0
    the axis cuts the curves off.

    Args:
        losses: a `ReweightedLoss` or its name, a list of such, or a mapping of labels.
            `FocalLoss(gamma=0)` is cross-entropy.
        num_classes: k.
        y_pred: probabilities (..., k) that stand for the batch; k is then theirs.
        normalize: whether to divide by the mean weight, so that curves compare.
        ax: where to draw, an Axes. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> from keras_selcal import FocalLoss
    >>> ax = loss_gradients({"cross-entropy": FocalLoss(gamma=0)})
    >>> ax.get_lines()[0].get_ydata()[127].round(3).item()        # −1/p at p = ½
    -2.0

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, App. gradient
    """
    curves = _curves(losses, num_classes, y_pred)
    (ax,) = canvas.axes(ax)
    gradients = []
    for index, (name, curve) in enumerate(curves.items()):
        gradient = curve.gradient / (curve.weight.mean() if normalize else 1.0)
        style = canvas.line_style(index)
        ax.plot(_P, gradient, **style, linewidth=1.8, label=name)
        gradients.append(gradient)
    # Gradients go to −∞ with p: the axis ends where half of the curves are at p = 0.1.
    lowest = np.median(gradients, axis=0)[_P >= 0.1].min()
    highest = max(np.max(gradients), 0.0)
    room = 0.05 * (highest - lowest)
    ax.axhline(0, color=canvas.GREY, linewidth=0.8)
    ax.set_xlim(0, 1)
    ax.set_ylim(lowest - room, highest + room)
    label = "gradient of the loss with respect to p"
    _finish(
        ax,
        f"{label} (mean weight 1)" if normalize else label,
        title="below 0: training raises p",
    )
    return ax


def _finish(ax: Any, y_label: str, **legend: Any) -> None:
    x_label = "p: probability of the true class"
    canvas.finish(ax, x_label, y_label, loc="best", **legend)


def _named_losses(losses: Any) -> dict[str, ReweightedLoss]:
    allowed = (
        "a ReweightedLoss, its name, a list of such or a mapping of labels to such"
    )
    if not isinstance(losses, Mapping | list | tuple):
        losses = [losses]
    labels = losses if isinstance(losses, Mapping) else [None] * len(losses)
    given = losses.values() if isinstance(losses, Mapping) else losses
    named: dict[str, ReweightedLoss] = {}
    for label, loss in zip(labels, given, strict=True):
        loss = library.get(loss) if isinstance(loss, str) else loss
        if not isinstance(loss, ReweightedLoss):
            refuse("losses", loss, allowed)
        named[loss.name.replace("_", " ") if label is None else str(label)] = loss
    if len(named) < max(len(losses), 1):
        refuse("losses", losses, f"{allowed}, at least one, each of a name of its own")
    return named


def _curves(losses: Any, num_classes: int, y_pred: Any | None) -> dict[str, _Curve]:
    named = _named_losses(losses)
    if y_pred is None:
        k = check_count("num_classes", num_classes, least=2)
        position = (np.arange(_REFERENCE_SIZE) + 0.5) / _REFERENCE_SIZE
        reference = _predictions(1 / k + (1 - 1 / k) * position, k)
    else:
        reference = to_numpy(y_pred).astype("float64")
        if reference.ndim < 2 or reference.shape[-1] < 2 or reference.size == 0:
            refuse("y_pred", reference.shape, "of shape (..., k) with k ≥ 2, not empty")
        reference = reference.reshape(-1, reference.shape[-1])
        if not np.all((reference >= 0) & (reference <= 1)):
            refuse("y_pred", y_pred, "probabilities, in [0, 1]")
    return {label: _curve(loss, reference) for label, loss in named.items()}


def _predictions(p: Array, k: int) -> Array:
    """Returns (p, (1 − p)/(k − 1), …), (n, k)."""
    others = np.repeat(((1 - p) / (k - 1))[:, None], k - 1, axis=-1)
    return np.concatenate([p[:, None], others], axis=-1)


def _curve(loss: ReweightedLoss, reference: Array) -> _Curve:
    values = [_weight_and_loss(loss, _P + j * _STEP, reference) for j in _STEPS]
    weights, base = (np.stack(parts) for parts in zip(*values, strict=True))
    weight, base_loss = weights[2], base[2]
    share = 0.0 if isinstance(loss, AURCLoss) else getattr(loss, "weight_gradient", 1.0)
    gradient = weight * (_SLOPE @ base) + share * base_loss * (_SLOPE @ weights)
    return _Curve(weight, gradient / _STEP)


def _weight_and_loss(
    loss: ReweightedLoss, p: Array, reference: Array
) -> tuple[Array, Array]:
    """Returns w and ℓ of samples with p at the true class, in the reference batch."""
    k = reference.shape[-1]
    y_pred = np.concatenate([_predictions(p, k), reference])
    counts = np.ones(len(y_pred))
    counts[len(p) :] = max(2, _REFERENCE_MASS // len(reference))
    y_true = np.zeros(len(y_pred), "int32")
    batch = Batch.of(y_true, y_pred, False, ops.convert_to_tensor(counts))
    return _of_points(loss.weights(batch), p), _of_points(loss.base_losses(batch), p)


def _of_points(values: Any, p: Array) -> Array:
    return to_numpy(values).astype("float64").reshape(-1)[: len(p)]
