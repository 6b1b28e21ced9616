"""Metrics of unknown inputs: how well confidence separates them from known ones."""

from typing import Any

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, to_numbers, to_numpy
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._segments import Segments
from keras_selcal._validation import (
    check_choice,
    check_not_empty,
    check_number,
    check_probabilities,
    refuse,
)


def confidences(predictions: Any, csf: Any, from_logits: bool, name: str) -> Array:
    """Returns scores (n,) unchanged, and computes the scores of predictions (n, k)."""
    values = to_numbers(name, predictions)
    check_not_empty(name, values)
    if values.ndim not in (1, 2):
        refuse(name, values.shape, "scores (n,) or predictions (n, k)")
    if values.ndim == 1:
        if from_logits:
            refuse(
                name,
                values.shape,
                "of shape (n, 1) if it holds logits of one sigmoid unit: (n,) are "
                "scores, which take no `from_logits`",
            )
        scores = values.astype("float64")
    else:
        if not from_logits and values.shape[1] > 1:
            check_probabilities(values.astype("float64"), name)
        # Labels do not matter here.
        labels = np.zeros(len(values), "int32")
        samples = Samples.given(labels, values, from_logits=from_logits)
        scores = samples.ranks(csfs.get(csf))
    if np.isnan(scores).any():
        refuse(name, "NaN", "scores or predictions without NaN")
    return scores


class Kinds:
    """Known and unknown inputs in one order of confidence.

    Args:
        known: scores of the known inputs, (n,).
        unknown: scores of the unknown ones, (m,).
        losses: losses of the known inputs, (n,); 0 only tells the kinds apart.
    """

    def __init__(self, known: Array, unknown: Array, losses: Any = 0.0) -> None:
        self.n, self.m = len(known), len(unknown)
        self._groups = Segments.of(np.concatenate([known, unknown]))
        # Without a rank there is no value.
        self._losses = np.nan if np.isnan(known).any() else losses

    def ranking(self, known: Any, unknown: Any, *, apart: bool = False) -> Ranking:
        """Returns the groups of equal score; accepting an unknown input is an error.

        Args:
            known: how often each known input counts, (..., n).
            unknown: how often each unknown input counts, (..., m).
            apart: whether known inputs have no loss; the loss is then the mass of the
                unknown ones.
        """
        losses = known * (0.0 * self._losses if apart else self._losses)
        mass, loss = (
            self._groups.sums(np.concatenate([part, unknown], axis=-1))
            for part in (known, losses)
        )
        return Ranking(mass, loss, np)


def unknown_weight(share: float | None, total: Any, m: Any) -> Any:
    """Returns the weight of each of m unknown inputs beside known ones of a total
    weight, for which their share is π.
    """
    return 1.0 if share is None else share / (1 - share) * total / m


def check_share(share: Any) -> float | None:
    """Returns the checked share of unknown inputs."""
    if share is None:
        return None
    allowed = "a number in (0, 1), or None"
    return check_number("unknown_share", share, allowed, above=0.0, below=1.0)


def _ranking(known: Any, unknown: Any, csf: Any, from_logits: bool) -> Ranking:
    """Returns groups of equal score; the loss is the mass of the unknown inputs."""
    kinds = Kinds(
        confidences(known, csf, from_logits, "known"),
        confidences(unknown, csf, from_logits, "unknown"),
    )
    shape, other = np.shape(to_numpy(known)), np.shape(to_numpy(unknown))
    if len(shape) == len(other) == 2 and shape[1] != other[1]:
        refuse("unknown", other, f"predictions (m, {shape[1]}), as `known`")
    return kinds.ranking(np.ones(kinds.n), np.ones(kinds.m), apart=True)


