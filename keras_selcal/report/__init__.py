"""All metrics of a set of predictions: as a table, as data, and as a page."""

from keras_selcal.report.comparison import Comparison, Difference
from keras_selcal.report.evaluation import Interval
from keras_selcal.report.report import CalibrationReport

__all__ = ["CalibrationReport", "Comparison", "Difference", "Interval"]
