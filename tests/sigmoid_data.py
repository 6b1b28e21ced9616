"""Metrics of sigmoid outputs by name, and data for them."""

import keras
import numpy as np
import pytest

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

EXACT = {
    "ece": F.ece,
    "ece_positive": lambda y, p, **o: F.ece(y, p, kind="positive", **o),
    "ece_adaptive": lambda y, p, **o: F.ece(y, p, 4, binning="adaptive", **o),
    "cwece": F.cwece,
    "smooth_ece": F.smooth_ece,
    "brier": F.brier,
    "brier_calibration": lambda y, p, **o: F.brier_decomposition(y, p, **o)[0],
    "nll": F.nll,
    "aurc": F.aurc,
    "aurc_brier": lambda y, p, **o: F.aurc(y, p, loss="brier", **o),
    "aurc_entropy": lambda y, p, **o: F.aurc(y, p, csf="neg_entropy", **o),
    "au": F.au,
    "excess_aurc": F.excess_aurc,
    "augrc": F.augrc,
    "failure_auroc": F.failure_auroc,
    "risk_at_coverage": lambda y, p, **o: F.risk_at_coverage(y, p, 0.6, **o),
    "coverage_at_risk": lambda y, p, **o: F.coverage_at_risk(y, p, 0.3, **o),
}
STREAMING = {
    "ece": M.ExpectedCalibrationError,
    "ece_positive": lambda **o: M.ExpectedCalibrationError(kind="positive", **o),
    "ece_adaptive": lambda **o: M.ExpectedCalibrationError(4, binning="adaptive", **o),
    "cwece": M.ClasswiseCalibrationError,
    "brier": M.BrierScore,
    "aurc": M.AURC,
    "aurc_entropy": lambda **o: M.AURC("neg_entropy", **o),
    "excess_aurc": M.ExcessAURC,
    "augrc": M.AUGRC,
    "failure_auroc": M.FailureAUROC,
    "risk_at_coverage": lambda **o: M.RiskAtCoverage(0.6, **o),
    "coverage_at_risk": lambda **o: M.CoverageAtRisk(0.3, **o),
}

# One of each kind of state: what the others inherit need not be compiled again.
KINDS = ("ece", "ece_adaptive", "cwece", "brier", "excess_aurc")


def streamed(name, y, p, sample_weight=None, **options):
    metric = STREAMING[name](**options)
    half = len(y) // 2
    for rows in (slice(half), slice(half, None)):
        w = None if sample_weight is None else sample_weight[rows]
        metric.update_state(y[rows], p[rows], w)
    return float(keras.ops.convert_to_numpy(metric.result()))


def same(value, expected, abs=1e-6):
    assert value == pytest.approx(expected, abs=abs, nan_ok=True)


def data(n=40, labels=1, seed=0):
    """A few distinct predictions, so that histograms of scores are exact."""
    rng = np.random.default_rng([seed, n, labels])
    z = rng.normal(scale=2, size=9).astype("float32")[rng.integers(0, 9, (n, labels))]
    p = 1 / (1 + np.exp(-z))
    return (rng.random((n, labels)) < p * 0.8 + 0.1).astype("int64"), z, p
