"""Several predictions of one input: deep ensembles, MC dropout, augmented inputs.

A stack has shape (s, n, k): predictions of s members for n samples; of one sigmoid
unit, (s, n, 1) or (s, n). Adding a number to all logits of a sample does not change
their softmax. So a stack fits into logits (n, k): `combine` returns logits whose
softmax is the mean probability and whose largest entry is a score of the stack. Every
part of this library then takes it, with `from_logits=True` and `csf="max_logit"`. The
layer `Combine` does the same in a model, and `MCDropout` makes members of a model with
dropout.
"""

from typing import TYPE_CHECKING

from keras_selcal._lazy import lazy
from keras_selcal.stacks.arrays import combine, mean_probabilities, scores

if TYPE_CHECKING:
    from keras_selcal.stacks.layers import Combine, MCDropout, mc_dropout
else:
    __getattr__ = lazy(
        __name__,
        {"Combine": "layers", "MCDropout": "layers", "mc_dropout": "layers"},
    )

__all__ = [
    "Combine",
    "MCDropout",
    "combine",
    "mc_dropout",
    "mean_probabilities",
    "scores",
]