def ood_auroc(
    known: Any, unknown: Any, *, csf: Any = "msp", from_logits: bool = False
) -> float:
    """Probability that a known input has higher confidence than an unknown one.

    Formula:

    ```
    AUROC = P(g_i > g_j) + ½ P(g_i = g_j),     i known, j unknown
    ```

    Args:
        known: confidence scores (n,) of inputs of the kind that the model was trained
            on, or predictions (n, k), (n, 1) of one sigmoid unit.
        unknown: the same of inputs that belong to none of the classes.
        csf: the score of predictions, as `keras_selcal.csf.get` takes it.
        from_logits: whether predictions are logits.

    Returns:
        The area, a float: 0.5 is chance, 1 is perfect.

    Example:
    >>> ood_auroc([0.9, 0.8, 0.4], [0.5, 0.4])        # (2 + 2 + ½)/6
    0.75

    References:
    - Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
      Out-of-Distribution Examples in Neural
      Networks](https://arxiv.org/abs/1610.02136)
    """
    return float(_ranking(known, unknown, csf, from_logits).failure_auroc())


def ood_aupr(
    known: Any,
    unknown: Any,
    *,
    positive: str = "known",
    csf: Any = "msp",
    from_logits: bool = False,
) -> float:
    """Average precision in telling known inputs from unknown ones.

    Formula:

    ```
    AUPR = Σ_t (R_t − R_{t−1}) P_t
    ```

    with P_t and R_t precision and recall at the t-th threshold, as scikit-learn's
    `average_precision_score`. Unlike AUROC it depends on how many unknown inputs there
    are.

    Args:
        known: as in `ood_auroc`.
        unknown: as in `ood_auroc`.
        positive: `"known"` to find the known inputs by high confidence, or
            `"unknown"` to find the unknown ones by low confidence.
        csf: as in `ood_auroc`.
        from_logits: as in `ood_auroc`.

    Returns:
        The area, a float.

    Example:
    >>> round(ood_aupr([0.9, 0.8, 0.4], [0.5, 0.3]), 4)        # (1 + 1 + ¾)/3
    0.9167
    """
    check_choice("positive", positive, ("known", "unknown"))
    ranking = _ranking(known, unknown, csf, from_logits)
    return float(ranking.average_precision(positive))


def fpr_at_tpr(
    known: Any,
    unknown: Any,
    tpr: float = 0.95,
    *,
    csf: Any = "msp",
    from_logits: bool = False,
) -> float:
    """Share of unknown inputs that pass where a share of the known ones does.

    Formula:

    ```
    FPR = P(g_j ≥ τ), j unknown,     τ the largest with P(g_i ≥ τ) ≥ TPR, i known
    ```

    Args:
        known: as in `ood_auroc`.
        unknown: as in `ood_auroc`.
        tpr: share of the known inputs that must be accepted, in (0, 1].
        csf: as in `ood_auroc`.
        from_logits: as in `ood_auroc`.

    Returns:
        The share, a float; 0 is best.

    Example:
    >>> fpr_at_tpr([0.9, 0.8, 0.4], [0.5, 0.3], tpr=0.95)
    0.5
    """
    tpr = check_number("tpr", tpr, "a number in (0, 1]", above=0.0, most=1.0)
    return float(_ranking(known, unknown, csf, from_logits).fpr_at(tpr))


def _with_unknown(
    y_true: Any,
    y_pred: Any,
    unknown: Any,
    csf: Any,
    unknown_share: float | None,
    outputs: Outputs,
    sample_weight: Any,
) -> Ranking:
    """Returns the ranking of both kinds; accepting an unknown input is an error."""
    samples = Samples.of(y_true, y_pred, outputs, sample_weight)
    kinds = kinds_of(samples, csf, unknown)
    counts = samples.counts
    weight = unknown_weight(check_share(unknown_share), counts.sum(), kinds.m)
    return kinds.ranking(counts, np.full(kinds.m, weight))


def kinds_of(samples: Samples, csf: Any, unknown: Any) -> Kinds:
    """Returns samples and the predictions of unknown inputs in one order."""
    if samples.label_index is not None:
        refuse("multi_label", True, "False: an unknown input belongs to no class")
    strange = to_numpy(unknown)
    if strange.ndim == 1:
        # Predictions of one sigmoid unit.
        strange = strange[:, None]
    k = samples.num_classes
    if strange.shape[1:] not in ((k,), (1 if k == 2 else k,)):
        allowed = f"predictions (m, {k}) of the same classes as `y_pred`"
        refuse("unknown", strange.shape, allowed)
    score = csfs.get(csf)
    ranks = confidences(strange, score, samples.from_logits, "unknown")
    return Kinds(samples.ranks(score), ranks, 1.0 - samples.correct)


