"""Draws the pictures of the README and of the guides.

`python docs/pictures.py` writes the README's picture, `docs/images/overview.png`. The
site draws all pictures again when it is built (`docs/hooks.py`).
"""

import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax

from keras_selcal import (
    AULoss,
    FocalLoss,
    InverseFocalLoss,
    TemperatureScaling,
    functional,
    plots,
    select_threshold,
)
from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)
from keras_selcal.losses import analysis
from keras_selcal.plots import loss_curves as loss_plots

# The logits of the simulated classifier are this many times too large.
OVERSTATED = 2.4
RISK, DELTA = 0.05, 0.05
ACCEPTED, STATED, RIGHT = "#009e73", "#d55e00", "#0072b2"
STYLE = {"font.size": 10, "axes.titlesize": 11, "axes.spines.top": False}
STYLE |= {"axes.spines.right": False, "svg.hashsalt": "keras_selcal"}


class Example(NamedTuple):
    """Predictions of a simulated classifier that is overconfident.

    Attributes:
        y: labels of the test samples.
        before: their probabilities as the classifier gives them.
        after: their probabilities after temperature scaling.
        y_fit: labels of other held-out samples, for thresholds.
        p_fit: the calibrated probabilities of these.
    """

    y: np.ndarray
    before: np.ndarray
    after: np.ndarray
    y_fit: np.ndarray
    p_fit: np.ndarray


@functools.cache
def example() -> Example:
    """Draws labels with the probabilities of logits, and overstates these logits."""
    rng = np.random.default_rng(0)
    logits = 8 * rng.normal(size=(8000, 10))
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    y = (p.cumsum(axis=-1) > rng.random((len(p), 1))).argmax(axis=-1)
    stated = OVERSTATED * logits
    fit, select, test = np.split(np.arange(len(y)), [1000, 3000])
    calibrator = TemperatureScaling().fit(stated[fit], y[fit])
    before, after = softmax(stated, axis=-1), calibrator.predict_proba(stated)
    return Example(y[test], before[test], after[test], y[select], after[select])


def _threshold(data: Example) -> float:
    """Returns the threshold with a guaranteed risk, of samples other than the test."""
    correct = data.p_fit.argmax(axis=-1) == data.y_fit
    return select_threshold(data.p_fit.max(axis=-1), correct, risk=RISK, delta=DELTA)


def _reliability(
    ax: Any, data: Example, p: np.ndarray, title: str, *, legend: bool = True
) -> None:
    plots.reliability_diagram(data.y, p, num_bins=10, ax=ax)
    error = functional.ece(data.y, p, num_bins=10)
    ax.set_title(f"{title}: ECE {100 * error:.1f} points")
    if not legend:
        ax.get_legend().remove()
        ax.set_ylim(top=1.0)
        ax.text(0.03, 0.92, "what it states", color=STATED, weight="bold")
        ax.text(0.03, 0.84, "how often it is right", color=RIGHT, weight="bold")


def _risk_coverage(ax: Any, data: Example) -> None:
    threshold = _threshold(data)
    curve = functional.risk_coverage_curve(data.y, data.after)
    accepted = data.after.max(axis=-1) >= threshold
    wrong = data.after.argmax(axis=-1) != data.y
    coverage, risk = accepted.mean(), wrong[accepted].mean()
    inside = curve.coverage <= coverage
    ax.plot(curve.coverage, curve.risk, color="0.25", linewidth=1.5)
    ax.fill_between(
        curve.coverage[inside], curve.risk[inside], color=ACCEPTED, alpha=0.3
    )
    ax.plot([coverage], [risk], "o", color=ACCEPTED)
    ax.axvline(coverage, color=ACCEPTED, linewidth=1, linestyle=":")
    ax.axhline(RISK, color="0.5", linewidth=1, linestyle="--")
    ax.annotate("promised: 5 % wrong", (0.02, RISK), (0, 3), textcoords="offset points")
    ax.set(
        xlabel="share of the samples that it answers",
        ylabel="share of the answers that are wrong",
        title=f"Abstain: answers {100 * coverage:.0f} %, {100 * risk:.1f} % wrong",
        xlim=(0, 1),
        ylim=(0, None),
    )


