"""How many samples each one stands for."""

from typing import Any

from keras_selcal._formulas.functions import TINY, at_least, cast, still


def count_weights(scores: Any, sample_weight: Any | None, xp: Any) -> Any:
    """Returns how many samples each score stands for, in the shape of `scores`.

    A sample of integer weight w counts as w copies. Sums run over the last axis.
    """
    if sample_weight is None:
        return xp.ones_like(scores)
    weight = at_least(still(cast(sample_weight, scores.dtype, xp), xp), 0.0, xp)
    return weight * count_scale(weight, xp)


def count_scale(weight: Any, xp: Any) -> Any:
    """Returns the factor that weights are counted with, (rows, 1).

    Weights that add up to less than the number of samples with a positive weight
    (normalised weights, for example) are scaled up to that number: only their ratios
    matter.
    """
    present = xp.sum(cast(weight > 0, weight.dtype, xp), axis=-1, keepdims=True)
    total = xp.sum(weight, axis=-1, keepdims=True)
    return at_least(present / at_least(total, TINY, xp), 1.0, xp)
