"""The paired comparison of two models on the same samples."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal._validation import refuse
from keras_selcal.report import tables
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.numbers import scaled
from keras_selcal.report.statistics import percentile_ends


class Difference(NamedTuple):
    """A metric of two models and their paired difference with its interval.

    Attributes:
        value: first − second.
        low: lower end of the interval, NaN if there is none.
        high: upper end of the interval, NaN if there is none.
        first: the metric of the first model.
        second: the metric of the second model.
    """

    value: float
    low: float
    high: float
    first: float
    second: float


class Comparison(tables.MetricTable[Difference]):
    """Paired differences of two reports, as `CalibrationReport.compare` returns them.

    Args:
        first: the report whose metrics are compared.
        second: the report that they are compared with, on the same samples.
    """

    def __init__(self, first: Evaluation, second: Evaluation) -> None:
        check_pair(first, second)
        self.first = first
        self.second = second
        names = first.name or "this", second.name or "other"
        self.names = names if names[0] != names[1] else ("this", "other")
        replicates = second.replicates
        if (second.bootstrap, second.seed) != (first.bootstrap, first.seed):
            replicates = second.resample(first.bootstrap, first.seed)
        self._found = {}
        with np.errstate(invalid="ignore"):
            for metric, one in first.estimates.items():
                two = second.estimates[metric]
                value = float(np.subtract(one, two))
                drawn = first.replicates[metric] - replicates[metric]
                ends = percentile_ends(value, drawn, first.confidence_level)
                self._found[metric] = Difference(value, *ends, one, two)

    def better(self, metric: str) -> str | None:
        """Returns the name of the better model, or None if the interval contains 0."""
        difference = self[metric]
        if not (difference.low > 0 or difference.high < 0):
            return None
        first_wins = (difference.low > 0) == (self.first.rows[metric].direction == "up")
        return self.names[0 if first_wins else 1]

    def verdict(self, metric: str) -> str:
        """Returns whether the first is "better", "worse", "equal" or "undecided"."""
        better, difference = self.better(metric), self[metric]
        if better is None:
            equal = difference.low == difference.high == 0
            return "equal" if equal else "undecided"
        return "better" if better == self.names[0] else "worse"

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain numbers and strings, for JSON.

        Numbers that are not finite, and intervals that do not exist, are None.
        """
        return {
            "names": list(self.names),
            "num_samples": self.first.num_samples,
            "num_groups": self.first.num_groups,
            "bootstrap": self.first.bootstrap,
            "seed": self.first.seed,
            "confidence_level": self.first.confidence_level,
            "metrics": self._plain(),
        }

    def __str__(self) -> str:
        one, two = self.names
        head, rows = ["metric", one, two, "unit", "difference"], []
        for metric, d in self.items():
            unit = self.first.rows[metric].unit
            values = (scaled(x, unit) for x in (d.first, d.second))
            difference = scaled(d.value, unit, "+")
            rows.append([metric, *values, tables.unit_of(unit), difference])
        notes = ["", "Differences of shares (%) are in points."]
        if self.first.bootstrap:
            level = 100 * self.first.confidence_level
            head += [f"{level:g} % interval", "better"]
            for row, (metric, d) in zip(rows, self.items(), strict=True):
                verdict = self.better(metric) or self.verdict(metric)
                unit = self.first.rows[metric].unit
                row += [tables.bracket(d.low, d.high, unit, "+"), verdict]
            notes.append(
                f"Intervals: percentiles over {self.first.bootstrap:,} resamples"
                f"{self.first.drawn}, the same for both models. Undecided: the "
                "interval contains 0."
            )
        return "\n".join(
            [
                f"Difference {one} − {two} on the same {self.first.num_samples:,} "
                "samples",
                *([f"Warning: {few}"] if (few := self.first.few_groups) else []),
                "",
                *tables.aligned(head, rows, right={1, 2, 4}),
                *notes,
            ]
        )


def check_pair(first: Evaluation, second: Evaluation) -> None:
    """Checks that two reports can be compared."""
    mine, theirs = first.samples, second.samples
    if mine.labels.shape != theirs.labels.shape:
        wanted = f"a report on labels of shape {mine.labels.shape}"
        refuse("other", f"labels of shape {theirs.labels.shape}", wanted)
    differ = np.count_nonzero(mine.labels != theirs.labels)
    if differ:
        refuse("other", f"{differ} other labels", "a report on the same labels")
    if not np.array_equal(mine.counts, theirs.counts):
        refuse("other", "other weights", "a report with the same sample weights")
    if not np.array_equal(first.unit, second.unit):
        refuse("other", "other groups", "a report with the same groups")
    inputs = [each.unknown and each.unknown.m for each in (first, second)]
    if inputs[0] != inputs[1]:
        came, wanted = (f"unknown inputs: {m or 'none'}" for m in reversed(inputs))
        refuse("other", came, f"a report with the same {wanted}")
    for option in ("num_bins", "coverages", "risks"):
        wanted, came = getattr(first, option), getattr(second, option)
        if wanted != came:
            refuse("other", f"{option}={came}", f"a report with {option}={wanted}")
