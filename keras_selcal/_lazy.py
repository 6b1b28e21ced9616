"""Names that need Keras, in packages that do not: imported at their first use."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from keras_selcal._backend.installed import require_backend


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package.

    Args:
        package: the package's name.
        homes: the module of the package that each name is in.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        require_backend()
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
