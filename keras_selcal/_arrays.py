"""Arrays and tensors of any framework, by duck typing; imports no backend."""

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from keras_selcal._validation import check_unmasked, refuse

Array: TypeAlias = NDArray[Any]
# A tensor of the Keras backend. The alias imports no backend.
Tensor: TypeAlias = Any

# Entries of an (n, k) array that are converted to float64 at a time: 8 MB.
MOST_ENTRIES = 2**20


def is_tensor(x: Any) -> bool:
    """Returns whether `x` is a tensor of the Keras backend, eager or symbolic."""
    keras = sys.modules.get("keras")
    # Keras may be there without a backend, half imported.
    if keras is None or not hasattr(keras, "ops"):
        return False
    return isinstance(x, keras.KerasTensor | keras.Variable) or keras.ops.is_tensor(x)


def namespace(*values: Any) -> Any:
    """Returns `keras.ops` if a value is a tensor of the Keras backend, else NumPy."""
    return sys.modules["keras"].ops if any(map(is_tensor, values)) else np


def to_numpy(x: Any) -> Array:
    """Returns an array or a tensor of any framework as a NumPy array."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "detach"):
        # NumPy cannot convert PyTorch tensors with gradients or of bfloat16.
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() and x.itemsize == 2 else x
    return np.asarray(x)


def to_numbers(argument: str, x: Any) -> Array:
    """Returns an array or a tensor of any framework as a NumPy array of numbers."""
    try:
        array = to_numpy(x)
        # pandas has objects for mixed values; bfloat16 is of kind "V".
        if array.dtype.kind in "OV":
            array = array.astype("float64" if array.dtype.kind == "O" else "float32")
    except (TypeError, ValueError):
        refuse(argument, x, "an array of numbers")
    if array.dtype.kind not in "biuf":
        refuse(argument, array.reshape(-1)[:1], "an array of numbers")
    check_unmasked(argument, array)
    return array


def to_floats(array: Array) -> Array:
    """Returns an array in float32 or float64, as it is if possible."""
    single_or_double = array.dtype in (np.float32, np.float64)
    return array if single_or_double else array.astype("float32")


def to_float_tensor(x: Any) -> Tensor:
    """Returns a tensor of the Keras backend in float32, or float64 if it is in it."""
    import keras

    x = x if is_tensor(x) else keras.ops.convert_to_tensor(x)
    if keras.backend.standardize_dtype(x.dtype) in ("float32", "float64"):
        return x
    return keras.ops.cast(x, "float32")


def row_blocks(shape: tuple[int, ...], most: int = MOST_ENTRIES) -> list[slice]:
    """Returns slices of the rows of an (n, k) array with at most 2²⁰ entries each."""
    n, k = shape
    step = max(1, most // k)
    return [slice(start, start + step) for start in range(0, n, step)]
