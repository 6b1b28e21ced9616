"""Several predictions of one input: scores of a stack, and MC dropout."""

import keras
import numpy as np
import pytest
import reference

from keras_selcal import CalibrationReport, SelectiveClassifier, metrics, stacks
from keras_selcal import functional as F  # noqa: N812


def entropy(p):
    return -(p * np.log(p)).sum(axis=-1)


def test_scores_of_a_stack(rng):
    logits = rng.normal(size=(5, 30, 4), scale=2)
    p = reference.softmax(logits)
    mean = p.mean(axis=0)
    information = entropy(mean) - entropy(p).mean(axis=0)
    votes = (p.argmax(axis=-1) == mean.argmax(axis=-1)).mean(axis=0)
    for name, expected in (
        ("msp", mean.max(axis=-1)),
        ("neg_entropy", -entropy(mean)),
        ("neg_mutual_information", -information),
        ("agreement", votes),
    ):
        found = stacks.scores(logits, name, from_logits=True)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(stacks.scores(p, name), expected, atol=1e-12)
    np.testing.assert_allclose(stacks.mean_probabilities(p), mean)


@pytest.mark.parametrize("name", ["neg_mutual_information", "agreement", "gen"])
def test_one_sigmoid_unit_scores_as_its_two_columns(rng, name):
    z = rng.normal(size=(5, 24), scale=2)
    p = 1 / (1 + np.exp(-z))
    pairs = (
        (z, np.stack([0 * z, z], axis=-1), True),
        (p, np.stack([1 - p, p], axis=-1), False),
    )
    for stack, columns, from_logits in pairs:
        options = {"from_logits": from_logits}
        for unit in (stack, stack[..., None]):
            for function in (stacks.scores, stacks.combine):
                found = function(unit, name, **options)
                expected = function(columns, name, **options)
                np.testing.assert_allclose(found, expected, atol=1e-12)
            found = stacks.mean_probabilities(unit, **options)
            np.testing.assert_allclose(found, p.mean(axis=0).reshape(unit.shape[1:]))


@pytest.mark.parametrize("shape", [(1,), ()])
def test_members_of_one_sigmoid_unit_give_two_columns(rng, shape):
    inputs = rng.normal(size=(48, 4)).astype("float32")
    x = keras.Input((4,))
    members = [
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
        for _ in range(3)
    ]
    reshape = keras.layers.Reshape(shape)
    combined = stacks.Combine("agreement")([reshape(each(x)) for each in members])
    assert combined.shape == (None, 2)
    stack = [each.predict(inputs, verbose=0) for each in members]
    found = keras.Model(x, combined).predict(inputs, verbose=0)
    np.testing.assert_allclose(found, stacks.combine(stack, "agreement"), atol=1e-5)


@pytest.mark.parametrize("name", ["neg_mutual_information", "agreement", "msp"])
def test_nan_in_a_member_is_nan_in_the_score(rng, name):
    stack = reference.softmax(rng.normal(size=(3, 4, 3)))
    stack[1, 2, 0] = np.nan
    for found in (stacks.scores(stack, name), stacks.combine(stack, name)[:, 0]):
        np.testing.assert_array_equal(np.isnan(found), [False, False, True, False])


def test_equal_members_have_no_information(rng):
    p = np.tile(reference.softmax(rng.normal(size=(1, 10, 3))), (4, 1, 1))
    np.testing.assert_allclose(
        stacks.scores(p, "neg_mutual_information"), 0, atol=1e-12
    )


NAMES = ("neg_mutual_information", "agreement", "margin")


