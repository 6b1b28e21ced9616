"""Losses and metrics in autocast scopes, transforms and compilers of the backends."""

import functools

import keras
import numpy as np
import pytest
from backends import numpy, value_and_gradient
from keras import ops
from keras.src.backend.common.variables import AutocastScope
from streaming import BATCH, KINDS, data, exact, make, softmax, value

from keras_selcal import AULoss, AURCLoss, DualFocalLoss, functional

BACKEND = keras.backend.backend()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["ece", "aurc"])
def test_an_update_inside_an_autocast_scope_is_whole(name, dtype):
    """As in a layer of a model of mixed precision that updates its own metric."""
    y, z = data(BATCH)
    inside, outside = (make(name, from_logits=True) for _ in range(2))
    for _ in range(3):
        outside.update_state(y, z)
        with AutocastScope(dtype):
            inside.update_state(y, z)
            found = value(inside)
    assert found == value(outside)
    for one, other in zip(inside.variables, outside.variables, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


@pytest.mark.parametrize("name", KINDS)
def test_predictions_may_be_variables(name):
    y, z = data(BATCH)
    metric = make(name, from_logits=True)
    metric.update_state(y, keras.Variable(z))
    expected = exact(name, y, z, from_logits=True)
    assert value(metric) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("weight", [None, 0.1])
@pytest.mark.parametrize("name", ["brier", "ece"])
def test_sums_of_many_equal_rows_stay_accurate(name, weight):
    """Added one after the other in float32, they lose four digits of seven."""
    n = 2**18
    y, p = np.zeros(n, "int32"), np.tile(np.float32([[0.7, 0.3]]), (n, 1))
    w = None if weight is None else np.full(n, weight, "float32")
    metric = make(name)
    metric.update_state(ops.convert_to_tensor(y), ops.convert_to_tensor(p), w)
    assert value(metric) == pytest.approx(exact(name, y[:1], p[:1]), rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
@pytest.mark.parametrize("loss", [AULoss, AURCLoss])
def test_a_score_may_have_another_dtype(loss, dtype):
    y, z = data(BATCH)

    def other(p):
        return ops.cast(2 * ops.max(p, axis=-1) - 1, dtype)

    def same(p):
        return ops.cast(other(p), p.dtype)

    p = softmax(z).astype("float32")
    values = [float(numpy(loss(csf=csf)(y, p))) for csf in (other, same)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        AULoss(from_logits=True, smoothing=0.1),
        AULoss(from_logits=True, weight_gradient=0.5, smoothing=1.0),
        AURCLoss(from_logits=True),
    ],
    ids=["au", "au_whole", "aurc"],
)
def test_forward_derivatives_equal_backward_ones(loss, rng):
    y, z = data(BATCH)
    direction = rng.normal(size=z.shape).astype("float32")

    def of(z):
        return loss(y, z)

    _, gradient = value_and_gradient(of, z)
    forward = float(numpy(directional(of, z, direction)))
    assert forward == pytest.approx(float((gradient * direction).sum()), rel=1e-3)


def directional(function, x, direction):
    """Returns the derivative of a function of a tensor in one direction."""
    x, direction = ops.convert_to_tensor(x), ops.convert_to_tensor(direction)
    if BACKEND == "jax":
        import jax

        return jax.jvp(function, (x,), (direction,))[1]
    if BACKEND == "torch":
        from torch.autograd import forward_ad

        with forward_ad.dual_level():
            value = function(forward_ad.make_dual(x, direction))
            return forward_ad.unpack_dual(value).tangent
    import tensorflow as tf

    with tf.autodiff.ForwardAccumulator(x, direction) as accumulator:
        value = function(x)
    return accumulator.jvp(value)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX alone switches 64-bit types off")
@pytest.mark.parametrize("name", KINDS)
def test_64_bit_types_of_jax(name):
    import jax

    y, z = data(BATCH)
    with jax.enable_x64(True):
        metric = make(name, from_logits=True)
        for part in (slice(0, 12), slice(12, None)):
            metric.update_state(y[part].astype("int64"), z[part].astype("float64"))
        found = value(metric)
    assert found == pytest.approx(exact(name, y, z, from_logits=True), abs=2e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="only PyTorch has a compiler apart")
def test_torch_compiles_an_update_and_a_result_whole():
    import torch

    y, z = data(BATCH)
    metric = make("aurc", from_logits=True)

    @functools.partial(torch.compile, backend="eager", fullgraph=True)
    def step(y, z):
        metric.update_state(y, z)
        return metric.result()

    found = float(step(ops.convert_to_tensor(y), ops.convert_to_tensor(z)))
    assert found == pytest.approx(exact("aurc", y, z, from_logits=True), abs=2e-6)


@pytest.mark.skipif(BACKEND != "torch", reason="transforms of PyTorch")
def test_functional_gradients_inside_autocast():
    import torch

    y, z = (ops.convert_to_tensor(x) for x in data(BATCH))
    loss = AULoss(from_logits=True)
    gradient = torch.func.grad(lambda z: loss(y, z))
    expected = gradient(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradient(z)
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(BACKEND != "torch", reason="transforms of PyTorch")
@pytest.mark.parametrize(
    "loss",
    [
        AULoss("margin", weight_gradient=0.5, smoothing=1.0),
        AULoss(smoothing=0.1, weight_gradient=1.0, through="cdf"),
        DualFocalLoss(),
    ],
    ids=["score", "cdf", "dual"],
)
def test_gradients_are_the_same_one_by_one_and_at_once(loss, rng):
    import torch

    p = torch.tensor(rng.dirichlet(np.ones(20), 8).astype("float32"))
    loss.reduction = None
    by_one, at_once = (
        torch.autograd.functional.jacobian(
            lambda p: loss(torch.arange(8), p), p, vectorize=vectorize
        )
        for vectorize in (False, True)
    )
    np.testing.assert_allclose(by_one, at_once, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACKEND != "torch", reason="transforms of PyTorch")
@pytest.mark.parametrize("create_graph", [False, True])
def test_weights_that_change_later_do_not_change_the_gradient(create_graph, rng):
    import torch

    s = torch.tensor(rng.uniform(size=24), requires_grad=True)
    slopes = torch.tensor(rng.normal(size=24))

    def gradient(later):
        weight = torch.tensor(np.arange(24.0))
        beta = functional.au_weights(s, sample_weight=weight)
        weight.add_(later * slopes)
        total = (beta * slopes).sum()
        return torch.autograd.grad(total, s, create_graph=create_graph)[0].detach()

    np.testing.assert_array_equal(gradient(5.0), gradient(0.0))