def scod_aurc(
    y_true: Any,
    y_pred: Any,
    unknown: Any,
    *,
    csf: Any = "msp",
    unknown_share: float | None = None,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """AURC in the presence of unknown inputs, each of which is an error if accepted.

    Formula:

    ```
    u = π/(1 − π) · Σ_i w_i / m,     W = Σ_i w_i + m u,     hence m u/W = π
    AURC = (1/W) Σ_j v_j ℓ_j (S(b_j) − S(a_j))/(b_j − a_j)
    S(r) = r − (W − r)(H_W − H_{W−r})
    ```

    over the n known inputs, of weight v = w and loss ℓ = 1 if wrong, and the m unknown
    ones, of weight v = u and loss ℓ = 1. a_j is the weight of all inputs of lower
    confidence than input j, b_j − a_j the weight of inputs of equal confidence, itself
    included; H_x = Σ_{i≥1} (1/i − 1/(i + x)) are the harmonic numbers. If all weights
    are whole numbers, this is the mean of the selective risks at the coverages
    1/W, …, 1 of data in which each input is repeated v times.

    Args:
        y_true: class indices (n,) or distributions (n, k) of the known inputs.
        y_pred: their predictions, (n, k).
        unknown: predictions (m, k) of inputs that belong to none of the classes.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        unknown_share: π in (0, 1), the share of unknown inputs in use; each of the m
            given ones gets the weight u above. None gives each the weight 1: without
            `sample_weight`, π is then the share in the data, m/(n + m).
        from_logits: whether predictions are logits.
        sample_weight: w of the known inputs, 1 by default; scaled up to a sum of n if
            theirs is smaller, as in every metric.
        ignore_class: samples with this label do not count.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is larger
            than this.

    Returns:
        The area, a float.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> round(scod_aurc([0, 0], p, [[0.6, 0.4]]), 4)        # (0 + 1/2 + 2/3)/3
    0.3889

    References:
    - Xia & Bouganis, [Augmenting Softmax Information for Selective Classification with
      Out-of-Distribution Data](https://arxiv.org/abs/2207.07506)
    """
    outputs = Outputs(
        from_logits,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    )
    data = y_true, y_pred, unknown, csf, unknown_share, outputs, sample_weight
    return float(_with_unknown(*data).aurc())


def scod_augrc(
    y_true: Any,
    y_pred: Any,
    unknown: Any,
    *,
    csf: Any = "msp",
    unknown_share: float | None = None,
    from_logits: bool = False,
    sample_weight: Any | None = None,
    ignore_class: int | None = None,
    axis: int = -1,
    decision_threshold: float = 0.5,
) -> float:
    """AUGRC in the presence of unknown inputs, each of which is an error if accepted.

    Formula:

    ```
    AUGRC = (1/W²) Σ_j v_j ℓ_j (a_j + b_j)/2
    ```

    with the letters of `scod_aurc`.

    Args:
        y_true: as in `scod_aurc`.
        y_pred: as in `scod_aurc`.
        unknown: as in `scod_aurc`.
        csf: as in `scod_aurc`.
        unknown_share: as in `scod_aurc`.
        from_logits: as in `scod_aurc`.
        sample_weight: as in `scod_aurc`.
        ignore_class: as in `scod_aurc`.
        axis: as in `scod_aurc`.
        decision_threshold: as in `scod_aurc`.

    Returns:
        The area, a float.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> round(scod_augrc([0, 0], p, [[0.6, 0.4]]), 4)        # (½ + 1½)/9
    0.2222
    """
    outputs = Outputs(
        from_logits,
        ignore_class=ignore_class,
        axis=axis,
        decision_threshold=decision_threshold,
    )
    data = y_true, y_pred, unknown, csf, unknown_share, outputs, sample_weight
    return float(_with_unknown(*data).augrc())
