"""Plain functions: the soft CDF and the sample weights of the losses."""

from keras_selcal.functional.cdf import soft_cdf
from keras_selcal.functional.weights import (
    au_weights,
    aurc_weights,
    paper_smoothing,
)

__all__ = ["au_weights", "aurc_weights", "paper_smoothing", "soft_cdf"]
