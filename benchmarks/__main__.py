"""Cost of metrics and losses, as ratios measured in one run.

    KERAS_BACKEND=jax python -m benchmarks --quick --json run.json
    KERAS_BACKEND=jax python -m benchmarks --quick --compare run.json

Each row is the least CPU time over repetitions, on one thread, and its ratio to the
reference under "to", which is measured in turns with it. Compare ratios, not times,
which depend on the machine. Everything is compiled on JAX and TensorFlow, and eager on
PyTorch. Other packages are measured where they are installed (`tox -e peers`).

With `--compare`, rows whose ratio has grown by more than half are marked, and the exit
status is 1 if there are any, or 2 if nothing can be compared.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import keras
import numpy as np
from keras import ops

from benchmarks.peers import WORK, side_by_side, versions
from benchmarks.timing import (
    LOSSES,
    compiled,
    cpu_time,
    data,
    least,
    resnet20,
    result,
    step,
    update,
)
from keras_selcal import functional, metrics
from keras_selcal._backend.rows import absolute_totals, summarized
from keras_selcal._predictions.samples import Samples, row_blocks

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
# The first of several runs writes the bytecode that an installed package has.
WITH_BYTECODE = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
# A ratio that has grown by this factor is not noise.
SLOWER = 1.5


def rows_of(size, reference, times):
    """Returns rows of times in ms, with their ratios to one of them."""
    return {
        f"{name}, {size}": {
            "ms": round(ms, 4),
            "reference": reference,
            "ratio": round(ms / times[reference], 6),
        }
        for name, ms in times.items()
    }


def of_set(n, k, repetitions):
    """Returns rows of a whole data set."""
    y, p = data(n, k)
    timed = {"np.max": lambda: p.max(-1)}
    for name, function in EXACT.items():
        timed[name] = lambda f=function: f(y, p)
    timed["ECE update"] = update(STREAMING["ECE"](), y, p)
    return rows_of(f"{n} × {k}", "np.max", least(timed, repetitions))


def of_updates(n, k, repetitions):
    """Returns rows of updates with one batch."""
    y, p = data(n, k)
    timed = {"accuracy update": update(keras.metrics.SparseCategoricalAccuracy(), y, p)}
    for name, make in STREAMING.items():
        timed[f"{name} update"] = update(make(), y, p)
    return rows_of(f"{n} × {k}", "accuracy update", least(timed, repetitions))


def of_losses(n, k, repetitions, names=LOSSES):
    """Returns rows of losses, forward and backward."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k), scale=3.0).astype("float32")
    labels = rng.integers(0, k, n)
    timed = {name: step(LOSSES[name](), labels, logits, False) for name in names}
    return rows_of(f"{n} × {k}", "crossentropy", least(timed, repetitions))


# The docstrings of the groups are their headings in the table.


