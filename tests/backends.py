"""Values, gradients and compiled calls of `keras.ops` code on any backend."""

import keras
import numpy as np
from keras import ops


def compile_fast():
    """Lets TensorFlow leave graphs as they are: to optimize one takes longer than to
    run it.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def numpy(x):
    return np.asarray(ops.convert_to_numpy(x))


TORCH = keras.backend.backend() == "torch"

# `jit` for a shape that no other test has: where eager code compiles each of its
# operations for each shape, one compilation of all is faster.
JIT_ONE_OFF = keras.backend.backend() == "jax"

# Options of `compile` for a model of few steps: on TensorFlow, tracing takes longer.
FEW_STEPS = {"run_eagerly": not JIT_ONE_OFF}


def one_off(fn):
    """Returns fn, in the form that is the faster one for shapes of one test alone."""
    if not JIT_ONE_OFF:
        return fn
    import jax

    return jax.jit(fn)


def value_and_gradient(fn, x, jit=False, dtype="float32"):
    """Returns fn(x), a scalar, and its gradient, as NumPy arrays."""
    return graded(fn, jit, dtype)(x)


def graded(fn, jit=False, dtype="float32"):
    """Returns `value_and_gradient` of fn as a function, which is compiled once."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        of_tensor = jax.value_and_grad(fn)
        of_tensor = jax.jit(of_tensor) if jit else of_tensor
    elif backend == "tensorflow":
        import tensorflow as tf

        def of_tensor(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = fn(x)
            return value, tape.gradient(value, x, unconnected_gradients="zero")

        of_tensor = tf.function(of_tensor, jit_compile=True) if jit else of_tensor
    else:
        import torch

        # `fullgraph` refuses code that breaks the graph, and would be slow compiled.
        value_of = torch.compile(fn, fullgraph=True, backend="eager") if jit else fn

        def of_tensor(x):
            x = x.detach().clone().requires_grad_()
            value = value_of(x)
            if not value.requires_grad:
                return value, torch.zeros_like(x)
            return value, torch.autograd.grad(value, x)[0]

    def of_array(x):
        # ml_dtypes' bfloat16 has no place in NumPy's assertions.
        parts = of_tensor(ops.convert_to_tensor(x, dtype=dtype))
        return tuple(numpy(ops.cast(part, "float32")) for part in parts)

    return of_array
