"""Scores, thresholds and classifiers of prediction sets."""

import itertools
import math

import numpy as np
import pytest
from backends import numpy
from classifier_data import KINDS, METHODS, draw, identity
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import softmax
from scipy.stats import betabinom, kstest

from keras_selcal import ConformalClassifier
from keras_selcal.conformal import (
    choose_penalty,
    conformal_scores,
    conformal_sets,
    conformal_threshold,
    control_risk,
    evaluate_sets,
    multi_label_losses,
)
from keras_selcal.conformal.scores import NonconformityScore, uniforms
from keras_selcal.selective import answer_losses, select_threshold

pytestmark = pytest.mark.backend_free


def reference_score(p, c, method, u=1.0, penalty=None, k_reg=5):
    """The score of class c for one row, by the formulas of the papers."""
    order = sorted(range(len(p)), key=lambda j: (-p[j], j))
    o = order.index(c) + 1
    before = sum(p[j] for j in order[: o - 1])
    if method == "lac":
        return 1 - p[c]
    if method == "saps":
        lam = 0.2 if penalty is None else penalty
        return u * max(p) if o == 1 else max(p) + (o - 2 + u) * lam
    if method == "aps":
        return before + u * p[c]
    lam = 0.01 if penalty is None else penalty
    return before + u * p[c] + lam * max(0, o - k_reg)


# Scores
@pytest.mark.parametrize(("method", "seed"), KINDS)
@pytest.mark.parametrize("k", [2, 9])
def test_scores_are_the_formulas(method, seed, k):
    p = softmax(3 * np.random.default_rng(0).normal(size=(25, k)))
    p[0] = np.eye(k)[1]  # saturated
    p[1] = 1 / k  # all tied
    u = np.ones(len(p))
    if seed is not None:
        direction = NonconformityScore.of(method, None, None, seed).direction(k)
        with np.errstate(divide="ignore"):
            u = uniforms(np.log(p), direction, np)[:, 0]
    expected = [
        [reference_score(row, c, method, u_i) for c in range(k)]
        for row, u_i in zip(p, u, strict=True)
    ]
    ours = conformal_scores(p, None, method=method, seed=seed)
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    y = np.arange(len(p)) % k
    of_label = conformal_scores(p, y, method=method, seed=seed)
    np.testing.assert_array_equal(of_label, ours[np.arange(len(p)), y])


def test_parameters_of_raps_and_saps():
    p = softmax(np.random.default_rng(0).normal(size=(5, 6)))
    for method, options in (
        ("raps", {"penalty": 0.3, "k_reg": 2}),
        ("raps", {"penalty": 0.0, "k_reg": 0}),
        ("saps", {"penalty": 0.05}),
    ):
        ours = conformal_scores(p, None, method=method, **options)
        expected = [
            [reference_score(row, c, method, **options) for c in range(6)] for row in p
        ]
        np.testing.assert_allclose(ours, expected, atol=1e-12)
    aps = conformal_scores(p, None, method="aps")
    np.testing.assert_allclose(
        conformal_scores(p, None, method="raps", penalty=0), aps, atol=1e-15
    )


def test_logits_and_one_sigmoid_unit_give_the_same_scores():
    z = 3 * np.random.default_rng(0).normal(size=(20, 4))
    y = np.arange(20) % 4
    a = conformal_scores(z, y, method="aps", from_logits=True)
    np.testing.assert_allclose(
        a, conformal_scores(softmax(z), np.eye(4)[y], method="aps"), atol=1e-12
    )
    z, y = z[:, 0], y % 2
    p = 1 / (1 + np.exp(-z))
    expected = conformal_scores(np.stack([1 - p, p], -1), y)
    for given_p, logits in ((p, False), (p[:, None], False), (z, True)):
        ours = conformal_scores(given_p, y, from_logits=logits)
        np.testing.assert_allclose(ours, expected, atol=1e-12)
    np.testing.assert_allclose(expected, np.where(y == 1, 1 - p, p), atol=1e-12)


def test_random_numbers_are_uniform_and_independent_of_the_order():
    z = 4 * np.random.default_rng(0).normal(size=(4000, 10))
    log_p = np.log(softmax(z))
    score = NonconformityScore.of("aps", None, None, 0)
    u = uniforms(log_p, score.direction(10), np)[:, 0]
    assert kstest(u, "uniform").pvalue > 1e-3
    confident = log_p.max(-1) > -0.02
    assert 300 < confident.sum() < 3700
    assert kstest(u[confident], "uniform").pvalue > 1e-3
    other = uniforms(
        log_p, NonconformityScore.of("aps", None, None, 1).direction(10), np
    )[:, 0]
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.06
    # The same sample gets the same number, wherever it stands.
    a = conformal_scores(z, None, method="aps", seed=5, from_logits=True)
    b = conformal_scores(z[::-1], None, method="aps", seed=5, from_logits=True)
    np.testing.assert_array_equal(a, b[::-1])


