"""Selective classifiers with binary, multi-label and dense outputs; their record."""

import math

import keras
import numpy as np
import pytest
import real_data
from classifier_data import assert_same_classifier, draw, first_half, identity
from keras import layers
from reference import softmax

from keras_selcal import SelectiveClassifier, TemperatureScaling
from keras_selcal.selective import ABSTAINED, risk_bound
from keras_selcal.selective.record import FitRecord


def test_record_and_repr(tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(identity())
    assert classifier.record is None
    assert "threshold=None" in repr(classifier)
    classifier.fit(x, y, risk=0.2, delta=0.05, verbose=0)
    record = classifier.record
    assert isinstance(record, FitRecord)
    assert (record.n, record.target_risk, record.delta) == (600, 0.2, 0.05)
    assert record.bound == 0.2
    accepted = softmax(x).max(-1) >= classifier.threshold
    assert record.coverage == pytest.approx(accepted.mean())
    for part in (
        f"threshold={classifier.threshold:.4f}"[:14],
        f"coverage={record.coverage:.4g}",
        "n=600",
        "target_risk=0.2",
        "delta=0.05",
        "bound=0.2",
    ):
        assert part in repr(classifier)
    classifier.save(tmp_path / "a.keras")
    loaded = SelectiveClassifier.load(tmp_path / "a.keras")
    assert loaded.record == record
    assert repr(loaded).split("csf")[1] == repr(classifier).split("csf")[1]
    # A coverage promises what the exact bound says; a risk without δ nothing.
    record = classifier.fit(x, y, coverage=0.5, verbose=0).record
    errors = round(record.selective_risk * 300)
    assert record.bound == pytest.approx(risk_bound(errors, 300, 0.05))
    with pytest.warns(UserWarning, match="without `delta`"):
        classifier.fit(x, y, risk=0.2, verbose=0)
    assert classifier.record.bound is None
    with pytest.warns(UserWarning, match="Did you mean"):
        classifier.fit(x, y, risk=0.2, delta=0.95, verbose=0)


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, "float64")))


