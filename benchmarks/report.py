"""Cost of a calibration report, in seconds and in plain evaluations of its metrics.

    KERAS_BACKEND=jax python benchmarks/report.py

One plain evaluation is the same report without resamples: every functional metric
once. Seconds are of CPU time, which other work on the machine does not blur, with
those by the clock in the last column. The work is NumPy's; the backend hardly matters.
"""

import argparse
import time

import numpy as np

from keras_selcal import CalibrationReport


def seconds(labels, logits, bootstrap, repetitions):
    """Returns the least CPU time, and the least time by the clock."""
    times = []
    for _ in range(repetitions):
        start = time.process_time(), time.perf_counter()
        CalibrationReport(labels, logits, from_logits=True, bootstrap=bootstrap)
        times.append((time.process_time() - start[0], time.perf_counter() - start[1]))
    return np.min(times, axis=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=2)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{args.bootstrap} resamples")
    head = ("n", "k", "errors", "plain s", "report s", "ratio", "clock s")
    print("".join(f"{name:>10}" for name in head))
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
        plain, _ = seconds(labels, logits, 0, args.repetitions)
        full, clock = seconds(labels, logits, args.bootstrap, args.repetitions)
        print(
            f"{n:>10}{k:>10}{errors:>10.3f}{plain:>10.3f}{full:>10.2f}"
            f"{full / plain:>10.1f}{clock:>10.2f}"
        )


if __name__ == "__main__":
    main()
