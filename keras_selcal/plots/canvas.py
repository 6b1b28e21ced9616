"""Axes, colours and arguments that the plots share."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal._extras import require
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import refuse

# The palette of Okabe & Ito, which is safe for colour-blind readers.
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"
GREY, PALE = "#6E6E6E", "#C9C9C9"

_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


def line_style(index: int) -> dict[str, Any]:
    """Returns the colour and dashes of the i-th line, which differ for 35 lines."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index % len(_DASHES)],
    }


def axes(ax: Any, count: int = 1, size: tuple[float, float] = (6.0, 4.5)) -> list[Any]:
    """Returns `count` Axes: the given ones, which are checked, or new ones.

    Args:
        ax: None, one matplotlib Axes, or `count` of them.
        count: the number of Axes.
        size: width and height of each in a new figure, in inches.
    """
    Axes = require("matplotlib.axes", "`keras_selcal.plots`").Axes
    if ax is None:
        import matplotlib.pyplot as plt

        width, height = size
        _, made = plt.subplots(
            1,
            count,
            figsize=(width * count, height),
            squeeze=False,
            layout="constrained",
        )
        return list(made[0])
    given = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, object)))
    if len(given) != count or not all(isinstance(one, Axes) for one in given):
        allowed = "a matplotlib Axes" if count == 1 else f"{count} matplotlib Axes"
        refuse("ax", ax, f"{allowed}, or None")
    return given


def models(y_pred: Any) -> dict[str, Any]:
    """Returns predictions by the name of their model, "" for one without a name."""
    if not isinstance(y_pred, Mapping):
        return {"": y_pred}
    if not y_pred:
        refuse("y_pred", y_pred, "predictions, or a mapping from names to predictions")
    return {text(name): predictions for name, predictions in y_pred.items()}


def text(name: Any) -> str:
    """Escapes a name, which matplotlib then draws unchanged.

    Dollar signs are escaped because they would start a formula. A leading underscore
    gets a space in front because legends leave out labels that begin with one.
    """
    escaped = str(name).replace("$", r"\$")
    return f" {escaped}" if escaped.startswith("_") else escaped


def finite_samples(
    y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any
) -> Samples:
    """Returns the samples; refuses NaN, which cannot be drawn."""
    samples = Samples.of(y_true, y_pred, outputs, sample_weight)
    if np.isnan(samples.confidence).any():
        refuse("y_pred", y_pred, "free of NaN")
    return samples


def percent(share: float) -> str:
    """Returns a share as a percentage of about three digits."""
    return f"{100 * share:.3g} %"


def bars(ax: Any, heights: Any, edges: Any, colour: str, **options: Any) -> None:
    """Draws a filled histogram with an outline."""
    style = {"facecolor": (colour, 0.35), "edgecolor": colour, "linewidth": 1.4}
    ax.stairs(heights, edges, fill=True, **style, **options)


def target(ax: Any, level: float, label: str) -> None:
    """Draws a horizontal line at the share that is aimed at."""
    label = f"{label} ({percent(level)})"
    ax.axhline(level, color=VERMILLION, linestyle="--", linewidth=1.2, label=label)


def several(drawn_on: list[Any], given: Any) -> Any:
    """Returns an array of Axes if a mapping was given, otherwise the one."""
    return np.array(drawn_on) if isinstance(given, Mapping) else drawn_on[0]


def finish(ax: Any, x_label: str, y_label: str, **legend: Any) -> None:
    """Labels the axes, adds a grid and the legend, and removes two spines."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, color=PALE, linewidth=0.5, alpha=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(
        fontsize="small",
        title_fontsize="small",
        alignment="left",
        framealpha=0.9,
        **legend,
    )
