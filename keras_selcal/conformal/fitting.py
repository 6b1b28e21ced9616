"""Selects the parameters and thresholds of a conformal classifier on labelled rows."""

import datetime
from typing import Any

import numpy as np

from keras_selcal._arrays import row_blocks, to_numpy
from keras_selcal._validation import check_unmasked, refuse
from keras_selcal.conformal.layer import OUTPUT_OPTIONS, ConformalLayer
from keras_selcal.conformal.record import ConformalRecord
from keras_selcal.conformal.scores import NonconformityScore
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold
from keras_selcal.selective.data import SelectionData
from keras_selcal.selective.threshold import with_margin

# Attributes of `ConformalClassifier` that `fit_layer` takes.
OPTIONS = (
    "method",
    "alpha",
    "delta",
    "penalty",
    "k_reg",
    "seed",
    "class_conditional",
    "allow_empty",
)


def stratum_indices(
    strata: Any, shape: tuple[int, ...], names: list[Any] | None
) -> np.ndarray | None:
    """Returns the index of each sample's stratum in `names`, or None without names.

    Strata of fewer dimensions than the samples belong to the leading ones.
    """
    if names is None:
        if strata is not None:
            refuse("strata", strata, "None: `fit` had no strata")
        return None
    if strata is None:
        refuse("strata", strata, "one entry for each sample, as in `fit`")
    values = to_numpy(strata)
    check_unmasked("strata", values)
    if values.shape != shape[: values.ndim] or values.ndim == 0:
        refuse("strata", values.shape, f"of shape {shape}, or a leading part of it")
    known = np.asarray(names)
    order = np.argsort(known)
    position = np.searchsorted(known, values, sorter=order)
    index = order[position.clip(max=len(known) - 1)].astype("int32")
    unknown = known[index] != values
    if unknown.any():
        refuse("strata", values[unknown][0], f"one of those in `fit`: {names}")
    index = index.reshape(index.shape + (1,) * (len(shape) - index.ndim))
    return np.broadcast_to(index, shape)


def fit_layer(
    first: SelectionData,
    data: SelectionData,
    strata: Any,
    *,
    method: str,
    alpha: float,
    delta: float | None,
    penalty: Any,
    k_reg: int | None,
    seed: int | None,
    class_conditional: bool,
    allow_empty: bool,
    calibration: Any,
) -> ConformalLayer:
    """Returns the fitted layer, see `ConformalClassifier`.

    An automatic penalty is chosen on `first`, the threshold selected on `data`.
    """
    outputs, shape = data.outputs, data.y_pred.shape
    names = None if strata is None else np.unique(to_numpy(strata)).tolist()
    strata = stratum_indices(strata, data.labels.shape, names)
    automatic = penalty == "auto"
    score = NonconformityScore.of(
        method, None if automatic else penalty, k_reg, seed
    ).config()
    counts, labels = data.counted()
    groups = None if data.groups is None else data.groups[counts]
    record = ConformalRecord(
        n=len(labels),
        groups=None if groups is None else len(np.unique(groups)),
        alpha=alpha,
        per_class=class_conditional,
        per_stratum=names is not None,
        date=datetime.date.today().isoformat(),
        delta=delta,
    )
    k = 2 if outputs.is_one_unit(shape) else shape[outputs.axis]

    def new_layer() -> ConformalLayer:
        return ConformalLayer(
            k,
            **outputs.config(*OUTPUT_OPTIONS),
            **score,
            class_conditional=class_conditional,
            allow_empty=allow_empty,
            calibration=calibration,
            strata=names,
            record=record,
        )

    layer = new_layer()
    if automatic:
        in_first, first_labels = first.counted()
        p, _ = _in_blocks(layer, first.y_pred, in_first)
        score |= choose_penalty(p, first_labels, alpha, method=method, seed=seed)
        layer = new_layer()
    _, scores = _in_blocks(layer, data.y_pred, counts)
    scores = scores[np.arange(len(labels)), labels]
    cells = np.zeros(len(scores), "int64") if strata is None else strata[counts]
    if class_conditional:
        cells = cells * k + labels
    count = layer.thresholds.size
    q = conformal_threshold(
        scores,
        alpha,
        delta=delta,
        sample_weight=data.weight[counts],
        groups=groups,
        categories=cells if count > 1 else None,
        num_categories=count,
    )
    q = with_margin(np.reshape(q, -1), scores, cells)
    layer.thresholds = q.reshape(layer.thresholds.shape)
    return layer


def _in_blocks(
    layer: ConformalLayer, y_pred: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and scores (n, k) of the n samples that count, computed a
    few at a time.
    """
    found = []
    for block in row_blocks((len(y_pred), y_pred[0].size)):
        parts = layer.of_classes(y_pred[block])
        found.append([to_numpy(part)[counts[block]] for part in parts])
    probabilities, scores = zip(*found, strict=True)
    return np.concatenate(probabilities), np.concatenate(scores)
