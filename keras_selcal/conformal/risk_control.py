"""Thresholds that hold any bounded risk: in expectation, or with high probability."""

import math
from typing import Any

import numpy as np

from keras_selcal._core.samples import row_blocks, to_numpy
from keras_selcal._core.validation import check_choice, check_number, refuse
from keras_selcal.selective.bounds import binomial_tail
from keras_selcal.selective.threshold import check_delta

# Absorbs the rounding of sums of losses.
_ROUNDING = 1e-12


def control_risk(
    losses: Any,
    thresholds: Any,
    risk: Any,
    *,
    delta: float | None = None,
    groups: Any = None,
    binary: bool = False,
) -> float:
    """Returns the boldest threshold whose risk is at most r.

    The risk R(λ) = E[L(λ)] is the mean of any loss in [0, 1] that a decision with
    threshold λ has on a sample: 1 − recall of a set of labels, the error of an answered
    sample, an entry of a cost matrix. Thresholds are listed from the safest to the
    boldest; the answer is the boldest one that can be guaranteed.

    Formula:

    Without `delta`, conformal risk control gives the guarantee in expectation, over
    calibration and new samples together:

    ```
    λ = the boldest with (n R̂(λ) + 1)/(n + 1) ≤ r,      E[L(λ)] ≤ r
    ```

    It needs losses that never fall from one threshold to the next, which is checked.
    With `delta`, Learn then Test needs no such thing and guarantees
    P(R(λ) ≤ r) ≥ 1 − δ, over calibration samples. Each hypothesis "R(λ) > r" has the
    p-value of Hoeffding and Bentkus,

    ```
    p = min( exp(−n kl(min(R̂, r), r)),  e P(Bin(n, r) ≤ ⌈n R̂⌉) )
    kl(a, b) = a ln(a/b) + (1 − a) ln((1 − a)/(1 − b))
    ```

    and is tested at the level δ, from the safest threshold on until one fails (fixed
    sequence testing).

    Both guarantees are marginal, averages over all samples, and hold for samples that
    are independent draws from where the threshold will be used. A risk among chosen
    samples only, such as the errors among the accepted ones, E[e | a] ≤ r, becomes one
    of this kind by the loss a (e − r) + r; it is not monotone, so pass `delta`.

    Args:
        losses: (n, m), in [0, 1]: of each sample at each threshold. Several risks at
            once have shape (n, m, q).
        thresholds: (m,), chosen without the samples, from the safest to the boldest.
        risk: r in (0, 1); one for each of q risks, or one for all.
        delta: δ in (0, 1), the probability with which the guarantee may fail; for all
            risks together. None gives the guarantee in expectation.
        groups: (n,), which samples depend on each other. The mean loss of a group then
            counts as the loss of one sample.
        binary: whether a loss can only be 0 or 1. The p-value is then the exact tail
            P(Bin(n, r) ≤ n R̂), which is more powerful.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> thresholds = np.linspace(0, 1, 101)
    >>> # The loss of a sample is 1 once the threshold exceeds its score.
    >>> losses = rng.beta(5, 1, size=(500, 1)) < thresholds
    >>> float(control_risk(losses, thresholds, 0.1))
    0.63
    >>> float(control_risk(losses, thresholds, 0.1, delta=0.05, binary=True))
    0.61

    References:
    - Angelopoulos et al., [Conformal Risk Control](https://arxiv.org/abs/2208.02814)
    - Angelopoulos et al., [Learn then Test: Calibrating Predictive Algorithms to
      Achieve Risk Control](https://arxiv.org/abs/2110.01052)
    - Bates et al., [Distribution-Free, Risk-Controlling Prediction
      Sets](https://arxiv.org/abs/2101.02703) (the p-value)
    """
    losses, thresholds, levels = _checked(losses, thresholds, risk, binary)
    if groups is not None:
        losses, binary = _group_means(losses, to_numpy(groups)), False
    n = len(losses)
    if delta is None:
        falling = (np.diff(losses, axis=1) < -_ROUNDING).any(axis=(1, 2))
        if falling.any():
            raise ValueError(
                "`losses` must never fall from one threshold to the next without "
                f"`delta`; those of {falling.sum()} of {n} samples do. "
                "List thresholds from the safest to the boldest, or pass `delta`."
            )
        bound = (n * losses.mean(axis=0) + 1) / (n + 1)
        passed = (bound <= levels + _ROUNDING).all(axis=1)
        best = int(passed.sum()) - 1
        if best < 0:
            _refuse_expectation(losses[:, 0].mean(axis=0), bound[0], levels, n)
        return float(thresholds[best])
    delta = check_delta(delta)
    means = losses.mean(axis=0)
    best = -1
    # The largest p-value of several risks is one of "some risk is above its level".
    while best + 1 < len(thresholds) and all(
        _p_value(float(mean), float(level), n, binary) <= delta
        for mean, level in zip(means[best + 1], levels, strict=True)
    ):
        best += 1
    if best < 0:
        _refuse_probability(means[0], levels, n, delta, binary)
    return float(thresholds[best])


