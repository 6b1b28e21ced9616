"""Metrics that stream: calibration, proper scores, selective classification."""

from keras_selcal.metrics.base import ClassificationMetric, RankingMetric
from keras_selcal.metrics.brier_score import BrierScore
from keras_selcal.metrics.calibration_error import (
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
)
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
]
