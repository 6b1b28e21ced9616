"""KDE cross-entropy: gradients, bandwidths, blocks and subsamples."""

import math
import re

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, numpy, value_and_gradient
from differences import K, N, central_differences
from keras import ops
from loss_cases import data

from keras_selcal import KDECrossentropy
from keras_selcal._formulas import kernels

KINDS = ["canonical", "top_label", "marginal"]


@pytest.mark.parametrize("kind", KINDS)
def test_kde_gradient_by_finite_differences(kind):
    logits, y = data(N, K)
    for h, exponent in ((0.1, 2), (0.02, 1)):

        def value(z, h=h, exponent=exponent):
            log_p = reference.log_softmax(z)
            errors = reference.kde_errors(np.exp(log_p), log_p, y, kind, h, exponent)
            return np.mean(3 * errors - log_p[np.arange(N), y])

        loss = KDECrossentropy(
            3.0, kind=kind, bandwidth=h, exponent=exponent, from_logits=True
        )
        _, gradient = value_and_gradient(
            lambda z, loss=loss: loss(y, z), logits, jit=JIT_ONE_OFF
        )
        expected = central_differences(value, logits.astype("float64"))
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_kde_bandwidth_of_largest_likelihood(kind):
    """ "auto" is the candidate that a leave-one-out likelihood in SciPy prefers."""
    from scipy.stats import beta, dirichlet

    from keras_selcal._formulas.kernels import BANDWIDTHS

    logits, y = data(N, K, scale=1.0)
    p = reference.softmax(logits)
    columns = {"canonical": [p], "top_label": [p.max(-1)], "marginal": list(p.T)}

    def log_likelihood(h):
        total = 0.0
        for x in columns[kind]:
            for j in range(N):
                if kind == "canonical":
                    log = [dirichlet.logpdf(x[j] / x[j].sum(), q / h + 1) for q in x]
                else:
                    log = beta.logpdf(x[j], x / h + 1, (1 - x) / h + 1)
                total += np.logaddexp.reduce(np.delete(log, j))
        return total

    best = max(BANDWIDTHS[4:], key=log_likelihood)
    automatic = KDECrossentropy(kind=kind, bandwidth="auto", from_logits=True)
    chosen = KDECrossentropy(kind=kind, bandwidth=best, from_logits=True)
    assert float(automatic(y, logits)) == pytest.approx(
        float(chosen(y, logits)), rel=1e-6
    )


def most_held(fn, x):
    """Returns the entries of the largest array that a gradient is computed by; on
    PyTorch, of all arrays with a column for each sample that it is handed.
    """
    if keras.backend.backend() == "jax":
        import jax

        text = str(jax.make_jaxpr(jax.grad(fn))(x))
        shapes = re.findall(r"[fib]\w*\[([\d,]+)\]", text)
        return max(math.prod(map(int, shape.split(","))) for shape in shapes)
    import torch

    sizes = {}

    def note(tensor):
        if tensor.shape[-1:] == (N,):
            sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        value = fn(torch.tensor(x, requires_grad=True))
    assert value.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("kind", KINDS)
def test_kde_in_blocks(kind, monkeypatch):
    """Neither value nor gradient changes; the kernel matrix is never there whole."""
    monkeypatch.setattr(kernels, "MOST_ENTRIES", 1)
    logits, y = data(N, K)
    labels = ops.convert_to_tensor(y)
    weight = ops.convert_to_tensor(np.arange(N, dtype="float32") % 3)

    def total(**options):
        loss = KDECrossentropy(3.0, kind=kind, from_logits=True, **options)
        return lambda z: loss(labels, z, sample_weight=weight)

    value, gradient = value_and_gradient(total(), logits, jit=JIT_ONE_OFF)
    blocks = value_and_gradient(total(block_size=7), logits, jit=JIT_ONE_OFF)
    np.testing.assert_allclose(blocks[0], value, rtol=1e-6)
    np.testing.assert_allclose(blocks[1], gradient, rtol=1e-4, atol=1e-6)
    if keras.backend.backend() != "tensorflow":
        assert kind == "marginal" or most_held(total(), logits) >= N * N
        assert most_held(total(block_size=7), logits) < N * N


@pytest.mark.parametrize("kind", KINDS)
def test_kde_from_a_subsample(kind):
    """Each sample is estimated from evenly spaced ones of those that count."""
    logits, y = data(N, K)
    weight = (np.arange(N) % 4 > 0).astype("float32")
    logits[weight == 0] = np.nan
    log_p = reference.log_softmax(logits)
    (present,) = np.nonzero(weight)
    for size in (7, 30):
        loss = KDECrossentropy(
            kind=kind, from_logits=True, reduction=None, block_size=7, subsample=size
        )
        error = numpy(loss(y, logits, sample_weight=weight)) + weight * np.nan_to_num(
            log_p[np.arange(N), y]
        )
        kept = present[np.arange(min(size, 18)) * max(18, size) // size]
        for j in present:
            rows = np.append(j, kept[kept != j])
            args = np.exp(log_p[rows]), log_p[rows], y[rows], kind, 0.1
            expected = 0.3 * reference.kde_errors(*args)[0]
            assert error[j] == pytest.approx(expected, rel=1e-3, abs=1e-5), (size, j)


def test_kde_is_finite_for_a_thousand_sharp_classes():
    rng = np.random.default_rng(0)
    # 72 · 72 · 1000 entries of marginal kernels: more than one block.
    logits = rng.normal(size=(72, 1000), scale=30.0).astype("float32")
    labels = rng.integers(0, 1000, 72)
    for kind in ("canonical", "top_label", "marginal"):
        loss = KDECrossentropy(kind=kind, bandwidth=1e-3, from_logits=True)
        value, gradient = value_and_gradient(
            lambda z, loss=loss: loss(labels, z), logits, jit=JIT_ONE_OFF
        )
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