def test_float32_scores_keep_the_precision_of_small_probabilities():
    """The layer tells classes of probability 1e-9 and 1e-12 apart."""
    p = np.array([[1 - 1e-9, 1e-9, 1e-12]], "float32")
    for method in ("lac", "aps"):
        scores = numpy(
            NonconformityScore.of(method, None, None, None).of_classes(p, 1.0, np)
        )
        assert (np.diff(scores[0]) > 0).all()


# Thresholds
@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 80),
    percent=st.integers(1, 50),
    levels=st.sampled_from([2, 7, 10**6]),
    seed=st.integers(0, 10**6),
)
def test_threshold_is_the_order_statistic(n, percent, levels, seed):
    s = np.random.default_rng(seed).integers(0, levels, n) / levels
    rank = -(-(n + 1) * (100 - percent) // 100)  # exact in integers
    if rank > n:
        needed = -(-(100 - percent) // percent)
        with pytest.warns(UserWarning, match=f"at least {needed}"):
            assert conformal_threshold(s, percent / 100) == math.inf
        assert n < needed
    else:
        assert conformal_threshold(s, percent / 100) == np.sort(s)[rank - 1]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS))
def test_sets_are_nested_in_alpha(seed, kind):
    rng = np.random.default_rng(seed)
    p, new = (softmax(2 * rng.normal(size=(40, 5))) for _ in range(2))
    options = {"method": kind[0], "seed": kind[1]}
    scores = conformal_scores(p, rng.integers(0, 5, 40), **options)
    alphas = np.sort(rng.uniform(0.03, 0.5, 4))
    sets = [
        conformal_sets(new, conformal_threshold(scores, alpha), **options)
        for alpha in alphas
    ]
    for larger, smaller in itertools.pairwise(sets):
        assert (larger | ~smaller).all()


def test_too_few_samples_in_some_categories():
    s = np.arange(30.0)
    category = np.repeat([0, 1, 2], [20, 3, 7])
    with pytest.warns(UserWarning, match=r"3 of 4 .* at least 9 in each.* has 0"):
        q = conformal_threshold(s, 0.1, categories=category, num_categories=4)
    np.testing.assert_array_equal(q, [18, math.inf, math.inf, math.inf])
    sets = conformal_sets(np.full((2, 4), 0.25), q - 18)
    np.testing.assert_array_equal(sets, [[False, True, True, True]] * 2)


def test_empty_sets_get_the_most_probable_class():
    p = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.9, 0.1]])
    sets = conformal_sets(p, 0.2)
    np.testing.assert_array_equal(sets.sum(-1), [0, 0, 1])
    filled = conformal_sets(p, 0.2, allow_empty=False)
    np.testing.assert_array_equal(filled.argmax(-1), [0, 2, 1])
    assert (filled.sum(-1) == 1).all()


def test_saturated_probabilities():
    p = np.eye(3)[np.arange(30) % 3]
    y = np.where(np.arange(30) < 29, np.arange(30) % 3, 0)
    q = conformal_threshold(conformal_scores(p, y), 0.1)
    assert q == 0
    np.testing.assert_array_equal(conformal_sets(p, q), p == 1)
    assert conformal_sets(p, 1.0).all()


def test_a_thousand_classes():
    x, y = draw(400, 1000, signal=6.0)
    for method in METHODS:
        options = {"method": method, "from_logits": True}
        q = conformal_threshold(conformal_scores(x[:200], y[:200], **options), 0.1)
        sets = conformal_sets(x[200:], q, **options)
        covered = sets[np.arange(200), y[200:]].sum()
        low, high = betabinom(200, 181, 20).ppf([1e-4, 1 - 1e-4])
        assert low <= covered <= high


def test_choose_penalty():
    x, y = draw(300, 12, signal=2.5)
    p = softmax(x)
    ranks = 1 + (p > p[np.arange(300), y][:, None]).sum(-1)
    chosen = choose_penalty(p, y, 0.1, method="raps")
    assert chosen["k_reg"] == np.sort(ranks)[math.ceil(301 * 0.9) - 1]

    def size(**options):
        q = conformal_threshold(conformal_scores(p, y, **options), 0.1)
        return conformal_sets(p, q, **options).sum(-1).mean()

    best = size(method="raps", **chosen)
    for penalty in (0.001, 0.1, 0.5):
        options = {"penalty": penalty, "k_reg": chosen["k_reg"]}
        assert best <= size(method="raps", **options)
    assert set(choose_penalty(p, y, 0.1, method="saps")) == {"penalty"}


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, "0.1", None, True])
def test_alpha_outside_its_range_is_refused(alpha):
    for call in (
        lambda: conformal_threshold(np.arange(30.0), alpha),
        lambda: ConformalClassifier(identity(), alpha=alpha),
    ):
        with pytest.raises(ValueError, match="`alpha` must be"):
            call()


