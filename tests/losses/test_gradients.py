"""Gradients of the losses: the paper's formulas, finite differences, and finiteness."""

import functools

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, graded, numpy, value_and_gradient
from differences import K, N, central_differences
from keras import ops
from loss_cases import CASES, CLASSES, data
from scipy.special import expit

from keras_selcal import (
    AULoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    functional,
)
from keras_selcal._formulas import kernels


def slope_of_score(p, csf):
    """∂u/∂p, u the score on [0, 1], for distinct probabilities."""
    rows, order = np.arange(len(p)), np.argsort(p, -1)
    slope = np.zeros_like(p)
    if csf == "neg_entropy":
        return (np.log(p) + 1) / np.log(p.shape[-1])
    slope[rows, order[:, -1]] = 1
    if csf == "margin":
        slope[rows, order[:, -2]] = -1
    return slope


def au_gradients(p, y, csf, quantile, smoothing):
    """∇β·ℓ and β·∇ℓ of Eq. gradientAU, each (n, k): C is kept, and no gradient goes
    through the counts, τ or C."""
    n = len(p)
    rows = np.arange(n)
    u = reference.unit_score(p, csf)
    tau = np.quantile(u, quantile)
    c = 1 / reference.soft_cdf(u, tau, smoothing=smoothing)
    cdf = reference.soft_cdf(u, u, smoothing=smoothing)
    slope = reference.soft_cdf_slope(u, u, smoothing=smoothing)
    rise = np.where(u < tau, c * slope / (1 - cdf), 0)
    p_y = p[rows, y]
    of_weight = (rise * -np.log(p_y))[:, None] * slope_of_score(p, csf)
    of_loss = np.zeros_like(p)
    beta = reference.au_weights(u, quantile, smoothing=smoothing)
    of_loss[rows, y] = -beta / p_y
    return of_weight / n, of_loss / n


@pytest.mark.parametrize("csf", ["msp", "margin", "neg_entropy"])
@pytest.mark.parametrize("weight_gradient", [0.0, 0.3, 1.0])
@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_au_gradient_in_closed_form(csf, weight_gradient):
    logits, y = data(N, K)
    p = reference.softmax(logits).astype("float32")
    for smoothing, quantile in ((0.1, 0.75), (0.02, 0.4)):
        loss = AULoss(
            csf,
            quantile=quantile,
            smoothing=smoothing,
            weight_gradient=weight_gradient,
        )
        _, gradient = value_and_gradient(lambda p, loss=loss: loss(y, p), p)
        of_weight, of_loss = au_gradients(
            p.astype("float64"), y, csf, quantile, smoothing
        )
        expected = weight_gradient * of_weight + of_loss
        np.testing.assert_allclose(gradient, expected, rtol=2e-4, atol=2e-5)


def test_au_weight_gradient_vanishes_above_the_threshold():
    logits, y = data(N, K)
    p = reference.softmax(logits).astype("float32")
    weigh = {w: AULoss(weight_gradient=w, smoothing=2.0) for w in (0.0, 1.0)}
    with_weight, without = (
        value_and_gradient(lambda p, w=w: weigh[w](y, p), p)[1] for w in (1.0, 0.0)
    )
    s = p.max(-1)
    high = s >= np.quantile(s, 0.75)
    np.testing.assert_array_equal(with_weight[high], without[high])
    assert np.abs(with_weight - without)[~high].max(-1).all()


def whole_gradient(s, losses, quantile=0.75, smoothing=0.1):
    losses = ops.convert_to_tensor(losses, dtype="float32")

    def objective(s):
        beta = functional.au_weights(
            s, quantile, smoothing=smoothing, num_bins=16, through="cdf"
        )
        return ops.mean(beta * losses)

    return value_and_gradient(objective, s, jit=JIT_ONE_OFF)[1]


def test_whole_gradient_is_that_of_the_objective():
    rng = np.random.default_rng(0)
    s = rng.uniform(0.05, 0.95, N).astype("float32")
    s[:4] = s[4]  # ties
    losses = rng.exponential(size=N)
    for smoothing, quantile in ((0.1, 0.75), (0.001, 1.0)):
        u = s.astype("float64")
        tau = np.quantile(u, quantile)
        options = {"num_bins": 16, "smoothing": smoothing}
        c = 1 / shared_cdf(u, tau, **options)
        objective = functools.partial(
            reference.whole_au, losses=losses, below=u < tau, c=c, **options
        )
        expected = central_differences(objective, u)
        gradient = whole_gradient(s, losses, quantile, smoothing)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-3 * scale)


