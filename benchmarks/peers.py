"""CPU time of other packages that do the same work, as multiples of ours.

    tox -e peers
    KERAS_BACKEND=torch python -m benchmarks.peers [--quick]

Prints a Markdown table of the packages that are installed. A time is the least CPU time
of several calls on one thread, and the packages take turns. A value that differs from
ours is an error.
"""

import argparse
import importlib.metadata
import importlib.util
import math
import os
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from keras_selcal import TemperatureScaling, functional
from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)

# Takes labels (n,) and probabilities (n, k), and returns what is timed.
Timed = Callable[[np.ndarray, np.ndarray], Callable[[], Any]]

# CPU time in ms that can be measured.
LONG_ENOUGH = 10.0
FEW_CLASSES, MANY_CLASSES = (1_000_000, 10), (50_000, 1000)
CALIBRATION_SET = (20_000, 100)


@dataclass
class Work:
    """One kind of work: by us, by other packages, and how far their values may differ
    where a definition does, as a share of ours.
    """

    ours: Timed
    peers: dict[str, Timed]
    differences: dict[str, float] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = (FEW_CLASSES, MANY_CLASSES)


def logits_of(p):
    return np.log(np.maximum(p, 1e-37))


def tensors(*arrays):
    import torch

    return [torch.from_numpy(array) for array in arrays]


def without_init(package):
    """Makes a package's modules importable without what its `__init__` imports.

    That of torch-uncertainty 0.13 wants Lightning and torchvision, which it does not
    require and its metrics do not use.
    """
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(package)
        module = types.ModuleType(package)
        module.__path__ = list(spec.submodule_search_locations)
        sys.modules[package] = module
    return sys.modules[package]


def torch_uncertainty_metric(name, *options, sized=False):
    """Returns what times a metric of torch-uncertainty, given k if it is `sized`."""

    def prepare(y, p):
        without_init("torch_uncertainty")
        without_init("torch_uncertainty.metrics")
        from torch_uncertainty.metrics import classification

        p, y = tensors(p, y)
        sizes = {"num_classes": p.shape[-1], "num_bins": 15} if sized else {}

        def run():
            metric = getattr(classification, name)(*options, **sizes)
            metric.update(p, y)
            return metric.compute()

        return run

    return prepare


def torch_uncertainty_temperature(y, p):
    without_init("torch_uncertainty")
    package = without_init("torch_uncertainty.post_processing")
    from torch_uncertainty.post_processing.abstract import PostProcessing

    package.PostProcessing = PostProcessing
    from torch.nn import Flatten
    from torch_uncertainty.post_processing.calibration import TemperatureScaler

    batch = tensors(logits_of(p), y)

    def run():
        # A model that changes nothing; with Identity it warns.
        scaler = TemperatureScaler(Flatten())
        scaler.fit([batch], progress=False)
        return scaler.temperature[0].item()

    return run


def torchmetrics_ece(y, p):
    from torchmetrics.functional.classification import multiclass_calibration_error

    k = p.shape[-1]
    p, y = tensors(p, y)
    return lambda: multiclass_calibration_error(p, y, num_classes=k, n_bins=15)


def netcal_ece(y, p):
    from netcal.metrics import ECE

    return lambda: ECE(15).measure(p, y)


def netcal_temperature(y, p):
    from netcal.scaling import TemperatureScaling

    # It differentiates numerically: with float32 the temperature stays at 1.
    p = p.astype("float64")

    def run():
        scaling = TemperatureScaling()
        scaling.fit(p, y)
        return 1 / scaling.temperature[0]

    return run


def probmetrics_ece(y, p):
    from probmetrics.distributions import CategoricalDirac, CategoricalProbs
    from probmetrics.metrics import CalibrationError

    p, y = tensors(p, y)
    truth, predicted = CategoricalDirac(y, p.shape[-1]), CategoricalProbs(p)
    return lambda: CalibrationError(15).compute(truth, predicted)


def probmetrics_temperature(y, p):
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    z, y = tensors(logits_of(p), y)

    def run():
        calibrator = TemperatureScalingCalibrator()
        calibrator.fit_torch(CategoricalLogits(z), y)
        return 1 / calibrator.invtemp_

    return run


def keras_proba_ece(y, p):
    from keras_proba.metrics import calibration

    z = logits_of(p)
    return lambda: calibration.expected_calibration_error(15, z, y)


def keras_proba_brier(y, p):
    from keras_proba.metrics import calibration

    z = logits_of(p)
    # Its score is Σ p² − 2 p_y.
    return lambda: 1 + calibration.brier_score(y, z).mean()


def scikit_learn(name):
    """Returns what times a metric of scikit-learn."""

    def prepare(y, p):
        from sklearn import metrics

        labels = np.arange(p.shape[-1])
        return lambda: getattr(metrics, name)(y, p, labels=labels)

    return prepare


def given(p, y):
    """Returns a classifier for scikit-learn whose inputs are probabilities."""
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        def fit(self, x, y):
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict_proba(self, x):
            return x

        def predict(self, x):
            return x.argmax(-1)

    return Given().fit(p, y)


def mapie_sets(y, p):
    from mapie.classification import SplitConformalClassifier

    # It refuses rows whose sum differs from 1 by rounding in float32.
    p = p.astype("float64")
    p /= p.sum(-1, keepdims=True)

    def run():
        classifier = SplitConformalClassifier(
            given(p, y),
            confidence_level=0.9,
            conformity_score="lac",
            prefit=True,
        )
        _, sets = classifier.conformalize(p, y).predict_set(p)
        return sets.sum(1).mean()

    return run


