"""The base classes of the losses: labels, masks, dtypes, reduction and reweighting."""

from typing import Any

import keras
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import at_least
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import deserialize_if_config, serialize_callable
from keras_selcal._validation import check_number, refuse


class _Reduction(keras.losses.Loss):
    """Keras's reduction, including its scaling for replicas, of given values."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


class ClassificationLoss(keras.losses.Loss):
    """Base class of the losses.

    Subclasses implement `sample_losses(batch)`, which returns one value for each row of
    a `Batch`. Unlike in a plain Keras loss, sample weights are available there:
    statistics of a batch leave out samples that have weight 0 or are masked. Losses are
    computed in float32, or in float64 for predictions in float64, also inside
    `torch.autocast`.

    | model output       | `y_pred`         | `y_true`                               |
    |--------------------|------------------|----------------------------------------|
    | softmax            | (..., k), k ≥ 2  | indices (...) or (..., 1), or (..., k) |
    | one sigmoid unit   | (..., 1) or (n,) | 0/1 or soft, (...) or (..., 1)         |
    | `multi_label=True` | (..., k)         | 0/1 or soft, (..., k)                  |

    One sigmoid unit equals two columns (1 − p, p), or logits (0, z). A multi-label loss
    is the mean over labels of the loss of each label; statistics (ranks, soft CDF,
    kernels) are computed for each label separately.

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label are left out, as in
            `keras.losses.SparseCategoricalCrossentropy`.
        label_smoothing: ε in [0, 1): labels become (1 − ε) y + ε/k, with k = 2 for
            sigmoids.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        reduction: type of reduction to apply to the loss; see `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.
    """

    # Whether replicas exchange statistics, including those whose share is empty.
    synchronized: bool = False

    def __init__(
        self,
        *,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.outputs = Outputs(from_logits, multi_label, ignore_class, axis)
        self.label_smoothing = check_number(
            "label_smoothing", label_smoothing, "a number in [0, 1)", least=0, below=1
        )
        # A reduction in half precision would lose digits of the sum.
        precise = "float64" if self.dtype == "float64" else "float32"
        self._reduce = _Reduction(self.name, reduction, precise)

    @property
    def from_logits(self) -> bool:
        return self.outputs.from_logits

    def sample_losses(self, batch: Batch) -> Tensor:
        """Returns the loss of each row of the batch, (n,)."""
        raise NotImplementedError

    def call(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """Returns the loss of each sample, in the shape of the samples.

        `sample_weight` says how much each sample counts in statistics of the batch;
        the values are not multiplied by it.
        """
        return self._values(self._batch(y_true, y_pred, sample_weight))

    def _batch(self, y_true: Any, y_pred: Any, sample_weight: Any) -> Batch:
        batch = Batch.of(y_true, y_pred, self.outputs, sample_weight)
        return batch.smoothed(self.label_smoothing)

    def _values(self, batch: Batch) -> Tensor:
        if batch.y_pred.shape[0] == 0 and not self.synchronized:
            # Most backends have no maximum of an empty tensor.
            return batch.to_samples(ops.sum(batch.y_pred, axis=-1))
        return batch.to_samples(batch.checked(self.sample_losses(batch)))

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        batch = self._batch(y_true, y_pred, sample_weight)
        values, scale = self._values(batch), batch.weight
        if batch.mask is not None and self.reduction in ("sum_over_batch_size", "mean"):
            # As in Keras, the mean leaves out masked samples, but not weights of 0.
            present = at_least(ops.mean(batch.mask), keras.config.epsilon(), ops)
            scale = (1.0 if scale is None else scale) / present
        if 0 in tuple(values.shape) and self.reduction not in (None, "none"):
            # Keras does not reduce an empty batch.
            return ops.cast(ops.sum(values), self.dtype)
        loss = self._reduce(values, values, sample_weight=scale)
        return ops.cast(loss, self.dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dtype": self.dtype,
            "label_smoothing": self.label_smoothing,
            **self.outputs.config("from_logits", "multi_label", "ignore_class", "axis"),
        }

    def __repr__(self) -> str:
        config = self.get_config()
        try:
            default = type(self)().get_config()
        except TypeError:  # a subclass with an argument that has no default
            default = {}
        shown = ", ".join(
            f"{name}={value!r}"
            for name, value in config.items()
            if name not in default or default[name] != value
        )
        return f"{type(self).__name__}({shown})"


def crossentropy(batch: Batch) -> Tensor:
    """−ln p_y, for each class that may be the true one."""
    return -batch.log_p_y


def brier(batch: Batch) -> Tensor:
    """‖p − y‖², (n,)."""
    return ops.sum(ops.square(batch.p - batch.distributions), axis=-1)


BASE_LOSSES = {"crossentropy": crossentropy, "brier": brier}


def _is_dense_keras_loss(loss: Any) -> bool:
    """Returns whether a loss is one of Keras's own that take no class indices.

    Given indices (n,) for predictions (n, k), most of them fail, but not if n = k.
    """
    kind = type(loss) if isinstance(loss, keras.losses.Loss) else loss
    module = getattr(kind, "__module__", None) or ""
    name = getattr(kind, "__name__", "")
    return module.split(".")[0] == "keras" and not name.lower().startswith("sparse")


class ReweightedLoss(ClassificationLoss):
    """A weight times a loss, for each sample: the common form of all reweighted risks.

    Formula:

    ```
    ℓ_w(p, y) = w(p, y) ℓ(p, y)
    ```

    To define a weighting, subclass and implement `weights`:

    ```python
    @keras.saving.register_keras_serializable("mine")
    class HardExamplesLoss(keras_selcal.losses.ReweightedLoss):
        def weights(self, batch):
            return 1 + batch.one_minus_p_y      # differentiable, or stop_gradient(...)

    model.compile(loss=HardExamplesLoss(from_logits=True))
    ```

    `batch` is a `keras_selcal.losses.Batch`. It offers the probabilities `p` and
    `log_p` (n, k), the true class's `p_y`, `log_p_y` and `one_minus_p_y`, confidence
    `scores(csf)` (n,), and `sample_weight` (n,) or None. A weight may have the shape of
    `p_y` or be (n,). For labels that are distributions, `p_y` holds every
    class and the loss is the expectation Σ_c y_c w(p, c) ℓ(p, c), as in Keras's own
    focal loss.

    Args:
        base_loss: ℓ: `"crossentropy"`, `"brier"`, another loss of this library, a
            Keras loss or a function of (y_true, y_pred) that returns a value for each
            sample. It receives probabilities (or ln p, if it has `from_logits`) with
            one column for each class, two for sigmoids, and labels in the form given:
            one-hot for Keras losses that are not sparse. Its own label smoothing is
            applied in addition. Its reduction is not used.
        strength: a in [0, 1]; the loss is (1 − a + a w) ℓ. With 0 it is the base loss.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label are left out.
        label_smoothing: ε in [0, 1): labels become (1 − ε) y + ε/k.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        reduction: type of reduction to apply to the loss; see `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.
    """

    def __init__(
        self,
        base_loss: Any = "crossentropy",
        *,
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        self.base_loss = deserialize_if_config(base_loss)
        if not callable(self.base_loss) and self.base_loss not in BASE_LOSSES:
            listed = ", ".join(repr(known) for known in BASE_LOSSES)
            refuse("base_loss", base_loss, f"one of {listed}, a loss or a function")
        if isinstance(self.base_loss, ClassificationLoss):
            ignored = self.base_loss.outputs.ignore_class
            if ignored not in (None, self.outputs.ignore_class):
                allowed = f"without `ignore_class`: pass it to {type(self).__name__}"
                refuse("base_loss", self.base_loss, allowed)
        self.strength = check_number(
            "strength", strength, "a number in [0, 1]", least=0, most=1
        )

    def weights(self, batch: Batch) -> Tensor:
        """Returns the weight of each row: (n,), or the shape of `batch.p_y`."""
        raise NotImplementedError

    def base_losses(self, batch: Batch) -> Tensor:
        """Returns ℓ of each row: (n,), or the shape of `batch.p_y`."""
        base = self.base_loss
        if isinstance(base, str):
            return BASE_LOSSES[base](batch)
        if isinstance(base, ClassificationLoss):
            return base.sample_losses(batch.smoothed(base.label_smoothing))
        function = base.call if isinstance(base, keras.losses.Loss) else base
        if batch.sparse and not _is_dense_keras_loss(base):
            y_true = ops.cast(ops.squeeze(batch.labels, -1), "int32")
        else:
            y_true = batch.distributions
        in_logs = getattr(base, "from_logits", False)
        values = function(y_true, batch.log_p if in_logs else batch.p)
        if len(values.shape) != 1:
            refuse(
                "base_loss",
                base,
                "a function that returns a value for each sample, of shape (n,), not "
                f"of shape {tuple(values.shape)}",
            )
        return values

    def sample_losses(self, batch: Batch) -> Tensor:
        weights, losses = self.weights(batch), self.base_losses(batch)
        if self.strength != 1.0:
            weights = 1.0 + self.strength * (weights - 1.0)
        if len(weights.shape) == 1 and len(losses.shape) == 2:
            weights = ops.expand_dims(weights, -1)
        if len(losses.shape) == 1 and len(weights.shape) == 2:
            losses = ops.expand_dims(losses, -1)
        return batch.expectation(weights * losses)

    def get_config(self) -> dict[str, Any]:
        base = self.base_loss
        if not isinstance(base, str):
            base = serialize_callable(base)
        return {**super().get_config(), "base_loss": base, "strength": self.strength}