def binary(n=800, seed=0):
    rng = np.random.default_rng(seed)
    z = (2 * rng.normal(size=(n, 1))).astype("float32")
    return z, (rng.random(n) < sigmoid(z[:, 0])).astype("int32")


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_one_sigmoid_unit_equals_two_columns(activation, tmp_path):
    z, y = binary()
    # A calibrator raises probabilities to half of the smallest one at its fit.
    z = z.clip(-4, 4)
    one = SelectiveClassifier(
        identity(1, activation=activation or "linear"),
        from_logits=None if activation else True,
        calibrator=TemperatureScaling(),
    )
    assert one.from_logits is (activation is None)
    columns = np.concatenate([np.zeros_like(z), z], -1)
    two = SelectiveClassifier(identity(2), calibrator=TemperatureScaling())
    target = {"risk": 0.15, "delta": 0.1, "verbose": 0}
    for labels in (y, y[:, None], y.astype(bool), y.astype("float32")):
        one.fit(z, labels, **target)
    two.fit(columns, y, **target)
    assert one.threshold == pytest.approx(two.threshold, abs=1e-5)
    for a, b in zip(
        one.predict(z, verbose=0), two.predict(columns, verbose=0), strict=True
    ):
        assert a.shape == (800,)
        np.testing.assert_allclose(a, b, atol=1e-5)
    p = one.predict_proba(z, verbose=0)
    np.testing.assert_allclose(p, two.predict_proba(columns, verbose=0), atol=1e-5)
    test_z, test_y = binary(seed=1)
    assert one.evaluate(test_z, test_y, verbose=0)["accuracy"] == pytest.approx(
        ((test_z[:, 0] > 0) == test_y).mean()
    )
    one.save(tmp_path / "one.keras")
    loaded = SelectiveClassifier.load(tmp_path / "one.keras")
    for a, b in zip(
        one.predict(z, verbose=0), loaded.predict(z, verbose=0), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_decision_threshold():
    z, y = binary()
    classifier = SelectiveClassifier(
        identity(1, activation="sigmoid"), decision_threshold=0.2
    ).fit(z, y, coverage=0.5, verbose=0)
    labels, accepted, confidence = classifier.predict(z, verbose=0)
    p = sigmoid(z[:, 0])
    np.testing.assert_array_equal(labels[accepted], (p > 0.2)[accepted])
    # Confidence is lowest at the decision threshold.
    assert abs(p[confidence.argmin()] - 0.2) < 0.01
    odds = p / (1 - p) * 4
    np.testing.assert_allclose(confidence, np.maximum(odds, 1) / (1 + odds), atol=1e-5)
    found = classifier.evaluate(*binary(seed=1), verbose=0)
    test_z, test_y = binary(seed=1)
    expected = ((sigmoid(test_z[:, 0]) > 0.2) == test_y).mean()
    assert found["accuracy"] == pytest.approx(expected)
    with pytest.raises(ValueError, match="`decision_threshold` must be"):
        SelectiveClassifier(identity(), decision_threshold=0.2).fit(
            *draw(), coverage=0.5, verbose=0
        )


def several(n=3000, seed=0):
    """Three labels: certain, uncertain, and pure chance."""
    rng = np.random.default_rng(seed)
    z = (rng.normal(size=(n, 3)) * (6, 3, 0.2)).astype("float32")
    return z, (rng.random((n, 3)) < sigmoid(z)).astype("int32")


def test_multi_label_has_a_threshold_and_a_guarantee_for_each_label(tmp_path):
    z, y = several()
    classifier = SelectiveClassifier(identity(activation="sigmoid"), multi_label=True)
    with pytest.warns(UserWarning, match=r"Labels \[2\] are never answered"):
        classifier.fit(z, y, risk=0.05, delta=0.1, verbose=0)
    p = sigmoid(z)
    # Each label is one sigmoid unit, at δ/3.
    for label in range(2):
        alone = SelectiveClassifier(identity(1, activation="sigmoid"))
        alone.fit(z[:, label, None], y[:, label], risk=0.05, delta=0.1 / 3, verbose=0)
        assert classifier.threshold[label] == pytest.approx(alone.threshold, abs=1e-6)
        coverage = classifier.record.coverage[label]
        assert coverage == pytest.approx(alone.record.coverage)
    assert classifier.threshold[2] == math.inf
    assert classifier.record.bound == (0.05,) * 3
    labels, accepted, confidence = classifier.predict(z, verbose=0)
    assert labels.shape == accepted.shape == confidence.shape == z.shape
    np.testing.assert_allclose(confidence, np.maximum(p, 1 - p), atol=1e-5)
    np.testing.assert_array_equal(labels[accepted], (p > 0.5)[accepted])
    assert (labels[~accepted] == ABSTAINED).all()
    assert not accepted[:, 2].any()
    np.testing.assert_allclose(classifier.predict_proba(z, verbose=0), p, atol=1e-6)
    test_z, test_y = several(seed=1)
    found = classifier.evaluate(test_z, test_y.astype("float32"), verbose=0)
    right = (test_z > 0) == test_y
    np.testing.assert_allclose(found["accuracy"], right.mean(0))
    assert (found["selective_risk"][:2] < 0.06).all()
    assert math.isnan(found["selective_risk"][2])
    classifier.save(tmp_path / "several.keras")
    loaded = SelectiveClassifier.load(tmp_path / "several.keras")
    assert loaded.record == classifier.record or math.isnan(
        loaded.record.selective_risk[2]
    )
    np.testing.assert_array_equal(loaded.threshold, classifier.threshold)
    np.testing.assert_array_equal(loaded.predict(z, verbose=0).labels, labels)


def test_multi_label_with_a_calibrator(tmp_path):
    z, y = several()
    # Logits that are three times too large in one label; half of them are ignored.
    z[:, 1] *= 3
    y[::3, 1] = -1
    calibrator = TemperatureScaling(multi_label=True)
    classifier = SelectiveClassifier(
        identity(), calibrator=calibrator, multi_label=True, ignore_class=-1
    )
    classifier.fit(z, y, coverage=0.5, verbose=0)
    temperature = classifier.calibrator.temperature
    np.testing.assert_allclose(temperature[:2], [1, 3], rtol=0.15)
    p = sigmoid(z / temperature)
    found = classifier.predict_proba(z, verbose=0)
    np.testing.assert_allclose(found, p, atol=1e-5)
    rows = ~first_half(3000)
    counts = rows & (y[:, 1] >= 0)
    accepted = classifier.predict(z, verbose=0).accepted
    assert accepted[counts, 1].mean() == pytest.approx(0.5, abs=2e-3)
    assert classifier.record.coverage[1] == pytest.approx(accepted[counts, 1].mean())
    classifier.save(tmp_path / "several.keras")
    loaded = SelectiveClassifier.load(tmp_path / "several.keras")
    assert loaded.outputs == classifier.outputs
    np.testing.assert_array_equal(loaded.predict(z, verbose=0).accepted, accepted)
    with pytest.raises(ValueError, match="one with multi_label=True"):
        SelectiveClassifier(
            identity(), calibrator=TemperatureScaling(), multi_label=True
        )


def test_multi_hot_labels_name_the_option():
    z, y = several()
    for model in (identity(activation="softmax"), identity()):
        with pytest.raises(ValueError, match="`multi_label=True`"):
            SelectiveClassifier(model).fit(z, y, coverage=0.5, verbose=0)
    with pytest.raises(ValueError, match="multi_label=True"):
        SelectiveClassifier(identity(activation="sigmoid")).fit(
            z, y[:, 0], coverage=0.5, verbose=0
        )


def test_pixels_ignored_classes_and_channels_first():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 4, 5, 3)).astype("float32")
    y = rng.integers(0, 3, (20, 4, 5))
    last = SelectiveClassifier(identity(4, 5, 3)).fit(x, y, coverage=0.5, verbose=0)
    prediction = last.predict(x, verbose=0)
    assert prediction.labels.shape == (20, 4, 5)
    assert prediction.accepted.mean() == 0.5
    first = SelectiveClassifier(identity(3, 4, 5), axis=1)
    moved = np.moveaxis(x, -1, 1)
    first.fit(moved, y, coverage=0.5, verbose=0)
    assert first.threshold == pytest.approx(last.threshold, abs=1e-6)
    np.testing.assert_array_equal(
        first.predict(moved, verbose=0).labels, prediction.labels
    )
    assert first.predict_proba(moved, verbose=0).shape == (20, 3, 4, 5)
    y[:, 0] = 255
    with pytest.raises(ValueError, match="255"):
        SelectiveClassifier(identity(4, 5, 3)).fit(x, y, coverage=0.5, verbose=0)
    ignoring = SelectiveClassifier(identity(4, 5, 3), ignore_class=255)
    ignoring.fit(x, y, coverage=0.5, verbose=0)
    rest = SelectiveClassifier(identity(3, 5, 3))
    rest.fit(x[:, 1:], y[:, 1:], coverage=0.5, verbose=0)
    assert_same_classifier(ignoring, rest)


