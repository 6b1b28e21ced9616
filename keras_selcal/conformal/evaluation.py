"""How prediction sets do on labelled data."""

from typing import Any

import numpy as np

from keras_selcal._arrays import to_numbers
from keras_selcal._predictions.samples import to_weight
from keras_selcal._validation import check_not_empty, refuse
from keras_selcal.conformal.scores import check_classes
from keras_selcal.conformal.threshold import masses
from keras_selcal.selective.data import SelectionData


def evaluate_sets(
    labels: Any, sets: Any, *, sample_weight: Any | None = None
) -> dict[str, Any]:
    """Computes coverage and size of prediction sets.

    Args:
        labels: class indices (...) or one-hot (..., k).
        sets: which classes each set holds, boolean (..., k).
        sample_weight: weights of the samples in all averages, (...).

    Returns:
        A dict of

        - `coverage`: share of the sets that hold the label,
        - `mean_size`: average number of classes in a set,
        - `singleton_rate` and `empty_rate`: share of the sets with one class and with
          none,
        - `class_coverage`: coverage of each class, (k,); NaN for one without samples,
        - `size_coverage`: coverage of the sets of each size 0 … k, (k + 1,); NaN for a
          size without sets (size-stratified coverage),
        - `size_rate`: share of the sets of each size, (k + 1,).

    Example:
    >>> import numpy as np
    >>> sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]], bool)
    >>> figures = evaluate_sets(np.array([0, 1, 1, 1]), sets)
    >>> figures["coverage"], figures["mean_size"]
    (0.75, 1.5)
    >>> figures["size_coverage"]
    array([nan, 0.5, 1. , nan])
    """
    y, member = check_sets(labels, sets)
    k = member.shape[-1]
    weight = to_weight(sample_weight, np.shape(sets)[:-1])
    w = np.ones(len(y)) if weight is None else weight
    if not w.any():
        refuse("sample_weight", sample_weight, "above 0 for at least one sample")
    sizes = member.sum(axis=-1)
    covered = member[np.arange(len(y)), y]
    return {
        "coverage": float(np.average(covered, weights=w)),
        "mean_size": float(np.average(sizes, weights=w)),
        "singleton_rate": float(np.average(sizes == 1, weights=w)),
        "empty_rate": float(np.average(sizes == 0, weights=w)),
        "class_coverage": mean_by(y, covered, w, k),
        "size_coverage": mean_by(sizes, covered, w, k + 1),
        "size_rate": np.bincount(sizes, w, k + 1) / w.sum(),
    }


def check_sets(
    labels: Any, sets: Any, name: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Returns class indices (n,) and sets (n, k); errors use the labels' `name`."""
    member = to_numbers("sets", sets)
    check_not_empty("sets", member)
    if member.ndim < 2 or not np.isin(member, (0, 1)).all():
        refuse("sets", member.shape, "a boolean array (..., k)")
    y = check_classes(labels, member.shape, name).reshape(-1)
    return y, member.reshape(-1, member.shape[-1]).astype(bool)


def evaluate_answers(
    data: SelectionData,
    answer: dict[str, np.ndarray],
    strata: np.ndarray | None,
    names: list[Any] | None,
) -> dict[str, Any]:
    """Returns the figures of `ConformalClassifier.evaluate`.

    Args:
        data: labels, weights and groups.
        answer: what `ConformalLayer` returns for them.
        strata: index of each sample's stratum, or None.
        names: of the strata, or None.
    """
    counts, labels = data.counted()
    w, sets = data.weight[counts], answer["sets"][counts]
    if data.groups is not None:
        w = masses(w, data.groups[counts])
    figures = evaluate_sets(labels, sets, sample_weight=w)
    right = answer["labels"][counts] == labels
    figures["accuracy"] = float(np.average(right, weights=w))
    if strata is not None and names is not None:
        covered = sets[np.arange(len(sets)), labels]
        means = mean_by(strata[counts], covered, w, len(names))
        figures["stratum_coverage"] = dict(zip(names, means.tolist(), strict=True))
    return figures


def mean_by(
    index: np.ndarray, values: np.ndarray, weight: np.ndarray, count: int
) -> np.ndarray:
    """Returns the weighted mean of values by index, (count,); NaN where none is."""
    total = np.bincount(index, weight, count)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(index, weight * values, count) / total)
