"""What the losses share: labels, masks, dtypes, reduction, and reweighting."""

from typing import Any

import keras
from keras import ops

from keras_selcal._core.batch import Batch
from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import deserialize_if_config, serialize_callable
from keras_selcal._core.validation import check_number, refuse


class _Reduction(keras.losses.Loss):
    """Keras's own reduction, replica scaling included, of values at hand."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return y_pred


class ClassificationLoss(keras.losses.Loss):
    """Base of the losses: predictions (..., k), labels of any form, weights that count.

    Subclasses implement `sample_losses(batch)`, a value for each sample of a
    `Batch`. Unlike a plain Keras loss they see the sample weights: statistics of a
    batch leave out what has weight 0 or is masked. Computation is in float32 (float64
    if the predictions are), whatever the predictions' dtype.

    Args:
        from_logits: whether `y_pred` holds logits instead of probabilities.
        reduction: any of Keras's.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.
    """

    def __init__(
        self,
        from_logits: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.from_logits = bool(from_logits)

    def sample_losses(self, batch: Batch) -> Tensor:
        """Returns the loss of each sample, (n,)."""
        raise NotImplementedError

    def call(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        """Returns the loss of each sample, in the shape of the samples.

        `sample_weight` says how much each sample counts in statistics of the batch;
        the values are not multiplied by it.
        """
        return self._values(Batch.of(y_true, y_pred, self.from_logits, sample_weight))

    def _values(self, batch: Batch) -> Tensor:
        return batch.to_samples(batch.checked(self.sample_losses(batch)))

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        batch = Batch.of(y_true, y_pred, self.from_logits, sample_weight)
        values, scale = self._values(batch), batch.weight
        if batch.mask is not None and self.reduction in ("sum_over_batch_size", "mean"):
            # As Keras does: masked samples leave the mean, weight 0 stays in it.
            present = ops.maximum(ops.mean(batch.mask), keras.config.epsilon())
            scale = (1.0 if scale is None else scale) / present
        reduce = _Reduction(self.name, self.reduction, values.dtype)
        return ops.cast(reduce(values, values, sample_weight=scale), self.dtype)

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        return {**config, "dtype": self.dtype, "from_logits": self.from_logits}


def crossentropy(batch: Batch) -> Tensor:
    """−ln p_y, for each class that may be the true one."""
    return -batch.log_p_y


def brier(batch: Batch) -> Tensor:
    """‖p − y‖², (n,)."""
    if batch.sparse:
        others = ops.arange(batch.num_classes) != batch.labels
        rest = ops.sum(ops.square(ops.where(others, batch.p, 0.0)), axis=-1)
        return rest + ops.square(batch.one_minus_p_y[:, 0])
    return ops.sum(ops.square(batch.p - batch.labels), axis=-1)


BASE_LOSSES = {"crossentropy": crossentropy, "brier": brier}


class ReweightedLoss(ClassificationLoss):
    """A weight times a loss, for each sample: the one form of all reweighted risks.

    Formula:

    ```
    ℓ_w(p, y) = w(p, y) ℓ(p, y)
    ```

    A weighting of one's own is a subclass with `weights`:

    ```python
    @keras.saving.register_keras_serializable("mine")
    class HardExamplesLoss(keras_selcal.losses.ReweightedLoss):
        def weights(self, batch):
            return 1 + batch.one_minus_p_y      # differentiable, or stop_gradient(...)

    model.compile(loss=HardExamplesLoss(from_logits=True))
    ```

    `batch` offers the probabilities `p` and `log_p` (n, k), those of the true class
    `p_y`, `log_p_y` and `one_minus_p_y`, confidence `scores(csf)` (n,), and
    `sample_weight` (n,) or None. A weight may have the shape of `p_y` or be (n,). For
    labels that are distributions, `p_y` holds every class and the loss is the
    expectation Σ_c y_c w(p, c) ℓ(p, c), as in Keras's own focal loss.

    Args:
        base_loss: ℓ: `"crossentropy"`, `"brier"`, another loss of this library, a
            Keras loss or a function of (y_true, y_pred) that gives a value for each
            sample. It is given probabilities (or, if it has `from_logits`, ln p), and
            its own reduction is not used.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        reduction: any of Keras's.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.
    """

    # What a `keras_selcal.callbacks.LossSchedule` may move while a model trains.
    schedulable: tuple[str, ...] = ("strength",)
    # Share of the reweighting: 0 is the base loss, 1 the reweighted one.
    strength: float = 1.0

    def __init__(
        self,
        base_loss: Any = "crossentropy",
        from_logits: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(from_logits, reduction, name, dtype)
        self.base_loss = deserialize_if_config(base_loss)
        if not callable(self.base_loss) and self.base_loss not in BASE_LOSSES:
            listed = ", ".join(repr(known) for known in BASE_LOSSES)
            refuse("base_loss", base_loss, f"one of {listed}, a loss or a function")
        self.variables: dict[str, Any] = {}

    def check(self, name: str, value: Any) -> float:
        """Returns the checked value of a hyperparameter that can be scheduled."""
        if name not in self.schedulable:
            listed = ", ".join(repr(known) for known in self.schedulable)
            refuse("name", name, f"what {type(self).__name__} can schedule: {listed}")
        return check_number(name, value, "a number in [0, 1]", least=0, most=1)

    def assign(self, name: str, value: float) -> None:
        """Gives a hyperparameter a new value, and the variable that stands for it."""
        setattr(self, name, self.check(name, value))
        if name in self.variables:
            self.variables[name].assign(getattr(self, name))

    def current(self, name: str) -> Any:
        """Returns a hyperparameter: a number, or a tensor where a schedule moves it."""
        if name in self.variables:
            return ops.convert_to_tensor(self.variables[name])
        return getattr(self, name)

    def weights(self, batch: Batch) -> Tensor:
        """Returns the weight of each sample: (n,), or the shape of `batch.p_y`."""
        raise NotImplementedError

    def base_losses(self, batch: Batch) -> Tensor:
        """Returns ℓ for each sample: (n,), or the shape of `batch.p_y`."""
        base = self.base_loss
        if isinstance(base, str):
            return BASE_LOSSES[base](batch)
        if isinstance(base, ClassificationLoss):
            return base.sample_losses(batch)
        function = base.call if isinstance(base, keras.losses.Loss) else base
        y_true = ops.squeeze(batch.labels, -1) if batch.sparse else batch.labels
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
        strength = self.current("strength")
        if not isinstance(strength, float) or strength != 1.0:
            weights = 1.0 + strength * (weights - 1.0)
        if len(weights.shape) == 1 and len(losses.shape) == 2:
            weights = ops.expand_dims(weights, -1)
        if len(losses.shape) == 1 and len(weights.shape) == 2:
            losses = ops.expand_dims(losses, -1)
        return batch.expectation(weights * losses)

    def get_config(self) -> dict[str, Any]:
        base = self.base_loss
        if not isinstance(base, str):
            base = serialize_callable(base)
        return {**super().get_config(), "base_loss": base}
