"""Labels and predictions of a whole data set as NumPy arrays, for the exact metrics."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, row_blocks, to_floats, to_numbers, to_numpy
from keras_selcal._formulas.functions import log_softmax, softmax
from keras_selcal._predictions.outputs import NAMES, Outputs, broadcast_weight
from keras_selcal._validation import (
    check_labels,
    check_logits,
    check_not_empty,
    check_probabilities,
    check_weights,
    refuse,
    warn_if_swapped,
    warn_of_second_softmax,
)


def to_weight(sample_weight: Any, shape: tuple[int, ...]) -> Array | None:
    """Returns the checked weights of samples of a shape, (n,) in float64."""
    if sample_weight is None:
        return None
    weight = to_numbers("sample_weight", sample_weight).astype("float64")
    check_weights(weight)
    return np.reshape(broadcast_weight(weight, shape, np), (-1,))


def to_counts(weight: Array | None, n: Any) -> Array:
    """Returns how many samples each one stands for, (n,), or (..., n) as `weight`, of
    which n samples, or (..., 1), are in each row.

    As in the losses, weights that sum to less than the number of samples (normalised
    ones, for example) are scaled up to it: only their ratios matter.
    """
    if weight is None:
        return np.ones(n)
    return weight * np.maximum(1.0, n / weight.sum(axis=-1, keepdims=True))


def check_values(
    y_true: Any,
    y_pred: Any,
    outputs: Outputs,
    sample_weight: Any,
    names: tuple[str, str] = NAMES,
) -> "Samples":
    """Checks the values of labels, predictions and weights; returns what counts.

    Errors call the labels and the predictions by `names`.
    """
    y_pred = to_floats(to_numbers(names[1], y_pred))
    y_true = to_numbers(names[0], y_true)
    weight = to_weight(sample_weight, outputs.sample_shape(y_pred.shape))
    arranged = outputs.arrange(y_true, y_pred, y_true.shape, np, names)
    # NumPy knows all shapes; only empty arrays fit both kinds of labels.
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
    check_labels(labels, sparse, k, arranged.events, names[0])
    if outputs.from_logits:
        check_logits(y_pred, arranged.events, names[1])
    else:
        for rows in row_blocks(y_pred.shape):
            check_probabilities(y_pred[rows], names[1])
        warn_of_second_softmax(y_pred)
    if not sparse:
        warn_if_swapped(labels, y_pred, names)
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


def check_outputs(
    y_pred: Array,
    y_true: Array,
    weight: Array | None,
    outputs: Outputs,
    *,
    told: bool = True,
    names: tuple[str, str] = NAMES,
) -> None:
    """Checks the values of a model's outputs, of labels and weights; errors use the
    `names` of labels and outputs.

    Outputs of sigmoids that all lie in [0, 1] are an error if they are taken for logits
    and `told`, whether the user has set `from_logits`, is False.
    """
    sigmoids = outputs.multi_label or outputs.is_one_unit(y_pred.shape)
    if sigmoids and outputs.from_logits and not told:
        z = y_pred[np.isfinite(y_pred)]
        if z.size and z.min() >= 0 and z.max() <= 1:
            refuse(
                "from_logits",
                None,
                "True or False for this model: all of its outputs lie in [0, 1], but "
                "its last operation is not a sigmoid",
            )
    check_values(y_true, y_pred, outputs, weight, names)


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
        cls,
        y_true: Any,
        y_pred: Any,
        outputs: Outputs,
        sample_weight: Any = None,
        names: tuple[str, str] = NAMES,
    ) -> "Samples":
        """Builds the samples from the arguments of a functional metric.

        Leading dimensions are flattened. Samples of weight 0 are left out and may have
        any values; bad values of the others raise ValueError.

        Args:
            y_true: labels.
            y_pred: predictions.
            outputs: the meaning of labels and predictions.
            sample_weight: weights that broadcast to the samples' shape, or None.
            names: what errors call labels and predictions.
        """
        samples = check_values(y_true, y_pred, outputs, sample_weight, names)
        check_not_empty(names[1], to_numpy(y_pred))
        if samples.n == 0:
            allowed = "predictions of at least one sample that counts"
            refuse(names[1], f"{samples.num_given} that do not count", allowed)
        return samples

    @classmethod
    def given(
        cls,
        y_true: Any,
        y_pred: Any,
        sample_weight: Any = None,
        *,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
    ) -> "Samples":
        """Builds the samples from the arguments of `Outputs`."""
        outputs = Outputs(
            from_logits, multi_label, ignore_class, axis, decision_threshold
        )
        return cls.of(y_true, y_pred, outputs, sample_weight)

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
            replace(self.take(rows), num_labels=1, label_index=None)
            for rows in np.split(order, np.cumsum(sizes)[:-1])
            if len(rows)
        ]

    def take(self, rows: Array) -> "Samples":
        """Returns some of the rows, as if only they were given."""
        weight, label = self.weight, self.label_index
        return replace(
            self,
            y_pred=self.y_pred[rows],
            labels=self.labels[rows],
            weight=None if weight is None else weight[rows],
            label_index=None if label is None else label[rows],
            kept=None,
        )

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

    def counts_of(self, drawn: Array) -> Array:
        """Returns the counts of resamples, (r, n), that hold samples `drawn` times."""
        weight = 1.0 if self.weight is None else self.weight
        return to_counts(drawn * weight, drawn.sum(axis=-1, keepdims=True))

    def log_p(self, rows: slice) -> Array:
        """Returns ln p of some rows in float64."""
        z = self.y_pred[rows].astype("float64")
        with np.errstate(divide="ignore", invalid="ignore"):
            return log_softmax(z, np) if self.from_logits else np.log(z)

    def p(self, rows: slice) -> Array:
        """Returns the probabilities of some rows, (rows, k)."""
        if not self.from_logits:
            return self.y_pred[rows]
        # Not exp(ln p), which is not 1/k for equal logits, but may be in another bin.
        with np.errstate(invalid="ignore"):
            return softmax(self.y_pred[rows].astype("float64"), np)

    def each(self, function: Callable[[slice], Array]) -> Array:
        """Returns function(rows) for all rows, block by block."""
        return np.concatenate(
            [function(rows) for rows in row_blocks(self.y_pred.shape)]
        )

    def of_class(self, values: Array, index: Array) -> Array:
        """Returns values[i, index[i]]."""
        return np.take_along_axis(values, index[:, None], axis=-1)[:, 0]

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
    def confidence(self) -> Array:
        """The predicted class's probability (n,), in the predictions' precision."""
        return self.each(lambda rows: self.of_class(self.p(rows), self.top[rows]))

    @cached_property
    def correct(self) -> Array:
        """The label mass of the predicted class (n,): 1 or 0 for class indices."""
        if not self.sparse:
            return self.of_class(self.labels, self.top)
        return (self.top == self.labels).astype("float64")

    def scores(self, csf: Any) -> Array:
        """Confidence scores (n,), in the predictions' own precision."""
        if csf.needs == "logits":
            return self.each(lambda rows: csf.scores(self._logits(csf, rows), np))
        return self.each(lambda rows: csf.scores(self.p(rows), np))

    def ranks(self, csf: Any) -> Array:
        """Values that order the samples by confidence (n,).

        These are the scores, those outside their support at its nearer end; or, for
        built-in scores of logits, their log-odds, which float64 does not round to one
        value where the score saturates.
        """
        if csf.needs == "logits":
            return self.scores(csf)
        if not (self.from_logits and csf.built_in):
            return np.clip(self.scores(csf), *csf.support(self.num_classes))

        def log_odds(rows: slice) -> Array:
            # In order and from the largest down, sums depend neither on the order of
            # the classes nor on a shift: predictions that are equal tie.
            z = np.sort(self._finite_logits(rows), axis=-1)
            return csf.log_odds_of_logits(z - z[:, -1:], np)

        # NaN stays NaN, without NumPy's warning.
        with np.errstate(invalid="ignore"):
            return self.each(log_odds)

    def _logits(self, csf: Any, rows: slice) -> Array:
        """Returns the logits that a score needs, of some rows in float64."""
        if not self.from_logits:
            csf.refuse_missing("probabilities")
        csf.check_classes(self.num_classes)
        return self._finite_logits(rows)

    def _finite_logits(self, rows: slice) -> Array:
        """Returns logits of some rows in float64, NaN where a row has no probabilities,
        and so no score.
        """
        logits = self.y_pred[rows].astype("float64")
        finite = np.isfinite(logits.max(axis=-1, keepdims=True))
        return np.where(finite, logits, np.nan)
