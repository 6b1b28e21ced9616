"""The threshold of prediction sets: a corrected quantile of calibration scores."""

import math
import warnings
from typing import Any

import numpy as np

from keras_selcal._arrays import to_numbers, to_numpy
from keras_selcal._validation import (
    check_count,
    check_groups,
    check_not_empty,
    refuse,
)
from keras_selcal.conformal.scores import (
    check_alpha,
    check_classes,
    conformal_scores,
    conformal_sets,
    to_probabilities,
)
from keras_selcal.selective.bounds import critical_errors, fewest_samples
from keras_selcal.selective.threshold import check_delta

# Absorbs the rounding of (n + 1)(1 − α), and of the shares of groups.
_ROUNDING = 1 - 1e-12

_PENALTIES = {
    "raps": (0.001, 0.01, 0.1, 0.2, 0.5),
    "saps": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}


def conformal_threshold(
    scores: Any,
    alpha: float,
    *,
    delta: float | None = None,
    sample_weight: Any | None = None,
    groups: Any | None = None,
    categories: Any | None = None,
    num_categories: int | None = None,
) -> Any:
    """Finds the threshold at which sets miss the label with probability ≤ α.

    Formula:

    ```
    q = the ⌈(n + 1)(1 − α)⌉-th smallest of the n calibration scores
    ```

    For a new sample (X, Y) that is exchangeable with the calibration samples (i.i.d.
    samples are), the set C(X) = {c : s_c(X) ≤ q} satisfies

    ```
    1 − α ≤ P(Y ∈ C(X)) ≤ 1 − α + 1/(n + 1)
    ```

    the upper bound if no scores are equal. Three things it does not say:

    - The probability is over calibration and new samples together. For one calibration
      set the coverage varies around 1 − α, with a standard deviation of about
      √(α(1 − α)/n). `delta` makes it reach 1 − α for most calibration sets.
    - The guarantee is marginal: an average over all samples. Some classes or groups of
      samples can be covered less often than others. With `categories`, each category
      has a threshold and a guarantee of its own.
    - It holds for data like the calibration data. Under a shift (another camera, other
      class frequencies) it does not, unless the shift is known and passed as
      `sample_weight`.

    If n < 1/α − 1, no score is large enough: the threshold is ∞, sets hold all classes,
    and a warning says how many samples it takes.

    With `delta`, the coverage of the sets is at least 1 − α with probability 1 − δ over
    the calibration samples, which must be independent draws of one distribution:

    ```
    q = the j-th smallest score,
    j the smallest with P(B ≥ 1 − α) ≥ 1 − δ for B ~ Beta(j, n + 1 − j)
    ```

    B has the distribution of the coverage if no scores are equal; equal ones only raise
    it. The condition equals P(Binomial(n, α) ≤ n − j) ≤ δ, and takes
    n ≥ ln δ / ln(1 − α) samples. With categories, each one has the level δ over their
    number: 1 − δ is for all of them at once. With groups of several samples, the share
    of a group above q takes the place of the errors, and the level is δ/e (Bentkus's
    inequality, e = 2.718…).

    With weights w, the threshold is the smallest score q with
    Σ_{i: s_i ≤ q} w_i ≥ (1 − α)(Σ w_i + max w). It holds under the covariate shift with
    likelihood ratio w, as long as the largest w also bounds the w of new samples.

    With groups, a sample of a group with n_g samples that count has the mass w_i/n_g in
    place of w_i: the weight of a group is the mean of its weights, and `max w`
    is the largest weight of a group. The guarantee is for one sample of a new group. w
    is the likelihood ratio of drawing this group and then this sample: without weights,
    any group and any of its samples; with the same weights within a group, groups under
    a shift, and any of their samples. (Given all groups, the new one is g with
    probability ∝ its weight, and its sample is i with probability ∝ w_i: the new score
    is a draw from the scores with these masses, and exceeds their quantile 1 − α with
    probability ≤ α.)

    Args:
        scores: nonconformity scores of the labels, (n,), see `conformal_scores`.
        alpha: α in (0, 1), the share of sets that may miss the label.
        delta: None, or δ in (0, 1), the probability that the coverage is below 1 − α.
        sample_weight: (n,), at least 0. Samples of weight 0 (padding) do not count;
            equal weights change nothing, and unequal ones are refused with `delta`.
        groups: (n,), which samples depend on each other: the image of a pixel, the
            sequence of a token. Each group then counts as one sample, in which
            every score has an equal share, and the guarantee is for a random sample
            of a new group. For a random token of all tokens, pass the length of its
            sequence as the weight of each.
        categories: (n,), the index of each sample's category: its class (then sets
            cover each class with probability 1 − α), or a group of samples, such as
            one hospital.
        num_categories: how many categories exist. Defaults to the largest index + 1.

    Returns:
        q, a float; with `categories` one threshold for each, (num_categories,).

    Example:
    >>> import numpy as np
    >>> scores = np.array([0.1, 0.5, 0.2, 0.9, 0.3, 0.4, 0.7, 0.6, 0.8])
    >>> conformal_threshold(scores, 0.2)
    0.8
    >>> conformal_threshold(scores, 0.5, categories=np.arange(9) % 2)
    array([0.3, 0.6])
    >>> conformal_threshold(scores, 0.5, delta=0.1)  # P(Binomial(9, ½) ≤ 2) = 0.09
    0.7

    References:
    - Vovk, Gammerman & Shafer, [Algorithmic Learning in a Random
      World](https://doi.org/10.1007/978-3-031-06649-8)
    - Tibshirani et al., [Conformal Prediction Under Covariate
      Shift](https://arxiv.org/abs/1904.06019) (weights)
    - Lee, Barber & Willett, [Distribution-free inference with hierarchical
      data](https://arxiv.org/abs/2306.06342) (groups)
    - Vovk, [Conditional validity of inductive conformal
      predictors](https://arxiv.org/abs/1209.2673) (categories, and the Beta law)
    - Bates et al., [Distribution-Free, Risk-Controlling Prediction
      Sets](https://arxiv.org/abs/2101.02703) (Bentkus's inequality)
    """
    alpha = check_alpha(alpha)
    delta = None if delta is None else check_delta(delta)
    s = to_numbers("scores", scores).astype("float64").reshape(-1)
    check_not_empty("scores", s)
    if np.isnan(s).any():
        refuse("scores", "NaN", "free of NaN")
    weight = np.ones(len(s))
    if sample_weight is not None:
        weight = to_numbers("sample_weight", sample_weight)
        weight = _one_each("sample_weight", weight, s).astype("float64")
        if not (np.all(weight >= 0) and np.isfinite(weight).all() and weight.any()):
            refuse("sample_weight", sample_weight, "finite, ≥ 0, and not all 0")
        if delta is not None:
            if len(np.unique(weight[weight > 0])) > 1:
                allowed = "0 or one number with `delta`: its guarantee counts samples"
                refuse("sample_weight", "unequal weights", allowed)
            weight = (weight > 0).astype("float64")
    cells, count = np.zeros(len(s), "int64"), 1
    if categories is not None:
        cells = to_numbers("categories", categories)
        cells = _one_each("categories", cells, s)
        least = 1 + int(cells.max())
        if cells.min() < 0 or not np.array_equal(cells, np.floor(cells)):
            refuse("categories", categories, "indices of at least 0")
        count = check_count("num_categories", num_categories or least, least=least)
        cells = cells.astype("int64")
    extra, largest = weight.max(), 1
    if groups is not None:
        groups = check_groups(to_numpy(groups))
        _, group = np.unique(_one_each("groups", groups, s), return_inverse=True)
        group = group + cells * (1 + group.max())
        _, group = np.unique(group, return_inverse=True)
        largest = np.bincount(group, weight > 0).max()
        weight = masses(weight, group)
        extra = np.bincount(group, weight).max()
    total = np.bincount(cells, weight, count)
    if delta is None:
        fewest = (1 - alpha) / alpha
        needed: np.ndarray = (1 - alpha) * (total + extra)
        aim = f"alpha={alpha:g}"
    else:
        level = delta / count / (math.e if largest > 1 else 1)
        sizes = np.round(total).astype("int64").tolist()
        # −1 where even no error proves too little: more than there is.
        needed = total - [critical_errors(n, alpha, level) for n in sizes]
        fewest = fewest_samples(0, alpha, level)
        aim = f"alpha={alpha:g} and delta={delta:g}"
    q = _quantiles(s, weight, cells, needed * _ROUNDING)
    if np.isinf(q).any():
        _warn_of_few(total / extra, aim, math.ceil(fewest * _ROUNDING), q, groups)
    return float(q[0]) if categories is None else q


