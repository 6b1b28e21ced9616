"""What `SelectiveClassifier` finds: thresholds, the record of a fit, figures."""

import datetime
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._validation import refuse
from keras_selcal.csf.choice import Choice, best_of, default_candidates
from keras_selcal.csf.probabilities import msp
from keras_selcal.csf.score import ConfidenceScore
from keras_selcal.selective.bounds import UnmetTargetError
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import SelectionData
from keras_selcal.selective.drift import reference_sample, unit_means
from keras_selcal.selective.mixture import Mixture, remaining
from keras_selcal.selective.record import FitRecord
from keras_selcal.selective.threshold import DEFAULT_DELTA, accepts, with_margin


def select_each(
    cuts: Sequence[Cuts | None],
    coverage: float | None,
    risk: float | None,
    delta: float | None,
    kind: str = "label",
) -> list[float]:
    """Returns the threshold of each label or class, ∞ where none meets the target.

    With δ, the target holds for all at once: each has the level δ over their number.

    Args:
        cuts: the thresholds of each label or class; None if it has no samples.
        coverage: κ, or None.
        risk: r, or None.
        delta: δ, or None.
        kind: `"label"` or `"class"`, for warnings.
    """
    each = None if delta is None else delta / len(cuts)
    found: list[float] = []
    reasons: dict[int, Any] = {}
    for index, part in enumerate(cuts):
        threshold = math.inf
        if part is None:
            reasons[index] = "no sample is predicted as it."
        else:
            try:
                threshold = part.select(coverage, risk, each)
            except UnmetTargetError as error:
                if len(cuts) == 1:
                    raise
                reasons[index] = error
            # Scores ≥ threshold pass, so the margin goes below it.
            margin = with_margin(np.array([-threshold]), -part.thresholds)
            threshold = -float(margin[0])
        found.append(threshold)
    if reasons:
        last = max(reasons, key=lambda i: (isinstance(reasons[i], Exception), i))
        example = f"{kind.capitalize()} {last}: {reasons[last]}"
        if len(reasons) == len(found):
            raise UnmetTargetError(f"No {kind} meets the target. {example}")
        names = {"label": "Labels", "class": "Classes"}[kind]
        warnings.warn(
            f"{names} {[*reasons]} are never answered, since no threshold meets the "
            f"target. {example}",
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


def mean_costs(
    data: SelectionData,
    answer: dict[str, Array],
    threshold: Any,
    costs: Array,
    abstain_cost: float | None,
) -> dict[str, Any]:
    """Returns the mean cost of the answers and abstentions, and the mean that the
    probabilities predict, of each label if multi-label.
    """
    answered = answer["accepted"] & (answer["confidence"] >= threshold)
    counts = data.weight > 0
    if abstain_cost is None and not answered[counts].all():
        refuse(
            "abstain_cost", None, "a number if the calibrator rejects some of the data"
        )
    labels = np.where(counts, data.labels, 0).astype("int64")
    axes = tuple(range(labels.ndim - data.outputs.multi_label))

    def mean(of_answers: Array) -> Any:
        values = np.where(answered, of_answers, abstain_cost or 0.0)
        found = np.average(np.where(counts, values, 0), axis=axes, weights=data.weight)
        return found if data.outputs.multi_label else float(found)

    return {
        "cost": mean(costs[labels, answer["labels"]]),
        "expected_cost": mean(-answer["confidence"].astype("float64")),
    }


def record_of(
    data: SelectionData,
    cuts: Sequence[Cuts | None],
    thresholds: list[float],
    *,
    coverage: float | None,
    risk: float | None,
    delta: float | None,
    confidence: Array,
    choice: Choice | None,
    **further: Any,
) -> FitRecord:
    """Returns the record of a fit: of each label if multi-label, or of all samples and,
    where there are several thresholds, of the samples predicted as each class.
    """
    bounds: Any = None
    if delta is not None:
        assert risk is not None
        bounds = [risk] * len(cuts)
    elif risk is None and not data.dependent:
        # The threshold depends on scores or costs only: a plain bound holds for it.
        delta = DEFAULT_DELTA
        bounds = _figures(cuts, thresholds, delta / len(cuts))[2]
        if np.isnan(bounds).any():
            delta = bounds = None
    counted = [
        (0.0, 0.0, 0.0) if part is None else (*part.at(at), part.total)
        for part, at in zip(cuts, thresholds, strict=True)
    ]
    multi_label = data.outputs.multi_label
    per_class: dict[str, Any] = {}
    accepted, errors, total = np.array(counted).T
    if not multi_label and len(cuts) > 1:
        shares, risks, _ = _figures(cuts, thresholds, DEFAULT_DELTA)
        per_class = {"class_coverage": _tuple(shares), "class_risk": _tuple(risks)}
        accepted, errors, total = (
            x.sum(keepdims=True) for x in (accepted, errors, total)
        )
    with np.errstate(invalid="ignore"):
        figures = accepted / total, errors / accepted
    groups = len(np.unique(data.units[data.weight > 0]))

    def figure(values: Any, several: bool) -> Any:
        return _tuple(values) if several else float(values[0])

    return FitRecord(
        n=data.n,
        groups=None if data.groups is None or groups == data.n else groups,
        coverage=figure(figures[0], multi_label),
        selective_risk=figure(figures[1], multi_label),
        target_coverage=coverage,
        target_risk=risk,
        delta=delta,
        bound=None if bounds is None else figure(bounds, multi_label or len(cuts) > 1),
        date=datetime.date.today().isoformat(),
        choice=None if choice is None else str(choice),
        **{
            name: figure(value, True) if isinstance(value, np.ndarray) else value
            for name, value in further.items()
        },
        confidence=reference_sample(unit_means(confidence, data.weight, data.units)),
        **per_class,
    )


def _tuple(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _figures(
    cuts: Sequence[Cuts | None], thresholds: Any, delta: float
) -> tuple[Array, Array, Array]:
    """Returns coverage, risk and its bound of each label or class; NaN, NaN and 1 for a
    class that no sample is predicted as.
    """
    rows = []
    for part, at in zip(cuts, thresholds, strict=True):
        if part is None:
            rows.append((math.nan, math.nan, 1.0))
            continue
        accepted, errors = part.at(at)
        risk = errors / accepted if accepted else math.nan
        rows.append((accepted / part.total, risk, part.bound(at, delta)))
    shares, risks, bounds = np.array(rows).T
    return shares, risks, bounds


def evaluate(
    data: SelectionData, answer: dict[str, Array], threshold: Any, delta: float
) -> dict[str, Any]:
    """Returns coverage, risk, its bound and accuracy, of each label if multi-label; the
    first three of each class too, if each has its threshold.
    """
    multi_label, per_class = data.outputs.multi_label, {}
    if np.ndim(threshold) and not multi_label:
        found = _figures(data.class_cuts(answer), threshold, delta)
        of_class = ("class_coverage", "class_risk", "class_risk_bound")
        per_class = dict(zip(of_class, found, strict=True))
        # What is accepted is decided: all of it has the same confidence.
        accepted = accepts(answer, threshold, data.outputs)
        confidence = np.zeros_like(answer["confidence"])
        answer = {**answer, "accepted": accepted, "confidence": confidence}
        threshold = 0.0
    found = _figures(data.cuts(answer), np.reshape(threshold, (-1,)), delta)
    correct = answer["labels"] == data.labels
    axes = tuple(range(correct.ndim - multi_label))
    accuracy = np.average(correct, axis=axes, weights=data.weight)
    names = ("coverage", "selective_risk", "selective_risk_bound", "accuracy")
    figures = {
        name: values if multi_label else float(values[0])
        for name, values in zip(
            names, (*found, np.reshape(accuracy, (-1,))), strict=True
        )
    }
    return figures | per_class


def evaluate_mixture(
    mixture: Mixture,
    answer: dict[str, Array],
    threshold: float,
    delta: float,
    seed: bytes,
) -> dict[str, Any]:
    """Returns the same of a mixture, and the coverages of its kinds. The bound is that
    of a sample of the mixture, the other figures use all of the data.
    """
    figures = evaluate(mixture.weighted(), answer, threshold, delta)
    (cuts,) = mixture.drawn(delta, seed).cuts(answer)
    figures["selective_risk_bound"] = cuts.bound(threshold, remaining(delta))
    return figures | mixture.coverages(answer, threshold)
