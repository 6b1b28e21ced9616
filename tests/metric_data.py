"""Predictions for metrics."""

import numpy as np
import reference


def data(n, k, seed=0, dtype="float64"):
    rng = np.random.default_rng([seed, n, k])
    logits = rng.normal(size=(n, k), scale=2)
    labels = (logits / 2 + rng.gumbel(size=(n, k))).argmax(-1)
    return labels, reference.softmax(logits).astype(dtype)


def known_and_unknown(rng, n=400, m=150, k=5):
    """Labels and logits of known inputs, and logits of unknown ones."""
    y = rng.integers(0, k, n)
    known = 3 * np.eye(k)[y] + rng.normal(size=(n, k))
    return y, known.astype("float32"), rng.normal(size=(m, k)).astype("float32")
