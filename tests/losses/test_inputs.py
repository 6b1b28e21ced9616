"""Losses of masked classes, diverged networks, large weights, empty batches, and inside
autocast."""

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, TORCH, graded, value_and_gradient
from keras import ops
from loss_cases import CASES, CLASSES, data, expected_values

from keras_selcal import AULoss, AURCLoss, KDECrossentropy

N, K = 24, 5

# Every CSF in both losses that rank, and every option of the others.
EVERY = {
    **CASES,
    "au_margin_gradient": (
        AULoss,
        {"csf": "margin", "weight_gradient": 1.0, "smoothing": 2.0},
        None,
    ),
    "au_entropy_gradient": (
        AULoss,
        {"csf": "neg_entropy", "weight_gradient": 1.0, "smoothing": 2.0},
        None,
    ),
    "au_sharp": (AULoss, {"smoothing": 0.001}, None),
    "aurc_entropy": (AURCLoss, {"csf": "neg_entropy"}, None),
    "kde_auto": (KDECrossentropy, {"bandwidth": "auto"}, None),
}


def make(case, **options):
    cls, own, _ = EVERY[case]
    return cls(from_logits=True, **own, **options)


@pytest.mark.parametrize("case", EVERY)
def test_masked_classes_equal_very_small_logits(case):
    """A logit of −∞ is one of −1e4, with a gradient of 0."""
    logits, labels = data(N, K)
    labels = labels % (K - 1)
    loss = make(case)
    masked = np.random.default_rng(0).uniform(size=logits.shape) < 0.3
    masked[:, K - 1] = True  # one class in all rows
    masked[np.arange(N), labels] = False
    of = graded(lambda z: loss(labels, z), jit=JIT_ONE_OFF)
    _, gradient = of(np.where(masked, -np.inf, logits))
    value, expected = of(np.where(masked, -1e4, logits))
    assert np.isfinite(value)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(gradient[masked], 0.0)
    assert float(loss(labels, np.where(masked, -np.inf, logits))) == pytest.approx(
        float(value), rel=1e-5
    )


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("rows", [slice(None), slice(1, None)], ids=["all", "most"])
def test_a_diverged_network_gives_nan(name, rows):
    logits, labels = data(N, K)
    p = reference.softmax(logits).astype("float32")
    logits[rows], p[rows] = np.nan, np.nan
    labels, logits, p = (ops.convert_to_tensor(x) for x in (labels, logits, p))
    assert np.isnan(float(CLASSES[name](from_logits=True)(labels, logits)))
    assert np.isnan(float(CLASSES[name]()(labels, p)))


BAD_ROWS = {
    "logit": lambda z, y, w: z.__setitem__((3, 1), np.nan),
    "label": lambda z, y, w: y.__setitem__(3, K),
    "weight": lambda z, y, w: w.__setitem__(3, -1.0),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize("name", CLASSES)
def test_a_bad_row_has_a_gradient_of_nan(name, bad):
    """Otherwise training would go on where the loss is NaN."""
    logits, labels = data(N, K)
    weight = np.ones(N, "float32")
    BAD_ROWS[bad](logits, labels, weight)
    labels, weight = ops.convert_to_tensor(labels), ops.convert_to_tensor(weight)
    loss = CLASSES[name](from_logits=True)
    value, gradient = value_and_gradient(
        lambda z: loss(labels, z, sample_weight=weight), logits, jit=JIT_ONE_OFF
    )
    assert np.isnan(value)
    assert np.isnan(gradient[3]).any()


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX has 64-bit types switched off"
)
@pytest.mark.parametrize("case", CASES)
def test_float64_has_its_digits(case):
    cls, options, _ = CASES[case]
    logits, labels = data(N, K)
    # Keras's own mean divides in float32 on PyTorch.
    loss = cls(from_logits=True, dtype="float64", reduction="sum", **options)
    value = loss(labels, ops.convert_to_tensor(logits, dtype="float64"))
    assert keras.backend.standardize_dtype(value.dtype) == "float64"
    expected = expected_values(case, logits, labels).sum()
    assert float(value) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("case", ["au_msp", "au_sharp", "aurc", "aurc_log"])
def test_weights_that_sum_to_more_than_float32_counts(case):
    """As copies, up to the rounding of ranks that float32 cannot count."""
    logits, labels = data(N, K)
    copies = np.arange(N) % 4
    plain = float(make(case, reduction="sum")(labels, logits, copies * 1e3))
    for scale in (1e6, 1e9):
        heavy = make(case, reduction="sum")
        found = float(heavy(labels, logits, copies * scale)) / scale
        assert found == pytest.approx(plain / 1e3, rel=0.01)


@pytest.mark.parametrize("case", EVERY)
def test_an_empty_batch_has_a_loss_of_zero(case):
    empty = np.zeros((0, K), "float32"), np.zeros(0, "int32")
    for reduction in ("sum_over_batch_size", "sum"):
        loss = make(case, reduction=reduction)
        value, _ = value_and_gradient(lambda z, loss=loss: loss(empty[1], z), empty[0])
        assert value == 0.0
    none = make(case, reduction="none")
    assert tuple(none(empty[1], empty[0]).shape) == (0,)


@pytest.mark.skipif(not TORCH, reason="only PyTorch has autocast")
@pytest.mark.parametrize("case", EVERY)
def test_gradients_inside_autocast_equal_those_outside(case):
    import torch

    logits, labels = data(N, K)
    loss = make(case)
    outside = value_and_gradient(lambda z: loss(labels, z), logits)
    z = torch.tensor(logits, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(labels, z)
    # PyTorch advises against a backward pass inside.
    (gradient,) = torch.autograd.grad(value, z)
    np.testing.assert_allclose(value.detach(), outside[0], rtol=1e-6)
    np.testing.assert_allclose(gradient, outside[1], rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow traces any size"
)
@pytest.mark.parametrize("case", [*CLASSES, "marginal"])
def test_batches_of_unknown_size(case):
    """Also an empty one, as a replica's share may be."""
    import tensorflow as tf

    if case == "marginal":
        loss = KDECrossentropy(kind="marginal", from_logits=True)
    else:
        loss = CLASSES[case](from_logits=True)
    signature = [tf.TensorSpec([None, K]), tf.TensorSpec([None], "int64")]

    @tf.function(input_signature=signature)
    def value_and_slope(z, labels):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(labels, z)
        return value, tape.gradient(value, z)

    logits, labels = data(N, K)
    for n in (N, 7, 0):
        value, slope = value_and_slope(logits[:n], labels[:n])
        expected = value_and_gradient(lambda z, n=n: loss(labels[:n], z), logits[:n])
        np.testing.assert_allclose(value, expected[0], rtol=1e-5)
        np.testing.assert_allclose(slope, expected[1], rtol=1e-4, atol=1e-6)
