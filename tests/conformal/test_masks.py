"""Masks, weights, ignored classes and groups of classifiers that answer with sets."""

import keras
import numpy as np
import pytest
from classifier_data import METHODS, draw, identity
from keras import layers

from keras_selcal import ConformalClassifier, TemperatureScaling
from keras_selcal.conformal import conformal_scores, conformal_threshold


def masked_tokens(n=40, length=5, seed=0):
    """Returns inputs, labels, which tokens are padding, and a model that masks them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, length, 3)).astype("float32") + 0.1
    y = rng.integers(0, 3, (n, length))
    padding = rng.random((n, length)) < 0.4
    x[padding] = 0
    model = keras.Sequential(
        [keras.Input((length, 3)), layers.Masking(), layers.Identity()]
    )
    return x, y, padding, model


def test_samples_of_weight_0_change_nothing():
    x, y = draw()
    padded = np.concatenate([x, np.full((50, 3), np.nan, "float32")])
    labels = np.concatenate([y, np.full(50, -1)])
    weight = np.arange(650) < 600
    plain = ConformalClassifier(identity()).fit(x, y, verbose=0)
    classifier = ConformalClassifier(identity())
    classifier.fit(padded, labels, sample_weight=weight, verbose=0)
    assert classifier.threshold == plain.threshold
    new, new_y = draw(seed=1)
    ours = classifier.evaluate(
        np.concatenate([new, padded[600:]]),
        np.concatenate([new_y, labels[600:]]),
        sample_weight=weight,
        verbose=0,
    )
    expected = plain.evaluate(new, new_y, verbose=0)
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value)


def test_ignored_classes_change_nothing(tmp_path):
    x, y = draw()
    classifier = ConformalClassifier(identity(), ignore_class=255)
    labels = np.where(np.arange(600) < 500, y, 255)
    classifier.fit(x, labels, verbose=0)
    plain = ConformalClassifier(identity()).fit(x[:500], y[:500], verbose=0)
    assert classifier.threshold == plain.threshold
    assert classifier.record.n == 500
    classifier.save(tmp_path / "a.keras")
    assert ConformalClassifier.load(tmp_path / "a.keras").outputs.ignore_class == 255


def test_tokens_need_groups():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5, 3)).astype("float32")
    y = x.argmax(-1)
    classifier = ConformalClassifier(identity(5, 3))
    with pytest.warns(UserWarning, match=r'Pass `groups="first_axis"'):
        classifier.fit(x, y, verbose=0)
    classifier.fit(x, y, groups="first_axis", verbose=0)
    scores = conformal_scores(x, y, from_logits=True)
    q = conformal_threshold(scores, 0.1, groups=np.repeat(np.arange(40), 5))
    assert classifier.threshold == pytest.approx(q, abs=3e-6)
    assert classifier.record.groups == 40
    prediction = classifier.predict(x, verbose=0)
    assert prediction.sets.shape == (40, 5, 3)
    assert prediction.labels.shape == prediction.sizes.shape == (40, 5)
    # Strata of sequences.
    classifier.fit(x, y, groups=np.arange(40), strata=np.arange(40) % 2, verbose=0)
    sets = classifier.predict(x, strata=np.arange(40) % 2, verbose=0).sets
    assert sets.shape == (40, 5, 3)


def test_masked_tokens_do_not_count():
    x, y, padding, model = masked_tokens()
    classifier = ConformalClassifier(model)
    classifier.fit(x, y, groups="first_axis", verbose=0)
    group = np.repeat(np.arange(40), 5).reshape(40, 5)[~padding]
    scores = conformal_scores(x[~padding], y[~padding], from_logits=True)
    q = conformal_threshold(scores, 0.1, groups=group)
    assert classifier.threshold == pytest.approx(q, abs=3e-6)
    assert classifier.record.n == (~padding).sum()


@pytest.mark.parametrize("stratified", [False, True])
def test_masked_tokens_get_empty_sets_and_no_label(stratified, tmp_path):
    x, y, padding, model = masked_tokens()
    classifier = ConformalClassifier(model, allow_empty=False)
    strata = {"strata": np.arange(40) % 2} if stratified else {}
    classifier.fit(x, y, groups="first_axis", verbose=0, **strata)
    prediction = classifier.predict(x, verbose=0, **strata)
    assert not prediction.sets[padding].any()
    assert (prediction.labels[padding] == -1).all()
    assert (prediction.sizes[~padding] > 0).all()
    np.testing.assert_array_equal(prediction.labels[~padding], x.argmax(-1)[~padding])
    # So does the saved model, which Keras gives the mask.
    classifier.save(tmp_path / "a.keras")
    saved = keras.saving.load_model(tmp_path / "a.keras")
    given = [x, strata["strata"]] if stratified else x
    answer = saved.predict(given, verbose=0)
    np.testing.assert_array_equal(answer["sets"], prediction.sets)
    np.testing.assert_array_equal(answer["labels"], prediction.labels)


def test_evaluation_counts_groups_as_the_guarantee_does():
    x, y, padding, model = masked_tokens()
    classifier = ConformalClassifier(model, alpha=0.3)
    classifier.fit(x, y, groups="first_axis", verbose=0)
    new, new_y, padding, _ = masked_tokens(60, seed=1)
    sets = classifier.predict(new, verbose=0).sets
    covered = np.take_along_axis(sets, new_y[..., None], -1)[..., 0]
    real = [c[~p] for c, p in zip(covered, padding, strict=True) if not p.all()]
    by_sequence = np.mean([tokens.mean() for tokens in real])
    assert by_sequence != np.concatenate(real).mean()
    figures = classifier.evaluate(new, new_y, verbose=0)
    assert figures["coverage"] == pytest.approx(by_sequence)
    # A sequence has the mean of its tokens' weights.
    w = np.where(padding, 0, np.random.default_rng(2).random(padding.shape))
    counted = [(c, v) for c, v in zip(covered, w, strict=True) if v.any()]
    of = [v.sum() / (v > 0).sum() for _, v in counted]
    by_sequence = [np.average(c, weights=v) for c, v in counted]
    figures = classifier.evaluate(new, new_y, sample_weight=w, verbose=0)
    expected = np.average(by_sequence, weights=of)
    assert figures["coverage"] == pytest.approx(expected)
    # Two sequences as one group.
    groups = np.arange(60) // 2
    pairs = [
        covered[g : g + 2][~padding[g : g + 2]].mean()
        for g in range(0, 60, 2)
        if not padding[g : g + 2].all()
    ]
    figures = classifier.evaluate(new, new_y, groups=groups, verbose=0)
    assert figures["coverage"] == pytest.approx(np.mean(pairs))
    # Without groups in `fit`, each token counts.
    with pytest.warns(UserWarning, match="first_axis"):
        classifier.fit(x, y, verbose=0)
    sets = classifier.predict(new, verbose=0).sets
    covered = np.take_along_axis(sets, new_y[..., None], -1)[..., 0]
    figures = classifier.evaluate(new, new_y, verbose=0)
    assert figures["coverage"] == pytest.approx(covered[~padding].mean())


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("method", METHODS)
def test_masked_classes_equal_a_logit_of_minus_ten_thousand(method, seed):
    x, y = draw()
    x[np.arange(600), (y + 1) % 3] = -np.inf
    finite = np.maximum(x, np.float32(-1e4))
    seed = None if method == "lac" else seed
    one, two = (
        ConformalClassifier(identity(), method=method, seed=seed).fit(z, y, verbose=0)
        for z in (x, finite)
    )
    assert one.threshold == pytest.approx(two.threshold, abs=1e-6)
    sets = one.predict(x, verbose=0).sets
    np.testing.assert_array_equal(sets, two.predict(finite, verbose=0).sets)
    with pytest.raises(ValueError, match="masked classes"):
        one.fit(np.full_like(x, -np.inf), y, verbose=0)


def test_one_sigmoid_unit_without_an_axis_of_its_own():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    x = (2 * y - 1 + rng.normal(size=300)).astype("float32")[:, None]
    shapes = {(): layers.Reshape(()), (1,): layers.Reshape((1,))}
    classifiers = [
        ConformalClassifier(keras.Sequential([keras.Input((1,)), last]))
        for last in shapes.values()
    ]
    one, two = (c.fit(x, y, verbose=0).predict(x[:5], verbose=0) for c in classifiers)
    assert one.sets.shape == (5, 2)
    np.testing.assert_array_equal(one.sets, two.sets)
    np.testing.assert_array_equal(one.labels, two.labels)
    assert classifiers[0].as_model().predict(x, verbose=0)["sets"].shape == (300, 2)
    one, two = (c.predict_proba(x, verbose=0) for c in classifiers)
    assert one.shape == two.shape == (300, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "aps", "seed": 1, "class_conditional": True},
        {"calibrated": True},
        {"method": "raps", "penalty": "auto", "ignore_class": 2},
    ],
    ids=["per class", "calibrated", "penalty"],
)
def test_channels_first_equal_channels_last(options, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, (80, 3, 2))
    x = (2 * np.eye(4)[y] + rng.normal(size=(80, 3, 2, 4))).astype("float32")
    weight = rng.random(y.shape) < 0.8
    strata = np.arange(80) // 2 % 2
    calibrated = options.pop("calibrated", False)
    answers = {}
    for axis in (-1, 1):
        inputs = np.moveaxis(x, -1, axis)
        model = keras.Sequential([keras.Input(inputs.shape[1:]), layers.Identity()])
        calibrator = TemperatureScaling(axis=axis) if calibrated else None
        classifier = ConformalClassifier(
            model, axis=axis, calibrator=calibrator, **options
        ).fit(
            # Rounding moves u: a sample of the fit can lie on the threshold.
            inputs[9:],
            y[9:],
            sample_weight=weight[9:],
            groups="first_axis",
            strata=strata[9:],
            verbose=0,
        )
        classifier.save(tmp_path / "classifier.keras")
        loaded = ConformalClassifier.load(tmp_path / "classifier.keras")
        assert loaded.outputs == classifier.outputs
        sets, labels = loaded.predict(inputs[:9], strata=strata[:9], verbose=0)
        assert sets.shape == (9, 3, 2, 4)
        assert 0 < sets.mean() < 1
        figures = loaded.evaluate(inputs[:50], y[:50], strata=strata[:50], verbose=0)
        p = loaded.predict_proba(inputs[:9], verbose=0)
        answer = loaded.as_model().predict([inputs[:9], strata[:9]], verbose=0)
        np.testing.assert_array_equal(answer["sets"], sets)
        np.testing.assert_allclose(answer["probabilities"], p, rtol=1e-5)
        p = np.moveaxis(p, axis, -1)
        answers[axis] = [loaded.threshold, sets, labels, p, *figures.values()]
    for last, first in zip(answers[-1], answers[1], strict=True):
        if isinstance(last, dict):
            assert last == pytest.approx(first)
        else:
            np.testing.assert_allclose(last, first, rtol=1e-5)
