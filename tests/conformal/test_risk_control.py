"""Thresholds that hold a bounded risk."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from keras_selcal.conformal import control_risk, multi_label_losses

pytestmark = pytest.mark.backend_free

THRESHOLDS = np.linspace(0.0, 1.0, 41)


def reference_p_value(losses, r, delta, binary):
    """The exact tail by SciPy, or the largest capital of a gambler in a plain loop."""
    if binary:
        return binom.cdf(losses.sum(), len(losses), r)
    capital, best, squares, seen = 1.0, 1.0, 0.0, 0.0
    for i, loss in enumerate(losses - r):
        stake = 0.0
        if seen > 0:
            variance = (seen**2 + squares) / (i + 1)
            stake = math.sqrt(2 * math.log(1 / delta) / len(losses) / variance)
            stake = min(stake, 0.9 / (1 - r))
        capital *= 1 - stake * loss
        squares, seen = squares + loss**2, max(seen, abs(loss))
        best = max(best, capital)
    return 1 / best


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(20, 200),
    r=st.floats(0.02, 0.6),
    delta=st.sampled_from([None, 0.05, 0.3]),
    binary=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_control_risk_is_the_definition(n, r, delta, binary, seed):
    rng = np.random.default_rng(seed)
    losses = (rng.random((n, 1)) < THRESHOLDS**2).astype(float)
    if not binary:
        losses *= rng.random((n, 1))
    means = losses.mean(axis=0)
    if delta is None:
        passes = (n * means + 1) / (n + 1) <= r + 1e-12
    else:
        shuffled = np.random.default_rng(0).permutation(losses)
        p = [reference_p_value(column, r, delta, binary) for column in shuffled.T]
        passes = np.array(p) <= delta * (1 + 1e-12)
    failed = np.flatnonzero(~passes)
    best = (failed[0] if len(failed) else len(THRESHOLDS)) - 1
    if best < 0:
        with pytest.raises(ValueError, match="No threshold has a risk"):
            control_risk(losses, THRESHOLDS, r, delta=delta, binary=binary)
    else:
        ours = control_risk(losses, THRESHOLDS, r, delta=delta, binary=binary)
        assert ours == THRESHOLDS[best]


def test_the_expectation_holds_by_simulation():
    """Losses 1{score < t} u have the risk t²/2 at t."""
    rng = np.random.default_rng(0)
    draws, n, r = 1500, 60, 0.15
    found = []
    for _ in range(draws):
        score, size = np.sqrt(rng.random((n, 1))), rng.random((n, 1))
        losses = np.where(score < THRESHOLDS, size, 0.0)
        found.append(control_risk(losses, THRESHOLDS, r))
    true = np.array(found) ** 2 / 2
    assert true.mean() <= r + 4 * true.std() / math.sqrt(draws)
    assert true.mean() > 0.8 * r  # or it would give too much away


@pytest.mark.parametrize("binary", [False, True])
def test_the_probability_holds_by_simulation_for_risks_that_are_not_monotone(binary):
    rng = np.random.default_rng(0)
    draws, n, r, delta = 800, 150, 0.2, 0.1
    t = np.linspace(0, 1, 30)
    risk = 0.1 + 0.15 * t + 0.05 * np.sin(12 * t)
    exceeded, bold = 0, []
    for _ in range(draws):
        u = rng.random((n, 1))
        losses = (u < risk).astype(float)
        if not binary:
            losses = np.clip(risk + 0.3 * (u - 0.5), 0, 1)
        try:
            chosen = control_risk(losses, t, r, delta=delta, binary=binary)
        except ValueError:
            continue
        index = int(np.flatnonzero(t == chosen)[0])
        exceeded += risk[index] > r
        bold.append(chosen)
    assert exceeded <= binom.ppf(0.999, draws, delta)
    assert len(bold) > draws / 4


def test_several_risks_hold_at_once():
    rng = np.random.default_rng(0)
    u = rng.random((400, 1, 2))
    losses = (u < np.stack([THRESHOLDS, THRESHOLDS**2], -1)).astype(float)
    for options in ({}, {"delta": 0.1, "binary": True}):
        both = control_risk(losses, THRESHOLDS, [0.3, 0.05], **options)
        single = [
            control_risk(losses[..., i], THRESHOLDS, r, **options)
            for i, r in enumerate((0.3, 0.05))
        ]
        assert both == min(single)


def test_groups_count_as_one_sample():
    rng = np.random.default_rng(0)
    losses = (rng.random((60, 1)) < THRESHOLDS).astype(float)
    copies = np.repeat(np.arange(60), rng.integers(1, 6, 60))
    for options in ({}, {"delta": 0.2}):
        alone = control_risk(losses, THRESHOLDS, 0.3, **options)
        grouped = control_risk(
            losses[copies], THRESHOLDS, 0.3, groups=copies, **options
        )
        assert grouped == alone


def test_binary_losses_have_a_more_powerful_test():
    rng = np.random.default_rng(1)
    found = {True: [], False: []}
    for _ in range(20):
        losses = (rng.random((300, 1)) < THRESHOLDS).astype(float)
        for binary, results in found.items():
            t = control_risk(losses, THRESHOLDS, 0.3, delta=0.1, binary=binary)
            results.append(t)
    assert np.mean(found[True]) > np.mean(found[False])


def test_samples_that_do_not_count_are_nan():
    """One column for each of three classes holds the risk of each class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    scores = rng.random((600, 1)) * np.array([1.0, 0.9, 0.7])[y][:, None]
    wrong = (scores < THRESHOLDS / 2).astype(float)
    columns = np.where((y[:, None] == np.arange(3))[:, None], wrong[..., None], np.nan)
    for options in ({}, {"delta": 0.1, "binary": True}, {"delta": 0.1}):
        alone = [
            control_risk(wrong[y == c], THRESHOLDS, 0.2, **options) for c in range(3)
        ]
        every = control_risk(columns, THRESHOLDS, 0.2, **options)
        # Bets depend on the order of the samples, and may lose a step by it.
        assert abs(every - min(alone)) <= (0.025 if options == {"delta": 0.1} else 0)
        grouped = control_risk(
            columns, THRESHOLDS, 0.2, groups=np.arange(600), **options
        )
        assert abs(grouped - every) <= 0.05
    changing = columns.copy()
    changing[0, 5:] = np.nan
    with pytest.raises(ValueError, match="at all thresholds or at none"):
        control_risk(changing, THRESHOLDS, 0.2)


