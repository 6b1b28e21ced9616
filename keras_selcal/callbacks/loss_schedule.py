"""Hyperparameters of a loss that change during training."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_selcal._backend.replicas import everywhere
from keras_selcal._validation import refuse
from keras_selcal.losses import ReweightedLoss

Schedule: TypeAlias = Callable[[int], float] | Sequence[tuple[float, float]]


class LossSchedule(keras.callbacks.Callback):
    """Changes hyperparameters of a loss from epoch to epoch, without recompiling.

    Every reweighted loss has a `strength` a. With it, training can start with
    cross-entropy (the base loss) and move to the loss after a warm-up:

    ```
    ℓ_a = (1 − a + a w) ℓ
    ```

    `AULoss` also offers its `weight_gradient`, `smoothing` (ν) and `coverage` (κ).
    While ν is scheduled, the soft CDF is summed over its bins directly, in O(nM).

    The logs contain the values under the names of the hyperparameters. After training
    the loss keeps the last values, which are saved with the model.

    Args:
        **schedules: for each hyperparameter a function of the epoch (counted from 0),
            or points `[(epoch, value), …]` in rising order of the epoch, between
            which the value is linear and beyond which it is constant.

    Example:
    >>> import keras
    >>> from keras_selcal import AULoss
    >>> model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    >>> model.compile(loss=AULoss())
    >>> x, y = keras.random.normal((30, 4)), [0, 1, 2] * 10
    >>> schedule = LossSchedule(strength=[(1, 0.0), (3, 1.0)])
    >>> history = model.fit(
    ...     x, keras.ops.array(y), epochs=5, verbose=0, callbacks=[schedule]
    ... )
    >>> history.history["strength"]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """

    def __init__(self, **schedules: Schedule) -> None:
        super().__init__()
        if not schedules:
            refuse(
                "schedules", schedules, "at least one, such as strength=[(5, 0.0), …]"
            )
        self.schedules = {
            name: _as_function(name, schedule) for name, schedule in schedules.items()
        }
        self._detach: Any = None

    def set_model(self, model: keras.Model) -> None:
        """Adds the hyperparameters to the model's state, before it is compiled."""
        self._end()
        super().set_model(model)
        loss: Any = getattr(model, "loss", None)
        if not isinstance(loss, ReweightedLoss):
            refuse(
                "model.loss",
                loss,
                "a reweighted loss of keras_selcal, passed to `compile` as an object",
            )
        with everywhere(model):
            values = {
                name: _Value(name, loss.check(name, getattr(loss, name, None)))
                for name in self.schedules
            }
        loss.variables.update({name: value.variable for name, value in values.items()})
        track(model, values)
        # An interrupted fit calls no hook: the values are removed when the callback is
        # used again or deleted.
        self._detach = weakref.finalize(self, release, model, loss, list(values))
        self._detach.atexit = False
        self._training = False

    def on_train_begin(self, logs: Any = None) -> None:
        self._training = True
        for name, schedule in self.schedules.items():
            for epoch in range(self.params.get("epochs") or 0):
                self.model.loss.check(name, schedule(epoch))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for name, schedule in self.schedules.items():
            self.model.loss.assign(name, schedule(epoch))

    def on_train_end(self, logs: Any = None) -> None:
        self._end()

    def on_test_end(self, logs: Any = None) -> None:
        if not self._training:
            self._end()

    def _end(self) -> None:
        if self._detach is not None:
            self._detach()
            self._detach = None


class _Value(keras.metrics.Metric):
    """A hyperparameter in a model's state.

    As a metric it is a variable of compiled code on every backend, JAX included, it is
    part of the logs, and it is not saved with the weights.
    """

    def __init__(self, name: str, value: float) -> None:
        super().__init__(name=name, dtype="float32")
        # All replicas hold the same value, so that their mean is correct; by default
        # Keras sums the values of the replicas.
        self.variable = self.add_variable(
            (), "zeros", dtype="float32", aggregation="mean", name=name
        )
        self.variable.assign(value)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        pass

    def reset_state(self) -> None:
        pass

    def result(self) -> Any:
        # A copy: on JAX, `evaluate` takes the variable's own memory.
        return keras.ops.copy(keras.ops.convert_to_tensor(self.variable))


def track(model: keras.Model, values: dict[str, _Value]) -> None:
    """Makes values part of a model's state."""
    # Keras locks a subclassed model once it is built, because layers that are added
    # later would not be trained, and unlocks it itself to add state.
    locked = model._tracker.locked
    model._tracker.unlock()
    for name, value in values.items():
        setattr(model, f"scheduled_{name}", value)
    model._tracker.locked = locked
    model.train_function = model.test_function = None


def release(model: keras.Model, loss: ReweightedLoss, names: list[str]) -> None:
    """Removes values from the state of a model and from its loss."""
    for name in names:
        model._tracker.untrack(getattr(model, f"scheduled_{name}"))
        delattr(model, f"scheduled_{name}")
        loss.variables.pop(name, None)
    model.train_function = model.test_function = None


def _as_function(name: str, schedule: Any) -> Callable[[int], float]:
    if callable(schedule):
        return lambda epoch: float(schedule(epoch))
    allowed = "a function of the epoch, or points [(epoch, value), …] by rising epoch"
    try:
        epochs, values = np.asarray(schedule, "float64").T
    except (TypeError, ValueError):
        refuse(name, schedule, allowed)
    if not np.all(np.diff(epochs) > 0) or not np.isfinite(values).all():
        refuse(name, schedule, allowed)
    return lambda epoch: float(np.interp(epoch, epochs, values))
