"""Hyperparameters of a loss that move while a model trains."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_selcal._core.validation import refuse
from keras_selcal.callbacks._loss_state import LossState, State
from keras_selcal.losses import ReweightedLoss

Schedule: TypeAlias = Callable[[int], float] | Sequence[tuple[float, float]]


class LossSchedule(LossState):
    """Moves hyperparameters of a loss from epoch to epoch, without recompiling.

    Every reweighted loss has a `strength` a, by which training can start with
    cross-entropy (its base loss) and move to the loss after a warm-up:

    ```
    ℓ_a = (1 − a + a w) ℓ
    ```

    `AULoss` also offers its `weight_gradient`, `smoothing` (ν) and `coverage` (κ).
    While ν moves, the soft CDF is summed over its bins directly, in O(nM).

    The values are part of the logs under the names of the hyperparameters. When
    training ends the loss keeps the last ones.

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

    def states(self) -> dict[str, State]:
        if not isinstance(self.loss, ReweightedLoss):
            refuse(
                "model.loss",
                self.loss,
                "a reweighted loss of keras_selcal, given to `compile` as an object",
            )
        found = {}
        for name in self.schedules:
            value = self.loss.check(name, getattr(self.loss, name, None))
            found[name] = State(name, value, logged=True)
            self.loss.variables[name] = found[name].variable
        return found

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin()
        for name, schedule in self.schedules.items():
            for epoch in range(self.params.get("epochs") or 0):
                self.loss.check(name, schedule(epoch))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for name, schedule in self.schedules.items():
            self.loss.assign(name, schedule(epoch))

    def release(self) -> None:
        for name in self.schedules:
            self.loss.variables.pop(name, None)


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
