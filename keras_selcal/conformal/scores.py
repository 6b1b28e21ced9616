"""Nonconformity scores: how badly each class fits a prediction."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_selcal._arrays import row_blocks, to_numbers
from keras_selcal._formulas.functions import (
    arange,
    at_least,
    cast,
    cumsum,
    first_largest,
    floor,
    take_along,
)
from keras_selcal._predictions.outputs import two_columns
from keras_selcal._validation import (
    SUM_TOLERANCE,
    check_choice,
    check_count,
    check_logits,
    check_not_empty,
    check_number,
    refuse,
)

METHODS = ("lac", "aps", "raps", "saps")

_PENALTIES = {"raps": 0.01, "saps": 0.2}
_FREE_RANKS = 5

# u repeats once per 1/32 of a unit of log-probability: often enough to be uniform among
# similar predictions (8 was not, for two classes), and seldom enough that the rounding
# of float32 moves it by less than 1e-3.
_TURNS = 32.0
_LEAST_LOG_P = -60.0


@dataclass(frozen=True)
class NonconformityScore:
    """A nonconformity score with its parameters; see `conformal_scores`.

    The same code computes scores in NumPy and in `keras.ops`. It returns them minus
    `offset`: 1 − p and sums that approach 1 would round to 1 in float32, while −p and
    the sum of what is left keep their precision.
    """

    method: str = "lac"
    penalty: float = 0.0
    k_reg: int = 0
    seed: int | None = None

    @classmethod
    def of(
        cls, method: str, penalty: Any, k_reg: Any, seed: Any
    ) -> "NonconformityScore":
        """Returns the score with checked parameters and the defaults of its method."""
        check_choice("method", method, METHODS)
        if penalty is None:
            penalty = _PENALTIES.get(method, 0.0)
        elif method not in _PENALTIES:
            refuse("penalty", penalty, f"left out with method={method!r}")
        if k_reg is None:
            k_reg = _FREE_RANKS if method == "raps" else 0
        elif method != "raps":
            refuse("k_reg", k_reg, f"left out with method={method!r}")
        penalty = check_number(
            "penalty", penalty, "a finite number of at least 0", least=0, most=1e30
        )
        if seed is not None:
            if method == "lac":
                refuse("seed", seed, "None: LAC has no random term")
            seed = check_count("seed", seed, least=0)
        return cls(method, penalty, check_count("k_reg", k_reg, least=0), seed)

    @property
    def offset(self) -> float:
        """What is missing in `of_classes`, for probabilities that sum to 1."""
        return 0.0 if self.method == "saps" else 1.0

    def of_classes(self, p: Any, u: Any, xp: Any) -> Any:
        """Returns the scores of all classes minus `offset`, (..., k).

        Args:
            p: probabilities (..., k).
            u: (..., 1), or 1.0 for scores that are not randomised.
            xp: `keras.ops` or NumPy.
        """
        if self.method == "lac":
            return -p
        order = _argsort(-p, xp)
        rank = _argsort(order, xp)
        # Ranks from 1, as floats: keras.ops converts none by itself.
        o = 1.0 + cast(rank, p.dtype, xp)
        if self.method == "saps":
            top = xp.amax(p, axis=-1, keepdims=True)
            return xp.where(o == 1, u * top, top + (o - 2 + u) * self.penalty)
        # Sums from the smallest probability upwards: small ones are not rounded away.
        upwards = xp.flip(take_along(p, order, xp), axis=-1)
        upto = xp.flip(cumsum(upwards, xp), axis=-1)
        below = xp.concatenate([upto[..., 1:], xp.zeros_like(upto[..., :1])], axis=-1)
        below = take_along(below, rank, xp)
        scores = (u - 1) * p - below
        if self.method == "raps":
            scores = scores + self.penalty * at_least(o - float(self.k_reg), 0.0, xp)
        return scores

    def config(self) -> dict[str, Any]:
        """Returns the arguments of `of`: those that the method takes."""
        return {
            "method": self.method,
            "penalty": self.penalty if self.method in _PENALTIES else None,
            "k_reg": self.k_reg if self.method == "raps" else None,
            "seed": self.seed,
        }

    def direction(self, k: int) -> np.ndarray:
        """Returns the seed's weights of the log-probabilities in u, (k,)."""
        rng = np.random.default_rng(self.seed)
        signs = rng.choice((-1.0, 1.0), k)
        # No weight is near 0: each class's probability moves u.
        return signs * rng.uniform(0.5, 1.5, k) / math.sqrt(k)


def uniforms(log_p: Any, direction: Any, xp: Any) -> Any:
    """Returns u in [0, 1) for log-probabilities (..., k), as (..., 1).

    u is a fixed function that varies so quickly that it serves as a random number: a
    sample gets the same one in every batch and file, up to rounding.
    """
    turns = _TURNS * xp.sum(
        at_least(log_p, _LEAST_LOG_P, xp) * direction, axis=-1, keepdims=True
    )
    return turns - floor(turns, xp)


