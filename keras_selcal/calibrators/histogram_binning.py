"""Histogram binning: each probability becomes the frequency seen in its bin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import check_choice, check_count
from keras_selcal.calibrators._one_vs_rest import (
    class_probabilities,
    count_below,
    renormalize,
    stack_edges,
    take_by_class,
)
from keras_selcal.calibrators.base import Calibrator, Parameters


@serializable
class HistogramBinning(Calibrator):
    """Histogram binning, one class against the rest, renormalised.

    Formula:

    ```
    p_c ∝ share of class c among the fitting samples whose q_c lies in the same bin,
    q = softmax(z)
    ```

    Bins are (a, b], the first closed. A bin without samples answers its middle; a row
    of zeros only becomes the uniform vector. The predicted class may change, and many
    samples share a confidence: for ranking samples take a smooth calibrator.

    Args:
        num_bins: M, bins a class.
        binning: `"uniform"`: equal widths. `"adaptive"`: equal masses.

    Example:
    >>> import numpy as np
    >>> logits = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> calibrator = HistogramBinning().fit(logits, np.array([0, 0, 1, 1]))
    >>> round(float(calibrator(logits)[0, 0]), 4)  # two of three were right
    0.6667

    Reference:

    - Zadrozny & Elkan, Obtaining calibrated probability estimates from decision trees
      and naive Bayesian classifiers, ICML 2001
    """

    def __init__(self, num_bins: int = 15, binning: str = "uniform") -> None:
        super().__init__()
        self.num_bins = check_count("num_bins", num_bins)
        self.binning = check_choice("binning", binning, ("uniform", "adaptive"))

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        q = class_probabilities(logits)
        n, k = q.shape
        M = self.num_bins
        if self.binning == "uniform":
            inner = np.tile(np.arange(1, M) / M, (k, 1))
        else:
            # Halfway between the last sample of a run and the first of the next.
            ordered = np.sort(q, axis=0)
            cut = np.arange(1, M) * n // M
            inner = (ordered[np.maximum(cut - 1, 0)] + ordered[cut]).T / 2
        edges = stack_edges(list(inner.astype("float32").astype("float64")))
        # The same count as `count_below`, class by class.
        bins = np.stack([np.searchsorted(edges[c], q[:, c]) for c in range(k)], axis=1)
        flat = (bins + np.arange(k) * M).ravel()
        hits = (labels[:, None] == np.arange(k)).ravel()
        count = np.bincount(flat, minlength=k * M).reshape(k, M)
        positive = np.bincount(flat, hits, minlength=k * M).reshape(k, M)
        bounds = np.concatenate([np.zeros((k, 1)), inner, np.ones((k, 1))], axis=1)
        middle = (bounds[:, 1:] + bounds[:, :-1]) / 2
        frequency = np.where(count > 0, positive / np.maximum(count, 1), middle)
        return {"edges": edges, "frequency": frequency}

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        q = ops.softmax(logits, axis=-1)
        bins = count_below(parameters["edges"], q)
        return renormalize(take_by_class(parameters["frequency"], bins))

    def get_config(self) -> dict[str, Any]:
        return {"num_bins": self.num_bins, "binning": self.binning}
