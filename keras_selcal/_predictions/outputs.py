"""The meaning of a classifier's outputs and labels.

`Outputs` holds the options and the rules of shapes. `Batch` (`keras.ops`, also in
compiled code) and `Samples` (NumPy) are built from it.

The library works on rows: a row is one prediction over k ≥ 2 classes.

| outputs            | `y_pred`        | `y_true`                               | rows |
|--------------------|-----------------|----------------------------------------|------|
| multi-class        | (..., k), k ≥ 2 | indices (...) or (..., 1), or (..., k) | n    |
| one sigmoid unit   | (..., 1) or (n,)| 0/1 or soft, (...) or (..., 1)         | n    |
| `multi_label=True` | (..., k)        | 0/1 or soft, (..., k)                  | n·k  |

A sigmoid output p is the row (1 − p, p), a logit z the row of logits (0, z). The rows
of multi-label data are ordered by sample: row i·k + c is label c of sample i.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from keras_selcal._arrays import Tensor
from keras_selcal._validation import check_count, check_number, refuse

Shape = tuple[int | None, ...]
# What errors call labels and predictions.
NAMES = ("y_true", "y_pred")


class Arranged(NamedTuple):
    """Predictions and labels with their classes in the last axis.

    Attributes:
        y_pred: the result of `Outputs.columns`.
        y_true: class indices in any shape with one entry for each row; or
            distributions, of the shape of `y_pred`.
        sparse: whether `y_true` holds class indices; None if that is known only at run
            time.
        events: whether each output is an independent sigmoid.
    """

    y_pred: Any
    y_true: Any
    sparse: bool | None
    events: bool


@dataclass(frozen=True)
class Outputs:
    """The meaning of `y_pred` and `y_true`.

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids, (..., k).
        ignore_class: samples with this label get weight 0, as in
            `keras.losses.SparseCategoricalCrossentropy`.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: class 1 of two is predicted where its probability is
            larger than this. Losses do not use it.
    """

    from_logits: bool = False
    multi_label: bool = False
    ignore_class: int | None = None
    axis: int = -1
    decision_threshold: float = 0.5

    def __post_init__(self) -> None:
        ignored, axis = self.ignore_class, self.axis
        if ignored is not None:
            if isinstance(ignored, bool) or int(ignored) != ignored:
                refuse("ignore_class", ignored, "an integer or None")
            object.__setattr__(self, "ignore_class", int(ignored))
        if axis != -1:
            object.__setattr__(self, "axis", check_count("axis", axis, least=1))
        threshold = check_number(
            "decision_threshold",
            self.decision_threshold,
            "a number in (0, 1)",
            above=0,
            below=1,
        )
        object.__setattr__(self, "decision_threshold", threshold)
        for name in ("from_logits", "multi_label"):
            object.__setattr__(self, name, bool(getattr(self, name)))

    def config(self, *names: str) -> dict[str, Any]:
        """Returns the named options, for `get_config`."""
        options = asdict(self)
        return {name: options[name] for name in names}

    def changed(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults, except `from_logits`."""
        default = asdict(Outputs(from_logits=self.from_logits))
        return {
            name: value
            for name, value in asdict(self).items()
            if value != default[name]
        }

    def is_one_unit(self, y_pred_shape: Shape) -> bool:
        """Returns whether predictions of this shape come from one sigmoid unit."""
        if self.multi_label or not y_pred_shape:
            return False
        return len(y_pred_shape) == 1 or y_pred_shape[self._axis(y_pred_shape)] == 1

    def rows_of(self, y_pred_shape: Shape) -> tuple[Any, bool]:
        """Returns the number of classes of a row, and whether it is from a sigmoid."""
        if self.multi_label or self.is_one_unit(y_pred_shape):
            return 2, True
        return y_pred_shape[self._axis(y_pred_shape)], False

    def sample_shape(self, y_pred_shape: Any) -> Any:
        """Returns the shape of the samples, for predictions of a shape."""
        shape = tuple(y_pred_shape)
        if len(shape) == 1 and not self.multi_label:
            return shape
        axis = self._axis(shape)
        return shape[:axis] + shape[axis + 1 :]

    def check_shapes(
        self,
        y_true_shape: Shape | None,
        y_pred_shape: Shape,
        names: tuple[str, str] = NAMES,
    ) -> bool | None:
        """Checks that labels fit predictions; errors call them by `names`.

        Returns True if labels hold class indices, False if they hold one entry for each
        output or class, and None if the shapes fit both (TensorFlow may not know all).
        """
        y_true, y_pred = names
        y_pred_shape = tuple(y_pred_shape)
        if len(y_pred_shape) == 0:
            refuse(y_pred, "a scalar", "of shape (..., k), or (n,) for one sigmoid")
        if y_pred_shape[self._axis(y_pred_shape)] is None and len(y_pred_shape) > 1:
            refuse(y_pred, y_pred_shape, "of a known number of classes")
        if y_pred_shape[self._axis(y_pred_shape)] == 0 and len(y_pred_shape) > 1:
            refuse(y_pred, f"an empty array of shape {y_pred_shape}", "of some classes")
        one_unit = self.is_one_unit(y_pred_shape)
        k = None if one_unit else y_pred_shape[self._axis(y_pred_shape)]
        binary = one_unit or self.multi_label or k == 2
        if self.decision_threshold != 0.5 and not binary:
            refuse(
                "decision_threshold",
                self.decision_threshold,
                f"0.5 for k={k} classes: the most probable one is predicted",
            )
        if y_true_shape is None:
            return False if one_unit or self.multi_label else None
        y_true_shape = tuple(y_true_shape)
        samples = self.sample_shape(y_pred_shape)
        axis = self._axis(y_pred_shape) if len(y_pred_shape) > 1 else 1
        column = (*samples[:axis], 1, *samples[axis:])
        whole = _fits(y_true_shape, y_pred_shape)
        indices = _fits(y_true_shape, samples) or _fits(y_true_shape, column)
        if one_unit:
            if indices:
                return False
            allowed = (
                "hold one label for each sample of one sigmoid unit, with or without "
                "an axis of size 1 for it"
            )
        elif self.multi_label:
            if whole:
                return False
            allowed = f"be multi-hot, of the shape of `{y_pred}`, with multi_label=True"
        else:
            if whole or indices:
                return None if whole and indices else indices
            allowed = (
                "hold class indices of shape (...) or (..., 1), or distributions of "
                f"shape (..., k), for `{y_pred}` of shape (..., k). One sigmoid unit "
                f"has `{y_pred}` of shape (..., 1) or (n,)"
            )
        raise ValueError(
            f"`{y_true}` must {allowed}. Received: {y_true}.shape={y_true_shape}, "
            f"{y_pred}.shape={y_pred_shape}"
        )

    def arrange(
        self,
        y_true: Any,
        y_pred: Any,
        y_true_shape: Shape | None,
        xp: Any,
        names: tuple[str, str] = NAMES,
    ) -> Arranged:
        """Returns predictions and labels with their classes in the last axis.

        Args:
            y_true: labels, a tensor or an array.
            y_pred: predictions, in float32 or float64.
            y_true_shape: the labels' static shape, or None if it is not known.
            xp: `keras.ops` or NumPy.
            names: what errors call labels and predictions.
        """
        sparse = self.check_shapes(y_true_shape, y_pred.shape, names)
        if self.is_one_unit(y_pred.shape) or self.multi_label:
            columns = self.columns(y_pred, self.from_logits, xp)
            if y_true_shape is not None and len(y_true_shape) == len(y_pred.shape) > 1:
                y_true = xp.moveaxis(y_true, self.axis, -1)
            indices = "int" in str(y_true.dtype) or "bool" in str(y_true.dtype)
            if not indices:
                y_true = xp.reshape(y_true, xp.shape(columns)[:-1])
                y_true = two_columns(y_true, False, xp)
            return Arranged(columns, y_true, indices, True)
        if self.axis != -1:
            y_pred = xp.moveaxis(y_pred, self.axis, -1)
            if sparse is False:
                y_true = xp.moveaxis(y_true, self.axis, -1)
        if self.ignore_class is not None and sparse is False:
            refuse("ignore_class", self.ignore_class, "None if labels are (..., k)")
        return Arranged(y_pred, y_true, sparse, False)

    def columns(self, y_pred: Any, from_logits: bool, xp: Any) -> Any:
        """Returns predictions with their classes in the last axis: (..., k), two
        columns for one sigmoid unit, (..., labels, 2) for several labels.
        """
        one_unit = self.is_one_unit(tuple(y_pred.shape))
        if len(y_pred.shape) > 1:
            if self.axis != -1:
                y_pred = xp.moveaxis(y_pred, self.axis, -1)
            if one_unit:
                y_pred = xp.squeeze(y_pred, -1)
        if one_unit or self.multi_label:
            return two_columns(y_pred, from_logits, xp)
        return y_pred

    def restored(self, columns: Any, xp: Any, y_pred_shape: Shape | None = None) -> Any:
        """Returns what `columns` returns in the shape of the outputs. One sigmoid unit
        keeps its two columns unless `y_pred_shape` is given.
        """
        if self.multi_label:
            columns = columns[..., 1]
        elif y_pred_shape is not None and self.is_one_unit(y_pred_shape):
            if len(y_pred_shape) == 1:
                return columns[..., 1]
            columns = columns[..., 1:]
        return columns if self.axis == -1 else xp.moveaxis(columns, -1, self.axis)

    def _axis(self, shape: Shape) -> int:
        """Returns the axis of the classes as a non-negative number."""
        axis = self.axis if self.axis >= 0 else len(shape) - 1
        if axis >= len(shape):
            refuse("axis", self.axis, f"an axis of y_pred, which has shape {shape}")
        return axis


