"""Registration with Keras's serialization, which needs no Keras at import."""

import sys
from typing import Any, TypeVar

T = TypeVar("T")

PACKAGE = "keras_selcal"

# The library's classes, by the name in files.
_CLASSES: dict[str, Any] = {}
# Classes that wait for Keras: arrays need none.
_WAITING: list[Any] = []


def serializable(cls: T) -> T:
    """Registers a class under the name `keras_selcal>Name` of saved models: at once if
    Keras is imported, or else when this library first imports it.
    """
    _CLASSES[f"{PACKAGE}>{cls.__name__}"] = cls  # type: ignore[attr-defined]
    _WAITING.append(cls)
    if hasattr(sys.modules.get("keras"), "saving"):
        register()
    return cls


def register() -> None:
    """Registers the classes that wait with Keras."""
    import keras

    while _WAITING:
        keras.saving.register_keras_serializable(package=PACKAGE)(_WAITING.pop())


def name_in_files(cls: type) -> str:
    """Returns the name that a class is saved by: the one it is registered by, or its
    own.
    """
    name = f"{PACKAGE}>{cls.__name__}"
    if _CLASSES.get(name) is cls:
        return name
    keras = sys.modules.get("keras")
    # Without Keras, nobody can have registered a class.
    return str(keras.saving.get_registered_name(cls)) if keras else cls.__name__


def class_in_files(name: str) -> Any:
    """Returns the class of a name; one of the user's is known to Keras alone."""
    if name in _CLASSES:
        return _CLASSES[name]
    import keras

    return keras.saving.get_registered_object(name)


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
