"""Thresholds that hold any bounded risk: in expectation, or with high probability."""

from typing import Any

import numpy as np

from keras_selcal._arrays import row_blocks, to_numbers, to_numpy
from keras_selcal._validation import (
    check_choice,
    check_groups,
    check_number,
    refuse,
)
from keras_selcal.selective.bounds import (
    betting_p_value,
    binomial_tail,
    explain_unmet,
    least_passing,
)
from keras_selcal.selective.losses import check_range
from keras_selcal.selective.threshold import check_delta

# Absorbs the rounding of sums of losses.
_ROUNDING = 1e-12
_REMEDY = "Raise `risk`, or list safer thresholds first."


def control_risk(
    losses: Any,
    thresholds: Any,
    risk: Any,
    *,
    delta: float | None = None,
    groups: Any = None,
    binary: bool = False,
) -> float:
    """Finds the boldest threshold whose risk is at most r, for any decision.

    The risk R(λ) = E[L(λ)] is the mean of any loss in [0, 1] that a decision with
    threshold λ has on a sample: 1 − recall or 1 − precision of a set of labels
    (`multi_label_losses`), an error, an entry of a cost matrix. Thresholds are listed
    from the safest to the boldest; the answer is the boldest one that can be
    guaranteed. For the decision to answer or to abstain, `select_threshold` does the
    same with less to pass.

    Formula:

    Without `delta`, conformal risk control gives the guarantee in expectation, over
    calibration and new samples together:

    ```
    λ = the boldest with (n R̂(λ) + 1)/(n + 1) ≤ r,      E[L(λ)] ≤ r
    ```

    It needs losses that never fall from one threshold to the next, which is checked.
    With `delta`, Learn then Test needs no such thing and guarantees
    P(R(λ) ≤ r) ≥ 1 − δ, over calibration samples. Each hypothesis "R(λ) > r" is tested
    at the level δ, beginning with the safest threshold, until one fails (fixed sequence
    testing): by betting (`keras_selcal.selective.bounds`), or where losses are 0 or 1
    by the exact tail P(Bin(n, r) ≤ n R̂). Of several risks the largest p-value counts.

    Both guarantees are marginal, averages over all samples, and hold for samples that
    are independent draws from where the threshold will be used. A loss of NaN says
    that a sample does not count. The risk is then the mean over those that do, such as
    the samples of one class: one column of losses for each class, with NaN for the
    samples of others, gives a guarantee for each class.

    Args:
        losses: (n, m), in [0, 1] or NaN: of each sample at each threshold. Several
            risks at once have shape (n, m, q).
        thresholds: (m,), chosen without the samples, from the safest to the boldest.
        risk: r in (0, 1); one for each of q risks, or one for all.
        delta: δ in (0, 1), the probability with which the guarantee may fail; for all
            risks together. None gives the guarantee in expectation, of each risk.
        groups: (n,), which samples depend on each other. The mean loss of a group then
            counts as the loss of one sample.
        binary: whether a loss can only be 0 or 1. The exact test is more powerful.

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
    - Waudby-Smith & Ramdas, [Estimating means of bounded random variables by
      betting](https://arxiv.org/abs/2010.09686)
    """
    losses, thresholds, levels = _checked(losses, thresholds, risk, binary)
    if groups is not None:
        losses, binary = _group_means(losses, check_groups(to_numpy(groups))), False
    if delta is None:
        return _in_expectation(losses, thresholds, levels)
    delta = check_delta(delta)
    # Bets adapt from one sample to the next: their order must not depend on the data.
    losses = np.random.default_rng(0).permutation(losses)
    best = -1
    while best + 1 < len(thresholds) and all(
        _p_value(column, float(level), delta, binary) <= delta
        for column, level in zip(losses[:, best + 1].T, levels, strict=True)
    ):
        best += 1
    if best < 0:
        columns = (column[~np.isnan(column)] for column in losses[:, 0].T)
        pairs = list(zip(columns, levels.tolist(), strict=True))
        column, r = max(
            pairs, key=lambda pair: _p_value(pair[0], pair[1], delta, binary)
        )
        mean = float(column.mean()) if len(column) else 1.0

        def passes(values: np.ndarray, risk: float) -> bool:
            return _p_value(values, risk, delta, binary) <= delta

        raise ValueError(
            explain_unmet(
                r,
                f"with probability {1 - delta:g}",
                len(column),
                "samples",
                possible=least_passing(mean, lambda x: passes(column, x), steps=30),
                smallest=mean,
                passes=lambda n: passes(np.resize(column, n), r),
                step=1,
                remedy=_REMEDY,
            )
        )
    return float(thresholds[best])


