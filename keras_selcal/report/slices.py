"""The metrics of slices: the samples of one site, for example, or of one sex."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal.functional.sample_losses import sample_losses

# Metrics of the tables of slices, and the one that sorts them: it counts errors and
# wrong probabilities alike and, unlike the ECE, is not larger in small slices.
SHOWN = ("accuracy", "brier", "ece", "aurc")
_SORTED_BY = "brier"

# Intervals of fewer samples or groups are too narrow.
FEWEST = 30


@dataclass(frozen=True)
class Slice:
    """The samples that have one value in a column; `slice["ece"]` is a metric of them.

    Attributes:
        column: name of the column.
        value: the value.
        report: an `Evaluation`, the metrics of the slice with intervals.
        verdict: `"worse"` or `"better"` than all other samples by its Brier score,
            `"undecided"` if chance may explain the difference, and `"few"` if the slice
            is too small to tell.
    """

    column: str
    value: Any
    report: Any
    verdict: str

    def __getitem__(self, metric: str) -> Any:
        return self.report[metric]

    @property
    def title(self) -> str:
        """Column and value, as text."""
        value = self.value
        if value == "":  # an empty field of a table
            value = "(empty)"
        return f"{self.column}: {f'{value:g}' if isinstance(value, float) else value}"


def slices_of(report: Any) -> list[Slice]:
    """Returns all slices, the worst first and those that are too small last."""
    rows: list[tuple[str, Any, Array]] = []
    for column, given in report.columns.items():
        values = given[report.index]
        for value in np.unique(values):
            if value == value:
                rows.append((column, value.item(), values == value))
            else:
                rows.append((column, "nan", values != values))
    losses = sample_losses(report.samples, _SORTED_BY)
    level = 1 - (1 - report.confidence_level) / max(1, len(rows))
    slices = []
    for column, value, inside in rows:
        part = report.part(np.flatnonzero(inside))
        verdict = "few"
        if part.num_units >= FEWEST:
            verdict = "undecided"
            if len(np.unique(report.unit[~inside])) >= FEWEST:
                difference, error = _difference(report, losses, inside)
                if abs(difference) > NormalDist().inv_cdf((1 + level) / 2) * error:
                    verdict = "worse" if difference > 0 else "better"
        slices.append(Slice(column, value, part, verdict))
    # The score of a prediction that is NaN is none.
    score = np.array([each[_SORTED_BY].value for each in slices])
    few = np.array([each.verdict == "few" for each in slices])
    order = np.lexsort((-score, few))
    return [slices[i] for i in order]


def _difference(report: Any, losses: Array, inside: Array) -> tuple[float, float]:
    """Returns the mean loss of a slice minus the mean of the other samples, and its
    standard error, which adds up the samples of a unit first.
    """
    sums = np.zeros(report.num_units)
    difference = 0.0
    for sign, part in ((1, inside), (-1, ~inside)):
        weight = np.where(part, report.samples.counts, 0.0)
        mean = np.average(losses, weights=weight)
        difference += sign * mean
        excess = sign * weight * (losses - mean) / weight.sum()
        sums += np.bincount(report.unit, excess, report.num_units)
    return float(difference), float(np.sqrt((sums**2).sum()))


def ranking_notes(report: Any) -> list[str]:
    """Returns how the slices are sorted, and what they do not show, in sentences."""
    slices = report.slices.values()
    level = f"{100 * report.confidence_level:g}\N{NO-BREAK SPACE}%"
    notes = [
        "Slices are sorted by their Brier score, the worst first. It counts errors and "
        "wrong probabilities alike; the ECE is larger in small slices by chance alone.",
        f"Among {len(slices)} slices, some look worse by chance. A slice is called "
        "worse or better if its Brier score differs from the score of all other "
        f"samples with {level} confidence, allowing for {len(slices)} comparisons "
        "(Bonferroni).",
    ]
    few = sum(each.verdict == "few" for each in slices)
    if few:
        unit = "samples" if report.num_groups is None else "groups"
        notes.append(
            f"Slices of fewer than {FEWEST} {unit} come last ({few} here): their "
            "intervals are too narrow, and they are too few to tell."
        )
    return notes
