"""One description of outputs and labels, for `Batch` and `Samples` alike."""

import keras
import numpy as np
import pytest
from backends import numpy
from keras import ops
from processes import computes_in

from keras_selcal import CalibrationReport, ExpectedCalibrationError, FocalLoss, csf
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional import kde_ece


def sigmoid_data(n=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, n), rng.uniform(0, 1, n).astype("float32")


def columns(p):
    return np.stack([1 - p, p], axis=-1)


@pytest.mark.parametrize("shape", [(7,), (7, 1)])
@pytest.mark.parametrize("label_shape", [(7,), (7, 1)])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_one_unit_is_two_columns(shape, label_shape, dtype):
    y, p = sigmoid_data()
    labels = y.astype(dtype).reshape(label_shape)
    batch = Batch.of(labels, p.reshape(shape), Outputs())
    samples = Samples.of(labels, p.reshape(shape), Outputs())
    np.testing.assert_array_equal(numpy(batch.p), columns(p))
    np.testing.assert_array_equal(samples.y_pred, columns(p))
    np.testing.assert_array_equal(numpy(batch.distributions), np.eye(2)[y])
    np.testing.assert_array_equal(samples.one_hot(), np.eye(2)[y])
    z = np.log(p) - np.log1p(-p)
    batch = Batch.of(labels, z.reshape(shape), Outputs(from_logits=True))
    pair = np.stack([np.zeros_like(z), z], axis=-1)
    expected = Batch.of(y, pair, Outputs(from_logits=True))
    np.testing.assert_array_equal(numpy(batch.y_pred), numpy(expected.y_pred))


def test_rows_of_multi_label_data_stand_sample_after_sample():
    rng = np.random.default_rng(1)
    p = rng.uniform(0, 1, (5, 2, 3)).astype("float32")
    y = rng.integers(0, 2, (5, 2, 3))
    w = np.arange(5.0)
    batch = Batch.of(y, p, Outputs(multi_label=True), w)
    assert batch.num_labels == 3
    np.testing.assert_array_equal(numpy(batch.p)[6:], columns(p[1:].reshape(-1)))
    np.testing.assert_array_equal(numpy(batch.sample_weight), np.repeat(w, 6))
    rows = ops.convert_to_tensor(np.arange(30.0, dtype="float32"))
    by_label = numpy(batch.by_label(rows))
    np.testing.assert_array_equal(by_label[1], np.arange(1, 30, 3))
    back = batch.from_labels(ops.convert_to_tensor(by_label))
    np.testing.assert_array_equal(numpy(back), numpy(rows))
    means = numpy(batch.to_samples(rows))
    np.testing.assert_allclose(means, np.arange(30.0).reshape(5, 2, 3).mean(-1))
    parts = Samples.of(y, p, Outputs(multi_label=True), w).split_labels()
    np.testing.assert_array_equal(parts[2].y_pred, columns(p[1:, :, 2].reshape(-1)))
    np.testing.assert_array_equal(parts[2].labels, y[1:, :, 2].reshape(-1))


@pytest.mark.parametrize("ignored", [-1, 255])
def test_ignored_class_is_weight_zero(ignored):
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4), (3, 5)).astype("float32")
    y = rng.integers(0, 4, (3, 5))
    y[0, :2] = ignored
    outputs = Outputs(ignore_class=ignored)
    batch = Batch.of(y, p, outputs)
    np.testing.assert_array_equal(numpy(batch.sample_weight), y.reshape(-1) != ignored)
    np.testing.assert_array_equal(numpy(batch.mask), y != ignored)
    assert numpy(batch.valid).all()
    assert Samples.of(y, p, outputs).n == 13
    labels = (y == 1).astype("float32")[..., None] + np.zeros(2, "float32")
    labels[0, :2, 1] = ignored
    outputs = Outputs(ignore_class=ignored, multi_label=True)
    batch = Batch.of(labels, p[..., :2], outputs, np.full(3, 2.0))
    expected = 2.0 * (labels.reshape(-1) != ignored)
    np.testing.assert_array_equal(numpy(batch.sample_weight), expected)
    values = numpy(batch.to_samples(ops.ones((30,))))
    np.testing.assert_allclose(values, (labels != ignored).mean(-1))


