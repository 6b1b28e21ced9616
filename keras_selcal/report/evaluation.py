"""All metrics of a model's predictions, with bootstrap intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._core.bootstrap import Resampled, resample_counts
from keras_selcal._core.reliability import ReliabilityBins, reliability_bins
from keras_selcal._core.samples import Array, Samples, to_numpy, to_weight
from keras_selcal._core.validation import check_count, check_number
from keras_selcal.metric_table import METRICS, MetricRow
from keras_selcal.report.statistics import percentile_ends


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


class Evaluation(Mapping[str, Interval]):
    """The metrics of predictions by name; `CalibrationReport` presents them.

    Attributes:
        rows: the row of each metric in the table of metrics.
        estimates: each metric on the samples.
        replicates: each metric on the resamples, (bootstrap,).
        samples: the samples that count.
        index: position of each of these samples among those given.
        num_given: number of samples given.
    """

    def __init__(
        self,
        y_true: Any,
        y_pred: Any,
        *,
        from_logits: bool = False,
        csf: Any = "msp",
        bootstrap: int = 1000,
        seed: int = 0,
        sample_weight: Any | None = None,
        confidence_level: float = 0.95,
        num_bins: int = 15,
        coverages: Sequence[float] = (0.8, 0.95),
        risks: Sequence[float] = (0.01, 0.05),
        name: str | None = None,
    ) -> None:
        self.from_logits = bool(from_logits)
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
        y_pred = to_numpy(y_pred)
        self.samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
        leading = y_pred.shape[:-1]
        self.num_given = math.prod(leading)
        weight = to_weight(sample_weight, leading)
        counts = np.ones(self.num_given) if weight is None else weight
        self.index = np.flatnonzero(counts > 0)
        self.num_samples = self.samples.n
        self.num_classes = self.samples.num_classes
        self.rows = self._rows()
        self.estimates = self._evaluate()
        self.replicates = self.resample(self.bootstrap, self.seed)
        self._intervals = {
            metric: Interval(
                value,
                *percentile_ends(value, self.replicates[metric], self.confidence_level),
            )
            for metric, value in self.estimates.items()
        }

    def __getitem__(self, metric: str) -> Interval:
        return self._intervals[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self._intervals)

    def __len__(self) -> int:
        return len(self._intervals)

    def _rows(self) -> dict[str, MetricRow]:
        """Returns the rows of the metrics, with the report's coverages and risks."""
        levels = {"coverage": self.coverages, "risk": self.risks}
        rows = []
        for row in METRICS.values():
            if row.at is None:
                rows.append(row)
            else:
                rows += [row.at_value(value) for value in levels[row.at]]
        return {row.name: row for row in rows}

    def _evaluate(self) -> dict[str, float]:
        """Returns the metrics on the samples."""
        samples = self.samples
        options: dict[str, Any] = {
            "from_logits": samples.from_logits,
            "sample_weight": samples.weight,
            "num_bins": self.num_bins,
            "csf": self.csf,
        }
        return {
            name: row.compute(samples.labels, samples.y_pred, **options)
            for name, row in self.rows.items()
        }

    def resample(self, bootstrap: int, seed: int) -> dict[str, Array]:
        """Returns the metrics of each resample, (bootstrap,)."""
        replicates = {name: np.full(bootstrap, np.nan) for name in self.estimates}
        # If a prediction is NaN, so is every metric.
        if bootstrap == 0 or math.isnan(self.estimates["accuracy"]):
            return replicates
        resampled = Resampled(
            self.samples, self.csf, self.num_bins, self.coverages, self.risks
        )
        start = 0
        for drawn in resample_counts(self.samples.n, bootstrap, seed):
            for metric, values in resampled.metrics(drawn).items():
                replicates[metric][start : start + len(drawn)] = values
            start += len(drawn)
        return replicates

    def meaning(self, metric: str) -> str:
        """Returns what a metric says, in a sentence."""
        return self.rows[metric].meaning.replace("{num_bins}", str(self.num_bins))

    def bins(self) -> ReliabilityBins:
        """Returns confidence and accuracy in the bins of the ECE."""
        samples = self.samples
        return reliability_bins(
            samples.confidence,
            samples.correct,
            samples.counts,
            num_bins=self.num_bins,
            level=self.confidence_level,
        )
