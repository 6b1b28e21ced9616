"""Temperature scaling: one number that divides the logits."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._predictions.labelled import Labelled
from keras_selcal._predictions.temperature import (
    below_top_of,
    nll_temperature,
    small_blocks,
)
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.base import Calibrator

# The grid of the ECE objective, by Mukhoti et al.
TEMPERATURE_GRID = np.arange(1, 101) / 10
_ECE_BINS = 15


def _top_probabilities(below_top: np.ndarray) -> np.ndarray:
    """Returns the largest entry of softmax(d/T) for every T of the grid, (100, n).

    It is 1/Σ e^(d/T) with d = z − max z. Halving T squares each e^(d/T), so that
    exponentials are computed only for the upper half of the grid.
    """
    count, k = len(TEMPERATURE_GRID), below_top.shape[-1]
    ones = np.ones(k, below_top.dtype)
    total = np.empty((count, len(below_top)))
    weight = np.empty_like(below_top)
    for j in range(count // 2 + 1, count + 1):
        np.multiply(below_top, below_top.dtype.type(10 / j), out=weight)
        np.exp(weight, out=weight)
        total[j - 1] = weight @ ones
        while j % 2 == 0:
            j //= 2
            weight *= weight
            total[j - 1] = weight @ ones
    return np.asarray(1 / total)


def grid_temperature(data: Labelled) -> float:
    """Returns the T of 0.1, 0.2, …, 10 with the smallest ECE of softmax(z/T).

    The ECE depends on the largest probability only, and whether the predicted class is
    correct does not depend on T.
    """
    n, k = data.logits.shape
    d = below_top_of(data.logits)
    correct = data.logits.argmax(axis=-1) == data.labels
    count = len(TEMPERATURE_GRID)
    # Bins are (a, b]: p > 0 lies in number ⌈15 p⌉ − 1 of its temperature's.
    first = np.arange(count)[:, None] * _ECE_BINS - 1
    gaps = np.zeros(count * _ECE_BINS)
    for rows in small_blocks(n, k):
        p = _top_probabilities(d[rows])
        bins = np.ceil(p * _ECE_BINS).astype("int64") + first
        gap = (p - correct[rows]) * data.weight[rows]
        gaps += np.bincount(bins.ravel(), gap.ravel(), len(gaps))
    ece = np.abs(gaps).reshape(count, _ECE_BINS).sum(axis=1) / data.total
    # Values that differ only by the rounding of a sum of n terms are a tie.
    tied = TEMPERATURE_GRID[ece <= ece.min() + 1e-12]
    return float(min(tied, key=lambda t: (abs(t - 1), t)))


@serializable
class TemperatureScaling(Calibrator):
    """Temperature scaling: divides the logits by one number T.

    Formula:

    ```
    p = softmax(z / T)
    ```

    T > 1 lowers confidence, T < 1 raises it. The predicted class never changes, nor
    does accuracy. One sigmoid unit has p = σ(z/T); multi-label data have a T for each
    label (1 for a label that is always 0 or always 1 in the fitting data).

    Args:
        objective: what T minimises on the fitting data. `"nll"`: the negative
            log-likelihood, by a safeguarded Newton search in ln T within
            [0.001, 1000]; the result is never worse than T = 1. `"ece"`: the 15-bin
            ECE over the grid 0.1, 0.2, …, 10 of Mukhoti et al.; of equal values, the
            T nearest to 1. The ECE is not continuous in T, and needs more data than
            the NLL for the same precision.
        **kwargs: `from_logits`, `multi_label`, `ignore_class` and `axis`; see
            `Calibrator`.

    Attributes:
        temperature: T, once fitted; an array for multi-label data.

    Example:
    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    >>> calibrator = TemperatureScaling().fit(logits, np.array([0, 0, 1, 1]))
    >>> round(calibrator.temperature, 4)  # σ(4/T) = 3/4, the accuracy
    3.641
    >>> probabilities = calibrator(logits)
    >>> round(float(probabilities[0, 0]), 4)
    0.75

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    - Mukhoti et al., [Calibrating Deep Neural Networks using Focal
      Loss](https://arxiv.org/abs/2002.09437) (the ECE grid)
    """

    _may_reorder = False

    def __init__(self, objective: str = "nll", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.objective = check_choice("objective", objective, ("nll", "ece"))

    @property
    def temperature(self) -> Any:
        return self._value("temperature")

    def _fit(self, data: Labelled) -> Parameters:
        solve = nll_temperature if self.objective == "nll" else grid_temperature
        return {"temperature": np.asarray(1.0 if data.one_class else solve(data))}

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        T = ops.expand_dims(parameters["temperature"], -1)
        return ops.softmax(logits / T, axis=-1)
