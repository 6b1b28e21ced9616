"""Cost of fitting a temperature, and all calibrators on 1000 classes.

    KERAS_BACKEND=torch python benchmarks/calibrators.py

A temperature is compared with other solvers and one cross-entropy pass: every figure is
a ratio within one run, the median over interleaved repetitions.
probmetrics and torch-uncertainty are measured where they are installed. The naive ECE
is a full softmax for each temperature and a loop over the bins.
"""

import argparse
import itertools
import statistics
import time
import warnings

import keras
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from keras_selcal import (
    HistogramBinning,
    IsotonicCalibration,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)
from keras_selcal.calibrators.temperature_scaling import TEMPERATURE_GRID


def draw(n, k, temperature=2.0):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k), scale=3.0).astype("float32")
    cdf = softmax(logits / temperature, axis=-1).cumsum(axis=-1)
    labels = (rng.random((n, 1)) > cdf).sum(axis=-1)
    return logits, np.minimum(labels, k - 1)


def ours(objective):
    def fit(logits, labels):
        return TemperatureScaling(objective).fit(logits, labels).temperature

    return fit


def cross_entropy(logits, labels, T=1.0):
    log_p = log_softmax(logits / np.float32(T), axis=-1)
    return -float(log_p[np.arange(len(labels)), labels].mean())


def scipy_bounded(logits, labels):
    result = minimize_scalar(
        lambda log_T: cross_entropy(logits, labels, np.exp(log_T)),
        bounds=(np.log(1e-3), np.log(1e3)),
        method="bounded",
    )
    return float(np.exp(result.x))


def naive_ece(logits, labels, num_bins=15):
    p = softmax(logits, axis=-1)
    confidence, right = p.max(axis=-1), p.argmax(axis=-1) == labels
    edges = np.linspace(0, 1, num_bins + 1)
    ece = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = confidence[inside].mean() - right[inside].mean()
            ece += abs(gap) * inside.mean()
    return ece


def naive_grid(logits, labels):
    errors = [naive_ece(logits / np.float32(T), labels) for T in TEMPERATURE_GRID]
    return float(TEMPERATURE_GRID[np.argmin(errors)])


def others():
    """Returns the fits of the packages that are installed."""
    fits = {}
    try:
        import torch
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        def probmetrics(logits, labels):
            calibrator = get_calibrator("temp-scaling")
            calibrator.fit_torch(
                CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels)
            )

        fits["probmetrics"] = probmetrics
    except ImportError:
        print("probmetrics is not installed")
    try:
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from torch_uncertainty.post_processing import TemperatureScaler

        def torch_uncertainty(logits, labels):
            data = TensorDataset(torch.from_numpy(logits), torch.from_numpy(labels))
            scaler = TemperatureScaler(model=torch.nn.Identity())
            scaler.fit(DataLoader(data, batch_size=len(data)), progress=False)
            return float(scaler.temperature[0])

        fits["torch-uncertainty"] = torch_uncertainty
    except ImportError:
        print("torch-uncertainty is not installed")
    return fits


def measure(title, fits, logits, labels, repetitions):
    """Prints each fit's time as a multiple of the first one's."""
    seconds = {name: [] for name in fits}
    results = {}
    for _ in range(repetitions):
        for name, fit in fits.items():
            start = time.perf_counter()
            results[name] = fit(logits, labels)
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(next(iter(seconds.values())))
    print(f"\n{title}, logits {logits.shape}")
    for name, times in seconds.items():
        middle = statistics.median(times)
        result = "" if results[name] is None else f"{results[name]:.4f}"
        print(f"  {name:<24}{middle * 1e3:9.2f} ms{middle / base:8.2f} ×  {result}")


def draw_features(n, seed, k=1000):
    """Returns logits W f of features f around the classes' directions, and labels."""
    W = 0.4 * np.random.default_rng(99).normal(size=(k, 64))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    features = 1.4 * W[labels] + rng.normal(size=(n, 64))
    return (1.4 * features @ W.T).astype("float32"), labels


def many_classes():
    """Prints NLL and accuracy on test data after fits on 2,500 samples."""
    fitting, testing = draw_features(2500, 0), draw_features(5000, 1)

    def show(name, p, seconds):
        of_label = p[np.arange(len(p)), testing[1]].astype("float64")
        accuracy = np.mean(p.argmax(axis=-1) == testing[1])
        nll = -np.log(of_label).mean()
        print(f"  {name:<26}{nll:8.4f}{100 * accuracy:8.2f} %{seconds:8.2f} s")

    print("\n1000 classes, 2,500 samples: NLL, accuracy, time of the fit")
    show("none", softmax(testing[0], axis=-1), 0.0)
    for calibrator in (
        TemperatureScaling(),
        VectorScaling(),
        StructuredVectorScaling(),
        HistogramBinning(),
        HistogramBinning(binning="adaptive"),
        IsotonicCalibration(),
    ):
        start = time.perf_counter()
        calibrator.fit(*fitting)
        seconds = time.perf_counter() - start
        name = type(calibrator).__name__
        show(name, calibrator.predict_proba(testing[0]), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"backend: {keras.backend.backend()}; fitting is NumPy on each")
    logits, labels = draw(10_000, 100)
    fits = {
        "one cross-entropy": cross_entropy,
        "keras_selcal": ours("nll"),
        "scipy bounded": scipy_bounded,
        **others(),
    }
    measure("T by NLL", fits, logits, labels, args.repetitions)
    fits = {"keras_selcal": ours("ece"), "naive loop": naive_grid}
    repetitions = max(1, args.repetitions // 5)
    measure("T by ECE", fits, logits, labels, repetitions)
    many_classes()


if __name__ == "__main__":
    main()
