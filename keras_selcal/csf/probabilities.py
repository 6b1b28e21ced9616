"""Scores of probabilities: msp, margin, negative entropy, Doctor, GEN."""

import math
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import (
    TINY,
    arange,
    at_most,
    cast,
    constant,
    first_largest,
    log_softmax,
    log_sum_exp,
    safe_log,
    zero_unless,
)
from keras_selcal.csf.score import BuiltIn, Support

# A logarithm of 0 that stays finite in differences.
_STRUCK_OUT = -1e30
# The log-odds of a score on the lower end of its support.
_LOWEST = -1e4


def _top_two(x: Any, xp: Any) -> tuple[Any, Any]:
    """Returns the largest and the second largest of the last axis."""
    first = xp.amax(x, axis=-1, keepdims=True)
    # Symbolic tensors are compared by identity, unless by this function.
    at_first = xp.equal(x, first)
    second = xp.amax(xp.where(at_first, constant(_STRUCK_OUT, x, xp), x), axis=-1)
    tied = xp.sum(cast(at_first, x.dtype, xp), axis=-1) > 1
    return first[..., 0], xp.where(tied, first[..., 0], second)


def _split(z: Any, xp: Any) -> tuple[Any, Any]:
    """Returns the largest logit, or ln p, (...), and all with the first largest struck
    out.
    """
    index = cast(first_largest(z, xp), "int32", xp)
    others = xp.where(_is_at(index, z, xp), constant(_STRUCK_OUT, z, xp), z)
    return xp.take_along_axis(z, index, axis=-1)[..., 0], others


def _is_at(index: Any, x: Any, xp: Any) -> Any:
    """Returns where an index (..., 1) of the last axis of x is."""
    # As floats: TensorFlow computes with int32 on the host.
    places = arange(x.shape[-1], "float32", xp)
    return xp.equal(places, cast(index, "float32", xp))


def _msp(p: Any, xp: Any) -> Any:
    """Maximum softmax probability, max p."""
    return xp.amax(p, axis=-1)


def _msp_of_log_p(log_p: Any, xp: Any) -> Any:
    return xp.exp(xp.amax(log_p, axis=-1))


def _msp_log_odds(z: Any, xp: Any) -> Any:
    """Returns ln p_1 − ln Σ_{c≠1} p_c."""
    first, others = _split(z, xp)
    return first - log_sum_exp(others, xp)


def _margin(p: Any, xp: Any) -> Any:
    """Softmax margin, the largest probability minus the second largest."""
    first, second = _top_two(p, xp)
    return first - second


def _margin_of_log_p(log_p: Any, xp: Any) -> Any:
    first, second = _top_two(log_p, xp)
    return -xp.exp(first) * xp.expm1(second - first)


def _margin_log_odds(z: Any, xp: Any) -> Any:
    """Returns ln(p_1 − p_2) − ln(p_2 + Σ_{c≠1} p_c)."""
    first, others = _split(z, xp)
    second = xp.amax(others, axis=-1)
    log_margin = first + safe_log(-xp.expm1(second - first), xp)
    log_rest = xp.logaddexp(second, log_sum_exp(others, xp))
    # Two equal classes at the top: the lowest score, however probable they are.
    lowest = constant(_LOWEST, first, xp)
    return xp.where(second >= first, lowest, log_margin - log_rest)


def _neg_entropy(p: Any, xp: Any) -> Any:
    """Negative entropy Σ p ln p in nats, with 0·ln 0 = 0."""
    return xp.sum(p * safe_log(p, xp), axis=-1)


def _neg_entropy_of_log_p(log_p: Any, xp: Any) -> Any:
    return xp.sum(xp.exp(log_p) * log_p, axis=-1)


def _neg_entropy_log_odds(z: Any, xp: Any) -> Any:
    """Returns ln(1 − H/ln k) − ln(H/ln k).

    H = p_1 (−ln p_1 + Σ_{c≠1} p_c/p_1 (−ln p_c)) is the entropy.
    With r = Σ_{c≠1} p_c/p_1, −ln p_1 = ln(1 + r) and −ln p_c = ln(1 + r) − ln(p_c/p_1);
    the factor p_2/p_1, which may be too small for a float, is kept as a logarithm.
    """
    _, others = _split(z - xp.amax(z, axis=-1, keepdims=True), xp)
    second = xp.amax(others, axis=-1)
    shares = xp.exp(others - second[..., None])
    total = xp.sum(shares, axis=-1)
    r = xp.exp(second) * total
    tiny = r < 1e-6
    minus_log_p1 = xp.log1p(r)
    quotient = minus_log_p1 / xp.where(tiny, xp.ones_like(r), r)
    quotient = xp.where(tiny, 1.0 - r / 2, quotient)
    distance = zero_unless(shares > 0, minus_log_p1[..., None] - others, xp)
    rest = total * quotient + xp.sum(shares * distance, axis=-1)
    log_entropy = second - minus_log_p1 + xp.log(rest)
    log_share = log_entropy - math.log(math.log(z.shape[-1]))
    u = -xp.expm1(at_most(log_share, 0.0, xp))
    return safe_log(u, xp) - log_share


