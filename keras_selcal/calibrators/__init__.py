"""Post-hoc calibration: from a trained classifier's logits to honest probabilities.

| calibrator             | p(z)                                 | parameters |
|------------------------|--------------------------------------|------------|
| `TemperatureScaling`   | softmax(z/T)                         | 1          |
| `VectorScaling`        | softmax(w ∘ z + b)                   | 2k         |
| `DirichletCalibration` | softmax(W ln q + b), q = softmax(z)  | k² + k     |
| `HistogramBinning`     | frequency in q_c's bin, renormalised | kM         |
| `IsotonicCalibration`  | rising curve of q_c, renormalised    | up to kn   |
| `MetaMis`, `MetaAcc`   | softmax(z/T), or rejected as uniform | 2          |

Start with `TemperatureScaling`: it needs some hundred held-out samples and cannot
lower accuracy. The others need more data the more parameters they have.
"""

from keras_selcal.calibrators.base import CalibrationLayer, Calibrator
from keras_selcal.calibrators.dirichlet import DirichletCalibration
from keras_selcal.calibrators.finetune import finetune
from keras_selcal.calibrators.histogram_binning import HistogramBinning
from keras_selcal.calibrators.isotonic import IsotonicCalibration
from keras_selcal.calibrators.meta_cal import MetaAcc, MetaMis
from keras_selcal.calibrators.temperature_scaling import TemperatureScaling
from keras_selcal.calibrators.vector_scaling import VectorScaling

__all__ = [
    "CalibrationLayer",
    "Calibrator",
    "DirichletCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "MetaAcc",
    "MetaMis",
    "TemperatureScaling",
    "VectorScaling",
    "finetune",
]
