"""Optional packages."""

import importlib
from typing import Any


def require(module: str, by: str) -> Any:
    """Imports a module of an optional package.

    Args:
        module: the module's full name.
        by: what requires the package, for the error.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise ImportError(
            f"{by} requires {package}: `pip install {package}`."
        ) from error
