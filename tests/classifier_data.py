"""Data and models for classifiers that abstain or answer with sets."""

import functools
from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers

METHODS = ["lac", "aps", "raps", "saps"]

# Each method, not randomised and randomised.
KINDS = [("lac", None)] + [(m, s) for m in METHODS[1:] for s in (None, 3)]


def draw(n=600, k=3, seed=0, signal=2.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    x = signal * np.eye(k)[y] + rng.normal(size=(n, k))
    return x.astype("float32"), y


def first_half(n):
    """Returns which of n units calibrators are fitted on, now and in later versions."""
    order = np.random.default_rng(0x5E1CA1).permutation(n)
    return np.isin(np.arange(n), order[: (n + 1) // 2])


# It has no state, so that all tests share what is compiled.
@functools.cache
def identity(*shape, activation="linear"):
    """Returns a model whose inputs are its logits, or those of an activation."""
    return keras.Sequential([keras.Input(shape or (3,)), layers.Activation(activation)])


def network(k=3):
    inputs = keras.Input((k,))
    hidden = layers.Dense(k, activation="tanh", kernel_initializer="identity")(inputs)
    outputs = layers.Dense(k, kernel_initializer=keras.initializers.Identity(4.0))
    return keras.Model(inputs, outputs(hidden))


def assert_same_classifier(found, expected):
    """A backend may round outputs of another shape differently, and a day may pass."""
    assert found.threshold == pytest.approx(expected.threshold, rel=1e-6)
    ours, theirs = found.record, expected.record
    assert ours.confidence == pytest.approx(theirs.confidence, rel=1e-6)
    rest = {"confidence": (), "date": "", "fingerprint": None}
    assert replace(ours, **rest) == replace(theirs, **rest)


def given_probabilities(num_classes):
    """Returns a classifier of scikit-learn whose inputs are its probabilities."""
    base = pytest.importorskip("sklearn.base")

    class Given(base.ClassifierMixin, base.BaseEstimator):
        classes_ = np.arange(num_classes)

        def fit(self, x, y):
            return self

        def __sklearn_is_fitted__(self):
            return True

        def predict_proba(self, x):
            return x

        def predict(self, x):
            return x.argmax(-1)

    return Given()
