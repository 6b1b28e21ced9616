"""The stops of the coverage slider: thresholds and the samples that they accept."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_selcal.report.evaluation import Evaluation
from keras_selcal.selective.cuts import Cuts

# One stop per 0.1 % of coverage, and a bound that keeps the page small.
MOST_STOPS = 1000
MOST_ROWS = 2400

# Equal fractions i/n and j/m may differ in their last digit.
_HAIR = 1e-9


class Stops(NamedTuple):
    """The stops of a slider that moves some models at once.

    Attributes:
        models: the thresholds of each model, by its position among those given; models
            without a ranking are left out.
        stops: for each stop, the threshold of each of these models.
    """

    models: dict[int, Cuts]
    stops: list[dict[int, int]]

    @classmethod
    def of(cls, reports: Sequence[Evaluation]) -> "Stops":
        """Makes a stop for each step of coverage at which a model moves.

        A model's threshold is its first of at least the stop's coverage.
        """
        found = {i: report.cuts for i, report in enumerate(reports)}
        models = {i: cuts for i, cuts in found.items() if cuts is not None}
        if not models:
            return cls(models, [])
        number = min(reports[0].samples.n, MOST_STOPS, MOST_ROWS // len(models))
        wanted = np.arange(1, number + 1) / number - _HAIR
        points = np.stack(
            [np.searchsorted(cuts.coverage, wanted) for cuts in models.values()],
            axis=-1,
        )
        rows = np.unique(points, axis=0).tolist()
        return cls(models, [dict(zip(models, row, strict=True)) for row in rows])

    def at_least(self, coverage: float) -> int:
        """Returns the first stop at which the first model has at least a coverage."""
        first, cuts = next(iter(self.models.items()))
        reached = cuts.coverage[[stop[first] for stop in self.stops]]
        return int(np.searchsorted(reached, coverage - _HAIR))
