"""Temperature scaling: one number that divides the logits."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import softmax
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled

# Bounds of T. The optimum is T = 0 for data that a classifier separates, and T = ∞ for
# data on which it is worse than chance.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e3
# The value of z − max z for a logit of −∞: its exponential is 0 at every T.
_MASKED = -1e30
# Elements processed at a time, which fit in the processor's cache.
_BLOCK = 1 << 16
# Newton's method needs 3 to 7 passes; bisection alone would end within 60.
_MOST_PASSES = 60
_LAST_STEP = 1e-4

# The grid of the ECE objective, by Mukhoti et al.
TEMPERATURE_GRID = np.arange(1, 101) / 10
_ECE_BINS = 15


def _blocks(n: int, k: int) -> Iterator[slice]:
    """Returns slices of the rows of an (n, k) array that fit in the cache."""
    rows = max(1, _BLOCK // k)
    return (slice(start, start + rows) for start in range(0, n, rows))


def _below_top(logits: np.ndarray) -> np.ndarray:
    """Returns d = z − max z ≤ 0, (n, k), finite where z = −∞."""
    d = logits - logits.max(axis=-1, keepdims=True)
    return np.maximum(d, _MASKED, out=d)


def _nll_derivatives(
    below_top: np.ndarray, d_y: float, weight: np.ndarray, beta: float
) -> tuple[float, float, float]:
    """Returns Σ w NLL and its first two derivatives in β = 1/T.

    With d = z − max z ≤ 0 and the expectation under softmax(β d):
    NLL = ln Σ e^(β d) − β d_y, NLL′ = E[d] − d_y, NLL″ = Var[d].

    Args:
        below_top: d, (n, k).
        d_y: Σ w d_y.
        weight: w, (n,).
        beta: β.
    """
    n, k = below_top.shape
    log_sum, first, second = 0.0, 0.0, 0.0
    ones = np.ones(k, below_top.dtype)
    for rows in _blocks(n, k):
        d, w = below_top[rows], weight[rows]
        share = np.exp(d * below_top.dtype.type(beta))
        total = share @ ones
        share *= d
        mean = share @ ones / total
        square = np.einsum("ij,ij->i", share, d) / total
        log_sum += float(w @ np.log(total))
        first += float(w @ mean)
        second += float(w @ (square - mean * mean))
    return log_sum - beta * d_y, first - d_y, second


def nll_temperature(data: Labelled) -> float:
    """Returns the T in [0.001, 1000] that minimises the NLL of softmax(z/T).

    The NLL is convex in β = 1/T, so its derivative has one root. Newton's method
    in ln β starts from T = 1. The signs of the derivative bracket the root, and a step
    out of the bracket is replaced by a step to its middle.
    """
    d, weight = _below_top(data.logits), data.weight
    of_label = d[np.arange(len(data)), data.labels]
    d_y = float(weight @ of_label)
    low, high = -math.log(MOST_TEMPERATURE), -math.log(LEAST_TEMPERATURE)
    if d.any() and not of_label.any():
        return LEAST_TEMPERATURE  # separated: the NLL falls to 0 with T
    possible = d > _MASKED if data.masked is not None else True
    mean = d.mean(axis=-1, dtype="float64", where=possible)
    if weight @ mean > d_y:
        return MOST_TEMPERATURE  # worse than chance: the NLL rises from β = 0 on
    log_beta = 0.0
    for _ in range(_MOST_PASSES):
        beta = math.exp(log_beta)
        nll, slope, curvature = _nll_derivatives(d, d_y, weight, beta)
        if log_beta == 0:
            nll_at_one = nll
        if slope > 0:
            high = log_beta
        else:
            low = log_beta
        # In ln β the derivatives are β NLL′ and β NLL′ + β² NLL″. If the latter is not
        # positive, the step is Newton's for the root of NLL′ instead.
        steepness = slope + beta * curvature
        if steepness <= 0:
            steepness = beta * curvature
        step = -slope / steepness if steepness > 0 else math.copysign(math.inf, -slope)
        if slope == 0:
            return math.exp(-log_beta)
        if abs(step) < _LAST_STEP:
            # The remaining error is of the order of the square of this step.
            return math.exp(-log_beta - step)
        if not low < log_beta + step < high:
            step = (low + high) / 2 - log_beta
        log_beta += step
    return math.exp(-log_beta) if nll <= nll_at_one else 1.0


def _top_probabilities(below_top: np.ndarray) -> np.ndarray:
    """Returns the largest entry of softmax(d/T) for every T of the grid, (100, n).

    It is 1/Σ e^(d/T) with d = z − max z.
    """
    scales = (1 / TEMPERATURE_GRID).astype(below_top.dtype)
    totals = [np.exp(below_top * scale).sum(axis=-1) for scale in scales]
    return 1 / np.stack(totals).astype("float64")


def grid_temperature(data: Labelled) -> float:
    """Returns the T of 0.1, 0.2, …, 10 with the smallest ECE of softmax(z/T).

    The ECE depends on the largest probability only, and whether the predicted class is
    correct does not depend on T.
    """
    n, k = data.logits.shape
    d = _below_top(data.logits)
    correct = data.logits.argmax(axis=-1) == data.labels
    count = len(TEMPERATURE_GRID)
    # Bins are (a, b]: p > 0 lies in number ⌈15 p⌉ − 1 of its temperature's.
    first = np.arange(count)[:, None] * _ECE_BINS - 1
    gaps = np.zeros(count * _ECE_BINS)
    for rows in _blocks(n, k):
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
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

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

    def __init__(
        self,
        objective: str = "nll",
        *,
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
        self.objective = check_choice("objective", objective, ("nll", "ece"))

    @property
    def temperature(self) -> Any:
        return self._value("temperature")

    def _fit(self, data: Labelled) -> Parameters:
        solve = nll_temperature if self.objective == "nll" else grid_temperature
        return {"temperature": np.asarray(1.0 if data.one_class else solve(data))}

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        T = xp.expand_dims(parameters["temperature"], -1)
        return softmax(logits / T, xp)
