"""The risk of a labelled stream: bounds that hold at every time."""

import json
import math

import numpy as np
import pytest

from keras_selcal import RiskMonitor
from keras_selcal.selective.bounds import binomial_tail

pytestmark = pytest.mark.backend_free

STAKES = 2.0 ** np.arange(-8, 4)


def starts(n):
    every = [*range(8), *((4 + r) << o for o in range(1, 40) for r in range(4))]
    return [j for j in every if j < n]


def capital(losses, m):
    """K_t(m) as printed in the docstring, for the whole stream."""
    total = 0.0
    for i, j in enumerate(starts(len(losses)), 1):
        for stake in STAKES:
            factors = np.exp(stake * losses[j:]) / (1 + m * (np.exp(stake) - 1))
            total += np.prod(factors) / (i * (i + 1)) / len(STAKES)
    return total


@pytest.mark.parametrize("kind", ["errors", "costs"])
def test_the_formula(kind):
    rng = np.random.default_rng(0)
    losses = rng.random(60)
    if kind == "errors":
        losses = (losses < 0.4).astype(float)
    monitor = RiskMonitor(limit=0.2, delta=0.1)
    for t in range(1, 61):
        bound = monitor.update(losses[t - 1 : t])
        if bound and t % 10 == 0:
            assert capital(losses[:t], bound) == pytest.approx(10, rel=1e-8)
    reached = [t for t in range(1, 61) if capital(losses[:t], 0.2) >= 10]
    assert monitor.alarm_at == reached[0]
    assert monitor.mean == pytest.approx(losses.mean())
    assert f"alarm_at={monitor.alarm_at}" in repr(monitor)


def test_batches_and_restarts_do_not_matter(tmp_path):
    rng = np.random.default_rng(1)
    losses = np.r_[rng.random(700) < 0.02, rng.random(300) < 0.5] * rng.random(1000)
    whole = RiskMonitor(0.03)
    whole.update(losses)
    assert whole.alarm
    path = tmp_path / "monitor.json"
    for sizes in ([1] * 1000, [0, 999, 1], [300, 1, 699]):
        monitor, end = RiskMonitor(0.03), 0
        for size in sizes[:200]:
            monitor.update(losses[end : end + size])
            end += size
        monitor.save(path)
        monitor = RiskMonitor.load(path)
        monitor.update(losses[end:])
        again = tmp_path / "again.json"
        monitor.save(again)
        whole.save(path)
        assert again.read_text() == path.read_text()
        assert (monitor.alarm_at, monitor.bound) == (whole.alarm_at, whole.bound)
    state = json.loads(path.read_text())
    assert len(state["before"]) == len(starts(1000)) == 36


def test_bounds_are_sharp():
    """A bound for all times is near the exact one for one time."""
    for n, share in ((200, 0.1), (5000, 0.02), (100_000, 0.3)):
        errors = int(n * share)
        losses = np.random.default_rng(0).permutation(np.arange(n) < errors)
        bound = RiskMonitor(0.5).update(losses)
        # The exact lower bound of Clopper and Pearson, for comparison.
        low, high = 0.0, share
        for _ in range(60):
            middle = (low + high) / 2
            rare = 1 - binomial_tail(errors - 1, n, middle) <= 0.05
            low, high = (middle, high) if rare else (low, middle)
        assert share - 3.2 * (share - low) < bound < low


@pytest.mark.parametrize("limit", [0.05, 0.5])
@pytest.mark.parametrize("kind", ["steady", "drifting", "costs"])
def test_false_alarms(kind, limit):
    """Of 200 streams whose risk is never above the limit, at most a share δ alarm."""
    delta, n, streams = 0.2, 500, 200
    rng = np.random.default_rng(2)
    t = np.arange(n)
    risk = np.full(n, limit)
    if kind == "drifting":
        risk = limit * np.where(t % 200 < 100, 1.0, 0.2)
    alarms = 0
    for _ in range(streams):
        losses = rng.random(n) < risk
        if kind == "costs":
            losses = rng.beta(limit, 1 - limit, n)
        monitor = RiskMonitor(limit, delta)
        monitor.update(losses)
        alarms += monitor.alarm
    # More than this has a probability of 1e-6 at a rate of δ.
    assert alarms <= streams * delta + 5 * math.sqrt(streams * delta * (1 - delta))
    # The test is not silent, though it is for losses that vary little.
    assert alarms > 0 or kind == "costs"


def test_a_good_past_does_not_delay_the_alarm():
    rng = np.random.default_rng(3)
    delays = {}
    for past in (0, 5000):
        found = []
        for _ in range(15):
            monitor = RiskMonitor(0.05)
            monitor.update(rng.random(past) < 0.02)
            assert not monitor.alarm
            monitor.update(rng.random(4000) < 0.15)
            found.append(monitor.alarm_at - past)
        delays[past] = np.median(found)
    # The mean of the whole stream reaches 5 % after 1,500 samples.
    assert delays[0] < 120
    assert delays[5000] < 600


def test_extremes():
    monitor = RiskMonitor(0.1)
    assert (monitor.n, monitor.bound, monitor.alarm) == (0, 0.0, False)
    assert math.isnan(monitor.mean)
    assert monitor.update([]) == 0.0
    assert monitor.update(np.zeros(10_000)) == 0.0
    assert not monitor.alarm
    wrong = RiskMonitor(0.1)
    assert 0.9 < wrong.update(np.ones(10_000)) < 1
    assert wrong.alarm_at < 10
    million = RiskMonitor(0.1)
    assert 0.009 < million.update(np.arange(1_000_000) % 100 == 0) < 0.01
    assert len(million._before) < 100


@pytest.mark.parametrize("losses", [[0.5, 1.5], [-0.1], [np.nan], ["a"], [np.inf]])
def test_bad_losses_change_nothing(losses):
    monitor = RiskMonitor(0.1)
    monitor.update([0.0, 1.0])
    before = dict(vars(monitor))
    with pytest.raises(ValueError, match="losses"):
        monitor.update(losses)
    assert vars(monitor) == before


def test_bad_arguments_and_files(tmp_path):
    for limit in (0, 1, -1, np.nan, "x", None):
        with pytest.raises(ValueError, match="limit"):
            RiskMonitor(limit)
    with pytest.raises(ValueError, match="delta"):
        RiskMonitor(0.1, delta=0)
    path = tmp_path / "monitor.json"
    monitor = RiskMonitor(0.1)
    monitor.update(np.ones(20))
    monitor.save(path)
    good = json.loads(path.read_text())
    for change in (
        {"version": 2},
        {"n": 10},
        {"n": -1},
        {"total": 99},
        {"before": [1.0]},
        {"before": good["before"][::-1]},
        {"limit": 2},
        {"alarm_at": "x"},
        {"alarm_at": 21},
        {"more": 1},
        {"format": "keras_selcal.Policy"},
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(ValueError, match="`path` must be"):
            RiskMonitor.load(path)
