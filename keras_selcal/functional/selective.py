"""Selective classification: areas that summarize a ranking by confidence."""

from typing import Any

import numpy as np

from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_number, refuse
from keras_selcal.functional.ranked import mean_of_rankings, ranked, ranking


def aurc(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Area under the risk-coverage curve.

    Formula:

    ```
    AURC = (1/n) Σ_{i=1..n} R(i/n),     R(i/n) the mean loss of the i most confident
         = (1/n) Σ_r α_r ℓ_r,           α_r = H_n − H_{n−r}, r the rank from below
    ```

    Samples of equal score share their mean: the expectation over their orders. Areas by
    trapezoids, as other packages have them, count R(1/n) and R(1) half.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The area, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(aurc(np.array([0, 0, 0]), p), 4)        # (0 + 1/2 + 1/3)/3
    0.2778

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500)
    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    return mean_of_rankings("aurc", parts)


def au(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    quantile: float = 0.75,
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Area under the risk-coverage curve in the low-confidence region.

    Formula (Eq. AUdef):

    ```
    AU = E[R(g(x̃)) | g(x̃) < τ],     R(t) = E[ℓ | g ≥ t]
    ```

    with τ the score below which the least confident share κ of the samples lies, by
    the default rule of `numpy.quantile`. It is the mean of the selective risks that the
    samples below τ would set as thresholds. `AULoss` estimates it by a soft CDF.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: g, as `keras_selcal.csf.get` takes it.
        quantile: κ in (0, 1].
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The area, a float; NaN if no score lies below τ, or a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(au(np.array([0, 0, 0]), p, quantile=0.75), 4)        # (1/3 + 1/2)/2
    0.4167

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. AUdef
    """
    level = check_number(
        "quantile", quantile, "a number in (0, 1]", above=0.0, most=1.0
    )
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    return mean_of_rankings("au", parts, level)


def excess_aurc(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """AURC minus the AURC of the best ranking of the same losses.

    Formula:

    ```
    E-AURC = AURC(g) − AURC(−ℓ) ≥ 0
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The excess, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(excess_aurc(np.array([0, 0, 0]), p), 4)     # (1/2 + 1/3)/3 − (1/3)/3
    0.1667

    References:
    - Geifman et al., [Bias-Reduced Uncertainty Estimation for Deep Neural
      Classifiers](https://arxiv.org/abs/1805.08206)
    """
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    excess = [
        ranking(ranks, losses, counts).aurc() - ranking(-losses, losses, counts).aurc()
        for ranks, losses, counts in parts
    ]
    # The difference of two equal sums may round to just below 0.
    return float(np.mean(np.maximum(excess, 0.0)))


def augrc(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    loss: str = "zero_one",
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Area under the generalised risk-coverage curve.

    Formula:

    ```
    AUGRC = ∫₀¹ P(ℓ, g ≥ τ(κ)) dκ = (1/n²) Σ_i ℓ_i (#{j: g_j < g_i} + ½ #{j: g_j = g_i})
    ```

    The joint risk of the accepted samples replaces the mean risk among them; the curve
    consists of straight lines from (0, 0). With the 0/1 loss and accuracy a,
    AUGRC = (1 − AUROC_f) a (1 − a) + ½ (1 − a)².

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: the losses of the samples with these scores, in their shape.

    Returns:
        The area, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(augrc(np.array([0, 0, 0]), p), 4)       # (1 + 1/2)/9
    0.1667

    References:
    - Traub et al., [Overcoming Common Flaws in the Evaluation of Selective
      Classification Systems](https://arxiv.org/abs/2407.01032)
    """
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(y_true, y_pred, csf, loss, scores, losses, sample_weight, outputs)
    return mean_of_rankings("augrc", parts)


def failure_auroc(
    y_true: Any = None,
    y_pred: Any = None,
    csf: Any = "msp",
    *,
    scores: Any = None,
    losses: Any = None,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """Probability that a correct prediction has higher confidence than a wrong one.

    Formula:

    ```
    AUROC_f = P(g_i > g_j | i correct, j wrong) + ½ P(g_i = g_j | i correct, j wrong)
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k): a
            sample is then partly correct and partly wrong.
        y_pred: probabilities or logits, (..., k); of one sigmoid unit, (..., 1) or
            (n,).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.
        scores: confidence scores of your own, of any shape, instead of `y_true` and
            `y_pred`; pass their `losses` as well. They are ranked together.
        losses: 1 for the wrong and 0 for the correct samples, in the shape of `scores`.

    Returns:
        The area, a float; NaN if all predictions are correct, or all wrong, or one is
        NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> failure_auroc(np.array([0, 0, 0]), p)
    0.5

    References:
    - Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
      Out-of-Distribution Examples in Neural
      Networks](https://arxiv.org/abs/1610.02136)
    """
    outputs = Outputs(from_logits, multi_label, ignore_class, axis, decision_threshold)
    parts = ranked(
        y_true, y_pred, csf, "zero_one", scores, losses, sample_weight, outputs
    )
    if losses is not None and not all(np.isin(part[1], (0, 1)).all() for part in parts):
        refuse("losses", losses, "0 or 1 for each sample")
    return mean_of_rankings("failure_auroc", parts)
