"""What the first step of `fit` on JAX pays for a metric, part by part.

    python -m benchmarks.compilation

CPU time in ms of one thread, least of three, and the number of kernels that XLA makes.
"""

import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import keras

from benchmarks.__main__ import STREAMING
from benchmarks.timing import data


def measured(function, *arguments):
    start = time.process_time()
    value = function(*arguments)
    return value, 1e3 * (time.process_time() - start)


def of_function(function, *arguments):
    """Returns ms of tracing, lowering and compiling, and the number of kernels."""
    import jax

    best = None
    for _ in range(3):
        # A new function, which JAX has not seen.
        jitted = jax.jit(lambda *x: function(*x))
        traced, trace = measured(jitted.trace, *arguments)
        lowered, lower = measured(traced.lower)
        compiled, compile_ = measured(lowered.compile)
        found = trace, lower, compile_, compiled.as_text().count(" fusion(")
        best = found if best is None else min(best, found, key=lambda x: sum(x[:3]))
    return best


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compilation", description=__doc__.splitlines()[0]
    )
    parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error(f"KERAS_BACKEND is {keras.backend.backend()}; this is about jax")
    y, p = data(32, 10)
    y = y.astype("int32")
    makers = {"accuracy": keras.metrics.SparseCategoricalAccuracy, **STREAMING}
    print("CPU time in ms, and the number of kernels\n")
    print("| metric | part | trace | lower | compile | kernels |")
    print("|---|---|--:|--:|--:|--:|")
    for name, make in makers.items():
        metric = make()
        metric.update_state(y, p)
        state = [variable.value for variable in metric.variables]
        parts = {
            "update": of_function(metric.stateless_update_state, state, y, p),
            "result": of_function(metric.stateless_result, state),
        }
        for part, (*times, kernels) in parts.items():
            figures = " | ".join(f"{ms:.0f}" for ms in times)
            print(f"| {name} | {part} | {figures} | {kernels} |", flush=True)


if __name__ == "__main__":
    main()
