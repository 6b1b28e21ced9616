"""The public names of `keras_selcal`, with their homes for type checkers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_selcal import (
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
    from keras_selcal._version import __version__
    from keras_selcal.calibrators import (
        AutoCalibration,
        DirichletCalibration,
        HistogramBinning,
        IsotonicCalibration,
        MetaAcc,
        MetaMis,
        PriorCorrection,
        StructuredMatrixScaling,
        StructuredVectorScaling,
        TemperatureScaling,
        VectorScaling,
    )
    from keras_selcal.callbacks import (
        CalibrateAtEnd,
        CalibrationMonitor,
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
    from keras_selcal.selective import (
        Policy,
        RiskMonitor,
        SelectiveClassifier,
        least_cost,
        select_threshold,
    )

__all__ = [
    "AUGRC",
    "AURC",
    "AULoss",
    "AURCLoss",
    "AutoCalibration",
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
    "MetaAcc",
    "MetaMis",
    "Policy",
    "PriorCorrection",
    "ReweightedLoss",
    "RiskAtCoverage",
    "RiskMonitor",
    "SelectiveClassifier",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "__version__",
    "calibrators",
    "callbacks",
    "conformal",
    "csf",
    "functional",
    "least_cost",
    "losses",
    "metrics",
    "plots",
    "report",
    "select_threshold",
    "selective",
]
