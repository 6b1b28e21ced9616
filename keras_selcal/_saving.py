"""Registration with Keras's serialization, which needs no Keras at import."""

import sys
from typing import Any, TypeVar

T = TypeVar("T")

PACKAGE = "keras_selcal"

# Classes that wait for Keras: arrays need none.
_WAITING: list[Any] = []


def serializable(cls: T) -> T:
    """Registers a class, so that saved models find it as `keras_selcal>Name`: at once
    if Keras is imported, or else when this library first imports it.
    """
    _WAITING.append(cls)
    if hasattr(sys.modules.get("keras"), "saving"):
        register()
    return cls


def register() -> None:
    """Registers the classes that wait with Keras."""
    import keras

    while _WAITING:
        keras.saving.register_keras_serializable(package=PACKAGE)(_WAITING.pop())


def serialize_callable(fn: Any) -> Any:
    """Returns the config of a registered function or a Keras object."""
    import keras

    register()
    return keras.saving.serialize_keras_object(fn)


def deserialize_if_config(value: Any) -> Any:
    """Returns the object behind a config, and anything else as it is."""
    if isinstance(value, dict) and "class_name" in value:
        import keras

        register()
        return keras.saving.deserialize_keras_object(value)
    return value
