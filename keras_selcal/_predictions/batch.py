"""Labels and predictions of one call as `keras.ops` tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._backend.host import array_module, cast, is_host, to_numpy
from keras_selcal._backend.ops import (
    Tensor,
    are_indices,
    argmax,
    as_float,
    log_p_at,
    log_softmax,
    mask_of,
    safe_log,
)
from keras_selcal._backend.rows import Rows, absolute_totals, near_one, summarized
from keras_selcal._predictions.outputs import (
    Outputs,
    combined_weight,
    finite_log_p,
    first_class,
    label_rows,
    rows_of_weight,
    static_shape,
)
from keras_selcal._predictions.samples import check_values, to_floats


class cached_property:  # noqa: N801
    """`functools.cached_property` without the lock that torch.compile cannot trace."""

    def __init__(self, function: Callable[[Any], Tensor]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any) -> Tensor:
        value = self.function(instance)
        instance.__dict__[self.name] = value
        return value


@dataclass(frozen=True)
class Batch:
    """n rows of predictions over k classes, with their labels.

    A row is a sample, with all leading dimensions flattened; for multi-label data, it
    is one label of a sample (k = 2). A statistic over rows (ranks, a CDF, a kernel
    estimate) is computed for each label: `by_label` returns values of the rows in shape
    (labels, samples), with one label for data that are not multi-label, and
    `from_labels` is its inverse. `to_samples` averages the values over labels.

    Attributes:
        y_pred: probabilities, or log-probabilities if `in_logs`; (n, k).
        labels: class indices (n, 1), or distributions (n, k).
        in_logs: whether `y_pred` is in log space.
        sparse: whether `labels` are class indices.
        sample_weight: (n,), or None if every row counts once. Rows of weight 0 hold a
            uniform prediction of class 0.
        num_labels: number of labels of multi-label data, or 1. Label c of sample i is
            row i·num_labels + c.
        shape: shape of the samples.
        mask: 0 for samples that a Keras mask or `ignore_class` leaves out, else 1, in
            the samples' shape (for multi-label data with `ignore_class`, with the
            labels in a last axis); None if there is no mask. As in Keras, a mean over
            the batch is one over the samples in the mask, of weight 0 or not.
        weight: weights in the samples' shape, all factors multiplied, or None.
        threshold: probability of class 1 above which it is predicted (k = 2).
        logits: (n, k), or None if predictions are probabilities.
        row_wise: whether only the largest prediction of each row is asked for, which
            is then found while the rows are checked.
    """

    y_pred: Tensor
    labels: Tensor
    in_logs: bool
    sparse: bool
    sample_weight: Tensor | None = None
    num_labels: int = 1
    shape: tuple[Any, ...] = (-1,)
    mask: Tensor | None = None
    weight: Tensor | None = None
    threshold: float = 0.5
    logits: Tensor | None = None
    row_wise: bool = False

    @classmethod
    def of(
        cls,
        y_true: Any,
        y_pred: Any,
        outputs: Outputs,
        sample_weight: Any = None,
        *,
        xp: Any = ops,
    ) -> "Batch":
        """Builds the batch from the arguments of a Keras loss or metric.

        The Keras mask of `y_pred` is applied. Rows of weight 0 are replaced by a
        uniform prediction of class 0: no content of padding, such as NaN or labels out
        of range, affects a value or a gradient.

        Bad values in NumPy arrays or lists raise ValueError. The values of tensors are
        not read, because the device would have to wait in every step of `fit`; see
        `valid`.

        Args:
            y_true: labels.
            y_pred: predictions.
            outputs: the meaning of labels and predictions.
            sample_weight: weights that broadcast to the samples' shape, or None.
            xp: `keras.ops`, or NumPy to compute with arrays, without gradients.
        """
        # Read the mask first: casting drops it.
        mask = mask_of(y_pred)
        _check_host_values(y_true, y_pred, outputs, sample_weight, mask)
        if xp is np:
            y_pred, y_true = to_floats(to_numpy(y_pred)), to_numpy(y_true)
        else:
            y_pred, y_true = as_float(y_pred), ops.convert_to_tensor(y_true)
        shape = outputs.sample_shape(xp.shape(y_pred))
        weight = combined_weight(shape, y_pred, sample_weight, mask)
        if mask is not None:
            mask = combined_weight(shape, y_pred, mask)
        arranged = outputs.arrange(y_true, y_pred, static_shape(y_true), xp)
        num_labels = int(arranged.y_pred.shape[-2]) if outputs.multi_label else 1
        k = int(arranged.y_pred.shape[-1])
        y_pred = arranged.y_pred
        if len(y_pred.shape) != 2:
            y_pred = xp.reshape(y_pred, (-1, k))
        labels, kept = label_rows(arranged, outputs, y_pred)
        if kept is not None:
            kept = cast(xp.reshape(kept, (*shape, num_labels)), y_pred.dtype)
            if num_labels == 1:
                kept = xp.squeeze(kept, -1)
                weight = kept if weight is None else weight * kept
            elif mask is not None:
                mask = xp.expand_dims(mask, -1)
            mask = kept if mask is None else mask * kept
        rows = rows_of_weight(weight, kept, num_labels, xp)
        if rows is not None:
            counts = xp.expand_dims(rows != 0, -1)
            y_pred = xp.where(counts, y_pred, 0.0 if outputs.from_logits else 1 / k)
            labels = xp.where(counts, labels, first_class(labels, arranged.sparse))
        logits = y_pred if outputs.from_logits else None
        if outputs.from_logits:
            y_pred = finite_log_p(log_softmax(y_pred), xp)
        return cls(
            y_pred,
            labels,
            outputs.from_logits,
            bool(arranged.sparse),
            rows,
            num_labels,
            shape,
            mask,
            weight,
            outputs.decision_threshold,
            logits,
        )

    def smoothed(self, epsilon: float) -> "Batch":
        """Returns the batch with labels (1 − ε) y + ε/k."""
        if epsilon == 0:
            return self
        labels = (1 - epsilon) * self.distributions + epsilon / self.num_classes
        return replace(self, labels=labels, sparse=False)

    @property
    def num_classes(self) -> int:
        return int(self.y_pred.shape[-1])

    @property
    def xp(self) -> Any:
        """`keras.ops`, or NumPy for a batch of arrays."""
        return array_module(self.y_pred)

    @cached_property
    def p(self) -> Tensor:
        """Probabilities (n, k)."""
        return self.as_p(self.y_pred)

    @cached_property
    def log_p(self) -> Tensor:
        """Log-probabilities (n, k)."""
        return self.as_log_p(self.y_pred)

    @cached_property
    def p_y(self) -> Tensor:
        """Probability of the true class, (n, 1); for labels that are distributions,
        of each class that may be the true one, (n, k).
        """
        return self.as_p(self.y_pred_y)

    @cached_property
    def log_p_y(self) -> Tensor:
        """Ln p_y, (n, 1) or (n, k)."""
        if self.logits is None or not self.sparse:
            return self.as_log_p(self.y_pred_y)
        log_p_y = log_p_at(self.class_indices, self.y_pred, self.logits)
        return self._of_classes(finite_log_p(log_p_y, self.xp))

    @cached_property
    def one_minus_p_y(self) -> Tensor:
        """1 − p_y without cancellation, (n, 1) or (n, k)."""
        return -self.xp.expm1(self.log_p_y) if self.in_logs else 1.0 - self.p_y

    @cached_property
    def y_pred_y(self) -> Tensor:
        """`y_pred` of the true class, (n, 1) or (n, k). Compare this with `y_pred`,
        because p and p_y may be rounded differently.
        """
        if not self.sparse:
            return self.y_pred
        at_label = self.xp.take_along_axis(self.y_pred, self.class_indices, -1)
        return self._of_classes(at_label)

    def _of_classes(self, values: Tensor) -> Tensor:
        """Returns values, (n, 1), with NaN, not a plausible number, for no class."""
        if self.are_classes:
            return values
        return self.xp.where(self.labels == self.class_indices, values, math.nan)

    @cached_property
    def are_classes(self) -> bool:
        """Whether all class indices are known to be in 0 … k − 1."""
        return self.sparse and are_indices(self.labels, self.num_classes)

    @property
    def class_indices(self) -> Tensor:
        """Labels that are class indices, (n, 1), those outside 0 … k − 1 as 0."""
        if self.are_classes:
            return self.labels
        valid = (self.labels >= 0) & (self.labels < self.num_classes)
        return self.xp.where(valid, self.labels, 0)

    @cached_property
    def distributions(self) -> Tensor:
        """Labels as distributions, (n, k); NaN where a label is not a class."""
        if not self.sparse:
            return self.labels
        index = self.class_indices
        classes = self.xp.arange(self.num_classes, dtype="int32")
        y = cast(index == classes, self.y_pred.dtype)
        return self.xp.where(self.labels == index, y, math.nan)

    @cached_property
    def valid(self) -> Tensor:
        """Which rows are valid, (n,).

        In other rows, label or prediction is not a class or distribution, or the weight
        is negative or not finite. `checked` sets their values to NaN, so that no
        plausible number results.
        """
        if self.in_logs:
            # One NaN in a row of logits makes all log-probabilities of the row NaN.
            valid = self.xp.logical_not(self.xp.isnan(self.y_pred[:, 0]))
        else:
            rows = self._rows
            total = absolute_totals(self.y_pred) if rows is None else rows.total
            valid = near_one(total)
        if not self.sparse:
            valid = valid & near_one(absolute_totals(self.labels))
        elif not self.are_classes:
            labels = self.labels[:, 0]
            valid = valid & (labels >= 0) & (labels < self.num_classes)
        if self.sample_weight is not None:
            valid = valid & (self.sample_weight >= 0) & (self.sample_weight < math.inf)
        return valid

    def checked(self, values: Tensor) -> Tensor:
        """Returns values of the rows, (n,), with NaN where a row is not valid.

        NaN is a factor, so that gradients become NaN as well.
        """
        if self.xp is np and self.valid.all():
            return values
        valid = cast(self.valid, values.dtype)
        # 1/1 or 0/0: fewer operations than `where`, which torch runs one by one.
        return values * (valid / valid)

    def as_p(self, values: Tensor) -> Tensor:
        """Returns the probabilities of values on the scale of `y_pred`."""
        return self.xp.exp(values) if self.in_logs else values

    def as_log_p(self, values: Tensor) -> Tensor:
        """Returns the log-probabilities of values on the scale of `y_pred`."""
        return values if self.in_logs else safe_log(values)

    def scores(self, csf: Any) -> Tensor:
        """Confidence scores (n,)."""
        if csf.needs != "probabilities":
            return csf.scores(self._needed(csf), self.xp)
        if self.in_logs:
            return csf.from_log_probabilities(self.y_pred, self.logits)
        return csf(self.p)

    def log_odds(self, csf: Any) -> Tensor:
        """The log-odds of confidence scores (n,), or the scores if not bounded."""
        if csf.needs != "probabilities":
            return csf.log_odds(self._needed(csf), self.xp)
        if self.in_logs:
            return csf.log_odds_from_log_probabilities(self.y_pred, self.xp)
        if csf.built_in and csf.__name__ == "msp" and self._rows is not None:
            return csf.log_odds(self._rows.largest[:, None], self.xp)
        return csf.log_odds(self.y_pred, self.xp)

    def _needed(self, csf: Any) -> Tensor:
        """Returns the predictions that a score needs."""
        if self.logits is None:
            csf.refuse_missing("probabilities")
        csf.check_classes(self.num_classes)
        # A row that has no probabilities has no score.
        return self.logits + 0.0 * self.xp.amax(self.logits, axis=-1, keepdims=True)

    def predicted(self) -> Tensor:
        """Returns the predicted class, (n, 1): the first of the most probable ones, or
        class 1 of two where its probability is above the threshold.
        """
        if self.threshold == 0.5:
            return argmax(self.y_pred)
        threshold = math.log(self.threshold) if self.in_logs else self.threshold
        return cast(self.y_pred[:, 1:] > threshold, "int32")

    def top_label(self) -> tuple[Tensor, Tensor]:
        """Returns the predicted class's probability and its label mass, both (n,)."""
        rows = self._rows
        if rows is not None:
            return self.as_p(rows.largest), cast(rows.found, rows.largest.dtype)
        place = self.predicted()
        largest = self.xp.take_along_axis(self.y_pred, place, axis=-1)
        correct = self.xp.take_along_axis(self.distributions, place, axis=-1)
        return self.as_p(largest[:, 0]), correct[:, 0]

    @cached_property
    def _rows(self) -> Rows | None:
        """The largest prediction of each row, if labels are classes, or None."""
        if not (self.row_wise and self.sparse and self.threshold == 0.5):
            return None
        return summarized(self.y_pred, self.class_indices[:, 0], not self.in_logs)

    def expectation(self, values: Tensor) -> Tensor:
        """Returns Σ_c y_c v_c, (n,), for values of shape (n, 1), (n, k) or (n,)."""
        if len(values.shape) == 1:
            return values
        if values.shape[-1] == 1:
            return self.xp.squeeze(values, -1)
        return self.xp.sum(self.labels * values, axis=-1)

    def by_label(self, values: Tensor) -> Tensor:
        """Returns values of the rows, (n,), as (labels, samples)."""
        if self.num_labels == 1:
            return self.xp.expand_dims(values, 0)
        return self.xp.transpose(self.xp.reshape(values, (-1, self.num_labels)))

    def from_labels(self, values: Tensor) -> Tensor:
        """Returns values (labels, samples) as values of the rows, (n,)."""
        if self.num_labels == 1:
            return values[0]
        return self.xp.reshape(self.xp.transpose(values), (-1,))

    def to_samples(self, values: Tensor) -> Tensor:
        """Returns values of the rows, (n,), in the samples' shape. Multi-label data are
        averaged over labels, and labels that `ignore_class` leaves out count as 0.
        """
        if self.num_labels == 1:
            return self.xp.reshape(values, self.shape)
        values = self.xp.reshape(values, (*self.shape, self.num_labels))
        mask = self.mask
        if mask is not None and len(mask.shape) == len(values.shape):
            values = values * mask
        return self.xp.mean(values, axis=-1)


def _check_host_values(
    y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any, mask: Any
) -> None:
    """Checks the values that come as NumPy arrays or lists."""
    if mask is not None or not is_host(sample_weight) or not is_host(y_true):
        return
    if not is_host(y_pred):
        shape = static_shape(y_pred)
        if shape is None or None in shape:
            return
        # Logits of 0 replace the values, which are on the device.
        outputs = replace(outputs, from_logits=True)
        y_pred = np.broadcast_to(np.float32(0), [size or 0 for size in shape])
    check_values(y_true, y_pred, outputs, sample_weight)
