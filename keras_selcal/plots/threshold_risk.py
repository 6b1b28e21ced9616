"""Risk against threshold, with its bound."""

from typing import Any

import numpy as np

from keras_selcal.plots import canvas
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.threshold import check_target

# Thresholds at which the bound is computed.
_POINTS = 60


def threshold_risk(
    scores: Any,
    correct: Any,
    *,
    risk: float,
    delta: float = 0.1,
    groups: Any = None,
    error_probability: Any = None,
    ax: Any = None,
) -> Any:
    """Draws the risk of accepted answers against the threshold, with its bound.

    The line is the share of errors among the samples with score ≥ threshold, and the
    band ends at the upper bound that the true risk of one threshold exceeds with a
    probability of at most δ. The vertical line is the threshold that
    `select_threshold` guarantees for all of its steps together, which can lie to the
    right of where the bound crosses the target.

    Args:
        scores: confidence scores (n,).
        correct: whether each answer is right, (n,).
        risk: r in (0, 1), the target.
        delta: δ in (0, 1).
        groups: see `select_threshold`.
        error_probability: see `select_threshold`.
        ax: where to draw, an Axes. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(1000)
    >>> correct = rng.random(1000) < 0.5 + scores / 2
    >>> ax = threshold_risk(scores, correct, risk=0.2)
    >>> ax.get_ylabel()
    'risk of the accepted answers'
    """
    check_target(None, risk, delta)
    cuts = Cuts.of(scores, correct, None, groups, error_probability=error_probability)
    (ax,) = canvas.axes(ax)
    shown = np.unique(np.geomspace(1, len(cuts.thresholds), _POINTS).astype(int)) - 1
    t = cuts.thresholds[shown]
    share = cuts.risk[shown]
    bound = np.array([cuts.bound(float(at), delta) for at in t])
    ax.plot(t, share, color=canvas.BLUE, label="on these samples")
    ax.fill_between(
        t,
        share,
        bound,
        color=canvas.BLUE,
        alpha=0.2,
        linewidth=0,
        label=f"up to the bound at one threshold ({canvas.percent(1 - delta)})",
    )
    canvas.target(ax, risk, "target")
    best = cuts.search(risk, delta)
    if best < 0:
        title = "no threshold can be guaranteed"
    else:
        threshold = float(cuts.thresholds[best])
        coverage = canvas.percent(float(cuts.coverage[best]))
        title = f"threshold {threshold:.3g}: {coverage} are answered"
        ax.axvline(
            threshold, color=canvas.BLACK, linewidth=1.2, label="guaranteed threshold"
        )
    ax.set_title(title)
    ax.set_ylim(0, min(1.0, max(3 * risk, 1.2 * float(share.max()))))
    canvas.finish(ax, "threshold", "risk of the accepted answers", loc="best")
    return ax
