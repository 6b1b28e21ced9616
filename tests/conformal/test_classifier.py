"""Classifiers that answer with prediction sets, and their files."""

import math

import keras
import numpy as np
import pytest
from classifier_data import KINDS, METHODS, draw, first_half, identity, network
from keras import layers
from reference import softmax

from keras_selcal import ConformalClassifier, TemperatureScaling
from keras_selcal.conformal import (
    ConformalLayer,
    ConformalPrediction,
    choose_penalty,
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)

# Each method, not randomised and randomised.


@pytest.mark.parametrize("kind", KINDS)
def test_classifier_equals_the_functions(kind):
    x, y = draw(500, 7)
    new, new_y = draw(500, 7, seed=1)
    options = {"method": kind[0], "seed": kind[1]}
    classifier = ConformalClassifier(identity(7), alpha=0.15, **options)
    assert classifier.threshold is None
    assert classifier.fit(x, y, verbose=0) is classifier
    scores = conformal_scores(x, y, from_logits=True, **options)
    q = conformal_threshold(scores, 0.15)
    # u is rounded to about 1e-4 in float32.
    exact = kind[1] is None
    assert classifier.threshold == pytest.approx(q, abs=3e-6 if exact else 2e-3)
    prediction = classifier.predict(new, verbose=0)
    assert isinstance(prediction, ConformalPrediction)
    expected = conformal_sets(new, q, from_logits=True, **options)
    assert prediction.sets.dtype == bool
    assert (prediction.sets != expected).sum() <= (0 if exact else 3)
    np.testing.assert_array_equal(prediction.sizes, prediction.sets.sum(-1))
    np.testing.assert_array_equal(prediction.labels, new.argmax(-1))

    figures = classifier.evaluate(new, new_y, verbose=0)
    sets, sizes = prediction.sets, prediction.sizes
    covered = sets[np.arange(500), new_y]
    assert figures["coverage"] == covered.mean()
    assert figures["mean_size"] == sizes.mean()
    assert figures["singleton_rate"] == (sizes == 1).mean()
    assert figures["empty_rate"] == (sizes == 0).mean()
    assert figures["accuracy"] == (new.argmax(-1) == new_y).mean()
    for c in range(7):
        expected = covered[new_y == c].mean()
        assert figures["class_coverage"][c] == pytest.approx(expected)
    for size in range(8):
        assert figures["size_rate"][size] == (sizes == size).mean()
        if (sizes == size).any():
            expected = covered[sizes == size].mean()
            assert figures["size_coverage"][size] == pytest.approx(expected)
        else:
            assert math.isnan(figures["size_coverage"][size])


def test_probabilities_and_logits_give_the_same_sets():
    x, y = draw()
    new = draw(seed=1)[0]
    logits, probabilities = (
        ConformalClassifier(identity(activation=last), method="aps").fit(
            x, y, verbose=0
        )
        for last in ("linear", "softmax")
    )
    assert (logits.from_logits, probabilities.from_logits) == (True, False)
    np.testing.assert_array_equal(
        logits.predict(new, verbose=0).sets, probabilities.predict(new, verbose=0).sets
    )
    p = logits.predict_proba(new, verbose=0)
    np.testing.assert_allclose(p, softmax(new), atol=1e-6)


@pytest.mark.parametrize("from_logits", [True, False])
def test_one_sigmoid_unit_equals_two_columns(from_logits):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    z = (3 * y - 1.5 + rng.normal(size=400)).astype("float32")[:, None]
    columns = np.concatenate([np.zeros_like(z), z], -1)
    if not from_logits:
        z = (1 / (1 + np.exp(-z))).astype("float32")
        columns = np.concatenate([1 - z, z], -1)
    sets = []
    for x, k in ((z, 1), (columns, 2)):
        classifier = ConformalClassifier(
            identity(k), method="aps", seed=0, from_logits=from_logits
        )
        classifier.fit(x[:200], y[:200], verbose=0)
        sets.append(classifier.predict(x[200:], verbose=0).sets)
        assert classifier.evaluate(x[200:], y[200:], verbose=0)["coverage"] > 0.8
    assert sets[0].shape == (200, 2)
    np.testing.assert_array_equal(*sets)


