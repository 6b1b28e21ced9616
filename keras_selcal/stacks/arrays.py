"""The predictions of several members as arrays."""

from typing import Any

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._arrays import Array, to_numbers
from keras_selcal._formulas.functions import (
    at_most,
    cast,
    first_largest,
    safe_log,
    softmax,
)
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import (
    check_logits,
    check_not_empty,
    check_probabilities,
    refuse,
)
from keras_selcal.csf.names import BUILT_IN

_STACKED = ("neg_mutual_information", "agreement")


def columns(stack: Any, from_logits: bool, xp: Any) -> Any:
    """Returns a stack with two columns, (s, ..., 2), for one sigmoid unit."""
    stack = stack[..., None] if len(stack.shape) == 2 else stack
    return Outputs().columns(stack, from_logits, xp)


def _members(stack: Any, from_logits: bool) -> tuple[Array, Any]:
    """Returns the probabilities of a stack (s, ..., k) in float64, two columns for one
    sigmoid unit, and the shape of a member's predictions.
    """
    z = to_numbers("stack", stack).astype("float64")
    check_not_empty("stack", z)
    if z.ndim < 2:
        refuse(
            "stack", z.shape, "of shape (s, n, k), or (s, n, 1) or (s, n) of sigmoids"
        )
    shape, p = z.shape[1:], columns(z, from_logits, np)
    rows = p.reshape(-1, p.shape[-1])
    if from_logits:
        check_logits(rows, Outputs().is_one_unit(shape), "stack")
        return softmax(p, np), shape
    check_probabilities(rows, "stack")
    return p, shape


def checked(csf: Any) -> Any:
    """Returns the name of a score of stacks, or a score of the mean probability."""
    if isinstance(csf, str) and csf in _STACKED:
        return csf
    unknown = isinstance(csf, str) and csf not in BUILT_IN
    score = None if unknown else csfs.get(csf)
    if score is None or score.needs == "logits":
        of_mean = (name for name, s in BUILT_IN.items() if s.needs != "logits")
        listed = ", ".join(repr(name) for name in (*_STACKED, *of_mean))
        refuse("csf", csf, f"one of {listed}, or a callable of probabilities")
    return score


def _scores(p: Any, csf: Any, xp: Any) -> Any:
    """Returns the confidence of probabilities (s, ..., k), of shape (...)."""
    mean = xp.mean(p, axis=0)
    if csf not in _STACKED:
        return csf.scores(mean, xp)
    if csf == "agreement":
        same = xp.equal(first_largest(p, xp), first_largest(mean, xp))[..., 0]
        # The comparison loses NaN, the sum keeps it.
        lost = 0.0 * xp.sum(mean, axis=-1)
        return xp.mean(cast(same, p.dtype, xp), axis=0) + lost
    of_members = xp.mean(csfs.neg_entropy.scores(p, xp), axis=0)
    # Rounding must not make the information negative.
    return at_most(csfs.neg_entropy.scores(mean, xp) - of_members, 0.0, xp)


def combined(p: Any, csf: Any, xp: Any) -> Any:
    """Returns ln p̄ − ln max p̄ plus the score, (..., k): the largest is the score
    without rounding, and ties stay ties.
    """
    log_p = safe_log(xp.mean(p, axis=0), xp)
    log_p = log_p - xp.amax(log_p, axis=-1, keepdims=True)
    return log_p + _scores(p, csf, xp)[..., None]


def mean_probabilities(stack: Any, *, from_logits: bool = False) -> Array:
    """Averages the probabilities of a stack, (n, k), for every other function.

    Args:
        stack: predictions (s, n, k), or (s, n, 1) or (s, n) of one sigmoid unit, of
            which the mean has shape (n, 1) or (n,).
        from_logits: whether they are logits.

    Example:
    >>> mean_probabilities([[[0.9, 0.1]], [[0.5, 0.5]]]).round(2).tolist()
    [[0.7, 0.3]]
    """
    p, shape = _members(stack, from_logits)
    return np.asarray(Outputs().restored(p.mean(axis=0), np, shape))


def scores(stack: Any, csf: Any = "msp", *, from_logits: bool = False) -> Array:
    """Computes the confidence of a stack, (n,).

    Formula:

    ```
    p̄ = (1/s) Σ_m p_m
    msp, neg_entropy, …      g(p̄): the mean probability, the predictive entropy
    neg_mutual_information   −(H(p̄) − (1/s) Σ_m H(p_m)) ∈ [−ln k, 0]
    agreement                share of members that predict argmax p̄ ∈ [0, 1]
    ```

    Mutual information is the part of the entropy that is due to the members' different
    opinions. Disagreement is 1 − agreement.

    Args:
        stack: predictions (s, n, k), or (s, n, 1) or (s, n) of one sigmoid unit.
        csf: `"neg_mutual_information"`, `"agreement"`, or a score of probabilities as
            `keras_selcal.csf.get` takes it.
        from_logits: whether the stack holds logits.

    Returns:
        The scores, (n,); NaN where a prediction is NaN.

    Example:
    >>> stack = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.1, 0.9]]]
    >>> scores(stack, "agreement").tolist()
    [1.0, 0.5]

    References:
    - Lakshminarayanan et al., [Simple and Scalable Predictive Uncertainty Estimation
      using Deep Ensembles](https://arxiv.org/abs/1612.01474)
    - Houlsby et al., [Bayesian Active Learning for Classification and Preference
      Learning](https://arxiv.org/abs/1112.5745) (mutual information)
    """
    return np.asarray(_scores(_members(stack, from_logits)[0], checked(csf), np))


def combine(
    stack: Any, csf: Any = "neg_mutual_information", *, from_logits: bool = False
) -> Array:
    """Combines a stack into logits (n, k) that hold its mean probability and a score.

    Formula:

    ```
    z = ln p̄ − ln max p̄ + g,     softmax(z) = p̄,     max z = g
    ```

    Pass them with `from_logits=True` to metrics, reports, plots and `csf.compare`, with
    `csf="max_logit"` for the score g of the stack.

    Args:
        stack: as in `scores`.
        csf: g, as in `scores`.
        from_logits: whether the stack holds logits.

    Returns:
        Logits (n, k); two columns (n, 2) for one sigmoid unit, whose one logit could
        not hold a score beside its probability.

    Example:
    >>> from keras_selcal import functional
    >>> stack = [[[0.9, 0.1], [0.6, 0.4]], [[0.8, 0.2], [0.1, 0.9]]]
    >>> z = combine(stack, "agreement")
    >>> round(functional.aurc([0, 0], z, csf="max_logit", from_logits=True), 4)  # ½/2
    0.25
    """
    return np.asarray(combined(_members(stack, from_logits)[0], checked(csf), np))
