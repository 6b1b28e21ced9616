"""The soft CDF of confidence scores (Eq. softcdf)."""

from typing import Any

import numpy as np

from keras_selcal._arrays import (
    Tensor,
    namespace,
    to_float_tensor,
    to_floats,
    to_numbers,
)
from keras_selcal._formulas import soft_cdf as formulas
from keras_selcal._formulas.counts import count_weights
from keras_selcal._formulas.soft_cdf import check_cdf_arguments, check_support
from keras_selcal._validation import check_weights, refuse


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
    points where Ĝ is evaluated, not to the counts. Tensors of the Keras backend give a
    tensor, everything else a NumPy array, for which no backend is needed.

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
    >>> import numpy as np
    >>> scores = np.array([0.2, 0.4, 0.6, 0.8])
    >>> print(soft_cdf(scores, at=[0.0, 0.5, 1.0], smoothing=0.01).round(3))
    [0.  0.5 0.8]

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. softcdf
    """
    num_bins, smoothing = check_cdf_arguments(num_bins, smoothing)
    support = check_support(support)
    xp, row, weight = score_row(scores, sample_weight, at)
    counts = formulas.histogram(
        formulas.to_unit(row, support, xp), count_weights(row, weight, xp), num_bins, xp
    )
    at = scores if at is None else at
    points = _floats("at", at, xp)
    u = formulas.to_unit(xp.reshape(points, (1, -1)), support, xp)
    cdf = formulas.soft_cdf(u, counts, smoothing, xp)
    return xp.reshape(cdf, xp.shape(points))


def score_row(
    scores: Any, sample_weight: Any | None, *others: Any
) -> tuple[Any, Any, Any | None]:
    """Returns `keras.ops` if an argument is a tensor, or NumPy, and the scores and
    their weights as one row, (1, n).
    """
    xp = namespace(scores, sample_weight, *others)
    scores = _floats("scores", scores, xp)
    if sample_weight is not None:
        weight = _floats("sample_weight", sample_weight, xp)
        if xp is np:
            check_weights(weight)
        try:
            weight = xp.broadcast_to(weight, xp.shape(scores))
        except ValueError:
            allowed = f"of a shape that broadcasts to {tuple(scores.shape)}"
            refuse("sample_weight", tuple(weight.shape), allowed)
        sample_weight = xp.reshape(weight, (1, -1))
    return xp, xp.reshape(scores, (1, -1)), sample_weight


def _floats(argument: str, x: Any, xp: Any) -> Any:
    """Returns numbers in float32 or float64."""
    if xp is np:
        return to_floats(to_numbers(argument, x))
    return to_float_tensor(x)
