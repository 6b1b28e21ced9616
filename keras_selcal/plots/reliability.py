"""The reliability diagram: accuracy against confidence, with Wilson intervals."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.binning import check_binning, check_kind
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_number, refuse
from keras_selcal.functional.reliability import (
    ReliabilityBins,
    ReliabilityCurve,
    reliability_bins,
)
from keras_selcal.plots import canvas


class _Words(NamedTuple):
    """Labels of the axes and marks of a kind of diagram."""

    x: str
    y: str
    mean: str
    frequency: str
    hint: str = ""


_WORDS = {
    "top_label": _Words(
        "confidence: probability of the predicted class",
        "accuracy: share of correct predictions",
        "mean confidence",
        "accuracy",
        "bars below the diagonal: overconfident",
    ),
    "positive": _Words(
        "probability of the positive class",
        "share of positive samples",
        "mean probability",
        "frequency",
        "bars below the diagonal: probability too high",
    ),
}
_GAPS = _WORDS["top_label"]._replace(x="confidence", y="accuracy", hint="")
_ECES = {"top_label": "top-label ECE", "positive": "positive-class ECE"}

# The number of samples is drawn below accuracy 0, in a strip of this depth.
_STRIP = 0.16
_FOOT = -0.25
# The legend is drawn above accuracy 1, where there are no bars.
_HEAD = 1.38


def reliability_diagram(
    y_true: Any,
    y_pred: Any,
    *,
    num_bins: int = 15,
    binning: str = "uniform",
    kind: str = "top_label",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    confidence_level: float | None = 0.95,
    ax: Any = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Any:
    """Draws accuracy against confidence, bin by bin.

    A bar shows the accuracy in a bin of confidence, its whisker the Wilson interval of
    the accuracy, and a short line the mean confidence. Where bars end below the
    diagonal, the model is overconfident. The strip below 0 shows the number of samples
    in each bin, and the title shows the ECE.

    With kind="positive", for one sigmoid unit, two classes or several labels, the
    diagram shows the frequency of class 1 against its probability, like scikit-learn's
    `CalibrationDisplay`. The title then shows both errors.

    Formula:

    ```
    bar      acc_b = Σ_{i in b} w_i 1[ŷ_i = y_i] / Σ_{i in b} w_i
    whisker  Wilson interval of acc_b with (Σ_{i in b} w_i)² / Σ_{i in b} w_i² samples
    title    ECE = Σ_b share_b |acc_b − conf_b|
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k), or (..., 1) or (n,) for one sigmoid
            unit; or a mapping from names to the predictions of several models, which
            are drawn side by side.
        num_bins: M, the number of bins.
        binning: `"uniform"` or `"adaptive"`, as in `functional.reliability_curve`.
        kind: `"top_label"` or `"positive"`, as in `functional.ece`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: weights of a shape that broadcasts to the samples'. The numbers
            in the strip are then each bin's share of the weight, times n.
        confidence_level: level of the whiskers, in (0, 1); None draws no whiskers.
        ax: the Axes to draw on; for a mapping, one for each model. By default a new
            figure is made.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The Axes; for a mapping an array with one Axes per model, in its order.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0]])
    >>> ax = reliability_diagram(np.array([0, 1, 1]), p, num_bins=5)
    >>> ax.get_title()
    'ECE = 0.3'
    >>> ax = reliability_diagram([0, 1, 1], [0.1, 0.8, 0.4], kind="positive")
    >>> ax.get_title()
    'top-label ECE = 0.3, positive-class ECE = 0.3'

    References:
    - Niculescu-Mizil & Caruana, [Predicting Good Probabilities With Supervised
      Learning](https://doi.org/10.1145/1102351.1102430)
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    - Wilson, [Probable Inference, the Law of Succession, and Statistical
      Inference](https://doi.org/10.1080/01621459.1927.10502953)
    """
    num_bins, binning, _ = check_binning(num_bins, binning)
    if confidence_level is not None:
        check_number(
            "confidence_level", confidence_level, "in (0, 1)", above=0.0, below=1.0
        )
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    bins: dict[str, dict[str, ReliabilityBins]] = {}
    for name, predictions in canvas.models(y_pred).items():
        samples = canvas.finite_samples(y_true, predictions, outputs, sample_weight)
        check_kind(kind, samples.num_classes)
        bins[name] = {
            one: reliability_bins(
                *samples.event(one),
                samples.counts,
                num_bins=num_bins,
                binning=binning,
                level=confidence_level or 0.95,
            )
            for one in ("top_label", "positive")[: 2 if samples.num_classes == 2 else 1]
        }
    drawn_on = canvas.axes(ax, len(bins), size=(5.4, 6.0))
    for one, (name, kinds) in zip(drawn_on, bins.items(), strict=True):
        _draw(one, kinds[kind], _WORDS[kind], confidence_level)
        # Horizontal numbers need wide bins.
        _draw_counts(one, kinds[kind], num_bins > 15 or binning == "adaptive")
        adaptive = "adaptive " if binning == "adaptive" else ""
        errors = [
            f"{adaptive}{_ECES[of] if len(kinds) > 1 else 'ECE'} = {b.error:.3g}"
            for of, b in kinds.items()
        ]
        _finish(one, name, ", ".join(errors), _WORDS[kind])
    return canvas.several(drawn_on, y_pred)


def reliability_gaps(curves: Any, *, ax: Any = None) -> Any:
    """Draws reliability diagrams of given curves, with the gap in each bin.

    Use this function if the samples are not available, as for published diagrams, or to
    draw several small diagrams. A bar shows the accuracy in a bin. The hatched gap
    reaches from there to the mean confidence: above the bar where the model is
    overconfident, inside it where the model is underconfident. The title shows the ECE
    if the shares are known.

    Formula:

    ```
    ECE = Σ_b share_b |acc_b − conf_b|
    ```

    Args:
        curves: a curve that `keras_selcal.functional.reliability_curve` returns, or a
            mapping from names to several curves, which are drawn side by side. Empty
            bins and unknown shares are NaN.
        ax: the Axes to draw on; for a mapping, one for each curve. By default a new
            figure is made.

    Returns:
        The Axes; for a mapping an array with one Axes per curve, in its order.

    Example:
    >>> import numpy as np
    >>> from keras_selcal import functional
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve = functional.reliability_curve(np.array([0, 1, 1]), p, num_bins=5)
    >>> reliability_gaps(curve).get_title()
    'ECE = 0.3'

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """
    named = dict(curves) if isinstance(curves, Mapping) else {"": curves}
    if not named or not all(isinstance(c, ReliabilityCurve) for c in named.values()):
        refuse("curves", curves, "a ReliabilityCurve, or a mapping of names to them")
    drawn_on = canvas.axes(ax, len(named), size=(4.2, 4.6))
    for one, (name, curve) in zip(drawn_on, named.items(), strict=True):
        full = ~np.isnan(curve.accuracy)
        left, right = curve.edges[:-1][full], curve.edges[1:][full]
        gap = (curve.confidence - curve.accuracy)[full]
        _draw_accuracy(one, left, right, curve.accuracy[full], _GAPS)
        _draw_gaps(one, left, right, curve.accuracy[full], gap)
        share = curve.share[full]
        known = not np.isnan(curve.share).any()
        ece = f"ECE = {np.sum(share * np.abs(gap)):.3g}" if known else ""
        _finish(one, canvas.text(name), ece, _GAPS)
        one.set_ylim(bottom=0)
    return canvas.several(drawn_on, curves)


def _draw_gaps(ax: Any, left: Array, right: Array, accuracy: Array, gap: Array) -> None:
    for side, words, colour, hatch in (
        (gap > 0, "overconfident", canvas.VERMILLION, "////"),
        (gap <= 0, "underconfident", canvas.BLUE, "\\\\\\\\"),
    ):
        ax.bar(
            left,
            np.where(side, gap, 0.0),
            right - left,
            bottom=accuracy,
            align="edge",
            facecolor=(colour, 0.25),
            edgecolor=colour,
            linewidth=np.where(side, 0.8, 0.0),
            hatch=hatch,
            label=f"gap to the mean confidence: {words}",
        )


def _draw_accuracy(
    ax: Any, left: Array, right: Array, accuracy: Array, words: _Words
) -> None:
    """Draws the diagonal, and a bar in each bin."""
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
        left,
        accuracy,
        right - left,
        align="edge",
        color=canvas.SKY,
        edgecolor="white",
        linewidth=0.8,
        label=f"{words.frequency} in the bin",
    )


def _draw(
    ax: Any, bins: ReliabilityBins, words: _Words, confidence_level: float | None
) -> None:
    _draw_accuracy(ax, bins.left, bins.right, bins.accuracy, words)
    ax.hlines(
        bins.confidence,
        bins.left,
        bins.right,
        color=canvas.VERMILLION,
        linewidth=2,
        label=f"{words.mean} in the bin",
        zorder=3,
    )
    if confidence_level is not None:
        level = canvas.percent(confidence_level)
        ax.vlines(
            (bins.left + bins.right) / 2,
            bins.low,
            bins.high,
            color=canvas.BLACK,
            linewidth=1.2,
            label=f"{level} interval of the {words.frequency}",
            zorder=4,
        )


def _draw_counts(ax: Any, bins: ReliabilityBins, upright: bool) -> None:
    """Draws a histogram of the samples below 0, with the numbers under it."""
    ax.axhline(0, color=canvas.BLACK, linewidth=0.8)
    width = bins.right - bins.left
    ax.bar(
        bins.left,
        -_STRIP * bins.number / bins.number.max(),
        width,
        align="edge",
        color=canvas.PALE,
        edgecolor="white",
        linewidth=0.8,
        label="samples in the bin (number below)",
    )
    # The numbers of narrow adaptive bins would overlap.
    for i in np.flatnonzero(width > 0.015):
        ax.text(
            (bins.left[i] + bins.right[i]) / 2,
            _FOOT + 0.01,
            _short(round(bins.number[i])),
            ha="center",
            va="bottom",
            fontsize=7,
            color=canvas.GREY,
            rotation=90 if upright else 0,
        )


def _finish(ax: Any, name: str, ece: str, words: _Words) -> None:
    ax.set_title("\n".join(filter(None, (name, ece))))
    ax.set_xlim(0, 1)
    ax.set_ylim(_FOOT, _HEAD)
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.spines["left"].set_bounds(0, 1)
    canvas.finish(
        ax,
        words.x,
        words.y,
        loc="upper left",
        borderaxespad=0.2,
        title=words.hint or None,
    )


def _short(number: int) -> str:
    """Returns a count of up to 999 million in at most four characters."""
    if number < 10_000:
        return str(number)
    return f"{number // 1000}k" if number < 1_000_000 else f"{number // 1_000_000}M"
