"""Classifiers that abstain."""

import math
import os
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest
from backends import numpy
from keras import layers, ops
from processes import other_backends
from reference import score, softmax

from keras_selcal import MetaMis, SelectiveClassifier, TemperatureScaling
from keras_selcal.selective import (
    ABSTAINED,
    SelectionLayer,
    SelectivePrediction,
    risk_bound,
)


def draw(n=600, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    x = 2 * np.eye(k)[y] + rng.normal(size=(n, k))
    return x.astype("float32"), y


def logits_model(k=3, last=layers.Identity):
    return keras.Sequential([keras.Input((k,)), last()])


@pytest.mark.parametrize("csf", ["msp", "margin", "neg_entropy"])
def test_fit_predict_evaluate(csf):
    x, y = draw()
    classifier = SelectiveClassifier(logits_model(), csf=csf)
    assert classifier.threshold is None
    assert classifier.fit(x, y, coverage=0.7, verbose=0) is classifier
    s = score(softmax(x), csf)
    assert classifier.threshold == pytest.approx(np.sort(s)[::-1][419], abs=1e-5)
    test_x, test_y = draw(seed=1)
    prediction = classifier.predict(test_x, verbose=0)
    assert isinstance(prediction, SelectivePrediction)
    labels, accepted, confidence = prediction
    s = score(softmax(test_x), csf)
    np.testing.assert_allclose(confidence, s, atol=1e-5)
    np.testing.assert_array_equal(accepted, confidence >= classifier.threshold)
    assert accepted.dtype == bool
    np.testing.assert_array_equal(labels[accepted], test_x.argmax(-1)[accepted])
    assert (labels[~accepted] == ABSTAINED).all()
    assert 0 < accepted.sum() < 600
    figures = classifier.evaluate(test_x, test_y, verbose=0)
    right = test_x.argmax(-1) == test_y
    assert figures == pytest.approx(
        {
            "coverage": accepted.mean(),
            "selective_risk": 1 - right[accepted].mean(),
            "selective_risk_bound": risk_bound(
                int((~right[accepted]).sum()), int(accepted.sum()), 0.05
            ),
            "accuracy": right.mean(),
        }
    )


def test_coverage_on_the_fitting_data_is_exact():
    x, y = draw()
    classifier = SelectiveClassifier(logits_model()).fit(x, y, coverage=0.5, verbose=0)
    assert classifier.predict(x, verbose=0).accepted.sum() == 300
    # In batches of one, rounding may differ; the margin absorbs it.
    accepted = classifier.predict(x[:50], batch_size=1, verbose=0).accepted
    np.testing.assert_array_equal(accepted, classifier.predict(x, verbose=0)[1][:50])


def test_risk_targets_and_delta():
    x, y = draw(n=2000)
    classifier = SelectiveClassifier(logits_model())
    with pytest.warns(UserWarning, match="without `delta`"):
        plain = classifier.fit(x, y, risk=0.1, verbose=0).threshold
    sure = classifier.fit(x, y, risk=0.1, delta=0.01, verbose=0).threshold
    assert sure > plain
    test_x, test_y = draw(n=2000, seed=1)
    of_fit = classifier.evaluate(test_x, test_y, verbose=0)
    looser = classifier.evaluate(test_x, test_y, delta=0.5, verbose=0)
    assert of_fit["selective_risk_bound"] > looser["selective_risk_bound"]
    assert looser["selective_risk_bound"] > looser["selective_risk"]


def test_probabilities_and_logits_agree():
    x, y = draw()
    test_x = draw(seed=1)[0]
    for make in (lambda: None, TemperatureScaling):
        given = [
            SelectiveClassifier(logits_model(last=last), calibrator=make()).fit(
                x, y, coverage=0.6, verbose=0
            )
            for last in (layers.Identity, layers.Softmax)
        ]
        assert [c.from_logits for c in given] == [True, False]
        logits, probabilities = (c.predict(test_x, verbose=0) for c in given)
        np.testing.assert_allclose(logits[2], probabilities[2], atol=1e-5)
        np.testing.assert_array_equal(logits[0], probabilities[0])
    with pytest.raises(ValueError, match="pass `from_logits=False`"):
        SelectiveClassifier(logits_model()).fit(softmax(x), y, coverage=0.6, verbose=0)
    with pytest.raises(ValueError, match="pass `from_logits=True`"):
        SelectiveClassifier(logits_model(), from_logits=False).fit(
            x, y, coverage=0.6, verbose=0
        )


def test_calibrator_fitted_and_not():
    x, y = draw(n=1000)
    calibrator = TemperatureScaling()
    model = keras.Sequential([keras.Input((3,)), layers.Rescaling(3.0)])
    classifier = SelectiveClassifier(model, calibrator=calibrator)
    classifier.fit(x, y, coverage=0.6, verbose=0)
    expected = TemperatureScaling().fit(3 * x[::2], y[::2]).temperature
    assert classifier.calibrator.temperature == pytest.approx(expected, rel=1e-5)
    assert not calibrator.fitted
    p = classifier.predict_proba(x[:9], verbose=0)
    np.testing.assert_allclose(p, softmax(3 * x[:9] / expected), atol=1e-5)
    s = softmax(3 * x[1::2] / expected).max(-1)
    assert classifier.threshold == pytest.approx(np.sort(s)[::-1][299], abs=1e-5)
    # A fitted one is left as it is and all samples select the threshold.
    calibrator = TemperatureScaling().fit(x, y)
    before = calibrator.temperature
    classifier = SelectiveClassifier(logits_model(), calibrator=calibrator)
    classifier.fit(x, y, coverage=0.6, verbose=0)
    assert classifier.calibrator is calibrator
    assert calibrator.temperature == before


def test_what_a_calibrator_rejects_is_never_accepted():
    x, y = draw(n=3000)
    calibrator = MetaMis(0.2).fit(x, y)
    answered = numpy(calibrator.accepts(x))
    assert 0.3 < answered.mean() < 0.9
    classifier = SelectiveClassifier(logits_model(), calibrator=calibrator)
    with pytest.raises(ValueError, match="No threshold accepts a share"):
        classifier.fit(x, y, coverage=1.0, verbose=0)
    assert classifier.threshold is None
    classifier.fit(x, y, risk=1.0, delta=0.1, verbose=0)
    test_x, test_y = draw(n=3000, seed=1)
    labels, accepted, _ = classifier.predict(test_x, verbose=0)
    rejected = ~numpy(calibrator.accepts(test_x))
    assert not accepted[rejected].any()
    assert (labels[rejected] == ABSTAINED).all()
    figures = classifier.evaluate(test_x, test_y, verbose=0)
    assert figures["accuracy"] == pytest.approx((test_x.argmax(-1) == test_y).mean())


def test_evaluating_on_the_fitting_data_warns():
    x, y = draw()
    classifier = SelectiveClassifier(logits_model()).fit(x, y, coverage=0.7, verbose=0)
    for same_x, same_y in ((x, y), (x.copy(), y.copy()), (x.copy(), np.eye(3)[y])):
        with pytest.warns(UserWarning, match="evaluated on the data"):
            classifier.evaluate(same_x, same_y, verbose=0)
    other = x.copy()
    other[0, 0] += 1e-3
    classifier.evaluate(other, y, verbose=0)  # a warning would be an error
    batches = [(x[i : i + 100], y[i : i + 100]) for i in range(0, 600, 100)]
    classifier.fit(iter(batches), coverage=0.7, verbose=0)
    with pytest.warns(UserWarning, match="evaluated on the data"):
        classifier.evaluate(iter(batches[::-1]), verbose=0)
    classifier.evaluate(iter(batches[1:]), verbose=0)


def test_a_failed_fit_changes_nothing():
    x, y = draw()
    classifier = SelectiveClassifier(logits_model(), calibrator=TemperatureScaling())
    classifier.fit(x, y, coverage=0.7, verbose=0)
    threshold, calibrator = classifier.threshold, classifier.calibrator
    for bad_x, bad_y, target in (
        (x, y, {}),
        (x, y + 5, {"coverage": 0.5}),
        (x * math.nan, y, {"coverage": 0.5}),
        (x, (x.argmax(-1) + 1) % 3, {"risk": 0.01, "delta": 0.01}),
    ):
        with pytest.raises(ValueError):
            classifier.fit(bad_x, bad_y, **target, verbose=0)
        assert classifier.threshold == threshold
        assert classifier.calibrator is calibrator


def test_nothing_accepted():
    x, y = draw()
    classifier = SelectiveClassifier(logits_model()).fit(x, y, coverage=0.01, verbose=0)
    figures = classifier.evaluate(np.zeros_like(x[:5]), y[:5], verbose=0)
    assert figures["coverage"] == 0
    assert math.isnan(figures["selective_risk"])
    assert figures["selective_risk_bound"] == 1


def test_pixels():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 4, 5, 3)).astype("float32")
    y = rng.integers(0, 3, (20, 4, 5))
    model = keras.Sequential([keras.Input((4, 5, 3)), layers.Identity()])
    classifier = SelectiveClassifier(model).fit(x, y, coverage=0.5, verbose=0)
    prediction = classifier.predict(x, verbose=0)
    assert prediction.labels.shape == (20, 4, 5)
    assert prediction.accepted.mean() == 0.5


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="`model` must be"):
        SelectiveClassifier("resnet")
    with pytest.raises(ValueError, match="`calibrator` must be"):
        SelectiveClassifier(logits_model(), calibrator="ts")
    classifier = SelectiveClassifier(logits_model())
    for call in (
        lambda: classifier.predict(np.eye(3), verbose=0),
        lambda: classifier.evaluate(np.eye(3), np.arange(3), verbose=0),
        lambda: classifier.save(tmp_path / "a.keras"),
    ):
        with pytest.raises(ValueError, match="call `fit`"):
            call()
    with pytest.raises(ValueError, match="`path` must be a path that ends"):
        classifier.save(tmp_path / "a.h5")
    logits_model().save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="`path` must be a file saved by"):
        SelectiveClassifier.load(tmp_path / "other.keras")


