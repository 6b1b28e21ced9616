"""All metrics of a model's predictions, with bootstrap intervals."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, to_numpy
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._resampling import resample_counts
from keras_selcal._validation import (
    check_class_names,
    check_count,
    check_number,
    check_unmasked,
    refuse,
)
from keras_selcal.functional.calibration import class_sums
from keras_selcal.functional.refinement import refined_losses
from keras_selcal.functional.reliability import ReliabilityBins, reliability_bins
from keras_selcal.metric_table import METRICS, MetricRow
from keras_selcal.report.bootstrap import Resampled
from keras_selcal.report.slices import FEWEST, Slice, slices_of
from keras_selcal.report.statistics import percentile_ends
from keras_selcal.report.tables import MetricTable
from keras_selcal.report.unknown import ROWS, UnknownInputs
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import units_of

# A column of more values holds measurements, not names of slices.
_MOST_SLICES = 100


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
        unit: number of the sample or group that each row belongs to, among those that
            count; resamples draw these.
        num_units: number of the units.
        num_groups: the same where a unit has several samples, else None.
        num_samples: number of samples that count.
        num_given: number of samples given.
        num_classes: number of classes or labels.
        class_names: their names, or None.
        columns: for each name of `slices`, the value of each given sample.
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
        groups: Any | None = None,
        slices: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
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
        outputs = Outputs(
            from_logits,
            multi_label,
            ignore_class,
            decision_threshold=decision_threshold,
        )
        samples = self.samples = Samples.of(y_true, y_pred, outputs, sample_weight)
        # Metrics see rows, which do not tell a sigmoid from two classes.
        self.csf.check_classes(samples.num_classes)
        self.decision_threshold = samples.threshold
        self.num_given = samples.num_given // samples.num_labels
        self.index = samples.index // samples.num_labels
        shape = tuple(outputs.sample_shape(to_numpy(y_pred).shape))
        self._set_units(units_of(groups, shape).reshape(-1)[self.index])
        self.columns = check_columns(slices, shape)
        self.num_classes = samples.num_labels if multi_label else samples.num_classes
        self.class_names = check_class_names(class_names, self.num_classes)
        if check is not None and not hasattr(check, "drifted"):
            refuse("check", check, "what `SelectiveClassifier.check` returns, or None")
        self.check = check
        self.unknown: UnknownInputs | None = None
        if unknown is not None:
            self.unknown = UnknownInputs(samples, self.csf, unknown, unknown_share)
        elif unknown_share is not None:
            refuse("unknown_share", unknown_share, "None without `unknown`")
        self._compute()

    @cached_property
    def slices(self) -> dict[tuple[str, Any], Slice]:
        """The metrics of each slice by column and value, worst Brier score first.

        Slices of fewer than 30 samples, or groups, come last. `slice.verdict` tells
        whether the Brier scores of a slice and of all other samples differ, allowing
        for the number of slices.
        """
        return {(each.column, each.value): each for each in slices_of(self)}

    @property
    def drawn(self) -> str:
        """What a resample draws, as a part of a sentence; "" for single samples."""
        if self.num_groups is None:
            return ""
        return f" of the {self.num_groups:,} groups, each with all of its samples"

    @property
    def few_groups(self) -> str:
        """A warning about intervals of few groups; "" if there are enough."""
        if not self.bootstrap or self.num_groups is None or self.num_groups >= FEWEST:
            return ""
        if self.num_groups == 1:
            return "One group has no intervals: it takes several to see how they vary."
        return (
            f"Intervals of fewer than {FEWEST} groups are too narrow; these are of "
            f"{self.num_groups}."
        )

    def _set_units(self, units: Array) -> None:
        """Keeps what resamples draw, for a unit of each row."""
        # By order of appearance among those that count.
        _, first, index = np.unique(units, return_index=True, return_inverse=True)
        self.unit = np.argsort(np.argsort(first))[index]
        self.num_units = len(first)
        self.num_samples = len(np.unique(self.index))
        several = self.num_units < self.num_samples
        self.num_groups = self.num_units if several else None

    def _compute(self) -> None:
        """Computes the metrics and their intervals."""
        self.rows = self._rows()
        self.estimates = self._evaluate(self.samples)
        if self.unknown is not None:
            self.rows |= ROWS
            self.estimates |= self.unknown.estimates()
        self.replicates = self.resample(self.bootstrap, self.seed)
        self._found = {
            metric: Interval(
                value,
                *percentile_ends(value, self.replicates[metric], self.confidence_level),
            )
            for metric, value in self.estimates.items()
        }

    def part(self, rows: Array) -> "Evaluation":
        """Returns the evaluation of some of the rows, without unknown inputs."""
        part = copy.copy(self)
        for cached in ("cuts", "slices"):
            part.__dict__.pop(cached, None)
        part.samples, part.index = self.samples.take(rows), self.index[rows]
        part._set_units(self.unit[rows])
        part.unknown = part.check = None
        part.columns = {}
        part._compute()
        return part

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
        """Returns the metrics of each resample, (bootstrap,).

        They are NaN if a prediction is, and for a single unit: its only resample is the
        unit itself.
        """
        broken = math.isnan(self.estimates["accuracy"])
        if bootstrap == 0 or broken or self.num_units < 2:
            return {name: np.full(bootstrap, np.nan) for name in self.estimates}
        resampled = Resampled(
            self.samples,
            self.csf,
            self.num_bins,
            self.coverages,
            self.risks,
            refined_losses(self.samples),
        )
        blocks: list[dict[str, Array]] = []
        rng = np.random.default_rng([seed, 1])
        for drawn in resample_counts(
            self.num_units, bootstrap, seed, self.samples.n / self.num_units
        ):
            counts = drawn[:, self.unit]
            found = resampled.metrics(counts)
            if self.unknown is not None:
                m = self.unknown.m
                strange = rng.multinomial(m, np.full(m, 1 / m), len(drawn))
                found |= self.unknown.metrics(counts, strange)
            others = [name for name in self.estimates if name not in found]
            blocks.append(found | self._one_by_one(counts, others))
        return {
            name: np.concatenate([block[name] for block in blocks])
            for name in self.estimates
        }

    def _one_by_one(self, drawn: Array, names: Sequence[str]) -> dict[str, Array]:
        """Returns metrics that `Resampled` does not know, of each resample, (rows,)."""
        if not names:
            return {}
        found = [
            self._evaluate(replace(self.samples, weight=count), *names)
            for count in self.samples.counts_of(drawn)
        ]
        return {name: np.array([each[name] for each in found]) for name in names}

    def meaning(self, metric: str) -> str:
        """Returns what a metric says, in a sentence."""
        return self.rows[metric].meaning.replace("{num_bins}", str(self.num_bins))

    def bins(
        self, kind: str = "top_label", label: int | None = None
    ) -> ReliabilityBins:
        """Returns probability and frequency in the bins of the ECE.

        Args:
            kind: `"top_label"` or `"positive"`, as in `functional.ece`.
            label: one label of multi-label data; by default all.
        """
        samples, units = self.samples, self.unit
        if label is not None:
            rows = np.flatnonzero(samples.label_index == label)
            samples, units = samples.take(rows), units[rows]
        return reliability_bins(
            *samples.event(kind),
            samples.counts,
            num_bins=self.num_bins,
            level=self.confidence_level,
            units=units,
        )

    def per_class(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of each class, or of each label of multi-label data.

        `frequency` is the share of samples that are of the class, `mean` the mean of
        its probability, and `positive_ece` compares the two in bins. `accuracy` and
        `confidence` describe the predictions: for the samples of the class, NaN if
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
            None if self.num_units == samples.n else self.unit,
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


def check_columns(slices: Any, shape: tuple[int, ...]) -> dict[str, Array]:
    """Returns the columns of `slices`, one value for each of the samples, (n,)."""
    if slices is None:
        return {}
    if not isinstance(slices, Mapping):
        refuse("slices", type(slices), 'a dict such as {"site": sites, "sex": sexes}')
    columns = {}
    for name, given in slices.items():
        values = to_numpy(given)
        check_unmasked(f"slices[{name!r}]", values)
        if values.shape not in (shape, shape[:1]):
            allowed = f"of the samples' shape {shape}, or {shape[:1]}"
            refuse(f"slices[{name!r}]", values.shape, allowed)
        if values.dtype.kind not in "biufU":
            # Objects, as in pandas: mixed or missing values, dates.
            values = values.astype(str)
        number = len(np.unique(values))
        if number > _MOST_SLICES:
            allowed = f"of at most {_MOST_SLICES} values: cut numbers into ranges"
            refuse(f"slices[{name!r}]", f"{number} values", allowed)
        missing = (1,) * (len(shape) - values.ndim)
        values = np.broadcast_to(values.reshape(values.shape + missing), shape)
        columns[str(name)] = values.reshape(-1)
    return columns
