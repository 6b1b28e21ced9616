"""Streaming metrics by name, and batches to feed them."""

import numpy as np
from backends import numpy

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

# Few shapes, those of the losses' tests: JAX compiles every operation for each.
K = 5
N = 72
BATCH = 24

# Name of the metric: its class, its options, the exact function.
CASES = {
    "ece": (M.ExpectedCalibrationError, {}, F.ece),
    "ece_l2": (M.ExpectedCalibrationError, {"norm": "l2"}, F.ece),
    "ece_max": (M.ExpectedCalibrationError, {"norm": "max", "num_bins": 3}, F.ece),
    "ece_adaptive": (
        M.ExpectedCalibrationError,
        {"binning": "adaptive", "num_bins": 7},
        F.ece,
    ),
    "ece_adaptive_max": (
        M.ExpectedCalibrationError,
        {"binning": "adaptive", "num_bins": 4, "norm": "max"},
        F.ece,
    ),
    "cwece": (M.ClasswiseCalibrationError, {}, F.cwece),
    "cwece_l2": (M.ClasswiseCalibrationError, {"norm": "l2"}, F.cwece),
    "cwece_adaptive": (
        M.ClasswiseCalibrationError,
        {"binning": "adaptive", "num_bins": 7},
        F.cwece,
    ),
    "brier": (M.BrierScore, {}, F.brier),
    "aurc": (M.AURC, {}, F.aurc),
    "aurc_margin": (M.AURC, {"csf": "margin"}, F.aurc),
    "aurc_neg_entropy": (M.AURC, {"csf": "neg_entropy"}, F.aurc),
    "excess_aurc": (M.ExcessAURC, {}, F.excess_aurc),
    "augrc": (M.AUGRC, {}, F.augrc),
    "failure_auroc": (M.FailureAUROC, {}, F.failure_auroc),
    "risk_at_coverage": (M.RiskAtCoverage, {"coverage": 0.45}, F.risk_at_coverage),
    "coverage_at_risk": (M.CoverageAtRisk, {"risk": 0.5}, F.coverage_at_risk),
}
# One of each kind of state.
KINDS = ["ece", "ece_adaptive", "cwece", "brier", "aurc", "coverage_at_risk"]


def make(case, /, **options):
    cls, own, _ = CASES[case]
    return cls(**own, **options)


def exact(case, y, p, **options):
    _, own, function = CASES[case]
    return function(y, p, **own, **options)


def data(n=N, k=K, seed=0):
    """A dozen distinct predictions: ties are whole cells, so histograms are exact."""
    rng = np.random.default_rng([seed, n, k])
    kinds = rng.normal(size=(12, k), scale=2).astype("float32")
    z = kinds[rng.integers(0, 12, n)]
    y = (z + rng.gumbel(size=(n, k))).argmax(-1)
    return y.astype("int32"), z


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def value(metric):
    return float(numpy(metric.result()))
