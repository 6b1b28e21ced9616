"""Calibrated probabilities and the right to abstain, for Keras 3.

Names are imported at their first use, because Keras and its backend take seconds to
import and the command line needs them only after it has read its arguments. If Keras
has been imported before, everything is imported at once: `keras.saving.load_model`
then finds the classes of a saved model after `import keras_selcal` alone.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from keras_selcal._core.backend import require_backend
from keras_selcal._version import __version__ as __version__


def __getattr__(name: str) -> Any:
    if not name.startswith("_") or name == "__all__":
        require_backend()
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    if not name.startswith("_") or name == "__all__":
        api = vars(import_module(f"{__name__}._api"))
        if name in api:
            globals()[name] = api[name]
            return api[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names


if TYPE_CHECKING or "keras" in sys.modules:
    from keras_selcal._api import *  # noqa: F403