def test_what_cannot_be_held_says_what_can():
    losses = np.full((9, 2), 0.0)
    with pytest.raises(ValueError, match=r"guarantee is 0\.1\. About 19 samples"):
        control_risk(losses, [0, 1], 0.05)
    assert control_risk(np.zeros((19, 2)), [0, 1], 0.05) == 1
    with pytest.raises(ValueError, match="More samples would probably not help"):
        control_risk(np.full((99, 1), 0.5), [0], 0.2)
    # Without errors (1 − r)^n ≤ δ: 29 samples for r = 0.1 and δ = 0.05.
    zeros = np.zeros((28, 1))
    with pytest.raises(ValueError, match="About 29 samples"):
        control_risk(zeros, [0], 0.1, delta=0.05, binary=True)
    assert control_risk(np.zeros((29, 1)), [0], 0.1, delta=0.05, binary=True) == 0
    with pytest.raises(ValueError, match="More samples would probably not help"):
        control_risk(np.full((99, 1), 0.5), [0], 0.2, delta=0.1)


def test_losses_that_fall_need_delta():
    losses = np.tile([0.0, 0.2, 0.1], (500, 1))
    with pytest.raises(ValueError, match=r"must never fall.* 500 of 500 samples"):
        control_risk(losses, [0, 1, 2], 0.3)
    assert control_risk(losses, [0, 1, 2], 0.3, delta=0.1) == 2


L = np.zeros((5, 2))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: control_risk(L + 2, [0, 1], 0.1), "losses"),
        (lambda: control_risk(L * math.nan, [0, 1], 0.1), "losses"),
        (lambda: control_risk(L - 1, [0, 1], 0.1), "losses"),
        (lambda: control_risk(L, [0, 1, 2], 0.1), "losses"),
        (lambda: control_risk(L[:0], [0, 1], 0.1), "losses"),
        (lambda: control_risk(L, [0, 1], 0), "risk"),
        (lambda: control_risk(L, [0, 1], 1), "risk"),
        (lambda: control_risk(L, [0, 1], [0.1, 0.2]), "risk"),
        (lambda: control_risk(L, [0, 1], 0.1, delta=0), "delta"),
        (lambda: control_risk(L, [0, 1], 0.1, groups=[0, 1]), "groups"),
        (lambda: control_risk(L + 0.5, [0, 1], 0.1, binary=True), "binary"),
        (lambda: multi_label_losses(L, L[1:], [0.5]), "y_true"),
        (lambda: multi_label_losses(L + 0.5, L, [0.5]), "y_true"),
        (lambda: multi_label_losses(L, L + 2, [0.5]), "probabilities"),
        (lambda: multi_label_losses(L, L, [0.5], loss="recall"), "loss"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match=f"`{named}` must be"):
        call()


def test_a_delta_that_looks_like_a_confidence_warns():
    with pytest.warns(UserWarning, match=r"Did you mean 0\.05"):
        control_risk(np.zeros((99, 1)), [0], 0.1, delta=0.95)


def test_multi_label_losses_are_recall_and_precision():
    rng = np.random.default_rng(0)
    y, p = rng.random((30, 6)) < 0.3, rng.random((30, 6))
    missed = multi_label_losses(y, p, THRESHOLDS)
    wrong = multi_label_losses(y, p, THRESHOLDS, loss="false_discovery")
    assert (np.diff(missed, axis=1) >= 0).all()
    for i in range(30):
        for j, t in enumerate(THRESHOLDS):
            chosen = p[i] >= t
            hits = (chosen & y[i]).sum()
            recall = hits / y[i].sum() if y[i].any() else 1
            precision = hits / chosen.sum() if chosen.any() else 1
            assert missed[i, j] == pytest.approx(1 - recall)
            assert wrong[i, j] == pytest.approx(1 - precision)
