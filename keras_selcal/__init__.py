"""Calibrated probabilities and the right to abstain, for Keras 3."""

import sys

from keras_selcal._version import __version__

# `python -m keras_selcal` imports this package before its `__main__`, which prints help
# and chooses a backend before it imports Keras.
if sys.argv[:1] != ["-m"] or "keras_selcal" not in sys.orig_argv:
    from keras_selcal import (
        analysis,
        calibrators,
        callbacks,
        conformal,
        csf,
        functional,
        losses,
        metrics,
        plots,
        report,
        selective,
    )
    from keras_selcal.calibrators import (
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
    from keras_selcal.callbacks import (
        CalibrateAtEnd,
        CalibrationMonitor,
        LossSchedule,
    )
    from keras_selcal.conformal import ConformalClassifier
    from keras_selcal.losses import (
        AULoss,
        AURCLoss,
        DualFocalLoss,
        FocalLoss,
        InverseFocalLoss,
        KDECrossentropy,
        ReweightedLoss,
    )
    from keras_selcal.metrics import (
        AUGRC,
        AURC,
        BrierScore,
        ClasswiseCalibrationError,
        CoverageAtRisk,
        ExcessAURC,
        ExpectedCalibrationError,
        FailureAUROC,
        RiskAtCoverage,
    )
    from keras_selcal.report import CalibrationReport
    from keras_selcal.selective import SelectiveClassifier, select_threshold

__all__ = [
    "AUGRC",
    "AURC",
    "AULoss",
    "AURCLoss",
    "BrierScore",
    "CalibrateAtEnd",
    "CalibrationMonitor",
    "CalibrationReport",
    "ClasswiseCalibrationError",
    "ConformalClassifier",
    "CoverageAtRisk",
    "DirichletCalibration",
    "DualFocalLoss",
    "ExcessAURC",
    "ExpectedCalibrationError",
    "FailureAUROC",
    "FocalLoss",
    "HistogramBinning",
    "InverseFocalLoss",
    "IsotonicCalibration",
    "KDECrossentropy",
    "LossSchedule",
    "MetaAcc",
    "MetaMis",
    "ReweightedLoss",
    "RiskAtCoverage",
    "SelectiveClassifier",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "__version__",
    "analysis",
    "calibrators",
    "callbacks",
    "conformal",
    "csf",
    "functional",
    "losses",
    "metrics",
    "plots",
    "report",
    "select_threshold",
    "selective",
]
