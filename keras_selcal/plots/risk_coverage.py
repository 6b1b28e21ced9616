"""The risk-coverage curve, between the best possible ranking and a random one."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal import functional
from keras_selcal._arrays import Array
from keras_selcal._formulas.ranking import best_ranking
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import check_number, refuse
from keras_selcal.functional.risk_coverage import RiskCoverageCurve
from keras_selcal.functional.sample_losses import sample_losses
from keras_selcal.plots import canvas

_RISKS = {
    "zero_one": "risk: share of wrong predictions among them",
    "crossentropy": "risk: mean cross-entropy among them",
    "brier": "risk: mean Brier score among them",
}

_RANKINGS = {"-.": "best possible ranking", ":": "random ranking"}


def risk_coverage_curve(
    y_true: Any,
    y_pred: Any,
    *,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
    threshold: float | None = None,
    coverage: float | None = None,
    ax: Any = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> Any:
    """Draws the selective risk against coverage.

    A model that may abstain makes fewer mistakes if its confidence is higher for
    correct predictions than for wrong ones. Two more lines show the range: the best
    possible ranking of the same predictions, and a random one. The legend shows the
    area under each curve (AURC).

    Formula:

    ```
    model    κ(τ) = P(g ≥ τ),  R(τ) = E[ℓ | g ≥ τ]
    best     the same with g = −ℓ
    random   R = E[ℓ] at every coverage
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k), or (..., 1) or (n,) for one sigmoid
            unit; or a mapping from names to the predictions of several models, which
            are drawn in one plot.
        csf: g, the confidence score; see `keras_selcal.csf.get`.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: weights of a shape that broadcasts to the samples'.
        threshold: τ, on the scale of the score; its coverage and risk are marked. Pass
            at most one of `threshold` and `coverage`.
        coverage: κ in (0, 1]; it is marked with its risk.
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
    >>> ax = risk_coverage_curve(np.array([0, 0, 0]), p, coverage=0.5)
    >>> ax.get_lines()[0].get_ydata().round(3).tolist()
    [0.0, 0.5, 0.333]

    References:
    - El-Yaniv & Wiener, [On the Foundations of Noise-free Selective
      Classification](https://www.jmlr.org/papers/v11/el-yaniv10a.html)
    - Geifman et al., [Bias-Reduced Uncertainty Estimation for Deep Neural
      Classifiers](https://arxiv.org/abs/1805.08206)
    """
    if threshold is not None:
        threshold = check_number("threshold", threshold, "a number or None")
        if coverage is not None:
            refuse("coverage", coverage, "None if `threshold` is given")
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    models = {
        name: _model(
            canvas.finite_samples(y_true, predictions, outputs, sample_weight),
            csf,
            loss,
            threshold,
            coverage,
        )
        for name, predictions in canvas.models(y_pred).items()
    }
    (ax,) = canvas.axes(ax)
    for index, (name, model) in enumerate(models.items()):
        colour = canvas.line_style(index)["color"]
        _draw(ax, name, model, colour, len(models) == 1)
        if model.marked is not None:
            _mark(ax, name, model.marked, colour, loss)
    if len(models) > 1:
        # One entry for all models, because the legend would fill the plot.
        for style, ranking in _RANKINGS.items():
            ax.plot([], [], color=canvas.GREY, linestyle=style, label=ranking)
    ax.set_xlim(0, 1.01)
    # The risk of the few most confident predictions may be 1, which would flatten the
    # curves; the axis ignores it. The legend above needs a row for each entry.
    entries = len(ax.get_legend_handles_labels()[1])
    highest = max(model.highest for model in models.values()) or 0.01
    ax.set_ylim(0, highest * (1.1 + 0.075 * entries))
    ax.set_yticks([tick for tick in ax.get_yticks() if tick <= 1.05 * highest])
    ax.spines["left"].set_bounds(0, 1.05 * highest)
    canvas.finish(
        ax,
        "coverage: share of the samples accepted, most confident first",
        _RISKS[loss],
        loc="upper left",
    )
    return ax


class _Model(NamedTuple):
    """The curves and numbers to draw of a model."""

    curve: RiskCoverageCurve
    best: tuple[Array, Array]
    risk: float
    aurc: float
    best_aurc: float
    marked: tuple[float, float] | None

    @property
    def highest(self) -> float:
        """The largest risk from a coverage of 5 % on."""
        seen = self.curve.risk[self.curve.coverage >= 0.05]
        return float(max(self.risk, seen.max()))


def _model(
    samples: Samples,
    csf: Any,
    loss: str,
    threshold: float | None,
    coverage: float | None,
) -> _Model:
    csfs.get(csf).check_classes(samples.num_classes)
    arguments: dict[str, Any] = {
        "y_true": samples.labels,
        "y_pred": samples.y_pred,
        "csf": csf,
        "from_logits": samples.from_logits,
        "decision_threshold": samples.threshold,
        "loss": loss,
        "sample_weight": samples.weight,
    }
    curve = functional.risk_coverage_curve(**arguments)
    losses = sample_losses(samples, loss)
    aurc = functional.aurc(**arguments)
    return _Model(
        curve,
        best_ranking(losses, samples.counts),
        samples.mean(losses),
        aurc,
        aurc - functional.excess_aurc(**arguments),
        _marked(curve, arguments, threshold, coverage),
    )


def _marked(
    curve: RiskCoverageCurve,
    arguments: dict[str, Any],
    threshold: float | None,
    coverage: float | None,
) -> tuple[float, float] | None:
    """Returns the coverage and the risk to mark."""
    if coverage is not None:
        risk = functional.risk_at_coverage(**arguments, coverage=coverage)
        return float(coverage), risk
    if threshold is None:
        return None
    accepted = int(np.sum(curve.threshold >= threshold))
    if accepted == 0:
        most = f"at most the largest score, {curve.threshold.max():g}"
        refuse("threshold", threshold, most)
    return float(curve.coverage[accepted - 1]), float(curve.risk[accepted - 1])


def _draw(ax: Any, name: str, model: _Model, colour: str, alone: bool) -> None:
    label = f"{name or 'this model'}: AURC {model.aurc:.3g}"
    if not alone:
        label += f" (best {model.best_aurc:.3g}, random {model.risk:.3g})"
    curve = model.curve
    ax.plot(curve.coverage, curve.risk, color=colour, linewidth=2, label=label)
    constant = ([0.0, 1.0], [model.risk, model.risk])
    for (style, ranking), line, aurc, own in zip(
        _RANKINGS.items(),
        (model.best, constant),
        (model.best_aurc, model.risk),
        (canvas.GREEN, canvas.GREY),
        strict=True,
    ):
        # One model has three lines of different colours, several have one colour each.
        ax.plot(
            *line,
            color=own if alone else colour,
            linestyle=style,
            linewidth=1.4,
            label=f"{ranking}: AURC {aurc:.3g}" if alone else None,
        )


def _mark(
    ax: Any, name: str, marked: tuple[float, float], colour: str, loss: str
) -> None:
    coverage, risk = marked
    shown = canvas.percent(risk) if loss == "zero_one" else f"{risk:.3g}"
    text = f"coverage {canvas.percent(coverage)}, risk {shown}"
    ax.plot(
        [coverage, coverage, 0],
        [0, risk, risk],
        color=colour,
        linewidth=0.8,
        alpha=0.6,
    )
    ax.plot(
        [coverage],
        [risk],
        linestyle="none",
        marker="o",
        markersize=7,
        color=colour,
        markeredgecolor="white",
        label=f"{name}: {text}" if name else text,
        zorder=4,
    )