def overview() -> Figure:
    """Draws reliability before and after calibration, and the accepted part."""
    data = example()
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    _reliability(axes[0], data, data.before, "Before", legend=False)
    _reliability(axes[1], data, data.after, "After calibration", legend=False)
    _risk_coverage(axes[2], data)
    return figure


def reliability() -> Figure:
    """Draws the reliability diagram before and after calibration."""
    data = example()
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _reliability(left, data, data.before, "Before")
    _reliability(right, data, data.after, "After temperature scaling")
    return figure


def selection() -> Figure:
    """Draws the confidences of right and wrong answers, and the risk-coverage curve."""
    data = example()
    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    plots.confidence_histogram(data.y, data.after, ax=left)
    left.axvline(_threshold(data), color=ACCEPTED, linestyle=":")
    _risk_coverage(right, data)
    return figure


def sets() -> Figure:
    """Draws how many classes the prediction sets of coverage 95 % hold."""
    data = example()
    threshold = conformal_threshold(conformal_scores(data.p_fit, data.y_fit), 0.05)
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = conformal_sets(data.after, threshold)
    plots.set_sizes(data.y, found, ax=left)
    plots.class_coverage(data.y, found, alpha=0.05, ax=right)
    return figure


def losses() -> Figure:
    """Draws the weights that the losses give a sample."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    ax = figure.subplots()
    shown = [FocalLoss(gamma=2.0), InverseFocalLoss(), AULoss(smoothing=0.1)]
    loss_plots.loss_weights(shown, ax=ax)
    return figure


def gradients() -> Figure:
    """Draws what the gradients of AU do to confidence at the start of training."""
    rng = np.random.default_rng(0)
    p = softmax(0.5 * rng.normal(size=(4096, 10)), axis=-1)
    top = p.argmax(axis=-1)
    # Half of the predictions are right: confidences of about 0.2 should rise.
    right = rng.random(len(p)) < 0.5
    y = np.where(right, top, (top + rng.integers(1, 10, len(p))) % 10)
    kinds = {
        "weights constant (the default)": AULoss(smoothing=0.1),
        "w = 1, Eq. gradientAU": AULoss(smoothing=0.1, weight_gradient=1.0),
        'w = 1, through="cdf"': AULoss(
            smoothing=0.1, weight_gradient=1.0, through="cdf"
        ),
    }
    groups = np.array_split(np.argsort(p.max(axis=-1)), 24)
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    ax = figure.subplots()
    for color, marker, (name, loss) in zip(
        (RIGHT, STATED, ACCEPTED), "os^", kinds.items(), strict=True
    ):
        with warnings.catch_warnings():
            # The drag that the picture shows.
            warnings.simplefilter("ignore")
            found = analysis.sample_gradients(loss, y, p, of="prediction")
        x, height = (
            [values[group].mean() for group in groups]
            for values in (found.p, found.gradient)
        )
        label = f"{name}: mean {found.gradient.mean():+.1f}".replace("-", "−")
        ax.plot(x, height, color=color, marker=marker, markersize=4, label=label)
    ax.axhline(0, color="0.5", linewidth=0.8)
    ax.set(
        xlabel="confidence of the sample",
        ylabel="mean gradient with respect to it",
        title="Above 0, training lowers confidence",
    )
    ax.legend(frameon=False)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "overview": overview,
    "reliability": reliability,
    "selection": selection,
    "sets": sets,
    "losses": losses,
    "gradients": gradients,
}


def draw(name: str) -> bytes:
    """Returns a picture as PNG."""
    content = io.BytesIO()
    with mpl.rc_context(STYLE):
        PICTURES[name]().savefig(content, dpi=100, metadata={"Software": None})
    return content.getvalue()


if __name__ == "__main__":
    path = Path(__file__).parent / "images" / "overview.png"
    path.write_bytes(draw("overview"))
    print(path)
