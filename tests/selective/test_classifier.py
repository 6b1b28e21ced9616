"""Classifiers that abstain."""

import io
import math
import zipfile

import h5py
import keras
import numpy as np
import pytest
from backends import numpy
from classifier_data import draw, identity, network
from keras import ops
from reference import score, softmax

from keras_selcal import MetaMis, SelectiveClassifier, TemperatureScaling
from keras_selcal.selective import (
    ABSTAINED,
    SelectionLayer,
    SelectivePrediction,
    risk_bound,
)


@pytest.mark.parametrize(
    "csf",
    ["msp", "margin", "doctor", "gen", "energy", "max_logit", "max_logit_pnorm"],
)
def test_outputs_without_probabilities_are_not_answered(csf):
    x, y = draw()
    classifier = SelectiveClassifier(identity(), csf=csf)
    classifier.fit(x, y, coverage=1.0, verbose=0)
    broken = np.repeat(x[:1], 5, axis=0)
    broken[0, 1], broken[1, 1], broken[2], broken[3] = np.nan, np.inf, np.inf, -np.inf
    found = classifier.predict(broken, verbose=0)
    np.testing.assert_array_equal(found.accepted, [False] * 4 + [True])
    assert np.isnan(found.confidence[:4]).all()


@pytest.mark.parametrize("csf", ["msp", "margin", "neg_entropy"])
def test_fit_predict_evaluate(csf):
    x, y = draw()
    classifier = SelectiveClassifier(identity(), csf=csf)
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
    classifier = SelectiveClassifier(identity()).fit(x, y, coverage=0.5, verbose=0)
    assert classifier.predict(x, verbose=0).accepted.sum() == 300
    # In batches of one, rounding may differ; the margin absorbs it.
    accepted = classifier.predict(x[:50], batch_size=1, verbose=0).accepted
    np.testing.assert_array_equal(accepted, classifier.predict(x, verbose=0)[1][:50])


def test_risk_targets_and_delta():
    x, y = draw(n=2000)
    classifier = SelectiveClassifier(identity())
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
            SelectiveClassifier(identity(activation=last), calibrator=make()).fit(
                x, y, coverage=0.6, verbose=0
            )
            for last in ("linear", "softmax")
        ]
        assert [c.from_logits for c in given] == [True, False]
        logits, probabilities = (c.predict(test_x, verbose=0) for c in given)
        np.testing.assert_allclose(logits[2], probabilities[2], atol=1e-5)
        np.testing.assert_array_equal(logits[0], probabilities[0])
    with pytest.raises(ValueError, match="pass `from_logits=False`"):
        SelectiveClassifier(identity()).fit(softmax(x), y, coverage=0.6, verbose=0)
    with pytest.raises(ValueError, match="pass `from_logits=True`"):
        SelectiveClassifier(identity(), from_logits=False).fit(
            x, y, coverage=0.6, verbose=0
        )


def test_what_a_calibrator_rejects_is_never_accepted():
    x, y = draw(n=3000)
    calibrator = MetaMis(0.2).fit(x, y)
    answered = numpy(calibrator.accepts(x))
    assert 0.3 < answered.mean() < 0.9
    classifier = SelectiveClassifier(identity(), calibrator=calibrator)
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


def test_an_impossible_risk_counts_the_samples_given():
    x, y = draw(200)
    calibrated = SelectiveClassifier(identity(), calibrator=TemperatureScaling())
    with pytest.raises(ValueError, match=r"on these 100 samples.*Of the 200 samples"):
        calibrated.fit(x, y, risk=0.001, delta=0.1, verbose=0)
    with pytest.raises(ValueError, match="on these 200 samples") as error:
        SelectiveClassifier(identity()).fit(x, y, risk=0.001, delta=0.1, verbose=0)
    assert "given" not in str(error.value)


def test_a_fit_without_a_target_or_a_threshold_changes_nothing():
    x, y = draw()
    classifier = SelectiveClassifier(identity(), calibrator=TemperatureScaling())
    classifier.fit(x, y, coverage=0.7, verbose=0)
    threshold, calibrator = classifier.threshold, classifier.calibrator
    for bad_x, bad_y, target in (
        (x, y, {}),
        (x, (x.argmax(-1) + 1) % 3, {"risk": 0.01, "delta": 0.01}),
    ):
        with pytest.raises(ValueError):
            classifier.fit(bad_x, bad_y, **target, verbose=0)
        assert classifier.threshold == threshold
        assert classifier.calibrator is calibrator


def test_nothing_accepted():
    x, y = draw()
    classifier = SelectiveClassifier(identity()).fit(x, y, coverage=0.01, verbose=0)
    figures = classifier.evaluate(np.zeros_like(x[:5]), y[:5], verbose=0)
    assert figures["coverage"] == 0
    assert math.isnan(figures["selective_risk"])
    assert figures["selective_risk_bound"] == 1


# Saving


@keras.saving.register_keras_serializable("test_selective")
def collision(probabilities):
    return ops.sum(probabilities**2, axis=-1)


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


@pytest.mark.parametrize("several", [False, True])
def test_the_threshold_is_a_weight(several, tmp_path):
    x, y = draw()
    y = np.eye(3)[y] if several else y
    one, two = (
        SelectiveClassifier(network(), multi_label=several).fit(
            x, y, coverage=coverage, verbose=0
        )
        for coverage in (0.3, 0.9)
    )
    one.as_model().save_weights(tmp_path / "a.weights.h5")
    model = two.as_model()
    model.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(model.layers[-1].threshold, one.threshold)
    assert not model.layers[-1].trainable_weights
    answer = model.predict(x, verbose=0)
    expected = one.predict(x, verbose=0).accepted
    np.testing.assert_array_equal(answer["accepted"], expected)


def test_files_of_older_versions_have_no_such_weight(tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(network()).fit(x, y, coverage=0.3, verbose=0)
    classifier.save(tmp_path / "new.keras")
    with (
        zipfile.ZipFile(tmp_path / "new.keras") as new,
        zipfile.ZipFile(tmp_path / "old.keras", "w") as old,
    ):
        for name in new.namelist():
            content = io.BytesIO(new.read(name))
            if name == "model.weights.h5":
                with h5py.File(content, "r+") as weights:
                    variables = weights["layers/selection_layer/vars"]
                    assert list(variables) == ["0"]
                    del variables["0"]
            old.writestr(name, content.getvalue())
    loaded = SelectiveClassifier.load(tmp_path / "old.keras")
    assert loaded.threshold == classifier.threshold


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


def test_copies_among_the_samples_of_a_guarantee_are_told():
    x, y = draw()
    thrice, labels = np.repeat(x[:200], 3, axis=0), np.repeat(y[:200], 3)
    options = {"risk": 0.4, "delta": 0.1, "verbose": 0}
    with pytest.warns(UserWarning, match="400 of 600 samples"):
        SelectiveClassifier(identity()).fit(thrice, labels, **options)
    # Named groups are the remedy, and single samples are no copies.
    groups = np.repeat(np.arange(200), 3)
    SelectiveClassifier(identity()).fit(thrice, labels, groups=groups, **options)
    SelectiveClassifier(identity()).fit(x, y, **options)
