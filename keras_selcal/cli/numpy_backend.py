"""Keras on its NumPy backend, also where no backend is installed."""

import os
import sys
from collections.abc import MutableSequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# Keras's NumPy backend imports these for convolutions, images and Fourier transforms,
# which no command needs.
_STAND_IN_FOR = ("jax", "scipy")


class _StandIn(ModuleType):
    """A module that has every attribute."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


class _Finder:
    """Finds stand-ins for packages that no other finder has found."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> ModuleSpec | None:
        if name.partition(".")[0] in _STAND_IN_FOR:
            return spec_from_loader(name, cls)  # type: ignore[arg-type]
        return None

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """A stand-in has no code to run."""


def use_numpy() -> None:
    """Imports Keras with the NumPy backend, unless it is imported already.

    Commands on files compute in NumPy, whatever `KERAS_BACKEND` says.
    """
    if "keras" in sys.modules:
        return
    os.environ["KERAS_BACKEND"] = "numpy"
    sys.meta_path.append(_Finder)
    try:
        import keras  # noqa: F401
    finally:
        sys.meta_path.remove(_Finder)
        # What imports the real package later must not find a stand-in.
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandIn):
                del sys.modules[name]
