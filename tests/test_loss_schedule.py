"""Schedules of the losses' hyperparameters: values, one compilation, no leftovers."""

import gc

import keras
import numpy as np
import pytest
from backends import FEW_STEPS, every_on_torch
from keras import ops

from keras_selcal import AULoss, FocalLoss
from keras_selcal.callbacks import LossSchedule

N, K = 24, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3)).astype("float32")
Y = RNG.integers(0, K, N)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(K)

    def call(self, x):
        return self.dense(x)


def model_of(loss, subclassed=False, rate=0.5, **options):
    keras.utils.set_random_seed(0)
    model = Subclassed() if subclassed else keras.Sequential([keras.layers.Dense(K)])
    model.compile(keras.optimizers.SGD(rate), loss, **FEW_STEPS | options)
    return model


def light():
    """Returns a loss with a `strength` that is compiled fast."""
    return FocalLoss(gamma=3.0, from_logits=True)


def fit(model, epochs, *callbacks):
    arguments = {"batch_size": N, "shuffle": False, "verbose": 0}
    return model.fit(X, Y, epochs=epochs, callbacks=callbacks, **arguments).history


EPOCHS = {
    "weight_gradient": (0.0, 0.25, 1.0),
    "smoothing": (0.02, 0.5, 1.0),
    "strength": (0.0, 0.5, 1.0),
    "coverage": (0.3, 0.75, 1.0),
}


@pytest.mark.parametrize(
    "names", [[*EPOCHS], *every_on_torch([[name] for name in EPOCHS], [])]
)
@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_each_epoch_trains_with_its_values(names):
    scheduled = model_of(AULoss(from_logits=True), run_eagerly=False)
    schedules = {name: EPOCHS[name].__getitem__ for name in names}
    history = fit(scheduled, 3, LossSchedule(**schedules))
    for name in names:
        np.testing.assert_allclose(history[name], EPOCHS[name], rtol=1e-6)

    # The same epochs with a new model for each, which takes over the weights.
    # Eager, because compiling it takes longer than its step.
    weights = None
    for epoch in range(3):
        loss = AULoss(from_logits=True)
        for name in names:
            loss.assign(name, EPOCHS[name][epoch])
        model = model_of(loss, run_eagerly=True)
        model.build(X.shape)
        if weights:
            model.set_weights(weights)
        alone = fit(model, 1)
        weights = model.get_weights()
        assert history["loss"][epoch] == pytest.approx(alone["loss"][0], rel=1e-5)
    for mine, theirs in zip(scheduled.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_values_are_logged_beside_those_of_a_validation():
    model = model_of(light())
    schedule = LossSchedule(strength=[(0, 0.0), (2, 1.0)])
    options = {"validation_data": (X, Y), "verbose": 2, "callbacks": [schedule]}
    history = model.fit(X, Y, epochs=3, **options).history
    for name in ("strength", "val_strength"):
        np.testing.assert_allclose([float(v) for v in history[name]], [0.0, 0.5, 1.0])


@pytest.mark.parametrize("subclassed", [False, True])
def test_a_schedule_compiles_once_and_leaves_nothing_behind(subclassed):
    traces = []

    class Counted(FocalLoss):
        def weights(self, batch):
            if keras.backend.backend() != "torch":
                traces.append(self.strength)
            return super().weights(batch)

    options = {"jit_compile": keras.backend.backend() != "torch", "run_eagerly": False}
    model = model_of(Counted(from_logits=True), subclassed, **options)
    schedule = LossSchedule(strength=[(0, 0.0), (4, 1.0)])
    model.predict(X, verbose=0)
    before = len(traces)
    history = fit(model, 2, schedule)
    once = len(traces)
    assert once - before <= 3
    history = fit(model, 6, schedule)
    # Six epochs cost the traces that two did.
    assert len(traces) - once <= once - before
    np.testing.assert_allclose(history["strength"], [0, 0.25, 0.5, 0.75, 1, 1])
    assert clean(model)
    assert set(fit(model, 1)) == {"loss"}


def clean(model):
    names = {metric.name for metric in model.metrics}
    leftovers = [name for name in vars(model) if name.startswith("scheduled")]
    return model.loss.variables == {} and names == {"loss"} and not leftovers


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_an_interrupted_fit_keeps_its_values_until_the_schedule_is_used_again():
    model = model_of(light())
    schedule = LossSchedule(strength=[(0, 0.0), (4, 1.0)])
    with pytest.raises(KeyboardInterrupt):
        fit(model, 5, schedule, Interrupt(1))
    assert model.loss.strength == 0.25
    # The loss goes on with the last value, which is still in the logs.
    assert fit(model, 1)["strength"] == [0.25]
    fit(model, 1, schedule)
    assert clean(model)


def test_an_interrupted_fit_leaves_nothing_behind_once_the_schedule_is_gone():
    model = model_of(light())
    with pytest.raises(KeyboardInterrupt):
        fit(model, 5, LossSchedule(strength=[(0, 0.0), (4, 1.0)]), Interrupt(1))
    gc.collect()
    assert clean(model)
    assert model.loss.strength == 0.25
    assert set(fit(model, 1)) == {"loss"}


SCHEDULABLE = {
    "strength": 0.25,
    "weight_gradient": 0.5,
    "smoothing": 0.75,
    "coverage": 0.9,
}


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_values_end_in_the_config_and_the_file(tmp_path):
    assert set(SCHEDULABLE) == set(AULoss.schedulable)
    model = model_of(AULoss(from_logits=True))
    points = {name: [(0, value)] for name, value in SCHEDULABLE.items()}
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    fit(model, 2, LossSchedule(**points), checkpoint)
    model.save(tmp_path / "last.keras")
    for file in ("best.keras", "last.keras"):
        loss = keras.saving.load_model(tmp_path / file).loss
        for name, value in SCHEDULABLE.items():
            assert loss.get_config()[name] == value
            assert getattr(loss, name) == value


@pytest.mark.filterwarnings("ignore:AULoss with weight_gradient")
def test_a_restored_fit_continues_the_schedule(tmp_path):
    schedules = {
        "strength": [(0, 0.0), (3, 1.0)],
        "weight_gradient": [(0, 0.0), (3, 0.5)],
        "smoothing": [(0, 2.0), (3, 0.5)],
        "coverage": [(0, 0.5), (3, 1.0)],
    }

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    def eager():
        # Three models would be compiled for a few steps each.
        return model_of(AULoss(from_logits=True), run_eagerly=True)

    whole = eager()
    expected = fit(whole, 4, LossSchedule(**schedules))
    stopped = eager()
    stopped.build(X.shape)
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, 4, LossSchedule(**schedules), backup(), Interrupt(1))
    again = eager()
    again.build(X.shape)
    history = fit(again, 4, LossSchedule(**schedules), backup())
    for name in schedules:
        np.testing.assert_allclose(history[name], expected[name][2:], rtol=1e-6)
    for ours, theirs in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_strength_zero_is_the_base_loss():
    logits = ops.convert_to_tensor(RNG.normal(size=(N, K)).astype("float32"))
    focal = FocalLoss(gamma=3.0, from_logits=True)
    focal.assign("strength", 0.0)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert float(focal(Y, logits)) == pytest.approx(float(theirs(Y, logits)), rel=1e-6)


