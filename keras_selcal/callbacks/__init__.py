"""Callbacks that monitor calibration during training and calibrate when it ends."""

from keras_selcal.callbacks.calibrate_at_end import CalibrateAtEnd
from keras_selcal.callbacks.calibration_monitor import CalibrationMonitor

__all__ = ["CalibrateAtEnd", "CalibrationMonitor"]
