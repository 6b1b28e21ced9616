"""SmoothECE: a calibration error without bins and without a parameter."""

from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.binning import check_kind
from keras_selcal._formulas.functions import TINY
from keras_selcal._predictions.samples import Samples

# Steps of the grid on [0, 1] that the residuals are spread over.
_STEPS = 2**15
# False positions by which σ* is found: far below the grid's resolution.
_ROUNDS = 16
# exp(−9²/2) = 3e-18: what a Gaussian leaves of a frequency πk with πkσ > 9.
_FARTHEST = 9.0
# A round ends the search if smECE_σ and σ, of which the one falls and the other rises,
# differ by no more: σ* lies between them.
_CLOSE = 1e-13


def smooth_ece(
    y_true: Any,
    y_pred: Any,
    *,
    kind: str = "top_label",
    pooled: bool = False,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """SmoothECE of the predicted class (Błasiok & Nakkiran).

    Formula:

    ```
    smECE_σ = ∫₀¹ |(1/n) Σ_i K_σ(t, p̂_i) (p̂_i − 1[ŷ_i = y_i])| dt
    smECE   = smECE_σ* with σ* the one σ at which smECE_σ = σ
    ```

    with K_σ the Gaussian kernel, reflected at 0 and 1. The residuals are spread
    linearly over a grid of 2¹⁵ steps, where a reflected Gaussian is a product in the
    cosine transform; errors below 2⁻¹⁴ are not resolved. A residual at 0 or 1 coincides
    with its mirror image, and both count; in relplot and probmetrics only one does.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k): the
            mass of the predicted class counts as correct.
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        kind: `"top_label"` or `"positive"`, as in `ece`.
        pooled: as in `ece`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The error, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(smooth_ece(np.array([0, 1, 1]), p), 3)
    0.166

    References:
    - Błasiok & Nakkiran, [Smooth ECE: Principled Reliability Diagrams via Kernel
      Smoothing](https://arxiv.org/abs/2309.12236)
    """
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
    check_kind(kind, samples.num_classes)

    def error(part: Samples) -> float:
        p, outcome = part.event(kind)
        p = np.clip(p.astype("float64"), 0.0, 1.0)
        weight = part.counts
        residual = (p - outcome) * (weight / weight.sum())
        if np.isnan(residual).any():
            return float("nan")
        return float(smooth_errors(p, residual[None], _STEPS, _ROUNDS)[0])

    return error(samples) if pooled else samples.mean_over_labels(error)


def smooth_errors(p: Array, residual: Array, steps: int, rounds: int) -> Array:
    """Returns smECE for each row of residuals.

    Args:
        p: confidences in [0, 1], (n,).
        residual: w (p̂ − 1[ŷ = y]) / Σ w, (rows, n).
        steps: number of steps of the grid on [0, 1].
        rounds: number of rounds of the search for σ*, which starts with [0, 1].
    """
    spectrum = np.fft.rfft(_even(_on_grid(p, residual, steps)))
    frequency = np.pi * np.arange(steps + 1)

    def error(sigma: Array) -> Array:
        # The narrowest keeps most; a row of NaN stays NaN, and does not count.
        removed = frequency * np.fmin.reduce(sigma) > _FARTHEST
        kept = np.count_nonzero(~removed)
        # The transform of a Gaussian; period 2 makes it the reflected one.
        gaussian = np.exp(-0.5 * (frequency[:kept] * sigma[:, None]) ** 2)
        curve = np.fft.irfft(spectrum[:, :kept] * gaussian, 2 * steps)
        curve = np.abs(curve[:, : steps + 1])
        # The mirror image doubles each residual, and it is spread over period 2.
        return np.asarray(curve.sum(axis=-1) - (curve[:, 0] + curve[:, -1]) / 2)

    # Regula falsi for smECE_σ − σ, which falls: ≥ 0 at `low`, ≤ 0 at `high`. An end
    # that stays twice has its height halved (Illinois), which makes both ends close in.
    low, high = np.zeros(len(residual)), np.ones(len(residual))
    value = error(low)
    up, down = value, error(high) - high
    above = np.ones(len(residual), bool)
    for _ in range(rounds):
        sigma = high - down * (high - low) / np.minimum(down - up, -TINY)
        value = error(sigma)
        if not (np.abs(value - sigma) > _CLOSE).any():
            break
        before, above = above, value > sigma
        factor = np.where(above == before, 0.5, 1.0)
        up = np.where(above, value - sigma, factor * up)
        down = np.where(above, factor * down, value - sigma)
        low, high = np.where(above, sigma, low), np.where(above, high, sigma)
    return value


def _on_grid(p: Array, residual: Array, steps: int) -> Array:
    """Returns the residuals, each split between the two nearest grid points."""
    position = p * steps
    left = np.minimum(position.astype(np.intp), steps - 1)
    share = position - left
    shape = (len(residual), steps + 1)
    size = shape[0] * shape[1]
    index = (left + np.arange(0, size, steps + 1)[:, None]).reshape(-1)
    grid = np.bincount(index, (residual * (1 - share)).reshape(-1), size)
    grid += np.bincount(index + 1, (residual * share).reshape(-1), size)
    return grid.reshape(shape)


def _even(grid: Array) -> Array:
    """Returns one period of each row mirrored at both ends."""
    ends = np.zeros_like(grid)
    # A point on the mirror coincides with its image and counts twice.
    ends[:, 0], ends[:, -1] = grid[:, 0], grid[:, -1]
    doubled = grid + ends
    return np.concatenate([doubled, doubled[:, -2:0:-1]], axis=-1)
