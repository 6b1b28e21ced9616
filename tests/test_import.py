"""`import keras_selcal`: what it imports, and what it registers with Keras."""

import pytest
from processes import finish, start

pytestmark = pytest.mark.backend_free


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


def test_import_after_keras_registers_the_classes_of_saved_models():
    program = """
import keras
import keras_selcal
for name in ("AULoss", "AURC", "TemperatureScaling", "SelectionLayer"):
    assert keras.saving.get_registered_object(f"keras_selcal>{name}"), name
"""
    finish(start("-c", program))
