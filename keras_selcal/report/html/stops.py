"""The stops of the coverage slider: thresholds and the samples that they accept."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_selcal import functional
from keras_selcal._core.samples import Array, Samples
from keras_selcal.csf import ConfidenceScore
from keras_selcal.report.html.numbers import shortest_above

# One stop per 0.1 % of coverage, and a bound that keeps the page small.
MOST_STOPS = 1000
MOST_ROWS = 2400

# Equal fractions i/n and j/m may differ in their last digit.
_HAIR = 1e-9


class Reachable(NamedTuple):
    """The samples that a model's thresholds accept, from the highest threshold down.

    Attributes:
        accepted: samples with a score of at least the threshold; with weights, their
            share of the weight, times n.
        wrong: how many of these are wrong.
        lowest: the smallest score that is accepted.
        next_score: the largest score that is not accepted, −∞ if all are.
    """

    accepted: Array
    wrong: Array
    lowest: Array
    next_score: Array

    @property
    def coverage(self) -> Array:
        return self.accepted / self.accepted[-1:]

    @property
    def risk(self) -> Array:
        return self.wrong / self.accepted

    def threshold(self, index: int) -> str:
        """Returns a short number between the accepted scores and the others."""
        return shortest_above(float(self.next_score[index]), float(self.lowest[index]))


def reachable(samples: Samples, csf: ConfidenceScore) -> Reachable:
    """Returns every point of the risk-coverage curve that a threshold can reach.

    Samples of different rank whose scores are equal in float64 are accepted together.
    If a rank is NaN, there are no points.
    """
    curve = functional.risk_coverage_curve(
        samples.labels,
        samples.y_pred,
        csf=csf,
        from_logits=samples.from_logits,
        decision_threshold=samples.threshold,
        sample_weight=samples.weight,
    )
    if np.isnan(curve.threshold).any() or np.isnan(curve.risk).any():
        return Reachable(*np.zeros((4, 0)))
    lowest = np.minimum.accumulate(curve.threshold)
    highest = np.maximum.accumulate(curve.threshold[::-1])[::-1]
    next_score = np.append(highest[1:], -np.inf)
    ends = next_score < lowest
    accepted = (curve.coverage * samples.n)[ends]
    return Reachable(
        accepted, accepted * curve.risk[ends], lowest[ends], next_score[ends]
    )


class Stops(NamedTuple):
    """The stops of a slider that moves some models at once.

    Attributes:
        models: the reachable points of each model, by its position among those given;
            models without a ranking are left out.
        stops: for each stop, the point of each of these models.
    """

    models: dict[int, Reachable]
    stops: list[dict[int, int]]

    @classmethod
    def of(cls, models: Sequence[tuple[Samples, ConfidenceScore]]) -> "Stops":
        """Makes a stop for each step of coverage at which a model moves.

        A model's point is its first of at least the stop's coverage.
        """
        curves = {i: reachable(*model) for i, model in enumerate(models)}
        curves = {i: curve for i, curve in curves.items() if len(curve.accepted)}
        if not curves:
            return cls(curves, [])
        number = min(models[0][0].n, MOST_STOPS, MOST_ROWS // len(curves))
        wanted = np.arange(1, number + 1) / number - _HAIR
        points = np.stack(
            [np.searchsorted(curve.coverage, wanted) for curve in curves.values()],
            axis=-1,
        )
        rows = np.unique(points, axis=0).tolist()
        return cls(curves, [dict(zip(curves, row, strict=True)) for row in rows])

    def at_least(self, coverage: float) -> int:
        """Returns the first stop at which the first model has at least a coverage."""
        first, curve = next(iter(self.models.items()))
        reached = curve.coverage[[stop[first] for stop in self.stops]]
        return int(np.searchsorted(reached, coverage - _HAIR))
