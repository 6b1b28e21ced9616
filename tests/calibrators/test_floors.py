"""Calibrators on arrays, which need no Keras, and on tensors: the same values."""

import keras
import numpy as np
import pytest
from calibrator_data import ALL, draw
from keras import ops

from keras_selcal.calibrators import Calibrator, TemperatureScaling


def both(calibrator, logits):
    """Returns the probabilities of an array, and those of a tensor as an array."""
    array = calibrator(logits)
    assert type(array) is np.ndarray
    tensor = calibrator(ops.convert_to_tensor(logits))
    assert ops.is_tensor(tensor)
    return array, ops.convert_to_numpy(tensor)


def tolerance(name):
    # Between close knots, an isotonic curve has a slope of thousands, by which the
    # rounding of float32 grows.
    return 1e-3 if name == "isotonic" else 2e-6


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("from_logits", [True, False])
def test_arrays_and_tensors_have_the_same_probabilities(name, from_logits):
    z, y = draw(n=800, k=4)
    calibrator = ALL[name](from_logits=from_logits)
    if not from_logits:
        z = np.exp(z - z.max(-1, keepdims=True))
        z /= z.sum(-1, keepdims=True)
    z = z.astype("float32")
    array, tensor = both(calibrator.fit(z, y), z)
    assert array.dtype == "float32"
    np.testing.assert_allclose(array, tensor, atol=tolerance(name))
    accepted = calibrator.accepts(z)
    assert type(accepted) is np.ndarray
    given = calibrator.accepts(ops.convert_to_tensor(z))
    assert (accepted == ops.convert_to_numpy(given)).mean() > 0.99


@pytest.mark.parametrize("name", ALL)
def test_several_labels_and_arrays(name):
    calibrator = ALL[name]()
    if calibrator._single_label_because:
        with pytest.raises(ValueError, match="multi_label"):
            ALL[name](multi_label=True)
        return
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 3), scale=2).astype("float32")
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z / 2))).astype("int32")
    calibrator = ALL[name](multi_label=True).fit(z, y)
    array, tensor = both(calibrator, z)
    assert array.shape == z.shape
    np.testing.assert_allclose(array, tensor, atol=tolerance(name))
    # A second axis of samples.
    again, _ = both(calibrator, z.reshape(20, 30, 3))
    np.testing.assert_allclose(again.reshape(-1, 3), array, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_nan_makes_the_row_nan_and_no_other(name):
    z, y = draw(n=800, k=4)
    z = z.astype("float32")
    calibrator = ALL[name]().fit(z, y)
    broken = z[:6].copy()
    broken[2, 1] = np.nan
    for whole, found in zip(
        both(calibrator, z[:6]), both(calibrator, broken), strict=True
    ):
        assert np.isnan(found[2]).all()
        rest = np.arange(6) != 2
        np.testing.assert_array_equal(found[rest], whole[rest])


@pytest.mark.parametrize("name", ALL)
def test_a_layer_has_the_values_of_arrays(name):
    z, y = draw(n=800, k=4)
    z = z.astype("float32")
    calibrator = ALL[name]().fit(z, y)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    found = calibrator.wrap(model).predict(z, verbose=0)
    np.testing.assert_allclose(found, calibrator(z), atol=tolerance(name))


def test_other_frameworks_give_arrays():
    class Foreign:
        """An array of a framework that is not the Keras backend."""

        def __init__(self, values):
            self.values = values
            self.shape = values.shape

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.values, dtype)

    z, y = draw()
    calibrator = TemperatureScaling().fit(Foreign(z), y)
    assert type(calibrator(Foreign(z))) is np.ndarray
    np.testing.assert_array_equal(calibrator(Foreign(z)), calibrator(z))


def test_empty_data_are_called_empty():
    with pytest.raises(ValueError, match=r"`logits` must be .*empty"):
        TemperatureScaling().fit(np.zeros((0, 3)), np.zeros(0, int))


def test_files_name_the_classes_of_the_library_by_package(tmp_path):
    z, y = draw()
    TemperatureScaling().fit(z, y).save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as file:
        assert '"keras_selcal>TemperatureScaling"' in str(file["calibrator"])
    assert isinstance(Calibrator.load(tmp_path / "t.npz"), TemperatureScaling)