def test_a_drag_that_rises_warns():
    schedule = LossSchedule(weight_gradient=[(0, 0.0), (1, 1.0)])
    with pytest.warns(UserWarning, match="drag of D="):
        fit(model_of(AULoss(from_logits=True), run_eagerly=True), 2, schedule)


@pytest.mark.parametrize(
    ("schedules", "words"),
    [
        ({}, "`schedules`"),
        ({"strength": 3}, "`strength` must be a function"),
        ({"strength": [(3, 0.0), (1, 1.0)]}, "by rising epoch"),
        ({"gamma": lambda epoch: 1.0}, "can schedule: 'strength'"),
        (
            {"coverage": [(0, 0.5), (3, 1.5)]},
            r"`coverage` must be a number in \(0, 1\]",
        ),
        ({"smoothing": [(0, 0.5), (3, 0.0)]}, "`smoothing`"),
    ],
)
def test_bad_schedules(schedules, words):
    with pytest.raises(ValueError, match=words):
        fit(model_of(AULoss(from_logits=True)), 5, LossSchedule(**schedules))


def test_bad_losses():
    schedule = LossSchedule(strength=[(0, 0.0)])
    with pytest.raises(ValueError, match=r"model\.loss"):
        fit(model_of("sparse_categorical_crossentropy"), 1, schedule)
    model = model_of(AULoss(threshold=0.5, from_logits=True))
    with pytest.raises(ValueError, match="`threshold`"):
        fit(model, 1, LossSchedule(coverage=[(0, 0.5)]))
