"""The table of metrics, with one row for each, used by reports, callbacks and recipes.

`METRICS["ece"]` is the row of a metric, `metric_row("risk_at_coverage_0.8")` the row of
a metric at a value. `row.function(y_true, y_pred)` computes the metric exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from keras_selcal import functional
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import refuse


@dataclass(frozen=True)
class MetricRow:
    """A metric: its functions, and its names, unit and direction in reports.

    Attributes:
        name: its key in reports and logs; `risk_at_coverage_0.8` for a metric at a
            value.
        function: computes the metric exactly from `y_true` and `y_pred`.
        title: its name in text.
        short: its name in tables and plots.
        meaning: what it measures, in a sentence; `{num_bins}` is replaced by the number
            of bins.
        unit: `"share"` for shares of the samples, `"points"` for differences of
            shares, `"nats"`, or `""`.
        direction: `"up"` if higher is better, else `"down"`, as Keras's `_direction`.
        options: names of the options that `function` takes, of `num_bins` and `csf`.
        at: name of the argument that the metric depends on, `"coverage"` or `"risk"`,
            or None.
    """

    name: str
    function: Callable[..., float]
    title: str
    short: str
    meaning: str
    unit: str
    direction: str = "down"
    options: tuple[str, ...] = ()
    at: str | None = None

    @property
    def arrow(self) -> str:
        return "↑" if self.direction == "up" else "↓"

    @property
    def better(self) -> str:
        return "higher" if self.direction == "up" else "lower"

    def at_value(self, value: float) -> "MetricRow":
        """Returns the row of this metric at a coverage or a risk."""
        shown = f"{100 * value:g}\N{NO-BREAK SPACE}%"
        return replace(
            self,
            name=f"{self.name}_{value:g}",
            function=partial(self.function, **{str(self.at): value}),
            title=f"{self.title} {shown}",
            short=f"{self.short} {shown}",
            meaning=self.meaning.replace("{value}", shown),
            at=None,
        )

    def compute(self, y_true: Any, y_pred: Any, **options: Any) -> float:
        """Computes the metric; ignores `num_bins` or `csf` if it has no such option."""
        for name in ("num_bins", "csf"):
            if name not in self.options:
                options.pop(name, None)
        return float(self.function(y_true, y_pred, **options))


def _accuracy(y_true: Any, y_pred: Any, **options: Any) -> float:
    samples = Samples.given(y_true, y_pred, **options)
    # NaN has no predicted class.
    return samples.mean(np.where(np.isnan(samples.confidence), np.nan, samples.correct))


_BINS, _RANKED = ("num_bins",), ("csf",)

_ROWS = (
    MetricRow(
        "accuracy",
        _accuracy,
        "Accuracy",
        "Accuracy",
        "How often the prediction is correct.",
        "share",
        "up",
    ),
    MetricRow(
        "nll",
        functional.nll,
        "Negative log-likelihood",
        "NLL",
        "Mean of −ln p of the true class: 0 if every prediction is correct and "
        "certain, large if the model is confident and wrong.",
        "nats",
    ),
    MetricRow(
        "refinement",
        functional.refinement,
        "Refinement",
        "refinement",
        "Negative log-likelihood after the best temperature: what recalibration cannot "
        "remove.",
        "nats",
    ),
    MetricRow(
        "brier",
        functional.brier,
        "Brier score",
        "Brier",
        "Squared distance between probabilities and labels: 0 if correct and certain, "
        "2 if wrong and certain.",
        "",
    ),
    MetricRow(
        "ece",
        functional.ece,
        "Expected calibration error (ECE)",
        "ECE",
        "Gap between confidence and accuracy, averaged over {num_bins} bins of equal "
        "width.",
        "points",
        options=_BINS,
    ),
    MetricRow(
        "positive_ece",
        partial(functional.ece, kind="positive"),
        "Positive-class ECE",
        "positive-class ECE",
        "Gap between the probability of class 1 and its frequency, averaged over "
        "{num_bins} bins of equal width.",
        "points",
        options=_BINS,
    ),
    MetricRow(
        "adaptive_ece",
        partial(functional.ece, binning="adaptive"),
        "Adaptive ECE",
        "adaptive ECE",
        "ECE over {num_bins} bins that hold equally many samples.",
        "points",
        options=_BINS,
    ),
    MetricRow(
        "cwece",
        functional.cwece,
        "Class-wise calibration error",
        "cwECE",
        "Calibration error of each class’s probability, averaged over the classes.",
        "points",
        options=_BINS,
    ),
    MetricRow(
        "smooth_ece",
        functional.smooth_ece,
        "Smooth ECE",
        "smooth ECE",
        "ECE with a kernel instead of bins.",
        "points",
    ),
    MetricRow(
        "aurc",
        functional.aurc,
        "Area under the risk-coverage curve (AURC)",
        "AURC",
        "Error rate of the most confident predictions, averaged over all coverages.",
        "",
        options=_RANKED,
    ),
    MetricRow(
        "excess_aurc",
        functional.excess_aurc,
        "Excess AURC",
        "excess AURC",
        "AURC minus the AURC of the best ranking: 0 if every wrong prediction is less "
        "confident than every correct one.",
        "",
        options=_RANKED,
    ),
    MetricRow(
        "augrc",
        functional.augrc,
        "Area under the generalized risk-coverage curve (AUGRC)",
        "AUGRC",
        "Share of samples that are accepted and wrong, averaged over all coverages.",
        "",
        options=_RANKED,
    ),
    MetricRow(
        "failure_auroc",
        functional.failure_auroc,
        "Failure AUROC",
        "failure AUROC",
        "Probability that a correct prediction is more confident than a wrong one: 0.5 "
        "is chance, 1 is perfect.",
        "",
        "up",
        options=_RANKED,
    ),
    MetricRow(
        "risk_at_coverage",
        functional.risk_at_coverage,
        "Risk at coverage",
        "risk at coverage",
        "Error rate of the most confident {value} of the samples.",
        "share",
        options=_RANKED,
        at="coverage",
    ),
    MetricRow(
        "coverage_at_risk",
        functional.coverage_at_risk,
        "Coverage at risk",
        "coverage at risk",
        "Largest share of the samples that can be accepted with an error rate of at "
        "most {value}.",
        "share",
        "up",
        options=_RANKED,
        at="risk",
    ),
)

METRICS: dict[str, MetricRow] = {row.name: row for row in _ROWS}


def metric_row(name: str) -> MetricRow:
    """Returns the row of a metric, as `"ece"` or `"risk_at_coverage_0.8"`.

    Example:
    >>> metric_row("coverage_at_risk_0.01").better
    'higher'
    """
    row = METRICS.get(name)
    if row is not None and row.at is None:
        return row
    base, _, value = name.rpartition("_")
    row = METRICS.get(base)
    try:
        if row is not None and row.at is not None:
            return row.at_value(float(value))
    except ValueError:
        pass
    listed = ", ".join(row.name for row in _ROWS if row.at is None)
    refuse("metric", name, f"one of {listed}, or as risk_at_coverage_0.8")
