"""Losses of single samples, for the exact metrics."""

from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import refuse

LOSSES = ("zero_one", "crossentropy", "brier")


def sample_losses(samples: Samples, loss: Any) -> Array:
    """Returns the loss of each sample, (n,)."""
    if isinstance(loss, str):
        if loss == "zero_one":
            return 1.0 - samples.correct
        if loss == "crossentropy":
            losses = -samples.each(
                lambda rows: samples.of_label(samples.log_p(rows), rows)
            )
            # NaN in a class other than the true one makes the prediction NaN as well.
            return np.where(np.isnan(samples.confidence), np.nan, losses)
        if loss == "brier":
            return samples.each(lambda rows: _squared_distance(samples, rows))
    listed = ", ".join(repr(name) for name in LOSSES)
    refuse("loss", loss, f"one of {listed}")


def _squared_distance(samples: Samples, rows: slice) -> Array:
    p = samples.p(rows).astype("float64")
    p -= samples.one_hot(rows)
    return np.einsum("ij,ij->i", p, p)