def our_temperature(y, p):
    z = logits_of(p)
    return lambda: TemperatureScaling().fit(z, y).temperature


def our_sets(y, p):
    def run():
        scores = conformal_scores(p, y, method="lac")
        sets = conformal_sets(p, conformal_threshold(scores, 0.1), method="lac")
        return sets.sum(-1).mean()

    return run


def exact(function):
    return lambda y, p: lambda: function(y, p)


WORK = {
    "ECE": Work(
        exact(functional.ece),
        {
            "torchmetrics": torchmetrics_ece,
            "netcal": netcal_ece,
            "torch-uncertainty": torch_uncertainty_metric(
                "CalibrationError", "multiclass", sized=True
            ),
            "probmetrics": probmetrics_ece,
            "keras-proba": keras_proba_ece,
        },
        # It leaves out classes without a sample, and raises probabilities to 1e-7.
        differences={"probmetrics": 1e-2},
    ),
    "cwECE": Work(
        exact(functional.cwece),
        {
            "torch-uncertainty": torch_uncertainty_metric(
                "ClasswiseCalibrationError", sized=True
            )
        },
        # Its time grows with the square of the classes.
        sizes=(FEW_CLASSES,),
    ),
    "AURC": Work(
        exact(functional.aurc),
        {"torch-uncertainty": torch_uncertainty_metric("AURC")},
        # It integrates trapezoids from a coverage of 1/n on, and orders ties anyhow.
        differences={"torch-uncertainty": 1e-3},
    ),
    "Brier score": Work(
        exact(functional.brier),
        {
            "scikit-learn": scikit_learn("brier_score_loss"),
            "keras-proba": keras_proba_brier,
        },
    ),
    "log loss": Work(
        exact(functional.nll),
        {"scikit-learn": scikit_learn("log_loss")},
        # It raises probabilities to the resolution of their dtype, 1.2e-7 here.
        differences={"scikit-learn": 1e-3},
    ),
    "temperature": Work(
        our_temperature,
        {
            "netcal": netcal_temperature,
            "probmetrics": probmetrics_temperature,
            "torch-uncertainty": torch_uncertainty_temperature,
        },
        # It stops after 100 steps of L-BFGS.
        differences={"torch-uncertainty": 1e-2},
        sizes=(CALIBRATION_SET,),
    ),
    "LAC sets": Work(our_sets, {"MAPIE": mapie_sets}, sizes=(CALIBRATION_SET,)),
}


def side_by_side(name, y, p):
    """Returns functions that do the same work, ours and those of installed packages.

    Raises:
        AssertionError: if a package finds another value.
    """
    work = WORK[name]
    ours = work.ours(y, p)
    found = {"keras_selcal": ours}
    for package, prepare in work.peers.items():
        try:
            theirs = prepare(y, p)
        except ImportError:
            continue
        tolerance = work.differences.get(package, 1e-4)
        np.testing.assert_allclose(
            float(theirs()), float(ours()), tolerance, err_msg=f"{name} by {package}"
        )
        found[package] = theirs
    return found


def versions():
    """Returns the version of each package that is a peer, None where it is missing."""
    packages = dict.fromkeys(name for work in WORK.values() for name in work.peers)
    for package in packages:
        try:
            packages[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return packages


def data(n, k):
    """Returns labels and probabilities of an overconfident classifier."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, k)).astype("float32") * 3
    labels = (logits / 2 + rng.gumbel(size=(n, k))).argmax(-1)
    logits -= logits.max(-1, keepdims=True)
    p = np.exp(logits)
    return labels, p / p.sum(-1, keepdims=True)


def cpu_time(function, calls):
    """Returns the CPU time of a call in ms, the mean of some."""
    start = time.process_time()
    for _ in range(calls):
        function()
    return 1e3 * (time.process_time() - start) / calls


def least_times(functions, repetitions):
    """Returns the least CPU time of each function in ms, taken in turns."""
    calls = {}
    for name, function in functions.items():
        function()
        calls[name] = math.ceil(LONG_ENOUGH / max(cpu_time(function, 1), 1e-3))
    times = dict.fromkeys(functions, math.inf)
    for _ in range(repetitions):
        for name, function in functions.items():
            times[name] = min(times[name], cpu_time(function, calls[name]))
    return times


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    args = parser.parse_args()
    found = versions()
    missing = [package for package, version in found.items() if version is None]
    print("Installed:", ", ".join(f"{p} {v}" for p, v in found.items() if v) or "none")
    print("Not installed:", ", ".join(missing) or "none")
    print("\n| work | n × k | ours, ms | others, multiples of ours |")
    print("|---|---|--:|---|", flush=True)
    for name, work in WORK.items():
        for n, k in work.sizes:
            n = n // 10 if args.quick else n
            times = least_times(side_by_side(name, *data(n, k)), 3)
            ours = times.pop("keras_selcal")
            others = [
                f"{package} {ms / ours:.1f}"
                for package, ms in sorted(times.items(), key=lambda item: item[1])
            ]
            print(f"| {name} | {n:,} × {k:,} | {ours:.1f} | {', '.join(others)} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