def test_one_sigmoid_unit_with_a_calibrator():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    z = (3 * y - 1.5 + rng.normal(size=600)).astype("float32")[:, None]
    model = keras.Sequential([keras.Input((1,)), layers.Rescaling(5.0)])
    classifier = ConformalClassifier(model, calibrator=TemperatureScaling())
    classifier.fit(z, y, verbose=0)
    t = classifier.calibrator.temperature
    assert 1 < t < 4
    p = classifier.predict_proba(z, verbose=0)
    np.testing.assert_allclose(p[:, 1:], 1 / (1 + np.exp(-5 * z / t)), atol=1e-5)
    rest = ~first_half(600)
    scores = conformal_scores(p[rest], y[rest])
    q = conformal_threshold(scores, 0.1)
    assert classifier.threshold == pytest.approx(q, abs=3e-6)


def test_class_conditional_classifier():
    x, y = draw(600, 4)
    new = draw(300, 4, seed=1)[0]
    classifier = ConformalClassifier(identity(4), class_conditional=True)
    classifier.fit(x, y, verbose=0)
    scores = conformal_scores(x, y, from_logits=True)
    q = conformal_threshold(scores, 0.1, categories=y)
    np.testing.assert_allclose(classifier.threshold, q, atol=3e-6)
    np.testing.assert_array_equal(
        classifier.predict(new, verbose=0).sets,
        conformal_sets(new, q, from_logits=True),
    )
    assert classifier.record.per_class
    assert not classifier.record.per_stratum


@pytest.mark.parametrize("per_class", [False, True])
def test_coverage_with_confidence(per_class, tmp_path):
    x, y = draw(900, 4)
    classifier = ConformalClassifier(
        identity(4), alpha=0.2, delta=0.1, class_conditional=per_class
    )
    classifier.fit(x, y, verbose=0)
    scores = conformal_scores(x, y, from_logits=True)
    options = {"categories": y} if per_class else {}
    q = conformal_threshold(scores, 0.2, delta=0.1, **options)
    np.testing.assert_allclose(classifier.threshold, q, atol=3e-6)
    assert np.all(q > conformal_threshold(scores, 0.2, **options))
    assert (classifier.record.alpha, classifier.record.delta) == (0.2, 0.1)
    assert "delta=0.1" in repr(classifier)
    classifier.save(tmp_path / "sets.keras")
    loaded = ConformalClassifier.load(tmp_path / "sets.keras")
    assert (loaded.delta, loaded.record) == (0.1, classifier.record)
    np.testing.assert_array_equal(loaded.threshold, classifier.threshold)


def test_too_few_samples_for_delta_say_how_many_it_takes():
    x, y = draw(40, 4)
    classifier = ConformalClassifier(identity(4), alpha=0.1, delta=0.01)
    with pytest.warns(UserWarning, match="it takes at least 44"):
        classifier.fit(x, y, verbose=0)
    assert classifier.predict(x, verbose=0).sets.all()
    with pytest.raises(ValueError, match="`delta` must be"):
        ConformalClassifier(identity(4), delta=1)


def test_strata_have_thresholds_of_their_own(tmp_path):
    x, y = draw(600, 3)
    hospital = np.array(["north", "east", "west"])[np.arange(600) % 3]
    x[hospital == "west"] *= 0.2
    classifier = ConformalClassifier(identity())
    classifier.fit(x, y, strata=hospital, verbose=0)
    assert classifier.strata == ["east", "north", "west"]
    for name, q in zip(classifier.strata, classifier.threshold, strict=True):
        here = hospital == name
        scores = conformal_scores(x[here], y[here], from_logits=True)
        assert q == pytest.approx(conformal_threshold(scores, 0.1), abs=3e-6)
    new, new_y = draw(90, 3, seed=1)
    figures = classifier.evaluate(new, new_y, strata=hospital[:90], verbose=0)
    assert set(figures["stratum_coverage"]) == set(classifier.strata)
    sets = classifier.predict(new, strata=hospital[:90], verbose=0).sets
    # Classes and strata together.
    both = ConformalClassifier(identity(), class_conditional=True)
    both.fit(x, y, strata=hospital, verbose=0)
    assert both.threshold.shape == (3, 3)
    # A saved model takes the index of the stratum as a second input.
    classifier.save(tmp_path / "sets.keras")
    loaded = ConformalClassifier.load(tmp_path / "sets.keras")
    again = loaded.predict(new, strata=hospital[:90], verbose=0).sets
    np.testing.assert_array_equal(again, sets)
    index = np.array([classifier.strata.index(h) for h in hospital[:90]])
    answer = loaded.as_model().predict([new, index], verbose=0)
    np.testing.assert_array_equal(answer["sets"], sets)
    with pytest.raises(ValueError, match="`strata` must be one of those in `fit`"):
        classifier.predict(new[:1], strata=np.array(["south"]), verbose=0)
    with pytest.raises(ValueError, match="`strata` must be one entry for each"):
        classifier.predict(new, verbose=0)
    classifier.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="`strata` must be None"):
        classifier.predict(new, strata=hospital[:90], verbose=0)


