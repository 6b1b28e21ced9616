"""Callbacks: validation data in every form, and what is refused."""

import functools

import keras
import numpy as np
import pytest
from callback_runs import (
    Batches,
    Walkable,
    data,
    measured,
    network,
    of_the_backend,
    pretend,
    shared,
)
from keras import layers, ops

from keras_selcal import (
    CalibrateAtEnd,
    CalibrationMonitor,
    TemperatureScaling,
    functional,
)


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


@pytest.mark.parametrize("callback", [CalibrationMonitor, CalibrateAtEnd])
def test_wrong_from_logits_is_told_before_training(callback):
    never = range(0)
    with pytest.raises(ValueError, match="pass `from_logits=True`"):
        pretend(shared(), [callback(data()[1], from_logits=False)], never)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Softmax()])
    monitor = CalibrationMonitor((np.eye(64)[:32], np.arange(32)), from_logits=True)
    with pytest.raises(ValueError, match="pass `from_logits=False`"):
        pretend(model, [monitor], never)


def test_models_and_labels_that_are_refused():
    x, y = data()[1]
    inputs = keras.Input((64,))
    two = [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)]
    with pytest.raises(ValueError, match="`output` must be one of 0, 1, 'dense"):
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


def tokens(seed=0):
    """Padded sequences, and a model of them whose padding is always right."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 9, (40, 6))
    real = np.arange(6) < rng.integers(1, 7, (40, 1))
    y = np.where(real, rng.integers(0, 3, (40, 6)), 0)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(9, 3, embeddings_initializer="normal", mask_zero=True),
        ]
    )
    table = model.get_weights()[0] * 20
    table[0] = (9.0, 0.0, 0.0)
    model.set_weights([table])
    return model, np.where(real, x, 0), y, real


def test_masked_tokens_do_not_count():
    model, x, y, real = tokens()
    z = model.predict(x, verbose=0)
    expected = functional.nll(y[real], z[real], from_logits=True)
    # Padding may hold any label.
    found = measured(model, (x, np.where(real, y, 99)), ["nll", "accuracy"])
    assert found["val_nll"] == pytest.approx(expected, rel=1e-5)
    accuracy = (z.argmax(-1) == y)[real].mean()
    assert found["val_accuracy"] == pytest.approx(accuracy)
    # Sample weights multiply the mask.
    weight = np.random.default_rng(1).uniform(size=40)
    found = measured(model, Walkable([(x[:20], y[:20], weight[:20])] * 3), ["nll"])
    each = np.broadcast_to(weight[:20, None], (20, 6))[real[:20]]
    expected = functional.nll(
        y[:20][real[:20]], z[:20][real[:20]], from_logits=True, sample_weight=each
    )
    assert found["val_nll"] == pytest.approx(expected, rel=1e-5)
    # The calibrator is fitted on real tokens, each with its weight.
    calibrate = CalibrateAtEnd((x, y, weight), verbose=0)
    pretend(model, [calibrate])
    expected = TemperatureScaling().fit(
        z[real],
        y[real],
        sample_weight=np.broadcast_to(weight[:, None], real.shape)[real],
    )
    assert calibrate.calibrator.temperature == pytest.approx(
        expected.temperature, rel=1e-4
    )
    assert calibrate.before.num_samples == real.sum()


def test_one_sigmoid_unit(rng):
    x = rng.normal(size=(64, 5)).astype("float32")
    y = rng.integers(0, 2, 64)
    model = keras.Sequential([keras.Input((5,)), layers.Dense(1, "sigmoid")])
    p = model.predict(x, verbose=0)
    columns = np.concatenate([1 - p, p], axis=-1)
    found = measured(model, (x, y), ["nll", "ece", "aurc"])
    for name in ("nll", "ece", "aurc"):
        expected = getattr(functional, name)(y, columns)
        assert found[f"val_{name}"] == pytest.approx(expected, rel=1e-4)
    answers = measured(model, (x, y), ["risk_at_coverage_1"], decision_threshold=0.3)
    assert answers["val_risk_at_coverage_1"] == pytest.approx(
        ((p[:, 0] > 0.3) != y).mean()
    )
    calibrate = CalibrateAtEnd((x, y), verbose=0)
    pretend(model, [calibrate])
    logits = np.log(p) - np.log1p(-p)
    expected = TemperatureScaling().fit(logits, y).temperature
    assert calibrate.calibrator.temperature == pytest.approx(expected, rel=1e-3)
    assert calibrate.calibrated_model.predict(x, verbose=0).shape == (64, 1)


def test_several_labels(rng):
    x = rng.normal(size=(64, 5)).astype("float32")
    y = rng.integers(0, 2, (64, 3))
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, "sigmoid")])
    p = model.predict(x, verbose=0)
    found = measured(model, (x, y), ["nll", "ece"], multi_label=True)
    assert found["val_ece"] == pytest.approx(
        functional.ece(y, p, multi_label=True), rel=1e-4
    )
    with pytest.raises(ValueError, match="`multi_label=True`"):
        measured(model, (x, y))
    calibrate = CalibrateAtEnd(
        (x, y), calibrator=TemperatureScaling(multi_label=True), verbose=0
    )
    pretend(model, [calibrate])
    assert calibrate.calibrator.temperature.shape == (3,)
    assert calibrate.after["nll"].value <= calibrate.before["nll"].value


def test_an_interrupted_fit_leaves_nothing_behind(tmp_path):
    pytest.importorskip("tensorboard")
    x, y = data()[1]
    model = network()

    def interrupt(epoch, logs):
        raise KeyboardInterrupt

    monitor = CalibrationMonitor((x, y), ["nll"], log_dir=tmp_path, picture_every=9)
    stop = keras.callbacks.LambdaCallback(on_epoch_end=interrupt)
    calibrate = CalibrateAtEnd((x, y), verbose=0)
    with pytest.raises(KeyboardInterrupt):
        pretend(model, [monitor, calibrate, stop])
    assert calibrate.calibrated_model is None
    assert not calibrate.calibrator.fitted
    first = monitor._event_file
    before = dict(monitor.values)
    pretend(model, [monitor, calibrate])
    assert first is not monitor._event_file is None
    assert first.closed
    assert monitor.values == before
    assert calibrate.calibrator.fitted