# Saving


@keras.saving.register_keras_serializable("test_selective")
def collision(probabilities):
    return ops.sum(probabilities**2, axis=-1)


def network(k=3):
    inputs = keras.Input((k,))
    hidden = layers.Dense(k, activation="tanh", kernel_initializer="identity")(inputs)
    outputs = layers.Dense(k, kernel_initializer=keras.initializers.Identity(4.0))
    return keras.Model(inputs, outputs(hidden))


@pytest.mark.parametrize("csf", ["neg_entropy", collision])
@pytest.mark.parametrize("make", [lambda: None, TemperatureScaling])
def test_save_and_load(csf, make, tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(network(), csf, calibrator=make())
    classifier.fit(x, y, risk=0.9, delta=0.2, verbose=0)
    path = tmp_path / "classifier.keras"
    classifier.save(path)
    loaded = SelectiveClassifier.load(path)
    assert loaded.threshold == classifier.threshold
    assert loaded.csf.serialize() == classifier.csf.serialize()
    assert type(loaded.calibrator) is type(classifier.calibrator)
    ours, theirs = (c.predict(x, verbose=0) for c in (classifier, loaded))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    test_x, test_y = draw(seed=1)
    assert loaded.evaluate(test_x, test_y, verbose=0) == pytest.approx(
        classifier.evaluate(test_x, test_y, verbose=0)
    )
    loaded.fit(x, y, coverage=0.5, verbose=0)  # and is fitted again
    assert loaded.predict(x, verbose=0).accepted.mean() >= 0.5


def test_the_file_is_a_keras_model_that_decides(tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(network()).fit(x, y, coverage=0.5, verbose=0)
    classifier.save(tmp_path / "classifier.keras")
    model = keras.saving.load_model(tmp_path / "classifier.keras")
    assert isinstance(model.layers[-1], SelectionLayer)
    answer = model.predict(draw(seed=1)[0], verbose=0)
    labels, accepted, confidence = classifier.predict(draw(seed=1)[0], verbose=0)
    np.testing.assert_array_equal(answer["labels"], labels)
    np.testing.assert_array_equal(answer["accepted"], accepted)
    np.testing.assert_allclose(answer["confidence"], confidence, atol=1e-6)
    np.testing.assert_allclose(answer["probabilities"].sum(-1), 1, atol=1e-5)


LOAD = """
import sys
import keras
import numpy as np
from keras_selcal import SelectiveClassifier
for path in sys.argv[1:]:
    data = np.load(path + ".npz")
    classifier = SelectiveClassifier.load(path + ".keras")
    labels, accepted, confidence = classifier.predict(data["x"], verbose=0)
    np.testing.assert_array_equal(labels, data["labels"])
    np.testing.assert_array_equal(accepted, data["accepted"])
    np.testing.assert_allclose(confidence, data["confidence"], atol=1e-5)
    np.testing.assert_array_equal(classifier.threshold, data["threshold"])
    assert repr(classifier.record) == str(data["record"])
print(keras.backend.backend())
"""


def saved(path, classifier, x):
    """Saves a classifier with its answers and returns the path without ending."""
    classifier.save(f"{path}.keras")
    np.savez(
        f"{path}.npz",
        x=x,
        threshold=classifier.threshold,
        record=repr(classifier.record),
        **classifier.predict(x, verbose=0)._asdict(),
    )
    return str(path)


def test_saved_here_loaded_on_another_backend(tmp_path):
    pythons = other_backends()
    if not pythons:
        pytest.skip("no other backend at hand: see KERAS_SELCAL_PYTHONS")
    x, y = draw()
    plain = SelectiveClassifier(network(), "margin", calibrator=TemperatureScaling())
    plain.fit(x, y, coverage=0.6, verbose=0)
    several = SelectiveClassifier(
        network(),
        calibrator=TemperatureScaling(multi_label=True),
        multi_label=True,
        decision_threshold=0.4,
    )
    several.fit(x, np.eye(3)[y], risk=0.3, delta=0.1, verbose=0)
    tokens = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(9, 1, mask_zero=True, embeddings_initializer="normal"),
            layers.Activation("sigmoid"),
        ]
    )
    ids = np.random.default_rng(0).integers(0, 9, (50, 4))
    padded = SelectiveClassifier(tokens).fit(ids, ids % 2, coverage=0.5, verbose=0)
    paths = [
        saved(tmp_path / name, classifier, data)
        for name, classifier, data in (
            ("plain", plain, x),
            ("several", several, x),
            ("padded", padded, ids),
        )
    ]
    root = str(Path(__file__).parents[1])
    for backend, python in pythons.items():
        result = subprocess.run(
            [python, "-c", LOAD, *paths],
            env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip().endswith(backend)


def test_inputs_that_are_refused_by_name():
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    y = x.argmax(-1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Activation("linear")])

    def fit(x, y, **options):
        classifier = SelectiveClassifier(model)
        return classifier.fit(x, y, coverage=0.8, verbose=0, **options)

    assert fit(x, y.tolist()).threshold == fit(x, y).threshold
    with pytest.raises(ValueError, match="`x` must be arrays or a data set"):
        fit(x.tolist(), y)
    with pytest.raises(ValueError, match="`y` must be one array"):
        fit(x, "labels")
    for call in (fit, fit(x, y).evaluate):
        with pytest.raises(ValueError, match="`x` must be arrays of at least one"):
            call(x[:0], y[:0])
    with pytest.raises(ValueError, match="`x` must be arrays of at least one"):
        fit(x, y).predict(x[:0], verbose=0)
    with pytest.raises(ValueError, match="`groups` must be numbers or words, not a"):
        fit(x, y, groups=np.array([None, "a"] * 30, object))
