"""Blocks of cells give what a walk through every cell gives."""

import numpy as np
import pytest
from backends import numpy, one_off
from keras import ops

from keras_selcal import metrics
from keras_selcal._backend.histogram import Histogram
from keras_selcal._backend.host import array_module
from keras_selcal._formulas.binning import run_cuts, run_sums
from keras_selcal._formulas.ranking import Ranking

GROUPS, CELLS = 3, 1000
RISKS = (0.0, 0.05, 0.2, 0.5, 2.0)
COVERAGES = (0.001, 0.3, 0.8, 1.0)


def _counts(rng, kind):
    """Returns mass and loss of the cells of three groups, (groups, cells)."""
    mass = rng.integers(0, 4, (GROUPS, CELLS)).astype(float)
    rate = np.linspace(0.5, 0.0, CELLS)
    if kind == "sparse":
        mass *= rng.random(mass.shape) < 0.02
    elif kind == "one block":
        mass[:, :700] = mass[:, 720:] = 0.0
    elif kind == "one cell":
        mass *= np.arange(CELLS) == 0
    elif kind == "risk near r":
        # The risk rises above 0.2 and falls below it again and again.
        rate = 0.2 + 0.2 * np.sin(np.arange(CELLS) / 9)
    elif kind == "empty":
        mass[1] = 0.0
    loss = rng.binomial(mass.astype(int), rate).astype(float)
    if kind == "weights":
        scale = rng.random(mass.shape)
        mass, loss = mass * scale, loss * scale
    return mass, loss


def _results(sums, present):
    up, down = Histogram(sums, present), Histogram(sums, present, descending=True)
    xp = array_module(sums)
    wanted = xp.stack([kappa * down.n for kappa in COVERAGES], axis=-1)
    cuts = run_cuts(up.n[:, None], 15, xp)
    coverages = [down.coverage_at(r) for r in RISKS]
    return down.upto(wanted), xp.stack(coverages, axis=-1), up.upto(cuts)


_compiled = one_off(_results)


def _found(mass, loss, present=None):
    present = mass.sum(-1) if present is None else present
    rng = np.random.default_rng(0)
    sums = np.stack([mass, loss], axis=-1)
    # Some of each sum is in the second float.
    second = sums * rng.integers(0, 2, sums.shape)
    sums = np.stack([sums - second, second]).astype("float32")
    present = present.astype("float32")
    found = _compiled(ops.convert_to_tensor(sums), ops.convert_to_tensor(present))
    with np.errstate(all="ignore"):
        of_arrays = _results(sums, present)
    for ours, theirs in zip(found, of_arrays, strict=True):
        np.testing.assert_allclose(numpy(ours), theirs, rtol=1e-5, atol=1e-3)
    return of_arrays


@pytest.mark.parametrize(
    "kind",
    ["dense", "sparse", "one block", "one cell", "risk near r", "empty", "weights"],
)
def test_blocks_equal_a_walk_through_all_cells(kind):
    mass, loss = _counts(np.random.default_rng(1), kind)
    accepted, coverages, gaps = _found(mass, loss)
    ranking = Ranking(mass, loss, np)
    n = mass.sum(-1)
    for found, kappa in zip(accepted.T, COVERAGES, strict=True):
        expected = ranking.risk_at(kappa) * np.maximum(kappa * n, 1e-37)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    for found, risk in zip(coverages.T, RISKS, strict=True):
        np.testing.assert_allclose(found, ranking.coverage_at(risk), rtol=1e-5)
    position, height = np.cumsum(mass), np.cumsum(loss)
    expected, _ = run_sums(position, height, n, 15)
    np.testing.assert_allclose(np.diff(gaps), expected, rtol=1e-4, atol=1e-3)


def test_weights_below_one_are_scaled_up():
    mass, loss = _counts(np.random.default_rng(2), "dense")
    expected = _found(mass, loss)
    found = _found(mass / 4, loss / 4, mass.sum(-1))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_nan_in_any_cell_is_seen():
    mass, loss = _counts(np.random.default_rng(3), "dense")
    expected = _found(mass, loss)
    mass[1, 3] = loss[1, 3] = np.nan
    for a, b in zip(_found(mass, loss), expected, strict=True):
        assert np.isnan(a[1, -1])
        np.testing.assert_array_equal(a[::2], b[::2])


def test_coverage_without_a_loop_is_the_same():
    mass, loss = _counts(np.random.default_rng(4), "risk near r")
    metric = metrics.CoverageAtRisk(0.2, num_cells=CELLS)
    sums = np.zeros((2, 1, CELLS, 2), "float32")
    sums[0, 0] = np.stack([mass[0], loss[0]], axis=-1)
    metric._histogram.assign(sums)
    whole = numpy(metric.of_ranking(metric.ranking()))
    np.testing.assert_array_equal(numpy(metric.compute()[0]), whole)
