"""Plain functions: exact metrics, the soft CDF, sample weights of the losses."""

from keras_selcal.functional.calibration import (
    calibration_error,
    cwece,
    ece,
)
from keras_selcal.functional.kde import kde_ece
from keras_selcal.functional.refinement import refinement
from keras_selcal.functional.reliability import reliability_curve, selective_fallback
from keras_selcal.functional.risk_coverage import (
    coverage_at_risk,
    risk_at_coverage,
    risk_coverage_curve,
)
from keras_selcal.functional.scores import brier, brier_decomposition, nll
from keras_selcal.functional.selective import (
    au,
    augrc,
    aurc,
    excess_aurc,
    failure_auroc,
)
from keras_selcal.functional.smooth_ece import smooth_ece
from keras_selcal.functional.soft_cdf import soft_cdf
from keras_selcal.functional.unknown import (
    fpr_at_tpr,
    ood_aupr,
    ood_auroc,
    scod_augrc,
    scod_aurc,
)
from keras_selcal.functional.weights import (
    au_weights,
    aurc_weights,
    paper_smoothing,
)

__all__ = [
    "au",
    "au_weights",
    "augrc",
    "aurc",
    "aurc_weights",
    "brier",
    "brier_decomposition",
    "calibration_error",
    "coverage_at_risk",
    "cwece",
    "ece",
    "excess_aurc",
    "failure_auroc",
    "fpr_at_tpr",
    "kde_ece",
    "nll",
    "ood_aupr",
    "ood_auroc",
    "paper_smoothing",
    "refinement",
    "reliability_curve",
    "risk_at_coverage",
    "risk_coverage_curve",
    "scod_augrc",
    "scod_aurc",
    "selective_fallback",
    "smooth_ece",
    "soft_cdf",
]