def test_combined_logits_hold_the_mean_probability_and_the_score(rng):
    stack = rng.normal(size=(5, 24, 4), scale=2)
    y = rng.integers(0, 4, 24)
    mean = stacks.mean_probabilities(stack, from_logits=True)
    wrong = (mean.argmax(axis=-1) != y).astype("float64")
    for name in NAMES:
        z = stacks.combine(stack, name, from_logits=True)
        g = stacks.scores(stack, name, from_logits=True)
        np.testing.assert_allclose(reference.softmax(z), mean, atol=1e-12)
        np.testing.assert_array_equal(z.max(axis=-1), g)
        # The AURC by its definition: samples of equal score share their mean loss.
        loss = np.array([wrong[g == score].mean() for score in g])[np.argsort(-g)]
        expected = np.mean(np.cumsum(loss) / np.arange(1, 25))
        given = {"csf": "max_logit", "from_logits": True}
        assert F.aurc(y, z, **given) == pytest.approx(expected)
        report = CalibrationReport(y, z, bootstrap=0, **given)
        assert report["aurc"].value == pytest.approx(expected)
        assert report["nll"].value == pytest.approx(F.nll(y, mean))
        # Scores of a stack can be closer than a cell of the default.
        metric = metrics.AURC(**given, num_cells=2**16)
        metric.update_state(y, z)
        assert float(metric.result()) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_classifier_abstains_by_the_score_of_an_ensemble(rng, name, tmp_path):
    members = [
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for _ in range(3)
    ]
    x = keras.Input((4,))
    combined = stacks.Combine(name, from_logits=True)([each(x) for each in members])
    y = rng.integers(0, 3, 48)
    inputs = rng.normal(size=(48, 4)).astype("float32")
    classifier = SelectiveClassifier(keras.Model(x, combined), csf="max_logit")
    classifier.fit(inputs, y, coverage=0.5, verbose=0)
    answer = classifier.predict(inputs, verbose=0)
    stack = np.stack([each.predict(inputs, verbose=0) for each in members])
    expected = stacks.scores(stack, name, from_logits=True)
    np.testing.assert_allclose(answer.confidence, expected, atol=1e-5)
    mean = stacks.mean_probabilities(stack, from_logits=True)
    kept = answer.accepted
    assert 0 < kept.sum() < 48 or name == "agreement"
    np.testing.assert_array_equal(answer.labels[kept], mean.argmax(-1)[kept])
    classifier.save(tmp_path / "ensemble.keras")
    loaded = SelectiveClassifier.load(tmp_path / "ensemble.keras")
    again = loaded.predict(inputs, verbose=0)
    np.testing.assert_allclose(again.confidence, answer.confidence, atol=1e-6)
    np.testing.assert_array_equal(again.accepted, answer.accepted)


def test_augmented_inputs_and_dropout_are_members_too(rng, tmp_path):
    network = keras.Sequential(
        [
            keras.Input((4, 1)),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    x, noisy = keras.Input((4, 1)), stacks.MCDropout(network)
    inputs = rng.normal(size=(24, 4, 1)).astype("float32")
    flipped = keras.layers.Permute((2, 1))(x)
    flipped = keras.layers.Reshape((4, 1))(keras.ops.flip(flipped, axis=-1))
    model = keras.Model(x, stacks.Combine()([network(x), network(flipped)]))
    stack = [network.predict(each, verbose=0) for each in (inputs, inputs[:, ::-1])]
    np.testing.assert_allclose(
        model.predict(inputs, verbose=0), stacks.combine(stack), atol=1e-5
    )
    model = keras.Model(x, stacks.Combine()([noisy(x) for _ in range(8)]))
    before = network.get_weights()
    model.save(tmp_path / "dropout.keras")
    for each in (model, keras.models.load_model(tmp_path / "dropout.keras")):
        # Dropout is on, with another mask in each pass.
        assert (each.predict(inputs, verbose=0).max(axis=-1) < -1e-4).mean() > 0.9
    for weight, old in zip(network.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)


def test_bad_stacks_are_named():
    with pytest.raises(ValueError, match="`inputs` must be a list"):
        stacks.Combine()(np.ones((2, 3), "float32"))
    listed = "one of 'neg_mutual_information', 'agreement', 'msp', .* Received: csf="
    for name in ("energy", "entropy"):
        for call in (stacks.Combine, lambda csf: stacks.combine([[[0.5, 0.5]]], csf)):
            with pytest.raises(ValueError, match=f"`csf` must be {listed}'{name}'"):
                call(name)
    with pytest.raises(ValueError, match="`stack` must be probabilities"):
        stacks.scores(np.ones((2, 3, 2)))
    with pytest.raises(ValueError, match="`stack` must be logits"):
        stacks.combine(np.array([[[0.2, 0.8], [0.3, 0.7]]]), from_logits=True)
    with pytest.raises(ValueError, match="`stack` must be"):
        stacks.scores(np.ones(3))
    with pytest.raises(ValueError, match="`stack` must be"):
        stacks.scores(np.full((3, 2), 1.5))


def test_mc_dropout_keeps_batch_normalization(rng):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    before = [weight.copy() for weight in model.get_weights()]
    x = rng.normal(3, size=(10, 6)).astype("float32")
    stack = stacks.mc_dropout(model, x, passes=100, batch_size=8)
    assert stack.shape == (100, 10, 3)
    assert stack.std(axis=0).min() > 0
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert model.layers[0].trainable
    # Dropout keeps the mean of what enters a linear layer.
    error = stack.std(axis=0) / np.sqrt(100)
    expected = model.predict(x, verbose=0)
    assert (np.abs(stack.mean(axis=0) - expected) < 5 * error).all()
