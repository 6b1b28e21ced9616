"""Plots of calibration and selective classification, made with matplotlib.

Every function draws on the optional `ax`, or on a new figure, and returns the Axes. To
save or show a plot, call `ax.figure.savefig("plot.png")` or
`matplotlib.pyplot.show()`. matplotlib is imported by the first call.
"""

from typing import TYPE_CHECKING

from keras_selcal._lazy import lazy
from keras_selcal.plots.histogram import confidence_histogram
from keras_selcal.plots.reliability import reliability_diagram, reliability_gaps
from keras_selcal.plots.risk_coverage import risk_coverage_curve
from keras_selcal.plots.score_cdf import score_cdf
from keras_selcal.plots.sets import class_coverage, set_sizes
from keras_selcal.plots.threshold_risk import threshold_risk

if TYPE_CHECKING:
    from keras_selcal.plots.loss_curves import (
        loss_gradients,
        loss_values,
        loss_weights,
        sample_gradients,
    )
else:
    _NEED_KERAS = ("loss_gradients", "loss_values", "loss_weights", "sample_gradients")
    __getattr__ = lazy(__name__, dict.fromkeys(_NEED_KERAS, "loss_curves"))

__all__ = [
    "class_coverage",
    "confidence_histogram",
    "loss_gradients",
    "loss_values",
    "loss_weights",
    "reliability_diagram",
    "reliability_gaps",
    "risk_coverage_curve",
    "sample_gradients",
    "score_cdf",
    "set_sizes",
    "threshold_risk",
]
