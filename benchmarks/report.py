"""Cost of a calibration report, in seconds and in plain evaluations of its metrics.

    KERAS_BACKEND=jax python benchmarks/report.py

One plain evaluation is the same report without resamples: every functional metric
once. The work is NumPy's, on one core; the backend does not matter.
"""

import argparse
import time

import numpy as np

from keras_selcal import CalibrationReport


def seconds(labels, logits, bootstrap, repetitions):
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        CalibrationReport(labels, logits, from_logits=True, bootstrap=bootstrap)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=2)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{args.bootstrap} resamples")
    print(f"{'n':>8}{'k':>6}{'errors':>9}{'plain s':>10}{'report s':>10}{'ratio':>8}")
    for n, k, scale in (
        (1_000, 10, 8.0),
        (10_000, 10, 8.0),
        (10_000, 10, 1.0),
        (10_000, 100, 8.0),
        (10_000, 1000, 8.0),
    ):
        labels = rng.integers(0, k, n)
        logits = rng.normal(size=(n, k)).astype("float32") * 2
        logits[np.arange(n), labels] += scale
        errors = np.mean(logits.argmax(-1) != labels)
        plain = seconds(labels, logits, 0, args.repetitions)
        full = seconds(labels, logits, args.bootstrap, args.repetitions)
        print(
            f"{n:>8}{k:>6}{errors:>9.3f}{plain:>10.3f}{full:>10.2f}{full / plain:>8.1f}"
        )


if __name__ == "__main__":
    main()
