"""Guarantees: sets that hold the right class, and thresholds that hold a risk."""

from typing import TYPE_CHECKING

from keras_selcal._lazy import lazy
from keras_selcal.conformal.evaluation import evaluate_sets
from keras_selcal.conformal.record import ConformalPrediction, ConformalRecord
from keras_selcal.conformal.risk_control import control_risk, multi_label_losses
from keras_selcal.conformal.scores import conformal_scores, conformal_sets
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold

if TYPE_CHECKING:
    from keras_selcal.conformal.classifier import ConformalClassifier
    from keras_selcal.conformal.layer import ConformalLayer
else:
    __getattr__ = lazy(
        __name__, {"ConformalClassifier": "classifier", "ConformalLayer": "layer"}
    )

__all__ = [
    "ConformalClassifier",
    "ConformalLayer",
    "ConformalPrediction",
    "ConformalRecord",
    "choose_penalty",
    "conformal_scores",
    "conformal_sets",
    "conformal_threshold",
    "control_risk",
    "evaluate_sets",
    "multi_label_losses",
]
