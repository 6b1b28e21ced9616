"""Temperature scaling: one number that makes a classifier more or less sure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import check_choice
from keras_selcal.calibrators.base import Calibrator, Parameters

# Bounds of T. Data that a classifier separates have their optimum at T = 0, data on
# which it is worse than chance at T = ∞.
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e3
# The grid of the ECE objective, by the sources of the paper.
TEMPERATURE_GRID = np.arange(1, 101) / 10
_ECE_BINS = 15
# Elements worked on at a time: they stay in the processor's cache.
_BLOCK = 1 << 16
# Newton's method needs 3 to 7 passes; halving alone would end within 60.
_MOST_PASSES = 60
_LAST_STEP = 1e-4


def _row_blocks(n: int, k: int) -> Iterator[slice]:
    rows = max(1, _BLOCK // k)
    return (slice(start, start + rows) for start in range(0, n, rows))


def _nll_derivatives(
    below_top: np.ndarray, below_top_y: np.ndarray, beta: float
) -> tuple[float, float, float]:
    """Returns Σ NLL and its first two derivatives in β = 1/T.

    With d = z − max z ≤ 0 and the expectation under softmax(β d):
    NLL = ln Σ e^(β d) − β d_y, NLL′ = E[d] − d_y, NLL″ = Var[d].
    """
    n, k = below_top.shape
    log_sum, first, second = 0.0, 0.0, 0.0
    ones = np.ones(k, below_top.dtype)
    for rows in _row_blocks(n, k):
        d = below_top[rows]
        weight = np.exp(d * below_top.dtype.type(beta))
        total = weight @ ones
        weight *= d
        mean = weight @ ones / total
        square = np.einsum("ij,ij->i", weight, d) / total
        log_sum += float(np.log(total).sum(dtype="float64"))
        first += float(mean.sum(dtype="float64"))
        second += float((square - mean * mean).sum(dtype="float64"))
    d_y = float(below_top_y.sum(dtype="float64"))
    return log_sum - beta * d_y, first - d_y, second


def nll_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the T in [0.001, 1000] that minimises the NLL of softmax(z/T).

    The NLL is convex in β = 1/T, so that its derivative has one root. Newton's method
    in ln β starts from T = 1. The signs of the derivative leave a bracket around the
    root, and a step that would leave it is replaced by the bracket's middle.
    """
    d = logits - logits.max(axis=-1, keepdims=True)
    d_y = np.take_along_axis(d, labels[:, None], -1)
    low, high = -math.log(MOST_TEMPERATURE), -math.log(LEAST_TEMPERATURE)
    if d.any() and not d_y.any():
        return LEAST_TEMPERATURE  # separated: the NLL falls to 0 with T
    if (d.mean(axis=-1, dtype="float64") - d_y[:, 0]).sum() > 0:
        return MOST_TEMPERATURE  # worse than chance: the NLL rises from β = 0 on
    log_beta = 0.0
    for _ in range(_MOST_PASSES):
        beta = math.exp(log_beta)
        nll, slope, curvature = _nll_derivatives(d, d_y, beta)
        if log_beta == 0:
            nll_at_one = nll
        if slope > 0:
            high = log_beta
        else:
            low = log_beta
        # In ln β the derivatives are β NLL′ and β NLL′ + β² NLL″. Where the latter is
        # not positive, the step is that of the root of NLL′ instead.
        steepness = slope + beta * curvature
        if steepness <= 0:
            steepness = beta * curvature
        step = -slope / steepness if steepness > 0 else math.copysign(math.inf, -slope)
        if slope == 0:
            return math.exp(-log_beta)
        if abs(step) < _LAST_STEP:
            # The error left is of the order of the square of this step.
            return math.exp(-log_beta - step)
        if not low < log_beta + step < high:
            step = (low + high) / 2 - log_beta
        log_beta += step
    return math.exp(-log_beta) if nll <= nll_at_one else 1.0


def _top_probabilities(below_top: np.ndarray) -> np.ndarray:
    """Returns the largest entry of softmax(d/T) for every T of the grid, (100, n).

    It is 1/Σ e^(d/T) with d = z − max z. Halving T squares each e^(d/T): exponentials
    are taken for the upper half of the grid alone.
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


def grid_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the T of 0.1, 0.2, …, 10 with the smallest ECE of softmax(z/T).

    Only the largest probability counts, and whether its class is right does not depend
    on T.
    """
    n, k = logits.shape
    d = logits - logits.max(axis=-1, keepdims=True)
    correct = logits.argmax(axis=-1) == labels
    count = len(TEMPERATURE_GRID)
    # Bins are (a, b]: p > 0 lies in number ⌈15 p⌉ − 1 of its temperature's.
    first = np.arange(count)[:, None] * _ECE_BINS - 1
    gaps = np.zeros(count * _ECE_BINS)
    for rows in _row_blocks(n, k):
        p = _top_probabilities(d[rows])
        bins = np.ceil(p * _ECE_BINS).astype("int64") + first
        gaps += np.bincount(bins.ravel(), (p - correct[rows]).ravel(), len(gaps))
    ece = np.abs(gaps).reshape(count, _ECE_BINS).sum(axis=1) / n
    # Sums of n terms agree to rounding only: what is closer than that is a tie.
    tied = TEMPERATURE_GRID[ece <= ece.min() + 1e-12]
    return float(min(tied, key=lambda t: (abs(t - 1), t)))


@serializable
class TemperatureScaling(Calibrator):
    """Temperature scaling: divides the logits by one number T.

    Formula:

    ```
    p = softmax(z / T)
    ```

    T > 1 makes the classifier less sure, T < 1 surer. The predicted class never
    changes, nor does accuracy.

    Args:
        objective: what T minimises on the fitting data. `"nll"`: the negative
            log-likelihood, by a safeguarded Newton search in ln T within
            [0.001, 1000]; the result is never worse than T = 1. `"ece"`: the 15-bin
            ECE over the grid 0.1, 0.2, …, 10, ties to the T nearest 1. The ECE is
            the choice of the paper and its sources; it is not continuous in T, and
            needs more data than the NLL for the same precision.

    Attributes:
        temperature: T, once fitted.

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

    def __init__(self, objective: str = "nll") -> None:
        super().__init__()
        self.objective = check_choice("objective", objective, ("nll", "ece"))

    @property
    def temperature(self) -> float:
        return float(self.parameters["temperature"])

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        solve = nll_temperature if self.objective == "nll" else grid_temperature
        return {"temperature": np.asarray(solve(logits, labels))}

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        return ops.softmax(logits / parameters["temperature"], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {"objective": self.objective}
