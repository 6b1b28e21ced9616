"""Real data that comes with scikit-learn, and a small network for it."""

from functools import cache

import keras
import numpy as np
from sklearn.datasets import load_digits


@cache
def digits(label_noise=0.0, train=640):
    """Returns (x, y) for training and for testing; noise falls on both labels."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    x = (images[order] / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    y = labels[order].astype("int32")
    noisy = rng.uniform(size=len(y)) < label_noise
    y = np.where(noisy, rng.integers(0, 10, len(y)), y).astype("int32")
    return (x[:train], y[:train]), (x[train:], y[train:])


def small_mlp():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
