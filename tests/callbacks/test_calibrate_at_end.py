"""CalibrateAtEnd: what is fitted, saved and logged when training ends."""

import keras
import numpy as np
import pytest
from callback_runs import Weights, data, fit, network, pretend, shared

from keras_selcal import CalibrateAtEnd, TemperatureScaling, VectorScaling, functional


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
