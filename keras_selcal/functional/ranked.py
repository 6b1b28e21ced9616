"""Samples ranked by their confidence, with their losses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.samples import Samples
from keras_selcal._segments import Segments, sizes_and_flags
from keras_selcal.functional.sample_losses import sample_losses


class Ranked(NamedTuple):
    """Samples with their ranks and losses, (n,)."""

    samples: Samples
    ranks: Array
    losses: Array

    @classmethod
    def of(cls, samples: Samples, csf: Any, loss: Any) -> "Ranked":
        return cls(samples, samples.ranks(csf), sample_losses(samples, loss))

    def ranking(self, ranks: Array | None = None) -> Ranking:
        """Returns the groups of equal rank, from the least confident to the most."""
        ranks = self.ranks if ranks is None else ranks
        if self.samples.weight is None and ranks.dtype == np.float32:
            wrong = self.losses != 0
            # NaN is not at least 0.
            if ranks.min() >= 0 and (self.losses == wrong).all():
                return Ranking(*sizes_and_flags(ranks, wrong), np)
        groups = Segments.of(ranks)
        if self.samples.weight is None:
            mass, loss = groups.sizes.astype("float64"), groups.sums(self.losses)
        else:
            count = self.samples.counts
            mass, loss = groups.sums(count), groups.sums(self.losses * count)
        if np.isnan(ranks).any():
            # Without a rank there is no value.
            loss = np.full_like(loss, np.nan)
        return Ranking(mass, loss, np)


def mean_over_labels(
    value: Callable[[Ranked], Any],
    y_true: Any,
    y_pred: Any,
    csf: Any,
    loss: Any,
    sample_weight: Any,
    from_logits: bool,
    outputs: dict[str, Any],
) -> float:
    """Returns a value of the ranked samples: the mean over labels, if several."""
    samples = Samples.given(
        y_true, y_pred, sample_weight, from_logits=from_logits, **outputs
    )
    return samples.mean_over_labels(lambda part: value(Ranked.of(part, csf, loss)))
