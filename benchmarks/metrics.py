"""Cost of the metrics: exact ones against plain NumPy, streaming ones in training.

    KERAS_BACKEND=torch python benchmarks/metrics.py

`functional.ece` as a ratio to a plain NumPy argmax and bincount, and torchmetrics (if
it is installed) as a ratio to `functional.ece`, on the same arrays in one run: medians
over interleaved repetitions. The other exact metrics in milliseconds. Then what each
streaming metric's update and result add to a training step of a ResNet-20 of batch
128, in percent, compiled on JAX and TensorFlow, eager on PyTorch.
"""

import argparse
import importlib.util
import statistics
import time

import keras
import numpy as np
from keras import layers, ops

from keras_selcal import functional, metrics

SIZES = ((1_000_000, 10), (50_000, 1000))


def data(n, k):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k)).astype("float32") * 3
    labels = (logits / 2 + rng.gumbel(size=(n, k))).argmax(-1)
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    return labels, p / p.sum(-1, keepdims=True)


def plain_ece(y, p, num_bins=15):
    top = p.argmax(-1)
    confidence = np.take_along_axis(p, top[:, None], -1)[:, 0]
    index = np.clip(np.ceil(confidence * num_bins) - 1, 0, num_bins - 1)
    gap = np.bincount(index.astype(int), confidence - (top == y), num_bins)
    return np.abs(gap).sum() / len(y)


def medians(functions, repetitions):
    """Returns the median time of each function in ms, taken in turns."""
    times = {name: [] for name in functions}
    for _ in range(repetitions + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def exact(repetitions):
    for n, k in SIZES:
        y, p = data(n, k)
        timed = {
            "ece": lambda y=y, p=p: functional.ece(y, p),
            "plain NumPy": lambda y=y, p=p: plain_ece(y, p),
        }
        if importlib.util.find_spec("torchmetrics"):
            import torch
            from torchmetrics.functional.classification import (
                multiclass_calibration_error,
            )

            args = torch.from_numpy(p), torch.from_numpy(y)
            timed["torchmetrics"] = lambda args=args, k=k: multiclass_calibration_error(
                *args, num_classes=k, n_bins=15
            )
        times = medians(timed, repetitions)
        print(f"\nn = {n:,}, k = {k}: ece {times['ece']:.1f} ms")
        print(f"  ece / plain NumPy      {times['ece'] / times['plain NumPy']:.2f}")
        if "torchmetrics" in times:
            ratio = times["torchmetrics"] / times["ece"]
            print(f"  torchmetrics / ece     {ratio:.2f}")
        others = {
            "adaptive ece": lambda y=y, p=p: functional.ece(y, p, binning="adaptive"),
            "cwece": lambda y=y, p=p: functional.cwece(y, p),
            "adaptive cwece": lambda y=y, p=p: functional.cwece(
                y, p, binning="adaptive"
            ),
            "brier": lambda y=y, p=p: functional.brier(y, p),
            "aurc": lambda y=y, p=p: functional.aurc(y, p),
            "smooth_ece": lambda y=y, p=p: functional.smooth_ece(y, p),
        }
        for name, milliseconds in medians(others, 1).items():
            print(f"  {name:<20}{milliseconds:9.1f} ms")


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


def in_training(metric, y, logits):
    """Returns a function that updates a metric and computes its result once."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def step(state, y, z):
            state = metric.stateless_update_state(state, y, z)
            return state, metric.stateless_result(state)

        step = jax.jit(step, donate_argnums=0)
        state = [variable.value for variable in metric.variables]

        def run():
            nonlocal state
            state, result = step(state, y, logits)
            jax.block_until_ready(result)

        return run
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function
        def run():
            metric.update_state(y, logits)
            return metric.result()

        return run

    def run():
        metric.update_state(y, logits)
        return float(metric.result())

    return run


def streaming(repetitions):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, 128).astype("int32")
    model = resnet20()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    step = medians({"step": lambda: model.train_on_batch(x, y)}, repetitions)["step"]
    print(f"\nResNet-20, batch 128, {keras.backend.backend()}: {step:.0f} ms a step")
    labels = ops.convert_to_tensor(y)
    logits = ops.convert_to_tensor(rng.normal(size=(128, 10)).astype("float32") * 4)
    given, total = {"from_logits": True}, 0.0
    for name, metric in {
        "ECE": metrics.ExpectedCalibrationError(**given),
        "ECE, adaptive": metrics.ExpectedCalibrationError(binning="adaptive", **given),
        "cwECE": metrics.ClasswiseCalibrationError(num_classes=10, **given),
        "cwECE, adaptive": metrics.ClasswiseCalibrationError(
            num_classes=10, binning="adaptive", **given
        ),
        "Brier": metrics.BrierScore(**given),
        "AURC": metrics.AURC(**given),
        "E-AURC": metrics.ExcessAURC(**given),
        "AUGRC": metrics.AUGRC(**given),
        "AUROC_f": metrics.FailureAUROC(**given),
        "risk at coverage": metrics.RiskAtCoverage(0.8, **given),
        "coverage at risk": metrics.CoverageAtRisk(0.1, **given),
    }.items():
        run = in_training(metric, labels, logits)
        cost = medians({"": run}, 10 * repetitions)[""]
        total += cost
        print(f"  {name:<18}{cost:8.2f} ms{100 * cost / step:8.2f} %")
    print(f"  {'all together':<18}{total:8.2f} ms{100 * total / step:8.2f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    repetitions = parser.parse_args().repetitions
    exact(repetitions)
    streaming(repetitions)


if __name__ == "__main__":
    main()
