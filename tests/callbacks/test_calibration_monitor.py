"""CalibrationMonitor: what it writes into logs and files, and what it leaves alone."""

import csv
import functools
import io
import math
import sys
import warnings

import keras
import numpy as np
import pytest
from callback_runs import (
    Weights,
    compiled,
    data,
    fit,
    measured,
    network,
    of_the_backend,
    pretend,
    shared,
)
from keras import ops

from keras_selcal import (
    BrierScore,
    CalibrateAtEnd,
    CalibrationMonitor,
    CalibrationReport,
    ExpectedCalibrationError,
    functional,
)
from keras_selcal.callbacks import calibration_monitor


def test_values_are_exact_metrics_of_the_current_weights():
    validation = data()[1]
    model = network(metrics=[ExpectedCalibrationError(from_logits=True)])
    names = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "cwece", "smooth_ece")
    names += ("refinement",)
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
    names = ["nll", "refinement", "ece", "adaptive_ece", "cwece", "aurc"]
    assert list(measured(model, validation)) == [f"val_{name}" for name in names]
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


def test_training_is_not_disturbed():
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
        compiled(model)
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


def test_a_second_softmax_is_told_before_training():
    x, y = np.eye(3, dtype="float32")[:, :2], np.arange(3)
    for activation, warned in (("softmax", True), ("linear", False)):
        model = keras.Sequential([keras.layers.Dense(3, activation=activation)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, verbose=0, callbacks=[CalibrationMonitor((x, y))])
        told = [one for one in caught if "a second softmax" in str(one.message)]
        assert bool(told) == warned


def test_metrics_that_take_probabilities_for_logits_are_told():
    x, y = np.eye(3, dtype="float32")[:, :2], np.arange(3)
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    metrics = [ExpectedCalibrationError(from_logits=True), BrierScore()]
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    with pytest.warns(UserWarning, match="second softmax or sigmoid: ece. Pass"):
        model.fit(x, y, verbose=0, callbacks=[CalibrationMonitor((x, y))])


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
    ("module", "option"),
    [
        ("matplotlib", "picture_dir"),
        ("tensorboard.compat.proto.event_pb2", "log_dir"),
    ],
)
def test_missing_packages_are_named(monkeypatch, module, option):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"pip install {module.split('.')[0]}`"):
        CalibrationMonitor(data()[1], **{option: "somewhere"})
    CalibrationMonitor(data()[1])


def test_a_network_that_diverged_shows_in_the_logs(tmp_path):
    model = network(softmax=True)
    model.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])
    logs = measured(model, data()[1], picture_dir=tmp_path)
    assert np.isnan(list(logs.values())).all()
    assert not list(tmp_path.iterdir())
