"""Predictions of a file, and the order of their classes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal.cli.labels import class_numbers, fail


class PredictionFile(NamedTuple):
    """The content of a file of predictions.

    Attributes:
        y_pred: probabilities or logits, (n, k), or (n,) of one sigmoid unit.
        labels: class indices (n,), distributions or multi-hot labels (n, k), or soft
            labels (n,) of one sigmoid unit; None if the file has none.
        from_logits: whether `y_pred` holds logits.
        class_names: a name for each class, or None.
        images: images of the samples, or None.
        found: names of the arrays or columns of the file.
        path: path of the file, for errors.
        columns: the position of each class in the file, or None if it is the same.
        calibrator: the calibrator that `keras-selcal calibrate` has applied, or None;
            only .npz files tell.
        extra: columns that are not predictions, such as the patient of each sample.
    """

    y_pred: Array
    labels: Array | None
    from_logits: bool
    class_names: list[str] | None = None
    images: Array | None = None
    found: Sequence[str] = ()
    path: str = ""
    columns: Array | None = None
    calibrator: str | None = None
    extra: Mapping[str, Array] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes, 2 for one sigmoid unit."""
        return self.y_pred.shape[1] if self.y_pred.ndim == 2 else 2

    def by_number(self) -> "PredictionFile":
        """Returns the classes in the order of their numbers, if these are 0 … k − 1."""
        numbers = class_numbers(self.class_names)
        if sorted(numbers) != list(range(self.num_classes)):
            return self
        return self.take(np.argsort(numbers))

    def in_file_order(self) -> "PredictionFile":
        """Returns the classes in the order of the file."""
        return self if self.columns is None else self.take(np.argsort(self.columns))

    def like(self, other: "PredictionFile") -> "PredictionFile":
        """Returns the classes in the order of another file, matched by name.

        Files without class names have the order of the other.
        """
        k = other.num_classes
        if self.num_classes != k:
            fail(
                self.path,
                f"the predictions must have as many classes as {other.path}. "
                f"Received: {self.num_classes} and {k}",
            )
        if self.class_names is None or other.class_names is None:
            return self
        names, wanted = self._identity(other), other._identity(self)
        if names == wanted:
            return self
        if sorted(names) != sorted(wanted) or len(set(names)) < k:
            fail(
                self.path,
                f"the classes {_shown(self.class_names, other.class_names)} are not "
                f"the classes of {other.path}: "
                f"{_shown(other.class_names, self.class_names)}",
            )
        place = {name: i for i, name in enumerate(names)}
        return self.take(np.array([place[name] for name in wanted]))

    def take(self, order: Array) -> "PredictionFile":
        """Returns the classes in another order, as positions in this one."""
        k, labels, names = len(order), self.labels, self.class_names
        if np.array_equal(order, np.arange(k)):
            return self
        if self.y_pred.ndim == 1:
            fail(
                self.path,
                "one sigmoid unit gives the probability of the second class, which "
                f"would be the first here: {', '.join(names or [])}; turn p into "
                "1 − p, or logits into their negatives, and the names around",
            )
        if labels is not None and labels.shape[1:] == (k,):
            labels = labels[:, order]
        elif labels is not None:
            labels = np.argsort(order)[labels.astype(int)]
        return self._replace(
            y_pred=self.y_pred[:, order],
            labels=labels,
            class_names=None if names is None else [names[i] for i in order],
            columns=(np.arange(k) if self.columns is None else self.columns)[order],
        )

    def _identity(self, other: "PredictionFile") -> list[str]:
        """Returns the names by which classes are matched with another file's."""
        names, others = self.class_names or [], other.class_names or []
        if numbers := class_numbers(names):
            return [str(number) for number in numbers]
        if self.y_pred.ndim == 1 and names[0] == f"not {names[1]}":
            # A table names only the second class of one sigmoid unit.
            rest = [name for name in others if name != names[1]]
            if len(rest) == 1:
                return [*rest, names[1]]
        return names


def _shown(names: Sequence[str], others: Sequence[str]) -> str:
    """Returns the names, or of many those that the others do not have."""
    if len(names) > 12:
        names = [name for name in names if name not in set(others)] or names
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