def multi_label_losses(
    y_true: Any, probabilities: Any, thresholds: Any, *, kind: str = "false_negative"
) -> np.ndarray:
    """Returns losses of label sets {c : p_c ≥ t}, for `control_risk`.

    Formula:

    ```
    false_negative:   share of the true labels that are not in the set (1 − recall)
    false_discovery:  share of the set that is not true (1 − precision)
    ```

    for each sample; 0 where it has no true label, respectively where its set is empty.
    The first grows with t, so that the safest threshold is the lowest; the second is
    not monotone, and is usually small for high thresholds.

    Args:
        y_true: multi-hot labels, (n, k).
        probabilities: (n, k), of independent sigmoids.
        thresholds: t, (m,).
        kind: `"false_negative"` or `"false_discovery"`.

    Returns:
        Losses (n, m).

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.6, 0.2]])
    >>> multi_label_losses([[1, 1, 0]], p, [0.1, 0.5, 0.8])
    array([[0. , 0. , 0.5]])
    """
    check_choice("kind", kind, ("false_negative", "false_discovery"))
    y, p = to_numpy(y_true), to_numpy(probabilities)
    t = to_numpy(thresholds).reshape(-1)
    if y.shape != p.shape or y.ndim != 2 or not np.isin(y, (0, 1)).all():
        refuse("y_true", y.shape, f"multi-hot, of the shape {p.shape} of probabilities")
    if not ((p >= 0) & (p <= 1)).all():
        refuse("probabilities", p, "numbers in [0, 1]")
    result = np.empty((len(y), len(t)))
    for rows in row_blocks((len(y), y.shape[1] * len(t))):
        chosen = p[rows, None, :] >= t[:, None]
        true = y[rows, None, :] == 1
        hits = (chosen & true).sum(axis=-1)
        of = (true if kind == "false_negative" else chosen).sum(axis=-1)
        result[rows] = np.where(of > 0, 1 - hits / np.maximum(of, 1), 0.0)
    return result


def _p_value(mean: float, risk: float, n: int, binary: bool) -> float:
    """Returns the p-value of "the risk is above r" for the mean of n losses."""
    errors = math.ceil(n * mean * (1 - _ROUNDING) - _ROUNDING)
    tail = 1.0 if errors >= n else binomial_tail(errors, n, risk)
    if binary:
        return tail
    return min(math.exp(-n * _kl(min(mean, risk), risk)), math.e * tail)


def _kl(a: float, b: float) -> float:
    """Returns the divergence of Bernoulli distributions, for b in (0, 1)."""
    first = a * math.log(a / b) if a > 0 else 0.0
    return first + ((1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0)


def _checked(
    losses: Any, thresholds: Any, risk: Any, binary: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns losses (n, m, q), thresholds (m,) and risks (q,)."""
    values = to_numpy(losses).astype("float64")
    t = to_numpy(thresholds).astype("float64").reshape(-1)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.size == 0 or values.shape[1] != len(t):
        refuse("losses", values.shape, f"(n, m) for m = {len(t)} thresholds")
    if not ((values >= 0) & (values <= 1)).all():
        refuse("losses", values.max(), "in [0, 1]: divide them by their largest value")
    if binary and not np.isin(values, (0, 1)).all():
        refuse("binary", binary, "False: some losses are between 0 and 1")
    allowed = "a number in (0, 1); a risk of 0 takes infinitely many samples"
    levels = [
        check_number("risk", level, allowed, above=0, most=1)
        for level in np.ravel(risk).tolist()
    ]
    if 1 in levels:
        refuse("risk", risk, allowed)
    if len(levels) not in (1, values.shape[2]):
        refuse("risk", risk, f"one number, or one for each of {values.shape[2]} risks")
    return values, t, np.broadcast_to(levels, values.shape[2:])


def _group_means(losses: np.ndarray, groups: np.ndarray) -> np.ndarray:
    if groups.shape != losses.shape[:1]:
        refuse("groups", groups.shape, f"one for each of {len(losses)} samples")
    _, index, size = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    sums = np.add.reduceat(losses[order], np.cumsum(size) - size, axis=0)
    return np.asarray(sums / size[:, None, None])


def _refuse_expectation(
    mean: np.ndarray, bound: np.ndarray, levels: np.ndarray, n: int
) -> None:
    """Says which risk can be held, and how many samples the given one takes."""
    worst = int(np.argmax(bound - levels))
    r, possible = levels[worst], bound[worst]
    text = (
        f"No threshold has a risk of at most {r:g} in expectation on these {n} "
        f"samples: the safest one holds {possible:.4g}."
    )
    if mean[worst] < r:
        needed = math.ceil((1 - r) / (r - mean[worst]))
        text += f" At its mean loss of {mean[worst]:.4g}, {needed} samples would do."
    else:
        text += " More samples do not help: add safer thresholds, or raise `risk`."
    raise ValueError(text)


def _refuse_probability(
    means: np.ndarray, levels: np.ndarray, n: int, delta: float, binary: bool
) -> None:
    """Says which risk can be held, and how many samples the given one takes."""
    p = [
        _p_value(float(mean), float(level), n, binary)
        for mean, level in zip(means, levels, strict=True)
    ]
    worst = int(np.argmax(p))
    mean, r = float(means[worst]), float(levels[worst])
    low, high = mean, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if 0 < middle < 1 and _p_value(mean, middle, n, binary) <= delta:
            high = middle
        else:
            low = middle
    text = (
        f"No threshold has a risk of at most {r:g} with probability {1 - delta:g} on "
        f"these {n} samples: the safest one holds {high:.4g}."
    )
    if mean < r:
        needed = math.ceil(-math.log(delta) / _kl(mean, r))
        text += f" At its mean loss of {mean:.4g}, about {needed} samples would do."
    else:
        text += " More samples do not help: add safer thresholds, or raise `risk`."
    raise ValueError(text)
