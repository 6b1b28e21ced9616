"""Calibrators by name, and logits and events to fit them on."""

import numpy as np
from keras import ops
from reference import softmax

from keras_selcal.calibrators import (
    AutoCalibration,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MetaAcc,
    MetaMis,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)


def auto(**options):
    """Returns a choice among few, with the options that candidates must share."""
    shared = {key: options[key] for key in ("multi_label", "axis") if key in options}
    candidates = [TemperatureScaling(**shared), HistogramBinning(**shared)]
    return AutoCalibration(candidates, **options)


ALL = {
    "ts": TemperatureScaling,
    "ts_ece": lambda **kw: TemperatureScaling("ece", **kw),
    "vector": VectorScaling,
    "odir": DirichletCalibration,
    "l2": lambda **kw: DirichletCalibration("l2", regularization=[1.0, 0.1], **kw),
    "svs": StructuredVectorScaling,
    "sms": StructuredMatrixScaling,
    "histogram": HistogramBinning,
    "adaptive": lambda **kw: HistogramBinning(10, binning="adaptive", **kw),
    "isotonic": IsotonicCalibration,
    "meta_mis": lambda **kw: MetaMis(0.1, seed=3, **kw),
    "meta_acc": lambda **kw: MetaAcc(0.9, seed=3, **kw),
    "auto": auto,
}


def draw(n=600, k=4, scale=3.0, temperature=2.0, seed=0):
    """Logits, and labels drawn from softmax(z/temperature)."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k)).astype("float32")
    cdf = softmax(z / temperature).cumsum(-1)
    return z, np.minimum((rng.random((n, 1)) > cdf).sum(-1), k - 1)


def draw_events(n=800, k=3, seed=0):
    """Logits of independent sigmoids that are too confident, and multi-hot labels."""
    rng = np.random.default_rng(seed)
    z = (4 * rng.normal(size=(n, k)) - 2).astype("float32")
    truth = 1 / (1 + np.exp(-z / np.arange(1.5, 1.5 + k)))
    return z, (rng.random((n, k)) < truth).astype("int64")


def assert_same_fit(one, other, rtol=1e-6, atol=1e-7):
    assert one.parameters.keys() == other.parameters.keys()
    for name, value in one.parameters.items():
        np.testing.assert_allclose(
            other.parameters[name], value, rtol=rtol, atol=atol, err_msg=name
        )


def ece(p, y, num_bins=15):
    confidence, right = p.max(-1), p.argmax(-1) == y
    total = 0.0
    for b in range(num_bins):
        inside = (confidence > b / num_bins) & (confidence <= (b + 1) / num_bins)
        total += abs((confidence[inside] - right[inside]).sum())
    return total / len(y)


def as_tensor(x):
    return ops.convert_to_tensor(x, dtype="float32")
