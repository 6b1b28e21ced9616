"""Cost of metrics and losses, as ratios measured in one run.

    KERAS_BACKEND=jax python -m benchmarks --quick --json run.json
    KERAS_BACKEND=jax python -m benchmarks --quick --compare run.json

Each row is the least CPU time over repetitions, on one thread, and its ratio to a
reference that is measured in turns with it: `np.max` over the classes for metrics,
Keras's accuracy for small updates, Keras's cross-entropy for losses, a first step
without metrics and the import of Keras for starts, a step of a ResNet-20 for updates in
training. Compare ratios, not times, which depend on the machine. Everything is compiled
on JAX and TensorFlow, and eager on PyTorch. Other packages are measured where they are
installed (`tox -e peers`).
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import keras
import numpy as np

from benchmarks.peers import peers
from benchmarks.timing import LOSSES, data, least, resnet20, step, update
from keras_selcal import functional, metrics

STREAMING = {
    "ECE": metrics.ExpectedCalibrationError,
    "adaptive ECE": lambda: metrics.ExpectedCalibrationError(binning="adaptive"),
    "AURC": metrics.AURC,
    "CoverageAtRisk": lambda: metrics.CoverageAtRisk(0.1),
}
IN_TRAINING = {
    **STREAMING,
    "cwECE": lambda: metrics.ClasswiseCalibrationError(num_classes=10),
    "adaptive cwECE": lambda: metrics.ClasswiseCalibrationError(
        num_classes=10, binning="adaptive"
    ),
    "Brier": metrics.BrierScore,
    "E-AURC": metrics.ExcessAURC,
    "AUGRC": metrics.AUGRC,
    "AUROC_f": metrics.FailureAUROC,
    "RiskAtCoverage": lambda: metrics.RiskAtCoverage(0.8),
}
EXACT = {
    "ece": functional.ece,
    "cwece": functional.cwece,
    "aurc": functional.aurc,
    "coverage_at_risk": lambda y, p: functional.coverage_at_risk(y, p, 0.1),
}


def group(size, reference, functions, repetitions):
    """Returns rows of what is measured at one size, against `reference`."""
    return rows_of(size, reference, least(functions, repetitions))


def rows_of(size, reference, times):
    """Returns rows of times in ms, with their ratios to one of them."""
    return {
        f"{name}, {size}": {
            "ms": round(ms, 4),
            "reference": reference,
            "ratio": round(ms / times[reference], 3),
        }
        for name, ms in times.items()
    }


def whole_sets(quick, repetitions):
    """Yields rows of whole data sets: exact metrics, one large update, peers."""
    part = 10 if quick else 1
    for n, k in (1_000_000, 10), (200_000, 100), (50_000, 1000):
        y, p = data(n // part, k)
        timed = {"np.max": lambda p=p: p.max(-1)}
        for name, function in EXACT.items():
            timed[name] = lambda f=function, y=y, p=p: f(y, p)
        timed["ECE update"] = update(STREAMING["ECE"](), y, p)
        timed.update(peers(y, p))
        yield group(f"{n // part} × {k}", "np.max", timed, repetitions)


def small_updates(quick, repetitions):
    """Yields rows of updates with a small batch. Keras's accuracy is the least cost."""
    y, p = data(32, 10)
    timed = {"accuracy update": update(keras.metrics.SparseCategoricalAccuracy(), y, p)}
    for name, make in STREAMING.items():
        timed[f"{name} update"] = update(make(), y, p)
    yield group("32 × 10", "accuracy update", timed, 5 * repetitions)


def losses(quick, repetitions):
    """Yields rows of losses, forward and backward."""
    for n, k in [(8192, 100)] if quick else [(8192, 10), (8192, 100), (8192, 1000)]:
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(n, k), scale=3.0).astype("float32")
        labels = rng.integers(0, k, n)
        timed = {
            name: step(make(), labels, logits, False) for name, make in LOSSES.items()
        }
        yield group(f"{n} × {k}", "crossentropy", timed, repetitions)


def starts(quick, repetitions):
    """Yields rows of first steps, which trace and compile, and of imports."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 20)).astype("float32"), rng.integers(0, 10, 32)

    def first_step(make):
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(10)])
        model.add(keras.layers.Softmax())
        metrics = [] if make is None else [make()]
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
        start = time.process_time()
        model.train_on_batch(x, y)
        return 1e3 * (time.process_time() - start)

    timed = {"no metric": None, "accuracy": keras.metrics.SparseCategoricalAccuracy}
    timed.update(STREAMING)
    first_step(None)
    some = 1 if quick else 2
    times = {n: min(first_step(f) for _ in range(some)) for n, f in timed.items()}
    yield rows_of("first step", "no metric", times)
    times = {
        package: min(cpu_of_import(package) for _ in range(some + 1))
        for package in ("keras", "keras_selcal")
    }
    yield rows_of("import", "keras", times)


def cpu_of_import(package):
    """Returns CPU time in ms: of Keras by itself, or of a package after Keras."""
    before = "" if package == "keras" else "import keras;"
    code = (
        f"import time;{before}start = time.process_time();import {package};"
        "print(1e3 * (time.process_time() - start))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True
    )
    return float(done.stdout.split()[-1])


def training(quick, repetitions):
    """Yields what metrics add to a step of a ResNet-20 of batch 128."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(128, 32, 32, 3)).astype("float32")
    y, p = data(128, 10)
    model = resnet20()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    some = 2 if quick else repetitions
    labels = y.astype("int32")
    times = least({"ResNet-20 step": lambda: model.train_on_batch(x, labels)}, some)
    # Keras computes the results at every step.
    timed = {
        name: update(make(), y, p, result=True) for name, make in IN_TRAINING.items()
    }
    of_metrics = least(timed, 5 * some)
    times["all metrics together"] = sum(of_metrics.values())
    yield rows_of("batch 128", "ResNet-20 step", {**times, **of_metrics})


GROUPS = {
    "sets": whole_sets,
    "updates": small_updates,
    "losses": losses,
    "starts": starts,
    "training": training,
}


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--compare", type=Path, help="file of an earlier run")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=[*GROUPS])
    args = parser.parse_args(arguments)
    before = json.loads(args.compare.read_text("utf-8")) if args.compare else {}
    print(f"backend: {keras.backend.backend()}")
    print(f"{'':<34}{'ms':>10}{'ratio':>9}{'before':>9}  to")
    rows = {}
    parts = (GROUPS[name](args.quick, args.repetitions) for name in args.groups)
    for part in itertools.chain.from_iterable(parts):
        rows.update(part)
        for name, row in part.items():
            earlier = before.get(name, {}).get("ratio", "")
            slower = earlier and row["ratio"] > 1.5 * earlier
            print(
                f"{name:<34}{row['ms']:>10.3f}{row['ratio']:>9.2f}{earlier:>9}"
                f"  {row['reference']}{', slower than before' if slower else ''}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
