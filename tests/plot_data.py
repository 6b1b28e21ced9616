"""Predictions to draw, and what of a plot to look at."""

from statistics import NormalDist

import numpy as np
import reference

_rng = np.random.default_rng(7)
N, K = 300, 4
Y = _rng.integers(K, size=N)
LOGITS = 2 * _rng.normal(size=(N, K)).astype("float32")
LOGITS[np.arange(N), Y] += 4 * _rng.random(N).astype("float32")
PROBABILITIES = reference.softmax(LOGITS)
SCORES = PROBABILITIES.max(-1)
WEIGHT = _rng.integers(1, 4, size=N).astype("float64")


def stairs(ax, label):
    (found,) = (patch for patch in ax.patches if patch.get_label().startswith(label))
    return found.get_data()


def marks(ax, label):
    (found,) = (c for c in ax.collections if label in c.get_label())
    return np.array(found.get_segments())


def line(ax, label):
    (found,) = (one for one in ax.get_lines() if one.get_label().startswith(label))
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def wilson(successes, m, level=0.95):
    """Returns the Wilson interval by its equation |s − p| = z √(p(1 − p)/m)."""
    z, s = NormalDist().inv_cdf((1 + level) / 2), successes / m
    return sorted(np.roots([1 + z**2 / m, -2 * s - z**2 / m, s**2]))
