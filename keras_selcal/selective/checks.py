"""Checks of a fitted selective classifier on new data."""

from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.outputs import broadcast_weight
from keras_selcal._core.samples import Array, to_numpy
from keras_selcal.selective.base import AnsweringClassifier, to_arrays
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import FIRST_AXIS, units_of
from keras_selcal.selective.drift import (
    DriftCheck,
    DriftMonitor,
    check_rate,
    ks_distance,
    ks_test,
    unit_means,
)
from keras_selcal.selective.layer import SelectionLayer
from keras_selcal.selective.record import FitRecord


class DriftChecks(AnsweringClassifier):
    """What `SelectiveClassifier` offers to compare new data with those of its fit."""

    def _decide(
        self, x: Any, batch_size: Any, verbose: Any
    ) -> tuple[dict[str, Array], Array | None]:
        """Returns the answers, and the mask if there is one."""
        outputs, mask = self._outputs(x, batch_size, verbose)
        tensor = None if mask is None else ops.convert_to_tensor(mask)
        answer = self._fitted()(ops.convert_to_tensor(outputs), mask=tensor)
        return to_arrays(answer), mask

    def check(
        self,
        x: Any,
        y: Any = None,
        *,
        false_alarm_rate: float = 0.01,
        sample_weight: Any = None,
        groups: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> DriftCheck:
        """Tests whether new data are like those of the fit.

        The confidences of new samples are compared with those of the fit by the test of
        Kolmogorov and Smirnov, which needs no labels. If they come from the same
        distribution, it reports a drift with a probability of at most
        `false_alarm_rate`. That holds for one call: `monitor` makes a test that can be
        looked at after every batch of a stream.

        With labels, a second test with the same false alarm rate shows whether the
        errors among the accepted samples contradict the bound of the record. Few labels
        suffice to see a risk that is much higher than promised.

        Args:
            x: inputs, in any form that `predict` takes, or with labels `fit`.
            y: labels, if there are any and `x` is arrays.
            false_alarm_rate: α in (0, 1) of each test.
            sample_weight: as in `fit`, with labels only.
            groups: as in `fit`, but tokens and pixels are grouped by the first axis
                by default. Each group has its mean confidence.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.

        Returns:
            A `DriftCheck`.
        """
        rate = check_rate(false_alarm_rate)
        record, threshold = _promise(self._fitted())
        groups = FIRST_AXIS if groups is None else groups
        given: dict[str, Any] = {}
        if y is None:
            answer, mask = self._decide(x, batch_size, verbose)
            accepted = answer["accepted"]
            weight, units = _counted(answer["confidence"], mask, record, groups)
        else:
            data, _ = self._read(x, y, sample_weight, groups, batch_size, verbose)
            answer = to_arrays(self._fitted().answer(data.y_pred))
            weight, units = data.weight, data.units
            accepted = answer["accepted"] & (answer["confidence"] >= threshold)
            given = _risk_check(data.cuts(answer), threshold, record, rate)
        new = unit_means(answer["confidence"], weight, units)
        distance, p_value = ks_test(record.confidence, new)
        return DriftCheck(
            p_value <= rate,
            p_value,
            distance,
            len(new),
            float(np.average(accepted, weights=weight)),
            float(np.mean(record.coverage)),
            rate,
            **given,
        )

    def drift(
        self, y_true: Any, y_pred: Any, *, sample_weight: Any = None, **outputs: Any
    ) -> float:
        """Returns how far the confidences of a model's outputs are from those of the
        fit: the largest difference of the two CDFs, in [0, 1].

        For `CalibrationMonitor(data, metrics=["nll", classifier.drift])`, which then
        logs `val_drift`: while a model trains on, it tells how far the threshold of
        this classifier is from being of use for it.

        Args:
            y_true: labels, which do not matter.
            y_pred: outputs of the model, of the form that `fit` has seen.
            sample_weight: samples of weight 0 do not count.
            **outputs: `from_logits` and others, which the classifier knows by itself.
        """
        record, _ = _promise(self._fitted())
        values = to_numpy(y_pred)
        if values.dtype not in (np.float32, np.float64):
            values = values.astype("float32")
        confidence = to_arrays(self._fitted().answer(values))["confidence"]
        weight, units = _counted(confidence, None, record, FIRST_AXIS)
        if sample_weight is not None:
            given = to_numpy(sample_weight).astype("float64")
            labels = confidence.ndim - int(self.outputs.multi_label)
            given = broadcast_weight(given, confidence.shape[:labels], np)
            weight = weight * (given[..., None] if self.outputs.multi_label else given)
        return ks_distance(record.confidence, unit_means(confidence, weight, units))

    def monitor(self, *, false_alarm_rate: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Returns a sequential test of whether a stream is like the data of the fit.

        Args:
            false_alarm_rate: probability of an alarm, ever, if nothing changes.
            seed: of the random numbers by which equal confidences are ordered.
        """
        record, _ = _promise(self._fitted())

        def confidences(x: Any, batch_size: Any = None, verbose: Any = 0) -> Array:
            answer, mask = self._decide(x, batch_size, verbose)
            confidence = answer["confidence"]
            return unit_means(
                confidence, *_counted(confidence, mask, record, FIRST_AXIS)
            )

        return DriftMonitor(
            confidences,
            record.confidence,
            false_alarm_rate=false_alarm_rate,
            seed=seed,
        )


def _promise(selection: SelectionLayer) -> tuple[FitRecord, Any]:
    """Returns record and threshold; a file of an older version has no confidences."""
    record = selection.record
    if record is None or not record.confidence:
        raise ValueError(
            "This SelectiveClassifier does not know the confidences that it was fitted "
            "on: call `fit` again."
        )
    return record, selection.threshold


def _counted(
    confidence: Array, mask: Array | None, record: FitRecord, groups: Any
) -> tuple[Array, Array]:
    """Returns weight and unit of each answer, for data without labels."""
    shape = confidence.shape
    samples = shape[:-1] if isinstance(record.coverage, tuple) else shape
    weight = np.ones(shape)
    if mask is not None:
        missing = (1,) * (len(shape) - mask.ndim)
        weight = np.broadcast_to(mask.reshape(mask.shape + missing), shape) * weight
    units = units_of(groups, samples)
    missing = (1,) * (len(shape) - units.ndim)
    return weight, np.broadcast_to(units.reshape(units.shape + missing), shape)


def _risk_check(
    cuts: list[Cuts], threshold: Any, record: FitRecord, rate: float
) -> dict[str, Any]:
    """Returns what `DriftCheck` says about the risk."""
    thresholds = np.reshape(threshold, (-1,))
    found = [label.at(at) for label, at in zip(cuts, thresholds, strict=True)]
    risk = [errors / count if count else 0.0 for count, errors in found]
    several = len(risk) > 1
    given: dict[str, Any] = {"selective_risk": np.array(risk) if several else risk[0]}
    if record.bound is None or not all(label.unit_weights for label in cuts):
        return given
    bounds = np.broadcast_to(record.bound, len(cuts))
    p_values = [
        label.excess_p_value(at, float(bound), rate / len(cuts))
        for label, at, bound in zip(cuts, thresholds, bounds, strict=True)
    ]
    p_value = min(1.0, len(cuts) * min(p_values))
    return {
        **given,
        "promised_risk": record.bound,
        "risk_p_value": p_value,
        "risk_holds": p_value > rate,
    }
