"""Histogram binning: each probability becomes the frequency seen in its bin."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_count
from keras_selcal.calibrators._one_vs_rest import (
    OneVsRest,
    class_probabilities,
    count_below,
    stack_edges,
    take_by_class,
)
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.data import Labelled

_ROUNDING = 1e-6


@serializable
class HistogramBinning(OneVsRest):
    """Histogram binning, one class against the rest, renormalised.

    Formula:

    ```
    p_c ∝ (n f_c(q_c) + (q_c + 1/k)/2)/(n + 1),     q = softmax(z)
    f_c(q_c) = (h + q_c)/(m + 1)
    ```

    with m the number of fitting samples whose q_c lies in the same bin, h how many of
    them belong to class c, and n the number of all fitting samples. The binning of the
    reference is f_c = h/m. Here each bin counts one more sample, as the model predicts
    it, and each curve one more, half as the model predicts and half uniform: no
    probability is 0, empty bins keep the model's probability, and within a bin the
    model's ranking decides.

    Bins are (a, b], the first closed. The predicted class may change; with few samples
    for each class the bins are noisy, and `fit` warns if accuracy falls. Use a smooth
    calibrator to rank samples by confidence.

    Args:
        num_bins: M, the number of bins for each class.
        binning: `"uniform"`: equal widths. `"adaptive"`: equal masses.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

    Example:
    >>> import numpy as np
    >>> logits = np.tile([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], (100, 1))
    >>> labels = np.tile([0, 0, 1, 1], 100)
    >>> calibrator = HistogramBinning().fit(logits, labels)
    >>> round(float(calibrator(logits)[0, 0]), 3)  # two of three were correct
    0.667

    References:
    - Zadrozny & Elkan, Obtaining calibrated probability estimates from decision trees
      and naive Bayesian classifiers, ICML 2001
    """

    def __init__(
        self,
        num_bins: int = 15,
        *,
        binning: str = "uniform",
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.num_bins = check_count("num_bins", num_bins)
        self.binning = check_choice("binning", binning, ("uniform", "adaptive"))

    def _fit(self, data: Labelled) -> Parameters:
        q, hits, weight = class_probabilities(data)
        k, M = q.shape[-1], self.num_bins
        if self.binning == "uniform":
            inner = np.tile(np.arange(1, M) / M, (k, 1))
        else:
            inner = _equal_mass_edges(q, weight, M)
        # A probability on an edge (of a random forest, for example) belongs to the bin
        # below it, also if it is rounded up.
        inner = (inner * (1 + _ROUNDING)).astype("float32").astype("float64")
        edges = stack_edges(list(inner))
        # The same count as `count_below`, class by class.
        bins = np.stack([np.searchsorted(edges[c], q[:, c]) for c in range(k)], axis=1)
        flat = (bins + np.arange(k) * M).ravel()

        def per_bin(values: np.ndarray) -> np.ndarray:
            return np.bincount(flat, values.ravel(), minlength=k * M).reshape(k, M)

        return {
            "edges": edges,
            "hits": per_bin(weight * hits),
            "count": per_bin(weight),
            "n": np.asarray(data.total),
        }

    def _curves(self, q: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        bins = count_below(parameters["edges"], q, xp)
        h = take_by_class(parameters["hits"], bins, xp)
        m = take_by_class(parameters["count"], bins, xp)
        return (h + q) / (m + 1)


def _equal_mass_edges(q: np.ndarray, weight: np.ndarray, num_bins: int) -> np.ndarray:
    """Returns the inner edges of each class, (k, M − 1).

    An edge lies halfway between the last sample of a run and the first of the next. A
    sample of weight w has the effect of w copies.
    """
    order = np.argsort(q, axis=0, kind="stable")
    q = np.take_along_axis(q, order, axis=0)
    upto = np.cumsum(np.take_along_axis(weight, order, axis=0), axis=0)

    def at(position: np.ndarray) -> np.ndarray:
        """Returns the sample that covers a position of the cumulative weight."""
        index = np.minimum((upto <= position).sum(axis=0), len(q) - 1)
        return np.take_along_axis(q, index[None], axis=0)[0]

    cuts = [np.floor(j * upto[-1] / num_bins + 1e-9) for j in range(1, num_bins)]
    halfway = [(at(np.maximum(cut - 1, 0)) + at(cut)) / 2 for cut in cuts]
    return np.stack(halfway, axis=1) if cuts else np.empty((q.shape[-1], 0))
