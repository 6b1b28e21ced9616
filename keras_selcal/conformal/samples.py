"""Labelled outputs of a model in one row for each sample that counts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import refuse
from keras_selcal.selective.data import SelectionData


def spread(
    name: str,
    values: Any,
    shape: tuple[int, ...],
    names: list[Any] | None = None,
) -> np.ndarray:
    """Returns one entry for each sample of a shape, as the index in `names` if given.

    Values of fewer dimensions belong to the leading ones.
    """
    if values is None:
        refuse(name, values, "one entry for each sample, as in `fit`")
    values = to_numpy(values)
    if values.shape != shape[: values.ndim] or values.ndim == 0:
        refuse(name, values.shape, f"of shape {shape}, or a leading part of it")
    if names is not None:
        known = np.asarray(names)
        order = np.argsort(known)
        position = np.searchsorted(known, values, sorter=order)
        index = order[position.clip(max=len(known) - 1)]
        unknown = known[index] != values
        if unknown.any():
            refuse(name, values[unknown][0], f"one of those in `fit`: {names}")
        values = index.astype("int32")
    values = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    return np.broadcast_to(values, shape)


@dataclass(frozen=True)
class LabelledRows:
    """n samples that count.

    Attributes:
        outputs: of the model, (n, k) or (n, 1).
        labels: class indices (n,).
        weight: (n,), all above 0.
        groups: which samples depend on each other, (n,), or None.
        units: index of each sample's group, or else of its entry in the first axis.
        strata: index of each sample's stratum, (n,), or None.
        names: of the strata, or None.
    """

    outputs: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    groups: np.ndarray | None
    units: np.ndarray
    strata: np.ndarray | None
    names: list[Any] | None

    @classmethod
    def of(
        cls, data: SelectionData, strata: Any, names: list[Any] | None = None
    ) -> "LabelledRows":
        """Returns the samples that count.

        Args:
            data: the checked data.
            strata: (...) or fewer dimensions, or None.
            names: known strata; by default those that occur.
        """
        samples, counts = data.labels.shape, data.weight > 0
        if strata is not None and names is None:
            names = np.unique(to_numpy(strata)).tolist()
        if names is not None:
            strata = spread("strata", strata, samples, names)[counts]
        elif strata is not None:
            refuse("strata", strata, "None: `fit` had no strata")
        return cls(
            data.y_pred.reshape(*samples, -1)[counts],
            data.labels[counts].astype("int64"),
            data.weight[counts],
            None if data.groups is None else data.groups[counts],
            data.units[counts],
            strata,
            names,
        )

    @property
    def num_classes(self) -> int:
        return max(2, int(self.outputs.shape[-1]))

    def stratum_names(self) -> np.ndarray | None:
        """Returns the name of each sample's stratum."""
        return None if self.names is None else np.asarray(self.names)[self.strata]

    def balanced_weight(self) -> np.ndarray:
        """Returns weights that sum to 1 in each group."""
        if self.groups is None:
            return self.weight
        _, group = np.unique(self.groups, return_inverse=True)
        return np.asarray(self.weight / np.bincount(group, self.weight)[group])

    def halves(self) -> tuple["LabelledRows", "LabelledRows"]:
        """Returns every other sample, or group, and the rest."""
        even = self.units % 2 == 0
        return self._where(even), self._where(~even)

    def _where(self, rows: np.ndarray) -> "LabelledRows":
        if not rows.any():
            refuse("x", len(self.labels), "at least two samples, or groups, to split")
        parts: dict[str, Any] = {
            name: None if value is None else value[rows]
            for name, value in vars(self).items()
            if name != "names"
        }
        return replace(self, **parts)
