"""Proper scores: the Brier score with its decomposition, and the log-loss."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal._formulas.binning import calibration_norm, check_binning
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional.calibration import class_sums
from keras_selcal.functional.sample_losses import sample_losses


def brier(
    y_true: Any,
    y_pred: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Brier score, summed over classes.

    Formula:

    ```
    BS = (1/n) Σ_i Σ_c (p_{i,c} − y_{i,c})²      ∈ [0, 2]
    ```

    One sigmoid unit has two classes as well: its score is 2 (p − y)², twice what
    scikit-learn's `brier_score_loss` gives.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The score, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> round(brier(np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]])), 4)
    0.37

    References:
    - Brier, [Verification of Forecasts Expressed in Terms of
      Probability](https://doi.org/10.1175/1520-0493(1950)078<0001:VOFEIT>2.0.CO;2)
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
    return _mean_loss(samples, "brier")


def _mean_loss(samples: Samples, loss: str) -> float:
    return samples.mean_over_labels(lambda part: part.mean(sample_losses(part, loss)))


class BrierDecomposition(NamedTuple):
    """Two parts that add up to the Brier score.

    Attributes:
        calibration: how far probabilities are from frequencies; 0 is best.
        refinement: the score after they are corrected; low for a sharp classifier.
    """

    calibration: float
    refinement: float


def brier_decomposition(
    y_true: Any,
    y_pred: Any,
    num_bins: int = 15,
    *,
    binning: str = "uniform",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> BrierDecomposition:
    """Calibration and refinement parts of the Brier score.

    Formula:

    ```
    calibration = Σ_c Σ_b (n_{b,c}/n) (p̄_{b,c} − ȳ_{b,c})²
    refinement  = BS − calibration
    ```

    with p̄_{b,c} and ȳ_{b,c} the mean of p_c and the frequency of class c in bin b of
    p_c. With one bin for each value of p_c the refinement is
    Σ_c Σ_b (n_{b,c}/n) ȳ_{b,c} (1 − ȳ_{b,c}); differences
    within wider bins count as refinement.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        num_bins: number of bins of each class.
        binning: `"uniform"` or `"adaptive"`, as in `calibration_error`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        A `BrierDecomposition`.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.8, 0.2]] * 5)
    >>> parts = brier_decomposition(np.array([0, 0, 0, 0, 1]), p)
    >>> round(parts.calibration, 4), round(parts.refinement, 4)
    (0.0, 0.32)

    References:
    - Murphy, [A New Vector Partition of the Probability
      Score](https://doi.org/10.1175/1520-0450(1973)012<0595:ANVPOT>2.0.CO;2)
    - DeGroot & Fienberg, [The Comparison and Evaluation of
      Forecasters](https://doi.org/10.2307/2987588)
    """
    bins = check_binning(num_bins, binning)
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

    def calibration_of(part: Samples) -> float:
        errors = calibration_norm(*class_sums(part, *bins), "l2", np)
        return float(np.sum(errors**2))

    score = samples.mean_over_labels(
        lambda part: part.mean(sample_losses(part, "brier"))
    )
    calibration = samples.mean_over_labels(calibration_of)
    return BrierDecomposition(calibration, score - calibration)


def nll(
    y_true: Any,
    y_pred: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Negative log-likelihood, in nats.

    Formula:

    ```
    NLL = −(1/n) Σ_i Σ_c y_{i,c} ln p_{i,c}
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The score, a float; ∞ where a true class has probability 0, NaN where a
        prediction is NaN.

    Example:
    >>> import numpy as np
    >>> round(nll(np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]])), 4)
    0.5108
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
    return _mean_loss(samples, "crossentropy")
