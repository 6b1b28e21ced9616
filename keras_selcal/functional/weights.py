"""Sample weights by rank in the confidence distribution: AU (β) and AURC (α)."""

import math
from typing import Any

from keras_selcal._arrays import Tensor
from keras_selcal._formulas import soft_cdf as formulas
from keras_selcal._formulas.harmonic import ESTIMATORS, rank_weights
from keras_selcal._formulas.soft_cdf import (
    THROUGH,
    check_cdf_arguments,
    check_region,
    check_support,
)
from keras_selcal._validation import check_choice, check_count, check_number
from keras_selcal.functional.soft_cdf import score_row


def au_weights(
    scores: Any,
    quantile: float | None = None,
    *,
    threshold: float | None = None,
    num_bins: int = 64,
    smoothing: float = 0.1,
    support: tuple[float, float] = (0, 1),
    through: str = "score",
    sample_weight: Any | None = None,
) -> Tensor:
    """Weights β of the AU loss: rising with confidence up to a threshold.

    Formula:

    ```
    β_i = −C ln(1 − Ĝ_ν(min(s_i, τ))),     C = 1/Ĝ_ν(τ)
    ```

    with Ĝ_ν the soft CDF of the scores (`keras_selcal.functional.soft_cdf`) and τ
    the score below which the least confident share κ of them lies. τ, Ĝ_ν(τ) and so C
    carry no gradient, also where τ is given by `threshold`; s_i below τ does.

    Args:
        scores: confidence scores, of any shape; all are ranked together.
        quantile: κ in (0, 1]; τ is the κ-quantile of the scores by the default rule of
            `numpy.quantile`. Defaults to 0.75.
        threshold: τ itself, on the scale of the scores; pass at most one of
            `quantile` and `threshold`.
        num_bins: M, the number of bins of the soft CDF.
        smoothing: ν of the soft CDF. Defaults to the paper's 0.1; `AULoss` has 2.
        support: (lo, hi), the range that the scores can take.
        through: `"score"`: the counts behind Ĝ_ν carry no gradient (Eq. gradientAU);
            `"cdf"`: they do, but for Ĝ_ν(τ), and each score is shared linearly between
            the two nearest bin centres, which changes β slightly.
        sample_weight: weights that broadcast to the shape of the scores. A score of
            integer weight w gets the β that w copies of it would get; one of weight 0
            changes nothing for the others.

    Returns:
        β, of the shape of the scores: a tensor for a tensor of the Keras backend, a
        NumPy array for everything else.

    Example:
    >>> import numpy as np
    >>> scores = np.array([0.1, 0.3, 0.6, 0.9])
    >>> print(au_weights(scores, quantile=0.5, smoothing=0.01).round(2))
    [0.24 0.85 1.39 1.39]
    >>> beta = au_weights(np.linspace(0, 1, 1001))      # least to most confident
    >>> print(beta[[0, 250, 500, 1000]].round(2))
    [0.1  0.4  0.93 1.83]

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. hatbeta
    """
    level, threshold = check_region(quantile, threshold)
    num_bins, smoothing = check_cdf_arguments(num_bins, smoothing)
    xp, row, weight = score_row(scores, sample_weight)
    beta = formulas.au_weights(
        row,
        weight,
        level=level,
        threshold=threshold,
        num_bins=num_bins,
        smoothing=smoothing,
        support=check_support(support),
        through=check_choice("through", through, THROUGH),
        xp=xp,
    )
    return xp.reshape(beta, xp.shape(scores))


def aurc_weights(
    scores: Any,
    estimator: str = "harmonic",
    *,
    sample_weight: Any | None = None,
) -> Tensor:
    """Weights α with which the mean of α·ℓ is the area under the risk-coverage curve.

    Formula, for the r-th least confident of n samples:

    ```
    α_r = H_n − H_{n−r}            estimator="harmonic", H the harmonic numbers
    α_r = −ln(1 − r/(n + 1))       estimator="log"
    ```

    With the harmonic weights, (1/n) Σ α ℓ is exactly the mean of the selective risks
    at coverages 1/n … 1. Samples of equal score share the mean of their ranks' weights.
    The weights carry no gradient.

    Args:
        scores: confidence scores, of any shape; all are ranked together.
        estimator: `"harmonic"` or `"log"`.
        sample_weight: weights that broadcast to the shape of the scores. A score of
            integer weight w gets the mean α of the w ranks that its copies would take.

    Returns:
        α, of the shape of the scores: a tensor for a tensor of the Keras backend, a
        NumPy array for everything else.

    Example:
    >>> import numpy as np
    >>> print(aurc_weights(np.array([0.9, 0.2, 0.5])).round(3))
    [1.833 0.333 0.833]

    References:
    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """
    check_choice("estimator", estimator, ESTIMATORS)
    xp, row, weight = score_row(scores, sample_weight)
    alpha = rank_weights(row, weight, estimator, xp)
    return xp.reshape(alpha, xp.shape(scores))


def paper_smoothing(nu: float, k: int) -> float:
    """Converts a ν of the paper's appendix to the scale of this library.

    The paper's public code takes `msp` from softmax(softmax(z)), which squeezes it
    into [1/k, e/(e + k − 1)]. A ν chosen there is divided by the width of that range:

    ```
    ν / (e/(e + k − 1) − 1/k)
    ```

    Args:
        nu: the paper's ν.
        k: the number of classes.

    Example:
    >>> round(paper_smoothing(0.1, 10), 2), round(paper_smoothing(0.005, 100), 2)
    (0.76, 0.3)
    """
    nu = check_number("nu", nu, "a number above 0", above=0.0)
    k = check_count("k", k, least=2)
    return nu / (math.e / (math.e + k - 1) - 1 / k)
