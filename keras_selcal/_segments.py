"""Sums over samples that share a key: a score, a bin, a loss."""

from typing import NamedTuple

import numpy as np

from keras_selcal._arrays import Array


def argsort(keys: Array) -> Array:
    """Returns the order of keys (n,), with NaN last.

    As integers, the bits of floats sort like the floats, and a sort of integers that
    hold the sample's index as well is several times faster than one of indices.
    """
    if keys.dtype != np.float32 or len(keys) >= 2**32:
        return np.argsort(keys)
    # −0 becomes 0. The bits of negative floats fall as these rise.
    bits = (keys + np.float32(0)).view(np.int32)
    packed = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
    packed |= np.arange(len(keys))
    packed.sort()
    return packed & 0xFFFFFFFF


def sizes_and_flags(keys: Array, flags: Array) -> tuple[Array, Array]:
    """Returns the number of samples of each key, in rising order, and how many of them
    have a flag, both in float64.

    A key that is a float32 of at least 0 leaves room for the flag in its bits, so that
    no indices are sorted.
    """
    # −0 becomes 0.
    packed = (keys + np.float32(0)).view(np.uint32) << 1
    packed |= flags
    packed.sort()
    flags = (packed & 1).astype("float64")
    packed >>= 1
    starts = np.flatnonzero(packed[1:] != packed[:-1]) + 1
    if len(starts) + 1 == len(packed):
        return np.ones(len(packed)), flags
    starts = np.append(0, starts)
    sizes = np.diff(starts, append=len(packed)).astype("float64")
    return sizes, np.add.reduceat(flags, starts)


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
        order = argsort(keys)
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
