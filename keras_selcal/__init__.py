"""Calibration and selective classification for Keras 3.

Names are imported at their first use, because Keras and its backend take seconds to
import, and what computes on arrays needs neither. If Keras has been imported before,
the modules whose classes are saved in models are imported at once:
`keras.saving.load_model` then finds them after `import keras_selcal` alone.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from keras_selcal._backend.installed import require_backend
from keras_selcal._version import __version__ as __version__

# Importing these registers classes with Keras.
_SAVED = (
    "_predictions.models",
    "losses",
    "metrics",
    "calibrators.layer",
    "selective.layer",
    "conformal.layer",
    "stacks.layers",
)
# Packages of which everything needs Keras.
_OF_KERAS = ("losses", "metrics", "callbacks")
# Where the public classes and functions are looked for.
_HOMES = ("calibrators", "selective", "conformal", "report", *_OF_KERAS)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return import_module(f"{__name__}._api").__all__
    if not name.startswith("_"):
        if find_spec(f"{__name__}.{name}"):
            return _module(name)
        if name in __getattr__("__all__"):
            homes = (_module(home) for home in _HOMES)
            value = next(getattr(home, name) for home in homes if name in home.__all__)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _module(name: str) -> Any:
    if name in _OF_KERAS:
        require_backend()
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    names: list[str] = __getattr__("__all__")
    return names


if TYPE_CHECKING:
    from keras_selcal._api import *  # noqa: F403
elif sys.modules.get("keras"):
    for _package in _SAVED:
        import_module(f"{__name__}.{_package}")
