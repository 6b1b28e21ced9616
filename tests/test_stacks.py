"""Several predictions of one input: scores of a stack, and MC dropout."""

import keras
import numpy as np
import pytest
import reference

from keras_selcal import stacks


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


def test_equal_members_have_no_information(rng):
    p = np.tile(reference.softmax(rng.normal(size=(1, 10, 3))), (4, 1, 1))
    np.testing.assert_allclose(
        stacks.scores(p, "neg_mutual_information"), 0, atol=1e-12
    )


def test_bad_stacks_are_named():
    with pytest.raises(ValueError, match="`stack` must be"):
        stacks.scores(np.ones((3, 2)))
    with pytest.raises(ValueError, match="needs logits"):
        stacks.scores(np.full((2, 3, 2), 0.5), "energy")


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
    stack = stacks.mc_dropout(model, x, passes=200, batch_size=4)
    assert stack.shape == (200, 10, 3)
    assert stack.std(axis=0).min() > 0
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert model.layers[0].trainable
    # Dropout keeps the mean of what enters a linear layer.
    error = stack.std(axis=0) / np.sqrt(200)
    expected = model.predict(x, verbose=0)
    assert (np.abs(stack.mean(axis=0) - expected) < 5 * error).all()
