"""Registration with Keras's serialization."""

from collections.abc import Callable
from typing import Any, TypeVar

import keras

T = TypeVar("T")


def serializable(cls: T) -> T:
    """Registers a class so that saved models find it as `keras_selcal>Name`."""
    register: Callable[[T], T] = keras.saving.register_keras_serializable(
        package="keras_selcal"
    )
    return register(cls)


def serialize_callable(fn: Any) -> Any:
    """Returns the config of a registered function or a Keras object."""
    return keras.saving.serialize_keras_object(fn)


def deserialize_if_config(value: Any) -> Any:
    """Returns the object behind a config, and anything else as it is."""
    if isinstance(value, dict) and "class_name" in value:
        return keras.saving.deserialize_keras_object(value)
    return value
