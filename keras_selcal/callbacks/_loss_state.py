"""Variables that a loss has while a model trains."""

from typing import Any

import keras
import numpy as np

from keras_selcal._core.replicas import everywhere


class State(keras.metrics.Metric):
    """A variable in a model's state.

    As a metric it is compiled as a variable on every backend, JAX included, and is not
    saved with the weights.

    Args:
        name: name of the metric.
        value: what the variable begins with.
        logged: whether its value, a number, is part of the logs.
    """

    def __init__(self, name: str, value: Any, logged: bool = False) -> None:
        super().__init__(name=name, dtype="float32")
        value = np.asarray(value, "float32")
        self.logged = logged
        # Replicas hold the same, and their mean is that: Keras would add them up.
        self.variable = self.add_variable(
            value.shape, "zeros", dtype="float32", aggregation="mean", name=name
        )
        self.variable.assign(value)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        pass

    def reset_state(self) -> None:
        pass

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(self.variable) if self.logged else {}


class LossState(keras.callbacks.Callback):
    """Base of callbacks that put something of a loss into the model's state.

    It is there from `set_model`, before training is compiled, until training ends.
    Subclasses implement `states` and `release`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[str, State] = {}
        self._training = False

    def states(self) -> dict[str, State]:
        """Returns the variables by name, after checking and preparing the loss."""
        raise NotImplementedError

    def release(self) -> None:
        """Has the loss do without the variables again."""
        raise NotImplementedError

    def set_model(self, model: keras.Model) -> None:
        # A fit that was interrupted has left its state behind.
        self._detach()
        super().set_model(model)
        self.loss: Any = getattr(model, "loss", None)
        with everywhere(model):
            self._states = self.states()
        track(model, self._states)

    def on_train_begin(self, logs: Any = None) -> None:
        self._training = True

    def on_train_end(self, logs: Any = None) -> None:
        self._training = False
        self._detach()

    def on_test_end(self, logs: Any = None) -> None:
        if not self._training:
            self._detach()

    def _detach(self) -> None:
        if self._states:
            untrack(self.model, *self._states)
            self._states = {}
            self.release()


def track(model: keras.Model, metrics: dict[str, keras.metrics.Metric]) -> None:
    """Makes metrics part of a model's state, and has its steps compiled anew."""
    for name in metrics:
        # Left behind by training that was interrupted.
        untrack(model, name)
    # A subclassed model is locked once built, against layers that come too late to be
    # trained. Keras itself unlocks it to add state.
    locked = model._tracker.locked
    model._tracker.unlock()
    for name, metric in metrics.items():
        setattr(model, f"tracked_{name}", metric)
    model._tracker.locked = locked
    model.train_function = model.test_function = None


def untrack(model: keras.Model, *names: str) -> None:
    """Undoes `track`."""
    for name in names:
        metric = getattr(model, f"tracked_{name}", None)
        if metric is not None:
            model._tracker.untrack(metric)
            delattr(model, f"tracked_{name}")
    model.train_function = model.test_function = None