def masses(weight: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Returns w_i/n_g, (n,), which sum to the mean weight within each group.

    Args:
        weight: w, (n,). Samples of weight 0 do not count.
        groups: index of each sample's group, (n,).
    """
    return weight / np.maximum(np.bincount(groups, weight > 0), 1)[groups]


def _quantiles(
    s: np.ndarray,
    weight: np.ndarray,
    cells: np.ndarray,
    needed: np.ndarray,
) -> np.ndarray:
    """Returns for each cell the smallest score up to which the scores have the needed
    weight, ∞ if there is none.
    """
    count = len(needed)
    order = np.lexsort((s, cells))
    s, weight, cells = s[order], weight[order], cells[order]
    total = np.bincount(cells, weight, count)
    running = np.cumsum(weight) - (np.cumsum(total) - total)[cells]
    enough = np.flatnonzero((running >= needed[cells]) & (weight > 0))
    found, first = np.unique(cells[enough], return_index=True)
    q = np.full(count, math.inf)
    q[found] = s[enough[first]]
    return q


def _warn_of_few(
    n: np.ndarray, aim: str, needed: int, q: np.ndarray, groups: Any
) -> None:
    """Says how many samples it takes where a threshold is infinite."""
    units = "groups" if groups is not None else "samples"
    infinite = np.isinf(q)
    where = (
        f"{n[0]:.4g} calibration {units} are too few for {aim}: it takes "
        f"at least {needed}. The threshold is infinite, and sets hold all classes."
        if len(q) == 1
        else f"{infinite.sum()} of {len(q)} categories have too few calibration "
        f"{units} for {aim}: it takes at least {needed} in each, and the "
        f"smallest has {n[infinite].min():.4g}. Their threshold is infinite: a class "
        "without a threshold is in every set."
    )
    warnings.warn(where, stacklevel=3)


def choose_penalty(
    probabilities: Any,
    labels: Any,
    alpha: float,
    *,
    method: str,
    seed: int | None = None,
    from_logits: bool = False,
) -> dict[str, Any]:
    """Selects the parameters of RAPS or SAPS, as their papers do.

    `k_reg` becomes the ⌈(n + 1)(1 − α)⌉-th smallest rank of a label, and λ the value of
    a grid that gives the smallest sets. The threshold must be taken from other samples
    than these.

    Args:
        probabilities: as in `conformal_scores`.
        labels: as in `conformal_scores`.
        alpha: α in (0, 1).
        method: `"raps"` or `"saps"`.
        seed: as in `conformal_scores`.
        from_logits: whether `probabilities` holds logits instead.

    Returns:
        `penalty`, and `k_reg` for RAPS: arguments of `conformal_scores`.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 9, 300)
    >>> z = 3 * np.eye(9)[y] + rng.normal(size=(300, 9))
    >>> choose_penalty(z, y, 0.1, method="raps", from_logits=True)
    {'penalty': 0.5, 'k_reg': 2}
    """
    if method not in _PENALTIES:
        refuse("method", method, "'raps' or 'saps', which have a penalty")
    p = to_probabilities(probabilities, from_logits)
    options: dict[str, Any] = {"method": method, "seed": seed}
    with warnings.catch_warnings():
        # What the few samples of this search are too few for, `fit` says.
        warnings.simplefilter("ignore")
        if method == "raps":
            y = check_classes(labels, p.shape)
            of_label = np.take_along_axis(p, y[..., None], axis=-1)
            ranks = 1 + (p > of_label).sum(axis=-1)
            rank = conformal_threshold(ranks, alpha)
            options["k_reg"] = int(min(rank, p.shape[-1]))

        def mean_size(penalty: float) -> float:
            scores = conformal_scores(p, labels, penalty=penalty, **options)
            q = conformal_threshold(scores, alpha)
            return conformal_sets(p, q, penalty=penalty, **options).sum() / scores.size

        options["penalty"] = min(_PENALTIES[method], key=mean_size)
    return {name: options[name] for name in ("penalty", "k_reg") if name in options}


def _one_each(name: str, values: np.ndarray, scores: np.ndarray) -> np.ndarray:
    if values.size != scores.size:
        refuse(name, values.shape, f"one for each of the {scores.size} scores")
    return values.reshape(-1)
