"""Probabilities with labels for prediction sets."""

import numpy as np

METHODS = ["lac", "aps", "raps", "saps"]

# Each method, not randomised and randomised.
KINDS = [("lac", None)] + [(m, s) for m in METHODS[1:] for s in (None, 3)]


def draw(n=600, k=3, seed=0, signal=2.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    x = signal * np.eye(k)[y] + rng.normal(size=(n, k))
    return x.astype("float32"), y