def conformal_scores(
    probabilities: Any,
    labels: Any,
    *,
    method: str = "lac",
    penalty: float | None = None,
    k_reg: int | None = None,
    seed: int | None = None,
    from_logits: bool = False,
) -> np.ndarray:
    """Computes nonconformity scores: the larger, the worse the label fits.

    Formula:

    With π_(1) ≥ π_(2) ≥ … the sorted probabilities and o the rank of class c (equal
    probabilities are ranked by class index):

    ```
    lac:   s_c = 1 − π_c
    aps:   s_c = π_(1) + … + π_(o−1) + u π_c
    raps:  s_c = π_(1) + … + π_(o−1) + u π_c + λ max(0, o − k_reg)
    saps:  s_c = u π_(1)                     if o = 1
           s_c = π_(1) + (o − 2 + u) λ       otherwise
    ```

    u = 1 without a seed. With one, u is a pseudo-random number in [0, 1) that depends
    on the seed and on the sample's probabilities only. A sample then has the same set
    in any order and batch, and the score stays a fixed function of the sample
    and its class, and the guarantee holds for every seed. Samples with equal
    probabilities share their u.

    - LAC gives the smallest sets on average if the probabilities are right. It covers
      difficult samples less often than easy ones.
    - APS adapts to the sample: sets are larger where it is difficult. Many classes of
      small probability make them large. Pass a seed: without one they are up to five
      times as large on real logits (see the benchmarks), and with two classes the less
      probable one has a score of 1 always. RAPS shares this to a lesser degree.
    - RAPS and SAPS keep these sets small: RAPS penalises ranks beyond `k_reg`, SAPS
      ignores all probabilities but the largest.

    With each of them a set can be empty; see `allow_empty` of `conformal_sets`.

    Args:
        probabilities: (..., k), or (n,) or (..., 1) of one sigmoid unit, whose classes
            are (1 − p, p).
        labels: class indices (...) or (..., 1), or one-hot (..., k). None returns the
            scores of all classes.
        method: `"lac"`, `"aps"`, `"raps"` or `"saps"`.
        penalty: λ of RAPS (default 0.01) and SAPS (default 0.2). `choose_penalty`
            selects it on data.
        k_reg: how many ranks RAPS leaves without a penalty. Defaults to 5.
        seed: of u. None, the default, does not randomise.
        from_logits: whether `probabilities` holds logits instead.

    Returns:
        Scores (...) in float64, or (..., k) where `labels` is None.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    >>> conformal_scores(p, np.array([0, 1])).round(2)
    array([0.3, 0.7])
    >>> conformal_scores(p, np.array([0, 1]), method="aps").round(2)
    array([0.7, 1. ])

    References:
    - Sadinle, Lei & Wasserman, [Least Ambiguous Set-Valued Classifiers with Bounded
      Error Levels](https://arxiv.org/abs/1609.00451) (LAC)
    - Romano, Sesia & Candès, [Classification with Valid and Adaptive
      Coverage](https://arxiv.org/abs/2006.02544) (APS)
    - Angelopoulos et al., [Uncertainty Sets for Image Classifiers using Conformal
      Prediction](https://arxiv.org/abs/2009.14193) (RAPS)
    - Huang et al., [Conformal Prediction for Deep Classifier via Label
      Ranking](https://arxiv.org/abs/2310.06430) (SAPS)
    - Angelopoulos & Bates, [A Gentle Introduction to Conformal
      Prediction](https://arxiv.org/abs/2107.07511) (the defaults of RAPS)
    """
    score = NonconformityScore.of(method, penalty, k_reg, seed)
    p = to_probabilities(probabilities, from_logits)
    if labels is None:
        return all_scores(score, p)
    y = check_classes(labels, p.shape)
    return np.take_along_axis(all_scores(score, p), y[..., None], axis=-1)[..., 0]


def conformal_sets(
    probabilities: Any,
    threshold: Any,
    *,
    method: str = "lac",
    penalty: float | None = None,
    k_reg: int | None = None,
    seed: int | None = None,
    allow_empty: bool = True,
    from_logits: bool = False,
) -> np.ndarray:
    """Collects the classes whose score is at most the threshold.

    Formula:

    ```
    C(x) = { c : s_c(x) ≤ q }
    ```

    Args:
        probabilities: as in `conformal_scores`, with the same options.
        threshold: q: a number, one for each class, (k,), or anything else that
            broadcasts to (..., k).
        method: see `conformal_scores`.
        penalty: see `conformal_scores`.
        k_reg: see `conformal_scores`.
        seed: see `conformal_scores`.
        allow_empty: whether sets may be empty. False adds the most probable class to
            an empty set.
        from_logits: whether `probabilities` holds logits instead.

    Returns:
        A boolean array (..., k): which classes each set holds.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    >>> conformal_sets(p, 0.75)
    array([[ True, False, False],
           [ True,  True,  True]])
    """
    score = NonconformityScore.of(method, penalty, k_reg, seed)
    p = to_probabilities(probabilities, from_logits)
    q = to_numbers("threshold", threshold).astype("float64")
    if np.isnan(q).any():
        refuse("threshold", threshold, "free of NaN")
    try:
        sets = all_scores(score, p) <= np.broadcast_to(q, p.shape)
    except ValueError:
        refuse("threshold", q.shape, f"of a shape that broadcasts to {p.shape}")
    return sets if allow_empty else fill_empty(sets, p, np)