@pytest.mark.parametrize("classes", [1, 4])
def test_channels_first(classes):
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(4), (2, 5, 6)).astype("float32")[..., :classes]
    p = p if classes == 1 else p / p.sum(-1, keepdims=True)
    y = rng.integers(0, max(2, classes), (2, 5, 6))
    first = np.moveaxis(p, -1, 1)
    expected = Batch.of(y, p, Outputs())
    for labels in (y, y[:, None]):
        batch = Batch.of(labels, first, Outputs(axis=1))
        np.testing.assert_array_equal(numpy(batch.p), numpy(expected.p))
        np.testing.assert_array_equal(numpy(batch.labels), numpy(expected.labels))
        samples = Samples.of(labels, first, Outputs(axis=1))
        np.testing.assert_array_equal(samples.y_pred, numpy(expected.p))
    if classes > 1:
        batch = Batch.of(np.moveaxis(np.eye(4)[y], -1, 1), first, Outputs(axis=1))
        np.testing.assert_array_equal(
            numpy(batch.labels), numpy(expected.distributions)
        )


def test_label_smoothing_is_that_of_keras():
    y, z = np.array([0, 2, 1]), np.random.default_rng(4).normal(size=(3, 3))
    z = z.astype("float32")
    batch = Batch.of(y, z, Outputs(from_logits=True)).smoothed(0.3)
    values = batch.expectation(-batch.log_p_y)
    keras_loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.3, reduction=None
    )
    expected = keras_loss(np.eye(3, dtype="float32")[y], z)
    np.testing.assert_allclose(numpy(values), numpy(expected), rtol=1e-5)


def test_masked_classes_equal_a_logit_of_minus_ten_thousand():
    z = np.array([[1.0, -np.inf, 2.0], [-np.inf, -np.inf, 0.5]], "float32")
    finite = np.where(np.isinf(z), np.float32(-1e4), z)
    y = np.array([0, 2])
    one, two = (
        Batch.of(y, logits, Outputs(from_logits=True)) for logits in (z, finite)
    )
    np.testing.assert_allclose(numpy(one.p), numpy(two.p))
    np.testing.assert_allclose(numpy(one.log_p), numpy(two.log_p), rtol=1e-3)
    all_masked = Batch.of(
        y, np.full((2, 3), -np.inf, "float32"), Outputs(from_logits=True)
    )
    assert not numpy(all_masked.valid).any()


BAD = {
    "label -1": ([-1, 1], [[0.5, 0.5], [0.5, 0.5]], None),
    "label 2 of 2": ([2, 1], [[0.5, 0.5], [0.5, 0.5]], None),
    "fraction": ([1.7, 1.0], [[0.5, 0.5], [0.5, 0.5]], None),
    "NaN label": ([np.nan, 1.0], [[0.5, 0.5], [0.5, 0.5]], None),
    "multi-hot": ([[1.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]], None),
    "logits": ([0, 1], [[3.0, -5.0], [0.5, 0.5]], None),
    "sum": ([0, 1], [[0.9, 0.9], [0.5, 0.5]], None),
    "negative soft": (
        [[1.5, -0.5, 0.0], [0.0, 0.0, 1.0]],
        np.full((2, 3), 1 / 3),
        None,
    ),
    "sum of 1": ([0, 1], [[1.5, -0.5, 0.0], [0.5, 0.5, 0.0]], None),
    "infinite weight": ([0, 1], [[0.5, 0.5], [0.5, 0.5]], [np.inf, 1.0]),
    "negative weight": ([0, 1], [[0.5, 0.5], [0.5, 0.5]], [-1.0, 1.0]),
    "NaN weight": ([0, 1], [[0.5, 0.5], [0.5, 0.5]], [np.nan, 1.0]),
    "unit label -1": ([-1, 1], [0.5, 0.5], None),
    "unit label 2": ([2.0, 1.0], [0.5, 0.5], None),
    "unit logit": ([0, 1], [2.5, 0.5], None),
    "unit negative": ([0.0, 1.0], [-0.5, 0.5], None),
}


def kde_ece_of(y, p, outputs, w):
    return kde_ece(y, p, from_logits=outputs.from_logits, sample_weight=w)


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_errors_in_arrays_and_not_valid_in_tensors(name):
    y, p, w = (None if x is None else np.array(x, np.array(x).dtype) for x in BAD[name])
    p = p.astype("float32")
    argument = "sample_weight" if "weight" in name else "y_"
    for build in (Batch.of, Samples.of, kde_ece_of):
        with pytest.raises(ValueError, match=f"`{argument}.*Received: {argument}"):
            build(y, p, Outputs(), w)
    tensors = [None if x is None else ops.convert_to_tensor(x) for x in (y, p, w)]
    batch = Batch.of(tensors[0], tensors[1], Outputs(), tensors[2])
    assert numpy(batch.valid).tolist() == [False, True]
    # A function that returns a float has the values of tensors at hand.
    with pytest.raises(ValueError, match=f"`{argument}.*Received: {argument}"):
        kde_ece_of(tensors[0], tensors[1], Outputs(), tensors[2])
    assert np.isnan(numpy(batch.checked(ops.ones((2,))))).tolist() == [True, False]


