"""Pictures of calibration, selective classification and losses, by matplotlib.

Every function takes an optional `ax`, draws on it and returns it; without one it makes
a figure of its own. None shows or saves anything: `ax.figure.savefig("picture.png")`,
or `matplotlib.pyplot.show()`. matplotlib is imported by the first call.
"""

from keras_selcal.plots.histogram import confidence_histogram
from keras_selcal.plots.loss_curves import loss_gradients, loss_values, loss_weights
from keras_selcal.plots.reliability import reliability_diagram, reliability_gaps
from keras_selcal.plots.risk_coverage import risk_coverage_curve
from keras_selcal.plots.sample_gradients import sample_gradients
from keras_selcal.plots.score_cdf import score_cdf
from keras_selcal.plots.sets import class_coverage, set_sizes
from keras_selcal.plots.threshold_risk import threshold_risk

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
