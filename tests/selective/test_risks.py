"""Thresholds that hold the mean of any loss among accepted answers, and several."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from keras_selcal import SelectiveClassifier, TemperatureScaling
from keras_selcal.selective import answer_losses, select_threshold
from keras_selcal.selective.bounds import (
    binomial_tail,
    choose_starts,
    critical_errors,
    fewest_samples,
)
from keras_selcal.selective.cuts import Cuts

pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.filterwarnings("ignore:`risk=.*without `delta`"),
]


def draw(rng, n, k=3):
    """Class c is wrong with probability (c + 1)(1 − s)/6 at the score s."""
    y, s = rng.integers(0, k, n), rng.random(n)
    wrong = rng.random(n) < (y + 1) * (1 - s) / 6
    return s, y, np.where(wrong, (y + 1) % k, y)


def test_answer_losses():
    y, answers = np.array([0, 1, 2, 2]), np.array([0, 2, 2, 0])
    np.testing.assert_array_equal(answer_losses(y, answers), [0, 1, 0, 1])
    costs = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]])
    losses = answer_losses(y, answers, costs=costs)
    np.testing.assert_allclose(losses, [0, 4 / 6, 0, 5 / 6])
    nan = math.nan
    np.testing.assert_array_equal(
        answer_losses(y, answers, per="class"),
        [[0, nan, nan], [nan, 1, nan], [nan, nan, 0], [nan, nan, 1]],
    )
    np.testing.assert_array_equal(
        answer_losses(y, answers, per="answer"),
        [[0, nan, nan], [nan, nan, 1], [nan, nan, 0], [1, nan, nan]],
    )


def test_binary_losses_are_errors(rng):
    s, y, answers = draw(rng, 800)
    losses = answer_losses(y, answers)
    for target in ({"coverage": 0.5}, {"risk": 0.1}, {"risk": 0.1, "delta": 0.1}):
        expected = select_threshold(s, y == answers, **target)
        assert select_threshold(s, losses=losses, binary=True, **target) == expected


def test_several_risks_on_the_samples_themselves(rng):
    s, y, answers = draw(rng, 400)
    losses = answer_losses(y, answers, per="class")
    t = select_threshold(s, losses=losses, risk=[0.05, 0.1, 0.1])
    for candidate in np.unique(s):
        accepted = losses[s >= candidate]
        counts = (~np.isnan(accepted)).sum(axis=0)
        means = np.nansum(accepted, axis=0) / np.maximum(counts, 1)
        if candidate == t:
            assert (means <= [0.05, 0.1, 0.1]).all()
        elif candidate < t:
            assert not (means <= [0.05, 0.1, 0.1]).all()


def exceeding(draws, losses_of, risk, true_risk, **options):
    """How often the largest true risk exceeds the target, and the mean coverage."""
    rng = np.random.default_rng(0)
    exceeded, coverages = 0, []
    for _ in range(draws):
        s, y, answers = draw(rng, 3000)
        losses = losses_of(y, answers)
        try:
            t = select_threshold(s, losses=losses, risk=risk, delta=0.1, **options)
        except ValueError:
            t = 1.0
        exceeded += true_risk(1 - t) > risk
        coverages.append(1 - t)
    assert exceeded <= binom.ppf(0.999, draws, 0.1)
    return np.mean(coverages)


def test_the_error_of_every_class_holds_by_simulation():
    """The risk of class c at coverage κ is (c + 1) κ/12, the largest is κ/4."""
    coverage = exceeding(
        150,
        lambda y, answers: answer_losses(y, answers, per="class"),
        0.1,
        lambda kappa: kappa / 4,
        binary=True,
    )
    assert coverage > 0.2  # of 0.4


def test_costs_hold_by_simulation():
    """Errors cost c + 1 of 3 for class c: the mean is 14 κ/12/9 at coverage κ."""
    costs = np.array([[0, 1, 1], [2, 0, 2], [3, 3, 0]])
    coverage = exceeding(
        100,
        lambda y, answers: answer_losses(y, answers, costs=costs),
        0.05,
        lambda kappa: 14 * kappa / 108,
    )
    assert coverage > 0.2  # of 0.386


def test_groups_of_losses(rng):
    s, y, answers = draw(rng, 900)
    losses = answer_losses(y, answers, per="class")
    groups = np.arange(900) // 3
    grouped = select_threshold(s, losses=losses, risk=0.3, delta=0.1, groups=groups)
    accepted = losses[s >= grouped]
    assert (np.nanmean(accepted, axis=0) < 0.3).all()
    # A threshold for each risk alone is at most as strict.
    for column in losses.T:
        alone = select_threshold(s, losses=column, risk=0.3, delta=0.1, groups=groups)
        assert alone <= grouped


def test_what_cannot_be_held_names_the_risk(rng):
    s = rng.random(600)
    losses = np.stack([np.zeros(600), rng.random(600) < 0.5], axis=-1)
    with pytest.raises(ValueError, match=r"Risk 1: .* probably not help"):
        select_threshold(s, losses=losses, risk=[0.1, 0.2], delta=0.1, binary=True)
    with pytest.raises(ValueError, match=r"at most 0.1, 0.2 on these .* 0, 1"):
        select_threshold(s, losses=np.ones((600, 2)) * [0, 1.0], risk=[0.1, 0.2])
    # The one risk needs high scores, the other one low scores.
    low, high = s < 0.5, s >= 0.5
    losses = np.stack([low, high], axis=-1) * 1.0
    with pytest.raises(ValueError, match=r"Risk 1|guaranteed alone"):
        select_threshold(s, losses=losses, risk=[0.3, 0.3], delta=0.1, binary=True)


S = np.arange(4.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: select_threshold(S, coverage=0.5), "correct"),
        (lambda: select_threshold(S, S > 1, losses=S, coverage=0.5), "correct"),
        (lambda: select_threshold(S, losses=S, coverage=0.5), "losses"),
        (lambda: select_threshold(S, losses=S * math.nan, coverage=0.5), "losses"),
        (lambda: select_threshold(S, losses=S[:3] / 4, coverage=0.5), "losses"),
        (
            lambda: select_threshold(S, losses=S / 4, binary=True, coverage=0.5),
            "binary",
        ),
        (
            lambda: select_threshold(S, losses=S / 4, risk=[0.1, 0.2], delta=0.1),
            "risk",
        ),
        (
            lambda: select_threshold(S, S > 1, error_probability=S, coverage=0.5),
            "error_probability",
        ),
        (
            lambda: select_threshold(
                S, losses=S / 4, error_probability=S / 4, coverage=0.5
            ),
            "error_probability",
        ),
        (lambda: answer_losses([0, 1], [0]), "labels"),
        (lambda: answer_losses([0, 1.5], [0, 1]), "y_true"),
        (lambda: answer_losses([0, 2], [0, 1], costs=np.eye(2)), "y_true"),
        (lambda: answer_losses([0, 1], [0, 1], costs=[1, 2]), "costs"),
        (lambda: answer_losses([0, 1], [0, 1], costs=-np.eye(2)), "costs"),
        (lambda: answer_losses([0, 1], [0, 1], per="label"), "per"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        call()


# Predicted errors


def test_critical_errors_are_quantiles():
    cases = [(1, 0.5, 0.1), (200, 0.02, 0.1), (999, 0.3, 0.01)]
    for n, r, level in [*cases, (100_000, 0.2, 1e-6), (5000, 0.1, 0.9)]:
        e = critical_errors(n, r, level)
        assert e == -1 or binom.cdf(e, n, r) <= level
        assert binom.cdf(e + 1, n, r) > level
        if e >= 0:
            assert binomial_tail(e, n, r) == pytest.approx(binom.cdf(e, n, r))


def test_shares_of_the_starts_sum_to_delta():
    accepted = np.arange(1.0, 2001)
    for n, r in ((30, 0.05), (2000, 0.02), (2000, 0.3)):
        for predicted in ((), (accepted, 0.5 * r * accepted)):
            starts, shares = choose_starts(n, r, 0.1, *predicted)
            assert shares.sum() == pytest.approx(0.1)
            assert len(starts) == len(shares)


@pytest.mark.parametrize("predicted", [None, "right", "too few", "wrong"])
@pytest.mark.parametrize(
    ("error", "risk", "levels"),
    [
        (lambda s: 0.06 + 0.05 * np.sin(40 * s) + 0.1 * (1 - s), 0.08, 0),
        (lambda s: 0.03 + 0.3 * (s > 0.97) + 0.2 * (1 - s) ** 1.5, 0.08, 0),
        (lambda s: 0.0801 + 0 * s, 0.08, 0),
        (lambda s: 0.5 * (1 - s) ** 1.5, 0.08, 20),
        (lambda s: 0.1 + 0.08 * np.sin(40 * s), 0.1, 7),
    ],
    ids=["waves", "wrong at the top", "just above", "tied", "tied waves"],
)
def test_the_guarantee_holds_by_simulation(error, risk, levels, predicted):
    """Risks that are not monotone, just above the target, and of tied scores.

    A valid method exceeds the binomial tolerance once in a thousand times at most.
    """
    rng = np.random.default_rng(0)
    draws, found, exceeded = 200, 0, 0
    grid = np.linspace(1, 0, 2001)[:-1]
    true = np.cumsum(error(grid)) / np.arange(1, 2001)
    for _ in range(draws):
        s = rng.random(1000)
        e = error(s)
        right = rng.random(1000) >= e
        p = {
            None: None,
            "right": e,
            "too few": e / 8,
            "wrong": rng.random(1000) ** 3,
        }[predicted]
        if levels:
            s = np.ceil(s * levels) / levels
        cuts = Cuts.of(s, right, error_probability=p)
        cut = cuts.search(risk, 0.1)
        if cut >= 0:
            found += 1
            # All that is rounded up to the threshold is accepted.
            t = cuts.thresholds[cut] - (1 / levels if levels else 0)
            exceeded += np.interp(-t, -grid, true) > risk
    assert found
    assert exceeded <= binom.ppf(0.999, draws, 0.1)


def test_predicted_errors_find_more_thresholds():
    """Even if there are eight times as many; the best fixed start finds 75 %."""
    rng = np.random.default_rng(0)
    draws, found = 60, {None: 0, 1: 0, 8: 0}
    for _ in range(draws):
        s = rng.random(2000)
        error = 0.5 * (1 - s) ** 1.5
        right = rng.random(2000) >= error
        for factor in found:
            p = None if factor is None else error / factor
            cuts = Cuts.of(s, right, error_probability=p)
            found[factor] += cuts.search(0.02, 0.1) >= 0
    assert found[1] > 0.5 * draws
    assert found[8] > 0.4 * draws
    assert found[None] < found[8]


def test_hopeless_predictions_are_not_used():
    accepted = np.arange(1.0, 2001)
    plain, _ = choose_starts(2000, 0.05, 0.1)
    for predicted, same in ((0.2, True), (0.01, False)):
        starts, _ = choose_starts(2000, 0.05, 0.1, accepted, predicted * accepted)
        assert np.array_equal(starts, plain) == same


def test_starts_are_the_fewest_samples_for_their_errors():
    for errors, r, level in ((0, 0.05, 0.1), (1, 0.02, 0.03), (40, 0.2, 0.05)):
        m = fewest_samples(errors, r, level)
        assert binom.cdf(errors, m, r) <= level < binom.cdf(errors, m - 1, r)


@pytest.mark.parametrize("calibrated", [True, False])
def test_classifiers_predict_their_errors(calibrated):
    """Their probabilities tell where the search starts."""
    keras = pytest.importorskip("keras")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4000)
    x = (3 * np.eye(3)[y] + rng.normal(size=(4000, 3))).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(1.5)])
    calibrator = TemperatureScaling().fit(1.5 * x[:2000], y[:2000])
    classifier = SelectiveClassifier(model, calibrator=calibrator)
    if not calibrated:
        classifier = SelectiveClassifier(model, from_logits=True)
    classifier.fit(x[2000:], y[2000:], risk=0.02, delta=0.1, verbose=0)
    z = 1.5 * x[2000:] / (calibrator.temperature if calibrated else 1)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    right = p.argmax(-1) == y[2000:]
    expected = select_threshold(
        p.max(-1), right, risk=0.02, delta=0.1, error_probability=1 - p.max(-1)
    )
    assert classifier.threshold == pytest.approx(expected, abs=1e-5)


def test_the_plot_of_risk_against_threshold_shows_the_selected_one(rng):
    pytest.importorskip("matplotlib")
    from keras_selcal.plots import threshold_risk

    s, y, answers = draw(rng, 900)
    ax = threshold_risk(s, y == answers, risk=0.1, delta=0.1)
    t = select_threshold(s, y == answers, risk=0.1, delta=0.1)
    assert ax.lines[-1].get_xdata()[0] == t
    at, share = ax.lines[0].get_data()
    for i in (5, len(at) - 1):
        assert share[i] == pytest.approx((y != answers)[s >= at[i]].mean())
    ax.figure.clear()
    ax = threshold_risk(s, y != y, risk=0.1)
    assert ax.get_title() == "no threshold can be guaranteed"
    ax.figure.clear()


def test_samples_that_do_not_count_in_a_risk_are_not_in_its_mean_and_bound(rng):
    s, y, answers = draw(rng, 400)
    losses = answer_losses(y, answers, per="answer")[:, 0]
    kept = ~np.isnan(losses)
    options = {"losses": losses, "binary": True}
    cuts = Cuts.of(s, None, **options)
    alone = Cuts.of(s[kept], None, losses=losses[kept], binary=True)
    at = float(np.quantile(s, 0.4))
    first = np.flatnonzero(kept[np.argsort(-s)])[0]
    assert np.isnan(cuts.risk[:first]).all()
    assert cuts.risk[-1] == pytest.approx(losses[kept].mean())
    assert cuts.bound(at, 0.1) == alone.bound(at, 0.1)
    assert cuts.excess_p_value(at, 0.01, 0.1) == alone.excess_p_value(at, 0.01, 0.1)
    groups = np.arange(400) // 4
    grouped = Cuts.of(s, None, groups=groups, **options)
    few = Cuts.of(s[kept], None, None, groups[kept], losses=losses[kept], binary=True)
    assert 0 < grouped.bound(at, 0.1) < 1
    assert 0 < grouped.excess_p_value(at, 0.01, 0.1) <= 1
    assert few.risk[-1] == pytest.approx(grouped.risk[-1])
