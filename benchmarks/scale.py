"""How time and memory grow with samples n and classes k, for losses and metrics.

    KERAS_BACKEND=torch python -m benchmarks.scale

Prints Markdown tables. Every row is measured in a process of its own, on one thread:
CPU time of a logit, that time relative to the first row of its group, and the peak of
memory above what the process held before, relative to the size of the logits
(of a batch of them, for metrics). Losses are one forward and backward pass. Metrics
are updated batch by batch from a few that are used again and again, so that n samples
are never in memory. Compiled on JAX and TensorFlow, eager on PyTorch. Linux only.

`--quick` takes up to two minutes, the default more; `--full` also streams 100 million
samples.
"""

import argparse
import ctypes
import multiprocessing
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
if os.environ.get("KERAS_BACKEND") == "jax":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import keras
import numpy as np

from keras_selcal import AULoss, AURCLoss, KDECrossentropy, metrics
from keras_selcal.functional import kde_ece

LOSSES = {
    "cross-entropy": lambda k: keras.losses.SparseCategoricalCrossentropy(
        from_logits=True
    ),
    "AU": lambda k: AULoss(from_logits=True),
    "AURC": lambda k: AURCLoss(from_logits=True),
}
KDE = {
    "KDE, whole": lambda k: KDECrossentropy(from_logits=True),
    "KDE, block_size=256": lambda k: KDECrossentropy(from_logits=True, block_size=256),
    "KDE, block_size=256, subsample=1024": lambda k: KDECrossentropy(
        from_logits=True, block_size=256, subsample=1024
    ),
}
METRICS = {
    "ECE": lambda k: metrics.ExpectedCalibrationError(from_logits=True),
    "ECE, adaptive": lambda k: metrics.ExpectedCalibrationError(
        binning="adaptive", from_logits=True
    ),
    "cwECE": lambda k: metrics.ClasswiseCalibrationError(
        num_classes=k, from_logits=True
    ),
    "cwECE, adaptive": lambda k: metrics.ClasswiseCalibrationError(
        num_classes=k, binning="adaptive", from_logits=True
    ),
    "Brier": lambda k: metrics.BrierScore(from_logits=True),
    "AURC": lambda k: metrics.AURC(from_logits=True),
}

# Rows that fit: 4 bytes × n × k is at most 77 MB of logits.
CLASSES = ((65_536, 10), (8_192, 1_000), (512, 21_841), (128, 150_000))
BATCH = 65_536
SUBSAMPLES = (128, 512, 2048)


libc = ctypes.CDLL(None)
# glibc: arrays above 1 MB (M_MMAP_THRESHOLD) are given back as soon as they are freed.
libc.mallopt(-3, 2**20)


def memory(field):
    """Returns an entry of the process's status, in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return 1024 * int(line.split()[1])


def data(n, k):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((n, k), dtype="float32")
    logits *= 3
    # The truth is likelier where the logit is larger.
    labels = rng.integers(0, k, n)
    return np.where(rng.random(n) < 0.7, logits.argmax(-1), labels), logits


def step(loss, labels, logits):
    """Returns a function that computes loss and gradient once and waits for both."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        grad = jax.jit(jax.value_and_grad(lambda z: loss(labels, z)))
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
    return lambda: torch.autograd.grad(loss(y, z), z)


