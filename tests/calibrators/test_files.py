"""Calibrators: files, texts, many classes, and the same as scikit-learn."""

import keras
import numpy as np
import pytest
from backends import numpy
from calibrator_data import ALL, assert_same_fit, draw, draw_events
from keras import ops
from real_data import load_logits
from reference import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from keras_selcal.calibrators import (
    Calibrator,
    HistogramBinning,
    IsotonicCalibration,
    TemperatureScaling,
    VectorScaling,
)

# Binning in equal masses may well lower the accuracy: that is another test's matter.
pytestmark = pytest.mark.filterwarnings("ignore:HistogramBinning lowers the accuracy")


# Files and text
@pytest.mark.parametrize("name", ALL)
def test_save_and_load(name, tmp_path):
    z, y = draw()
    calibrator = ALL[name](ignore_class=99).fit(z, y)
    path = tmp_path / "calibrator.npz"
    calibrator.save(path)
    loaded = Calibrator.load(path)
    assert type(loaded) is type(calibrator)
    assert loaded.get_config() == calibrator.get_config()
    assert repr(loaded) == repr(calibrator)
    assert_same_fit(calibrator, loaded, rtol=0, atol=0)
    np.testing.assert_array_equal(numpy(loaded(z)), numpy(calibrator(z)))


@pytest.mark.backend_free
def test_load_refuses_other_files(tmp_path):
    z, y = draw()
    with pytest.raises(ValueError, match="not fitted"):
        TemperatureScaling().save(tmp_path / "unfitted")
    TemperatureScaling().fit(z, y).save(tmp_path / "ts")
    assert TemperatureScaling.load(tmp_path / "ts").fitted
    with pytest.raises(ValueError, match="of a VectorScaling"):
        VectorScaling.load(tmp_path / "ts")
    (tmp_path / "text").write_text("no calibrator")
    (tmp_path / "empty").write_bytes(b"")
    np.savez(tmp_path / "other.npz", z=z)
    np.savez(tmp_path / "pickle.npz", calibrator=np.array([{}], dtype=object))
    for name in ("text", "empty", "other.npz", "pickle.npz"):
        with pytest.raises(ValueError, match="must be a file saved by `Calib"):
            Calibrator.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Calibrator.load(tmp_path / "nowhere")


