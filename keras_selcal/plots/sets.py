"""Sizes of prediction sets, and how often they hold the label of each class."""

from typing import Any

import numpy as np

from keras_selcal._validation import check_number
from keras_selcal.conformal.evaluation import check_sets
from keras_selcal.functional.reliability import wilson
from keras_selcal.plots import canvas


def set_sizes(y_true: Any, sets: Any, *, ax: Any = None) -> Any:
    """Draws how many classes prediction sets hold.

    Each bar is the share of the sets of one size, split into those that hold the label
    and those that miss it. A coverage that depends on the size shows as bars with very
    different parts.

    Args:
        y_true: class indices (n,).
        sets: which classes each set holds, boolean (n, k): `sets` of
            `ConformalClassifier.predict`.
        ax: where to draw, an Axes. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> import numpy as np
    >>> sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], bool)
    >>> ax = set_sizes(np.array([0, 1, 1]), sets)
    >>> ax.get_title()
    'coverage 66.7 %, mean size 1.33'
    """
    y, member = check_sets(y_true, sets, "y_true")
    (ax,) = canvas.axes(ax)
    n, k = member.shape
    sizes = member.sum(axis=-1)
    covered = member[np.arange(n), y]
    last = int(sizes.max())
    edges = np.arange(last + 2) - 0.5
    holds = np.bincount(sizes[covered], minlength=last + 1) / n
    misses = np.bincount(sizes[~covered], minlength=last + 1) / n
    for below, part, colour, hatch, name in (
        (0.0, holds, canvas.BLUE, None, "hold the label"),
        (holds, misses, canvas.VERMILLION, "////", "miss the label"),
    ):
        label = f"sets that {name} ({canvas.percent(part.sum())})"
        style = {"baseline": below, "hatch": hatch, "label": label}
        canvas.bars(ax, below + part, edges, colour, **style)
    ax.set_title(
        f"coverage {canvas.percent(covered.mean())}, mean size {sizes.mean():.3g}"
    )
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(bottom=0)
    ax.xaxis.get_major_locator().set_params(integer=True)
    canvas.finish(ax, f"classes in the set, of {k}", "share of the sets", loc="best")
    return ax


def class_coverage(
    y_true: Any, sets: Any, *, alpha: float | None = None, ax: Any = None
) -> Any:
    """Draws how often prediction sets hold the label, for the samples of each class.

    Classes are sorted by their coverage. A guarantee that is marginal holds for the
    average over all samples; the whiskers, Wilson intervals at 95 %, show which
    classes lie below it by more than chance.

    Args:
        y_true: class indices (n,).
        sets: which classes each set holds, boolean (n, k).
        alpha: α of the sets: a line is drawn at 1 − α.
        ax: where to draw, an Axes. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> import numpy as np
    >>> sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], bool)
    >>> ax = class_coverage(np.array([0, 1, 1]), sets, alpha=0.1)
    >>> [label.get_text() for label in ax.get_xticklabels()]
    ['1', '0']
    """
    y, member = check_sets(y_true, sets, "y_true")
    if alpha is not None:
        alpha = check_number("alpha", alpha, "a number in (0, 1)", above=0, most=1)
    (ax,) = canvas.axes(ax)
    covered = member[np.arange(len(y)), y]
    classes, index, size = np.unique(y, return_inverse=True, return_counts=True)
    share = np.bincount(index, covered) / size
    order = np.argsort(share, kind="stable")
    classes, size, share = classes[order], size[order], share[order]
    low, high = wilson(share, size, 0.95)
    x = np.arange(len(classes))
    mean = covered.mean()
    label = f"classes, from the coverage of all samples ({canvas.percent(mean)})"
    edges = np.arange(len(x) + 1) - 0.5
    canvas.bars(ax, share, edges, canvas.BLUE, baseline=mean, label=label)
    ax.vlines(x, low, high, color=canvas.GREY, linewidth=1.0, label="95 % interval")
    if alpha is not None:
        canvas.target(ax, 1 - alpha, "1 − α")
    # As many names as there is room for.
    step = -(-len(x) // 12)
    ax.set_xticks(x[::step], [str(name) for name in classes[::step]])
    ax.set_ylim(top=1.02)
    canvas.finish(ax, "class, sorted by coverage", "coverage", loc="lower right")
    return ax
