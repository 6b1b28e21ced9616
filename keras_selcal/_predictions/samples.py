"""Labels and predictions of a whole data set as NumPy arrays, for the exact metrics."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keras_selcal._backend.host import to_numpy
from keras_selcal._backend.rows import FEW_COLUMNS, entries_at, largest_in_columns
from keras_selcal._predictions.outputs import Outputs, broadcast_weight, finite_log_p
from keras_selcal._validation import (
    check_labels,
    check_logits,
    check_probabilities,
    check_unmasked,
    check_weights,
    refuse,
)

Array = NDArray[Any]

# Entries of an (n, k) array that are converted to float64 at a time: 8 MB.
MOST_ENTRIES = 2**20


def to_numbers(argument: str, x: Any) -> Array:
    """Returns an array or a tensor of any backend as a NumPy array of numbers."""
    try:
        array = to_numpy(x)
        # pandas has objects for mixed values; bfloat16 is of kind "V".
        if array.dtype.kind in "OV":
            array = array.astype("float64" if array.dtype.kind == "O" else "float32")
    except (TypeError, ValueError):
        refuse(argument, x, "an array of numbers")
    if array.dtype.kind not in "biuf":
        refuse(argument, array.reshape(-1)[:1], "an array of numbers")
    check_unmasked(argument, array)
    return array


def to_floats(outputs: Array) -> Array:
    """Returns predictions in float32 or float64, as they are if possible."""
    single_or_double = outputs.dtype in (np.float32, np.float64)
    return outputs if single_or_double else outputs.astype("float32")


def to_weight(sample_weight: Any, shape: tuple[int, ...]) -> Array | None:
    """Returns the checked weights of samples of a shape, (n,) in float64."""
    if sample_weight is None:
        return None
    weight = to_numbers("sample_weight", sample_weight).astype("float64")
    check_weights(weight)
    return np.reshape(broadcast_weight(weight, shape, np), (-1,))


def to_counts(weight: Array | None, n: int) -> Array:
    """Returns how many samples each one stands for, (n,), or (..., n) as `weight`.

    As in the losses, weights that sum to less than the number of samples (normalised
    ones, for example) are scaled up to it, so that only their ratios matter.
    """
    if weight is None:
        return np.ones(n)
    return weight * np.maximum(1.0, n / weight.sum(axis=-1, keepdims=True))


def row_blocks(shape: tuple[int, ...], most: int = MOST_ENTRIES) -> list[slice]:
    """Returns slices of the rows of an (n, k) array with at most 2²⁰ entries each."""
    n, k = shape
    step = max(1, most // k)
    return [slice(start, start + step) for start in range(0, n, step)]


def check_values(
    y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any
) -> "Samples":
    """Checks the values of labels, predictions and weights; returns what counts."""
    y_pred = to_floats(to_numbers("y_pred", y_pred))
    y_true = to_numbers("y_true", y_true)
    weight = to_weight(sample_weight, outputs.sample_shape(y_pred.shape))
    arranged = outputs.arrange(y_true, y_pred, y_true.shape, np)
    # NumPy knows all shapes; only those of empty arrays fit both kinds of labels.
    sparse = arranged.sparse is not False
    k = arranged.y_pred.shape[-1]
    y_pred = arranged.y_pred.reshape(-1, k)
    labels = arranged.y_true
    labels = labels.reshape(-1) if sparse else labels.reshape(-1, k)
    num_labels, label_index = 1, None
    if outputs.multi_label:
        num_labels = arranged.y_pred.shape[-2]
        label_index = np.resize(np.arange(num_labels), len(y_pred))
        weight = None if weight is None else np.repeat(weight, num_labels)
    counts = None if weight is None else weight > 0
    if outputs.ignore_class is not None:
        kept = (labels if sparse else labels[:, 1]) != outputs.ignore_class
        counts = kept if counts is None else counts & kept
    if counts is not None and counts.all():
        counts = None
    if counts is not None:
        y_pred, labels = y_pred[counts], labels[counts]
        weight = None if weight is None else weight[counts]
        label_index = None if label_index is None else label_index[counts]
    check_labels(labels, sparse, k, arranged.events)
    if outputs.from_logits:
        check_logits(y_pred, arranged.events)
    else:
        for rows in row_blocks(y_pred.shape):
            check_probabilities(y_pred[rows])
    labels = labels.astype(np.intp if sparse else "float64")
    return Samples(
        y_pred,
        labels,
        sparse,
        outputs.from_logits,
        weight,
        num_labels,
        label_index,
        outputs.decision_threshold,
        counts,
        arranged.events,
    )


@dataclass(frozen=True)
class Samples:
    """n rows that count, with predictions over k classes.

    A row is a sample; for multi-label data, it is one label of a sample (k = 2), and
    `split_labels` returns the samples of each label.

    Attributes:
        y_pred: probabilities or logits, (n, k), in float32 or float64.
        labels: class indices (n,), or distributions (n, k).
        sparse: whether `labels` are class indices.
        from_logits: whether `y_pred` holds logits.
        weight: (n,), all above 0, or None if every sample counts once.
        num_labels: number of labels of multi-label data, or 1.
        label_index: which label a row of multi-label data belongs to, (n,), or None.
        threshold: probability of class 1 above which it is predicted (k = 2).
        kept: which of the given rows count, (rows,), or None if all do.
        events: whether a row comes from a sigmoid.
    """

    y_pred: Array
    labels: Array
    sparse: bool
    from_logits: bool
    weight: Array | None
    num_labels: int = 1
    label_index: Array | None = None
    threshold: float = 0.5
    kept: Array | None = None
    events: bool = False

    @classmethod
    def of(
        cls, y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any = None
    ) -> "Samples":
        """Builds the samples from the arguments of a functional metric.

        Leading dimensions are flattened. Samples of weight 0 are left out and may have
        any values; bad values of the others raise ValueError.

        Args:
            y_true: labels.
            y_pred: predictions.
            outputs: the meaning of labels and predictions.
            sample_weight: weights that broadcast to the samples' shape, or None.
        """
        samples = check_values(y_true, y_pred, outputs, sample_weight)
        if samples.n == 0:
            refuse("y_pred", samples.y_pred.shape, "of at least one sample that counts")
        return samples

    @classmethod
    def given(
        cls, y_true: Any, y_pred: Any, sample_weight: Any = None, **outputs: Any
    ) -> "Samples":
        """Builds the samples from the arguments of `Outputs`."""
        return cls.of(y_true, y_pred, Outputs(**outputs), sample_weight)

    def mean_over_labels(self, function: Callable[["Samples"], Any]) -> float:
        """Returns the mean of `function(samples)` over the labels that have samples."""
        return float(np.mean([function(part) for part in self.split_labels()]))

    def split_labels(self) -> list["Samples"]:
        """Returns the samples of each label, or [self] if not multi-label."""
        if self.label_index is None:
            return [self]
        order = np.argsort(self.label_index, kind="stable")
        sizes = np.bincount(self.label_index, minlength=self.num_labels)
        return [
            replace(
                self,
                y_pred=self.y_pred[rows],
                labels=self.labels[rows],
                weight=None if self.weight is None else self.weight[rows],
                num_labels=1,
                label_index=None,
                kept=None,
            )
            for rows in np.split(order, np.cumsum(sizes)[:-1])
            if len(rows)
        ]

    def event(self, kind: str) -> tuple[Array, Array]:
        """Returns the probability and the label mass, both (n,), of the predicted
        class, or of class 1 for kind="positive".
        """
        if kind == "top_label":
            return self.confidence, self.correct
        return self.each(lambda rows: self.p(rows)[:, 1]), self.one_hot()[:, 1]

    @property
    def n(self) -> int:
        return len(self.y_pred)

    @property
    def num_given(self) -> int:
        """The number of rows given, those that do not count included."""
        return self.n if self.kept is None else len(self.kept)

    @property
    def index(self) -> Array:
        """The position of each row among those given, (n,)."""
        return np.arange(self.n) if self.kept is None else np.flatnonzero(self.kept)

    @property
    def num_classes(self) -> int:
        return int(self.y_pred.shape[-1])

    def mean(self, values: Array) -> float:
        """Returns the weighted mean of values (n,)."""
        return float(np.average(values, weights=self.weight))

    @property
    def counts(self) -> Array:
        return to_counts(self.weight, self.n)

    def log_p(self, rows: slice, ordered: bool = False) -> Array:
        """Returns ln p of some rows in float64. `ordered` sorts each row first, so that
        sums do not depend on the order of the classes.
        """
        z = self.y_pred[rows].astype("float64")
        if ordered:
            z.sort(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if not self.from_logits:
                return np.log(z)
            z -= z.max(axis=-1, keepdims=True)
            return finite_log_p(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)), np)

    def p(self, rows: slice) -> Array:
        """Returns the probabilities of some rows, (rows, k)."""
        return np.exp(self.log_p(rows)) if self.from_logits else self.y_pred[rows]

    def each(self, function: Callable[[slice], Array]) -> Array:
        """Returns function(rows) for all rows, block by block."""
        return np.concatenate(
            [function(rows) for rows in row_blocks(self.y_pred.shape)]
        )

    def of_class(self, values: Array, index: Array) -> Array:
        """Returns values[i, index[i]]."""
        return np.asarray(entries_at(values, index))

    def of_label(self, values: Array, rows: slice = slice(None)) -> Array:
        """Returns Σ_c y_c v_c for values (rows, k)."""
        labels = self.labels[rows]
        if self.sparse:
            return self.of_class(values, labels)
        # 0·(−∞) counts as 0: a class without label mass has no effect.
        return np.asarray((labels * np.where(labels == 0, 0.0, values)).sum(axis=-1))

    def one_hot(self, rows: slice = slice(None)) -> Array:
        """Returns labels as distributions (rows, k)."""
        labels = self.labels[rows]
        if not self.sparse:
            return labels
        return (labels[:, None] == np.arange(self.num_classes)).astype("float64")

    @cached_property
    def top(self) -> Array:
        """The predicted class (n,): the first of the largest predictions, or class 1
        of two where its probability is above the threshold.
        """
        if self.threshold == 0.5:
            return self.y_pred.argmax(axis=-1)
        if self.from_logits:
            log_odds = self.y_pred[:, 1].astype("float64") - self.y_pred[:, 0]
            least = np.log(self.threshold / (1 - self.threshold))
            return (log_odds > least).astype(np.intp)
        return (self.y_pred[:, 1] > self.threshold).astype(np.intp)

    @cached_property
    def _largest(self) -> tuple[Array, bool]:
        """The largest prediction (n,), and whether it is known to be unique in every
        row without NaN.
        """
        if self.num_classes > FEW_COLUMNS:
            return self.of_class(self.y_pred, self.top), False
        return largest_in_columns(self.y_pred)

    @cached_property
    def confidence(self) -> Array:
        """The predicted class's probability (n,), in the predictions' precision."""
        if self.threshold != 0.5:
            return self.each(lambda rows: self.of_class(self.p(rows), self.top[rows]))
        largest, _ = self._largest
        if not self.from_logits:
            return largest

        def of_rows(rows: slice) -> Array:
            z = self.y_pred[rows].astype("float64")
            z -= largest[rows, None]
            return 1 / np.exp(z, out=z).sum(axis=-1)

        with np.errstate(invalid="ignore"):
            return self.each(of_rows)

    @cached_property
    def correct(self) -> Array:
        """The label mass of the predicted class (n,): 1 or 0 for class indices."""
        if not self.sparse:
            return self.of_class(self.labels, self.top)
        if self.threshold == 0.5:
            largest, once = self._largest
            if once:
                return (self.of_label(self.y_pred) == largest).astype("float64")
        return (self.top == self.labels).astype("float64")

    def scores(self, csf: Any) -> Array:
        """Confidence scores (n,), in the predictions' own precision."""
        if csf.needs != "probabilities":
            return self.each(lambda rows: csf.scores(self._needed(csf, rows), np))
        if csf.built_in and csf.__name__ == "msp" and not self.from_logits:
            return self._largest[0]
        return self.each(lambda rows: csf.scores(self.p(rows), np))

    def ranks(self, csf: Any) -> Array:
        """Values that order the samples by confidence (n,).

        These are the scores, or, for built-in scores of logits, their log-odds, which
        float64 does not round to one value where the score saturates.
        """
        if csf.needs != "probabilities" or not (self.from_logits and csf.built_in):
            return self.scores(csf)
        # NaN stays NaN, without NumPy's warning.
        with np.errstate(invalid="ignore"):
            return self.each(
                lambda rows: csf.log_odds_from_log_probabilities(
                    self.log_p(rows, ordered=True), np
                )
            )

    def _needed(self, csf: Any, rows: slice) -> Array:
        """Returns the predictions that a score needs, of some rows in float64."""
        if not self.from_logits:
            csf.refuse_missing("probabilities")
        csf.check_classes(self.num_classes)
        logits = self.y_pred[rows].astype("float64")
        # A row that has no probabilities has no score.
        finite = np.isfinite(logits.max(axis=-1, keepdims=True))
        return np.where(finite, logits, np.nan)
