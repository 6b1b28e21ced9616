"""The data that calibrators are fitted on and applied to, as arrays."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_selcal._arrays import row_blocks, to_floats, to_numbers
from keras_selcal._formulas.functions import TINY
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import check_logits, check_probabilities, refuse


@dataclass(frozen=True)
class Labelled:
    """n samples with hard labels.

    Attributes:
        logits: (n, k), in float32 or float64; −∞ for a class that cannot occur.
        labels: class indices (n,).
        weight: (n,), all above 0: how many samples each one stands for.
    """

    logits: np.ndarray
    labels: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, samples: Samples, logits: np.ndarray) -> "Labelled":
        """Returns samples with the given logits.

        Soft labels become one sample for each class, with the label's mass as its
        weight.
        """
        labels, weight = samples.labels, samples.counts
        if not samples.sparse:
            rows, labels = np.nonzero(samples.labels > 0)
            logits, weight = logits[rows], weight[rows] * samples.labels[rows, labels]
        impossible = np.isneginf(logits[np.arange(len(labels)), labels])
        if impossible.any():
            refuse(
                "labels",
                int(labels[impossible][0]),
                "classes that can occur; the logit of this one is −∞ in its sample",
            )
        return cls(logits, labels, weight)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> "Labelled":
        return Labelled(self.logits[rows], self.labels[rows], self.weight[rows])

    @property
    def num_classes(self) -> int:
        return int(self.logits.shape[-1])

    @property
    def total(self) -> float:
        """The number of samples, each counted with its weight."""
        return float(self.weight.sum())

    @property
    def one_class(self) -> bool:
        """Whether all labels are the same."""
        return bool((self.labels == self.labels[0]).all())

    @property
    def masked(self) -> np.ndarray | None:
        """Which entries are −∞, (n, k), or None if none is."""
        masked = np.isneginf(self.logits)
        return masked if masked.any() else None

    def hashes(self, seed: int) -> np.ndarray:
        """Returns a pseudo-random integer for each sample, (n,).

        It depends only on the sample's logits: copies of a sample are never
        separated, and wherever data are split, a weight of w equals w copies.
        """
        keys = np.random.default_rng(seed).integers(
            1, 1 << 63, self.num_classes, dtype="uint64"
        )
        result = np.empty(len(self), "uint64")
        for rows in row_blocks(self.logits.shape):
            # Adding 0 turns −0 into 0.
            bits = (self.logits[rows].astype("float32") + np.float32(0)).view("uint32")
            result[rows] = (bits * keys).sum(axis=-1, dtype="uint64")
        # The mixing steps of SplitMix64: each bit then depends on all bits of the sum.
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            result = (result ^ (result >> np.uint64(shift))) * np.uint64(factor)
        return result ^ (result >> np.uint64(31))

    def folds(self, seed: int, count: int = 3) -> Iterator[np.ndarray]:
        """Yields which samples each fold holds out, (n,), if others remain to fit."""
        fold = self.hashes(seed) % count
        for number in range(count):
            held_out = fold == number
            if held_out.any() and not held_out.all():
                yield held_out


def gather(
    outputs: Outputs, logits: Any, labels: Any, sample_weight: Any = None
) -> tuple[list[Labelled], float]:
    """Returns checked data, and the value that replaces a probability of 0.

    The list has one entry; for multi-label data, one with k = 2 for each label.
    """
    samples = Samples.of(
        labels, logits, outputs, sample_weight, names=("labels", "logits")
    )
    parts = samples.split_labels()
    if outputs.from_logits:
        _check_finite(samples.y_pred)
        return [Labelled.of(part, part.y_pred) for part in parts], 0.0
    p = samples.y_pred
    if np.isnan(p).any():
        refuse("logits", math.nan, "probabilities without NaN")
    floor = max(float(p[p > 0].min()) / 2, TINY)
    return [
        Labelled.of(part, np.log(np.maximum(part.y_pred, floor))) for part in parts
    ], floor


def checked_outputs(outputs: Outputs, logits: Any, from_logits: bool) -> np.ndarray:
    """Returns outputs as an array: logits that are not probabilities, or
    probabilities.
    """
    array = to_numbers("logits", logits)
    if array.ndim:
        events = outputs.multi_label or outputs.is_one_unit(array.shape)
        columns = outputs.columns(to_floats(array), from_logits, np)
        rows = columns.reshape(-1, columns.shape[-1])
        if from_logits:
            check_logits(rows, events, "logits")
        else:
            check_probabilities(rows, "logits")
    return array


def _check_finite(rows: np.ndarray) -> None:
    """Checks logits (n, k): no NaN and no +∞."""
    if not (np.isfinite(rows.min()) and np.isfinite(rows.max())):
        top = rows.max(axis=-1)
        bad = np.isnan(top) | (top == np.inf)
        if bad.any():
            refuse(
                "logits", rows[bad][0], "finite, or −∞ for classes that cannot occur"
            )
        if np.isneginf(top).any():
            refuse("logits", -np.inf, "finite for at least one class of every sample")
