"""The names of confidence score functions."""

from typing import Any

from keras_selcal._saving import deserialize_if_config
from keras_selcal._validation import refuse
from keras_selcal.csf.logits import MaxLogitPNorm, energy, max_logit, max_logit_pnorm
from keras_selcal.csf.probabilities import doctor, gen, margin, msp, neg_entropy
from keras_selcal.csf.score import ConfidenceScore

BUILT_IN = {
    score.__name__: score
    for score in (
        msp,
        margin,
        neg_entropy,
        doctor,
        gen,
        max_logit,
        energy,
        max_logit_pnorm,
    )
}


def get(identifier: Any, *, from_logits: bool = True) -> ConfidenceScore:
    """Returns the confidence score function that `identifier` refers to.

    Args:
        identifier: the name of a score, a `ConfidenceScore`, a callable (with its
            support in the attribute `support`, and `needs`, if it has them), or the
            config of a registered callable.
        from_logits: False raises ValueError for a score that needs logits.

    Example:
    >>> get("msp") is msp
    True
    """
    score = _found(deserialize_if_config(identifier))
    if score.needs == "logits" and not from_logits:
        score.refuse_missing("probabilities")
    return score


def _found(identifier: Any) -> ConfidenceScore:
    if isinstance(identifier, ConfidenceScore):
        return identifier
    if isinstance(identifier, str) and identifier in BUILT_IN:
        return BUILT_IN[identifier]
    if callable(identifier):
        support = getattr(identifier, "support", (0.0, 1.0))
        needs = getattr(identifier, "needs", "probabilities")
        return ConfidenceScore(identifier, support, needs=needs)
    listed = ", ".join(repr(name) for name in BUILT_IN)
    refuse("csf", identifier, f"one of {listed}, or a callable")


def name_of(score: ConfidenceScore) -> str:
    """Returns the name of a score, with its parameter if it has one."""
    return repr(score) if isinstance(score, MaxLogitPNorm) else score.__name__