def shared_cdf(u, at, num_bins, smoothing):
    centers = (np.arange(num_bins) + 0.5) / num_bins
    near = np.maximum(1 - np.abs(u[:, None] - centers) * num_bins, 0)
    return np.mean(near @ expit((at - centers) / smoothing))


def test_whole_gradient_sums_to_zero_and_the_papers_does_not():
    """A shift of all scores changes no rank."""
    rng = np.random.default_rng(0)
    s = rng.uniform(0.1, 0.9, 4096).astype("float32")
    losses = rng.exponential(size=4096) * (1.2 - s)
    whole = whole_gradient(s, losses)
    weights = ops.convert_to_tensor(losses, dtype="float32")
    _, paper = value_and_gradient(
        lambda s: ops.mean(functional.au_weights(s) * weights), s, jit=JIT_ONE_OFF
    )
    assert paper.sum() > 0.5 * np.abs(paper).sum()
    assert abs(whole.sum()) < 0.02 * np.abs(whole).sum()


def test_au_loss_with_the_whole_gradient_does_not_warn_of_drag():
    logits, y = data(N, K)
    loss = AULoss(smoothing=0.1, weight_gradient=1.0, through="cdf", from_logits=True)
    _, gradient = value_and_gradient(lambda z: loss(y, z), logits)
    constant = AULoss(smoothing=0.1, through="cdf", from_logits=True)
    _, without = value_and_gradient(lambda z: constant(y, z), logits)
    assert np.abs(gradient - without).max() > 1e-4
    assert AULoss.from_config(loss.get_config()).through == "cdf"


def picked_gradient(loss, p, y):
    _, gradient = value_and_gradient(lambda p: loss(y, p), p)
    return gradient[np.arange(len(p)), y] * len(p)


def test_focal_gradients_of_the_appendix():
    logits, y = data(N, K)
    p = reference.softmax(logits).astype("float32")
    p_y = p[np.arange(N), y].astype("float64")
    for gamma in (0.5, 2.0, 3.5):
        expected = (
            gamma * (1 - p_y) ** (gamma - 1) * np.log(p_y) - (1 - p_y) ** gamma / p_y
        )
        np.testing.assert_allclose(
            picked_gradient(FocalLoss(gamma), p, y), expected, rtol=1e-4
        )
        # The appendix prints the first term with the sign of focal loss.
        expected = (
            -gamma * (1 + p_y) ** (gamma - 1) * np.log(p_y) - (1 + p_y) ** gamma / p_y
        )
        np.testing.assert_allclose(
            picked_gradient(InverseFocalLoss(gamma), p, y), expected, rtol=1e-4
        )


def test_focal_53_does_not_differentiate_the_choice_of_gamma():
    p = np.array([[0.15, 0.85], [0.25, 0.75]], "float32")
    expected = []
    for p_y, gamma in ((0.15, 5), (0.25, 3)):
        expected.append(
            gamma * (1 - p_y) ** (gamma - 1) * np.log(p_y) - (1 - p_y) ** gamma / p_y
        )
    np.testing.assert_allclose(
        picked_gradient(FocalLoss("53"), p, np.array([0, 0])), expected, rtol=1e-4
    )


