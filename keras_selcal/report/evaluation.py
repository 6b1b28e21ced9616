"""All metrics of a model's predictions, with bootstrap intervals."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array
from keras_selcal._predictions.samples import Samples
from keras_selcal._resampling import resample_counts
from keras_selcal._validation import check_count, check_number, refuse
from keras_selcal.functional.calibration import class_sums
from keras_selcal.functional.refinement import refined_losses
from keras_selcal.functional.reliability import ReliabilityBins, reliability_bins
from keras_selcal.metric_table import METRICS, MetricRow
from keras_selcal.report.bootstrap import Resampled
from keras_selcal.report.statistics import percentile_ends
from keras_selcal.report.tables import MetricTable
from keras_selcal.report.unknown import ROWS, UnknownInputs
from keras_selcal.selective.cuts import Cuts


class Interval(NamedTuple):
    """A metric with its interval.

    Attributes:
        value: the metric on the samples.
        low: lower end of the interval, NaN if there is none.
        high: upper end of the interval, NaN if there is none.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


class Evaluation(MetricTable[Interval]):
    """The metrics of predictions by name; `CalibrationReport` presents them.

    Attributes:
        rows: the row of each metric in the table of metrics.
        estimates: each metric on the samples.
        replicates: each metric on the resamples, (bootstrap,).
        samples: the rows that count: samples, or with `multi_label` the labels of
            samples.
        index: number of the sample that each row belongs to.
        unit: the same among the samples that count, which resamples draw.
        num_samples: number of samples that count.
        num_given: number of samples given.
        num_classes: number of classes or labels.
        unknown: unknown inputs, or None.
        check: a `DriftCheck`, or None.
    """

    def __init__(
        self,
        y_true: Any,
        y_pred: Any,
        *,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        decision_threshold: float = 0.5,
        csf: Any = "msp",
        bootstrap: int = 1000,
        seed: int = 0,
        sample_weight: Any | None = None,
        confidence_level: float = 0.95,
        num_bins: int = 15,
        coverages: Sequence[float] = (0.8, 0.95),
        risks: Sequence[float] = (0.01, 0.05),
        name: str | None = None,
        unknown: Any | None = None,
        unknown_share: float | None = None,
        check: Any | None = None,
    ) -> None:
        self.from_logits = bool(from_logits)
        self.multi_label = bool(multi_label)
        self.csf = csfs.get(csf)
        self.bootstrap = check_count("bootstrap", bootstrap, least=0)
        self.seed = check_count("seed", seed, least=0)
        self.confidence_level = check_number(
            "confidence_level", confidence_level, "in (0, 1)", above=0.0, below=1.0
        )
        self.num_bins = check_count("num_bins", num_bins)
        self.coverages = tuple(
            check_number("coverages", c, "numbers in (0, 1]", above=0.0, most=1.0)
            for c in np.ravel(coverages).tolist()
        )
        self.risks = tuple(
            check_number("risks", r, "numbers of at least 0", least=0.0)
            for r in np.ravel(risks).tolist()
        )
        self.name = name
        samples = self.samples = Samples.given(
            y_true,
            y_pred,
            sample_weight,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            decision_threshold=decision_threshold,
        )
        # Metrics see rows, which do not tell a sigmoid from two classes.
        self.csf.check_classes(samples.num_classes)
        self.decision_threshold = samples.threshold
        self.num_given = samples.num_given // samples.num_labels
        self.index = samples.index // samples.num_labels
        # A resample draws samples, each with all of its rows.
        units, self.unit = np.unique(self.index, return_inverse=True)
        self.num_samples = len(units)
        self.num_classes = samples.num_labels if multi_label else samples.num_classes
        self.rows = self._rows()
        self.estimates = self._evaluate(samples)
        if check is not None and not hasattr(check, "drifted"):
            refuse("check", check, "what `SelectiveClassifier.check` returns, or None")
        self.check = check
        self.unknown: UnknownInputs | None = None
        if unknown is not None:
            self.unknown = UnknownInputs(samples, self.csf, unknown, unknown_share)
            self.rows |= ROWS
            self.estimates |= self.unknown.estimates()
        elif unknown_share is not None:
            refuse("unknown_share", unknown_share, "None without `unknown`")
        self.replicates = self.resample(self.bootstrap, self.seed)
        self._found = {
            metric: Interval(
                value,
                *percentile_ends(value, self.replicates[metric], self.confidence_level),
            )
            for metric, value in self.estimates.items()
        }

    def better(self, metric: str) -> str:
        """Returns whether a "lower" or a "higher" value of a metric is better."""
        return self.rows[metric].better

    def _rows(self) -> dict[str, MetricRow]:
        """Returns the rows of the metrics, with the report's coverages and risks."""
        levels = {"coverage": self.coverages, "risk": self.risks}
        rows = []
        for row in METRICS.values():
            if row.at is not None:
                rows += [row.at_value(value) for value in levels[row.at]]
            elif self.samples.num_classes == 2 or row.name != "positive_ece":
                rows.append(row)
        named = {row.name: row for row in rows}
        if self.samples.num_classes == 2:
            # Two classes have two ECEs, which names tell apart.
            named["ece"] = replace(named["ece"], title="Top-label ECE (ECE)")
        return named

    def _evaluate(self, samples: Samples, *names: str) -> dict[str, float]:
        """Returns the metrics of some rows."""
        options: dict[str, Any] = {
            "from_logits": samples.from_logits,
            "decision_threshold": samples.threshold,
            "sample_weight": samples.weight,
            "num_bins": self.num_bins,
            "csf": self.csf,
        }
        values = {
            name: self.rows[name].compute(samples.labels, samples.y_pred, **options)
            for name in names or self.rows
        }
        if "cwece" in values and samples.label_index is not None:
            values["cwece"] = samples.mean_over_labels(
                lambda part: self._evaluate(part, "positive_ece")["positive_ece"]
            )
        return values

    def resample(self, bootstrap: int, seed: int) -> dict[str, Array]:
        """Returns the metrics of each resample, (bootstrap,)."""
        replicates = {name: np.full(bootstrap, np.nan) for name in self.estimates}
        # If a prediction is NaN, so is every metric.
        if bootstrap == 0 or math.isnan(self.estimates["accuracy"]):
            return replicates
        resampled = Resampled(
            self.samples,
            self.csf,
            self.num_bins,
            self.coverages,
            self.risks,
            refined_losses(self.samples),
        )
        start = 0
        rng = np.random.default_rng([seed, 1])
        for drawn in resample_counts(
            self.num_samples, bootstrap, seed, self.samples.num_labels
        ):
            found = resampled.metrics(drawn[:, self.unit])
            if self.unknown is not None:
                m = self.unknown.m
                strange = rng.multinomial(m, np.full(m, 1 / m), len(drawn))
                found |= self.unknown.metrics(drawn, strange)
            for metric, values in found.items():
                replicates[metric][start : start + len(drawn)] = values
            start += len(drawn)
        return replicates

    def meaning(self, metric: str) -> str:
        """Returns what a metric says, in a sentence."""
        return self.rows[metric].meaning.replace("{num_bins}", str(self.num_bins))

    def bins(
        self, kind: str = "top_label", samples: Samples | None = None
    ) -> ReliabilityBins:
        """Returns probability and frequency in the bins of the ECE.

        Args:
            kind: `"top_label"` or `"positive"`, as in `functional.ece`.
            samples: some of the rows; by default all.
        """
        samples = samples or self.samples
        return reliability_bins(
            *samples.event(kind),
            samples.counts,
            num_bins=self.num_bins,
            level=self.confidence_level,
        )

    def per_class(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of each class, or of each label of multi-label data.

        `frequency` is the share of samples that are of the class, `mean` the mean of
        its probability, and `positive_ece` compares the two in bins. `accuracy` and
        `confidence` are those of the predictions: for the samples of the class, NaN if
        there are none, or for the yes-or-no decisions about the label.
        """
        samples = self.samples
        if self.multi_label:
            return {
                label: {
                    "frequency": part.mean(part.event("positive")[1]),
                    "mean": part.mean(part.event("positive")[0]),
                    **self._evaluate(part, "accuracy"),
                    "confidence": part.mean(part.confidence),
                    **self._evaluate(part, "positive_ece"),
                }
                for label, part in self.parts().items()
            }
        share = samples.counts / samples.counts.sum()

        def of_class(values: Array) -> Array:
            if samples.sparse:
                return np.bincount(samples.labels, values, samples.num_classes)
            return np.asarray(values @ samples.labels)

        frequency = of_class(share)
        hits = np.bincount(samples.top, share * samples.correct, len(frequency))
        gap, mass = class_sums(samples, self.num_bins, "uniform", None)
        gap /= mass.sum(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            columns = {
                "frequency": frequency,
                "mean": frequency + gap.sum(axis=-1),
                "accuracy": hits / frequency,
                "confidence": of_class(share * samples.confidence) / frequency,
                "positive_ece": np.abs(gap).sum(axis=-1),
            }
        rows = np.stack(list(columns.values()), axis=-1).tolist()
        return {c: dict(zip(columns, row, strict=True)) for c, row in enumerate(rows)}

    def parts(self) -> dict[int, Samples]:
        """Returns the rows of each label of multi-label data."""
        index = self.samples.label_index
        present = [0] if index is None else np.unique(index).tolist()
        return dict(zip(present, self.samples.split_labels(), strict=True))

    @property
    def truth(self) -> Array:
        """The class of each row, (n,); of soft labels, the most probable one."""
        samples = self.samples
        return samples.labels if samples.sparse else samples.labels.argmax(axis=-1)

    @cached_property
    def cuts(self) -> Cuts | None:
        """The thresholds that the score offers, None if it cannot rank the samples."""
        samples = self.samples
        scores = samples.scores(self.csf)
        if not np.isfinite(scores).all():
            return None
        # Soft labels may sum to slightly more than 1.
        wrong = np.clip(1 - samples.correct, 0, 1)
        return Cuts.of(
            scores,
            None,
            samples.weight,
            None if samples.label_index is None else self.index,
            losses=wrong,
            binary=bool(np.isin(wrong, (0, 1)).all()),
        )

    def label_issues(self) -> Array:
        """Returns which rows contradict their label with unusual confidence.

        A prediction counts if it is wrong and its probability is at least the mean
        probability of that class among the samples with that label: the off-diagonal
        entries of the confident joint of Northcutt et al., with the predicted class.
        Soft labels have none.

        Returns:
            A mask, (n,), of `samples`; `index` has the number of each sample.

        References:
        - Northcutt, Jiang & Chuang, [Confident Learning: Estimating Uncertainty in
          Dataset Labels](https://arxiv.org/abs/1911.00068)
        """
        samples, truth = self.samples, self.truth
        if not (samples.sparse or np.isin(samples.labels, (0, 1)).all()):
            return np.zeros(samples.n, bool)
        of_label = samples.each(lambda r: samples.of_class(samples.p(r), truth[r]))
        # Each label of multi-label data has two classes of its own.
        k, label = samples.num_classes, samples.label_index
        first = 0 if label is None else k * label
        size, counts = k * samples.num_labels, samples.counts
        with np.errstate(invalid="ignore"):
            usual = np.bincount(first + truth, counts * of_label, size) / np.bincount(
                first + truth, counts, size
            )
        return (samples.top != truth) & (
            samples.confidence >= usual[first + samples.top]
        )