@pytest.mark.backend_free
def test_load_refuses_damaged_files(tmp_path):
    z, y = draw()
    path, other = tmp_path / "fitted.npz", tmp_path / "damaged.npz"
    HistogramBinning().fit(z, y).save(path)
    content = path.read_bytes()
    # The flag of encryption, and a method of compression that nobody knows.
    for offset, value in ((8, 1), (10, 99)):
        damaged = bytearray(content)
        for start in range(len(damaged) - 4):
            if damaged[start : start + 4] == b"PK\x01\x02":
                damaged[start + offset] |= value
        other.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a file saved by `Calib"):
            Calibrator.load(other)
    with np.load(path) as file:
        arrays = {**file}
    for name in [name for name in arrays if name != "calibrator"]:
        for value in (np.nan, np.inf):
            changed = arrays[name].astype("float64")
            changed.reshape(-1)[0] = value
            np.savez(other, **{**arrays, name: changed})
            with pytest.raises(ValueError, match="with finite"):
                Calibrator.load(other)


@pytest.mark.backend_free
def test_repr_tells_arguments_and_what_was_fitted():
    z, y = draw()
    calibrator = TemperatureScaling("ece", axis=1)
    assert (
        repr(calibrator) == "<TemperatureScaling(objective='ece', axis=1), not fitted>"
    )
    calibrator = TemperatureScaling().fit(z, y)
    assert repr(calibrator) == (
        f"<TemperatureScaling(objective='nll'), fitted: "
        f"temperature={calibrator.temperature:.4g}, n=600, classes=4>"
    )
    assert "n=" in repr(HistogramBinning().fit(z, y))
    calibrator = VectorScaling().fit(z, y)
    W = ", ".join(f"{w:.4g}" for w in calibrator.parameters["W"])
    assert f"fitted: W=[{W}], b=[" in repr(calibrator)
    many = np.eye(9)[np.arange(600) % 9] + np.random.default_rng(0).normal(
        size=(600, 9)
    )
    assert ", …, " in repr(VectorScaling().fit(many, np.arange(600) % 9))


def test_predict_proba_is_numpy():
    z, y = draw()
    calibrator = TemperatureScaling().fit(z, y)
    p = calibrator.predict_proba(z)
    assert isinstance(p, np.ndarray)
    np.testing.assert_array_equal(p, numpy(calibrator(z)))


def test_autocast_does_not_round_probabilities():
    if keras.backend.backend() != "torch":
        pytest.skip("torch.autocast exists in PyTorch")
    import torch

    z, y = draw()
    for name in ALL:
        calibrator = ALL[name]().fit(z, y)
        expected = numpy(calibrator(ops.convert_to_tensor(z)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = calibrator(ops.convert_to_tensor(z))
        assert inside.dtype == torch.float32
        np.testing.assert_allclose(numpy(inside), expected, atol=1e-6, err_msg=name)


# Many classes
def draw_many(n, k=1000, seed=0):
    """Logits W f of features f around the classes' directions, too confident."""
    W = 0.4 * np.random.default_rng(99).normal(size=(k, 64))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    f = 1.4 * W[y] + rng.normal(size=(n, 64))
    return (1.4 * f @ W.T).astype("float32"), y


@pytest.fixture(scope="module")
def many():
    return *draw_many(1500), *draw_many(1500, seed=1)


def accuracy_and_nll(p, y):
    of_label = p[np.arange(len(y)), y].astype("float64")
    return (p.argmax(-1) == y).mean(), -np.log(of_label).mean()


@pytest.mark.backend_free
def test_vector_scaling_of_many_classes_is_no_worse_than_the_model(many):
    z, y, test_z, test_y = many
    accuracy, nll = accuracy_and_nll(softmax(test_z), test_y)
    ours = accuracy_and_nll(VectorScaling().fit(z, y).predict_proba(test_z), test_y)
    assert ours[0] > accuracy - 0.01
    assert ours[1] < nll


@pytest.mark.backend_free
@pytest.mark.parametrize("make", [HistogramBinning, IsotonicCalibration])
def test_curves_of_many_classes_lose_little_accuracy(many, make):
    z, y, test_z, test_y = many
    accuracy, _ = accuracy_and_nll(softmax(test_z), test_y)
    ours = accuracy_and_nll(make().fit(z, y).predict_proba(test_z), test_y)
    assert ours[0] > accuracy - 0.05
    assert ours[1] < 4


@pytest.mark.backend_free
def test_equal_mass_bins_of_many_classes_warn(many):
    z, y, *_ = many
    with pytest.warns(UserWarning, match=r"from 7\d\.\d % to \d+\.\d %: with 1500"):
        HistogramBinning(binning="adaptive").fit(z, y)


# scikit-learn
def test_temperature_is_scikit_learns():
    x, y = draw(n=400, k=3)
    x = x + np.random.default_rng(3).normal(size=x.shape)
    for classes in (3, 2):
        rows = y < classes
        model = LogisticRegression().fit(x[rows][:100], y[rows][:100])
        z = model.decision_function(x[rows])
        calibrated = CalibratedClassifierCV(
            FrozenEstimator(model), method="temperature"
        )
        calibrated.fit(x[rows], y[rows])
        expected = calibrated.predict_proba(x[rows])
        p = numpy(TemperatureScaling().fit(z, y[rows])(z))
        # scikit-learn's two columns are (−z, z): its 1/T is half of ours.
        p = np.stack([1 - p, p], axis=1) if classes == 2 else p
        np.testing.assert_allclose(p, expected, atol=2e-4)


def test_isotonic_of_one_unit_is_scikit_learns():
    data = load_logits("imdb_probs.npz")
    p, y = data["probs"][:, 1], data["labels"].astype(int)
    calibrator = IsotonicCalibration(from_logits=False).fit(p[::5], y[::5])
    curve = IsotonicRegression(out_of_bounds="clip").fit(p[::5], y[::5])
    difference = np.abs(calibrator.predict_proba(p[1::5]) - curve.predict(p[1::5]))
    # The one sample that ours adds moves a probability by at most 1/(n + 1).
    assert np.quantile(difference, 0.99) < 1 / 5001 + 1e-5


def test_vector_scaling_of_one_unit_is_platt_scaling():
    # scikit-learn's "sigmoid" also smooths the labels, which matters little here.
    z, y = draw_events(n=5000, k=1)
    platt = LogisticRegression(C=1e9, tol=1e-8).fit(z, y[:, 0])
    ours = numpy(VectorScaling(0.0).fit(z, y)(z))[:, 0]
    np.testing.assert_allclose(ours, platt.predict_proba(z)[:, 1], atol=1e-3)
