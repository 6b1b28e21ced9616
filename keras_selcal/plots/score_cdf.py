"""Confidence scores: their histogram, empirical CDF and soft CDFs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_selcal import functional
from keras_selcal._arrays import to_numpy
from keras_selcal._formulas.soft_cdf import check_cdf_arguments, check_support
from keras_selcal._predictions.samples import to_weight
from keras_selcal._validation import check_not_empty, refuse
from keras_selcal.plots import canvas

# Height of the tallest bar of the histogram, on the axis of the CDFs.
_TALLEST = 0.5
_POINTS = 513


def score_cdf(
    scores: Any,
    smoothing: float | Sequence[float] = (0.01, 0.1, 1.0),
    *,
    num_bins: int = 64,
    support: tuple[float, float] = (0, 1),
    sample_weight: Any | None = None,
    ax: Any = None,
) -> Any:
    """Draws the histogram, the empirical CDF and soft CDFs of confidence scores.

    The AU loss computes its weights from the soft CDF. With a small ν it follows the
    steps of the data; with a large ν it is nearly a straight line.

    Formula:

    ```
    empirical  G(s) = (1/n) #{i: s_i ≤ s}
    soft       Ĝ_ν(s) = (1/n) Σ_m h_m σ((u − c_m)/ν),     capped at n/(n + 1)
    ```

    Args:
        scores: confidence scores of any shape, for example `keras_selcal.csf.msp(p)`.
        smoothing: ν, one or several; each is drawn as a line.
        num_bins: M, the number of bins of the histogram and the soft CDF.
        support: (lo, hi), the range that the scores can take.
        sample_weight: weights that broadcast to the shape of the scores.
        ax: the Axes to draw on. By default a new figure is made.

    Returns:
        The Axes.

    Example:
    >>> import numpy as np
    >>> ax = score_cdf(np.array([0.2, 0.4, 0.6, 0.8]), smoothing=0.1)
    >>> [line.get_label() for line in ax.get_lines()]
    ['empirical CDF', 'soft CDF, ν = 0.1']

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. softcdf
    """
    low, high = check_support(support)
    levels = [
        check_cdf_arguments(num_bins, nu)[1]
        for nu in np.ravel(np.asarray(smoothing, object)).tolist()
    ]
    if not levels:
        refuse("smoothing", smoothing, "a number above 0, or several")
    values = to_numpy(scores).astype("float64")
    check_not_empty("scores", values)
    weight = to_weight(sample_weight, values.shape)
    weight = np.ones(values.size) if weight is None else weight
    if not np.any(weight > 0):
        refuse("scores", values.shape, "of at least one score that counts")
    flat = values.reshape(-1)
    counts = weight > 0
    flat, weight = flat[counts], weight[counts]
    if not np.all((flat >= low - 1e-6) & (flat <= high + 1e-6)):
        refuse("scores", scores, f"within the support [{low:g}, {high:g}]")
    flat = np.clip(flat, low, high)

    (ax,) = canvas.axes(ax)
    heights, edges = np.histogram(flat, num_bins, (low, high), weights=weight)
    largest = heights.max()
    ax.stairs(
        heights * (_TALLEST / largest),
        edges,
        fill=True,
        color=canvas.PALE,
        label="histogram (tallest bar: "
        f"{canvas.percent(largest / weight.sum())} of the scores)",
    )
    order = np.argsort(flat)
    upto = np.cumsum(weight[order])
    ax.step(
        np.concatenate([[low], flat[order], [high]]),
        np.concatenate([[0.0], upto / upto[-1], [1.0]]),
        where="post",
        color=canvas.BLACK,
        linewidth=5,
        alpha=0.3,
        label="empirical CDF",
    )
    at = np.linspace(low, high, _POINTS)
    for index, nu in enumerate(levels):
        cdf = functional.soft_cdf(
            flat,
            at,
            num_bins=num_bins,
            smoothing=nu,
            support=(low, high),
            sample_weight=weight,
        )
        ax.plot(
            at,
            to_numpy(cdf),
            **canvas.line_style(index),
            linewidth=1.6,
            label=f"soft CDF, ν = {nu:g}",
        )
    ax.set_xlim(low, high)
    ax.set_ylim(0, 1.02)
    canvas.finish(
        ax, "confidence score", "share of the scores up to here", loc="upper left"
    )
    return ax
