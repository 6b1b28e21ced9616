"""The temperature that maximises the likelihood."""

import math
from collections.abc import Iterator

import numpy as np

from keras_selcal._predictions.labelled import Labelled

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


def small_blocks(n: int, k: int) -> Iterator[slice]:
    rows = max(1, _BLOCK // k)
    return (slice(start, start + rows) for start in range(0, n, rows))


def below_top_of(logits: np.ndarray) -> np.ndarray:
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
    for rows in small_blocks(n, k):
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

    The NLL is convex in β = 1/T, so that its derivative has one root. Newton's method
    in ln β starts from T = 1. The signs of the derivative bracket the root, and a step
    out of the bracket is replaced by a step to its middle.
    """
    d, weight = below_top_of(data.logits), data.weight
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
