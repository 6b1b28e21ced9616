"""Cost of the losses as multiples of cross-entropy, forward and backward.

    KERAS_BACKEND=jax python benchmarks/losses.py

Every figure is a ratio to Keras's own cross-entropy on the same logits, backend and
run: the median over interleaved repetitions. Compiled on JAX and TensorFlow, eager on
PyTorch (and compiled too with --compile).
"""

import argparse
import statistics
import time

import keras
import numpy as np

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
)

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
QUADRATIC = {
    "KDE canonical": lambda: KDECrossentropy(from_logits=True),
    "KDE top_label": lambda: KDECrossentropy(kind="top_label", from_logits=True),
}


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


def measure(names, n, k, repetitions, compiled):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k), scale=3.0).astype("float32")
    labels = rng.integers(0, k, n)
    steps = {name: step(make(), labels, logits, compiled) for name, make in names}
    times = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, run in steps.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    base = statistics.median(times["crossentropy"])
    print(f"\n({n}, {k}): cross-entropy {base * 1e3:.2f} ms, the others as multiples")
    for name, seconds in times.items():
        print(f"  {name:<18}{statistics.median(seconds) / base:6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    args = parser.parse_args()
    print(f"backend: {keras.backend.backend()}")
    for n, k in ((128, 10), (8192, 10), (8192, 100), (8192, 1000)):
        names = [*LOSSES.items(), *(QUADRATIC.items() if n <= 1024 else ())]
        measure(names, n, k, args.repetitions, args.compile)


if __name__ == "__main__":
    main()
