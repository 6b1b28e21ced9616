"""Callbacks: what they write into logs, files and models, and what they leave alone."""

import csv
import functools
import io
import math
import sys

import keras
import numpy as np
import pytest
from digits import digits
from keras import ops

from keras_selcal import (
    CalibrateAtEnd,
    CalibrationMonitor,
    CalibrationReport,
    ExpectedCalibrationError,
    TemperatureScaling,
    VectorScaling,
    functional,
)
from keras_selcal.callbacks import calibration_monitor

BACKEND = keras.backend.backend()


def data():
    """Returns 64 rows for training, and 75 for validation: 32, 32 and 11 a batch."""
    (x, y), _ = digits(label_noise=0.2)
    x = x.reshape(len(x), -1)
    return (x[:64], y[:64]), (x[64:139], y[64:139])


def network(softmax=False, metrics=(), learning_rate=0.01):
    activation = "softmax" if softmax else None
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, activation)])
    return compiled(model, not softmax, metrics=metrics, learning_rate=learning_rate)


# What only predicts is compiled once.
shared = functools.cache(network)


def compiled(model, from_logits=True, learning_rate=0.01, **options):
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        **options,
    )
    return model


def fit(model, callbacks, epochs=2, **options):
    options.setdefault("verbose", 0)
    x, y = data()[0]
    return model.fit(x, y, epochs=epochs, callbacks=callbacks, **options).history


def pretend(model, callbacks, epochs=range(1)):
    """Calls the callbacks as `fit` does; the weights stay as they are."""
    every = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=epochs.stop
    )
    every.on_train_begin()
    for epoch in epochs:
        every.on_epoch_end(epoch, {"loss": 1.0})
    every.on_train_end({"loss": 1.0})
    return model.history.history


def measured(model, *arguments, **options):
    """Returns what a monitor finds without any training."""
    monitor = CalibrationMonitor(*arguments, **options)
    pretend(model, [monitor])
    return monitor.values


class Weights(keras.callbacks.Callback):
    """Keeps the weights at the end of each epoch."""

    def on_train_begin(self, logs=None):
        self.kept = []

    def on_epoch_end(self, epoch, logs=None):
        self.kept.append(self.model.get_weights())


def test_values_are_exact_metrics_of_the_current_weights():
    validation = data()[1]
    model = network(metrics=[ExpectedCalibrationError(from_logits=True)])
    names = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "cwece", "smooth_ece")
    names += ("aurc", "excess_aurc", "augrc", "failure_auroc")
    names += ("risk_at_coverage_0.8", "coverage_at_risk_0.5")
    monitor = CalibrationMonitor(
        validation, names, prefix="exact_", csf="margin", num_bins=7
    )
    callbacks = [monitor, kept := Weights()]
    history = fit(model, callbacks, validation_data=validation)
    for epoch, weights in enumerate(kept.kept):
        model.set_weights(weights)
        outputs = model.predict(validation[0], verbose=0)
        report = CalibrationReport(
            validation[1],
            outputs,
            from_logits=True,
            csf="margin",
            bootstrap=0,
            num_bins=7,
            coverages=[0.8],
            risks=[0.5],
        )
        assert set(report) == set(names)
        for name, (value, _, _) in report.items():
            assert history["exact_" + name][epoch] == pytest.approx(value, rel=1e-5)
        # What `evaluate` found within `fit`, before the callback.
        ece = functional.ece(validation[1], outputs, from_logits=True)
        assert history["val_ece"][epoch] == pytest.approx(ece, rel=1e-4)
    assert history["exact_nll"][0] != history["exact_nll"][1]
    assert monitor.values["exact_nll"] == history["exact_nll"][-1]


def test_default_metrics_and_callables():
    validation = data()[1]
    model = shared()
    names = ["val_nll", "val_ece", "val_adaptive_ece", "val_cwece", "val_aurc"]
    assert list(measured(model, validation)) == names
    outputs = model.predict(validation[0], verbose=0)

    def answers(y_true, y_pred, from_logits, sample_weight):
        assert from_logits
        assert sample_weight is None
        np.testing.assert_allclose(y_pred, outputs, rtol=1e-5)
        return np.float32((y_true == validation[1]).all())

    assert measured(model, validation, [answers, "nll"])["val_answers"] == 1.0
    found = measured(
        model,
        validation,
        {"soft": functools.partial(functional.aurc, loss="crossentropy"), "e": "ece"},
        prefix="",
    )
    expected = functional.aurc(
        validation[1], outputs, from_logits=True, loss="crossentropy"
    )
    assert found["soft"] == pytest.approx(expected, rel=1e-5)
    assert list(found) == ["soft", "e"]


