"""Weights and gradients of the reweighted losses, against p of the true class."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal import losses as library
from keras_selcal._validation import refuse
from keras_selcal.analysis import LossCurve, loss_curve
from keras_selcal.losses import ReweightedLoss
from keras_selcal.plots import _canvas as canvas


def loss_weights(
    losses: Any,
    num_classes: int = 10,
    y_pred: Any | None = None,
    normalize: bool = True,
    *,
    rival: float | None = None,
    ax: Any = None,
) -> Any:
    """Draws the weight that a loss gives a sample, against p of its true class.

    The prediction at p has p for the true class, and the others share 1 − p. Focal
    weights depend on p alone. Those of AU and AURC depend on where the sample's
    confidence stands among others: here, in a large batch distributed as `y_pred`, or
    of `msp` uniform on [1/k, 1]. The numbers are those of
    `keras_selcal.analysis.loss_curve`.

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
        rival: the share of 1 − p that one other class has. None: all have the same.
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
    curves = _curves(losses, num_classes, y_pred, rival)
    (ax,) = canvas.axes(ax)
    for index, (name, curve) in enumerate(curves.items()):
        scale = curve.weight.mean() if normalize else 1.0
        style = canvas.line_style(index)
        ax.plot(curve.p, curve.weight / scale, **style, linewidth=1.8, label=name)
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
    rival: float | None = None,
    ax: Any = None,
) -> Any:
    """Draws the gradient of a loss with respect to p of the true class.

    Negative: training raises p. Positive: training lowers it, as inverse focal loss
    with γ above 3.6 does in places.

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p
    ```

    with s the share of the weight's own gradient that the loss keeps: `weight_gradient`
    of `AULoss`, 0 for `AURCLoss`, 1 otherwise. Predictions, batch and normalisation
    are as in `loss_weights`; the numbers, and what they are good to, as in
    `keras_selcal.analysis.loss_curve`, which also tells where they are positive. Near
    p = 0 the axis cuts the curves off.

    Args:
        losses: a `ReweightedLoss` or its name, a list of such, or a mapping of labels.
            `FocalLoss(gamma=0)` is cross-entropy.
        num_classes: k.
        y_pred: probabilities (..., k) that stand for the batch; k is then theirs.
        normalize: whether to divide by the mean weight, so that curves compare.
        rival: the share of 1 − p that one other class has. None: all have the same.
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
    curves = _curves(losses, num_classes, y_pred, rival)
    (ax,) = canvas.axes(ax)
    gradients = []
    for index, (name, curve) in enumerate(curves.items()):
        gradient = curve.gradient / (curve.weight.mean() if normalize else 1.0)
        style = canvas.line_style(index)
        ax.plot(curve.p, gradient, **style, linewidth=1.8, label=name)
        gradients.append(gradient)
    # Gradients go to −∞ with p: the axis ends where half of the curves are at p = 0.1.
    lowest = np.median(gradients, axis=0)[curve.p >= 0.1].min()
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


def _curves(
    losses: Any, num_classes: int, y_pred: Any | None, rival: float | None
) -> dict[str, LossCurve]:
    return {
        label: loss_curve(loss, num_classes, y_pred, rival=rival)
        for label, loss in _named_losses(losses).items()
    }
