"""All metrics of a set of predictions: as a table, as data, and as a page."""

from keras_selcal.report.report import (
    CalibrationReport,
    Comparison,
    Difference,
    Interval,
)

__all__ = ["CalibrationReport", "Comparison", "Difference", "Interval"]