@pytest.mark.parametrize(
    ("model", "labels", "match"),
    [
        (identity(1, activation="sigmoid"), [-1, 1] * 50, "0 or 1"),
        (identity(1, activation="sigmoid"), [0, 2] * 50, "0 or 1"),
        (identity(1, activation="sigmoid"), [0.0, 0.5] * 50, "not soft labels"),
        (identity(1, activation="relu6"), [0, 1] * 50, "its last operation is no"),
        (identity(2), [0, 1.7] * 50, "whole class indices"),
        (identity(2), [0, math.nan] * 50, "whole class indices"),
        (identity(2, activation="sigmoid"), [0, 1] * 50, "multi_label=True"),
    ],
)
def test_bad_input_is_refused(model, labels, match):
    x = np.random.default_rng(0).uniform(size=(100, model.input_shape[-1]))
    with pytest.raises(ValueError, match=match):
        SelectiveClassifier(model).fit(x, np.array(labels), coverage=0.5, verbose=0)


def test_real_reviews_keep_the_promised_risk():
    data = real_data.load_logits("imdb_probs.npz")
    p, y = data["probs"][:, 1], data["labels"]
    order = np.random.default_rng(0).permutation(len(y))
    p, y = p[order, None], y[order]
    model = keras.Sequential([keras.Input((1,)), layers.Identity()])
    classifier = SelectiveClassifier(model, from_logits=False)
    classifier.fit(
        p[:5000], y[:5000], risk=0.05, delta=0.05, batch_size=5000, verbose=0
    )
    found = classifier.evaluate(p[5000:], y[5000:], batch_size=5000, verbose=0)
    right = (p[5000:, 0] > 0.5) == y[5000:]
    assert found["accuracy"] == pytest.approx(right.mean())
    accepted = np.maximum(p, 1 - p)[5000:, 0] >= classifier.threshold
    assert found["coverage"] == pytest.approx(accepted.mean(), abs=1e-3)
    assert found["selective_risk"] == pytest.approx(
        1 - right[accepted].mean(), abs=1e-3
    )
    assert found["selective_risk"] <= 0.05
    assert found["coverage"] > 0.7
