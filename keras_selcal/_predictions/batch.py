"""Labels and predictions of one call as `keras.ops` tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor, is_tensor, to_float_tensor
from keras_selcal._backend.ops import mask_of
from keras_selcal._formulas.functions import (
    finite_log_p,
    first_largest,
    floor,
    normalizer,
    safe_log,
    take_class,
    zero_unless,
)
from keras_selcal._predictions.outputs import (
    Arranged,
    Outputs,
    broadcast_weight,
    static_shape,
)
from keras_selcal._predictions.samples import check_values
from keras_selcal._validation import TENSOR_SUM_TOLERANCE


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
        y_pred: probabilities, or logits if `from_logits`; (n, k).
        labels: class indices as floats, (n, 1), or distributions (n, k).
        from_logits: whether `y_pred` holds logits.
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
        decision_threshold: probability of class 1 above which it is predicted (k = 2).
        whole: whether class indices came as integers.
    """

    y_pred: Tensor
    labels: Tensor
    from_logits: bool
    sparse: bool
    sample_weight: Tensor | None = None
    num_labels: int = 1
    shape: tuple[Any, ...] = (-1,)
    mask: Tensor | None = None
    weight: Tensor | None = None
    decision_threshold: float = 0.5
    whole: bool = False

    @classmethod
    def of(
        cls, y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any = None
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
        """
        # Read the mask first: casting drops it.
        mask = mask_of(y_pred)
        if mask is None:
            _check_arrays(y_true, y_pred, outputs, sample_weight)
        y_pred, y_true = to_float_tensor(y_pred), ops.convert_to_tensor(y_true)
        shape = outputs.sample_shape(ops.shape(y_pred))
        weight = _product(shape, y_pred, sample_weight, mask)
        mask = _product(shape, y_pred, mask)
        arranged = outputs.arrange(y_true, y_pred, static_shape(y_true), ops)
        num_labels = int(arranged.y_pred.shape[-2]) if outputs.multi_label else 1
        y_pred = arranged.y_pred
        k = int(y_pred.shape[-1])
        if len(y_pred.shape) != 2:
            y_pred = ops.reshape(y_pred, (-1, k))
        labels, kept = _label_rows(arranged, outputs, y_pred)
        if kept is not None:
            kept = ops.cast(ops.reshape(kept, (*shape, num_labels)), y_pred.dtype)
            if num_labels == 1:
                kept = ops.squeeze(kept, -1)
                weight = kept if weight is None else weight * kept
            elif mask is not None:
                mask = ops.expand_dims(mask, -1)
            mask = kept if mask is None else mask * kept
        rows = _rows_of_weight(weight, kept, num_labels)
        if rows is not None:
            counts = ops.expand_dims(rows != 0, -1)
            padding = ops.zeros_like(y_pred)
            if not outputs.from_logits:
                padding = padding + 1 / k
            y_pred = ops.where(counts, y_pred, padding)
            first = ops.zeros_like(labels)
            if not arranged.sparse:
                first = first + ops.cast(ops.arange(k) == 0, labels.dtype)
            labels = ops.where(counts, labels, first)
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
            "float" not in str(y_true.dtype),
        )

    def smoothed(self, epsilon: float) -> "Batch":
        """Returns the batch with labels (1 − ε) y + ε/k."""
        if epsilon == 0:
            return self
        labels = (1 - epsilon) * self.distributions + epsilon / self.num_classes
        return replace(self, labels=labels, sparse=False)

    def still(self) -> "Batch":
        """Returns the batch without gradients."""
        return replace(self, y_pred=ops.stop_gradient(self.y_pred))

    @property
    def num_classes(self) -> int:
        return int(self.y_pred.shape[-1])

    @cached_property
    def _normalizer(self) -> Tensor:
        """Logits minus the largest of their row, (n, k), and Σ exp of these, (n, 1)."""
        return normalizer(self.y_pred, ops)

    @cached_property
    def p(self) -> Tensor:
        """Probabilities (n, k)."""
        if not self.from_logits:
            return self.y_pred
        # Not exp(ln p), which is not 1/k for equal logits, but may be in another bin.
        d, total = self._normalizer
        return ops.exp(d) / total

    @cached_property
    def log_p(self) -> Tensor:
        """Log-probabilities (n, k)."""
        if self.from_logits:
            d, total = self._normalizer
            return finite_log_p(d, total, ops)
        return safe_log(self.y_pred, ops)

    @cached_property
    def p_y(self) -> Tensor:
        """Probability of the true class, (n, 1); for labels that are distributions,
        of each class that may be the true one, (n, k).
        """
        return ops.exp(self.log_p_y) if self.from_logits else self._at_label(self.p)

    @cached_property
    def log_p_y(self) -> Tensor:
        """Ln p_y, (n, 1) or (n, k)."""
        return self._at_label(self.log_p)

    @cached_property
    def one_minus_p_y(self) -> Tensor:
        """1 − p_y without cancellation, (n, 1) or (n, k)."""
        return -ops.expm1(self.log_p_y) if self.from_logits else 1.0 - self.p_y

    def _at_label(self, values: Tensor) -> Tensor:
        """Returns values of the true class, (n, 1), or of each class, (n, k)."""
        return take_class(values, self._class, ops) if self.sparse else values

    @cached_property
    def _is_class(self) -> Tensor:
        """Whether labels that are class indices are in 0 … k − 1, (n, 1)."""
        y = self.labels
        is_class = (y >= 0) & (y < self.num_classes)
        return is_class if self.whole else is_class & (floor(y, ops) == y)

    @cached_property
    def _class(self) -> Tensor:
        """Labels that are class indices, (n, 1), others as 0."""
        return zero_unless(self._is_class, self.labels, ops)

    @cached_property
    def distributions(self) -> Tensor:
        """Labels as distributions, (n, k); NaN where a label is not a class."""
        if not self.sparse:
            return self.labels
        classes = ops.arange(self.num_classes, dtype=self.y_pred.dtype)
        is_class = ops.cast(self._is_class, self.y_pred.dtype)
        return ops.cast(classes == self.labels, self.y_pred.dtype) * _or_nan(is_class)

    @cached_property
    def _valid_labels(self) -> Tensor:
        """Rows whose label is a class or a distribution, and whose weight is finite and
        not negative, (n,).
        """
        valid = self._is_class[:, 0] if self.sparse else _near_one(self.labels)
        if self.sample_weight is not None:
            valid = valid & (self.sample_weight >= 0) & (self.sample_weight < math.inf)
        return valid

    @cached_property
    def valid(self) -> Tensor:
        """Rows whose label, weight and prediction are valid, (n,): probabilities that
        sum to 1, or logits that are not NaN.
        """
        if self.from_logits:
            # A sum is NaN where a logit is; XLA's maximum is not on every backend.
            z = self.y_pred
            finite = (ops.sum(z, axis=-1) < math.inf) & (ops.amax(z, -1) > -math.inf)
            return self._valid_labels & finite
        return self._valid_labels & _near_one(self.y_pred)

    def checked(self, losses: Tensor) -> Tensor:
        """Returns losses of the rows, (n,), with NaN where a row is not valid.

        NaN is a factor: gradients become NaN as well. Losses of logits that are NaN are
        NaN already.
        """
        valid = self._valid_labels if self.from_logits else self.valid
        return losses * _or_nan(ops.cast(valid, losses.dtype))

    def checked_weight(self) -> Tensor:
        """Returns the weight of each row, (n,), with NaN where a row is not valid."""
        one = _or_nan(ops.cast(self.valid, self.y_pred.dtype))
        return one if self.sample_weight is None else self.sample_weight * one

    def scores(self, csf: Any) -> Tensor:
        """Confidence scores (n,)."""
        if csf.needs == "logits":
            return csf.scores(self._logits(csf), ops)
        if self.from_logits:
            return csf.of_log_p(self.log_p, ops)
        return csf.scores(self.p, ops)

    def log_odds(self, csf: Any) -> Tensor:
        """The log-odds of confidence scores (n,), or the scores if not bounded."""
        if csf.needs == "logits":
            return csf.log_odds(self._logits(csf), ops)
        if self.from_logits:
            return csf.log_odds_of_logits(self.y_pred, ops)
        return csf.log_odds(self.y_pred, ops)

    def _logits(self, csf: Any) -> Tensor:
        """Returns the logits that a score needs."""
        if not self.from_logits:
            csf.refuse_missing("probabilities")
        csf.check_classes(self.num_classes)
        return self.y_pred

    @cached_property
    def predicted(self) -> Tensor:
        """The predicted class, (n, 1): the first of the most probable ones,
        or class 1 of two where its probability is above the threshold.
        """
        if self.decision_threshold == 0.5:
            return first_largest(self.y_pred, ops)
        return ops.cast(self.p[:, 1:] > self.decision_threshold, "int32")

    @cached_property
    def confidence(self) -> Tensor:
        """The predicted class's probability, (n,)."""
        if self.decision_threshold != 0.5:
            return take_class(self.p, self.predicted, ops)[:, 0]
        if not self.from_logits:
            return ops.amax(self.y_pred, axis=-1)
        return ops.amax(ops.softmax(self.y_pred, axis=-1), axis=-1)

    @cached_property
    def correct(self) -> Tensor:
        """The label mass of the predicted class, (n,): 1 or 0 for class indices."""
        if self.sparse:
            predicted = ops.cast(self.predicted, self.y_pred.dtype)
            return ops.cast(predicted == self.labels, self.y_pred.dtype)[:, 0]
        return take_class(self.labels, self.predicted, ops)[:, 0]

    def expectation(self, values: Tensor) -> Tensor:
        """Returns Σ_c y_c v_c, (n,), for values of shape (n, 1), (n, k) or (n,)."""
        if len(values.shape) == 1:
            return values
        if values.shape[-1] == 1:
            return ops.squeeze(values, -1)
        return ops.sum(self.labels * values, axis=-1)

    def by_label(self, values: Tensor) -> Tensor:
        """Returns values of the rows, (n,), as (labels, samples)."""
        if self.num_labels == 1:
            return ops.expand_dims(values, 0)
        return ops.transpose(ops.reshape(values, (-1, self.num_labels)))

    def from_labels(self, values: Tensor) -> Tensor:
        """Returns values (labels, samples) as values of the rows, (n,)."""
        if self.num_labels == 1:
            return values[0]
        return ops.reshape(ops.transpose(values), (-1,))

    def to_samples(self, values: Tensor) -> Tensor:
        """Returns values of the rows, (n,), in the samples' shape. Multi-label data are
        averaged over labels, and labels that `ignore_class` leaves out count as 0.
        """
        if self.num_labels == 1:
            return ops.reshape(values, self.shape)
        values = ops.reshape(values, (*self.shape, self.num_labels))
        mask = self.mask
        if mask is not None and len(mask.shape) == len(values.shape):
            values = values * mask
        return ops.mean(values, axis=-1)


def _or_nan(ones: Tensor) -> Tensor:
    """Returns 1/1 or 0/0: fewer operations than `where`, and NaN for 0."""
    return ones / ones


def _near_one(rows: Tensor) -> Tensor:
    """Returns whether each row, (n, k), sums to 1 and has no negative mass, (n,)."""
    near = ops.abs(ops.sum(rows, axis=-1) - 1.0) <= TENSOR_SUM_TOLERANCE
    return near & (ops.sum(ops.abs(rows), axis=-1) <= 1.0 + TENSOR_SUM_TOLERANCE)


def _product(shape: tuple[Any, ...], like: Tensor, *factors: Any) -> Tensor | None:
    """Returns the product of weights and masks in the samples' shape, or None."""
    weight = None
    for factor in factors:
        if factor is not None:
            factor = ops.cast(ops.convert_to_tensor(factor), like.dtype)
            factor = broadcast_weight(factor, shape, ops)
            weight = factor if weight is None else weight * factor
    return weight


def _rows_of_weight(
    weight: Tensor | None, kept: Tensor | None, num_labels: int
) -> Tensor | None:
    """Returns the weight of each row, (n,), or None."""
    if num_labels > 1:
        if weight is not None:
            shape = (*ops.shape(weight), num_labels)
            weight = ops.broadcast_to(ops.expand_dims(weight, -1), shape)
        if kept is not None:
            weight = kept if weight is None else weight * kept
    return None if weight is None else ops.reshape(weight, (-1,))


def _label_rows(
    arranged: Arranged, outputs: Outputs, y_pred: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Returns the rows' labels, and which rows `ignore_class` keeps (n,), or None.

    Class indices become floats: TensorFlow computes with int32 on the host.
    """
    y_true, k, ignored = arranged.y_true, int(y_pred.shape[-1]), outputs.ignore_class
    y_true = ops.cast(y_true, y_pred.dtype)
    if arranged.sparse:
        flat = ops.reshape(y_true, (-1,))
        kept = None if ignored is None else flat != ignored
        return ops.expand_dims(flat, -1), kept
    if arranged.sparse is None:
        return _labels_at_run_time(y_true, y_pred, ignored)
    labels = ops.reshape(y_true, (-1, k))
    # The last of the two columns of a sigmoid's labels is the label itself.
    return labels, None if ignored is None else labels[:, 1] != ignored


def _labels_at_run_time(
    y_true: Tensor, y_pred: Tensor, ignored: int | None
) -> tuple[Tensor, Tensor | None]:
    """Returns distributions, for labels whose number alone shows what they are.

    TensorFlow drops the static shape of labels once a model has seen two ranks.
    """
    n, k = ops.shape(y_pred)
    flat = ops.reshape(y_true, (-1,))
    are_indices = ops.equal(ops.shape(flat)[0], n)

    def of_indices() -> Tensor:
        # A label that is not a class becomes a row of zeros, which is not valid.
        classes = ops.arange(k, dtype=y_pred.dtype)
        return ops.cast(classes == ops.expand_dims(flat, -1), y_pred.dtype)

    labels = ops.cond(are_indices, of_indices, lambda: ops.reshape(flat, (-1, int(k))))
    if ignored is None:
        return labels, None
    kept = ops.cond(
        are_indices,
        lambda: flat != ignored,
        lambda: ops.ones((n,), dtype="bool"),
    )
    return labels, kept


def _check_arrays(
    y_true: Any, y_pred: Any, outputs: Outputs, sample_weight: Any
) -> None:
    """Checks the values that come as NumPy arrays or lists."""
    if is_tensor(sample_weight) or is_tensor(y_true):
        return
    if is_tensor(y_pred):
        shape = static_shape(y_pred)
        if shape is None or None in shape:
            return
        # Logits of 0 replace the values, which are on the device.
        outputs = replace(outputs, from_logits=True)
        y_pred = np.broadcast_to(np.float32(0), [size or 0 for size in shape])
    check_values(y_true, y_pred, outputs, sample_weight)