def test_penalty_auto_selects_on_a_random_half():
    x, y = draw(1000, 8)
    classifier = ConformalClassifier(identity(8), method="raps", penalty="auto")
    classifier.fit(x, y, verbose=0)
    first = first_half(1000)
    chosen = choose_penalty(x[first], y[first], 0.1, method="raps", from_logits=True)
    options = {"method": "raps", "from_logits": True, **chosen}
    q = conformal_threshold(conformal_scores(x[~first], y[~first], **options), 0.1)
    assert classifier.threshold == pytest.approx(q, abs=1e-5)


def test_too_few_samples_give_sets_of_all_classes():
    x, y = draw(8)
    classifier = ConformalClassifier(identity())
    with pytest.warns(UserWarning, match=r"8 calibration samples .* at least 9"):
        classifier.fit(x, y, verbose=0)
    assert classifier.threshold == math.inf
    assert classifier.predict(x, verbose=0).sets.all()


def test_predictions_that_are_not_finite_get_all_classes():
    x, y = draw()
    for method in METHODS:
        classifier = ConformalClassifier(identity(), method=method)
        classifier.fit(x, y, verbose=0)
        bad = np.array([[np.nan, 1, 2], [9, -9, -9]], "float32")
        sizes = classifier.predict(bad, verbose=0).sizes
        assert sizes[0] == 3
        assert sizes[1] <= 1


# Saving


def fitted(tmp_path, **options):
    x, y = draw(900, 6)
    classifier = ConformalClassifier(network(6), **options)
    classifier.fit(x, y, verbose=0)
    classifier.save(tmp_path / "classifier.keras")
    return classifier


OPTIONS = [
    {"calibrator": TemperatureScaling()},
    {"method": "aps", "seed": 4, "class_conditional": True},
    {"method": "raps", "penalty": "auto", "seed": 1, "allow_empty": False},
    {"method": "saps", "penalty": 0.1, "alpha": 0.02},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_save_and_load(options, tmp_path):
    classifier = fitted(tmp_path, **options)
    loaded = ConformalClassifier.load(tmp_path / "classifier.keras")
    new, new_y = draw(300, 6, seed=1)
    ours, theirs = (c.predict(new, verbose=0) for c in (classifier, loaded))
    np.testing.assert_array_equal(ours.sets, theirs.sets)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_array_equal(loaded.threshold, classifier.threshold)
    assert loaded.record == classifier.record
    for name in ("method", "alpha", "seed", "class_conditional", "allow_empty"):
        assert getattr(loaded, name) == getattr(classifier, name)
    assert type(loaded.calibrator) is type(classifier.calibrator)
    assert loaded.record.alpha == classifier.alpha
    ours, theirs = (c.evaluate(new, new_y, verbose=0) for c in (classifier, loaded))
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value)
    loaded.fit(new, new_y, verbose=0)  # and is fitted again
    assert repr(loaded).startswith("ConformalClassifier(")


def test_the_file_is_a_keras_model_that_gives_sets(tmp_path):
    classifier = fitted(tmp_path, method="raps")
    model = keras.saving.load_model(tmp_path / "classifier.keras")
    assert isinstance(model.layers[-1], ConformalLayer)
    new = draw(300, 6, seed=1)[0]
    answer = model.predict(new, verbose=0)
    prediction = classifier.predict(new, verbose=0)
    np.testing.assert_array_equal(answer["sets"], prediction.sets)
    np.testing.assert_array_equal(answer["sizes"], prediction.sizes)
    np.testing.assert_array_equal(answer["labels"], prediction.labels)