def updates(metric, y, logits):
    """Returns a function that updates a metric once, and one for its result."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        update = jax.jit(metric.stateless_update_state, donate_argnums=0)
        state = [variable.value for variable in metric.variables]

        def run(at):
            nonlocal state
            state = update(state, y[at], logits[at])
            jax.block_until_ready(state)

        return run, lambda: float(metric.stateless_result(state))
    if backend == "tensorflow":
        import tensorflow as tf

        update = tf.function(metric.update_state)
        return lambda at: update(y[at], logits[at]), lambda: float(metric.result())
    return lambda at: metric.update_state(y[at], logits[at]), lambda: float(
        metric.result()
    )


def measured(run):
    """Returns CPU seconds of `run`, and the peak of memory above what was held."""
    # Freed memory is returned, and the peak is reset.
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = memory("VmRSS")
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    return seconds, memory("VmHWM") - before


def of_loss(make, n, k, repetitions):
    y, logits = data(n, k)
    if keras.backend.backend() == "jax":
        logits = keras.ops.convert_to_tensor(logits)
    run = step(make(k), y.astype("int32"), logits)
    # The first pass compiles. Where it is long, one more has to do.
    first, _ = measured(run)
    passes = [measured(run) for _ in range(repetitions if first < 10 else 1)]
    # A pass that frees the result of the one before seems to need less.
    seconds, peak = min(each[0] for each in passes), max(each[1] for each in passes)
    return seconds / (n * k), peak / logits.nbytes


def of_stream(make, n, k, batch):
    y, logits = data(4 * batch, k)
    y = keras.ops.convert_to_tensor(y.astype("int32").reshape(4, batch))
    logits = keras.ops.convert_to_tensor(logits.reshape(4, batch, k))
    run, result = updates(make(k), y, logits)
    run(0)
    steps = max(1, n // batch)
    seconds, peak = measured(lambda: [run(i % 4) for i in range(steps)])
    if not np.isfinite(result()):
        sys.exit("A metric has no finite result.")
    return seconds / (steps * batch * k), peak / (4 * batch * k)


def apart(function, *args):
    """Returns what a function does in a process of its own, forked from one in which no
    backend has started: JAX would hang.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(function(*args)))
    child.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        sys.exit("A measurement was killed, probably for want of memory.")
    child.join()
    return result


def table(title, unit, rows):
    """Prints rows of (name, n, k, seconds a logit, memory) by name."""
    print(f"\n{title}\n")
    print(f"| | n | k | ns a logit | × the first | {unit} |")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    first = {}
    for name, n, k, seconds, memory in rows:
        growth = seconds / first.setdefault(name, seconds)
        figures = f"{1e9 * seconds:.3g} | {growth:.2f} | {memory:.1f}"
        print(f"| {name} | {n:,} | {k:,} | {figures} |", flush=True)


def losses(names, sizes, repetitions):
    for name, make in names.items():
        for n, k in sizes:
            yield name, n, k, *apart(of_loss, make, n, k, repetitions)


def kernel_estimates(sizes):
    for name, make in KDE.items():
        most = 8192 if name == "KDE, whole" else sizes[-1]
        some = [(n, 10) for n in sizes if n <= most]
        yield from losses({name: make}, some, 1)


def streams(names, sizes):
    for name in names:
        for n, k, batch in sizes:
            yield name, n, k, *apart(of_stream, METRICS[name], n, k, batch)


def subsamples(n, k=10):
    """Prints what `kde_ece` gives from fewer reference samples."""
    y, logits = data(n, k)
    print(f"\nKernel estimate of the calibration error, n = {n:,}, k = {k}\n")
    print(
        "| kind | from all | " + " | ".join(f"subsample={m}" for m in SUBSAMPLES) + " |"
    )
    print("|---|" + "--:|" * (1 + len(SUBSAMPLES)))
    for kind in ("canonical", "top_label", "marginal"):
        figures = [
            kde_ece(y, logits, kind=kind, bandwidth=0.1, from_logits=True, subsample=m)
            for m in (None, *SUBSAMPLES)
        ]
        cells = [f"{x:.4f} ({x / figures[0] - 1:+.1%})" for x in figures[1:]]
        print(f"| {kind} | {figures[0]:.4f} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--full", action="store_true", help="stream 1e8 samples")
    args = parser.parse_args()
    repetitions = 1 if args.quick else 3
    print(f"backend: {keras.backend.backend()}")

    unit = "peak / logits"
    sizes = [(10**e, 10) for e in ((3, 4) if args.quick else (4, 5, 6))]
    table("Losses by samples", unit, losses(LOSSES, sizes, repetitions))
    classes = CLASSES[:2] if args.quick else CLASSES
    table("Losses by classes", unit, losses(LOSSES, classes, repetitions))
    sizes = (512, 1024) if args.quick else (2048, 8192, 32_768)
    table("Kernel density estimate", unit, kernel_estimates(sizes))
    apart(subsamples, sizes[1])

    unit = "peak / logits of a batch"
    sizes = [(n, k, n) for n, k in classes]
    table("Metrics by classes", unit, streams(METRICS, sizes))
    sizes = [(10**e, 10, BATCH) for e in ((5,) if args.quick else (6, 7))]
    table("Metrics by samples, in batches of 65,536", unit, streams(METRICS, sizes))
    if args.full:
        sizes = [(10**e, 10, BATCH) for e in (6, 8)]
        table("A hundred million samples", unit, streams(("ECE", "AURC"), sizes))


if __name__ == "__main__":
    main()
