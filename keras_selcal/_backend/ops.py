"""What `keras.ops` lacks, or does in a way that an accelerator pays for."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend import get_keras_mask

from keras_selcal._arrays import Tensor


def mask_of(x: Any) -> Any:
    """Returns the mask that Keras has attached to a tensor, or None.

    On JAX it is not an attribute, since tensors take none: only Keras knows where it
    is, and has no public function for it.
    """
    return get_keras_mask(x)


def segment_sum(values: Tensor, ids: Tensor, num_segments: int) -> Tensor:
    """Returns the sums of the rows of `values` (n, ...) that share an id, by id.

    On PyTorch, Keras's own repeats the ids by a tensor's value: it reads the device,
    and breaks the graph of `torch.compile`.
    """
    if keras.backend.backend() == "torch":
        zeros = ops.zeros((num_segments, *values.shape[1:]), dtype=values.dtype)
        return zeros.index_add(0, ids, values)
    return ops.segment_sum(values, ids, num_segments=num_segments)


def argmax(x: Tensor) -> Tensor:
    """Returns the first index of the largest of the last axis, which is kept.

    On TensorFlow and JAX, Keras's own tells −0 from 0 by operations on bits, which
    ONNX, LiteRT and OpenVINO cannot run, and which are passes over all of `x`.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow" and not isinstance(x, keras.KerasTensor):
        import tensorflow as tf

        return tf.expand_dims(tf.argmax(x, axis=-1, output_type=tf.int32), -1)
    if backend == "torch":
        return ops.argmax(x, axis=-1, keepdims=True)
    k = int(x.shape[-1])
    below = ops.cast(x < ops.amax(x, axis=-1, keepdims=True), x.dtype)
    # With a start, without which jax2onnx does not know it.
    place = ops.arange(0, k, dtype=x.dtype) + k * below
    return ops.cast(ops.amin(place, axis=-1, keepdims=True), "int32")


def take_along(x: Tensor, index: Tensor) -> Tensor:
    """Returns x (..., k) at indices (..., m) of the last axis.

    On PyTorch, Keras's own fixes the batch size of an exported model.
    """
    if keras.backend.backend() == "torch":
        return x.gather(-1, index.long())
    return ops.take_along_axis(x, index, axis=-1)


def uniform_edges(num_bins: int, dtype: Any) -> Tensor:
    """Returns 0, 1/M … 1, each rounded to a dtype.

    XLA divides by a constant by a product with its reciprocal, which is off in the last
    digit; a table of NumPy is not. On PyTorch a table would be a copy to the device,
    and break the graph of `torch.compile`.
    """
    if keras.backend.backend() == "torch":
        return ops.arange(num_bins + 1, dtype=dtype) / num_bins
    return ops.convert_to_tensor(np.arange(num_bins + 1) / num_bins, dtype=dtype)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Returns the matrix product a b with all digits of float32, where it can be had.

    GPUs and TPUs round the factors to TF32 or bfloat16, by default on JAX, and
    `torch.autocast` rounds them to half precision. TensorFlow has no such choice for a
    single product: `tf.config.experimental.enable_tensor_float_32_execution(False)`.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.numpy.matmul(a, b, precision="highest")
    if backend == "torch":
        import torch

        if torch.is_autocast_enabled(a.device.type):
            with torch.autocast(a.device.type, enabled=False):
                return torch.matmul(a, b)
        return torch.matmul(a, b)
    return ops.matmul(a, b)


def gradient(function: Callable[[Tensor], Any], x: Tensor) -> tuple[Tensor, Any]:
    """Returns ∂f/∂x by automatic differentiation, and what else `function` returns.

    `keras.ops` has no gradient. `function(x)` returns f, a scalar, and any structure of
    tensors.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.grad(function, has_aux=True)(x)
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            total, others = function(x)
        return tape.gradient(total, x, unconnected_gradients="zero"), others
    import torch

    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        total, others = function(x)
        if not total.requires_grad:
            return torch.zeros_like(x), others
        return torch.autograd.grad(total, x)[0], others
