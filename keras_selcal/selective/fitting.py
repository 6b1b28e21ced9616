"""What `SelectiveClassifier` finds: thresholds, the record of a fit, figures."""

import datetime
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._validation import refuse
from keras_selcal.calibrators import Calibrator
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


@dataclass(frozen=True)
class Selection:
    """What a fit finds.

    Attributes:
        calibrator: the fitted calibrator, or None.
        csf: the score.
        threshold: a number, or a list with one for each label or class.
        record: what the fit promises.
    """

    calibrator: Calibrator | None
    csf: ConfidenceScore
    threshold: Any
    record: FitRecord


def fit_selection(
    given: SelectionData,
    calibrator: Calibrator | None,
    csf: ConfidenceScore | None,
    answer: Callable[[Array, Calibrator | None, ConfidenceScore], dict[str, Array]],
    *,
    coverage: float | None,
    risk: float | None,
    delta: float | None,
    per_class: bool = False,
    costs: Array | None = None,
    abstain_cost: float | None = None,
    unknown: Array | None = None,
    share: float | None = None,
    seed: bytes = b"",
) -> Selection:
    """Fits the calibrator, chooses the score, selects the threshold and records it:
    `SelectiveClassifier.fit` and `Policy.fit` once they have a model's outputs.

    Args:
        given: the labelled outputs.
        calibrator: the calibrator to start from, or None.
        csf: the score, or None to choose one.
        answer: what `SelectionLayer.answer` gives for outputs, with a calibrator and a
            score.
        coverage: κ, or None.
        risk: r, or None.
        delta: δ, or None.
        per_class: whether each class has a threshold of its own.
        costs: what answers cost, in place of a target, or None.
        abstain_cost: cost of an abstention, or None.
        unknown: outputs for unknown inputs, or None.
        share: π, the share of unknown inputs in use, or None.
        seed: of the sample of the mixture.
    """
    if per_class and given.outputs.multi_label:
        allowed = "False with `multi_label=True`: each label has its threshold"
        refuse("per_class", per_class, allowed)
    half, data, calibrator = given.split(calibrator, csf is None)
    choice = None
    if csf is None:
        choice = choose_score(half, lambda each: answer(half.y_pred, calibrator, each))
        csf = choice.csf
    mixture, level, rest = None, delta, data
    if unknown is not None and share is not None:
        mixture = Mixture.of(data, unknown, share)
        data = mixture.drawn(DEFAULT_DELTA if delta is None else delta, seed)
        level = None if delta is None else remaining(delta)
    found = answer(data.y_pred, calibrator, csf)
    find = data.class_cuts if per_class else data.cuts
    cuts: Sequence[Cuts | None] = find(found, predicted=True)
    further: dict[str, Any] = {}
    if costs is None:
        kind = "class" if per_class else "label"
        try:
            thresholds = select_each(cuts, coverage, risk, level, kind)
        except UnmetTargetError as error:
            hints = []
            if unknown is not None and share is not None:
                hints.append(
                    f"These samples are drawn from {rest.n} known and {len(unknown)} "
                    f"unknown inputs, a share of {share:g} unknown: to draw more, pass "
                    "more of the kind that is short."
                )
            if rest is not given:
                hints.append(
                    f"Of the {given.n} samples given, the others fitted the calibrator "
                    "or chose the score: fit these on other data first to use all "
                    "samples for the threshold."
                )
            raise UnmetTargetError(" ".join([str(error), *hints])) from None
    else:
        # As the layer rounds it.
        limit = -math.inf if abstain_cost is None else -np.float32(abstain_cost)
        thresholds = [float(limit)] * len(cuts)
        further = mean_costs(data, found, float(limit), costs, abstain_cost)
    if mixture is not None:
        further = mixture.coverages(found, thresholds[0])
    record = record_of(
        data,
        cuts,
        thresholds,
        coverage=coverage,
        risk=risk,
        delta=delta,
        confidence=found["confidence"],
        choice=choice,
        abstain_cost=abstain_cost,
        unknown_share=share,
        fingerprint=given.fingerprint,
        **further,
    )
    several = per_class or data.outputs.multi_label
    threshold = thresholds if several else thresholds[0]
    return Selection(calibrator, csf, threshold, record)


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
    """Chooses the score with the lowest AURC of the answers.

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