def whole_sets(quick, repetitions):
    """Whole data sets: exact metrics and one update, to NumPy's maximum of each row."""
    part = 10 if quick else 1
    for n, k in (1_000_000, 10), (200_000, 100), (50_000, 1000):
        yield of_set(n // part, k, repetitions)


def single_passes(quick, repetitions):
    """Single passes over predictions, as in an update of ECE and in `cwece`, to NumPy's
    maximum of each row.
    """
    part = 10 if quick else 1
    for n, k in (1_000_000, 10), (50_000, 1000):
        y, p = data(n // part, k)
        index = y.astype("int32")
        timed = {
            "np.max": lambda p=p: p.max(-1),
            "keras.ops.amax": compiled(lambda x, y: ops.amax(x, axis=-1), p, index),
            "Σ|p|": compiled(lambda x, y: absolute_totals(x), p, index),
            "max, whether at y": compiled(
                lambda x, y: tuple(summarized(x, y, False))[:2], p, index
            ),
            "max, whether at y, Σ|p|": compiled(
                lambda x, y: tuple(summarized(x, y, True)), p, index
            ),
        }
        yield rows_of(f"{n // part} × {k}", "np.max", least(timed, repetitions))
    y, p = data(200_000 // part, 100)
    blocks = [p[rows] for rows in row_blocks(p.shape, 2**18)]
    copy, ones = np.empty(blocks[0].shape), np.ones(len(blocks[0]))

    def sum_in_double_precision():
        for block in blocks:
            copy[: len(block)] = block
            ones[: len(block)] @ copy[: len(block)]

    timed = {
        "np.max": lambda: p.max(-1),
        "cwece": lambda: functional.cwece(y, p),
        "checks": lambda: Samples.given(y, p),
        "where p > 1/15": lambda: [np.flatnonzero(b > 1 / 15) for b in blocks],
        "Σp of each class in float64": sum_in_double_precision,
    }
    yield rows_of(f"{len(p)} × 100", "np.max", least(timed, repetitions))


def small_updates(quick, repetitions):
    """Updates with a small batch, to that of Keras's accuracy."""
    yield of_updates(32, 10, 5 * repetitions)


def losses(quick, repetitions):
    """Losses, forward and backward, to Keras's cross-entropy."""
    for k in (100,) if quick else (10, 100, 1000):
        yield of_losses(8192, k, repetitions)


def starts(quick, repetitions):
    """First training step, which traces and compiles, with one metric or none; start of
    a process.
    """
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 20)).astype("float32"), rng.integers(0, 10, 32)

    def first_step(make):
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(10)])
        model.add(keras.layers.Softmax())
        metrics = [] if make is None else [make()]
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
        return cpu_time(lambda: model.train_on_batch(x, y), 1)

    timed = {"no metric": None, "accuracy": keras.metrics.SparseCategoricalAccuracy}
    timed.update(STREAMING)
    first_step(None)
    some = 3 if quick else 5
    turns = [{n: first_step(f) for n, f in timed.items()} for _ in range(some)]
    times = {name: min(turn[name] for turn in turns) for name in timed}
    yield rows_of("first step", "no metric", times)
    timed = {
        "import keras": lambda: cpu_of_import("keras"),
        "import keras_selcal after keras": lambda: cpu_of_import("keras_selcal"),
        "keras-selcal --help": cpu_of_help,
    }
    times = {n: min(f() for _ in range(some)) for n, f in timed.items()}
    yield rows_of("new process", "import keras", times)


