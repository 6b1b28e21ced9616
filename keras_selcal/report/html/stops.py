"""The stops of the coverage slider: thresholds and the samples that they accept."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_selcal._core.sample_losses import sample_losses
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

    Samples of equal rank are accepted together, and so are those of different rank
    whose scores are equal in float64. If a rank is NaN, there are no points.
    """
    ranks, scores = samples.ranks(csf), samples.scores(csf)
    losses = sample_losses(samples, "zero_one")
    if np.isnan(ranks).any() or np.isnan(losses).any():
        return Reachable(*np.zeros((4, 0)))
    order = np.argsort(-ranks, kind="stable")
    score, rank = scores[order], ranks[order]
    lowest = np.minimum.accumulate(score)
    highest = np.maximum.accumulate(score[::-1])[::-1]
    next_score = np.append(highest[1:], -np.inf)
    ends = np.append(rank[1:] != rank[:-1], True) & (next_score < lowest)
    mass, loss = (
        np.cumsum(x[order]) for x in (samples.counts, samples.counts * losses)
    )
    scale = samples.n / mass[-1]
    return Reachable(
        mass[ends] * scale, loss[ends] * scale, lowest[ends], next_score[ends]
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
