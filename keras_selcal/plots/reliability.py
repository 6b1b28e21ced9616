"""The reliability diagram: accuracy against confidence, with bootstrap bands."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal import functional
from keras_selcal._core.binning import check_binning, run_sums, uniform_bins
from keras_selcal._core.bootstrap import resample_counts
from keras_selcal._core.samples import Array, Samples, to_counts
from keras_selcal._core.segments import Segments
from keras_selcal._core.validation import check_count, check_number, refuse
from keras_selcal.functional.calibration import ReliabilityCurve
from keras_selcal.plots import _canvas as canvas

# The samples of each bin hang below accuracy 0, in a strip of this depth.
_STRIP = 0.16
_FOOT = -0.25
# Room for the legend above accuracy 1, where no bar gets.
_HEAD = 1.38


def reliability_diagram(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    binning: str = "uniform",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    *,
    bootstrap: int = 200,
    confidence_level: float = 0.95,
    seed: int = 0,
    ax: Any = None,
) -> Any:
    """Draws accuracy against confidence, bin by bin.

    A bar is the accuracy in a bin of confidence, its whisker the bootstrap interval, a
    short line the mean confidence. Bars below the diagonal: the model is surer than it
    is right. Below 0 hangs the number of samples in each bin, written underneath; ECE
    stands in the title. Where all samples of a bin are right, or all wrong, so are
    all of its resamples, and the whisker has no length: that is not certainty.

    Formula:

    ```
    bar      acc_b = Σ_{i in b} w_i 1[ŷ_i = y_i] / Σ_{i in b} w_i
    whisker  the (1 ∓ c)/2 quantiles of acc_b over resamples that reach the bin
    title    ECE = Σ_b share_b |acc_b − conf_b|
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); or a mapping of names to those of
            several models, which are drawn side by side.
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `functional.reliability_curve`.
            Adaptive bins of a resample are the resample's own.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. The numbers below
            are then each bin's share of the weight, times n.
        bootstrap: the number of resamples; 0 for no whiskers.
        confidence_level: c in (0, 1).
        seed: of the resamples, an integer of at least 0.
        ax: where to draw: an Axes, or for a mapping one for each model. None makes a
            figure.

    Returns:
        The Axes; for a mapping an array of one for each model, in its order.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> ax = reliability_diagram(np.array([0, 1, 1]), p, num_bins=5)
    >>> ax.get_title()
    'ECE = 0.3'

    References:
    - Niculescu-Mizil & Caruana, [Predicting Good Probabilities With Supervised
      Learning](https://doi.org/10.1145/1102351.1102430)
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """
    num_bins, binning, _ = check_binning(num_bins, binning)
    bootstrap = check_count("bootstrap", bootstrap, least=0)
    seed = check_count("seed", seed, least=0)
    c = check_number("confidence_level", confidence_level, "in (0, 1)", above=0.0)
    if c >= 1:
        refuse("confidence_level", confidence_level, "in (0, 1)")
    models = canvas.models(y_pred)
    samples = {
        name: canvas.finite_samples(y_true, predictions, from_logits, sample_weight)
        for name, predictions in models.items()
    }
    drawn_on = canvas.axes(ax, len(models), size=(5.4, 6.0))
    for one, (name, of_model) in zip(drawn_on, samples.items(), strict=True):
        _draw(one, name, of_model, num_bins, binning, bootstrap, c, seed)
    return np.array(drawn_on) if isinstance(y_pred, Mapping) else drawn_on[0]


def reliability_gaps(curves: Any, *, ax: Any = None) -> Any:
    """Draws reliability diagrams of curves at hand, and the gap in each bin.

    For diagrams whose samples are not at hand, such as published ones, or for several
    in little room. A bar is the accuracy in a bin; the hatched gap reaches from there
    to the mean confidence: above the bar where the model is overconfident, inside it
    where it is underconfident. ECE stands in the title where the shares are known.

    Formula:

    ```
    ECE = Σ_b share_b |acc_b − conf_b|
    ```

    Args:
        curves: what `keras_selcal.functional.reliability_curve` returns; or a mapping
            of names to several, which are drawn side by side. Bins without samples
            have NaN, and so have shares that are not known.
        ax: where to draw: an Axes, or for a mapping one for each curve. None makes a
            figure.

    Returns:
        The Axes; for a mapping an array of one for each curve, in its order.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve = functional.reliability_curve(np.array([0, 1, 1]), p, num_bins=5)
    >>> reliability_gaps(curve).get_title()
    'ECE = 0.3'

    Reference:

    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """
    several = isinstance(curves, Mapping)
    named = dict(curves) if several else {"": curves}
    if not named or not all(isinstance(c, ReliabilityCurve) for c in named.values()):
        refuse("curves", curves, "a ReliabilityCurve, or a mapping of names to such")
    drawn_on = canvas.axes(ax, len(named), size=(4.2, 4.6))
    for one, (name, curve) in zip(drawn_on, named.items(), strict=True):
        _draw_gaps(one, name, curve)
    return np.array(drawn_on) if several else drawn_on[0]


def _draw_gaps(ax: Any, name: str, curve: ReliabilityCurve) -> None:
    left, width = curve.edges[:-1], np.diff(curve.edges)
    full = ~np.isnan(curve.accuracy) & (width > 0)
    gap = (curve.confidence - curve.accuracy)[full]
    _draw_accuracy(ax, curve, full)
    for side, words, colour, hatch in (
        (gap > 0, "overconfident", canvas.VERMILLION, "////"),
        (gap <= 0, "underconfident", canvas.BLUE, "\\\\\\\\"),
    ):
        ax.bar(
            left[full],
            np.where(side, gap, 0.0),
            width[full],
            bottom=curve.accuracy[full],
            align="edge",
            facecolor=(colour, 0.25),
            edgecolor=colour,
            linewidth=np.where(side, 0.8, 0.0),
            hatch=hatch,
            label=f"gap to the mean confidence: {words}",
        )
    title = name
    if not np.isnan(curve.share).any():
        ece = float(np.sum(curve.share[full] * np.abs(gap)))
        title = f"{name}\nECE = {ece:.3g}" if name else f"ECE = {ece:.3g}"
    ax.set_title(title)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, _HEAD)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.spines["left"].set_bounds(0, 1)
    canvas.finish(ax, "confidence", "accuracy", loc="upper left", borderaxespad=0.2)


def _draw_accuracy(ax: Any, curve: ReliabilityCurve, full: Array) -> None:
    """Draws the diagonal, and a bar in each bin that is full."""
    ax.plot(
        [0, 1],
        [0, 1],
        color=canvas.GREY,
        linestyle="--",
        linewidth=1,
        label="perfect calibration",
        zorder=2.5,
    )
    ax.bar(
        curve.edges[:-1][full],
        curve.accuracy[full],
        np.diff(curve.edges)[full],
        align="edge",
        color=canvas.SKY,
        edgecolor="white",
        linewidth=0.8,
        label="accuracy in the bin",
    )


def _draw(
    ax: Any,
    name: str,
    samples: Samples,
    num_bins: int,
    binning: str,
    bootstrap: int,
    confidence_level: float,
    seed: int,
) -> None:
    arguments: dict[str, Any] = {
        "y_true": samples.labels,
        "y_pred": samples.y_pred,
        "num_bins": num_bins,
        "binning": binning,
        "from_logits": samples.from_logits,
        "sample_weight": samples.weight,
    }
    curve = functional.reliability_curve(**arguments)
    left, width = curve.edges[:-1], np.diff(curve.edges)
    middle = left + width / 2
    # Bins of no width hold samples of one confidence: nothing to draw a bar on.
    full = (curve.share > 0) & (width > 0)

    _draw_accuracy(ax, curve, full)
    ax.hlines(
        curve.confidence[full],
        left[full],
        curve.edges[1:][full],
        color=canvas.VERMILLION,
        linewidth=2,
        label="mean confidence in the bin",
        zorder=3,
    )
    if bootstrap:
        low, high = accuracy_band(
            samples, num_bins, binning, bootstrap, confidence_level, seed
        )
        ax.vlines(
            middle[full],
            low[full],
            high[full],
            color=canvas.BLACK,
            linewidth=1.2,
            label=f"{canvas.percent(confidence_level)} interval of the accuracy",
            zorder=4,
        )
    # Numbers side by side need broad bins.
    upright = num_bins > 15 or binning == "adaptive"
    _draw_counts(ax, curve, samples.n, upright)

    kind = "ECE" if binning == "uniform" else "adaptive ECE"
    title = f"{kind} = {functional.ece(**arguments):.3g}"
    ax.set_title(f"{name}\n{title}" if name else title)
    ax.set_xlim(0, 1)
    ax.set_ylim(_FOOT, _HEAD)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.spines["left"].set_bounds(0, 1)
    canvas.finish(
        ax,
        "confidence: probability of the predicted class",
        "accuracy: share of right answers",
        loc="upper left",
        borderaxespad=0.2,
        title="bars below the diagonal: overconfident",
    )


def _draw_counts(ax: Any, curve: ReliabilityCurve, n: int, upright: bool) -> None:
    """Hangs a histogram of the samples below 0, the numbers at its foot."""
    edges, width = curve.edges, np.diff(curve.edges)
    count = np.rint(curve.share * n).astype(int)
    ax.axhline(0, color=canvas.BLACK, linewidth=0.8)
    ax.bar(
        edges[:-1],
        -_STRIP * curve.share / curve.share.max(),
        width,
        align="edge",
        color=canvas.PALE,
        edgecolor="white",
        linewidth=0.8,
        label="samples in the bin (number below)",
    )
    for x, number, w in zip(edges[:-1] + width / 2, count, width, strict=True):
        # Numbers of narrow adaptive bins would lie on each other.
        if number and w > 0.015:
            ax.text(
                x,
                _FOOT + 0.01,
                _short(int(number)),
                ha="center",
                va="bottom",
                fontsize=7,
                color=canvas.GREY,
                rotation=90 if upright else 0,
            )


def _short(number: int) -> str:
    """Returns a count in at most four characters up to 999 million."""
    if number < 10_000:
        return str(number)
    return f"{number // 1000}k" if number < 1_000_000 else f"{number // 1_000_000}M"


def accuracy_band(
    samples: Samples,
    num_bins: int,
    binning: str,
    bootstrap: int,
    confidence_level: float,
    seed: int,
) -> tuple[Array, Array]:
    """Returns both ends of the bootstrap interval of each bin's accuracy, (M,).

    Resamples that leave a bin empty do not count for it; NaN where all do.
    """
    accuracies = []
    by_confidence = Segments.of(samples.confidence)
    index = uniform_bins(samples.confidence, num_bins)
    by_bin = Segments.of(index)
    filled = np.unique(index)
    for drawn in resample_counts(samples.n, bootstrap, seed):
        weight = 1.0 if samples.weight is None else samples.weight
        count = to_counts(drawn * weight, samples.n)
        right = count * samples.correct
        if binning == "uniform":
            mass, hits = np.zeros((2, len(drawn), num_bins))
            mass[:, filled] = by_bin.sums(count)
            hits[:, filled] = by_bin.sums(right)
        else:
            hits, mass = run_sums(
                np.cumsum(by_confidence.sums(count)),
                np.cumsum(by_confidence.sums(right)),
                count.sum(axis=-1),
                num_bins,
            )
        accuracies.append(hits / np.where(mass > 0, mass, np.nan))
    ranked = np.sort(np.concatenate(accuracies), axis=0)
    # NaN is sorted to the end: each bin has its own last replicate.
    last = np.sum(~np.isnan(ranked), axis=0) - 1
    tail = np.floor((1 - confidence_level) / 2 * np.maximum(last, 0)).astype(int)
    bins = np.arange(num_bins)
    return ranked[tail, bins], ranked[np.maximum(last - tail, 0), bins]
