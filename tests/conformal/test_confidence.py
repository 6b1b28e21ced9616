"""Coverage with probability 1 − δ over the calibration samples."""

import math

import numpy as np
import pytest
from scipy.stats import beta

from keras_selcal.conformal import conformal_threshold

pytestmark = pytest.mark.backend_free


def order_of(n, alpha, delta):
    """The smallest j whose Beta law is below 1 − α with probability ≤ δ, or None."""
    j = np.arange(1, n + 1)
    low = np.flatnonzero(beta.cdf(1 - alpha, j, n + 1 - j) <= delta)
    return int(j[low[0]]) if len(low) else None


def failures(draws, failed, delta):
    """Whether as many failures are what a probability of at most δ allows."""
    return failed / draws <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("delta", [0.01, 0.1, 0.4])
def test_the_order_is_that_of_the_beta_law(rng, alpha, delta):
    for n in (1, 5, 29, 150, 1000):
        scores = rng.permutation(n) + 1.0
        want = order_of(n, alpha, delta)
        fewest = math.ceil(math.log(delta) / math.log(1 - alpha))
        assert (want is None) == (n < fewest)
        if want is None:
            told = f"{n} calibration samples are too few for alpha={alpha:g} and "
            told += f"delta={delta:g}: it takes at least {fewest}"
            with pytest.warns(UserWarning, match=told):
                assert conformal_threshold(scores, alpha, delta=delta) == math.inf
        else:
            assert conformal_threshold(scores, alpha, delta=delta) == want


def test_coverage_fails_with_probability_delta_by_simulation():
    """Of uniform scores, the coverage of a threshold is the threshold itself."""
    rng = np.random.default_rng(0)
    n, alpha, delta, draws = 200, 0.1, 0.1, 4000
    category = np.repeat(np.arange(draws), n)
    scores = rng.random((draws, n))
    j = order_of(n, alpha, delta)
    q = np.sort(scores, axis=1)[:, j - 1]
    for i in range(5):
        assert conformal_threshold(scores[i], alpha, delta=delta) == q[i]
    exact = beta.cdf(1 - alpha, j, n + 1 - j)
    failed = (q < 1 - alpha).mean()
    assert abs(failed - exact) < 4 * math.sqrt(exact * (1 - exact) / draws)
    # Without δ, nearly half of the calibration sets give less than 1 − α.
    plain = conformal_threshold(scores, alpha, categories=category)
    assert 0.35 < (plain < 1 - alpha).mean() < 0.55


def test_equal_scores_only_raise_the_coverage():
    rng = np.random.default_rng(0)
    n, alpha, delta, draws = 100, 0.2, 0.1, 1000
    share = np.array([0.5, 0.29, 0.02, 0.19])
    failed = 0
    for _ in range(draws):
        scores = rng.choice(4, n, p=share)
        q = conformal_threshold(scores, alpha, delta=delta)
        failed += share[: int(q) + 1].sum() < 1 - alpha
    assert failures(draws, failed, delta)
    assert failed > 0


def test_delta_is_for_all_categories_at_once():
    rng = np.random.default_rng(0)
    k, n, alpha, delta, draws = 5, 60, 0.2, 0.2, 800
    failed = 0
    for _ in range(draws):
        scores = rng.random(k * n)
        q = conformal_threshold(
            scores, alpha, delta=delta, categories=np.arange(k * n) % k
        )
        failed += (q < 1 - alpha).any()
    assert failures(draws, failed, delta)
    assert q[0] == conformal_threshold(scores[::k], alpha, delta=delta / k)


def test_categories_that_are_too_small_say_how_many_samples_it_takes(rng):
    fewest = math.ceil(math.log(0.2 / 3) / math.log(0.8))
    categories = np.repeat([0, 1], [fewest, fewest - 1])
    scores = rng.random(len(categories))
    # The third category, without samples, has its share of δ too.
    options = {"categories": categories, "num_categories": 3}
    told = "2 of 3 categories have too few .* alpha=0.2 and delta=0.2: it takes at "
    with pytest.warns(UserWarning, match=f"{told}least {fewest} in each"):
        q = conformal_threshold(scores, 0.2, delta=0.2, **options)
    assert q.tolist() == [scores[:fewest].max(), math.inf, math.inf]


def test_groups_hold_the_coverage_of_a_sample_of_a_new_group():
    """Scores that are equal within a group: counted singly, coverage fails."""
    rng = np.random.default_rng(0)
    draws, count, alpha, delta = 400, 80, 0.2, 0.1
    failed = {"groups": 0, "rows": 0}
    for _ in range(draws):
        size = rng.integers(1, 12, count)
        scores = np.repeat(rng.random(count), size)
        groups = np.repeat(np.arange(count), size)
        q = conformal_threshold(scores, alpha, delta=delta, groups=groups)
        failed["groups"] += q < 1 - alpha
        failed["rows"] += conformal_threshold(scores, alpha, delta=delta) < 1 - alpha
    assert failures(draws, failed["groups"], delta)
    assert not failures(draws, failed["rows"], delta)


def test_groups_of_independent_scores_and_of_one_sample(rng):
    scores = rng.random(300)
    plain = conformal_threshold(scores, 0.1, delta=0.1)
    assert conformal_threshold(scores, 0.1, delta=0.1, groups=np.arange(300)) == plain
    # Pairs: the missed share of a pair is 0, ½ or 1.
    pairs = np.arange(300) // 2
    q = conformal_threshold(scores, 0.1, delta=0.1, groups=pairs)
    missed = (scores > q).sum() / 2
    law = beta.cdf(0.9, 150 - missed, 1 + missed)
    assert law <= 0.1 / math.e < beta.cdf(0.9, 149 - missed, 2 + missed)
    with pytest.warns(UserWarning, match="20 calibration groups .* at least 32"):
        conformal_threshold(scores[:40], 0.1, delta=0.1, groups=pairs[:40])


def test_weights_and_delta(rng):
    scores = rng.random(100)
    plain = conformal_threshold(scores, 0.1, delta=0.1)
    equal = np.full(100, 0.3)
    assert conformal_threshold(scores, 0.1, delta=0.1, sample_weight=equal) == plain
    padded = np.append(scores, rng.random(50) + 3)
    weight = np.append(equal, np.zeros(50))
    assert conformal_threshold(padded, 0.1, delta=0.1, sample_weight=weight) == plain
    with pytest.raises(ValueError, match="`sample_weight` must be 0 or one number"):
        conformal_threshold(scores, 0.1, delta=0.1, sample_weight=rng.random(100))


def test_delta_is_checked(rng):
    for bad in (0, 1, -0.1, "x", math.nan):
        with pytest.raises(ValueError, match="`delta` must be"):
            conformal_threshold(rng.random(9), 0.1, delta=bad)
    with pytest.warns(UserWarning, match="Did you mean 0.05"):
        conformal_threshold(rng.random(50), 0.1, delta=0.95)
