"""The state of streaming metrics: large counts, large batches, many cells."""

import keras
import numpy as np
import pytest
from backends import numpy
from keras import ops
from streaming import BATCH, K, data, make, softmax, value

from keras_selcal import csf
from keras_selcal import metrics as M  # noqa: N812
from keras_selcal._formulas.ranking import Ranking


@pytest.mark.parametrize("name", ["ece", "aurc", "brier"])
def test_counts_stay_exact_beyond_float32(name):
    """Compiled too: a compiler that simplified the sums would lose what they keep."""
    y, z = data(BATCH)
    metric = make(name, from_logits=True)
    metric.update_state(y, z, np.full(BATCH, 2.0**25, "float32"))
    # As if nearly 2²⁴, where a float32 stops counting, had been rounded off one by one.
    sums = numpy(metric.variables[0]).copy()
    sums[1] += np.where(sums[0] > 0, 2.0**24 - BATCH, 0)
    before = sums.astype("float64").sum(0)
    metric.variables[0].assign(sums)
    update_compiled(metric, y, z, times=30)
    once = make(name, from_logits=True)
    once.update_state(y, z)
    added = numpy(once.variables[0]).astype("float64").sum(0)
    after = numpy(metric.variables[0]).astype("float64").sum(0)
    np.testing.assert_array_equal(after[..., 0], (before + 30 * added)[..., 0])
    np.testing.assert_allclose(after, before + 30 * added, rtol=1e-8, atol=1)


def update_compiled(metric, y, z, times):
    """Updates a metric in a compiled step, as training does."""
    backend = keras.backend.backend()
    y, z = ops.convert_to_tensor(y), ops.convert_to_tensor(z)
    if backend == "jax":
        import jax

        update = jax.jit(metric.stateless_update_state)
        for _ in range(times):
            state = update([v.value for v in metric.variables], y, z)
            for variable, new in zip(metric.variables, state, strict=True):
                variable.assign(new)
        return
    update = metric.update_state
    if backend == "tensorflow":
        import tensorflow as tf

        update = tf.function(update, jit_compile=True)
    for _ in range(times):
        update(y, z)


def test_rankings_of_a_hundred_million():
    """Sums of so many in float32 depend on their order: no group may end beyond n."""
    metric = make("aurc")
    cells = metric.size
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mass = np.floor(1e8 * rng.dirichlet(np.full(cells, 0.3)))
        loss = np.floor(mass * np.linspace(0.8, 0.05, cells))
        exact = Ranking(mass, loss, np)
        single = Ranking(mass.astype("float32"), loss.astype("float32"), np)
        assert single.aurc() == pytest.approx(exact.aurc(), rel=1e-4), seed
        assert single.risk_at(0.5) == pytest.approx(exact.risk_at(0.5), rel=1e-3), seed
    histogram = np.stack([mass, loss, mass], -1)
    first = histogram.astype("float32")
    metric.variables[0].assign(np.stack([first, histogram - first])[:, None])
    assert value(metric) == pytest.approx(exact.aurc(), rel=1e-3)


def test_cells_of_many_classes_stay_few():
    for k in (10, 1000, 21_841, 150_000):
        metric = M.ClasswiseCalibrationError(binning="adaptive")
        metric.add_sums = lambda name, shape: None
        metric.create_state(k)
        # At least two for each of the 15 bins.
        assert metric.size in (2**12, 30) or 2**19 < k * metric.size <= 2**20, k
    with pytest.raises(ValueError, match="num_cells"):
        M.ClasswiseCalibrationError(
            num_classes=150_000, binning="adaptive", num_cells=2**14
        )


def test_log_odds_keep_saturated_scores_apart():
    # In float32, all of these have p = 1: the surest are wrong.
    gaps = np.linspace(20, 80, BATCH).astype("float32")
    z = gaps[:, None] * np.eye(K, dtype="float32")[0]
    y = (np.arange(BATCH) >= BATCH - 5) * 1
    metric = M.AURC(from_logits=True)
    metric.update_state(y, z)
    expected = np.mean(np.cumsum(y[::-1]) / np.arange(1, BATCH + 1))
    assert value(metric) == pytest.approx(expected, abs=1e-6)
    # Equal probabilities tie, as scores do.
    metric = M.AURC()
    metric.update_state(y, softmax(z).astype("float32").round(6))
    assert value(metric) == pytest.approx(5 / BATCH, abs=1e-6)


def test_a_risk_that_equals_its_bound_is_held():
    """Sums of tenths are rounded in float32: exactly, they are just above or below."""
    y = np.array([0, 0, 1, 0])
    p = np.linspace(0.95, 0.75, 4)
    p = np.stack([p, 1 - p], -1).astype("float32")
    w = np.array([0.1, 0.2, 0.3, 0.4])
    metric = M.CoverageAtRisk(0.3)
    metric.update_state(y, p, w)
    assert value(metric) == 1.0


def test_infinite_scores_are_the_surest():
    def odds(p):
        top = ops.max(p, axis=-1)
        return top / (1.0 - top)

    y = np.array([0, 0, 1, 0])
    p = np.array([[1.0, 0.0], [0.9, 0.1], [0.6, 0.4], [0.7, 0.3]], "float32")
    for support in (None, (0, 1)):
        score = csf.ConfidenceScore(odds, support)
        metric = M.AURC(csf=score)
        metric.update_state(y, p)
        assert value(metric) == pytest.approx(1 / 16, abs=1e-6)
