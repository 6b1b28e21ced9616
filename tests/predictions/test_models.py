"""Files of models that a layer was appended to."""

import io
import json
import zipfile

import keras
import numpy as np
import pytest
from backends import FEW_STEPS
from classifier_data import draw

from keras_selcal import SelectiveClassifier, TemperatureScaling

SHAPE = (3,)


def compiled():
    """Returns a trained model, in which another one was trained before."""
    x, y = draw(n=64)
    backbone = keras.Sequential([keras.Input(SHAPE), keras.layers.Dense(3)])
    model = keras.Sequential([keras.Input(SHAPE), backbone, keras.layers.Softmax()])
    for part in (backbone, model):
        part.compile("adam", "sparse_categorical_crossentropy", **FEW_STEPS)
        part.fit(x, y, batch_size=64, verbose=0)
    return model, backbone


def test_files_hold_nothing_of_how_a_model_was_compiled(tmp_path):
    h5py = pytest.importorskip("h5py")
    x, y = draw(n=64)
    model, backbone = compiled()
    optimizers = model.optimizer, backbone.optimizer
    classifier = SelectiveClassifier(model).fit(x, y, coverage=0.5, verbose=0)
    classifier.save(tmp_path / "classifier.keras")
    wrapped = TemperatureScaling().fit_model(model, x, y, verbose=0).wrap(model)
    wrapped.save(tmp_path / "wrapped.keras")
    for name in ("classifier", "wrapped"):
        with zipfile.ZipFile(tmp_path / f"{name}.keras") as file:
            config = json.loads(file.read("config.json"))
            weights = h5py.File(io.BytesIO(file.read("model.weights.h5")))
        assert "optimizer" not in json.dumps(config)
        paths = []
        weights.visit(paths.append)
        assert paths
        assert not [path for path in paths if "optimizer" in path]
        loaded = keras.saving.load_model(tmp_path / f"{name}.keras")
        expected = model.predict(x, verbose=0)
        found = loaded.layers[1].predict(x, verbose=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    # The model is as it was, and its training goes on.
    assert (model.optimizer, backbone.optimizer) == optimizers
    steps = int(model.optimizer.iterations)
    model.fit(x, y, batch_size=64, verbose=0)
    assert int(model.optimizer.iterations) == steps + 1


def test_the_optimizer_is_back_after_a_failure(tmp_path):
    x, y = draw(n=64)
    model, _ = compiled()
    wrapped = TemperatureScaling().fit_model(model, x, y, verbose=0).wrap(model)
    with pytest.raises(ValueError):
        wrapped.save(tmp_path / "wrapped.unknown")
    assert model.optimizer is not None


def test_an_error_names_the_library_that_was_not_imported(tmp_path, monkeypatch):
    x, y = draw(n=64)
    model = keras.Sequential([keras.Input(SHAPE), keras.layers.Dense(3)])
    wrapped = TemperatureScaling().fit_model(model, x, y, verbose=0).wrap(model)
    wrapped.save(tmp_path / "wrapped.keras")
    known = keras.saving.get_custom_objects()
    monkeypatch.delitem(known, "keras_selcal>KerasSelcalModel")
    with pytest.raises(TypeError, match="locate class 'KerasSelcalModel'"):
        keras.saving.load_model(tmp_path / "wrapped.keras")


def test_the_batch_size_is_free_without_an_input():
    """A Sequential model without an Input has the size of its first batch."""
    x, y = draw(n=64)
    model = keras.Sequential([keras.layers.Dense(3)])
    model(x[:32])
    classifier = SelectiveClassifier(model).fit(x, y, coverage=0.9, verbose=0)
    wrapped = TemperatureScaling().fit_model(model, x, y, verbose=0).wrap(model)
    for made in (classifier.as_model(), wrapped):
        assert made.inputs[0].shape == (None, 3)
