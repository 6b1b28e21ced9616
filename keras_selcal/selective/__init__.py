"""Selective prediction: classifiers that abstain where confidence is too low."""

from keras_selcal.selective.bounds import risk_bound
from keras_selcal.selective.classifier import SelectiveClassifier, SelectivePrediction
from keras_selcal.selective.layer import ABSTAINED, SelectionLayer
from keras_selcal.selective.threshold import select_threshold

__all__ = [
    "ABSTAINED",
    "SelectionLayer",
    "SelectiveClassifier",
    "SelectivePrediction",
    "risk_bound",
    "select_threshold",
]
