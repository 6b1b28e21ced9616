"""SmoothECE: a calibration error without bins and without a parameter."""

from typing import Any

import numpy as np

from keras_selcal._ops import TINY
from keras_selcal.functional._samples import Array, Samples

# Steps of the grid on [0, 1] that the residuals are spread over.
_STEPS = 2**15
# False positions by which σ* is found: far below the grid's resolution.
_ROUNDS = 16


def smooth_ece(
    y_true: Any,
    y_pred: Any,
    from_logits: bool = False,
    sample_weight: Any | None = None,
) -> float:
    """SmoothECE of the predicted class (Błasiok & Nakkiran).

    Formula:

    ```
    smECE_σ = ∫₀¹ |(1/n) Σ_i K_σ(t, p̂_i) (p̂_i − 1[ŷ_i = y_i])| dt
    smECE   = smECE_σ* with σ* the one σ at which smECE_σ = σ
    ```

    with K_σ the Gaussian kernel, reflected at 0 and 1. The residuals are spread
    linearly over a grid of 2¹⁵ steps, where a reflected Gaussian is a product in the
    cosine transform; errors below 2⁻¹⁴ are not resolved.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k), of which
            the mass of the predicted class counts as correct.
        y_pred: probabilities or logits, (..., k).
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.

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
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    p = np.clip(samples.confidence.astype("float64"), 0.0, 1.0)
    residual = p - samples.correct
    if samples.weight is None:
        residual /= samples.n
    else:
        residual *= samples.weight / samples.weight.sum()
    if np.isnan(residual).any():
        return float("nan")
    return float(smooth_errors(p, residual[None], _STEPS, _ROUNDS)[0])


def smooth_errors(p: Array, residual: Array, steps: int, rounds: int) -> Array:
    """Returns smECE for each row of residuals.

    Args:
        p: confidences in [0, 1], (n,).
        residual: w (p̂ − 1[ŷ = y]) / Σ w, (rows, n).
        steps: of the grid on [0, 1].
        rounds: of the search for σ*, from the bracket [0, 1].
    """
    spectrum = np.fft.rfft(_even(_on_grid(p, residual, steps)))
    frequency = np.pi * np.arange(steps + 1)

    def error(sigma: Array) -> Array:
        # The transform of a Gaussian; period 2 makes it the reflected one.
        gaussian = np.exp(-0.5 * (frequency * sigma[:, None]) ** 2)
        curve = np.abs(np.fft.irfft(spectrum * gaussian)[:, : steps + 1])
        # The mirror image doubles each residual, and it is spread over period 2.
        return np.asarray(curve.sum(axis=-1) - (curve[:, 0] + curve[:, -1]) / 2)

    # Regula falsi for smECE_σ − σ, which falls: ≥ 0 at `low`, ≤ 0 at `high`. An end
    # that stays twice has its height halved (Illinois), so that both ends close in.
    low, high = np.zeros(len(residual)), np.ones(len(residual))
    value = error(low)
    up, down = value, error(high) - high
    above = np.ones(len(residual), bool)
    for _ in range(rounds):
        sigma = high - down * (high - low) / np.minimum(down - up, -TINY)
        value = error(sigma)
        before, above = above, value > sigma
        factor = np.where(above == before, 0.5, 1.0)
        up = np.where(above, value - sigma, factor * up)
        down = np.where(above, factor * down, value - sigma)
        low, high = np.where(above, sigma, low), np.where(above, high, sigma)
    return value


def _on_grid(p: Array, residual: Array, steps: int) -> Array:
    """Returns the residuals shared out between the two nearest grid points."""
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
