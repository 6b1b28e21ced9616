"""Whether Keras can be imported; imports neither Keras nor NumPy."""

import contextlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

# Backends have the names of their packages.
_BACKENDS = ("jax", "torch", "tensorflow")


def chosen_backend() -> str:
    """Returns the backend that Keras will use, from its environment variable, its
    configuration file, or its default.
    """
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    configured = None
    with contextlib.suppress(KeyError, OSError, TypeError, ValueError):
        configured = json.loads((home / "keras.json").read_text("utf-8"))["backend"]
    return str(os.environ.get("KERAS_BACKEND") or configured or "tensorflow")


def installed_backends() -> list[str]:
    """Returns the backends that are installed."""
    return [name for name in _BACKENDS if find_spec(name)]


def require_backend() -> None:
    """Raises an ImportError with instructions if Keras's backend is not installed."""
    backend = chosen_backend()
    if "keras" in sys.modules or backend not in _BACKENDS or find_spec(backend):
        return
    installed = installed_backends()
    if installed:
        remedy = (
            f"Installed: {', '.join(installed)}. Choose it before Keras is imported: "
            f"`export KERAS_BACKEND={installed[0]}`"
        )
    else:
        remedy = (
            "Install one and choose it: `pip install jax` and "
            "`export KERAS_BACKEND=jax` (or torch, or tensorflow)"
        )
    raise ImportError(
        f"Keras needs a backend, and {backend}, which it would use, is not installed.\n"
        f"{remedy}."
    )
