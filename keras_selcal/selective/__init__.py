"""Selective prediction: classifiers that abstain where confidence is too low."""

from typing import TYPE_CHECKING

from keras_selcal._lazy import lazy
from keras_selcal.selective.bounds import risk_bound
from keras_selcal.selective.costs import least_cost
from keras_selcal.selective.drift import DriftCheck, DriftMonitor, ks_test
from keras_selcal.selective.losses import answer_losses
from keras_selcal.selective.policy import Policy
from keras_selcal.selective.record import ABSTAINED, FitRecord, SelectivePrediction
from keras_selcal.selective.risk_monitor import RiskMonitor
from keras_selcal.selective.threshold import select_threshold

if TYPE_CHECKING:
    from keras_selcal.selective.classifier import SelectiveClassifier
    from keras_selcal.selective.layer import SelectionLayer
else:
    __getattr__ = lazy(
        __name__, {"SelectiveClassifier": "classifier", "SelectionLayer": "layer"}
    )

__all__ = [
    "ABSTAINED",
    "DriftCheck",
    "DriftMonitor",
    "FitRecord",
    "Policy",
    "RiskMonitor",
    "SelectionLayer",
    "SelectiveClassifier",
    "SelectivePrediction",
    "answer_losses",
    "ks_test",
    "least_cost",
    "risk_bound",
    "select_threshold",
]
