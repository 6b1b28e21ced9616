"""Labelled outputs of a model in one row for each sample that counts."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_selcal._core.samples import to_numpy, to_weight
from keras_selcal._core.validation import refuse
from keras_selcal.conformal.arrays import check_classes


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
        strata: index of each sample's stratum, (n,), or None.
        names: of the strata, or None.
        nested: whether outputs had more axes than one of samples and one of classes.
    """

    outputs: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    groups: np.ndarray | None
    strata: np.ndarray | None
    names: list[Any] | None
    nested: bool

    @classmethod
    def of(
        cls,
        outputs: Any,
        labels: Any,
        weight: Any,
        ignore_class: int | None,
        groups: Any,
        strata: Any,
        names: list[Any] | None = None,
    ) -> "LabelledRows":
        """Returns checked rows; samples of weight 0 are left out, whatever they hold.

        Args:
            outputs: (..., k), or (n,) or (..., 1) of one sigmoid unit.
            labels: class indices or one-hot.
            weight: (...) or fewer dimensions, or None.
            ignore_class: label of samples that do not count, or None.
            groups: (...) or fewer dimensions, "first_axis", or None.
            strata: (...) or fewer dimensions, or None.
            names: known strata; by default those that occur.
        """
        z, y = to_numpy(outputs), to_numpy(labels)
        z = z[:, None] if z.ndim == 1 else z
        lead, k = z.shape[:-1], max(2, z.shape[-1])
        w = to_weight(weight, lead)
        w = np.ones(int(np.prod(lead))) if w is None else w
        one_hot = y.shape == (*lead, k)
        y = y.reshape((-1, k) if one_hot else (-1,))
        if len(y) != len(w):
            refuse("y", to_numpy(labels).shape, f"labels for outputs {z.shape}")
        if ignore_class is not None and not one_hot:
            w = np.where(y == ignore_class, 0.0, w)
        counts = w > 0
        z = z.reshape(-1, z.shape[-1])[counts]
        z = z if z.dtype == np.float64 else z.astype("float32")
        if len(z) == 0:
            refuse("x", 0, "data of at least one sample that counts")
        bad = ~np.isfinite(z.max(axis=-1))
        if bad.any():
            allowed = "data for which the outputs are finite, or −∞ for masked classes"
            refuse("x", z[bad][0], allowed)
        y = check_classes(y[counts], (len(z), k))
        if isinstance(groups, str) and groups == "first_axis":
            groups = np.arange(lead[0])
        if groups is not None:
            groups = spread("groups", groups, lead).reshape(-1)[counts]
        if strata is not None and names is None:
            names = np.unique(to_numpy(strata)).tolist()
        if names is not None:
            strata = spread("strata", strata, lead, names).reshape(-1)[counts]
        elif strata is not None:
            refuse("strata", strata, "None: `fit` had no strata")
        return cls(z, y, w[counts], groups, strata, names, len(lead) > 1)

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
        unit = np.arange(len(self.labels))
        if self.groups is not None:
            _, unit = np.unique(self.groups, return_inverse=True)
        return self._where(unit % 2 == 0), self._where(unit % 2 == 1)

    def _where(self, rows: np.ndarray) -> "LabelledRows":
        if not rows.any():
            refuse("x", len(self.labels), "at least two samples, or groups, to split")
        parts: dict[str, Any] = {
            name: None if value is None else value[rows]
            for name, value in vars(self).items()
            if name not in ("names", "nested")
        }
        return replace(self, **parts)

    def digest(self) -> bytes:
        """Returns a fingerprint of the data, in whichever order they come."""
        order = np.lexsort((*self.outputs.T[:8], self.labels))
        digest = hashlib.blake2b(self.outputs[order].tobytes(), digest_size=16)
        digest.update(self.labels[order].tobytes())
        return digest.digest()