def _entropy_support(num_classes: int) -> Support:
    return -math.log(num_classes), 0.0


def _log_rest(log_p: Any, xp: Any) -> Any:
    """Returns ln(1 − p) of each class, (..., k), precise for the largest p too."""
    _, others = _split(log_p, xp)
    rest = log_sum_exp(others, xp)[..., None]
    # p ≤ ½ for every other class, whatever the rounding.
    of_others = xp.log1p(-xp.exp(at_most(others, -0.69, xp)))
    return xp.where(others < _STRUCK_OUT / 2, rest, of_others)


def _doctor(p: Any, xp: Any) -> Any:
    """Doctor's Σ p², the probability that a draw from p repeats: 1 − Gini impurity."""
    return xp.sum(p * p, axis=-1)


def _doctor_of_log_p(log_p: Any, xp: Any) -> Any:
    return xp.sum(xp.exp(2 * log_p), axis=-1)


def _doctor_log_odds(z: Any, xp: Any) -> Any:
    """Returns ln(Σ p² − 1/k) − ln Σ p (1 − p)."""
    log_p = log_softmax(z, xp)
    squares = xp.sum(xp.exp(2 * log_p), axis=-1)
    impurity = log_sum_exp(log_p + _log_rest(log_p, xp), xp)
    return safe_log(squares - 1 / log_p.shape[-1], xp) - impurity


def _inverse_support(num_classes: int) -> Support:
    return 1 / num_classes, 1.0


# γ of GEN, and how many of the most probable classes it sums over.
GEN_POWER = 0.1
_GEN_CLASSES = 100


def _gen_sum(log_terms: Any, xp: Any) -> Any:
    """Returns Σ of the largest 100 terms: p (1 − p) rises with the order of p."""
    if log_terms.shape[-1] > _GEN_CLASSES:
        if xp is np:
            log_terms = np.partition(log_terms, -_GEN_CLASSES, -1)[..., -_GEN_CLASSES:]
        else:
            log_terms, _ = xp.top_k(log_terms, _GEN_CLASSES)
    return xp.sum(xp.exp(GEN_POWER * log_terms), axis=-1)


def _gen(p: Any, xp: Any) -> Any:
    """Generalised entropy −Σ (p (1 − p))^0.1 over the 100 most probable classes."""
    variance = p * (1.0 - p)
    # 0 to a power has no finite gradient: such a class is left out, but NaN is not.
    struck_out = constant(_STRUCK_OUT, variance, xp)
    return -_gen_sum(xp.where(variance <= TINY, struck_out, safe_log(variance, xp)), xp)


def _gen_of_log_p(log_p: Any, xp: Any) -> Any:
    return -_gen_sum(log_p + _log_rest(log_p, xp), xp)


def _gen_log_odds(z: Any, xp: Any) -> Any:
    """Returns ln(1 − G/m) − ln(G/m), G = −s and −m the lowest score."""
    log_p = log_softmax(z, xp)
    lowest, _ = _gen_support(log_p.shape[-1])
    share = _gen_sum(log_p + _log_rest(log_p, xp), xp) / -lowest
    return safe_log(1.0 - share, xp) - safe_log(share, xp)


def _gen_support(num_classes: int) -> Support:
    # f(p) = (p (1 − p))^γ is concave: its sum is largest for a uniform p.
    m = min(num_classes, _GEN_CLASSES)
    return -m * (1 / m * (1 - 1 / m)) ** GEN_POWER, 0.0


msp = BuiltIn("msp", _msp, _msp_of_log_p, _msp_log_odds)
margin = BuiltIn("margin", _margin, _margin_of_log_p, _margin_log_odds)
neg_entropy = BuiltIn(
    "neg_entropy",
    _neg_entropy,
    _neg_entropy_of_log_p,
    _neg_entropy_log_odds,
    _entropy_support,
)
doctor = BuiltIn(
    "doctor", _doctor, _doctor_of_log_p, _doctor_log_odds, _inverse_support
)
gen = BuiltIn("gen", _gen, _gen_of_log_p, _gen_log_odds, _gen_support)
