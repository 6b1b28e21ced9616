"""Bins of probabilities at their edges: eager and compiled code agree with NumPy."""

import keras
import numpy as np
import pytest
from backends import numpy
from keras import ops

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812
from keras_selcal._formulas.binning import uniform_bins


def compiled(function):
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.jit(function)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    import torch

    return torch.compile(function, backend="eager", fullgraph=True)


@pytest.mark.parametrize("num_bins", [1, 10, 15, 49, 100])
def test_edges_and_their_neighbours(num_bins):
    edges = (np.arange(num_bins + 1) / num_bins).astype("float32")
    above, below = (np.nextafter(edges, np.float32(end)) for end in (2, -1))
    p = np.concatenate([edges, above, below, [np.nan]]).astype("float32")
    expected = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, num_bins - 1)
    expected[-1] = 0  # NaN
    np.testing.assert_array_equal(uniform_bins(p, num_bins, np), expected)
    tensor = ops.convert_to_tensor(p)
    for function in (uniform_bins, compiled(lambda p: uniform_bins(p, num_bins, ops))):
        arguments = (num_bins, ops) if function is uniform_bins else ()
        found = numpy(function(tensor, *arguments))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("k", [7, 20, 49])
def test_equal_logits_lie_on_an_edge(k):
    """1/k is one, which exp(ln(1/k)) may miss."""
    y, z = np.arange(24) % k, np.full((24, k), 3.0, "float32")
    expected = F.cwece(y, z, k, from_logits=True)
    metric = M.ClasswiseCalibrationError(k, from_logits=True, num_classes=k)
    metric.update_state(y, z)
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)
    assert F.cwece(y, np.full_like(z, 1 / k), k) == pytest.approx(expected, abs=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow")
@pytest.mark.parametrize("metric", [M.ExpectedCalibrationError, M.AURC])
def test_nan_is_noticed_in_code_that_xla_compiles(metric):
    """A maximum of XLA ignores NaN."""
    z = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
    z[5, 2] = np.nan
    streaming = metric(from_logits=True)
    update = compiled(streaming.update_state)
    update(ops.convert_to_tensor(np.arange(24) % 5), ops.convert_to_tensor(z))
    assert np.isnan(numpy(streaming.result()))
