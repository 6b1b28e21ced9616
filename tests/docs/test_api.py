"""The API reference shows every public member of a class, and no internals."""

import inspect

import api
import pytest

import keras_selcal
from keras_selcal import AURC, SelectiveClassifier, TemperatureScaling
from keras_selcal.losses import AULoss, ReweightedLoss

pytestmark = pytest.mark.backend_free


def test_every_public_name_has_a_place():
    text = "".join(api.pages().values())
    for name in keras_selcal.__all__:
        thing = getattr(keras_selcal, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert f"::: {thing.__module__}.{name}\n" in text, name


def test_inherited_members_are_shown():
    shown = {"fit", "predict", "evaluate", "check", "monitor", "drift"}
    shown |= {"predict_proba", "save", "load", "as_model", "record", "threshold"}
    assert shown <= set(api.members(SelectiveClassifier))
    assert {"fit", "__call__", "wrap", "save"} <= set(api.members(TemperatureScaling))


def test_internals_are_not_shown():
    assert not api.members(AULoss)
    assert set(api.members(ReweightedLoss)) == {"weights", "base_losses"}
    assert set(api.members(AURC)) == {"update_state", "result_per_class", "merge_state"}
    internal = {"layer_class", "fitted_copy", "get_config"}
    for cls in (SelectiveClassifier, TemperatureScaling):
        assert not internal & set(api.members(cls))


def test_members_of_a_base_class_on_the_page_are_linked():
    page = api.pages()["calibrators"]
    name = "keras_selcal.calibrators.temperature_scaling.TemperatureScaling"
    (block,) = [part for part in page.split("::: ") if part.startswith(name)]
    assert "[`fit`][keras_selcal.calibrators.base.Calibrator.fit]" in block
