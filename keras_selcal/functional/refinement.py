"""Refinement: the part of a proper loss that no recalibration can remove."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import check_choice
from keras_selcal.calibrators.data import Labelled
from keras_selcal.calibrators.temperature_scaling import nll_temperature

_LOSSES = ("crossentropy", "brier")
_GOLDEN = (math.sqrt(5) - 1) / 2


def refinement(
    y_true: Any,
    y_pred: Any,
    *,
    loss: str = "crossentropy",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Loss after the best temperature: what recalibration cannot remove.

    Formula:

    ```
    refinement  = min_T (1/n) Σ_i ℓ(softmax(ln p_i / T), y_i)
    calibration = (1/n) Σ_i ℓ(p_i, y_i) − refinement ≥ 0
    ```

    A proper loss is the sum of both. Calibration can be corrected after training, by
    `TemperatureScaling`; refinement cannot. While a network trains, the two have their
    minima at different epochs: stop where refinement is lowest, then calibrate.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        loss: `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids, each of which has
            its own temperature.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: has no effect on this metric.

    Returns:
        The refinement, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.98, 0.02]] * 4)  # an accuracy of ¾ whatever p is
    >>> round(refinement(np.array([0, 0, 0, 1]), p), 4)  # −¾ ln ¾ − ¼ ln ¼
    0.5623

    References:
    - Berta et al., [Rethinking Early Stopping: Refine, Then
      Calibrate](https://arxiv.org/abs/2501.19195)
    """
    check_choice("loss", loss, _LOSSES)
    samples = Samples.given(
        y_true,
        y_pred,
        sample_weight,
        from_logits=from_logits,
        multi_label=multi_label,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    )
    if np.isnan(samples.confidence).any():
        return math.nan
    least = _least_nll if loss == "crossentropy" else _least_brier
    return samples.mean_over_labels(least)


def _log_p(samples: Samples) -> Array:
    """Returns ln p, (n, k); p = 0 counts as half of the smallest positive p."""
    log_p = samples.each(samples.log_p)
    return np.maximum(log_p, log_p[np.isfinite(log_p)].min() - math.log(2))


def _scaled(log_p: Array, temperature: float) -> Array:
    """Returns ln softmax(ln p / T)."""
    z = log_p / temperature
    z -= z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def refined_losses(samples: Samples) -> Array:
    """Returns the cross-entropy of each sample at the best temperature, (n,)."""
    log_p = _log_p(samples)
    found = nll_temperature(Labelled.of(samples, log_p))
    losses = [-samples.of_label(_scaled(log_p, t)) for t in (found, 1.0)]
    return min(losses, key=samples.mean)


def _least_nll(samples: Samples) -> float:
    return samples.mean(refined_losses(samples))


def _least_brier(samples: Samples) -> float:
    log_p, y = _log_p(samples), samples.one_hot()

    def score(log_temperature: float) -> float:
        p = np.exp(_scaled(log_p, math.exp(log_temperature)))
        return samples.mean(((p - y) ** 2).sum(axis=-1))

    return min(_minimum(score, -math.log(1000), math.log(1000)), score(0.0))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Returns the minimum of a function on an interval: of a grid, then by golden
    section between the neighbours of its best point.
    """
    grid = np.linspace(low, high, 15)
    best = int(np.argmin([function(x) for x in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    of_left, of_right = function(left), function(right)
    while high - low > 1e-4:
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = high - _GOLDEN * (high - low)
            of_left = function(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + _GOLDEN * (high - low)
            of_right = function(right)
    return min(of_left, of_right)