class AlwaysNoise(keras.layers.GaussianNoise):
    """Draws random numbers in predictions too; counts how often it is traced."""

    traced = 0

    def call(self, inputs, training=False):
        AlwaysNoise.traced += bool(training)
        return super().call(inputs, training=True)


@pytest.mark.parametrize("jit_compile", [True, False])
def test_training_is_not_disturbed(jit_compile):
    if jit_compile and BACKEND == "torch":
        pytest.skip("torch.compile takes minutes for this model")
    x, y = data()[1]
    outcomes = []
    for watched in (False, True):
        keras.utils.set_random_seed(1)
        AlwaysNoise.traced = 0
        model = keras.Sequential(
            [
                keras.Input((64,)),
                AlwaysNoise(0.2),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        compiled(model, jit_compile=jit_compile)
        callbacks = [CalibrationMonitor((x, y))]
        callbacks += [CalibrateAtEnd(of_the_backend(x, y), steps=3, verbose=0)]
        history = fit(model, callbacks if watched else [])
        variables = [np.array(ops.convert_to_numpy(v)) for v in model.variables]
        outcomes.append((variables, history["loss"], AlwaysNoise.traced))
    (plain, loss, traced), (watched, watched_loss, watched_traced) = outcomes
    assert loss == watched_loss
    assert traced == watched_traced > 0
    for one, other in zip(plain, watched, strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_callbacks_read_the_metrics(tmp_path, capsys):
    model = network(learning_rate=0.5)
    stop = keras.callbacks.EarlyStopping("val_ece", mode="min", patience=2)
    best = tmp_path / "best.weights.h5"
    save = keras.callbacks.ModelCheckpoint(
        best, "val_ece", mode="min", save_best_only=True, save_weights_only=True
    )
    slow = keras.callbacks.ReduceLROnPlateau("val_ece", mode="min", patience=1)
    table = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    monitor = CalibrationMonitor(data()[1])
    callbacks = [monitor, stop, save, slow, table]
    history = fit(model, callbacks, epochs=30, verbose=2)
    ece = history["val_ece"]
    assert stop.best == slow.best == save.best == min(ece)
    assert len(ece) == np.argmin(ece) + 3 < 30
    assert history["learning_rate"][-1] < 0.5
    with open(tmp_path / "log.csv") as file:
        assert [float(row["val_ece"]) for row in csv.DictReader(file)] == ece
    assert f"val_ece: {ece[0]:.4f}" in capsys.readouterr().out
    model.load_weights(best)
    assert measured(model, data()[1])["val_ece"] == pytest.approx(min(ece))


def test_those_before_the_monitor_are_warned():
    stop = keras.callbacks.EarlyStopping("val_ece", mode="min")
    with pytest.warns(UserWarning, match="`val_ece` which is not available"):
        history = pretend(shared(), [stop, CalibrationMonitor(data()[1])])
    assert "val_ece" in history


def test_metrics_of_the_same_name_are_replaced_with_a_warning():
    two = [CalibrationMonitor(data()[1], {"ece": name}) for name in ("ece", "cwece")]
    with pytest.warns(UserWarning, match="replaces val_ece, which") as caught:
        history = pretend(shared(), two, range(2))
    assert sum("replaces" in str(one.message) for one in caught) == 1
    assert history["val_ece"] == [two[1].values["val_ece"]] * 2
    assert two[0].values != two[1].values


def test_every_third_epoch(tmp_path, monkeypatch):
    drawn = lambda *arguments: {"reliability": b"", "risk_coverage": b""}  # noqa: E731
    monkeypatch.setattr(calibration_monitor, "draw", drawn)
    calls = []

    def count(y_true, y_pred, **options):
        calls.append(len(y_true))
        return len(calls)

    monitor = CalibrationMonitor(
        data()[1], [count], every=3, picture_dir=tmp_path / "new" / "one"
    )
    assert pretend(shared(), [monitor], range(5))["val_count"] == [1, 1, 2, 2, 3]
    monitor.picture_every = 2
    assert pretend(shared(), [monitor], range(6, 9))["val_count"] == [4, 5, 6]
    assert calls == [75] * 6
    names = {path.name for path in (tmp_path / "new" / "one").iterdir()}
    assert names == {
        f"{kind}-{epoch:03d}.png"
        for kind in ("reliability", "risk_coverage")
        for epoch in (1, 3, 5, 7, 8, 9)
    }


class Batches(keras.utils.PyDataset):
    """Batches of arrays, without an end of its own, as PyDatasets may be."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(32 * (index % 3), 32 * (index % 3) + 32)
        return tuple(part[rows] for part in self.arrays)


class Walkable:
    """The least that is needed: walking through it starts anew."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return (self.batches[i] for i in range(3))


def of_the_backend(*arrays):
    """Returns the backend's own kind of data set."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(arrays).batch(32).repeat()
    if BACKEND == "torch":
        import torch

        tensors = [torch.from_numpy(part) for part in arrays]
        dataset = torch.utils.data.TensorDataset(*tensors)
        # Without a generator of its own it draws from the global one.
        return torch.utils.data.DataLoader(dataset, 32, generator=torch.Generator())
    batches = Batches(*arrays)
    return Walkable([tuple(map(ops.convert_to_tensor, batches[i])) for i in range(3)])


def test_validation_data_of_every_form(rng):
    x, y = data()[1]
    weight = rng.integers(0, 3, len(y)).astype("float32")
    model = shared()
    outputs = model.predict(x, verbose=0)
    plain = measured(model, (x, y))
    weighted = measured(model, [x, y, weight])
    assert plain["val_nll"] == pytest.approx(
        functional.nll(y, outputs, from_logits=True), rel=1e-5
    )
    assert weighted["val_aurc"] == pytest.approx(
        functional.aurc(y, outputs, from_logits=True, sample_weight=weight), rel=1e-5
    )
    assert plain["val_aurc"] != weighted["val_aurc"]
    one_hot = np.eye(10)[y]
    for same in (
        (x, y[:, None]),
        (x, one_hot, None),
        (ops.convert_to_tensor(x), ops.convert_to_tensor(y)),
        Batches(x, y),
        Walkable(Batches(x, y)),
    ):
        assert measured(model, same) == pytest.approx(plain, rel=1e-5)
    assert measured(model, Batches(x, y, weight)) == pytest.approx(weighted, rel=1e-5)
    own = of_the_backend(x, y, weight)
    assert measured(model, own, steps=3) == pytest.approx(weighted, rel=1e-5)
    assert measured(model, (x, y), steps=2, batch_size=11) == pytest.approx(
        measured(model, (x[:22], y[:22]), batch_size=11), rel=1e-5
    )


def test_pixels_and_several_inputs(rng):
    """Labels and weights of each pixel; padding holds NaN and weighs nothing."""
    inputs = {name: keras.Input((4, 3), name=name) for name in ("a", "b")}
    model = keras.Model(inputs, keras.layers.Softmax()(inputs["a"] + inputs["b"]))
    x = {name: rng.normal(size=(6, 4, 3)).astype("float32") for name in inputs}
    y = rng.integers(0, 3, (6, 4))
    weight = np.ones((6, 4))
    weight[:, 3], x["a"][:, 3] = 0, math.nan
    found = measured(model, (x, y, weight), batch_size=2)
    p = model.predict(x, verbose=0)[:, :3]
    assert found["val_ece"] == pytest.approx(functional.ece(y[:, :3], p), rel=1e-5)


def test_pictures(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")
    monitor = CalibrationMonitor(data()[1], picture_dir=str(tmp_path))
    model = network()
    surer = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.set_weights(
            [3 * weight for weight in model.get_weights()]
        )
    )
    pretend(model, [monitor, surer], range(2))
    for kind in ("reliability", "risk_coverage"):
        one, two = (image.imread(tmp_path / f"{kind}-00{i}.png") for i in (1, 2))
        assert min(one.shape[:2]) >= 400
        # Ink of more than one colour, on white, and other ink in the next epoch.
        assert 0.02 < np.mean(one[..., :3].min(axis=-1) < 0.9) < 0.6
        assert len(np.unique(one[..., :3].reshape(-1, 3), axis=0)) > 50
        assert np.mean(np.abs(one - two).max(axis=-1) > 0.1) > 0.005
    assert plt.get_fignums() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_event_file(tmp_path):
    pytest.importorskip("tensorboard")
    from matplotlib.image import imread
    from tensorboard.backend.event_processing import event_accumulator

    monitor = CalibrationMonitor(
        data()[1], ["ece", "nll"], log_dir=tmp_path, picture_every=2
    )
    history = pretend(shared(), [monitor], range(3))
    accumulator = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    tags = accumulator.Tags()
    assert set(tags["scalars"]) == {"calibration/val_ece", "calibration/val_nll"}
    for name in ("val_ece", "val_nll"):
        events = accumulator.Scalars(f"calibration/{name}")
        assert [event.step for event in events] == [0, 1, 2]
        assert [event.value for event in events] == pytest.approx(history[name])
    for kind in ("reliability", "risk_coverage"):
        images = accumulator.Images(f"calibration/val_{kind}")
        assert images[-1].step == 2
        pixels = imread(io.BytesIO(images[-1].encoded_image_string))
        assert pixels.shape[:2] == (images[-1].height, images[-1].width)
    assert monitor._event_file is None


@pytest.mark.parametrize(
    ("module", "extra", "option"),
    [
        ("matplotlib", "plots", "picture_dir"),
        ("tensorboard.compat.proto.event_pb2", "tensorboard", "log_dir"),
    ],
)
def test_missing_packages_are_named(monkeypatch, module, extra, option):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"keras-selcal\[{extra}\]"):
        CalibrationMonitor(data()[1], **{option: "somewhere"})
    CalibrationMonitor(data()[1])


def test_a_network_that_diverged_shows_in_the_logs(tmp_path):
    model = network(softmax=True)
    model.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])
    logs = measured(model, data()[1], picture_dir=tmp_path)
    assert np.isnan(list(logs.values())).all()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("callback", [CalibrationMonitor, CalibrateAtEnd])
def test_wrong_from_logits_is_told_before_training(callback):
    never = range(0)
    with pytest.raises(ValueError, match="pass `from_logits=True`"):
        pretend(shared(), [callback(data()[1], from_logits=False)], never)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Softmax()])
    monitor = CalibrationMonitor((np.eye(64)[:32], np.arange(32)), from_logits=True)
    with pytest.warns(UserWarning, match="pass `from_logits=False`"):
        pretend(model, [monitor], never)


def test_models_and_labels_that_are_refused():
    x, y = data()[1]
    inputs = keras.Input((64,))
    two = [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)]
    with pytest.raises(ValueError, match="`model` must be a model of one output"):
        measured(keras.Model(inputs, two), (x, y))
    with pytest.raises(ValueError, match="`y_true` must hold class indices"):
        measured(shared(), (x, np.eye(9)[y % 9]))
    with pytest.raises(ValueError, match="`sample_weight` must be"):
        measured(shared(), (x, y, -np.ones(75)))


X, Y = np.zeros((4, 64), "float32"), np.zeros(4, "int32")


@pytest.mark.parametrize("callback", [CalibrationMonitor, CalibrateAtEnd])
@pytest.mark.parametrize(
    "given",
    [
        None,
        X,
        (X,),
        (X, None),
        (X, [0, 1, 0, 1]),
        (X, Y[:3]),
        (X, {"one": Y}),
        (X, Y, Y, Y),
        {"x": X, "y": Y},
        ((X, Y) for _ in range(2)),
        [(X, Y), (X, Y)],
    ],
    ids=lambda given: type(given).__name__,
)
def test_validation_data_that_is_refused(callback, given):
    with pytest.raises(ValueError, match="`validation_data` must be"):
        callback(given)


@pytest.mark.parametrize("batch", [X, (X,), (X, (Y, Y)), (X, Y, Y, Y)])
def test_batches_that_are_refused(batch):
    with pytest.raises(ValueError, match="`validation_data` must be"):
        measured(shared(), Walkable([batch] * 3))


class Empty:
    def __iter__(self):
        return iter(())


def test_data_sets_without_batches_or_with_some_weights_are_refused():
    model = shared()
    with pytest.raises(ValueError, match="of at least one batch"):
        measured(model, Empty())
    uneven = Walkable([(X, Y), (X, Y, np.ones(4)), (X, Y)])
    with pytest.raises(ValueError, match="weights in all batches or in none"):
        measured(model, uneven)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("metrics", "ece"),
        ("metrics", ["ecce"]),
        ("metrics", ["risk_at_coverage_high"]),
        ("metrics", []),
        ("metrics", ["ece", "ece"]),
        ("metrics", [functools.partial(functional.ece)]),
        ("metrics", {"ece": 0.1}),
        ("metrics", 3),
        ("every", 0),
        ("picture_every", 1.5),
        ("prefix", None),
        ("csf", "odds"),
        ("num_bins", 0),
        ("batch_size", 0),
        ("steps", 0),
    ],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}?` must be"):
        CalibrationMonitor((X, Y), **{argument: value})


@pytest.mark.parametrize(
    ("calibrator", "softmax"),
    [(TemperatureScaling, False), (VectorScaling, True)],
)
def test_calibrates_and_saves_at_the_end(tmp_path, capsys, calibrator, softmax):
    """EarlyStopping restores its weights after the calibration, or before."""
    x, y = validation = data()[1]
    path = tmp_path / "new" / "calibrated.keras"
    calibrate = CalibrateAtEnd(validation, path, calibrator() if softmax else None)
    # The loss falls: its largest value is that of the first epoch.
    stop = keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True)
    callbacks = [stop, calibrate] if softmax else [calibrate, stop]
    model = network(softmax, learning_rate=0.1)
    history = fit(model, [*callbacks, kept := Weights()], epochs=3)
    assert len(history["loss"]) == 2
    np.testing.assert_array_equal(kept.kept[0][0], model.get_weights()[0])
    assert (kept.kept[0][0] != kept.kept[1][0]).any()

    expected = calibrator().fit_model(model, x, y, verbose=0)
    for name, value in calibrate.calibrator.parameters.items():
        np.testing.assert_allclose(value, expected.parameters[name], rtol=1e-3)
    p = calibrate.calibrated_model.predict(x, verbose=0)
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(loaded.predict(x, verbose=0), p, rtol=1e-5, atol=1e-7)
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    ece = functional.ece(y, p)
    assert calibrate.after["ece"].value == pytest.approx(ece, rel=1e-4)
    assert calibrate.after["nll"].value < calibrate.before["nll"].value
    *first, last = capsys.readouterr().out.splitlines()
    assert len(first) == (0 if softmax else 1)
    assert f"{calibrator.__name__} on 75 validation samples: " in last
    assert f"ECE {calibrate.before['ece'].value:.4g} → {ece:.4g}, NLL " in last
    assert last.endswith(f"saved to {path}")


def test_outcome_of_calibration_is_logged():
    seen = {}
    calibrate = CalibrateAtEnd(data()[1], verbose=0)
    after = keras.callbacks.LambdaCallback(on_train_end=seen.update)
    pretend(shared(), [calibrate, after])
    assert seen == {
        "loss": 1.0,
        "temperature": calibrate.calibrator.temperature,
        "ece_before": calibrate.before["ece"].value,
        "ece_after": calibrate.after["ece"].value,
    }
    assert "on_train_end" not in vars(shared().history)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "calibrated.keras"
    path.write_text("old")

    def fail(model, target, **options):
        target.write_text("half of")
        raise OSError("the disk is full")

    monkeypatch.setattr(keras.Model, "save", fail)
    with pytest.raises(OSError, match="full"):
        pretend(shared(), [CalibrateAtEnd(data()[1], path)])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_calibrated_is_told_before_training():
    x, y = data()[1]

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(10)

        def call(self, inputs):
            return self.dense(inputs)

    for model, validation, match in (
        (Own(), (x, y), "`model` must be a functional model"),
        (shared(), (x, y, -np.ones(75)), "`sample_weight` must be"),
        (shared(), (x, y + 9), "`y_true` must be"),
    ):
        with pytest.raises(ValueError, match=match):
            pretend(model, [CalibrateAtEnd(validation)], range(0))
    for argument, value in (("path", "model.h5"), ("calibrator", "temperature")):
        with pytest.raises(ValueError, match=f"`{argument}` must be"):
            CalibrateAtEnd((x, y), **{argument: value})
