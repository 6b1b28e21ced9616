"""Probabilities with labels for prediction sets."""

import numpy as np
import pytest

METHODS = ["lac", "aps", "raps", "saps"]

# Each method, not randomised and randomised.
KINDS = [("lac", None)] + [(m, s) for m in METHODS[1:] for s in (None, 3)]


def draw(n=600, k=3, seed=0, signal=2.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    x = signal * np.eye(k)[y] + rng.normal(size=(n, k))
    return x.astype("float32"), y


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
