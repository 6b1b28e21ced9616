"""Operations that keras.ops lacks."""

import numpy as np
import pytest
from backends import TORCH, numpy, value_and_gradient
from keras import ops

from keras_selcal._backend.ops import matmul, segment_sum


@pytest.mark.parametrize("columns", [(), (3,)])
def test_sums_of_segments(rng, columns):
    values = rng.normal(size=(24, *columns)).astype("float32")
    ids = rng.integers(0, 4, 24).astype("int32")
    expected = np.zeros((6, *columns))
    np.add.at(expected, ids, values)
    ids = ops.convert_to_tensor(ids)
    found = numpy(segment_sum(ops.convert_to_tensor(values), ids, 6))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    slope = rng.normal(size=expected.shape).astype("float32")
    factor = ops.convert_to_tensor(slope)
    _, gradient = value_and_gradient(
        lambda x: ops.sum(segment_sum(x, ids, 6) * factor), values
    )
    np.testing.assert_allclose(gradient, slope[numpy(ids)], rtol=1e-6)


@pytest.mark.skipif(not TORCH, reason="only PyTorch has autocast")
@pytest.mark.parametrize(
    "shapes", [((6, 3), (3, 5)), ((2, 6, 3), (3, 5)), ((2, 6, 3), (2, 3, 5))]
)
def test_products_keep_their_digits_inside_autocast(rng, shapes):
    import torch

    a, b = (
        torch.tensor(rng.normal(size=shape), dtype=torch.float32, requires_grad=True)
        for shape in shapes
    )

    expected = matmul(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = matmul(a, b)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product, expected)
    gradients = [
        torch.autograd.grad(torch.sum(x**2), (a, b)) for x in (product, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
