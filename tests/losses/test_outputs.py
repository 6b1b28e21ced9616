"""Losses of one sigmoid unit, several labels, tokens and pixels equal their rows'."""

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, one_off, value_and_gradient
from keras import ops
from loss_cases import CASES, CLASSES, data

from keras_selcal import AULoss, AURCLoss, FocalLoss, KDECrossentropy

N, LABELS = 24, 3


def sigmoid_data(shape, seed=0):
    """Logits and labels 0/1 of sigmoid units; a few logits are extreme."""
    rng = np.random.default_rng([seed, *shape])
    z = rng.normal(size=shape, scale=2.0).astype("float32")
    z.reshape(-1)[:3] = 20.0, -20.0, 0.0
    y = (rng.uniform(size=shape) < 1 / (1 + np.exp(-z))).astype("int32")
    return z, y


def make(case, from_logits=True, **options):
    cls, own, _ = CASES[case]
    return cls(from_logits=from_logits, **own, **options)


def columns(z):
    return ops.stack([ops.zeros_like(z), z], axis=-1)


def check_equal(ours, theirs, x):
    """Compares values and gradients of two functions of x."""
    ours, theirs = (value_and_gradient(fn, x, jit=JIT_ONE_OFF) for fn in (ours, theirs))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-7)
    assert np.isfinite(theirs[0])


@pytest.mark.parametrize("case", CASES)
def test_one_sigmoid_unit_equals_two_columns(case):
    z, y = sigmoid_data((N,))
    labels = ops.convert_to_tensor(y)
    loss = make(case)
    check_equal(
        lambda z: loss(labels, ops.expand_dims(z, -1)),
        lambda z: loss(labels, columns(z)),
        z,
    )


@pytest.mark.parametrize("case", CASES)
def test_one_probability_equals_two_columns(case):
    z, y = sigmoid_data((N,))
    labels = ops.convert_to_tensor(y)
    loss = make(case, from_logits=False)
    check_equal(
        lambda p: loss(labels, p),
        lambda p: loss(labels, ops.stack([1 - p, p], -1)),
        (1 / (1 + np.exp(-z))).astype("float32"),
    )


@pytest.mark.parametrize("name", CLASSES)
def test_labels_of_one_sigmoid_unit_have_any_dtype_and_shape(name):
    z, y = sigmoid_data((N,))
    loss = CLASSES[name](from_logits=True)
    expected = float(loss(y, z[:, None]))
    for labels in (y[:, None], y.astype(bool), y.astype("float32")):
        assert float(loss(labels, z)) == pytest.approx(expected, rel=1e-5)
    soft = (0.8 * y + 0.1).astype("float32")
    both = np.stack([1 - soft, soft], -1)
    assert float(loss(soft, z)) == pytest.approx(
        float(loss(both, numpy_columns(z))), rel=1e-5
    )


def numpy_columns(z):
    return np.stack([np.zeros_like(z), z], -1)


@pytest.mark.parametrize("case", CASES)
def test_multi_label_loss_is_the_mean_over_labels(case):
    z, y = sigmoid_data((N, LABELS))
    labels = ops.convert_to_tensor(y)
    weight = ops.convert_to_tensor(np.arange(N) % 3, dtype="float32")
    together, alone = make(case, multi_label=True), make(case)

    def mean(z):
        each = [
            alone(labels[:, c], columns(z[:, c]), sample_weight=weight)
            for c in range(LABELS)
        ]
        return sum(each) / LABELS

    check_equal(lambda z: together(labels, z, sample_weight=weight), mean, z)


