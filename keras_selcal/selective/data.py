"""Labelled data in the form in which thresholds are selected and evaluated."""

import hashlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_floats, to_numpy
from keras_selcal._predictions.outputs import Outputs, broadcast_weight
from keras_selcal._predictions.samples import check_outputs
from keras_selcal._validation import check_groups, refuse
from keras_selcal.calibrators import AutoCalibration, Calibrator
from keras_selcal.selective.cuts import Cuts

FIRST_AXIS = "first_axis"

# What errors call labels and outputs, of a classifier and of a policy.
OF_MODEL = ("y", "model(x)")
OF_POLICY = ("labels", "outputs")

# Share of copies among the samples above which a guarantee is doubtful.
_MOST_COPIES = 0.01

# Of random halves. Not 0, a common seed for shuffling: the same permutation again could
# undo the shuffle and split sorted data by class.
_SPLIT_SEED = 0x5E1CA1


@dataclass(frozen=True)
class SelectionData:
    """A model's outputs with one label, weight and group for each answer.

    Answers have the shape (...) of the samples, and (..., labels) if multi-label.

    Attributes:
        y_pred: the model's outputs, as it gives them.
        labels: class indices, in the shape of the answers.
        weight: 0 for what does not count, in the shape of the answers.
        groups: index of the group, in the shape of the answers, or None.
        units: index of the group, or else of the entry in the first axis, in the shape
            of the answers.
        outputs: what `y_pred` and labels mean.
        names: what errors call labels and outputs.
    """

    y_pred: Array
    labels: Array
    weight: Array
    groups: Array | None
    units: Array
    outputs: Outputs
    names: tuple[str, str] = OF_MODEL

    @classmethod
    def of(
        cls,
        y_pred: Array,
        y_true: Array,
        weight: Array | None,
        outputs: Outputs,
        groups: Any,
        told: bool = True,
        names: tuple[str, str] = OF_MODEL,
    ) -> "SelectionData":
        """Checks and arranges a model's outputs for labelled data.

        Args:
            y_pred: the model's outputs.
            y_true: labels.
            weight: weights that broadcast to the samples' shape, or None.
            outputs: what outputs and labels mean.
            groups: None, `"first_axis"`, or an array of the samples' shape or of its
                first axis.
            told: whether the user has said if the outputs are logits.
            names: what errors call labels and outputs.
        """
        check_outputs(y_pred, y_true, weight, outputs, told=told, names=names)
        y_pred = to_floats(y_pred)
        samples = tuple(outputs.sample_shape(y_pred.shape))
        arranged = outputs.arrange(y_true, y_pred, y_true.shape, np, names)
        k = arranged.y_pred.shape[-1]
        shape = arranged.y_pred.shape[:-1] if outputs.multi_label else samples
        weight = np.ones(samples) if weight is None else weight.astype("float64")
        weight = broadcast_weight(weight, samples, np)
        if outputs.multi_label:
            weight = np.broadcast_to(weight[..., None], shape)
        labels = arranged.y_true.reshape(shape if arranged.sparse else (*shape, k))
        ignored = np.zeros(shape, bool)
        if outputs.ignore_class is not None:
            index = labels if arranged.sparse else labels[..., 1]
            ignored = index == outputs.ignore_class
        weight = np.where(ignored, 0, weight)
        counts = weight > 0
        if not counts.any():
            refuse(names[0], y_true.shape, "labels of at least one sample that counts")
        if not arranged.sparse:
            if not np.isin(labels[counts], (0, 1)).all():
                refuse(names[0], labels, "class indices or one-hot, not soft labels")
            labels = np.where(ignored, outputs.ignore_class, labels.argmax(axis=-1))
        check_finite(arranged.y_pred.reshape(*shape, k)[counts], names[1])
        units = units_of(groups, samples)
        if outputs.multi_label:
            units = np.broadcast_to(units[..., None], shape)
        # Only those that count have a number of their own: `halves` splits these.
        units = np.searchsorted(np.unique(units[counts]), units)
        independent = groups is None or (isinstance(groups, str) and len(samples) == 1)
        groups = None if independent else units
        return cls(y_pred, labels, weight, groups, units, outputs, names)

    @property
    def dependent(self) -> bool:
        """Whether samples share an entry of the first axis, and no group is given."""
        return self.groups is None and self.units.ndim > 1 + self.outputs.multi_label

    def warn_if_dependent(self) -> None:
        """Warns that a guarantee takes dependent samples for independent ones."""
        if self.dependent:
            warnings.warn(
                "The model gives several predictions for each input: tokens of one "
                "sequence, or pixels of one image, depend on each other. The guarantee "
                "is for independent samples and can fail more often than it says. Pass "
                f'`groups="{FIRST_AXIS}"` to make each input one unit.',
                stacklevel=3,
            )
        elif self.groups is None and self.copies > _MOST_COPIES * self.n:
            warnings.warn(
                f"{self.copies} of {self.n} samples have exactly the outputs of "
                "another sample, as copies of one input do. The guarantee is for "
                "independent samples and can fail more often than it says. Remove the "
                "copies, or pass `groups=` with the same name for all copies of an "
                "input.",
                stacklevel=3,
            )

    @property
    def copies(self) -> int:
        """Number of samples that count with the outputs of an earlier one.

        Of two classes, and where a softmax is saturated, different inputs can have the
        same outputs: such rows are not counted.
        """
        y_pred = self.y_pred
        if y_pred.ndim != 2 or y_pred.shape[1] < 3 or self.outputs.multi_label:
            return 0
        rows = y_pred[self.weight > 0]
        if not self.outputs.from_logits:
            rows = rows[rows.max(axis=-1) < 1]
        rows = np.ascontiguousarray(rows)
        whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))
        return len(rows) - len(np.unique(whole))

    @property
    def n(self) -> int:
        """Number of samples that count."""
        counts = self.weight > 0
        return int((counts.any(axis=-1) if self.outputs.multi_label else counts).sum())

    def counted(self) -> tuple[Array, Array]:
        """Returns which answers count, in their shape, and the labels of those."""
        counts = self.weight > 0
        return counts, self.labels[counts].astype("int64")

    def halves(self) -> tuple["SelectionData", "SelectionData"]:
        """Returns the data with only a random half of the units, and with the rest.

        The halves are the same each time. They are random because the order of data
        may not be: of classes 0, 1, 0, 1, …, every other one is the same.
        """
        number = 1 + int(self.units[self.weight > 0].max())
        if number < 2:
            allowed = "outputs for at least two samples, or groups, to split"
            refuse(self.names[1], f"{self.n} samples", allowed)
        order = np.random.default_rng(_SPLIT_SEED).permutation(number)
        first = np.isin(self.units, order[: (number + 1) // 2])
        return (
            replace(self, weight=np.where(first, self.weight, 0)),
            replace(self, weight=np.where(first, 0, self.weight)),
        )

    def split(
        self, calibrator: Calibrator | None, choosing: bool
    ) -> tuple["SelectionData", "SelectionData", Calibrator | None]:
        """Returns the data to fit or choose on, those to select the threshold on, and
        the calibrator: its fitted copy if it is not fitted yet.

        A guarantee needs a threshold that is selected on other data than the rest.
        """
        first = rest = self
        unfitted = calibrator is not None and not calibrator.fitted
        if unfitted or choosing:
            first, rest = self.halves()
        if calibrator is not None and unfitted:
            labels, weight = first.labels, first.weight
            if self.outputs.multi_label:
                labels = np.moveaxis(labels, -1, self.outputs.axis)
                weight = weight.max(axis=-1)
            outputs = replace(self.outputs, decision_threshold=0.5)
            calibrator = calibrator.fitted_copy(first.y_pred, labels, weight, outputs)
        return first, rest, calibrator

    def cuts(self, answer: dict[str, Array], predicted: bool = False) -> list[Cuts]:
        """Returns the possible thresholds, for each label if multi-label.

        Args:
            answer: what `SelectionLayer.answer` gives.
            predicted: whether its probabilities tell where the search for a guaranteed
                risk starts.
        """
        parts = self._parts(answer, predicted)
        if not self.outputs.multi_label:
            return [Cuts.of(**parts)]
        return [
            Cuts.of(**{name: part[..., label] for name, part in parts.items()})
            for label in range(self.labels.shape[-1])
        ]

    def class_cuts(
        self, answer: dict[str, Array], predicted: bool = False
    ) -> list[Cuts | None]:
        """Returns the same for the samples that are predicted as each class; None for a
        class that none is.
        """
        parts = self._parts(answer, predicted)
        weights = [
            np.where(answer["labels"] == c, self.weight, 0)
            for c in range(self.outputs.rows_of(self.y_pred.shape)[0])
        ]
        return [
            Cuts.of(**parts | {"sample_weight": weight}) if weight.any() else None
            for weight in weights
        ]

    def _parts(self, answer: dict[str, Array], predicted: bool) -> dict[str, Any]:
        """Returns the arguments of `Cuts.of`, in the shape of the answers."""
        scores = np.where(answer["accepted"], answer["confidence"], -math.inf)
        answers = answer["labels"]
        parts = {
            "scores": scores,
            "correct": answers == self.labels,
            "sample_weight": self.weight,
        }
        if self.groups is not None:
            parts["groups"] = self.groups
        if predicted:
            p = answer["probabilities"].astype("float64")
            if self.outputs.axis != -1:
                p = np.moveaxis(p, self.outputs.axis, -1)
            if self.outputs.multi_label:
                p = np.where(answers == 1, p, 1 - p)
            else:
                p = np.take_along_axis(p, answers[..., None], -1)[..., 0]
            parts["error_probability"] = np.clip(1 - p, 0, 1)
        return parts

    def digest(self, arrays: list[Any] | None) -> bytes:
        """Returns a fingerprint: of arrays by their content, of a data set (None),
        which may shuffle, by the sorted outputs.
        """
        digest = hashlib.blake2b(digest_size=16)
        labels = self.labels.reshape(len(self.y_pred), -1)
        if arrays is not None:
            for x in arrays:
                digest.update(np.ascontiguousarray(to_numpy(x)).tobytes())
        else:
            rows = self.y_pred.reshape(len(labels), -1)
            order = np.lexsort((*rows.T, *labels.T))
            digest.update(np.ascontiguousarray(rows[order]).tobytes())
            labels = labels[order]
        digest.update(np.ascontiguousarray(labels, "int64").tobytes())
        return digest.digest()

    @property
    def fingerprint(self) -> str:
        """BLAKE2b of outputs, as float32, and labels, as int64, in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for array, dtype in ((self.y_pred, "<f4"), (self.labels, "<i8")):
            digest.update(np.ascontiguousarray(array, dtype).tobytes())
        return digest.hexdigest()


def check_finite(rows: Array, argument: str = OF_MODEL[1]) -> None:
    """Checks the outputs of the samples that count, (n, k)."""
    bad = ~np.isfinite(rows.max(axis=-1))
    if bad.any():
        refuse(argument, rows[bad][0], "finite, or −∞ for masked classes")


def units_of(groups: Any, samples: tuple[int, ...]) -> Array:
    """Returns the index of the unit of each sample, by order of appearance."""
    if groups is None or (isinstance(groups, str) and groups == FIRST_AXIS):
        groups = np.arange(samples[0])
    allowed = (
        f'"{FIRST_AXIS}", an array of the samples\' shape {samples}, or of shape '
        f"{samples[:1]}, one entry for each element of the first axis"
    )
    if isinstance(groups, str):
        refuse("groups", groups, allowed)
    groups = check_groups(to_numpy(groups))
    if groups.shape not in (samples, samples[:1]):
        refuse("groups", groups.shape, allowed)
    _, first, index = np.unique(groups, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))[index].reshape(groups.shape)
    missing = (1,) * (len(samples) - order.ndim)
    return np.broadcast_to(order.reshape(order.shape + missing), samples)


def check_calibrator(calibrator: Any, outputs: Outputs) -> Calibrator | None:
    """Returns the calibrator that a user gives for such outputs, or None."""
    options = outputs.config("multi_label", "axis")
    if isinstance(calibrator, str) and calibrator == "auto":
        return AutoCalibration(**options)
    if calibrator is None:
        return None
    if not isinstance(calibrator, Calibrator):
        allowed = 'a calibrator of keras_selcal, "auto", or None'
        refuse("calibrator", calibrator, allowed)
    for name, value in options.items():
        if getattr(calibrator.outputs, name) != value:
            refuse("calibrator", calibrator, f"one with {name}={value}")
    return calibrator
