"""Selective prediction: classifiers that abstain where confidence is too low."""

from keras_selcal.selective.bounds import risk_bound
from keras_selcal.selective.classifier import (
    SelectiveClassifier,
    SelectivePrediction,
)
from keras_selcal.selective.drift import DriftCheck, DriftMonitor, ks_test
from keras_selcal.selective.layer import ABSTAINED, SelectionLayer
from keras_selcal.selective.losses import answer_losses
from keras_selcal.selective.threshold import select_threshold

__all__ = [
    "ABSTAINED",
    "DriftCheck",
    "DriftMonitor",
    "SelectionLayer",
    "SelectiveClassifier",
    "SelectivePrediction",
    "answer_losses",
    "ks_test",
    "risk_bound",
    "select_threshold",
]
