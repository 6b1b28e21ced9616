"""Checks of a fitted selective classifier on new data."""

from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_floats, to_numbers
from keras_selcal._predictions.data import find_labels
from keras_selcal._predictions.samples import to_weight
from keras_selcal._validation import refuse
from keras_selcal.selective.base import AnsweringClassifier, to_arrays
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import FIRST_AXIS, check_finite, units_of
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
            x: arrays of inputs, or a data set of batches (x,), (x, y) or
                (x, y, sample_weight), whose labels are used. Outputs of NaN raise
                ValueError, as in `fit` and `evaluate`.
            y: labels, if there are any and `x` is arrays.
            false_alarm_rate: α in (0, 1) of each test.
            sample_weight: as in `fit`.
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
        labelled, x = (True, x) if y is not None else find_labels(x)
        if labelled:
            data, _ = self._read(x, y, sample_weight, groups, batch_size, verbose)
            y_pred, weight, units = data.y_pred, data.weight, data.units
        else:
            options = {"batch_size": batch_size, "verbose": verbose}
            y_pred, weight, units = self._unlabelled(
                x, sample_weight, groups, **options
            )
        answer = to_arrays(self._fitted().answer(y_pred))
        risk = (
            _risk_check(data.cuts(answer), threshold, record, rate) if labelled else {}
        )
        accepted = answer["accepted"] & (answer["confidence"] >= threshold)
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
            **risk,
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

        Returns:
            The distance, a float; NaN where an output is NaN.
        """
        record, _ = _promise(self._fitted())
        values = to_floats(to_numbers("y_pred", y_pred))
        weight, units = self._counted(values, FIRST_AXIS, sample_weight)
        confidence = to_arrays(self._fitted().answer(values))["confidence"]
        return ks_distance(record.confidence, unit_means(confidence, weight, units))

    def monitor(self, *, false_alarm_rate: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Returns a sequential test of whether a stream is like the data of the fit.

        Args:
            false_alarm_rate: probability of an alarm, ever, if nothing changes.
            seed: of the random numbers by which equal confidences are ordered.
        """
        record, _ = _promise(self._fitted())

        def confidences(x: Any, **options: Any) -> Array:
            y_pred, *units = self._unlabelled(x, None, FIRST_AXIS, **options)
            answer = to_arrays(self._fitted().answer(y_pred))
            return unit_means(answer["confidence"], *units)

        return DriftMonitor(
            confidences,
            record.confidence,
            false_alarm_rate=false_alarm_rate,
            seed=seed,
        )

    def _counted(
        self, y_pred: Array, groups: Any, *weights: Any
    ) -> tuple[Array, Array]:
        """Returns weight and unit of each answer, for data without labels."""
        samples = tuple(self.outputs.sample_shape(y_pred.shape))
        weight, units = np.ones(samples), units_of(groups, samples)
        for given in weights:
            factor = to_weight(given, samples)
            weight = weight if factor is None else weight * factor.reshape(samples)
        if not weight.any():
            refuse("x", y_pred.shape, "data of at least one sample that counts")
        if self.outputs.multi_label:
            k = self.outputs.columns(y_pred, False, np).shape[-2]
            weight, units = (np.stack([x] * k, axis=-1) for x in (weight, units))
        return weight, units

    def _unlabelled(
        self,
        x: Any,
        sample_weight: Any,
        groups: Any,
        batch_size: Any = None,
        verbose: Any = 0,
    ) -> tuple[Array, Array, Array]:
        """Returns the checked outputs, and weight and unit of each answer."""
        outputs, mask = self._outputs(x, batch_size, verbose)
        y_pred = to_floats(outputs)
        weight, units = self._counted(y_pred, groups, mask, sample_weight)
        check_finite(self.outputs.columns(y_pred, self.from_logits, np)[weight > 0])
        return y_pred, weight, units


def _promise(selection: SelectionLayer) -> tuple[FitRecord, Any]:
    """Returns record and threshold; a file of an older version has no confidences."""
    record = selection.record
    if record is None or not record.confidence:
        raise ValueError(
            "This SelectiveClassifier does not know the confidences that it was fitted "
            "on: call `fit` again."
        )
    return record, selection.threshold


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
