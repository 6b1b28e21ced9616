"""Operations that keras.ops lacks."""

import keras
import numpy as np
import pytest
from backends import numpy, one_off, value_and_gradient
from keras import ops

from keras_selcal._backend.ops import (
    cumsum,
    matmul,
    safe_log,
    safe_power,
    tie_groups,
    top_two,
)


def test_safe_log_and_power_are_finite_at_zero():
    x = np.array([0.0, 1e-30, 0.5, 1.0], "float32")
    for gamma in (0.0, 0.5, 1.0, 5.0):

        def both(x, gamma=gamma):
            return ops.sum(safe_log(x)) + ops.sum(safe_power(x, gamma))

        value, gradient = value_and_gradient(both, x)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
    np.testing.assert_allclose(numpy(safe_power(x, 0.0)), 1.0)


def test_top_two_with_ties(rng):
    x = rng.integers(0, 4, (200, 5)).astype("float32")
    first, second = top_two(ops.convert_to_tensor(x))
    ordered = np.sort(x, -1)
    np.testing.assert_array_equal(numpy(first)[:, 0], ordered[:, -1])
    np.testing.assert_array_equal(numpy(second)[:, 0], ordered[:, -2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tie_groups_are_ordered_as_the_values(rng, dtype):
    smallest = np.finfo("float32").smallest_normal
    ends = [-1e38, -smallest, -0.0, 0.0, smallest, 1e38]
    x = np.concatenate([ends, rng.integers(-4, 4, 18) / 4])
    x = rng.permuted(np.stack([x, x]), axis=1).astype(dtype)
    group = numpy(one_off(tie_groups)(ops.convert_to_tensor(x)))
    assert group.min() >= 0
    assert group.max() < x.shape[1]
    for ours, values in zip(group, x, strict=True):
        order = np.sign(values[:, None] - values)
        np.testing.assert_array_equal(np.sign(ours[:, None] - ours), order)


TORCH = keras.backend.backend() == "torch"


@pytest.mark.skipif(not TORCH, reason="only PyTorch has autocast")
@pytest.mark.parametrize(
    "shapes", [((6, 3), (3, 5)), ((2, 6, 3), (3, 5)), ((2, 6, 3), (2, 3, 5))]
)
def test_matmul_has_the_same_gradients_inside_autocast(rng, shapes):
    import torch

    a, b = (
        torch.tensor(rng.normal(size=shape), dtype=torch.float32, requires_grad=True)
        for shape in shapes
    )

    def gradients():
        product = matmul(a, b)
        assert product.dtype == torch.float32
        return torch.autograd.grad(torch.sum(product**2), (a, b))

    outside = gradients()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for one, other in zip(gradients(), outside, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1, 128, 129, 1000])
def test_cumsum_of_any_length(size):
    rng = np.random.default_rng(size)
    counts = rng.integers(0, 9, (2, 3, size)).astype("float32")
    found = numpy(one_off(cumsum)(ops.convert_to_tensor(counts)))
    np.testing.assert_array_equal(found, np.cumsum(counts, axis=-1))
