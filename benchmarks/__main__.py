"""Cost of metrics and losses, as ratios measured in one run.

    KERAS_BACKEND=jax python -m benchmarks --quick --json run.json
    KERAS_BACKEND=jax python -m benchmarks --quick --compare run.json

Each row is the least CPU time over repetitions, on one thread, and its ratio to a
reference that is measured in turns with it: `np.max` over the classes for metrics,
Keras's accuracy for small updates, Keras's cross-entropy for losses. Compare ratios,
not times, which depend on the machine. Everything is compiled on JAX and TensorFlow,
and eager on PyTorch.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import keras
import numpy as np
from keras import ops

from benchmarks.losses import LOSSES, step
from benchmarks.metrics import data
from keras_selcal import functional, metrics

STREAMING = {
    "ECE": metrics.ExpectedCalibrationError,
    "adaptive ECE": lambda: metrics.ExpectedCalibrationError(binning="adaptive"),
    "AURC": metrics.AURC,
    "CoverageAtRisk": lambda: metrics.CoverageAtRisk(0.1),
}
EXACT = {
    "ece": functional.ece,
    "cwece": functional.cwece,
    "aurc": functional.aurc,
    "coverage_at_risk": lambda y, p: functional.coverage_at_risk(y, p, 0.1),
}


def update(metric, y, p):
    """Returns a function that adds a batch to a metric once, as `fit` would."""
    y, p = ops.convert_to_tensor(y.astype("int32")), ops.convert_to_tensor(p)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        added = jax.jit(metric.stateless_update_state, donate_argnums=0)
        state = [[ops.copy(variable.value) for variable in metric.variables]]

        def run():
            state[0] = jax.block_until_ready(added(state[0], y, p))

        return run
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda: metric.update_state(y, p))
    return lambda: metric.update_state(y, p)


def least(functions, repetitions):
    """Returns the least CPU time of each function in ms, taken in turns."""
    for function in functions.values():
        function()
    times = dict.fromkeys(functions, float("inf"))
    for _ in range(repetitions):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name] = min(times[name], 1e3 * (time.process_time() - start))
    return times


def group(size, reference, functions, repetitions):
    """Returns rows of what is measured at one size, against `reference`."""
    times = least(functions, repetitions)
    return {
        f"{name}, {size}": {
            "ms": round(ms, 4),
            "reference": reference,
            "ratio": round(ms / times[reference], 3),
        }
        for name, ms in times.items()
    }


def measure(quick, repetitions):
    """Yields the rows of one size after the other."""
    sizes = (
        [(100_000, 10), (5_000, 1000)] if quick else [(1_000_000, 10), (50_000, 1000)]
    )
    for n, k in sizes:
        y, p = data(n, k)
        timed = {"np.max": lambda p=p: p.max(-1)}
        for name, function in EXACT.items():
            timed[name] = lambda f=function, y=y, p=p: f(y, p)
        timed["ECE update"] = update(STREAMING["ECE"](), y, p)
        yield group(f"{n} × {k}", "np.max", timed, repetitions)
    y, p = data(32, 10)
    # Keras's accuracy is what an update costs at the least.
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    timed = {"accuracy update": update(accuracy, y, p)}
    for name, make in STREAMING.items():
        timed[f"{name} update"] = update(make(), y, p)
    yield group("32 × 10", "accuracy update", timed, 5 * repetitions)
    for n, k in [(8192, 100)] if quick else [(8192, 10), (8192, 100), (8192, 1000)]:
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(n, k), scale=3.0).astype("float32")
        labels = rng.integers(0, k, n)
        timed = {
            name: step(make(), labels, logits, False) for name, make in LOSSES.items()
        }
        yield group(f"{n} × {k}", "crossentropy", timed, repetitions)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--compare", type=Path, help="file of an earlier run")
    args = parser.parse_args()
    before = json.loads(args.compare.read_text("utf-8")) if args.compare else {}
    print(f"backend: {keras.backend.backend()}")
    print(f"{'':<34}{'ms':>10}{'ratio':>9}{'before':>9}  to")
    rows = {}
    for part in measure(args.quick, args.repetitions):
        rows.update(part)
        for name, row in part.items():
            earlier = before.get(name, {}).get("ratio", "")
            print(
                f"{name:<34}{row['ms']:>10.3f}{row['ratio']:>9.2f}{earlier:>9}"
                f"  {row['reference']}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
