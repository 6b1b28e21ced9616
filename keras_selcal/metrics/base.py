"""The base classes of the metrics: rows that count, exact sums, merging."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._backend.host import (
    array_module,
    cast,
    computes_on_host,
    memory_of,
    on_host,
)
from keras_selcal._backend.ops import Tensor, segment_sum, unconverted
from keras_selcal._backend.sums import add_in_loop, add_to_cells, add_to_sums
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_count, refuse

# Rows, and entries of predictions, that are looked at at a time: temporary arrays stay
# small, and those of NumPy in the cache.
_MOST_ROWS = 2**20
_MOST_ROWS_ON_HOST = 2**16
_MOST_ENTRIES = 2**22

# Rows that are added up one after the other.
_MOST_SUMMANDS = 2**10

# An array of so few sums is added as a whole.
_FEW_CELLS = 2**11

# Default cells of all histograms of a metric together: 268 MB.
MOST_CELLS = 2**24


class ClassificationMetric(keras.metrics.Metric):
    """Base class of the metrics, with the arguments that all of them take.

    Subclasses create their state in `create_state(groups)` with `add_sums`, and
    implement `update(batch, w)` and `compute()`. Samples of weight 0, and those in a
    Keras mask, do not change the result.

    `y_pred` holds probabilities or logits of shape (..., k), or the output of one
    sigmoid unit, of shape (..., 1) or (n,), which equals the two columns (1 − p, p).
    With `multi_label=True`, the k outputs are independent sigmoids and the metric is
    the mean of its values for each label.

    Labels, predictions or weights that cannot be right (see `update_state`) raise
    ValueError where they are NumPy arrays or lists. In tensors, as in `fit`, they make
    the result NaN: looking at their values would slow down every step.

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out, as in
            `keras.losses.SparseCategoricalCrossentropy`.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: size of the axis of classes. Needed only by metrics that keep sums
            for each class or label, and only before JAX's stateless methods: None takes
            it from the first predictions.
        name: name of the metric.
        dtype: dtype of the metric. The state is kept in float32, or float64 if that
            is the dtype.
    """

    # Whether a higher value is better ("up") or a lower one ("down").
    direction = "down"
    # Whether there are sums for each class of multi-class predictions.
    class_wise = False
    # Whether an update looks at rows as a whole only, without arrays of their size.
    row_wise = False

    def __init__(
        self,
        *,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        # Keras's EarlyStopping and ModelCheckpoint infer their mode from it.
        self._direction = self.direction
        self.outputs = Outputs(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
        )
        self.from_logits = self.outputs.from_logits
        self.multi_label = self.outputs.multi_label
        self.ignore_class = self.outputs.ignore_class
        self.axis = self.outputs.axis
        self.decision_threshold = self.outputs.decision_threshold
        if num_classes is not None:
            least = 1 if multi_label else 2
            num_classes = check_count("num_classes", num_classes, least=least)
        self.num_classes = num_classes
        # The state has sums for so many groups, each with a value of its own.
        self.groups: int | None = None
        # Whether NumPy computes the result at present.
        self._result_on_host = False

    def build_state(self) -> None:
        """Creates the state if the number of groups is known; ends `__init__`."""
        if not self.grouped:
            self._build(1)
        elif self.num_classes is not None:
            self._build(self.num_classes)

    @property
    def grouped(self) -> bool:
        """Whether each class or label has sums of its own."""
        return self.class_wise or self.outputs.multi_label

    def _build(self, groups: int) -> None:
        self.groups = groups
        self.create_state(groups)

    def create_state(self, groups: int) -> None:
        """Creates the variables of so many groups."""
        raise NotImplementedError

    def update(self, batch: Batch, w: Tensor) -> None:
        """Adds a batch, with weights (n,), to the state."""
        raise NotImplementedError

    def compute(self) -> tuple[Tensor, Tensor]:
        """Returns the value of each group and its mass, both (groups,)."""
        raise NotImplementedError

    @property
    def state_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    def add_sums(self, name: str, shape: tuple[int, ...]) -> Any:
        """Creates the state of an array of sums.

        Each is a pair of floats, the second of which holds what the first has rounded
        off: a float32 alone would stop counting at 2²⁴.
        """
        sums = self.add_variable(
            shape=(2, *shape), initializer="zeros", dtype=self.state_dtype, name=name
        )
        # Inside a layer's autocast scope, an update would be lost in half precision.
        sums._autocast = False
        return sums

    @staticmethod
    def accumulate(sums: Any, values: Tensor) -> None:
        """Adds values to an array of sums.

        What is rounded off stays below the last digit of the first float, so that
        both together count exactly to 2⁴⁸.
        """
        add_to_sums(sums, values)

    def pairs(self, sums: Any) -> Tensor:
        """Returns the pairs of floats of an array of sums."""
        if self._result_on_host:
            return memory_of(sums)
        # Read once: TensorFlow copies a variable that single cells are added to.
        return ops.convert_to_tensor(sums)

    def total(self, sums: Any) -> Tensor:
        """Returns the values of an array of sums."""
        pairs = self.pairs(sums)
        if self._result_on_host:
            pairs = pairs.astype("float64")
        return pairs[0] + pairs[1]

    def _on_host(self, x: Any) -> bool:
        """Returns whether NumPy computes what concerns `x`. Classes that are not the
        library's may expect tensors.
        """
        own = type(self).__module__.startswith("keras_selcal.")
        return own and computes_on_host(x)

    @unconverted
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds samples to the state.

        Args:
            y_true: class indices (...) or (..., 1), or distributions (..., k) whose
                rows sum to 1. For one sigmoid unit, 0/1 or soft labels in [0, 1], of
                shape (...) or (..., 1); with `multi_label=True`, of shape (..., k).
            y_pred: probabilities, of which each row sums to 1, or logits.
            sample_weight: of a shape that broadcasts to the samples', not negative.
                Weight 2 equals two copies, weight 0 none.
        """
        arguments = y_true, y_pred, sample_weight
        if self._on_host(y_pred):
            return on_host(self._update, *arguments, xp=np)
        return self._update(*arguments, xp=ops)

    def _update(self, y_true: Any, y_pred: Any, sample_weight: Any, *, xp: Any) -> None:
        batch = Batch.of(y_true, y_pred, self.outputs, sample_weight, xp=xp)
        if xp is ops:
            logits = batch.logits
            batch = replace(
                batch,
                y_pred=ops.stop_gradient(batch.y_pred),
                logits=None if logits is None else ops.stop_gradient(logits),
            )
        groups = batch.num_labels if self.outputs.multi_label else batch.num_classes
        if self.groups is None:
            self._build(groups)
        if self.grouped and groups != self.groups:
            refuse(
                "y_pred", f"(..., {groups})", f"predictions of {self.groups} classes"
            )
        if batch.y_pred.shape[0] == 0:
            return
        # A slice of rows is a view for NumPy, and a copy for XLA.
        whole = self.row_wise and batch.xp is ops
        most = 4 * _MOST_ENTRIES if self.row_wise else _MOST_ENTRIES
        batch = replace(batch, row_wise=self.row_wise)
        for part in parts(batch, None if whole else most):
            w = part.sample_weight
            w = batch.xp.ones_like(part.y_pred[:, 0]) if w is None else w
            # A row that cannot be right has the weight NaN, and so has the result.
            self.update(part, part.checked(w))

    def accumulate_rows(
        self, sums: Any, rows: Tensor, index: Tensor, present: Any = None
    ) -> None:
        """Adds rows (n, 2) to an array of sums (groups, size, 2), by index in
        0 … size − 1 and label, and the number of those whose weight, the first entry,
        is above 0 to `present` (groups,).
        """
        groups, size = int(self.groups or 1), int(sums.shape[2])
        xp = array_module(rows)
        if groups > 1:
            index = xp.reshape(index, (-1, groups))
            index = xp.reshape(index + xp.arange(groups, dtype="int32") * size, (-1,))
        n, num_cells = rows.shape[0], groups * size
        if add_in_loop(sums, index, cast(rows, sums.dtype), present):
            return
        if present is not None:
            self.accumulate(present, self.group_counts(rows[:, 0]))
        few = num_cells > _FEW_CELLS and (n is None or 4 * n < num_cells)
        if few and add_to_cells(sums, index, cast(rows, sums.dtype)):
            return
        parts = 1
        if n is not None and xp is ops:
            # One row after the other, a long sum in float32 loses digits.
            parts += min(n // _MOST_SUMMANDS, n // num_cells)
        if parts > 1:
            part = ops.arange(n, dtype="int32") // math.ceil(n / parts)
            index = index + num_cells * part
        values = segment_sum(rows, index, parts * num_cells)
        values = xp.sum(xp.reshape(values, (parts, groups, size, 2)), axis=0)
        self.accumulate(sums, values)

    def group_counts(self, w: Tensor) -> Tensor:
        """Returns the number of rows of weight above 0 of each label, (groups,)."""
        present, xp = cast(w > 0, w.dtype), array_module(w)
        if self.groups == 1:
            return xp.sum(present, keepdims=True)
        return xp.sum(xp.reshape(present, (-1, int(self.groups or 1))), axis=0)

    def result_per_group(self) -> Tensor:
        """Returns the value of each label or class, (groups,)."""
        if self.groups is None:
            raise ValueError(
                "The values of classes need `num_classes`, or an update before them."
            )
        return self._of_state(lambda: self.compute()[0])

    @unconverted
    def result(self) -> Tensor:
        if self.groups is None:
            return ops.zeros((), dtype=self.state_dtype)
        return self._of_state(self._mean)

    def _of_state(self, function: Callable[[], Any]) -> Tensor:
        """Returns what a function computes from the state, as a tensor."""
        if not (self.variables and self._on_host(self.variables[0].value)):
            return function()
        self._result_on_host = True
        try:
            return ops.convert_to_tensor(on_host(function), dtype=self.state_dtype)
        finally:
            self._result_on_host = False

    def _mean(self) -> Tensor:
        """Returns the mean of the values of the groups."""
        values, mass = self.compute()
        xp = array_module(values)
        if self.groups == 1:
            return values[0]
        if not self.outputs.multi_label or self.outputs.ignore_class is None:
            return xp.mean(values)
        # A label of which every sample is ignored has no value.
        occurs = cast(mass != 0, values.dtype)
        values = xp.where(mass != 0, values, 0.0)
        return xp.sum(values) / xp.maximum(xp.sum(occurs), 1.0)

    def stateless_update_state(
        self, metric_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.groups is None:
            refuse("num_classes", None, "given before a stateless update")
        return super().stateless_update_state(metric_variables, *args, **kwargs)

    def merge_state(self, metrics: Any) -> None:
        """Adds the states of other metrics: as if this one had seen all their data.

        Args:
            metrics: metrics of the same class and configuration.
        """
        for other in metrics:
            mine, theirs = self.get_config(), other.get_config()
            if type(other) is not type(self) or any(
                mine[key] != theirs[key] for key in mine if key != "name"
            ):
                refuse("metrics", metrics, f"metrics like {self!r} with {mine}")
            if other.groups is None:
                continue
            if self.groups is None:
                self._build(other.groups)
            if self.groups != other.groups:
                allowed = f"metrics of {self.groups} classes, as this one"
                refuse("metrics", f"one of {other.groups}", allowed)
            for sums, others in zip(self.variables, other.variables, strict=True):
                for part in (others[0], others[1]):
                    self.accumulate(sums, part)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        names = "from_logits", "multi_label", "ignore_class", "axis"
        options = self.outputs.config(*names, "decision_threshold")
        return {**config, **options, "num_classes": self.num_classes}


def parts(batch: Batch, most_entries: int | None) -> Iterator[Batch]:
    """Yields a batch in parts of bounded size, or whole where its size is unknown."""
    n, w, labels = batch.y_pred.shape[0], batch.sample_weight, batch.num_labels
    most = _MOST_ROWS_ON_HOST if batch.xp is np else _MOST_ROWS
    if most_entries is not None:
        most = min(most, most_entries // batch.num_classes)
    most = max(1, most // labels) * labels
    if n is None or n <= most:
        yield batch
        return
    for start in range(0, n, most):
        rows = slice(start, min(start + most, n))
        yield replace(
            batch,
            y_pred=batch.y_pred[rows],
            labels=batch.labels[rows],
            sample_weight=None if w is None else w[rows],
            logits=None if batch.logits is None else batch.logits[rows],
        )
