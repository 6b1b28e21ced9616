"""Bootstrap resamples of a data set, as counts of its samples."""

import math
from collections.abc import Iterator

import numpy as np

from keras_selcal._arrays import Array

# Counts that are held at a time: 1 MB: temporary arrays stay in cache.
_MOST_COUNTS = 2**17
# Metrics of a resample hold at least this many numbers.
_FEWEST = 2**12


def resample_counts(
    n: int, num_resamples: int, seed: int, rows: float = 1.0
) -> Iterator[Array]:
    """Yields how often each of n units is drawn, in blocks of resamples, (b, n).

    A unit is a sample, or a group of samples that depend on each other. Each resample
    draws n times with replacement. The same arguments give the same counts: two models
    on the same samples can be compared in pairs. Blocks are smaller for units of
    several rows, which `rows` counts on average.
    """
    rng = np.random.default_rng(seed)
    step = max(1, _MOST_COUNTS // max(math.ceil(n * rows), _FEWEST))
    for start in range(0, num_resamples, step):
        count = min(step, num_resamples - start)
        drawn = rng.integers(n, size=(count, n))
        drawn += np.arange(0, count * n, n)[:, None]
        yield np.bincount(drawn.reshape(-1), minlength=count * n).reshape(count, n)
