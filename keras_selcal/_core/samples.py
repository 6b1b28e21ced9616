"""Labels and predictions of a whole data set as NumPy arrays, for the exact metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from keras_selcal._core.batch import broadcast_weight, check_shapes
from keras_selcal._core.validation import refuse

Array = NDArray[Any]

# Entries of an (n, k) array that are held in float64 at a time: 8 MB.
MOST_ENTRIES = 2**20

# Up to this many classes NumPy finds maxima faster in columns than in rows.
_FEW_CLASSES = 24


def to_numpy(x: Any) -> Array:
    """Returns an array or a tensor of any backend as a NumPy array."""
    if not isinstance(x, np.ndarray):
        x = ops.convert_to_numpy(x) if ops.is_tensor(x) else np.asarray(x)
    return x


def to_weight(sample_weight: Any, shape: tuple[int, ...]) -> Array | None:
    """Returns the checked weights of samples of a shape, (n,) in float64."""
    if sample_weight is None:
        return None
    weight = to_numpy(sample_weight).astype("float64")
    if not np.all(weight >= 0):
        refuse("sample_weight", sample_weight, "numbers of at least 0")
    return np.reshape(broadcast_weight(weight, shape, np), (-1,))


def to_counts(weight: Array | None, n: int) -> Array:
    """Returns how many samples each one stands for, (n,), or (..., n) as `weight`.

    The rule of the losses: weights that add up to less than the number of samples
    (normalised ones, say) are scaled up to it, so that only their ratios matter.
    """
    if weight is None:
        return np.ones(n)
    return weight * np.maximum(1.0, n / weight.sum(axis=-1, keepdims=True))


def row_blocks(shape: tuple[int, ...]) -> list[slice]:
    """Returns slices of the rows of an (n, k) array, of bounded numbers of entries."""
    n, k = shape
    step = max(1, MOST_ENTRIES // k)
    return [slice(start, start + step) for start in range(0, n, step)]


@dataclass(frozen=True)
class Samples:
    """n samples that count, with predictions over k classes.

    Attributes:
        y_pred: probabilities or logits, (n, k), in float32 or float64.
        labels: class indices (n,), or distributions (n, k).
        sparse: whether `labels` are class indices.
        from_logits: whether `y_pred` holds logits.
        weight: (n,), all above 0, or None where every sample counts once.
    """

    y_pred: Array
    labels: Array
    sparse: bool
    from_logits: bool
    weight: Array | None

    @classmethod
    def of(
        cls, y_true: Any, y_pred: Any, from_logits: bool, sample_weight: Any
    ) -> "Samples":
        """Builds the samples from what the functional metrics are given.

        Leading dimensions (pixels, say) are flattened; samples of weight 0 are left
        out, whatever they hold.
        """
        y_pred, y_true = to_numpy(y_pred), to_numpy(y_true)
        sparse = check_shapes(y_true.shape, y_pred.shape)
        *leading, k = y_pred.shape
        if y_pred.dtype not in (np.float32, np.float64):
            y_pred = y_pred.astype("float32")
        y_pred = y_pred.reshape(-1, k)
        labels = y_true.reshape(-1) if sparse else y_true.reshape(-1, k)
        weight = to_weight(sample_weight, tuple(leading))
        if weight is not None and not np.all(weight > 0):
            counts = weight > 0
            y_pred, labels, weight = y_pred[counts], labels[counts], weight[counts]
        if len(y_pred) == 0:
            refuse("y_pred", y_pred.shape, "of at least one sample that counts")
        labels = labels.astype(np.intp if sparse else "float64")
        return cls(y_pred, labels, sparse, bool(from_logits), weight)

    @property
    def n(self) -> int:
        return len(self.y_pred)

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
        """Returns ln p of some rows in float64; `ordered` sorts each row first, so
        that its sums do not depend on the order of the classes.
        """
        z = self.y_pred[rows].astype("float64")
        if ordered:
            z.sort(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            if not self.from_logits:
                return np.log(z)
            z -= z.max(axis=-1, keepdims=True)
            return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))

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
        # Faster than take_along_axis.
        step = values.shape[-1]
        flat = np.ascontiguousarray(values).reshape(-1)
        return flat[np.arange(0, len(values) * step, step) + index]

    @cached_property
    def valid_labels(self) -> Array | None:
        """Which class indices lie in 0 … k − 1, or None where all do."""
        if not self.sparse:
            return None
        if self.labels.min() >= 0 and self.labels.max() < self.num_classes:
            return None
        return (self.labels >= 0) & (self.labels < self.num_classes)

    def of_label(self, values: Array, rows: slice = slice(None)) -> Array:
        """Returns Σ_c y_c v_c for values (rows, k); NaN where a label is no class."""
        labels = self.labels[rows]
        if not self.sparse:
            # 0·(−∞) counts as 0: a class that cannot be has no say.
            products = np.where(labels == 0, 0.0, labels) * np.where(
                labels == 0, 0.0, values
            )
            return np.asarray(products.sum(axis=-1))
        if self.valid_labels is None:
            return self.of_class(values, labels)
        valid = self.valid_labels[rows]
        found = self.of_class(values, np.where(valid, labels, 0))
        return np.where(valid, found, np.nan)

    def one_hot(self, rows: slice = slice(None)) -> Array:
        """Returns labels as distributions (rows, k); NaN where a label is no class."""
        labels = self.labels[rows]
        if not self.sparse:
            return labels
        y = (labels[:, None] == np.arange(self.num_classes)).astype("float64")
        if self.valid_labels is not None:
            y[~self.valid_labels[rows]] = np.nan
        return y

    @cached_property
    def top(self) -> Array:
        """The predicted class (n,): the first of the largest predictions."""
        return self.y_pred.argmax(axis=-1)

    @cached_property
    def _largest(self) -> tuple[Array, bool]:
        """The largest prediction (n,), and whether it is known that no row has it
        twice (or holds NaN, in which case nothing else matters).
        """
        if self.num_classes > _FEW_CLASSES:
            return self.of_class(self.y_pred, self.top), False
        largest = np.empty(self.n, self.y_pred.dtype)
        found = 0
        for rows in row_blocks(self.y_pred.shape):
            columns = np.ascontiguousarray(self.y_pred[rows].T)
            columns.max(axis=0, out=largest[rows])
            found += int(np.count_nonzero(columns == largest[rows]))
        return largest, found == self.n

    @cached_property
    def confidence(self) -> Array:
        """The largest probability (n,), in the predictions' own precision."""
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
        largest, once = self._largest
        if once and self.valid_labels is None:
            return (self.of_label(self.y_pred) == largest).astype("float64")
        correct = (self.top == self.labels).astype("float64")
        if self.valid_labels is not None:
            correct[~self.valid_labels] = np.nan
        return correct

    def scores(self, csf: Any) -> Array:
        """Confidence scores (n,), in the predictions' own precision."""
        return self.each(lambda rows: csf.scores(self.p(rows), np))

    def ranks(self, csf: Any) -> Array:
        """What orders the samples by confidence (n,).

        The score itself; from logits, a built-in score's log-odds, which float64
        does not round to one value where the score saturates.
        """
        if not (self.from_logits and csf.built_in):
            return self.scores(csf)
        return self.each(
            lambda rows: csf.log_odds_from_log_probabilities(
                self.log_p(rows, ordered=True), np
            )
        )