def cpu_of_import(package):
    """Returns CPU time in ms: of Keras by itself, or of a package after Keras."""
    before = "" if package == "keras" else "import keras;"
    code = (
        f"import time;{before}start = time.process_time();import {package};"
        "print(1e3 * (time.process_time() - start))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=WITH_BYTECODE,
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(done.stdout.split()[-1])


def cpu_of_help():
    """Returns CPU time in ms of the command's help, with the start of Python."""
    command = [sys.executable, "-W", "ignore", "-m", "keras_selcal", "--help"]
    before = os.times()
    subprocess.run(command, env=WITH_BYTECODE, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return 1e3 * (sum(after[2:4]) - sum(before[2:4]))


def training(quick, repetitions):
    """Metrics in training, to a step of a ResNet-20 with batch 128. Keras updates them
    and computes their results at every step.
    """
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
    updates, results = {}, {}
    for name, make in IN_TRAINING.items():
        metric = make()
        updates[f"{name}: update"] = update(metric, y, p)
        results[f"{name}: result"] = result(metric, y, p)
    updates, results = least(updates, 5 * some), least(results, 5 * some)
    times["all metrics: update"] = sum(updates.values())
    times["all metrics: result"] = sum(results.values())
    times["all metrics: both"] = sum(updates.values()) + sum(results.values())
    for pair in zip(updates.items(), results.items(), strict=True):
        times.update(pair)
    yield rows_of("batch 128", "ResNet-20 step", times)


def beside_peers(quick, repetitions):
    """The same work by other packages, with the same value, to keras_selcal."""
    found = versions()
    missing = [package for package, version in found.items() if version is None]
    print("installed: ", *(f"{p} {v}" for p, v in found.items() if v), sep="  ")
    print("left out, not installed: ", *missing or ["none"], sep="  ", flush=True)
    part = 10 if quick else 1
    for n, k in dict.fromkeys(size for work in WORK.values() for size in work.sizes):
        y, p = data(n // part, k)
        for name, work in WORK.items():
            if (n, k) in work.sizes:
                functions = side_by_side(name, y, p)
                timed = {f"{name} by {who}": f for who, f in functions.items()}
                times = least(timed, 1 + repetitions // 3)
                yield rows_of(f"{n // part} × {k}", f"{name} by keras_selcal", times)


GROUPS = {
    "sets": whole_sets,
    "passes": single_passes,
    "updates": small_updates,
    "losses": losses,
    "starts": starts,
    "training": training,
    "peers": beside_peers,
}


def shown(ratio):
    return f"{100 * ratio:.2g} %" if ratio < 0.1 else f"{ratio:.2f}"


def count(text):
    """Returns a positive number, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def heading(group):
    return " ".join(GROUPS[group].__doc__.split())


def parse(arguments):
    """Returns the arguments and the rows of the run to compare with, or None."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__.splitlines()[0],
        epilog="groups:\n" + "\n".join(f"  {g:<10}{heading(g)}" for g in GROUPS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller and fewer measurements"
    )
    parser.add_argument(
        "--repetitions",
        type=count,
        default=7,
        help="a time is the least of about so many (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument(
        "--compare",
        type=Path,
        help="file of an earlier run; the exit status is 1 if a row has become slower",
    )
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=GROUPS,
        default=[*GROUPS],
        help="what to measure, see below (default: all)",
        metavar="GROUP",
    )
    args = parser.parse_args(arguments)
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json: there is no folder {args.json.parent}")
    if args.compare is None:
        return args, None
    backend = keras.backend.backend()
    try:
        run = json.loads(args.compare.read_text("utf-8"))
        theirs, quick, rows = run["backend"], run["quick"], run["rows"]
    except OSError as error:
        parser.error(f"--compare: {error}")
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"{args.compare} is no run of python -m benchmarks ({error!r})")
    if theirs != backend:
        parser.error(
            f"{args.compare} was measured on {theirs}; this run is on {backend}"
        )
    if quick != args.quick:
        which = "with" if quick else "without"
        parser.error(f"{args.compare} was measured {which} --quick; do the same here")
    return args, rows


def measure(args, before):
    """Measures, prints and writes the groups. Returns the rows."""
    rows = {}
    for group in args.groups:
        print(f"\n{heading(group)}", flush=True)
        for part in GROUPS[group](args.quick, args.repetitions):
            for name, row in part.items():
                # Groups may have rows of the same name.
                key = f"{group}: {name}"
                rows[key] = row
                earlier = before[key]["ratio"] if key in before else None
                print(
                    f"{name:<48}{row['ms']:>10.3f}{shown(row['ratio']):>9}"
                    f"{'' if earlier is None else shown(earlier):>9}"
                    f"  {row['reference']}"
                    f"{', slower than before' if is_slower(row, earlier) else ''}",
                    flush=True,
                )
        if args.json:
            backend = keras.backend.backend()
            run = {"backend": backend, "quick": args.quick, "rows": rows}
            args.json.write_text(json.dumps(run, indent=1, ensure_ascii=False), "utf-8")
    return rows


def is_slower(row, earlier):
    return earlier is not None and row["ratio"] > SLOWER * earlier


def main(arguments=None):
    args, before = parse(arguments)
    # TensorFlow warns of functions that are traced once each.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    backend = keras.backend.backend()
    print(f"backend: {backend}. CPU time in ms, and its ratio to that of a reference")
    print(f"{'':<48}{'ms':>10}{'ratio':>9}{'before':>9}  to")
    try:
        rows = measure(args, before or {})
    except KeyboardInterrupt:
        kept = f" Whole groups are in {args.json}." if args.json else ""
        print(f"\nInterrupted.{kept}", file=sys.stderr)
        return 130
    if before is None:
        return 0
    both = [name for name in rows if name in before]
    print(f"\n{len(both)} of {len(rows)} rows are in {args.compare}, too.")
    if not both:
        return 2
    return int(any(is_slower(rows[name], before[name]["ratio"]) for name in both))


if __name__ == "__main__":
    sys.exit(main())
