"""The soft CDF of confidence scores (Eq. softcdf)."""

from typing import Any

from keras import ops

from keras_selcal._backend.ops import Tensor, as_float
from keras_selcal._formulas.soft_cdf import (
    SoftCDF,
    as_row,
    check_cdf_arguments,
    check_support,
    count_weights,
    histogram,
    to_unit,
)


def soft_cdf(
    scores: Any,
    at: Any | None = None,
    *,
    num_bins: int = 64,
    smoothing: float = 0.1,
    support: tuple[float, float] = (0, 1),
    sample_weight: Any | None = None,
) -> Tensor:
    """Soft cumulative distribution function of confidence scores.

    Formula:

    ```
    Ĝ_ν(u) = (1/n) Σ_m h_m σ((u − c_m)/ν),     capped at n/(n + 1)
    ```

    with u = (s − lo)/(hi − lo) the score on [0, 1], h_m the number of scores in the
    m-th of M equal bins of [0, 1] (the last one closed), c_m its centre, and n the
    number of scores. The cap keeps −ln(1 − Ĝ) finite. The gradient flows to the
    points where Ĝ is evaluated, not to the counts.

    Args:
        scores: confidence scores, of any shape.
        at: where to evaluate, on the scale of the scores. Defaults to the scores.
        num_bins: M.
        smoothing: ν, on the scale of u. The smaller, the closer to a step function.
        support: (lo, hi), the range that the scores can take.
        sample_weight: of a shape that broadcasts to the scores'. A score of integer
            weight w counts as w copies, one of weight 0 not at all.

    Returns:
        Ĝ_ν, of the shape of `at`.

    Example:
    >>> import keras, numpy as np
    >>> scores = np.array([0.2, 0.4, 0.6, 0.8])
    >>> cdf = soft_cdf(scores, at=[0.0, 0.5, 1.0], smoothing=0.01)
    >>> print(keras.ops.convert_to_numpy(cdf).round(3))
    [0.  0.5 0.8]

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. softcdf
    """
    num_bins, smoothing = check_cdf_arguments(num_bins, smoothing)
    support = check_support(support)
    scores = as_float(scores)
    at = scores if at is None else ops.cast(as_float(at), scores.dtype)
    row, weight = as_row(scores, sample_weight)
    counts = histogram(to_unit(row, support), count_weights(row, weight), num_bins)
    cdf = SoftCDF(counts, smoothing)
    return ops.reshape(cdf(ops.reshape(to_unit(at, support), (1, -1))), ops.shape(at))
