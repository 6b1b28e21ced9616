"""Predictions for reports, and their replicates."""

import numpy as np

from keras_selcal import CalibrationReport, csf
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional.refinement import refined_losses
from keras_selcal.report import bootstrap as bootstraps

COVERAGES, RISKS = (0.3, 0.8, 1.0), (0.0, 0.2)


def data(rng, n, k, kind="logits"):
    """Labels, predictions and options of functional metrics."""
    z = rng.normal(size=(n, k)) * 2
    y = np.where(rng.random(n) < 0.6, z.argmax(-1), rng.integers(0, k, n))
    if kind == "logits":
        return y, z, {"from_logits": True}
    if kind == "ties":
        z = np.round(z)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    if kind == "saturated":
        p = np.eye(k)[p.argmax(-1)]
    if kind == "untrained":
        p = np.full((n, k), 1 / k)
    if kind == "float32":
        p = p.astype("float32")
    if kind == "soft":
        y = rng.dirichlet(np.ones(k), n)
    return y, p, {}


def report_of(y, p, bootstrap=20, **options):
    return CalibrationReport(
        y, p, bootstrap=bootstrap, coverages=COVERAGES, risks=RISKS, **options
    )


def resampled(y, p, csf_name="msp", num_bins=15, from_logits=False, sample_weight=None):
    samples = Samples.of(y, p, Outputs(from_logits), sample_weight)
    return bootstraps.Resampled(
        samples,
        csf.get(csf_name),
        num_bins,
        COVERAGES,
        RISKS,
        refined_losses(samples),
    )
