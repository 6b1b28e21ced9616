"""`import keras_selcal`: what it imports, and what it registers with Keras."""

import ast
import sys
from importlib import import_module
from pathlib import Path
from unittest import mock

import keras
import pytest
from processes import finish, start

import keras_selcal

pytestmark = pytest.mark.backend_free

PACKAGE = Path(keras_selcal.__file__).parent


def test_names_are_listed_and_imported_at_their_first_use():
    program = """
import sys
import keras_selcal
assert "keras" not in sys.modules
assert {"AULoss", "losses", "__version__"} <= set(dir(keras_selcal))
from keras_selcal import *
assert AULoss is keras_selcal.AULoss is losses.AULoss
assert not hasattr(keras_selcal, "no_such_name")
"""
    finish(start("-c", program))


def test_every_public_name_is_found_where_type_checkers_find_it():
    tree = ast.parse((PACKAGE / "_api.py").read_text("utf-8"))
    homes = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
    }
    assert sorted(homes) == sorted(keras_selcal.__all__)
    for name, home in homes.items():
        assert getattr(keras_selcal, name) is getattr(import_module(home), name)


def test_import_after_keras_registers_the_classes_of_saved_models():
    names = [
        node.name
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(getattr(d, "id", "") == "serializable" for d in node.decorator_list)
    ]
    assert {"AULoss", "AURC", "TemperatureScaling", "MCDropout"} <= set(names)
    # As if keras_selcal were imported for the first time, after Keras.
    with (
        mock.patch.dict(sys.modules),
        mock.patch.dict(keras.saving.get_custom_objects(), clear=True),
    ):
        for name in [name for name in sys.modules if name.startswith("keras_selcal")]:
            del sys.modules[name]
        assert not keras.saving.get_registered_object("keras_selcal>AULoss")
        import_module("keras_selcal")
        for name in names:
            assert keras.saving.get_registered_object(f"keras_selcal>{name}"), name
        for name in ("plots", "report", "callbacks", "analysis"):
            assert f"keras_selcal.{name}" not in sys.modules, name
