"""The same work done by other packages, those of them that are installed."""

import importlib.util

import numpy as np


def peers(y, p):
    """Returns functions of other packages on labels (n,) and probabilities (n, k)."""
    found = {}
    k = p.shape[-1]
    if importlib.util.find_spec("netcal"):
        from netcal.metrics import ECE

        found["netcal ECE"] = lambda: ECE(15).measure(p, y)
    if importlib.util.find_spec("sklearn"):
        from sklearn.metrics import log_loss

        labels = np.arange(k)
        found["scikit-learn log_loss"] = lambda: log_loss(y, p, labels=labels)
    if importlib.util.find_spec("torchmetrics"):
        import torch
        from torchmetrics.functional.classification import multiclass_calibration_error

        tensors = torch.from_numpy(p), torch.from_numpy(y)
        found["torchmetrics ECE"] = lambda: multiclass_calibration_error(
            *tensors, num_classes=k, n_bins=15
        )
    if importlib.util.find_spec("keras_proba"):
        from keras_proba.metrics import calibration

        logits = np.log(np.maximum(p, 1e-37))
        found["keras-proba ECE"] = lambda: calibration.expected_calibration_error(
            15, logits, y
        )
    return found
