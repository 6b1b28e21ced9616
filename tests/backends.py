"""Values, gradients and compiled calls of `keras.ops` code on any backend."""

import keras
import numpy as np
from keras import ops


def numpy(x):
    return np.asarray(ops.convert_to_numpy(x))


# `jit` for a shape that no other test has: where eager code compiles each of its
# operations for each shape, one compilation of all is faster.
JIT_ONE_OFF = keras.backend.backend() == "jax"


def one_off(fn):
    """Returns fn, in the form that is the faster one for shapes of one test alone."""
    if not JIT_ONE_OFF:
        return fn
    import jax

    return jax.jit(fn)


def value_and_gradient(fn, x, jit=False, dtype="float32"):
    """Returns fn(x), a scalar, and its gradient, as NumPy arrays."""
    backend = keras.backend.backend()
    x = ops.convert_to_tensor(x, dtype=dtype)
    if backend == "jax":
        import jax

        graded = jax.value_and_grad(fn)
        value, gradient = (jax.jit(graded) if jit else graded)(x)
    elif backend == "tensorflow":
        import tensorflow as tf

        def graded(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = fn(x)
            return value, tape.gradient(value, x, unconnected_gradients="zero")

        value, gradient = (tf.function(graded, jit_compile=True) if jit else graded)(x)
    else:
        import torch

        x = x.detach().clone().requires_grad_()
        # `fullgraph` refuses code that breaks the graph, and would be slow compiled.
        value = (torch.compile(fn, fullgraph=True, backend="eager") if jit else fn)(x)
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, x)
        else:
            gradient = torch.zeros_like(x)
    # ml_dtypes' bfloat16 has no place in NumPy's assertions.
    return numpy(ops.cast(value, "float32")), numpy(ops.cast(gradient, "float32"))
