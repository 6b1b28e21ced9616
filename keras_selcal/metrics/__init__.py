"""Metrics that stream: calibration, proper scores, selective classification."""

from typing import Any

import keras

from keras_selcal._saving import deserialize_if_config
from keras_selcal._validation import refuse
from keras_selcal.metrics.base import ClassificationMetric
from keras_selcal.metrics.brier_score import BrierScore
from keras_selcal.metrics.calibration_error import (
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
)
from keras_selcal.metrics.ranking import RankingMetric
from keras_selcal.metrics.selective import (
    AUGRC,
    AURC,
    CoverageAtRisk,
    ExcessAURC,
    FailureAUROC,
    RiskAtCoverage,
)

__all__ = [
    "AUGRC",
    "AURC",
    "BrierScore",
    "ClassificationMetric",
    "ClasswiseCalibrationError",
    "CoverageAtRisk",
    "ExcessAURC",
    "ExpectedCalibrationError",
    "FailureAUROC",
    "RankingMetric",
    "RiskAtCoverage",
    "get",
]

# The metrics that need no argument, by their default names.
_METRICS = {
    "ece": ExpectedCalibrationError,
    "cwece": ClasswiseCalibrationError,
    "brier": BrierScore,
    "aurc": AURC,
    "excess_aurc": ExcessAURC,
    "augrc": AUGRC,
    "failure_auroc": FailureAUROC,
}


def get(identifier: Any) -> Any:
    """Retrieves a metric by its name, configuration or class.

    Keras resolves strings only to its own metrics; this function resolves them to the
    library's first.

    Args:
        identifier: the name of a metric (`"ece"`), of its class
            (`"ExpectedCalibrationError"`), a config as
            `keras.saving.serialize_keras_object` gives it, a metric, a callable, or
            anything that `keras.metrics.get` knows.

    Example:
    >>> get("ece").name
    'ece'
    """
    identifier = deserialize_if_config(identifier)
    if isinstance(identifier, str):
        for name, metric in _METRICS.items():
            if identifier in (name, metric.__name__):
                return metric()
    try:
        return keras.metrics.get(identifier)
    except (ValueError, TypeError):
        listed = ", ".join(repr(name) for name in _METRICS)
        refuse("identifier", identifier, f"one of {listed}, or known to Keras")
