"""Sums over samples that share a key: a score, a bin, a loss."""

from typing import NamedTuple

import numpy as np

from keras_selcal._arrays import Array


class Segments(NamedTuple):
    """Samples in rising order of a key, and where each key's run begins.

    Attributes:
        order: the samples' indices in rising order of the key, (n,).
        starts: where a segment begins in that order, (segments,).
    """

    order: Array
    starts: Array

    @classmethod
    def of(cls, keys: Array) -> "Segments":
        """One segment for each key that occurs."""
        order = np.argsort(keys)
        ranked = keys[order]
        starts = np.ones(len(keys), bool)
        np.not_equal(ranked[1:], ranked[:-1], out=starts[1:])
        return cls(order, np.flatnonzero(starts))

    def sums(self, values: Array) -> Array:
        """Returns the sums of values (..., n) over each segment, (..., segments)."""
        return np.add.reduceat(values[..., self.order], self.starts, axis=-1)

    @property
    def sizes(self) -> Array:
        """The number of samples of each segment, (segments,)."""
        return np.diff(self.starts, append=len(self.order))

    def merged(self, alike: Array) -> "Segments":
        """Joins neighbouring segments of which all samples are `alike`, (n,)."""
        whole = np.logical_and.reduceat(alike[self.order], self.starts)
        joined = whole[1:] & whole[:-1]
        return self._replace(starts=self.starts[np.append(True, ~joined)])
