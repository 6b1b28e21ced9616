"""Callbacks: calibration watched while a model trains, and done when it ends."""

from keras_selcal.callbacks.calibrate_at_end import CalibrateAtEnd
from keras_selcal.callbacks.calibration_monitor import CalibrationMonitor
from keras_selcal.callbacks.cdf_memory import CDFMemory
from keras_selcal.callbacks.loss_schedule import LossSchedule

__all__ = ["CDFMemory", "CalibrateAtEnd", "CalibrationMonitor", "LossSchedule"]