def test_dual_focal_gradient_by_finite_differences():
    logits, y = data(N, K)

    def value(z):
        log_p = reference.log_softmax(z)
        log_p_y = log_p[np.arange(N), y]
        p_j = reference.largest_other(np.exp(log_p), y)
        return np.mean(-((1 - np.exp(log_p_y) + p_j) ** 3.0) * log_p_y)

    loss = DualFocalLoss(3.0, from_logits=True)
    _, gradient = value_and_gradient(lambda z: loss(y, z), logits)
    expected = central_differences(value, logits.astype("float64"))
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def extreme_batches():
    rng = np.random.default_rng(0)
    saturated = np.where(np.eye(K)[rng.integers(0, K, N)] > 0, 1e4, -1e4)
    return {
        "saturated": saturated,
        "half_saturated": saturated * rng.integers(0, 2, (N, 1)),
        "uniform": np.zeros((N, K)),
        "ties": np.tile(rng.normal(size=(2, K)), (N // 2, 1)),
        "tied_top": np.tile([3.0, 3.0, 0.0, 0.0, 0.0], (N, 1)),
    }


@pytest.mark.parametrize(
    ("dtype", "from_logits"),
    [("float32", True), ("float32", False), ("float16", True), ("bfloat16", True)],
)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_finite(case, dtype, from_logits):
    cls, options, _ = CASES[case]
    options = dict(options)
    if cls is AULoss:
        options |= {"weight_gradient": 1.0, "smoothing": 2.0}
    labels = np.arange(N) % K
    loss = cls(from_logits=from_logits, **options)
    of = graded(lambda x: loss(labels, x), JIT_ONE_OFF, dtype)
    for name, logits in extreme_batches().items():
        # Probabilities are exact zeros and ones, where logits are saturated.
        value, gradient = of(logits if from_logits else reference.softmax(logits))
        assert np.isfinite(value), name
        assert np.isfinite(gradient).all(), name


@pytest.mark.parametrize("case", CASES)
def test_gradient_of_one_sample_is_finite(case):
    cls, options, _ = CASES[case]
    loss = cls(from_logits=True, **options)
    logits = np.array([[2.0, -1.0, 0.5]])
    value, gradient = value_and_gradient(
        lambda z: loss(np.array([1]), z), logits, jit=JIT_ONE_OFF
    )
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("name", [*CLASSES, "whole gradient"])
def test_compiled_equals_eager(name, monkeypatch):
    logits, labels = data(N, K)
    labels = keras.ops.convert_to_tensor(labels)
    # Kernels in two blocks.
    monkeypatch.setattr(kernels, "MOST_ENTRIES", 1)
    options = {
        "kde_crossentropy": {"block_size": N // 2},
        "whole gradient": {"weight_gradient": 1.0, "through": "cdf"},
    }
    loss = CLASSES.get(name, AULoss)(from_logits=True, **options.get(name, {}))
    eager = value_and_gradient(lambda z: loss(labels, z), logits)
    compiled = value_and_gradient(lambda z: loss(labels, z), logits, jit=True)
    np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-6)
    # The whole gradient is a difference of sums.
    atol = 1e-6 if name == "whole gradient" else 1e-7
    np.testing.assert_allclose(compiled[1], eager[1], rtol=1e-4, atol=atol)


def test_mixed_precision_policy_computes_in_float32():
    logits, labels = data(N, K)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layer = keras.layers.Activation("linear")
        low = layer(logits)
        assert keras.backend.standardize_dtype(low.dtype) == "float16"
        for name, cls in CLASSES.items():
            value = cls(from_logits=True)(labels, low)
            assert keras.backend.standardize_dtype(value.dtype) == "float32", name
            exact = cls(from_logits=True)(labels, numpy(low).astype("float32"))
            assert float(value) == float(exact), name
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("from_logits", [True, False])
def test_dual_focal_gradient_where_the_true_class_is_tied(from_logits):
    """The largest other probability is differentiable there: it is not p_y."""
    z, y = np.zeros((N, K)), np.arange(N) % K
    z[np.arange(N), y] = z[np.arange(N), (y + 1) % K] = 2.0

    def value(x):
        p = reference.softmax(x) if from_logits else x
        p_y = p[np.arange(N), y]
        return np.mean(-((1 - p_y + reference.largest_other(p, y)) ** 3) * np.log(p_y))

    x = z if from_logits else reference.softmax(z)
    loss = DualFocalLoss(3.0, from_logits=from_logits)
    _, gradient = value_and_gradient(lambda x: loss(y, x), x)
    expected = central_differences(value, x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_whole_gradient_holds_the_cdf_at_a_given_threshold_constant():
    """C and the weights above τ are constants, though Ĝ(τ) moves with the scores."""
    rng = np.random.default_rng(1)
    s = rng.uniform(0.05, 0.95, N).astype("float32")
    losses = rng.exponential(size=N)
    tau, options = 0.6, {"num_bins": 16, "smoothing": 0.1}
    u = s.astype("float64")

    def objective(u, c):
        return reference.whole_au(u, losses, s < tau, c, **options)

    c = 1 / shared_cdf(u, tau, **options)
    expected = central_differences(functools.partial(objective, c=c), u)
    moving = central_differences(
        lambda u: objective(u, 1 / shared_cdf(u, tau, **options)), u
    )
    weight = ops.convert_to_tensor(losses, dtype="float32")
    _, gradient = value_and_gradient(
        lambda s: ops.mean(
            functional.au_weights(s, threshold=tau, through="cdf", **options) * weight
        ),
        s,
    )
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(moving - expected).max() > 0.1 * np.abs(expected).max()
