"""Gradients of losses at a model's samples, against p of their true classes."""

from typing import Any

import numpy as np

from keras_selcal import analysis
from keras_selcal.plots import canvas
from keras_selcal.plots.loss_curves import finish_gradients, named_losses

_MARKERS = ("o", "^", "s", "D", "v", "P", "X")
# Share of the height that the histogram of p takes, and the number of its bars.
_STRIP = 0.16
_BINS = 50


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
    bottom shows the distribution of p. The numbers are those of
    `keras_selcal.analysis.sample_gradients`; near p = 0 the axis cuts them off.

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
    plots.sample_gradients([FocalLoss(3), AULoss()], y, seen, from_logits=True)
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

    Example:
    >>> import numpy as np
    >>> from keras_selcal import FocalLoss
    >>> p = np.array([[0.9, 0.1], [0.25, 0.75]])
    >>> ax = sample_gradients({"cross-entropy": FocalLoss(0)}, np.array([0, 0]), p)
    >>> ax.get_lines()[0].get_ydata().round(2).tolist()           # −1/p
    [-1.11, -4.0]

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. gradients_over_epochs
    """
    named = named_losses(losses)
    models = canvas.models(y_pred)
    gradients = {
        name: {
            label: analysis.sample_gradients(
                loss, y_true, predictions, from_logits=from_logits
            )
            for label, loss in named.items()
        }
        for name, predictions in models.items()
    }
    drawn_on = canvas.axes(ax, len(models))
    everything = [one for of_model in gradients.values() for one in of_model.values()]
    for one, (name, of_model) in zip(drawn_on, gradients.items(), strict=True):
        _draw(one, name, of_model, everything)
    return canvas.several(drawn_on, y_pred)


def _draw(
    ax: Any,
    name: str,
    gradients: dict[str, analysis.SampleGradients],
    everything: list[analysis.SampleGradients],
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
