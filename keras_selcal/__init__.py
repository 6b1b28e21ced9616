"""Calibrated probabilities and the right to abstain, for Keras 3."""

from keras_selcal import csf, functional, losses
from keras_selcal.losses import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
    ReweightedLoss,
)

__version__ = "0.1.0"

__all__ = [
    "AULoss",
    "AURCLoss",
    "DualFocalLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDECrossentropy",
    "ReweightedLoss",
    "__version__",
    "csf",
    "functional",
    "losses",
]