def _fits(shape: Shape, target: Shape) -> bool:
    """Returns whether a shape, with None for unknown dimensions, can be `target`."""
    return len(shape) == len(target) and all(
        a is None or b is None or a == b for a, b in zip(shape, target, strict=True)
    )


def static_shape(x: Tensor) -> Shape | None:
    """Returns the static shape, or None if the rank is not known."""
    try:
        return tuple(x.shape)
    except ValueError:
        # TensorFlow traces for any rank once it has seen labels of two ranks.
        return None


def two_columns(x: Any, from_logits: bool, xp: Any) -> Any:
    """Returns (1 − p, p), or (0, z) for logits, in a new last axis."""
    # Rounding may move a probability just above 1; the other one is then 0.
    zero = xp.zeros_like(x)
    other = zero if from_logits else xp.where(x > 1, zero, 1 - x)
    return xp.stack([other, x], axis=-1)


def broadcast_weight(weight: Any, shape: tuple[Any, ...], xp: Any) -> Any:
    """Returns a weight or mask in the samples' shape, for `xp` `keras.ops` or NumPy.

    A weight with fewer dimensions is aligned with the leading ones. A last dimension of
    size 1 is dropped.
    """
    if len(weight.shape) == len(shape) + 1 and weight.shape[-1] == 1:
        weight = xp.squeeze(weight, -1)
    if len(weight.shape) > len(shape) or any(
        isinstance(b, int) and a not in (None, 1, b)
        for a, b in zip(weight.shape, shape, strict=False)
    ):
        raise ValueError(
            "`sample_weight` must have a shape that broadcasts to the samples'. "
            f"Received: sample_weight.shape={tuple(weight.shape)} for samples of "
            f"shape {tuple(shape)}"
        )
    missing = len(shape) - len(weight.shape)
    if len(weight.shape) > 0 and missing:
        weight = xp.reshape(weight, xp.shape(weight) + (1,) * missing)
    return xp.broadcast_to(weight, shape)
