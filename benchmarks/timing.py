"""What the benchmarks time: data, single steps of losses and metrics, CPU time.

Everything is compiled on JAX and TensorFlow, and eager on PyTorch.
"""

import math
import time

import keras
import numpy as np
from keras import layers, ops

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
)

# CPU time in ms that can be measured.
LONG_ENOUGH = 10.0

LOSSES = {
    "crossentropy": lambda: keras.losses.SparseCategoricalCrossentropy(
        from_logits=True
    ),
    "AU msp": lambda: AULoss(from_logits=True),
    "AU margin": lambda: AULoss(csf="margin", from_logits=True),
    "AU neg_entropy": lambda: AULoss(csf="neg_entropy", from_logits=True),
    "AU msp, w = 0.1": lambda: AULoss(
        weight_gradient=0.1, smoothing=1.0, from_logits=True
    ),
    "AU msp, w = 1, cdf": lambda: AULoss(
        weight_gradient=1.0, through="cdf", from_logits=True
    ),
    "AURC": lambda: AURCLoss(from_logits=True),
    "focal": lambda: FocalLoss(from_logits=True),
    "inverse focal": lambda: InverseFocalLoss(from_logits=True),
    "dual focal": lambda: DualFocalLoss(from_logits=True),
}


def least(functions, repetitions):
    """Returns the least CPU time of each function in ms, taken in turns.

    Short functions are called several times in a row: the system accounts for the time
    of other threads, in which JAX computes, only now and then.
    """
    calls = {}
    for name, function in functions.items():
        function()
        calls[name] = math.ceil(LONG_ENOUGH / max(cpu_time(function, 1), 1e-3))
    times = dict.fromkeys(functions, math.inf)
    for _ in range(repetitions):
        for name, function in functions.items():
            times[name] = min(times[name], cpu_time(function, calls[name]))
    return times


def cpu_time(function, calls):
    """Returns the CPU time of a call in ms, the mean of some."""
    start = time.process_time()
    for _ in range(calls):
        function()
    return 1e3 * (time.process_time() - start) / calls


def data(n, k):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k)).astype("float32") * 3
    labels = (logits / 2 + rng.gumbel(size=(n, k))).argmax(-1)
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    return labels, p / p.sum(-1, keepdims=True)


def step(loss, labels, logits, compiled):
    """Returns a function that computes loss and gradient once and waits for both."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        grad = jax.value_and_grad(lambda z: loss(labels, z))
        grad = jax.jit(grad)
        return lambda: jax.block_until_ready(grad(logits))
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def grad(z):
            with tf.GradientTape() as tape:
                tape.watch(z)
                value = loss(labels, z)
            return value, tape.gradient(value, z)

        z = tf.constant(logits)
        return lambda: grad(z)[1].numpy()
    import torch

    y, z = torch.tensor(labels), torch.tensor(logits, requires_grad=True)

    def grad():
        return torch.autograd.grad(loss(y, z), z)

    return torch.compile(grad) if compiled else grad


def resnet20():
    """He et al.'s CIFAR-10 network: 16-32-64 filters, three stages of three blocks."""

    def convolution(x, filters, stride=1):
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    x = inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(x, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            shortcut = x
            if stride == 2:
                shortcut = layers.Conv2D(filters, 1, stride, use_bias=False)(x)
            x = layers.ReLU()(convolution(x, filters, stride))
            x = layers.ReLU()(layers.add([convolution(x, filters), shortcut]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def update(metric, y, p):
    """Returns a function that adds a batch to a metric once, as `fit` does."""
    y, p = ops.convert_to_tensor(y.astype("int32")), ops.convert_to_tensor(p)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        added = jax.jit(metric.stateless_update_state, donate_argnums=0)
        state = [ops.copy(variable.value) for variable in metric.variables]

        def run():
            nonlocal state
            state = jax.block_until_ready(added(state, y, p))

        return run
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda: metric.update_state(y, p))
    return lambda: metric.update_state(y, p)


def compiled(function, *arrays):
    """Returns a function that calls one of tensors, or of the arrays that metrics see
    on PyTorch, and waits.
    """
    backend = keras.backend.backend()
    if backend == "torch":
        return lambda: function(*arrays)
    tensors = [ops.convert_to_tensor(array) for array in arrays]
    if backend == "jax":
        import jax

        jitted = jax.jit(function)
        return lambda: jax.block_until_ready(jitted(*tensors))
    import tensorflow as tf

    traced = tf.function(function)
    return lambda: traced(*tensors)


def result(metric, y, p):
    """Returns a function that computes a metric's result after one batch."""
    metric.update_state(y, p)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        computed = jax.jit(metric.stateless_result)
        state = [variable.value for variable in metric.variables]
        return lambda: jax.block_until_ready(computed(state))
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(metric.result)
    return metric.result
