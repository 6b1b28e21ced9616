"""Post-hoc calibration: from a trained classifier's outputs to probabilities.

| calibrator                | p(z)                                      | parameters |
|---------------------------|-------------------------------------------|------------|
| `TemperatureScaling`      | softmax(z/T)                              | 1          |
| `VectorScaling`           | softmax(w ∘ z + b)                        | 2k         |
| `StructuredVectorScaling` | softmax(w ∘ ln q + b), q ≈ softmax(z/T)   | 2k + 1     |
| `StructuredMatrixScaling` | softmax(W ln q + b), q ≈ softmax(z/T)     | k² + k + 1 |
| `DirichletCalibration`    | softmax(W ln q + b), q = softmax(z)       | k² + k     |
| `HistogramBinning`        | frequency in the bin of q_c, renormalised | kM         |
| `IsotonicCalibration`     | non-decreasing curve of q_c, renormalised | up to kn   |
| `MetaMis`, `MetaAcc`      | softmax(z/T), or uniform if rejected      | 2          |
| `PriorCorrection`         | softmax(z + ln(target/source))            | k          |

`AutoCalibration` chooses one of them by cross-validation. `TemperatureScaling` needs a
few hundred held-out samples, and cannot change accuracy; the other calibrators need
more data the more parameters they have.
"""

from typing import TYPE_CHECKING

from keras_selcal._lazy import lazy
from keras_selcal.calibrators.auto import AutoCalibration, CandidateScore
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled
from keras_selcal.calibrators.dirichlet import DirichletCalibration
from keras_selcal.calibrators.histogram_binning import HistogramBinning
from keras_selcal.calibrators.isotonic import IsotonicCalibration
from keras_selcal.calibrators.meta_cal import MetaAcc, MetaMis
from keras_selcal.calibrators.prior_correction import PriorCorrection
from keras_selcal.calibrators.structured import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from keras_selcal.calibrators.temperature_scaling import TemperatureScaling
from keras_selcal.calibrators.vector_scaling import VectorScaling

if TYPE_CHECKING:
    from keras_selcal.calibrators.layer import CalibrationLayer
else:
    __getattr__ = lazy(__name__, {"CalibrationLayer": "layer"})

__all__ = [
    "AutoCalibration",
    "CalibrationLayer",
    "Calibrator",
    "CandidateScore",
    "DirichletCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "Labelled",
    "MetaAcc",
    "MetaMis",
    "PriorCorrection",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
]
