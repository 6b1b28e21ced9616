"""SmoothECE: a calibration error without bins and without a parameter."""

from typing import Any

import numpy as np

from keras_selcal._formulas.binning import check_kind
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional.smooth import smooth_errors

# Steps of the grid on [0, 1] that the residuals are spread over.
_STEPS = 2**15
# False positions by which σ* is found: far below the grid's resolution.
_ROUNDS = 16


def smooth_ece(
    y_true: Any,
    y_pred: Any,
    *,
    kind: str = "top_label",
    pooled: bool = False,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    **outputs: Any,
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
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        kind: `"top_label"` or `"positive"`, as in `ece`.
        pooled: as in `ece`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        **outputs: `multi_label`, `ignore_class`, `axis`, `decision_threshold`, as in
            `keras_selcal.metrics.ClassificationMetric`.

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
        y_true, y_pred, sample_weight, from_logits=from_logits, **outputs
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
