"""The base class of the metrics: rows that count, sums in pairs of floats, merging."""

from typing import Any

import keras
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import at_least, segment_sum, zero_unless
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import check_count, refuse

# Cells of a histogram by default, as in the table of `docs/metrics.md`.
NUM_CELLS = 2**12
# Default cells of all histograms of a metric together.
MOST_CELLS = 2**20


class ClassificationMetric(keras.metrics.Metric):
    """Base class of the metrics, with the arguments that all of them take.

    Subclasses create their state in `create_state(num_parts)` with `add_sums`, and
    implement `update(batch, w)` and `compute()`. Samples of weight 0, and those in a
    Keras mask, do not change the result.

    `y_pred` holds probabilities or logits of shape (..., k), or the output of one
    sigmoid unit, of shape (..., 1) or (n,), which equals the two columns (1 − p, p).
    With `multi_label=True`, the k outputs are independent sigmoids and the metric is
    the mean of its values for each label.

    Labels, predictions or weights that cannot be right (see `update_state`) raise
    ValueError where they are NumPy arrays or lists. In tensors, as in `fit`, they make
    the result NaN: looking at their values would slow down every step. Probabilities
    with `from_logits=True` are not noticed there; `CalibrationMonitor` warns of them.

    Sums over updates are exact to 2⁴⁸. Within an update they are sums in float32, which
    may be off by 1e-3 of their value for a million rows.

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
        # Classes, or labels of multi-label data, with a value each; otherwise 1.
        self.num_parts: int | None = None

    def build_state(self) -> None:
        """Creates the state if the number of parts is known; ends `__init__`."""
        if not self.separate:
            self._build(1)
        elif self.num_classes is not None:
            self._build(self.num_classes)

    @property
    def separate(self) -> bool:
        """Whether each class or label has sums of its own."""
        return self.class_wise or self.outputs.multi_label

    def _build(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self.create_state(num_parts)

    def create_state(self, num_parts: int) -> None:
        """Creates the variables.

        Args:
            num_parts: how many classes or labels have a value each; otherwise 1.
        """
        raise NotImplementedError

    def update(self, batch: Batch, w: Tensor) -> None:
        """Adds a batch, with weights (n,), to the state."""
        raise NotImplementedError

    def compute(self) -> tuple[Tensor, Tensor]:
        """Returns the value of each part and its mass, both (num_parts,)."""
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

        The rounding error stays below the last digit of the first float, so both
        together count exactly to 2⁴⁸.
        """
        old, lost = sums[0], sums[1]
        values = ops.cast(values, sums.dtype)
        new = old + values
        added = new - old
        lost = lost + ((old - (new - added)) + (values - added))
        first = new + lost
        sums.assign(ops.stack([first, lost - (first - new)]))

    @staticmethod
    def total(sums: Any) -> Tensor:
        """Returns the values of an array of sums."""
        return sums[0] + sums[1]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds samples to the state.

        Args:
            y_true: class indices (...) or (..., 1), or distributions (..., k) whose
                rows sum to 1. For one sigmoid unit, 0/1 or soft labels in [0, 1], of
                shape (...) or (..., 1); with `multi_label=True`, of shape (..., k).
            y_pred: probabilities, each row summing to 1, or logits.
            sample_weight: non-negative weights that broadcast to the samples. Weight 2
                equals two copies, weight 0 none.
        """
        batch = Batch.of(y_true, y_pred, self.outputs, sample_weight).still()
        num_parts = batch.num_labels if self.outputs.multi_label else batch.num_classes
        if self.num_parts is None:
            self._build(num_parts)
        if self.separate and num_parts != self.num_parts:
            refuse(
                "y_pred",
                f"(..., {num_parts})",
                f"predictions of {self.num_parts} classes",
            )
        if batch.y_pred.shape[0] == 0:
            return
        # Invalid rows get weight NaN, which makes the result NaN.
        self.update(batch, batch.checked_weight())

    def histogram(self, index: Tensor, columns: list[Tensor], size: int) -> Tensor:
        """Returns the sums of columns (n,) in each cell, (num_parts, size, columns).

        Args:
            index: cell of each row in 0 … size − 1 as a float, (n,); label after label,
                if there are several parts.
            columns: what is summed.
            size: number of cells.
        """
        num_parts = int(self.num_parts or 1)
        if num_parts > 1:
            # Labels and classes of a sample follow each other.
            index = ops.reshape(index, (-1, num_parts))
            first = ops.arange(num_parts, dtype=index.dtype) * size
            index = index + first
        rows = ops.stack(columns, axis=-1)
        ids = ops.reshape(ops.cast(index, "int32"), (-1,))
        sums = segment_sum(rows, ids, num_parts * size, ops)
        return ops.reshape(sums, (num_parts, size, len(columns)))

    def result_per_class(self) -> Tensor:
        """Returns the value of each class, or of each label, (num_parts,)."""
        if self.num_parts is None:
            raise ValueError(
                "The values of classes need `num_classes`, or an update before them."
            )
        return self.compute()[0]

    def result(self) -> Tensor:
        if self.num_parts is None:
            return ops.zeros((), dtype=self.state_dtype)
        values, mass = self.compute()
        if self.num_parts == 1:
            return values[0]
        if not self.outputs.multi_label or self.outputs.ignore_class is None:
            return ops.mean(values)
        # A label of which every sample is ignored has no value.
        occurs = ops.cast(mass != 0, values.dtype)
        values = zero_unless(mass != 0, values, ops)
        return ops.sum(values) / at_least(ops.sum(occurs), 1.0, ops)

    def stateless_update_state(
        self, metric_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.num_parts is None:
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
            if other.num_parts is None:
                continue
            if self.num_parts is None:
                self._build(other.num_parts)
            if self.num_parts != other.num_parts:
                allowed = f"metrics of {self.num_parts} classes, as this one"
                refuse("metrics", f"one of {other.num_parts}", allowed)
            for sums, others in zip(self.variables, other.variables, strict=True):
                for part in (others[0], others[1]):
                    self.accumulate(sums, part)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        names = "from_logits", "multi_label", "ignore_class", "axis"
        options = self.outputs.config(*names, "decision_threshold")
        return {**config, **options, "num_classes": self.num_classes}
