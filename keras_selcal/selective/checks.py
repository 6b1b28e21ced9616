"""What checks of new data compute, for a fitted classifier or policy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import to_weight
from keras_selcal._validation import refuse
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import OF_MODEL, SelectionData, units_of
from keras_selcal.selective.drift import DriftCheck, ks_test, unit_means
from keras_selcal.selective.record import FitRecord
from keras_selcal.selective.threshold import accepts


def counted(
    outputs: Outputs,
    y_pred: Array,
    groups: Any,
    *weights: Any,
    argument: str = OF_MODEL[1],
) -> tuple[Array, Array]:
    """Returns weight and unit of each answer, for data without labels."""
    samples = tuple(outputs.sample_shape(y_pred.shape))
    weight, units = np.ones(samples), units_of(groups, samples)
    for given in weights:
        factor = to_weight(given, samples)
        weight = weight if factor is None else weight * factor.reshape(samples)
    if not weight.any():
        refuse(argument, y_pred.shape, "outputs for at least one sample that counts")
    if outputs.multi_label:
        k = outputs.columns(y_pred, False, np).shape[-2]
        weight, units = (np.stack([x] * k, axis=-1) for x in (weight, units))
    return weight, units


def promise(selection: Any) -> tuple[FitRecord, Any]:
    """Returns record and threshold; a file of an older version has no confidences."""
    record = selection.record
    if record is None or not record.confidence:
        raise ValueError(
            "The confidences that the threshold was selected on are not known: call "
            "`fit` again."
        )
    return record, selection.threshold


def check_drift(
    selection: Any,
    answer: dict[str, Array],
    weight: Array,
    units: Array,
    rate: float,
    data: SelectionData | None,
) -> DriftCheck:
    """Returns what `SelectiveClassifier.check` does.

    Args:
        selection: a layer or a policy, with its record and threshold.
        answer: what `SelectionLayer.answer` gives for the new outputs.
        weight: of each answer.
        units: the independent unit of each answer.
        rate: false alarm rate.
        data: the new outputs with labels, or None.
    """
    record, threshold = promise(selection)
    accepted = accepts(answer, threshold, selection.outputs)
    new = unit_means(answer["confidence"], weight, units)
    distance, p_value = ks_test(record.confidence, new)
    risk = {}
    if data is not None:
        if record.unknown_share is not None:
            raise ValueError(
                "The risk was promised for a mixture with unknown inputs, which "
                "labelled samples alone do not show: call `check` without labels, or "
                "`SelectiveClassifier.evaluate` with `unknown`."
            )
        per_class = bool(np.ndim(threshold)) and not selection.outputs.multi_label
        cuts = data.class_cuts(answer) if per_class else data.cuts(answer)
        risk = _risk_check(cuts, threshold, record, rate)
    return DriftCheck(
        p_value <= rate,
        p_value,
        distance,
        len(new),
        float(np.average(accepted, weights=weight)),
        float(np.mean(record.coverage)),
        rate,
        **risk,
    )


def _risk_check(
    cuts: Sequence[Cuts | None], threshold: Any, record: FitRecord, rate: float
) -> dict[str, Any]:
    """Returns what `DriftCheck` says about the risk, of each label or class."""
    thresholds = np.reshape(threshold, (-1,))
    found = [
        (0.0, 0.0) if part is None else part.at(at)
        for part, at in zip(cuts, thresholds, strict=True)
    ]
    risk = [errors / count if count else 0.0 for count, errors in found]
    several = len(risk) > 1
    given: dict[str, Any] = {"selective_risk": np.array(risk) if several else risk[0]}
    unit_weights = all(part is None or part.unit_weights for part in cuts)
    if record.bound is None or not unit_weights:
        return given
    bounds = np.broadcast_to(record.bound, len(cuts))
    p_values = [
        1.0 if part is None else part.excess_p_value(at, float(bound), rate / len(cuts))
        for part, at, bound in zip(cuts, thresholds, bounds, strict=True)
    ]
    p_value = min(1.0, len(cuts) * min(p_values))
    return {
        **given,
        "promised_risk": record.bound,
        "risk_p_value": p_value,
        "risk_holds": p_value > rate,
    }
