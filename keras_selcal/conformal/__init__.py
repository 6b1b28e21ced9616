"""Prediction sets that hold the right class with a chosen probability."""

from keras_selcal.conformal.classifier import ConformalClassifier, ConformalPrediction
from keras_selcal.conformal.layer import ConformalLayer
from keras_selcal.conformal.scores import conformal_scores, conformal_sets
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold

__all__ = [
    "ConformalClassifier",
    "ConformalLayer",
    "ConformalPrediction",
    "choose_penalty",
    "conformal_scores",
    "conformal_sets",
    "conformal_threshold",
]