def test_an_alpha_that_looks_like_a_coverage_warns():
    with pytest.warns(UserWarning, match=r"pass alpha=0\.1"):
        conformal_threshold(np.arange(30.0), 0.9)
    with pytest.warns(UserWarning, match=r"pass alpha=0\.05"):
        ConformalClassifier(identity(), alpha=0.95)


P = np.full((4, 2), 0.5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: conformal_scores(P, [0, 1, 2, 0]), "labels"),
        (lambda: conformal_scores(P, [0, 1]), "labels"),
        (lambda: conformal_scores(P, P), "labels"),
        (lambda: conformal_scores(P, [0, 1, -1, 0]), "labels"),
        (lambda: conformal_scores(P, [0, 0.5, 1, 0]), "labels"),
        (lambda: conformal_scores(3 * P, [0] * 4), "probabilities"),
        (lambda: conformal_scores(P * math.nan, [0] * 4), "probabilities"),
        (lambda: conformal_scores(P - 1, [0] * 4), "probabilities"),
        (lambda: conformal_scores(P[:0], []), "probabilities"),
        (lambda: conformal_scores(P, [0] * 4, method="tps"), "method"),
        (lambda: conformal_scores(P, [0] * 4, penalty=0.1), "penalty"),
        (lambda: conformal_scores(P, [0] * 4, method="saps", penalty=-1), "penalty"),
        (lambda: conformal_scores(P, [0] * 4, method="saps", k_reg=1), "k_reg"),
        (lambda: conformal_scores(P, [0] * 4, method="raps", k_reg=1.5), "k_reg"),
        (lambda: conformal_scores(P, [0] * 4, seed=1), "seed"),
        (lambda: conformal_sets(P, math.nan), "threshold"),
        (lambda: conformal_sets(P, np.zeros(3)), "threshold"),
        (lambda: conformal_threshold([], 0.1), "scores"),
        (lambda: conformal_threshold([math.nan], 0.1), "scores"),
        (lambda: conformal_threshold([1, 2], 0.5, sample_weight=[1]), "sample_weight"),
        (
            lambda: conformal_threshold([1, 2], 0.5, sample_weight=[1, -1]),
            "sample_weight",
        ),
        (lambda: conformal_threshold([1, 2], 0.5, groups=[1]), "groups"),
        (lambda: conformal_threshold(["a", "b"], 0.5), "scores"),
        (lambda: conformal_threshold([1, 2], 0.5, categories=[-1, 0]), "categories"),
        (lambda: choose_penalty(P, [0] * 4, 0.5, method="aps"), "method"),
        (lambda: ConformalClassifier("resnet"), "model"),
        (lambda: ConformalClassifier(identity(), calibrator="ts"), "calibrator"),
        (lambda: ConformalClassifier(identity(), penalty="auto"), "penalty"),
        (lambda: ConformalClassifier(identity(), method="tps"), "method"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        call()


MASKED = np.ma.masked_equal([0, 1, 1, 0], 0)
ONES = np.ones(4)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: conformal_threshold(MASKED, 0.5), "scores"),
        (lambda: conformal_threshold(ONES, 0.5, sample_weight=MASKED), "sample_weight"),
        (lambda: conformal_threshold(ONES, 0.5, groups=MASKED), "groups"),
        (lambda: conformal_threshold(ONES, 0.5, categories=MASKED), "categories"),
        (lambda: conformal_scores(P, MASKED), "labels"),
        (lambda: conformal_scores(np.ma.array(P), [0] * 4), "probabilities"),
        (lambda: conformal_sets(np.ma.array(P), 0.5), "probabilities"),
        (lambda: conformal_sets(P, MASKED), "threshold"),
        (lambda: evaluate_sets(MASKED, P > 0.5), "labels"),
        (lambda: evaluate_sets([0] * 4, np.ma.array(P) > 0.5), "sets"),
        (lambda: control_risk(MASKED[:, None], [0.5], 0.5), "losses"),
        (lambda: control_risk(ONES[None], MASKED, 0.5), "thresholds"),
        (lambda: control_risk(ONES[:, None], [0.5], 0.5, groups=MASKED), "groups"),
        (lambda: multi_label_losses(MASKED[None], P[:1], [0.5]), "y_true"),
        (lambda: answer_losses(MASKED, [0] * 4), "y_true"),
        (lambda: select_threshold(ONES, ONES, coverage=1, groups=MASKED), "groups"),
    ],
)
def test_masked_arrays_are_refused(call, named):
    with pytest.raises(ValueError, match=f"`{named}` must be an array without a mask"):
        call()
