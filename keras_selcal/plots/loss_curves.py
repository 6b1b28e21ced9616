"""Plots of weight, value and gradient of losses, against p of the true class."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal import losses as library
from keras_selcal._arrays import Array
from keras_selcal._validation import refuse
from keras_selcal.losses import ReweightedLoss
from keras_selcal.losses.analysis import SampleGradients, loss_curve
from keras_selcal.losses.analysis import sample_gradients as gradients_at
from keras_selcal.plots import canvas

_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
# Share of the height that the histogram of p takes, and the number of its bars.
_STRIP = 0.16
_BINS = 50


def loss_weights(
    losses: Any,
    num_classes: int = 10,
    *,
    y_pred: Any | None = None,
    normalize: bool = True,
    rival: float | None = None,
    ax: Any = None,
) -> Any:
    """Draws the weight that a loss gives a sample, against p of its true class.

    The prediction at p has p for the true class, and the others share 1 − p. Focal
    weights depend only on p. AU and AURC weights depend on the rank of the sample's
    confidence in its batch: here, a large batch with the distribution of `y_pred`, or
    with `msp` uniform on [1/k, 1]. The numbers come from
    `keras_selcal.losses.analysis.loss_curve`.

    Formula:

    ```
    w(p)/mean(w),     the mean over p uniform on (0, 1)
    ```

    Args:
        losses: a `ReweightedLoss` or its name, a list of them, or a mapping of labels
            to them. `FocalLoss(gamma=0)` is cross-entropy.
        num_classes: k.
        y_pred: probabilities (..., k) that represent the batch; they determine k.
        normalize: whether to divide by the mean weight, to make curves comparable.
        rival: the share of 1 − p that one other class has. By default all other
            classes have the same share.
        ax: the Axes to draw on. By default a new figure is made.

    Returns:
        The Axes.

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. weightandloss
    """
    ax, _, _ = _draw("weight", losses, num_classes, ax, normalize, y_pred, rival)
    ax.set_ylim(bottom=0)
    _finish(ax, f"weight of the sample{' (mean 1)' * normalize}")
    return ax


def loss_values(
    losses: Any,
    num_classes: int = 10,
    *,
    y_pred: Any | None = None,
    normalize: bool = True,
    rival: float | None = None,
    ax: Any = None,
) -> Any:
    """Draws the loss of a sample, against p of its true class.

    Near p = 0 the axis cuts the curves off.

    Formula:

    ```
    w(p) ℓ(p)/mean(w),     the mean over p uniform on (0, 1)
    ```

    Args:
        losses: as in `loss_weights`.
        num_classes: k.
        y_pred: probabilities (..., k) that represent the batch; they determine k.
        normalize: whether to divide by the mean weight, to make curves comparable.
        rival: the share of 1 − p that one other class has. By default all other
            classes have the same share.
        ax: the Axes to draw on. By default a new figure is made.

    Returns:
        The Axes.

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. weightandloss
    """
    ax, _, values = _draw("loss", losses, num_classes, ax, normalize, y_pred, rival)
    # Losses go to ∞ as p goes to 0: the axis ends at the largest median of the losses.
    ax.set_ylim(0, 1.05 * np.median(values, axis=0).max())
    _finish(ax, f"loss of the sample{_mean_weight(normalize)}")
    return ax


def loss_gradients(
    losses: Any,
    num_classes: int = 10,
    *,
    y_pred: Any | None = None,
    normalize: bool = True,
    rival: float | None = None,
    ax: Any = None,
) -> Any:
    """Draws the gradient of a loss with respect to p of the true class.

    Training raises p where the gradient is negative and lowers p where it is positive,
    as inverse focal loss with γ above 3.6 does in places;
    `keras_selcal.losses.analysis.loss_curve` lists where. Near p = 0 the axis cuts the
    curves off.

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p
    ```

    with s the share of the weight's own gradient that the loss keeps: `weight_gradient`
    of `AULoss`, 0 for `AURCLoss`, 1 otherwise.

    Args:
        losses: as in `loss_weights`.
        num_classes: k.
        y_pred: probabilities (..., k) that represent the batch; they determine k.
        normalize: whether to divide by the mean weight, to make curves comparable.
        rival: the share of 1 − p that one other class has. By default all other
            classes have the same share.
        ax: the Axes to draw on. By default a new figure is made.

    Returns:
        The Axes.

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, App. gradient
    """
    ax, p, gradients = _draw(
        "gradient", losses, num_classes, ax, normalize, y_pred, rival
    )
    # Gradients go to −∞ as p goes to 0: the axis ends at the median at p = 0.1.
    lowest = np.median(gradients, axis=0)[p >= 0.1].min()
    finish_gradients(ax, lowest, np.max(gradients), _mean_weight(normalize))
    return ax


def _draw(
    what: str,
    losses: Any,
    num_classes: int,
    ax: Any,
    normalize: bool = True,
    y_pred: Any | None = None,
    rival: float | None = None,
) -> tuple[Any, Array, Array]:
    """Draws an attribute of the losses' curves.

    Returns the Axes, p, and the values that were drawn, (losses, points).
    """
    curves = {
        label: loss_curve(loss, num_classes, y_pred=y_pred, rival=rival)
        for label, loss in named_losses(losses).items()
    }
    (ax,) = canvas.axes(ax)
    drawn = []
    for index, (name, curve) in enumerate(curves.items()):
        values = getattr(curve, what) / (curve.weight.mean() if normalize else 1.0)
        style = canvas.line_style(index)
        ax.plot(curve.p, values, **style, linewidth=1.8, label=name)
        drawn.append(values)
    ax.set_xlim(0, 1)
    return ax, curve.p, np.array(drawn)


def _mean_weight(normalize: bool) -> str:
    return " (mean weight 1)" if normalize else ""


def finish_gradients(
    ax: Any,
    lowest: float,
    highest: float,
    unit: str = "",
    **legend: Any,
) -> None:
    """Labels the axes of gradients, with room for the lowest, the highest and 0."""
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    room = 0.05 * (highest - lowest) or 1.0
    ax.axhline(0, color=canvas.GREY, linewidth=0.8)
    ax.set_xlim(0, 1)
    ax.set_ylim(lowest - room, highest + room)
    label = f"gradient of the loss with respect to p{unit}"
    _finish(ax, label, title="below 0: training raises p", **legend)


def _finish(ax: Any, y_label: str, loc: str = "best", **legend: Any) -> None:
    x_label = "p: probability of the true class"
    canvas.finish(ax, x_label, y_label, loc=loc, **legend)


def named_losses(losses: Any) -> dict[str, ReweightedLoss]:
    """Returns losses by their labels."""
    allowed = "a ReweightedLoss, its name, or a list or mapping of them"
    if not isinstance(losses, Mapping | list | tuple):
        losses = [losses]
    labels = losses if isinstance(losses, Mapping) else [None] * len(losses)
    given = losses.values() if isinstance(losses, Mapping) else losses
    named: dict[str, ReweightedLoss] = {}
    for label, loss in zip(labels, given, strict=True):
        loss = library.get(loss) if isinstance(loss, str) else loss
        if not isinstance(loss, ReweightedLoss):
            refuse("losses", loss, allowed)
        named[loss.name.replace("_", " ") if label is None else canvas.text(label)] = (
            loss
        )
    if len(named) < max(len(losses), 1):
        refuse("losses", losses, f"{allowed}, not empty and with distinct names")
    return named


def sample_gradients(
    losses: Any,
    y_true: Any,
    y_pred: Any,
    *,
    from_logits: bool = False,
    ax: Any = None,
) -> Any:
    """Draws the gradient of losses at the samples of a model.

    Each sample is one point for each loss, at p of its true class. A histogram at the
    bottom shows the distribution of p. The numbers come from
    `keras_selcal.losses.analysis.sample_gradients`; near p = 0 the axis cuts them off.

    Several models, or one model at several stages of its training, are drawn side by
    side:

    ```python
    seen = {}
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.update(
            {f"epoch {epoch + 1}": model.predict(x, verbose=0)}
        )
    )
    model.fit(x, y, epochs=3, callbacks=[keep])
    sample_gradients([FocalLoss(3), AULoss()], y, seen, from_logits=True)
    ```

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p,     as in `loss_gradients`, at every sample
    ```

    Args:
        losses: a `ReweightedLoss` or its name, a list of them, or a mapping of labels
            to them. `FocalLoss(gamma=0)` is cross-entropy.
        y_true: class indices (...) or (..., 1).
        y_pred: probabilities or logits, (..., k); or a mapping of names to them.
        from_logits: whether `y_pred` holds logits.
        ax: the Axes to draw on; for a mapping, one for each of its entries. By default
            a new figure is made.

    Returns:
        The Axes; for a mapping, an array with one for each entry, in its order.

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. gradients_over_epochs
    """
    named = named_losses(losses)
    models = canvas.models(y_pred)
    gradients = {
        name: {
            label: gradients_at(loss, y_true, predictions, from_logits=from_logits)
            for label, loss in named.items()
        }
        for name, predictions in models.items()
    }
    drawn_on = canvas.axes(ax, len(models))
    everything = [one for of_model in gradients.values() for one in of_model.values()]
    for one, (name, of_model) in zip(drawn_on, gradients.items(), strict=True):
        _draw_samples(one, name, of_model, everything)
    return canvas.several(drawn_on, y_pred)


def _draw_samples(
    ax: Any,
    name: str,
    gradients: dict[str, SampleGradients],
    everything: list[SampleGradients],
) -> None:
    for index, (label, found) in enumerate(gradients.items()):
        ax.plot(
            found.p,
            found.gradient,
            linestyle="none",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=3.5,
            alpha=0.6,
            color=canvas.line_style(index)["color"],
            markeredgewidth=0,
            label=label,
        )
    heights, edges = np.histogram(found.p, _BINS, (0, 1))
    tallest = heights.max() / heights.sum()
    ax.stairs(
        heights * (_STRIP / heights.max()),
        edges,
        fill=True,
        color=canvas.PALE,
        zorder=0.5,
        transform=ax.get_xaxis_transform(),
        label=f"samples (tallest bar: {canvas.percent(tallest)})",
    )
    # All models share one axis, to be comparable; as in `loss_gradients`, it ends at
    # the median over the losses at p = 0.1.
    lowest = [np.append(one.gradient[one.p >= 0.1], 0.0).min() for one in everything]
    highest = max(one.gradient.max() for one in everything)
    finish_gradients(
        ax,
        min(map(np.median, np.array_split(lowest, len(lowest) // len(gradients)))),
        highest,
        loc="lower right",
        # Above the histogram.
        bbox_to_anchor=(1, _STRIP),
    )
    if name:
        ax.set_title(name)
