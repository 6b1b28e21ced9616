"""Confidence of correct and of wrong predictions."""

from typing import Any

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_count
from keras_selcal.plots import canvas


def confidence_histogram(
    y_true: Any,
    y_pred: Any,
    *,
    csf: Any = "msp",
    num_bins: int = 20,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    ax: Any = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Any:
    """Draws the confidence of correct and of wrong predictions.

    Each histogram sums to 1, so a few wrong predictions remain visible next to
    many correct ones. The less they overlap, the better the confidence score
    separates them.

    Formula:

    ```
    correct  h_b = Σ_{i in b} w_i a_i / Σ_i w_i a_i
    wrong    h_b = Σ_{i in b} w_i (1 − a_i) / Σ_i w_i (1 − a_i)
    ```

    with a_i the label mass of the predicted class: 1 or 0 for class indices.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); (..., 1) or (n,) for one sigmoid
            unit.
        csf: the confidence score; see `keras_selcal.csf.get`.
        num_bins: M, the number of equal bins on the support of the score, or on the
            range of the scores if it is not bounded.
        from_logits: whether `y_pred` holds logits.
        sample_weight: weights of a shape that broadcasts to the samples'.
        ax: the Axes to draw on. By default a new figure is made.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The Axes.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> ax = confidence_histogram(np.array([0, 1, 1]), p)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['correct predictions (66.7 %), mean 0.85', 'wrong predictions (33.3 %), mean 0.6']

    References:
    - Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
      Out-of-Distribution Examples in Neural
      Networks](https://arxiv.org/abs/1610.02136)
    """
    num_bins = check_count("num_bins", num_bins)
    score = csfs.get(csf)
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    samples = canvas.finite_samples(y_true, y_pred, outputs, sample_weight)
    scores = samples.scores(score)
    low, high = score.support(samples.num_classes)
    if not score.bounded:
        low, high = scores.min(), np.nextafter(scores.max(), np.inf)
    # Rounding may move a score slightly outside its range.
    scores = np.clip(scores, low, high)
    edges = np.linspace(low, high, num_bins + 1)
    (ax,) = canvas.axes(ax)
    correct = samples.counts * samples.correct
    wrong = samples.counts - correct
    total = samples.counts.sum()
    for mass, kind, colour, hatch in (
        (correct, "correct", canvas.BLUE, None),
        (wrong, "wrong", canvas.VERMILLION, "////"),
    ):
        share = mass.sum() / total
        label = f"{kind} predictions ({canvas.percent(share)})"
        heights = np.zeros(num_bins)
        if share > 0:
            mean = np.average(scores, weights=mass)
            label += f", mean {mean:.3g}"
            heights, _ = np.histogram(scores, edges, weights=mass / mass.sum())
            ax.axvline(mean, color=colour, linestyle="--", linewidth=1.2)
        canvas.bars(ax, heights, edges, colour, hatch=hatch, label=label)
    ax.set_xlim(low, high)
    ax.set_ylim(bottom=0)
    canvas.finish(
        ax,
        f"confidence score ({canvas.text(score.__name__)})",
        "share of the correct, of the wrong predictions",
        loc="best",
        title="dashed: their means",
    )
    return ax
