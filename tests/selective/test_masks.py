"""Selective classifiers on padded, weighted and grouped data."""

import math

import keras
import numpy as np
import pytest
from classifier_data import assert_same_classifier, draw, first_half, identity
from keras import layers, ops
from reference import softmax

from keras_selcal import ConformalClassifier, SelectiveClassifier, TemperatureScaling
from keras_selcal.selective import ABSTAINED, risk_bound

BACKEND = keras.backend.backend()


def token_model(vocabulary=12, k=3):
    """A model that reads off each token's logits; token 0 is padding.

    Padding itself would be predicted with high confidence and counts as right.
    """
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(vocabulary, k, mask_zero=True),
        ]
    )
    rng = np.random.default_rng(3)
    table = 1.5 * rng.normal(size=(vocabulary, k))
    table[0] = (9.0, 0.0, 0.0)
    model.layers[-1].set_weights([table.astype("float32")])
    return model, table


def tokens(n, length=10, seed=0, padded=True):
    """Sequences of token ids with labels drawn from the model's own probabilities."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 12, (n, length))
    p = softmax(token_model()[1][x])
    y = (rng.random((n, length, 1)) > p.cumsum(-1)).sum(-1).clip(max=2)
    if padded:
        real = np.arange(length) < rng.integers(2, length + 1, (n, 1))
        x, y = np.where(real, x, 0), np.where(real, y, 0)
    return x.astype("int32"), y


class Unequal(keras.utils.PyDataset):
    """Batches that are padded to the longest of their own sequences."""

    def __init__(self, x, y):
        super().__init__()
        order = np.argsort((x != 0).sum(-1))
        self.x, self.y = x[order], y[order]

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(12 * index, 12 * index + 12)
        longest = (self.x[rows] != 0).sum(-1).max()
        return self.x[rows, :longest], self.y[rows, :longest]


def test_padding_does_not_count():
    model, table = token_model()
    x, y = tokens(200)
    classifier = SelectiveClassifier(model)
    with pytest.warns(UserWarning, match="groups"):
        classifier.fit(x, y, risk=0.3, delta=0.1, verbose=0)
    real = x != 0
    p = softmax(table[x])
    right = p.argmax(-1) == y
    accepted = (p.max(-1) >= classifier.threshold) & real
    record = classifier.record
    assert record.n == real.sum() < real.size
    assert record.coverage == pytest.approx(accepted.sum() / real.sum())
    assert record.selective_risk == pytest.approx(1 - right[accepted].mean())
    assert record.selective_risk <= record.bound == record.target_risk == 0.3
    # With padding as right answers, that looks better than it is.
    everything = p.max(-1) >= classifier.threshold
    assert 1 - right[everything].mean() < record.selective_risk - 0.03

    test_x, test_y = tokens(300, seed=1)
    found = classifier.evaluate(test_x, test_y, verbose=0)
    p, real = softmax(table[test_x]), test_x != 0
    accepted = (p.max(-1) >= classifier.threshold) & real
    right = p.argmax(-1) == test_y
    assert found["coverage"] == pytest.approx(accepted.sum() / real.sum())
    assert found["selective_risk"] == pytest.approx(1 - right[accepted].mean())
    assert found["accuracy"] == pytest.approx(right[real].mean())
    # Tokens are grouped by their sequence: the bound is wider than that of tokens.
    plain = risk_bound(int((~right & accepted).sum()), int(accepted.sum()), 0.1)
    assert plain < found["selective_risk_bound"] < plain + 0.1

    prediction = classifier.predict(test_x, verbose=0)
    np.testing.assert_array_equal(prediction.accepted, accepted)
    assert (prediction.labels[~real] == ABSTAINED).all()
    served = classifier.as_model().predict(test_x, verbose=0)
    np.testing.assert_array_equal(served["accepted"], accepted)


def test_masks_and_weights_of_every_form_agree():
    model, _ = token_model()
    x, y = tokens(60)
    real = (x != 0).astype("float32")
    unmasked = keras.Sequential(
        [keras.Input((None,), dtype="int32"), layers.Embedding(12, 3)]
    )
    unmasked.set_weights(model.get_weights())
    # Padding may hold any label where it is masked.
    wild = np.where(real, y, 77)
    expected = SelectiveClassifier(unmasked).fit(
        x, wild, coverage=0.6, sample_weight=real, verbose=0
    )
    batches = [(x[i::4], wild[i::4]) for i in range(4)]
    assert Unequal(x, y)[0][0].shape != Unequal(x, y)[4][0].shape
    for data in ((x, wild), (batches,), (iter(batches),), (Unequal(x, y),)):
        classifier = SelectiveClassifier(model).fit(*data, coverage=0.6, verbose=0)
        assert_same_classifier(classifier, expected)
    # Weights and masks multiply; a weight of 0 drops a sequence.
    weight = np.ones(60)
    weight[::2] = 0
    half = SelectiveClassifier(model).fit(
        x, wild, coverage=0.6, sample_weight=weight, verbose=0
    )
    other = SelectiveClassifier(model).fit(x[1::2], wild[1::2], coverage=0.6, verbose=0)
    assert_same_classifier(half, other)


def test_weights_that_a_guarantee_cannot_count_are_refused():
    x, y = draw(300)
    classifier = SelectiveClassifier(identity())
    weight = np.linspace(0.5, 2, 300)
    with pytest.raises(ValueError, match="the guarantee counts independent samples"):
        classifier.fit(x, y, risk=0.5, delta=0.1, sample_weight=weight, verbose=0)
    with pytest.raises(ValueError, match="`sample_weight` must be"):
        classifier.fit(x, y, coverage=0.5, sample_weight=-weight, verbose=0)
    classifier.fit(x, y, coverage=0.5, sample_weight=weight, verbose=0)
    accepted = softmax(x).max(-1) >= classifier.threshold
    share = weight[accepted].sum() / weight.sum()
    assert classifier.record.coverage == pytest.approx(share, rel=1e-5)
    assert classifier.record.bound is None
    found = classifier.evaluate(*draw(300, seed=1), sample_weight=weight, verbose=0)
    assert math.isnan(found["selective_risk_bound"])
    wrong = softmax(draw(300, seed=1)[0]).argmax(-1) != draw(300, seed=1)[1]
    assert found["accuracy"] == pytest.approx(1 - np.average(wrong, weights=weight))


def test_groups_are_the_unit_of_the_guarantee():
    model, _ = token_model()
    x, y = tokens(400)
    target = {"risk": 0.35, "delta": 0.1, "verbose": 0}
    classifier = SelectiveClassifier(model).fit(x, y, groups="first_axis", **target)
    assert classifier.record.groups == 400
    assert "groups=400" in repr(classifier)
    same = SelectiveClassifier(model).fit(x, y, groups=np.arange(400), **target)
    assert same.threshold == classifier.threshold
    each = np.broadcast_to(np.arange(400)[:, None], y.shape)
    same = SelectiveClassifier(model).fit(x, y, groups=each, **target)
    assert same.threshold == classifier.threshold
    with pytest.warns(UserWarning, match='Pass `groups="first_axis"`'):
        tokenwise = SelectiveClassifier(model).fit(x, y, **target)
    assert tokenwise.record.groups is None
    assert tokenwise.threshold <= classifier.threshold
    for groups in ("sequences", np.arange(399), np.zeros((400, 3))):
        with pytest.raises(ValueError, match="`groups` must be"):
            SelectiveClassifier(model).fit(x, y, groups=groups, **target)


def test_an_unfitted_calibrator_gets_half_of_the_groups():
    x, y = draw(600)
    groups = np.repeat(np.arange(150), 4)
    classifier = SelectiveClassifier(identity(), calibrator=TemperatureScaling())
    classifier.fit(x, y, coverage=0.6, groups=groups, verbose=0)
    rows = first_half(150)[groups]
    expected = TemperatureScaling().fit(x[rows], y[rows]).temperature
    assert classifier.calibrator.temperature == pytest.approx(expected, rel=1e-5)
    assert classifier.record.n == (~rows).sum()


def test_data_set_of_the_backend():
    model, _ = token_model()
    x, y = tokens(64)
    weight = np.random.default_rng(0).integers(0, 2, y.shape).astype("float32")
    if BACKEND == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(10)
    elif BACKEND == "torch":
        import torch

        parts = [torch.from_numpy(part) for part in (x, y, weight)]
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*parts), 10)
    else:
        data = [
            tuple(ops.convert_to_tensor(part[i : i + 10]) for part in (x, y, weight))
            for i in range(0, 64, 10)
        ]
    expected = SelectiveClassifier(model)
    expected.fit(x, y, coverage=0.5, sample_weight=weight, verbose=0)
    classifier = SelectiveClassifier(model).fit(data, coverage=0.5, verbose=0)
    assert_same_classifier(classifier, expected)


def test_halves_are_those_of_the_samples_that_count():
    x, y = draw(400)
    model = identity(activation="softmax")
    for kept in (0, 1):
        counts = np.arange(400) % 2 == kept
        one, two = (
            SelectiveClassifier(model, calibrator=TemperatureScaling()).fit(
                *data, coverage=0.8, verbose=0, **weight
            )
            for data, weight in (
                ((x, y), {"sample_weight": counts.astype("float32")}),
                ((x[counts], y[counts]), {}),
            )
        )
        assert one.threshold == two.threshold
        assert one.record.n == two.record.n == 100


def unequal_batches(axis, k=6, seed=0):
    """Returns a model that gives its inputs, and batches of different lengths."""
    rng = np.random.default_rng(seed)
    batches = []
    for length in (6, 2, 4):
        y = rng.integers(0, k, (8, length))
        z = 3 * np.eye(k)[y] + rng.normal(size=(8, length, k))
        batches.append((np.moveaxis(z.astype("float32"), -1, axis), y))
    shape = (None, k) if axis == -1 else (k, None)
    model = keras.Sequential([keras.Input(shape), layers.Activation("linear")])
    return model, batches


@pytest.mark.parametrize("axis", [-1, 1])
def test_batches_of_different_lengths_with_channels_first(axis):
    model, batches = unequal_batches(axis)
    classifier = SelectiveClassifier(model, axis=axis)
    classifier.fit(batches, coverage=0.5, verbose=0)
    assert classifier.record.n == 8 * (6 + 2 + 4)
    calibrator = TemperatureScaling(axis=axis).fit_model(model, batches, verbose=0)
    rows = [np.moveaxis(z, axis, -1).reshape(-1, 6) for z, _ in batches]
    labels = np.concatenate([y.reshape(-1) for _, y in batches])
    expected = TemperatureScaling().fit(np.concatenate(rows), labels)
    assert calibrator.temperature == pytest.approx(expected.temperature, rel=1e-6)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("kind", [SelectiveClassifier, ConformalClassifier])
def test_padding_of_batches_without_labels_is_no_data(kind, axis):
    model, batches = unequal_batches(axis)
    unlabelled = [(x,) for x, _ in batches]
    classifier = kind(model, calibrator=TemperatureScaling(axis=axis), axis=axis)
    target = {"coverage": 0.5} if kind is SelectiveClassifier else {}
    classifier.fit(batches, groups="first_axis", verbose=0, **target)
    p = np.moveaxis(classifier.predict_proba(unlabelled, verbose=0), axis, -1)
    prediction = classifier.predict(unlabelled, verbose=0)
    assert p.shape == (24, 6, 6)
    assert prediction.labels.shape == (24, 6)
    real = np.arange(6) < np.repeat([6, 2, 4], 8)[:, None]
    np.testing.assert_array_equal(np.isnan(p).any(-1), ~real)
    assert (prediction.labels[~real] == ABSTAINED).all()
    if kind is ConformalClassifier:
        assert not prediction.sets[~real].any()
    else:
        assert not prediction.accepted[~real].any()
        np.testing.assert_array_equal(np.isnan(prediction.confidence), ~real)
    # The others are those of each batch by itself.
    for i, (x, _) in enumerate(batches):
        rows, length = slice(8 * i, 8 * i + 8), batches[i][1].shape[1]
        alone = classifier.predict(x, verbose=0)
        for found, expected in zip(prediction, alone, strict=True):
            np.testing.assert_allclose(found[rows, :length], expected, rtol=1e-5)


def test_checks_without_labels_leave_padding_out():
    model, batches = unequal_batches(-1)
    classifier = SelectiveClassifier(model)
    classifier.fit(batches, coverage=0.5, groups="first_axis", verbose=0)
    new = unequal_batches(-1, seed=1)[1]
    unlabelled = [(x,) for x, _ in new]
    expected = classifier.check(new, verbose=0)
    found = classifier.check(unlabelled, verbose=0)
    assert found[:7] == pytest.approx(expected[:7])
    once, by_batch = (classifier.monitor() for _ in range(2))
    once.update(unlabelled)
    for x, _ in new:
        by_batch.update(x)
    assert once.n == by_batch.n == 24
    assert once.log_capital == pytest.approx(by_batch.log_capital, rel=1e-5)


def test_batches_of_different_numbers_of_classes_are_refused():
    model = keras.Sequential([keras.Input((None,)), layers.Activation("linear")])
    x, y = draw(64)
    classifier = SelectiveClassifier(model).fit(x, y, coverage=0.5, verbose=0)
    with pytest.raises(ValueError, match="the same number of classes in all batches"):
        classifier.predict([(x,), (x[:, :2],)], verbose=0)
