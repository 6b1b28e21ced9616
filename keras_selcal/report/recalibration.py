"""What calibrators would bring, cross-fitted on the samples of a report."""

import warnings
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from keras_selcal import calibrators
from keras_selcal._arrays import Array
from keras_selcal._formulas.binning import uniform_index
from keras_selcal._predictions.samples import Samples
from keras_selcal._resampling import resample_counts
from keras_selcal.functional.sample_losses import sample_losses
from keras_selcal.report.evaluation import Evaluation, Interval
from keras_selcal.report.statistics import percentile_ends

FOLDS = 5
# Vector scaling is left out where it would take longer than the report itself.
_MOST_ENTRIES = 2**18


class Recalibrated(NamedTuple):
    """The metrics of cross-fitted probabilities.

    Attributes:
        name: name of the calibrator's class.
        accuracy: its accuracy.
        ece: its ECE.
        ece_change: ECE minus the model's, with its interval.
        brier_change: Brier score minus the model's, with its interval.
        brier_draws: this difference on the resamples, (bootstrap,).
    """

    name: str
    accuracy: float
    ece: float
    ece_change: Interval
    brier_change: Interval
    brier_draws: Array


def recalibrated(report: Evaluation) -> list[Recalibrated]:
    """Returns what each calibrator would bring: temperature scaling first.

    The samples of each fold get the probabilities of a calibrator that was fitted on
    the other folds. Intervals come from the paired bootstrap over the samples, or
    groups, with the fitted parameters held.
    """
    samples = report.samples
    names = ["TemperatureScaling"]
    small = samples.y_pred.size <= _MOST_ENTRIES and np.isfinite(samples.y_pred).all()
    # SciPy, which fits it, is an extra.
    if small and find_spec("scipy"):
        names.append("StructuredVectorScaling")
    fitted = [samples, *(cross_fitted(report, name) for name in names)]
    # The columns of a model: gaps in their bins, which a resample adds up, and losses.
    n, width = samples.n, report.num_bins + 1
    columns = np.zeros((n, width * len(fitted)))
    for i, each in enumerate(fitted):
        bins = uniform_index(each.confidence, report.num_bins)
        columns[np.arange(n), i * width + bins] = each.confidence - each.correct
        columns[:, (i + 1) * width - 1] = sample_losses(each, "brier")

    def metrics(count: Array) -> Array:
        means = count @ columns / count.sum(axis=-1, keepdims=True)
        means = means.reshape(-1, len(fitted), width)
        return np.stack([np.abs(means[..., :-1]).sum(axis=-1), means[..., -1]])

    blocks = resample_counts(
        report.num_units, report.bootstrap, report.seed, n / report.num_units
    )
    drawn = [metrics(samples.counts_of(block[:, report.unit])) for block in blocks]
    # (ECE and Brier score, resamples, models)
    draws = np.concatenate([np.zeros((2, 0, len(fitted))), *drawn], axis=1)
    draws -= draws[..., :1]
    values = metrics(samples.counts[None])[:, 0]
    found = []
    for i, name in enumerate(names, 1):
        ece, brier = (
            Interval(value, *percentile_ends(value, drawn, report.confidence_level))
            for value, drawn in zip(
                (values[:, i] - values[:, 0]).tolist(), draws[..., i], strict=True
            )
        )
        accuracy = fitted[i].mean(fitted[i].correct)
        found.append(
            Recalibrated(
                name, accuracy, float(values[0, i]), ece, brier, draws[1, :, i]
            )
        )
    return found


def cross_fitted(report: Evaluation, name: str) -> Samples:
    """Returns the samples with the probabilities of calibrators of the other folds.

    Each label of multi-label data has its own calibrator, as with `multi_label=True`.
    All rows of a sample, or of a group, are in one fold. Where a calibrator has one
    class only to fit, predictions stay as they are.
    """
    samples = report.samples
    order = np.random.default_rng(report.seed).permutation(report.num_units)
    fold = (order % FOLDS)[report.unit]
    label = samples.label_index
    p = np.empty(samples.y_pred.shape)
    for part in range(samples.num_labels if label is not None else 1):
        of_label = np.ones(samples.n, bool) if label is None else label == part
        for held_out in range(FOLDS):
            fit = np.flatnonzero(of_label & (fold != held_out))
            apply = np.flatnonzero(of_label & (fold == held_out))
            if len(apply):
                p[apply] = _calibrated(name, samples, fit, apply)
    return replace(samples, y_pred=p, from_logits=False)


def num_classes_seen(labels: Array) -> int:
    """Returns how many classes labels have: class indices (n,) or rows (n, k)."""
    seen = np.unique(labels) if labels.ndim == 1 else labels[:, labels.any(axis=0)][0]
    return len(seen)


def _calibrated(name: str, samples: Samples, fit: Array, apply: Array) -> Array:
    labels = samples.labels[fit]
    if num_classes_seen(labels) < 2:
        return replace(samples, y_pred=samples.y_pred[apply]).p(slice(None))
    weight = None if samples.weight is None else samples.weight[fit]
    calibrator = getattr(calibrators, name)(from_logits=samples.from_logits)
    with warnings.catch_warnings():
        # Whether a calibrator is of use is what the metrics tell.
        warnings.simplefilter("ignore")
        calibrator.fit(samples.y_pred[fit], labels, sample_weight=weight)
    return np.asarray(calibrator.predict_proba(samples.y_pred[apply]), "float64")