def multi_label_losses(
    y_true: Any, probabilities: Any, thresholds: Any, *, loss: str = "false_negative"
) -> np.ndarray:
    """Computes losses of label sets {c : p_c ≥ t}, for `control_risk`.

    Formula:

    ```
    false_negative:   share of the true labels that are not in the set (1 − recall)
    false_discovery:  share of the set that is not true (1 − precision)
    ```

    for each sample; 0 where it has no true label, respectively where its set is empty.
    The first grows with t, and the lowest threshold is the safest; the second is
    not monotone, and is usually small for high thresholds.

    Args:
        y_true: multi-hot labels, (n, k).
        probabilities: (n, k), of independent sigmoids.
        thresholds: t, (m,).
        loss: `"false_negative"` or `"false_discovery"`.

    Returns:
        Losses (n, m).

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.6, 0.2]])
    >>> multi_label_losses([[1, 1, 0]], p, [0.1, 0.5, 0.8])
    array([[0. , 0. , 0.5]])
    """
    check_choice("loss", loss, ("false_negative", "false_discovery"))
    y, p = to_numbers("y_true", y_true), to_numbers("probabilities", probabilities)
    t = to_numbers("thresholds", thresholds).reshape(-1)
    if y.shape != p.shape or y.ndim != 2 or not np.isin(y, (0, 1)).all():
        refuse("y_true", y.shape, f"multi-hot, of the shape {p.shape} of probabilities")
    if not ((p >= 0) & (p <= 1)).all():
        refuse("probabilities", p, "numbers in [0, 1]")
    result = np.empty((len(y), len(t)))
    for rows in row_blocks((len(y), y.shape[1] * len(t))):
        chosen = p[rows, None, :] >= t[:, None]
        true = y[rows, None, :] == 1
        hits = (chosen & true).sum(axis=-1)
        of = (true if loss == "false_negative" else chosen).sum(axis=-1)
        result[rows] = np.where(of > 0, 1 - hits / np.maximum(of, 1), 0.0)
    return result


def _p_value(losses: np.ndarray, risk: float, delta: float, binary: bool) -> float:
    """Returns the p-value of "the risk is above r", for losses (n,)."""
    losses = losses[~np.isnan(losses)]
    if not len(losses):
        return 1.0
    if binary:
        return binomial_tail(int(losses.sum()), len(losses), risk)
    return float(betting_p_value(losses - risk, 1 - risk, delta))


def _in_expectation(
    losses: np.ndarray, thresholds: np.ndarray, levels: np.ndarray
) -> float:
    """Returns the threshold of conformal risk control."""
    counts = ~np.isnan(losses)
    if (counts != counts[:, :1]).any():
        raise ValueError(
            "`losses` of a sample must be NaN at all thresholds or at none without "
            "`delta`: the guarantee in expectation is for the same samples at each."
        )
    falling = (np.diff(losses, axis=1) < -_ROUNDING).any(axis=(1, 2))
    if falling.any():
        raise ValueError(
            "`losses` must never fall from one threshold to the next without "
            f"`delta`; {falling.sum()} of {len(losses)} samples do. "
            "List thresholds from the safest to the boldest, or pass `delta`."
        )
    n = counts[:, 0].sum(axis=0)
    bound = (np.nansum(losses, axis=0) + 1) / (n + 1)
    passed = (bound <= levels + _ROUNDING).all(axis=1)
    best = int(passed.sum()) - 1
    if best < 0:
        worst = int(np.argmax(bound[0] - levels))
        r, mean = float(levels[worst]), float(np.nanmean(losses[:, 0, worst]))
        raise ValueError(
            explain_unmet(
                r,
                "in expectation",
                int(n[worst]),
                "samples",
                possible=float(bound[0, worst]),
                smallest=mean,
                passes=lambda n: (n * mean + 1) / (n + 1) <= r + _ROUNDING,
                step=1,
                remedy=_REMEDY,
            )
        )
    return float(thresholds[best])


def _checked(
    losses: Any, thresholds: Any, risk: Any, binary: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns losses (n, m, q), thresholds (m,) and risks (q,)."""
    values = to_numbers("losses", losses).astype("float64")
    t = to_numbers("thresholds", thresholds).astype("float64").reshape(-1)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.size == 0 or values.shape[1] != len(t):
        refuse("losses", values.shape, f"(n, m) for m = {len(t)} thresholds")
    if np.isnan(values).all(axis=(0, 1)).any():
        refuse("losses", "NaN only", "numbers for at least one sample of each risk")
    check_range(values, binary)
    allowed = "a number in (0, 1); a risk of 0 takes infinitely many samples"
    levels = [
        check_number("risk", level, allowed, above=0, below=1)
        for level in np.ravel(risk).tolist()
    ]
    if len(levels) not in (1, values.shape[2]):
        refuse("risk", risk, f"one number, or one for each of {values.shape[2]} risks")
    return values, t, np.broadcast_to(levels, values.shape[2:])


def _group_means(losses: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Returns the mean loss of each group; NaN where none of its samples counts."""
    if groups.shape != losses.shape[:1]:
        refuse("groups", groups.shape, f"one for each of {len(losses)} samples")
    _, index, size = np.unique(groups, return_inverse=True, return_counts=True)
    order, starts = np.argsort(index, kind="stable"), np.cumsum(size) - size
    known = ~np.isnan(losses[order])
    sums = np.add.reduceat(np.nan_to_num(losses[order]), starts, axis=0)
    counts = np.add.reduceat(known * 1.0, starts, axis=0)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
