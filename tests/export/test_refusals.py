"""What cannot be exported is refused before anything is written."""

import keras
import pytest
from classifier_data import draw, identity

from keras_selcal import ConformalClassifier, SelectiveClassifier
from keras_selcal._backend import export

BACKEND = keras.backend.backend()
KINDS = {SelectiveClassifier: {"coverage": 0.5}, ConformalClassifier: {}}


@pytest.fixture(params=KINDS)
def classifier(request):
    x, y = draw(n=64)
    return request.param(identity()).fit(x, y, **KINDS[request.param], verbose=0)


def test_bad_arguments_are_refused(classifier, tmp_path):
    path = tmp_path / "model"
    with pytest.raises(ValueError, match=r"`format` must be one of .*'pickle'"):
        classifier.export(path, format="pickle")
    formats = export.WRITERS[BACKEND]
    other = next(format for format in export.ENDINGS if format not in formats)
    with pytest.raises(ValueError, match=f"'onnx'.* on {BACKEND} .*{other!r}$"):
        classifier.export(path, format=other)
    with pytest.raises(ValueError, match=r"`path` must be .* in \.onnx"):
        classifier.export(path, format="onnx")
    with pytest.raises(ValueError, match="call `fit`"):
        type(classifier)(identity()).export(path, format="onnx")
    assert not list(tmp_path.iterdir())


def test_a_missing_converter_is_named(classifier, tmp_path, monkeypatch):
    formats = {**export.WRITERS[BACKEND], "onnx": ("keras_selcal_missing",)}
    monkeypatch.setitem(export.WRITERS, BACKEND, formats)
    with pytest.raises(
        ImportError, match=r"requires .*pip install keras_selcal_missing"
    ):
        classifier.export(tmp_path / "model.onnx", format="onnx")
    assert not list(tmp_path.iterdir())
