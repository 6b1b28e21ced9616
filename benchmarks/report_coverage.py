"""How often the report's 95 % intervals hold the true ECE.

    KERAS_BACKEND=jax python benchmarks/report_coverage.py

Draws data sets of 1000 two-class predictions whose confidence exceeds the accuracy by a
known gap in every bin, which then is the true ECE.
"""

import argparse

import numpy as np

from keras_selcal import CalibrationReport


def held(gap, rng, bootstrap):
    confidence = rng.uniform(0.5 + gap, 1.0, 1000)
    right = rng.uniform(size=1000) < confidence - gap
    p = np.stack([confidence, 1 - confidence], -1)
    report = CalibrationReport(np.where(right, 0, 1), p, bootstrap=bootstrap)
    return report["ece"].low <= gap <= report["ece"].high


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", type=int, default=200)
    parser.add_argument("--bootstrap", type=int, default=200)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    for gap in (0.0, 0.03, 0.1):
        share = np.mean([held(gap, rng, args.bootstrap) for _ in range(args.datasets)])
        print(f"true ECE {gap:4.2f}: held in {share:.0%} of {args.datasets} data sets")


if __name__ == "__main__":
    main()
