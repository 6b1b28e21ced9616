"""Calibrators: each fit is the minimum that its formula asks for."""

import itertools
import math

import numpy as np
import pytest
from backends import numpy
from calibrator_data import ALL, as_tensor, draw, ece
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from reference import log_softmax, softmax
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression

from keras_selcal.calibrators import (
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MetaAcc,
    MetaMis,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from keras_selcal.calibrators._one_vs_rest import count_below, stack_edges
from keras_selcal.calibrators.temperature_scaling import TEMPERATURE_GRID


def nll(z, y, temperature=1.0):
    return -log_softmax(z / temperature)[np.arange(len(y)), y].mean()


# Temperature scaling
@pytest.mark.backend_free
@pytest.mark.parametrize("factor", [0.01, 0.3, 1.0, 7.0, 100.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nll_temperature_is_the_minimum(factor, dtype):
    z, y = draw(n=2000, k=7)
    z = (z * factor).astype(dtype)
    T = TemperatureScaling().fit(z, y).temperature
    z = z.astype("float64")
    search = minimize_scalar(
        lambda t: nll(z, y, math.exp(t)),
        bounds=(math.log(1e-3), math.log(1e3)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    np.testing.assert_allclose(T, math.exp(search.x), rtol=2e-6)


@pytest.mark.backend_free
def test_nll_temperature_closed_form():
    # k = 2, one margin m, accuracy a: σ(m/T) = a.
    z = np.tile([[6.0, 0.0]], (10, 1))
    y = np.array([0] * 8 + [1] * 2)
    T = TemperatureScaling().fit(z, y).temperature
    np.testing.assert_allclose(T, 6 / math.log(0.8 / 0.2), rtol=1e-9)


@pytest.mark.backend_free
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(2, 40),
    k=st.sampled_from([2, 3, 1000]),
    factor=st.floats(1e-4, 1e4),
    seed=st.integers(0, 10**6),
)
def test_nll_temperature_never_worse_than_one(n, k, factor, seed):
    rng = np.random.default_rng(seed)
    z = (factor * rng.normal(size=(n, k))).astype("float32")
    y = np.concatenate([[0, 1], rng.integers(0, k, n - 2)])
    T = TemperatureScaling().fit(z, y).temperature
    assert 1e-3 <= T <= 1e3
    at_one = nll(z, y)
    assert nll(z, y, T) <= at_one + 1e-6 * (1 + abs(at_one))


@pytest.mark.backend_free
def test_nll_temperature_at_its_bounds():
    y = np.array([0, 1, 2])
    assert TemperatureScaling().fit(3 * np.eye(3), y).temperature == 1e-3
    assert TemperatureScaling().fit(-3 * np.eye(3), y).temperature == 1e3
    assert TemperatureScaling().fit(np.zeros((3, 3)), y).temperature == 1.0
    # One error that no float32 softmax can see at T = 1.
    z = 1e3 * np.eye(3, dtype="float32")[[0, 1, 2, 2]]
    T = TemperatureScaling().fit(z, np.array([0, 1, 2, 0])).temperature
    p = math.exp(1e3 / T) / (math.exp(1e3 / T) + 2)
    assert p == pytest.approx(0.75, abs=1e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize(("n", "k"), [(500, 2), (777, 10), (60, 1000)])
def test_ece_temperature_is_the_best_of_the_grid(n, k):
    z, y = draw(n, k, scale=2.0, temperature=1.5)
    z = z.astype("float64")
    errors = np.array([ece(softmax(z / T), y) for T in TEMPERATURE_GRID])
    tied = TEMPERATURE_GRID[errors <= errors.min() + 1e-12]
    expected = tied[np.abs(tied - 1).argmin()]
    assert TemperatureScaling("ece").fit(z, y).temperature == expected


@pytest.mark.backend_free
def test_ece_temperature_ties_go_to_the_nearest_to_one():
    # Confidences that are ½ whatever T: every temperature has the same ECE.
    z, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    assert TemperatureScaling("ece").fit(z, y).temperature == 1.0
    assert TEMPERATURE_GRID[0] == 0.1
    assert TEMPERATURE_GRID[-1] == 10.0
    assert len(TEMPERATURE_GRID) == 100


# The other calibrators, against independent fits
@pytest.mark.parametrize("regularization", [0.0, 0.1])
def test_vector_scaling_is_the_minimum(regularization):
    z, y = draw()
    calibrator = VectorScaling(regularization).fit(z, y)
    w, b = calibrator.parameters["W"], calibrator.parameters["b"]
    T = TemperatureScaling().fit(z, y).temperature
    z = z.astype("float64")
    residual = softmax(z * w + b) - np.eye(4)[y]
    slope_w = (residual * z).mean(0) + regularization / 4 * 2 * T * (T * w - 1)
    slope_b = residual.mean(0) + regularization / 4 * 2 * b
    assert np.abs([slope_w, slope_b]).max() < 5e-5
    np.testing.assert_allclose(numpy(calibrator(z)), softmax(z * w + b), atol=1e-5)


def test_vector_scaling_returns_to_temperature_scaling():
    z, y = draw()
    p = numpy(VectorScaling(1e9).fit(z, y)(z))
    expected = softmax(z / TemperatureScaling().fit(z, y).temperature)
    np.testing.assert_allclose(p, expected, atol=1e-5)


@pytest.mark.backend_free
def test_vector_scaling_chooses_its_regularization_by_cross_validation():
    # Logits of which temperature scaling is the whole truth, and others.
    z, y = draw(n=300, k=30)
    assert VectorScaling().fit(z, y).regularization_ >= 1
    z, y = draw(n=3000)
    assert (
        VectorScaling().fit(z * [1, 2, 3, 4] + [0, 1, 2, 3], y).regularization_ <= 0.01
    )


@pytest.mark.parametrize("make", [StructuredVectorScaling, StructuredMatrixScaling])
def test_structured_scaling_is_the_minimum(make):
    z, y = draw(n=200, k=3)
    regularization, n, k = 0.5, 200, 3
    calibrator = make(regularization).fit(z, y)
    W, b = calibrator.parameters["W"], calibrator.parameters["b"]
    diagonal = W.ndim == 1
    T = TemperatureScaling().fit(z, y).temperature
    x = np.log((n * softmax(z.astype("float64") / T) + 1 / k) / (n + 1))
    mapped = (x * W if diagonal else x @ W.T) + b
    residual = (softmax(mapped) - np.eye(k)[y]) / n
    slope_b = residual.sum(0) + 2 * regularization * k / n * b
    if diagonal:
        slope = (residual * x).sum(0) + 2 * regularization * k / n * (W - 1)
    else:
        weight = np.where(np.eye(k), k / n, k * (k - 1) / n)
        slope = residual.T @ x + 2 * regularization * weight * (W - np.eye(k))
    assert np.abs(slope).max() < 5e-5
    assert np.abs(slope_b).max() < 5e-5
    np.testing.assert_allclose(numpy(calibrator(z)), softmax(mapped), atol=1e-5)


@pytest.mark.parametrize("kind", ["odir", "l2"])
def test_dirichlet_is_the_minimum(kind):
    z, y = draw(n=200, k=3)
    lam, mu = 0.3, 0.7
    calibrator = DirichletCalibration(
        kind, regularization=lam, bias_regularization=mu
    ).fit(z, y)
    x = log_softmax(z)

    def objective(theta):
        W, b = theta[:9].reshape(3, 3), theta[9:]
        penalized = W - np.diag(np.diag(W)) if kind == "odir" else W
        entries = 6 if kind == "odir" else 9
        penalty = lam * (penalized**2).sum() / entries + mu * (b**2).sum() / 3
        return nll(x @ W.T + b, y) + penalty

    ours = np.concatenate(
        [calibrator.parameters["W"].ravel(), calibrator.parameters["b"]]
    )
    best = minimize(objective, ours + 0.01, method="BFGS", options={"gtol": 1e-7})
    assert objective(ours) <= best.fun + 1e-6
    np.testing.assert_allclose(ours, best.x, atol=5e-3)
    p = softmax(x @ ours[:9].reshape(3, 3).T + ours[9:])
    np.testing.assert_allclose(numpy(calibrator(z)), p, atol=1e-5)


@pytest.mark.backend_free
def test_dirichlet_cross_validation_and_defaults():
    z, y = draw(n=120, k=4, temperature=1.0)
    assert DirichletCalibration().fit(z, y).regularization_ == 4
    assert DirichletCalibration("l2").fit(z, y).regularization_ == 0.4
    # The true map is the identity: too little data for a free W.
    assert (
        DirichletCalibration(regularization=[1e-6, 10.0]).fit(z, y).regularization_
        == 10.0
    )


def smoothed(f, q, n):
    """One more sample, half as predicted and half uniform; then renormalised."""
    p = (n * f + (q + 1 / q.shape[-1]) / 2) / (n + 1)
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize("num_bins", [1, 2, 15])
@pytest.mark.filterwarnings("ignore:HistogramBinning lowers the accuracy")
def test_histogram_binning(binning, num_bins):
    z, y = draw(n=400, k=3)
    z = z.astype("float64")
    calibrator = HistogramBinning(num_bins, binning=binning).fit(z, y)
    q = softmax(z).astype("float32").astype("float64")
    f = np.empty_like(q)
    for c in range(3):
        if binning == "uniform":
            edges = np.arange(num_bins + 1) / num_bins
        else:
            ordered = np.sort(q[:, c])
            cut = [j * 400 // num_bins for j in range(1, num_bins)]
            edges = np.array([0, *((ordered[i - 1] + ordered[i]) / 2 for i in cut), 1])
        for low, high in itertools.pairwise(edges):
            inside = (q[:, c] > low) & (q[:, c] <= high)
            h, m = (y[inside] == c).sum(), inside.sum()
            f[inside, c] = (h + q[inside, c]) / (m + 1)
    np.testing.assert_allclose(numpy(calibrator(z)), smoothed(f, q, 400), atol=1e-5)


def test_histogram_binning_keeps_the_probability_in_empty_bins():
    z = np.tile([[4.0, 0.0], [-4.0, 0.0]], (50, 1))
    calibrator = HistogramBinning(4).fit(z, np.tile([0, 1], 50))
    # Nothing was seen in (0.25, 0.5] and (0.5, 0.75].
    q = np.array([[0.6, 0.4]])
    ours = numpy(calibrator(np.log(q)))
    np.testing.assert_allclose(ours, smoothed(q, q, 100), atol=1e-6)


def test_isotonic_is_scikit_learns():
    z, y = draw(n=300, k=3)
    calibrator = IsotonicCalibration().fit(z, y)
    new = 1.5 * draw(n=200, k=3, seed=1)[0]
    q, q_new = softmax(z), softmax(new)
    f = np.stack(
        [
            IsotonicRegression(out_of_bounds="clip")
            .fit(q[:, c], y == c)
            .predict(q_new[:, c])
            for c in range(3)
        ],
        axis=1,
    )
    # Steps between neighbouring samples are steep: rounding moves a few rows.
    difference = np.abs(numpy(calibrator(new)) - smoothed(f, q_new, 300)).max(-1)
    assert np.quantile(difference, 0.98) < 1e-4


@pytest.mark.parametrize("name", ["histogram", "adaptive", "isotonic"])
def test_no_probability_is_zero(name):
    # Class 0 is never predicted with more than 0.02, and occurs once for all that.
    z, y = draw(n=500)
    z[:, 0] -= 20
    y[:] = np.where(np.arange(500) == 0, 0, np.maximum(y, 1))
    p = numpy(ALL[name]().fit(z, y)(z))
    assert p.min() > 1e-5
    assert -np.log(p[np.arange(500), y].astype("float64")).max() < 12


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_count_below_is_searchsorted(m, seed):
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.integers(0, 8, m - (c > 0) * (m > 1)) / 8) for c in range(3)]
    values = rng.integers(0, 9, (50, 3)) / 8
    edges = stack_edges(rows).astype("float32")
    ours = numpy(count_below(ops.convert_to_tensor(edges), as_tensor(values), ops))
    expected = [np.searchsorted(rows[c], values[:, c]) for c in range(3)]
    np.testing.assert_array_equal(ours, np.stack(expected, 1))


# Meta-Cal
def test_meta_mis_threshold_and_rejection():
    z, y = draw(n=8000, k=5)
    calibrator = MetaMis(0.1, seed=1).fit(z, y)
    test_z, test_y = draw(n=8000, k=5, seed=9)
    entropy = -(softmax(test_z) * log_softmax(test_z)).sum(-1)
    accepted = entropy < calibrator.threshold
    np.testing.assert_array_equal(numpy(calibrator.accepts(test_z)), accepted)
    p = softmax(test_z / calibrator.temperature)
    p[~accepted] = 0.2
    np.testing.assert_allclose(numpy(calibrator(test_z)), p, atol=1e-5)
    right = test_z.argmax(-1) == test_y
    figures = calibrator.evaluate(test_z, test_y)
    expected = {
        "coverage": accepted.mean(),
        "miscoverage": (~accepted)[right].mean(),
        "accepted_accuracy": right[accepted].mean(),
        "accuracy": right.mean(),
        "uniform_accuracy": np.where(accepted, right, 0.2).mean(),
    }
    assert figures == pytest.approx(expected)
    assert figures["miscoverage"] == pytest.approx(0.1, abs=0.04)
    assert figures["accepted_accuracy"] > figures["accuracy"]


def test_meta_acc_reaches_its_accuracy():
    z, y = draw(n=8000, k=5)
    test_z, test_y = draw(n=8000, k=5, seed=9)
    reached = [
        MetaAcc(0.8, seed=seed).fit(z, y).evaluate(test_z, test_y)["accepted_accuracy"]
        for seed in range(5)
    ]
    assert 0.8 <= np.mean(reached) <= 0.88


@pytest.mark.backend_free
def test_meta_cal_is_seeded():
    z, y = draw()
    first, again, other = (MetaMis(0.1, seed=seed).fit(z, y) for seed in (0, 0, 1))
    assert first.threshold == again.threshold != other.threshold


@pytest.mark.backend_free
def test_meta_acc_tells_the_range_that_it_can_reach():
    told = r"`accuracy`.*\[0\.\d+, \d(\.\d+)?\] on a bag of \d+ samples"
    z, y = draw(n=5000)
    with pytest.raises(ValueError, match=told):
        MetaAcc(0.2).fit(z, y)  # less than it has
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=told):
        MetaAcc(0.9).fit(z, rng.integers(0, 4, 5000))  # right by chance


@pytest.mark.backend_free
def test_meta_mis_needs_correct_samples():
    with pytest.raises(ValueError, match="at least 10"):
        MetaMis().fit(3 * np.eye(3), np.array([0, 1, 2]))
