"""Samples ranked by their confidence, with their losses."""

from typing import Any

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, to_numbers
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples, to_counts, to_weight
from keras_selcal._segments import Segments
from keras_selcal._validation import refuse
from keras_selcal.functional.sample_losses import sample_losses


def check_source(y_true: Any, y_pred: Any, scores: Any, losses: Any) -> bool:
    """Returns whether there are scores and losses, not labels and predictions."""
    own = scores is not None or losses is not None
    pairs = {"y_true": y_true, "y_pred": y_pred}, {"scores": scores, "losses": losses}
    for name, value in pairs[own].items():
        if value is None:
            both = "`scores` and `losses`" if own else "`y_true` and `y_pred`"
            refuse(name, None, f"given: pass {both}")
    for name, value in pairs[not own].items():
        if own and value is not None:
            refuse(name, type(value), "left out beside `scores` and `losses`")
    return own


def ranked(
    y_true: Any,
    y_pred: Any,
    csf: Any,
    loss: Any,
    scores: Any,
    losses: Any,
    sample_weight: Any,
    outputs: Outputs,
) -> list[tuple[Array, Array, Array]]:
    """Returns ranks, losses and counts of the samples that count, (n,) each: of every
    label, if there are several.
    """
    if check_source(y_true, y_pred, scores, losses):
        return [own_ranked(scores, losses, sample_weight)]
    samples = Samples.of(y_true, y_pred, outputs, sample_weight)
    score = csfs.get(csf)
    return [
        (part.ranks(score), sample_losses(part, loss), part.counts)
        for part in samples.split_labels()
    ]


def own_ranked(
    scores: Any, losses: Any, sample_weight: Any = None
) -> tuple[Array, Array, Array]:
    """Returns scores, losses and counts of the samples that count, (n,) each."""
    ranks = to_numbers("scores", scores)
    values = to_numbers("losses", losses).astype("float64")
    if ranks.size == 0:
        refuse("scores", f"an empty array of shape {ranks.shape}", "at least one score")
    if values.shape != ranks.shape:
        refuse("losses", values.shape, f"of the shape of `scores`, {ranks.shape}")
    weight = to_weight(sample_weight, ranks.shape)
    ranks, values = ranks.reshape(-1), values.reshape(-1)
    if weight is not None:
        counts = weight > 0
        if not counts.any():
            refuse("sample_weight", 0.0, "above 0 for at least one sample")
        ranks, values, weight = ranks[counts], values[counts], weight[counts]
    return ranks, values, to_counts(weight, len(ranks))


def ranking(ranks: Array, losses: Array, counts: Array) -> Ranking:
    """Returns the groups of equal rank, from the least confident to the most."""
    groups = Segments.of(ranks)
    mass, loss = groups.sums(counts), groups.sums(losses * counts)
    if np.isnan(ranks).any():
        # Without a rank there is no value.
        loss = np.full_like(loss, np.nan)
    return Ranking(mass, loss, np)


def mean_of_rankings(method: str, parts: Any, *arguments: float) -> float:
    """Returns a figure of the ranked samples: the mean over labels, if several."""
    values = [getattr(ranking(*part), method)(*arguments) for part in parts]
    return float(np.mean(values))
