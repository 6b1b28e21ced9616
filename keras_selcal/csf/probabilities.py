"""Scores of probabilities: msp, margin, negative entropy, Doctor, GEN."""

import math
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._backend.ops import TINY, Tensor, largest, largest_log_p, top_two
from keras_selcal.csf.score import BuiltIn, Support, log


def _log_sum_exp(x: Any, xp: Any) -> Any:
    top = xp.amax(x, axis=-1)
    return top + xp.log(xp.sum(xp.exp(x - top[..., None]), axis=-1))


def _split(log_p: Any, xp: Any) -> tuple[Any, Any]:
    """Returns the largest ln p, and all of them with that one removed."""
    classes = xp.arange(log_p.shape[-1], dtype="int32")
    first = classes == xp.argmax(log_p, axis=-1)[..., None]
    return xp.amax(log_p, axis=-1), xp.where(first, _STRUCK_OUT, log_p)


# A logarithm of 0 that stays finite in differences.
_STRUCK_OUT = -1e30


def _msp(probabilities: Any, xp: Any = ops) -> Any:
    """Maximum softmax probability, max p."""
    if xp is np:
        return np.amax(probabilities, axis=-1)
    return largest(probabilities)[..., 0]


def _msp_of_logs(log_p: Tensor) -> Tensor:
    return ops.exp(ops.amax(log_p, axis=-1))


def _msp_of_logits(log_p: Tensor, logits: Tensor) -> Tensor:
    return ops.exp(largest_log_p(log_p, logits))[..., 0]


def _msp_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln p_1 − ln Σ_{c≠1} p_c."""
    top, others = _split(log_p, xp)
    return top - _log_sum_exp(others, xp)


def _margin(probabilities: Any, xp: Any = ops) -> Any:
    """Softmax margin, the largest probability minus the second largest."""
    if xp is np:
        top = np.partition(probabilities, -2, axis=-1)[..., -2:]
        return top[..., 1] - top[..., 0]
    first, second = top_two(probabilities)
    return (first - second)[..., 0]


def _margin_of_logs(log_p: Tensor) -> Tensor:
    first, second = top_two(log_p)
    return (-ops.exp(first) * ops.expm1(second - first))[..., 0]


def _margin_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(p_1 − p_2) − ln(p_2 + Σ_{c≠1} p_c)."""
    top, others = _split(log_p, xp)
    second = xp.amax(others, axis=-1)
    margin = top + log(-xp.expm1(second - top), xp)
    return margin - xp.logaddexp(second, _log_sum_exp(others, xp))


def _neg_entropy(probabilities: Any, xp: Any = ops) -> Any:
    """Negative entropy Σ p ln p in nats, with 0·ln 0 = 0."""
    return xp.sum(probabilities * log(probabilities, xp), axis=-1)


def _neg_entropy_of_logs(log_p: Tensor) -> Tensor:
    return ops.sum(ops.exp(log_p) * log_p, axis=-1)


def _neg_entropy_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(1 − H/ln k) − ln(H/ln k).

    H = p_1 (−ln p_1 + Σ_{c≠1} p_c/p_1 (−ln p_c)) is the entropy.
    With r = Σ_{c≠1} p_c/p_1, −ln p_1 = ln(1 + r) and −ln p_c = ln(1 + r) − ln(p_c/p_1);
    the factor p_2/p_1, which may be too small for a float, is kept as a logarithm.
    """
    top, others = _split(log_p, xp)
    second = xp.amax(others, axis=-1)
    shares = xp.exp(others - second[..., None])
    total = xp.sum(shares, axis=-1)
    r = xp.exp(second - top) * total
    tiny = r < 1e-6
    minus_log_p1 = xp.log1p(r)
    quotient = xp.where(tiny, 1.0 - r / 2, minus_log_p1 / xp.where(tiny, 1.0, r))
    distance = xp.where(shares > 0, (top + minus_log_p1)[..., None] - others, 0.0)
    rest = total * quotient + xp.sum(shares * distance, axis=-1)
    log_entropy = second - top - minus_log_p1 + xp.log(rest)
    log_most = math.log(math.log(log_p.shape[-1]))
    u = -xp.expm1(xp.minimum(log_entropy - log_most, 0.0))
    return log(u, xp) - (log_entropy - log_most)


def _entropy_support(num_classes: int) -> Support:
    return -math.log(num_classes), 0.0


def _log_rest(log_p: Any, xp: Any) -> Any:
    """Returns ln(1 − p) of each class, (..., k), precise for the largest p too."""
    _, others = _split(log_p, xp)
    rest = _log_sum_exp(others, xp)[..., None]
    # p ≤ ½ for every other class, whatever the rounding.
    of_others = xp.log1p(-xp.exp(xp.minimum(others, -0.69)))
    return xp.where(others < _STRUCK_OUT / 2, rest, of_others)


def _doctor(probabilities: Any, xp: Any = ops) -> Any:
    """Doctor's Σ p², the probability that a draw from p repeats: 1 − Gini impurity."""
    return xp.sum(probabilities * probabilities, axis=-1)


def _doctor_of_logs(log_p: Tensor) -> Tensor:
    return ops.sum(ops.exp(2 * log_p), axis=-1)


def _doctor_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(Σ p² − 1/k) − ln Σ p (1 − p)."""
    squares = xp.sum(xp.exp(2 * log_p), axis=-1)
    impurity = _log_sum_exp(log_p + _log_rest(log_p, xp), xp)
    return log(squares - 1 / log_p.shape[-1], xp) - impurity


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
            log_terms, _ = ops.top_k(log_terms, _GEN_CLASSES)
    return xp.sum(xp.exp(GEN_POWER * log_terms), axis=-1)


def _gen(probabilities: Any, xp: Any = ops) -> Any:
    """Generalised entropy −Σ (p (1 − p))^0.1 over the 100 most probable classes."""
    variance = probabilities * (1.0 - probabilities)
    # 0 to a power has no finite gradient: such a class is left out, but NaN is not.
    return -_gen_sum(xp.where(variance <= TINY, _STRUCK_OUT, log(variance, xp)), xp)


def _gen_of_logs(log_p: Tensor) -> Tensor:
    return -_gen_sum(log_p + _log_rest(log_p, ops), ops)


def _gen_log_odds(log_p: Any, xp: Any) -> Any:
    """Returns ln(1 − G/m) − ln(G/m), G = −s and −m the lowest score."""
    lowest, _ = _gen_support(log_p.shape[-1])
    share = _gen_sum(log_p + _log_rest(log_p, xp), xp) / -lowest
    return log(1.0 - share, xp) - log(share, xp)


def _gen_support(num_classes: int) -> Support:
    # f(p) = (p (1 − p))^γ is concave, so that a uniform p over the classes has most.
    m = min(num_classes, _GEN_CLASSES)
    return -m * (1 / m * (1 - 1 / m)) ** GEN_POWER, 0.0


msp = BuiltIn("msp", _msp, _msp_of_logs, _msp_log_odds, of_logits=_msp_of_logits)
margin = BuiltIn("margin", _margin, _margin_of_logs, _margin_log_odds)
neg_entropy = BuiltIn(
    "neg_entropy",
    _neg_entropy,
    _neg_entropy_of_logs,
    _neg_entropy_log_odds,
    _entropy_support,
)
doctor = BuiltIn("doctor", _doctor, _doctor_of_logs, _doctor_log_odds, _inverse_support)
gen = BuiltIn("gen", _gen, _gen_of_logs, _gen_log_odds, _gen_support)
