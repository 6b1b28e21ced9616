"""Answers of a conformal classifier, what it was fitted on, and what it promises."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from keras_selcal.selective.record import Record

# Label of masked samples.
MASKED = -1


class ConformalPrediction(NamedTuple):
    """Answers of a conformal classifier.

    Attributes:
        sets: which classes each set holds, boolean (..., k). Masked tokens have
            empty sets.
        labels: the most probable classes (...), whether their set holds them or not;
            −1 for masked tokens.
        sizes: how many classes each set holds, (...).
    """

    sets: np.ndarray
    labels: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.sets.sum(axis=-1))


@dataclass(frozen=True)
class ConformalRecord(Record):
    """What a conformal classifier was fitted on, and what it promises.

    Attributes:
        n: number of samples that the threshold was selected on. Padding, ignored
            samples, and those that the calibrator and the penalty were fitted on do
            not count.
        groups: number of independent groups that they form, or None where each sample
            is independent.
        alpha: α: a set misses its label with at most this probability.
        delta: δ: for these samples that holds with probability 1 − δ, for all classes
            and strata at once. None where it holds on average over such samples.
        per_class: whether that holds for the samples of each class.
        per_stratum: whether that holds for the samples of each stratum.
        date: day of the fit, in ISO format.
    """

    n: int
    groups: int | None
    alpha: float
    per_class: bool
    per_stratum: bool
    date: str
    delta: float | None = None
