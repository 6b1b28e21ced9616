"""What `SelectiveClassifier` finds: thresholds, the record of a fit, figures."""

import datetime
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal.csf.choice import Choice, best_of, default_candidates
from keras_selcal.csf.probabilities import msp
from keras_selcal.csf.score import ConfidenceScore
from keras_selcal.selective.bounds import UnmetTargetError
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import SelectionData
from keras_selcal.selective.drift import reference_sample, unit_means
from keras_selcal.selective.record import FitRecord
from keras_selcal.selective.threshold import with_margin

DEFAULT_DELTA = 0.05


def select_each(
    cuts: list[Cuts], coverage: float | None, risk: float | None, delta: float | None
) -> list[float]:
    """Returns the threshold of each label."""
    each = None if delta is None else delta / len(cuts)
    found: list[float] = []
    for label in cuts:
        try:
            threshold = label.select(coverage, risk, each)
        except UnmetTargetError as error:
            if len(cuts) == 1:
                raise
            last, threshold = error, math.inf
        # A score passes from a threshold on, so that the margin is below.
        found.append(-float(with_margin(np.array([-threshold]), -label.thresholds)[0]))
    unmet = [label for label, threshold in enumerate(found) if threshold == math.inf]
    if len(unmet) == len(found):
        raise last
    if unmet:
        warnings.warn(
            f"Labels {unmet} are never answered, since no threshold meets the target. "
            f"Label {unmet[-1]}: {last}",
            stacklevel=4,
        )
    return found


def choose_score(
    data: SelectionData,
    answer: Callable[[ConfidenceScore], dict[str, Array]],
) -> Choice:
    """Returns the score by whose confidences the answers have the lowest AURC.

    Args:
        data: what the scores are compared on.
        answer: what `SelectionLayer.answer` gives with a score.
    """
    counts = data.weight > 0
    parts: list[Any] = [(..., counts)]
    if data.outputs.multi_label:
        labels = range(data.labels.shape[-1])
        parts = [((..., label), counts[..., label]) for label in labels]

    def of_labels(values: Array) -> list[Array]:
        return [values[label][rows].astype("float64") for label, rows in parts]

    def ranks(score: ConfidenceScore) -> list[Array]:
        given = answer(score)
        return of_labels(np.where(given["accepted"], given["confidence"], -math.inf))

    rows = data.outputs.rows_of(data.y_pred.shape)
    scores = [msp, *default_candidates(data.outputs.from_logits, *rows)]
    wrong = answer(msp)["labels"] != data.labels
    weights: list[Array | None] = [*of_labels(data.weight)]
    return best_of(scores, ranks, of_labels(wrong), weights)


def record_of(
    data: SelectionData,
    cuts: list[Cuts],
    thresholds: list[float],
    *,
    coverage: float | None,
    risk: float | None,
    delta: float | None,
    confidence: Array,
    choice: Choice | None,
) -> FitRecord:
    """Returns the record of a fit."""
    pairs = list(zip(cuts, thresholds, strict=True))
    counted = [label.at(threshold) for label, threshold in pairs]
    bounds: list[float] | None = None
    if delta is not None:
        assert risk is not None
        bounds = [risk] * len(cuts)
    elif coverage is not None and not data.dependent:
        # The threshold depends on scores only, so that a plain bound holds for it.
        delta = DEFAULT_DELTA
        bounds = [label.bound(at, delta / len(cuts)) for label, at in pairs]
        if np.isnan(bounds).any():
            delta = bounds = None

    def figure(values: list[float]) -> Any:
        return tuple(values) if data.outputs.multi_label else values[0]

    return FitRecord(
        n=data.n,
        groups=cuts[0].num_groups,
        coverage=figure([a / c.total for (a, _), c in zip(counted, cuts, strict=True)]),
        selective_risk=figure([e / a if a else math.nan for a, e in counted]),
        target_coverage=coverage,
        target_risk=risk,
        delta=delta,
        bound=None if bounds is None else figure(bounds),
        date=datetime.date.today().isoformat(),
        choice=None if choice is None else str(choice),
        confidence=reference_sample(unit_means(confidence, data.weight, data.units)),
    )


def evaluate(
    data: SelectionData, answer: dict[str, Array], threshold: Any, delta: float
) -> dict[str, Any]:
    """Returns coverage, risk, its bound and accuracy, of each label if multi-label."""
    rows = []
    for label, at in zip(data.cuts(answer), np.reshape(threshold, (-1,)), strict=True):
        accepted, errors = label.at(at)
        risk = errors / accepted if accepted else math.nan
        rows.append((accepted / label.total, risk, label.bound(at, delta)))
    correct = answer["labels"] == data.labels
    axes = tuple(range(correct.ndim - data.outputs.multi_label))
    accuracy = np.average(correct, axis=axes, weights=data.weight)
    names = ("coverage", "selective_risk", "selective_risk_bound", "accuracy")
    figures = (*np.array(rows).T, np.reshape(accuracy, (-1,)))
    return {
        name: values if data.outputs.multi_label else float(values[0])
        for name, values in zip(names, figures, strict=True)
    }
