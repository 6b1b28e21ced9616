"""SmoothECE: a calibration error without bins and without a parameter."""

from typing import Any

import numpy as np

from keras_selcal.functional._samples import Array, Samples

# Steps of the grid on [0, 1] that the residuals are spread over.
_STEPS = 2**15
# Bisection halves the bracket of σ this often: far below the grid's resolution.
_HALVINGS = 40


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
    spectrum = np.fft.rfft(_even(_on_grid(p, residual)))
    frequency = np.pi * np.arange(len(spectrum))

    def error(sigma: float) -> float:
        # The transform of a Gaussian; period 2 makes it the reflected one.
        smooth = np.fft.irfft(spectrum * np.exp(-0.5 * (frequency * sigma) ** 2))
        curve = np.abs(smooth[: _STEPS + 1])
        # The mirror image doubles each residual, and it is spread over period 2.
        return float(curve.sum() - (curve[0] + curve[-1]) / 2)

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        sigma = (low + high) / 2
        low, high = (sigma, high) if error(sigma) > sigma else (low, sigma)
    return error(high)


def _on_grid(p: Array, residual: Array) -> Array:
    """Returns the residuals shared out between the two nearest grid points."""
    position = p * _STEPS
    left = np.minimum(position.astype(np.intp), _STEPS - 1)
    share = position - left
    grid = np.bincount(left, residual * (1 - share), _STEPS + 1)
    return grid + np.bincount(left + 1, residual * share, _STEPS + 1)


def _even(grid: Array) -> Array:
    """Returns one period of the grid mirrored at both ends."""
    ends = np.zeros_like(grid)
    # A point on the mirror coincides with its image and counts twice.
    ends[0], ends[-1] = grid[0], grid[-1]
    doubled = grid + ends
    return np.concatenate([doubled, doubled[-2:0:-1]])