def builds():
    """What takes labels and predictions by value."""
    return (
        lambda y, p, **o: Batch.of(y, p, Outputs(**o)),
        lambda y, p, **o: Samples.of(y, p, Outputs(**o)),
        lambda y, p, **o: CalibrationReport(y, p, bootstrap=0, **o),
        lambda y, p, **o: FocalLoss(**o)(y, p),
        lambda y, p, **o: ExpectedCalibrationError(**o)(y, p),
    )


@pytest.mark.parametrize("build", builds())
def test_probabilities_in_the_place_of_logits_are_noticed(build):
    p = np.random.default_rng(0).dirichlet(np.ones(3), 20).astype("float32")
    y = np.arange(20) % 3
    with pytest.raises(ValueError, match=r"`y_pred` must be logits.*from_logits=False"):
        build(y, p, from_logits=True)
    build(y, p - 0.5, from_logits=True)
    for sigmoids, labels in ((p[:, 0], y > 0), (p[:, :1], y > 0)):
        with pytest.warns(UserWarning, match="All logits lie in"):
            build(labels, sigmoids, from_logits=True)
        # A few of them can lie there by chance.
        build(labels[:9], sigmoids[:9], from_logits=True)


@pytest.mark.parametrize("build", builds())
def test_arrays_that_hold_no_plain_numbers_are_refused(build):
    p = np.full((4, 2), 0.5, "float32")
    for labels in (
        np.array([0, 1.7, 1, 0], object),
        np.array([0, None, 1, 0], object),
        np.array([0, np.nan, 1, 0], object),
        np.array(["cat", "dog", "cat", "dog"]),
        np.ma.array([0, 1, 1, 0], mask=[True, False, False, False]),
        [0, [1], 1, 0],
    ):
        with pytest.raises(ValueError, match=r"`y_true` must be .*Received: y_true="):
            build(labels, p)
    with pytest.raises(ValueError, match=r"`y_pred` must be an array without a mask"):
        build(np.array([0, 1, 1, 0]), np.ma.array(p, mask=p > 1))


def test_weights_of_another_length_are_named():
    y, p = np.array([0, 1]), np.full((2, 2), 0.5, "float32")
    for weight in (np.ones(3), np.array(["a", "b"])):
        for build in (Batch.of, Samples.of):
            with pytest.raises(ValueError, match="`sample_weight` must"):
                build(y, p, Outputs(), weight)
    with pytest.raises(ValueError, match="at least one sample that counts"):
        kde_ece(y, p, sample_weight=np.zeros(2))


def test_probabilities_above_one_are_refused():
    for y, p in (([1], [1.015]), ([1, 0], [[0.0, 1.015], [0.8, 0.2]])):
        with pytest.raises(ValueError, match=r"`y_pred` must be probabilities in"):
            Samples.of(np.array(y), np.array(p), Outputs())


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["msp", "margin", "neg_entropy", "doctor", "gen"])
def test_equal_predictions_tie_whatever_their_logits(name):
    """To the last digit: z and −z of a sigmoid unit, and logits that are shifted."""
    score, outputs = csf.get(name), Outputs(from_logits=True)
    z = np.arange(-40.0, 41.0) / 4
    ranks = Samples.of(np.zeros(81, "int32"), z, outputs).ranks(score)
    np.testing.assert_array_equal(ranks, ranks[::-1])
    rows = np.random.default_rng(0).integers(-9, 9, (50, 4)).astype("float64")
    y = np.zeros(50, "int32")
    shifted = rows[:, ::-1] + np.arange(50.0)[:, None]
    expected = Samples.of(y, rows, outputs).ranks(score)
    found = Samples.of(y, shifted, outputs).ranks(score)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_softmax_in_half_precision_is_valid(dtype):
    if not computes_in(dtype):
        pytest.skip(f"this machine does not compute in {dtype}")
    z = np.random.default_rng(0).normal(size=(64, 1000), scale=0.3)
    p = ops.softmax(ops.cast(ops.convert_to_tensor(z), dtype), axis=-1)
    assert numpy(Batch.of(np.zeros(64, "int32"), p, Outputs()).valid).all()
