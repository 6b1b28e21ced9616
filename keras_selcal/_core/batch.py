"""Labels and predictions of one call, in the one form that the library works on."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras import ops

from keras_selcal._core.ops import Tensor, as_float, safe_log


def check_shapes(
    y_true_shape: tuple[int | None, ...], y_pred_shape: tuple[int | None, ...]
) -> bool:
    """Checks that labels fit predictions; returns whether they are class indices.

    Predictions have shape (..., k) with k ≥ 2. Labels are class indices of shape
    (...) or (..., 1), or distributions (one-hot, soft) of shape (..., k).
    """
    y_true_shape, y_pred_shape = tuple(y_true_shape), tuple(y_pred_shape)
    if len(y_pred_shape) < 2 or y_pred_shape[-1] is None or y_pred_shape[-1] < 2:
        raise ValueError(
            "`y_pred` must have shape (..., k) with k ≥ 2, one column a class (a "
            "binary model too: p and 1 − p, or two logits). Received: "
            f"y_pred.shape={y_pred_shape}"
        )
    *leading, num_classes = y_pred_shape

    def fits(shape: tuple[int | None, ...], target: list[int | None]) -> bool:
        return len(shape) == len(target) and all(
            a is None or b is None or a == b for a, b in zip(shape, target, strict=True)
        )

    if fits(y_true_shape, [*leading, num_classes]) and y_true_shape[-1] is not None:
        return False
    if fits(y_true_shape, leading) or fits(y_true_shape, [*leading, 1]):
        return True
    raise ValueError(
        "`y_true` must hold class indices of shape (...) or (..., 1), or "
        "distributions of shape (..., k), for `y_pred` of shape (..., k). Received: "
        f"y_true.shape={y_true_shape}, y_pred.shape={y_pred_shape}"
    )


def spread_weight(weight: Any, shape: tuple[Any, ...], dtype: str) -> Tensor:
    """Returns a sample weight or mask as a tensor of the samples' shape.

    A weight of fewer dimensions belongs to the leading ones; a last one of size 1 is
    dropped.
    """
    return broadcast_weight(ops.cast(ops.convert_to_tensor(weight), dtype), shape, ops)


def combined_weight(y_pred: Tensor, *factors: Any) -> Tensor | None:
    """Returns the product of sample weights and masks, in the samples' shape, or None
    where none is given.
    """
    weight, shape = None, ops.shape(y_pred)[:-1]
    for factor in factors:
        if factor is not None:
            factor = spread_weight(factor, shape, y_pred.dtype)
            weight = factor if weight is None else weight * factor
    return weight


def broadcast_weight(weight: Any, shape: tuple[Any, ...], xp: Any) -> Any:
    """Returns what `spread_weight` does, for `xp` `keras.ops` or NumPy."""
    if len(weight.shape) == len(shape) + 1 and weight.shape[-1] == 1:
        weight = xp.squeeze(weight, -1)
    if len(weight.shape) > len(shape):
        raise ValueError(
            "`sample_weight` must have a shape that broadcasts to the samples'. "
            f"Received: sample_weight.shape={tuple(weight.shape)} for samples of "
            f"shape {tuple(shape)}"
        )
    missing = len(shape) - len(weight.shape)
    if len(weight.shape) > 0 and missing:
        weight = xp.reshape(weight, xp.shape(weight) + (1,) * missing)
    return xp.broadcast_to(weight, shape)


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


class Score(Protocol):
    """What `Batch` needs of a confidence score function (`keras_selcal.csf`)."""

    def __call__(self, probabilities: Any) -> Tensor: ...

    def from_log_probabilities(self, log_probabilities: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Batch:
    """n predictions over k classes with their labels.

    Whatever the leading dimensions were (pixels, say), the samples stand in one.

    Attributes:
        y_pred: probabilities, or log-probabilities where `in_logs`; (n, k).
        labels: class indices (n, 1), or distributions (n, k).
        in_logs: whether `y_pred` is in log space.
        sparse: whether `labels` are class indices.
        sample_weight: (n,), or None where every sample counts once.
    """

    y_pred: Tensor
    labels: Tensor
    in_logs: bool
    sparse: bool
    sample_weight: Tensor | None = None

    @classmethod
    def of(
        cls,
        y_true: Any,
        y_pred: Any,
        from_logits: bool,
        sample_weight: Tensor | None = None,
    ) -> "Batch":
        """Builds the batch from what a Keras loss or metric is given.

        Rows of weight 0 are replaced by a uniform prediction of class 0: whatever
        stands in padding, NaN and out-of-range labels included, then reaches neither
        a value nor a gradient.
        """
        y_pred = as_float(y_pred)
        y_true = ops.convert_to_tensor(y_true)
        try:
            shape = tuple(y_true.shape)
        except ValueError:
            # TensorFlow, once it has met labels of two ranks, traces for any rank.
            sparse = "int" in keras.backend.standardize_dtype(y_true.dtype)
        else:
            sparse = check_shapes(shape, tuple(y_pred.shape))
        num_classes = y_pred.shape[-1]
        y_pred = ops.reshape(y_pred, (-1, num_classes))
        labels = ops.reshape(y_true, (-1, 1 if sparse else num_classes))
        labels = ops.cast(labels, "int32" if sparse else y_pred.dtype)
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
            counts = ops.expand_dims(sample_weight > 0, -1)
            y_pred = ops.where(counts, y_pred, 0.0 if from_logits else 1 / num_classes)
            labels = ops.where(counts, labels, ops.zeros_like(labels))
        if from_logits:
            y_pred = ops.log_softmax(y_pred, axis=-1)
        return cls(y_pred, labels, from_logits, sparse, sample_weight)

    @property
    def num_classes(self) -> int:
        return int(self.y_pred.shape[-1])

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
        """Logarithm of `p_y`, (n, 1) or (n, k)."""
        return self.as_log_p(self.y_pred_y)

    @cached_property
    def one_minus_p_y(self) -> Tensor:
        """1 − p_y without cancellation, (n, 1) or (n, k)."""
        return -ops.expm1(self.log_p_y) if self.in_logs else 1.0 - self.p_y

    @cached_property
    def y_pred_y(self) -> Tensor:
        """`y_pred` of the true class, (n, 1) or (n, k): to compare with `y_pred`, where
        p and p_y may be rounded differently.
        """
        if not self.sparse:
            return self.y_pred
        # A label outside 0 … k − 1 gives NaN rather than a plausible number.
        valid = (self.labels >= 0) & (self.labels < self.num_classes)
        labels = ops.where(valid, self.labels, 0)
        return ops.where(valid, ops.take_along_axis(self.y_pred, labels, -1), math.nan)

    def as_p(self, values: Tensor) -> Tensor:
        """Returns the probabilities of values on the scale of `y_pred`."""
        return ops.exp(values) if self.in_logs else values

    def as_log_p(self, values: Tensor) -> Tensor:
        """Returns the log-probabilities of values on the scale of `y_pred`."""
        return values if self.in_logs else safe_log(values)

    def scores(self, csf: Score) -> Tensor:
        """Confidence scores (n,)."""
        return csf.from_log_probabilities(self.y_pred) if self.in_logs else csf(self.p)

    def expectation(self, values: Tensor) -> Tensor:
        """Returns Σ_c y_c v_c, (n,), for values of shape (n, 1), (n, k) or (n,)."""
        if len(values.shape) == 1:
            return values
        if values.shape[-1] == 1:
            return ops.squeeze(values, -1)
        return ops.sum(self.labels * values, axis=-1)