def all_scores(score: NonconformityScore, p: np.ndarray) -> np.ndarray:
    """Returns the scores of all classes in NumPy, (..., k)."""
    rows = p.reshape(-1, p.shape[-1])
    found = np.empty(rows.shape)
    for block in row_blocks(rows.shape):
        q, u, offset = rows[block], 1.0, score.offset
        if score.seed is not None:
            with np.errstate(divide="ignore"):
                u = uniforms(np.log(q), score.direction(q.shape[-1]), np)
        if score.method in ("aps", "raps"):
            # Rounded rows do not sum to exactly 1; the formula's sum starts at 0.
            offset = q.sum(axis=-1, keepdims=True)
        found[block] = offset + score.of_classes(q, u, np)
    return found.reshape(p.shape)


def fill_empty(sets: Any, p: Any, xp: Any) -> Any:
    """Returns sets (..., k) of which the empty ones get the most probable class."""
    classes = arange(int(p.shape[-1]), "int32", xp)
    top = xp.equal(classes, cast(first_largest(p, xp), "int32", xp))
    empty = xp.logical_not(xp.any(sets, axis=-1, keepdims=True))
    return xp.logical_or(sets, xp.logical_and(empty, top))


def _argsort(x: Any, xp: Any) -> Any:
    # keras.ops sorts stably on every backend.
    return np.argsort(x, axis=-1, kind="stable") if xp is np else xp.argsort(x, axis=-1)


def to_probabilities(outputs: Any, from_logits: bool) -> np.ndarray:
    """Returns checked probabilities (..., k) in float64.

    One sigmoid unit, (n,) or (..., 1), becomes the columns (1 − p, p).
    """
    z = to_numbers("probabilities", outputs).astype("float64")
    if z.ndim == 0:
        refuse("probabilities", "a scalar", "of shape (..., k)")
    check_not_empty("probabilities", z)
    events = z.ndim == 1 or z.shape[-1] == 1
    if events:
        z = two_columns(z if z.ndim == 1 else z[..., 0], from_logits, np)
    if not np.isfinite(z.max(axis=-1)).all():
        allowed = "finite (a logit may be −inf, but not all of a sample)"
        refuse("probabilities", "NaN or infinite", allowed)
    if from_logits:
        check_logits(z.reshape(-1, z.shape[-1]), events, "probabilities")
        z = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(z / z.sum(axis=-1, keepdims=True))
    if z.min() < 0 or np.abs(z.sum(axis=-1) - 1).max() > SUM_TOLERANCE:
        refuse(
            "probabilities",
            z.reshape(-1, z.shape[-1])[0],
            "numbers in [0, 1] that sum to 1 in each row (pass `from_logits=True` if "
            "they are logits)",
        )
    return z


def check_classes(
    labels: Any, shape: tuple[int, ...], name: str = "labels"
) -> np.ndarray:
    """Returns class indices (...) for probabilities of a shape (..., k)."""
    y, k = to_numbers(name, labels), shape[-1]
    if y.shape == shape:
        if not (np.isin(y, (0, 1)).all() and (y.sum(axis=-1) == 1).all()):
            refuse(name, y, "class indices or one-hot; soft labels are not taken")
        return np.asarray(y.argmax(axis=-1))
    if y.shape not in (shape[:-1], (*shape[:-1], 1)):
        refuse(name, y.shape, f"one a sample for probabilities of shape {shape}")
    if not np.all((y == np.floor(y)) & (y >= 0) & (y < k)):
        refuse(name, np.unique(y), f"class indices from 0 to {k - 1}")
    return y.reshape(shape[:-1]).astype("int64")


def check_alpha(alpha: Any) -> float:
    """Returns the checked α, with a warning if it is above ½."""
    allowed = "a number in (0, 1): the share of sets that may miss the label"
    number = check_number("alpha", alpha, allowed, above=0, below=1)
    if number > 0.5:
        warnings.warn(
            f"alpha={number:g} lets {100 * number:g} % of the sets miss the label. For "
            f"a coverage of {number:g} pass alpha={1 - number:g}.",
            stacklevel=3,
        )
    return number