KINDS = ("canonical", "top_label", "marginal")
KDE_OPTIONS = ({"bandwidth": "auto"}, {"subsample": 9}, {"block_size": 7})


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, options) for kind in KINDS for options in KDE_OPTIONS],
)
def test_multi_label_kde_options_are_those_of_each_label(kind, options):
    z, y = sigmoid_data((N, LABELS))
    options = {"kind": kind, "from_logits": True, **options}
    together = one_off(KDECrossentropy(multi_label=True, **options))
    alone = one_off(KDECrossentropy(**options))
    each = [float(alone(y[:, c], z[:, c])) for c in range(LABELS)]
    assert float(together(y, z)) == pytest.approx(np.mean(each), rel=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_ignored_labels_are_those_of_weight_zero(name):
    z, y = sigmoid_data((N, LABELS))
    # Equally many of each label, whose samples have one shape then.
    known = np.add.outer(np.arange(N), np.arange(LABELS)) % 4 > 0
    options = {"from_logits": True, "reduction": "sum"}
    loss = one_off(CLASSES[name](multi_label=True, ignore_class=-1, **options))
    alone = one_off(CLASSES[name](**options))
    total = sum(
        float(alone(y[known[:, c], c], z[known[:, c], c])) for c in range(LABELS)
    )
    found = float(loss(np.where(known, y, -1), z))
    assert found == pytest.approx(total / LABELS, rel=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_ignored_class_is_masked_as_in_keras(name):
    logits, labels = data(24, 5)
    keep = np.arange(24) % 3 > 0
    loss = CLASSES[name](from_logits=True, ignore_class=255)
    alone = one_off(CLASSES[name](from_logits=True))
    expected = float(alone(labels[keep], logits[keep]))
    marked = np.where(keep, labels, 255)
    assert float(loss(marked, logits)) == pytest.approx(expected, rel=1e-5)
    if name == "focal_loss":
        theirs = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=255
        )
        ours = FocalLoss(0, from_logits=True, ignore_class=255)
        assert float(ours(marked, logits)) == pytest.approx(
            float(theirs(marked, logits)), rel=1e-5
        )


@pytest.mark.parametrize("name", CLASSES)
def test_tokens_and_pixels_are_samples_on_any_axis(name):
    logits, labels = data(24, 5)
    expected = float(CLASSES[name](from_logits=True)(labels, logits))
    tokens, truth = logits.reshape(4, 6, 5), labels.reshape(4, 6)
    loss = CLASSES[name](from_logits=True)
    assert float(loss(truth, tokens)) == pytest.approx(expected, rel=1e-5)
    first = CLASSES[name](from_logits=True, axis=1)
    image = np.moveaxis(logits.reshape(2, 3, 4, 5), -1, 1)
    truth = labels.reshape(2, 3, 4)
    assert float(first(truth, image)) == pytest.approx(expected, rel=1e-5)
    onehot = np.moveaxis(np.eye(5, dtype="float32")[truth], -1, 1)
    assert float(first(onehot, image)) == pytest.approx(expected, rel=1e-5)
    values = CLASSES[name](from_logits=True, axis=1, reduction="none")(truth, image)
    assert tuple(values.shape) == (2, 3, 4)


@pytest.mark.parametrize("name", CLASSES)
def test_label_smoothing_is_soft_labels(name):
    logits, labels = data(24, 5)
    loss = CLASSES[name](from_logits=True, label_smoothing=0.1)
    soft = (0.9 * np.eye(5)[labels] + 0.02).astype("float32")
    expected = float(CLASSES[name](from_logits=True)(soft, logits))
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(np.eye(5)[labels], logits)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_options_are_in_the_config(name):
    options = {
        "multi_label": True,
        "ignore_class": -1,
        "label_smoothing": 0.1,
        "axis": 1,
    }
    loss = CLASSES[name](**options)
    config = loss.get_config()
    assert {option: config[option] for option in options} == options
    assert CLASSES[name].from_config(config).get_config() == config


@pytest.mark.parametrize("logits", [False, True])
def test_a_model_with_one_sigmoid_unit_trains(logits):
    z, y = sigmoid_data((64, 4))
    y = y[:, 0]
    head = keras.layers.Dense(1, activation=None if logits else "sigmoid")
    model = keras.Sequential([keras.Input((4,)), head])
    loss = AULoss(csf="msp", from_logits=True) if logits else AULoss(csf="msp")
    model.compile("sgd", loss)
    before = model.evaluate(z, y, verbose=0)
    model.fit(z, y, epochs=3, verbose=0)
    assert model.evaluate(z, y, verbose=0) < before


def test_a_multi_label_model_trains():
    z, y = sigmoid_data((64, 4))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("sgd", AURCLoss(from_logits=True, multi_label=True))
    before = model.evaluate(z, y, verbose=0)
    model.fit(z, y, epochs=3, verbose=0)
    assert model.evaluate(z, y, verbose=0) < before


@pytest.mark.parametrize(
    ("options", "labels", "y_pred", "words"),
    [
        ({}, np.array([-1, 1]), np.array([0.2, 0.7]), "`y_true` must be"),
        ({}, np.array([0, 2]), np.array([0.2, 0.7]), "`y_true` must be"),
        ({}, np.array([0, 1]), np.array([0.2, 1.7]), "`y_pred` must be"),
        ({}, np.array([[1.0, 1.0]]), np.array([[0.2, 0.8]]), "multi_label=True"),
        ({"label_smoothing": 1.0}, None, None, "label_smoothing"),
        ({"axis": 0}, None, None, "axis"),
    ],
)
def test_bad_labels_and_options_are_refused(options, labels, y_pred, words):
    with pytest.raises(ValueError, match=words):
        AULoss(**options)(labels, y_pred.astype("float32"))


def test_brier_of_one_unit_is_the_squared_distance_of_both_columns():
    z, y = sigmoid_data((N,))
    p = reference.softmax(numpy_columns(z))[:, 1]
    loss = AULoss(base_loss="brier", from_logits=True, strength=0.0)
    assert float(loss(y, z)) == pytest.approx(np.mean(2 * (p - y) ** 2), rel=1e-5)
