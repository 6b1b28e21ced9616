"""Thresholds and their guarantees, on arrays."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from scipy.stats import beta, binom

from keras_selcal.selective import risk_bound, select_threshold
from keras_selcal.selective.bounds import betting_p_value
from keras_selcal.selective.cuts import Cuts

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.filterwarnings("ignore:`risk=.*without `delta`"),
]


@pytest.mark.parametrize("n", [1, 2, 50, 10_000])
@pytest.mark.parametrize("delta", [1e-6, 0.01, 0.05, 0.5])
def test_risk_bound_is_clopper_pearson(n, delta):
    for errors in {0, min(1, n - 1), n // 20, n // 2, n - 1}:
        ours = risk_bound(errors, n, delta)
        expected = beta.ppf(1 - delta, errors + 1, n - errors)
        assert ours == pytest.approx(expected, rel=1e-9)
        assert binom.cdf(errors, n, ours) == pytest.approx(delta, rel=1e-6)
    assert risk_bound(n, n, delta) == 1.0
    assert risk_bound(0, n, delta) == pytest.approx(1 - delta ** (1 / n), rel=1e-9)
    assert risk_bound(0, 0, delta) == 1.0


def by_exhaustion(s, right, accept):
    """The lowest of the scores whose accepted samples satisfy `accept`."""
    fitting = [t for t in np.unique(s) if accept(right[s >= t])]
    return fitting[0] if fitting else None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 60),
    levels=st.sampled_from([1, 3, 1000]),
    target=st.floats(0.01, 1.0),
    seed=st.integers(0, 10**6),
)
def test_empirical_thresholds(n, levels, target, seed):
    rng = np.random.default_rng(seed)
    s, right = rng.integers(0, levels, n) / levels, rng.random(n) < 0.7
    ours = select_threshold(s, right, coverage=target)
    enough = [t for t in np.unique(s) if (s >= t).mean() >= target - 1e-12]
    assert ours == max(enough)
    expected = by_exhaustion(s, right, lambda r: (~r).mean() <= target)
    if expected is None:
        with pytest.raises(ValueError, match="No threshold has a risk"):
            select_threshold(s, right, risk=target)
    else:
        assert select_threshold(s, right, risk=target) == expected


def test_thresholds_in_closed_form():
    s = np.array([0.1, 0.9, 0.9, 0.5])
    right = np.array([0, 1, 1, 1])
    assert select_threshold(s, right, coverage=0.25) == 0.9  # ties are not split
    assert select_threshold(s, right, coverage=0.75) == 0.5
    assert select_threshold(s, right, coverage=1.0) == 0.1
    assert select_threshold(s, right, risk=0.0) == 0.5
    assert select_threshold(s, right, risk=0.25) == 0.1
    assert select_threshold(ops.convert_to_tensor(s), right, risk=0.25) <= 0.1 + 1e-6
    # 0.3·10 is not 3 in floating point.
    assert select_threshold(np.arange(10.0), np.ones(10), coverage=0.3) == 7.0
    # Without errors all n samples pass where (1 − r)^n ≤ δ.
    n, delta = 1000, 0.05
    r = 1 - delta ** (1 / n)
    s, right = np.arange(float(n)), np.ones(n)
    assert select_threshold(s, right, risk=r * (1 + 1e-9), delta=delta) == 0.0
    assert select_threshold(s, 1 - right, risk=1.0, delta=delta) == 0.0


def test_never_accepted_scores():
    s = np.array([0.9, -math.inf, 0.5, -math.inf])
    assert select_threshold(s, np.ones(4), coverage=0.5) == 0.5
    with pytest.raises(ValueError, match="2 of 4 samples"):
        select_threshold(s, np.ones(4), coverage=0.75)
    assert select_threshold(s, np.array([1, 0, 1, 0]), risk=0.0) == 0.5
    with pytest.raises(ValueError, match="No threshold"):
        select_threshold(np.full(3, -math.inf), np.ones(3), risk=0.5, delta=0.1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "coverage"),
        ({"coverage": 0.5, "risk": 0.1}, "coverage"),
        ({"coverage": 0.5, "delta": 0.1}, "delta"),
        ({"coverage": 0.0}, "coverage"),
        ({"coverage": 1.1}, "coverage"),
        ({"coverage": math.nan}, "coverage"),
        ({"risk": -0.1}, "risk"),
        ({"risk": 0.1, "delta": 0.0}, "delta"),
        ({"risk": 0.1, "delta": 1.0}, "delta"),
        ({"scores": np.array([0.5, math.nan]), "coverage": 0.5}, "scores"),
        ({"scores": np.array([0.5, math.inf]), "coverage": 0.5}, "scores"),
        ({"scores": np.zeros(3), "coverage": 0.5}, "correct"),
        ({"sample_weight": np.ones(3), "coverage": 0.5}, "sample_weight"),
        ({"sample_weight": -np.ones(2), "coverage": 0.5}, "sample_weight"),
        ({"sample_weight": np.zeros(2), "coverage": 0.5}, "scores"),
        ({"sample_weight": [0.5, 1], "risk": 0.5, "delta": 0.5}, "sample_weight"),
        ({"groups": np.ones(3), "coverage": 0.5}, "groups"),
        ({"risk": 0.0, "delta": 0.1}, "risk"),
        ({"scores": np.zeros(0), "correct": np.zeros(0), "coverage": 0.5}, "scores"),
        ({"correct": np.array([0.5, 1.0]), "coverage": 0.5}, "correct"),
    ],
)
def test_select_threshold_refuses(arguments, named):
    arguments = {
        "scores": np.array([0.1, 0.2]),
        "correct": np.array([True, False]),
        **arguments,
    }
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        select_threshold(**arguments)


# Selective risks r(c) at coverage c, and the risk at a score s = 1 − c, (c r)′.
CURVES = {
    "linear": (lambda c: c / 2, lambda s: 1 - s, 0.2),
    "steep": (lambda c: c**8 / 15, lambda s: 9 / 15 * (1 - s) ** 8, 0.02),
    "flat, then steep": (
        lambda c: 0.01 + c**8 / 15,
        lambda s: 0.01 + 9 / 15 * (1 - s) ** 8,
        0.03,
    ),
}


@pytest.mark.parametrize(
    ("curve", "draws"), [("linear", 500), ("steep", 300), ("flat, then steep", 300)]
)
def test_guarantee_by_simulation(curve, draws):
    selective_risk, risk_at, risk = CURVES[curve]
    rng = np.random.default_rng(0)
    n, delta = 2000, 0.1
    exceeded, coverages = 0, []
    for _ in range(draws):
        s = rng.random(n)
        try:
            t = select_threshold(s, rng.random(n) >= risk_at(s), risk=risk, delta=delta)
        except ValueError:
            t = 1.0
        exceeded += selective_risk(1 - t) > risk
        coverages.append(1 - t)
    assert exceeded <= binom.ppf(0.999, draws, delta)
    assert exceeded > 0  # or it would give coverage away
    assert np.mean(coverages) > 0.3


@pytest.mark.parametrize("delta", [0.05, 0.1])
def test_guaranteed_coverage_is_near_the_best(delta):
    selective_risk, risk_at, risk = CURVES["steep"]
    c = np.linspace(0.001, 1, 10_000)
    best = c[selective_risk(c) <= risk].max()
    rng = np.random.default_rng(0)
    lost = []
    for _ in range(50):
        s = rng.random(10_000)
        right = rng.random(10_000) >= risk_at(s)
        lost.append(best - 1 + select_threshold(s, right, risk=risk, delta=delta))
    assert 0 < np.mean(lost) < 0.02


def test_guaranteed_coverage_beats_a_union_over_a_binary_search():
    rng = np.random.default_rng(1)
    n, risk, delta = 10_000, 0.1, 0.05
    for _ in range(5):
        s = rng.random(n)
        right = rng.random(n) < 0.6 + 0.4 * s
        t = select_threshold(s, right, risk=risk, delta=delta)
        errors = np.cumsum(~right[np.argsort(-s)])
        m = np.arange(1, n + 1)

        def coverage(level, m=m, errors=errors):
            bounds = beta.ppf(1 - level, errors + 1, m - errors)
            return m[bounds <= risk].max() / n

        ours = (s >= t).mean()
        assert coverage(delta / 14) - 0.01 <= ours <= coverage(delta)


def test_unmet_guarantees_say_what_can_be_met():
    s, right = np.arange(1000.0), np.ones(1000)
    with pytest.raises(ValueError, match=r"smallest risk .* guarantee is 0\.003") as e:
        select_threshold(s, right, risk=0.002, delta=0.05)
    assert "About 2,000 samples" in str(e.value)
    # With that many of the same kind it is met.
    assert select_threshold(np.arange(2e3), np.ones(2000), risk=0.002, delta=0.05) == 0
    with pytest.raises(ValueError, match="More samples would probably not help") as e:
        select_threshold(s, np.arange(1000) % 2, risk=0.4, delta=0.05)
    assert "smallest risk of any threshold that accepts at least " in str(e.value)
    groups = np.repeat(np.arange(100), 10)
    with pytest.raises(ValueError, match=r"on these 100 groups.* groups of the same"):
        select_threshold(s, right, risk=0.01, delta=0.05, groups=groups)


def test_risk_of_zero_is_explained():
    with pytest.raises(ValueError, match="no number of samples proves"):
        select_threshold(np.arange(9.0), np.ones(9), risk=0.0, delta=0.1)


@pytest.mark.filterwarnings("error")
def test_likely_confusions_warn():
    s, right = np.arange(99.0), np.ones(99)
    with pytest.warns(UserWarning, match="without `delta`"):
        select_threshold(s, right, risk=0.1)
    with pytest.warns(UserWarning, match=r"Did you mean 0\.05"):
        select_threshold(s, right, risk=0.1, delta=0.95)
    select_threshold(s, right, risk=0.1, delta=0.5)
    select_threshold(s, right, coverage=0.5)


def test_weights_count_samples(rng):
    n = 300
    s, right = rng.integers(0, 50, n) / 50, rng.random(n) < 0.9
    weight = rng.integers(0, 4, n)
    copies = np.repeat(np.arange(n), weight)
    for target in ({"coverage": 0.4}, {"coverage": 0.9}, {"risk": 0.2}):
        assert select_threshold(
            s, right, sample_weight=weight, **target
        ) == select_threshold(s[copies], right[copies], **target)
    # Padding changes nothing, whatever it holds.
    padded = np.append(s, np.full(200, np.nan)), np.append(right, np.zeros(200))
    real = np.append(np.ones(n), np.zeros(200))
    for target in ({"coverage": 0.4}, {"risk": 0.3, "delta": 0.1}):
        expected = select_threshold(s, right, **target)
        assert select_threshold(*padded, sample_weight=real, **target) == expected


def test_groups_of_one_sample_are_samples(rng):
    s, right = rng.random(500), rng.random(500) < 0.9
    expected = select_threshold(s, right, risk=0.2, delta=0.1)
    groups = rng.permutation(500)
    found = select_threshold(s, right, risk=0.2, delta=0.1, groups=groups)
    assert found == expected


def sequences(rng, groups, length):
    """Tokens of sequences that are easy or hard as a whole: a third is hopeless.

    Scores are uniform, and the risk of a token is (1 − s)/2 in two of three sequences
    and twice that in the others; the mean is (1 − s)·2/3.
    """
    s = rng.random((groups, length))
    factor = rng.choice([0.5, 0.5, 1.0], (groups, 1))
    right = rng.random((groups, length)) >= factor * (1 - s)
    return s, right, np.broadcast_to(np.arange(groups)[:, None], s.shape)


def test_guarantee_of_groups_by_simulation():
    """Without groups a third of the draws exceeds the risk, which is beyond what a
    tenth gives by chance, 27 of 150, with a probability of 0.9999.
    """
    rng = np.random.default_rng(0)
    risk, delta, draws = 0.15, 0.1, 150
    exceeded, coverages = {True: 0, False: 0}, []
    for _ in range(draws):
        # Each token of a sequence is repeated, so that they are anything but
        # independent.
        s, right, groups = sequences(rng, 400, 2)
        s, right, groups = (np.repeat(part, 8, axis=1) for part in (s, right, groups))
        for grouped in exceeded:
            cuts = Cuts.of(s, right, groups=groups if grouped else None)
            found = cuts.search(risk, delta)
            t = cuts.thresholds[found] if found >= 0 else 1.0
            # The risk at coverage c is c/3.
            exceeded[grouped] += (1 - t) / 3 > risk
            if grouped:
                coverages.append(1 - t)
    assert exceeded[True] <= binom.ppf(0.999, draws, delta)
    assert exceeded[False] > binom.ppf(0.999, draws, delta)
    assert np.mean(coverages) > 0.2  # of 0.45


def test_betting_p_values_are_valid():
    rng = np.random.default_rng(0)
    draws, level = 1000, 0.1
    for rare in (0.02, 0.5):
        # Losses of mean 0 within [−1, 1/rare − 1].
        losses = rng.random((draws, 300)) < rare
        losses = losses / rare - 1
        p = [betting_p_value(row, 1 / rare - 1, level) for row in losses]
        assert np.mean(np.array(p) <= level) <= binom.ppf(0.999, draws, level) / draws
        assert np.mean(np.array(p) <= 2 * level) <= 2 * level + 0.04
        better = [
            betting_p_value(row - 0.3 / rare**0.5, 1 / rare, level) for row in losses
        ]
        assert np.mean(np.array(better) <= level) > 0.9


def test_masked_arrays_are_refused():
    scores = np.ma.masked_greater(np.linspace(0, 1, 20), 0.9)
    with pytest.raises(ValueError, match="`scores` must be an array without a mask"):
        select_threshold(scores, np.ones(20), coverage=0.5)
