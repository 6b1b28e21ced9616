"""Keras on its NumPy backend, also where no backend is installed."""

import os
import sys
from collections.abc import MutableSequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from keras_selcal._backend.installed import chosen_backend, installed_backends

# Keras's NumPy backend imports these for convolutions, images and Fourier transforms,
# which no command needs.
_STAND_IN_FOR = ("jax", "scipy")


class _StandIn(ModuleType):
    """A missing module, which has every attribute; none can be called after imports."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        if _Finder in sys.meta_path:
            return self  # Keras decorates functions of its own.
        package = self.__name__.partition(".")[0]
        raise ImportError(f"{self.__name__} is needed: `pip install {package}`")


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

    Commands on files compute in NumPy, whatever `KERAS_BACKEND` says. If this version
    of Keras cannot be imported that way, it is imported with a backend that is
    installed, the chosen one if possible.
    """
    if "keras" in sys.modules:
        return
    chosen, installed = chosen_backend(), installed_backends()
    os.environ["KERAS_BACKEND"] = "numpy"
    sys.meta_path.append(_Finder)
    try:
        import keras  # noqa: F401
    except Exception:
        if not installed:
            raise
        _forget(lambda name, _: name.partition(".")[0] == "keras")
        os.environ["KERAS_BACKEND"] = chosen if chosen in installed else installed[0]
    finally:
        sys.meta_path.remove(_Finder)
        # What imports the real package later must not find a stand-in.
        _forget(lambda _, module: isinstance(module, _StandIn))


def _forget(which: Any) -> None:
    for name, module in list(sys.modules.items()):
        if which(name, module):
            del sys.modules[name]
