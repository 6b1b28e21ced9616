"""Coverage and size of prediction sets on the logits of real networks.

    KERAS_BACKEND=jax python -m benchmarks.conformal

The logits are those of real networks in the folder that KERAS_SELCAL_DATA names. Where
MAPIE is installed (`pip install mapie`), its figures for the same data are shown too.
"""

import argparse
import importlib.util
import os
from pathlib import Path

import numpy as np

from keras_selcal import TemperatureScaling
from keras_selcal.conformal import (
    choose_penalty,
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)

# Method and seed; parameters of RAPS and SAPS are selected on a fifth of the data.
KINDS = [
    ("lac", None),
    ("aps", None),
    ("aps", 0),
    ("raps", None),
    ("raps", 0),
    ("saps", None),
    ("saps", 0),
]


def load_logits(name):
    with np.load(Path(os.environ["KERAS_SELCAL_DATA"]) / "logits" / name) as data:
        return dict(data)


def networks():
    """Yields name, calibration and test probabilities, each with its labels."""
    for title, name in (
        ("CIFAR-10, ResNet-110", "markus93_resnet110_c10_logits.npz"),
        ("CIFAR-100, ResNet-50", "mukhoti_cifar100_resnet50_logits.npz"),
    ):
        data = load_logits(name)
        z, y = data["val_logits"], data["val_labels"].reshape(-1).astype(int)
        z_test = data["test_logits"]
        y_test = data["test_labels"].reshape(-1).astype(int)
        yield title, softmax(z), y, softmax(z_test), y_test
        scaling = TemperatureScaling().fit(z[::2], y[::2])
        t = scaling.temperature
        yield (
            f"{title}, T = {t:.2f}",
            softmax(z[1::2] / t),
            y[1::2],
            softmax(z_test / t),
            y_test,
        )
    data = load_logits("imdb_probs.npz")
    p, y = data["probs"].astype(float), data["labels"].reshape(-1).astype(int)
    p = p / p.sum(-1, keepdims=True)
    yield "IMDB, two classes", p[::2], y[::2], p[1::2], y[1::2]


def softmax(z):
    z = np.exp(z.astype(float) - z.max(-1, keepdims=True))
    return z / z.sum(-1, keepdims=True)


def ours(p, y, p_test, alpha, method, seed):
    options = {"method": method, "seed": seed}
    if method in ("raps", "saps"):
        tuning = np.arange(len(y)) % 5 == 0
        options |= choose_penalty(p[tuning], y[tuning], alpha, **options)
        p, y = p[~tuning], y[~tuning]
    threshold = conformal_threshold(conformal_scores(p, y, **options), alpha)
    return conformal_sets(p_test, threshold, **options)


def of_mapie(p, y, p_test, alpha, method, seed):
    """Sets of MAPIE, or None where it has no such method."""
    # Without randomisation MAPIE's APS and RAPS have other definitions, and for two
    # classes it has LAC only.
    if method == "saps" or (method != "lac" and (seed is None or p.shape[1] == 2)):
        return None
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """Takes probabilities for features."""

        def fit(self, x, y):
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict_proba(self, x):
            return x

        def predict(self, x):
            return x.argmax(-1)

    classifier = SplitConformalClassifier(
        Given().fit(p, y),
        confidence_level=1 - alpha,
        conformity_score=method,
        prefit=True,
        random_state=0,
    ).conformalize(p, y)
    options = {"include_last_label": "randomized"} if method != "lac" else {}
    _, sets = classifier.predict_set(p_test, conformity_score_params=options)
    return sets[:, :, 0]


def figures(sets, y):
    covered = sets[np.arange(len(y)), y]
    sizes = sets.sum(-1)
    by_class = np.bincount(y, covered) / np.bincount(y)
    return (
        f"{100 * covered.mean():.2f} | {100 * by_class.min():.1f} | "
        f"{sizes.mean():.3f} | {100 * (sizes == 1).mean():.1f} | "
        f"{100 * (sizes == 0).mean():.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.1])
    args = parser.parse_args()
    mapie = importlib.util.find_spec("mapie") is not None
    print("| | α | method | coverage | worst class | size | one class | none |", end="")
    print(" MAPIE: coverage | size |" if mapie else "")
    print("|---|--:|---|--:|--:|--:|--:|--:|" + ("--:|--:|" if mapie else ""))
    different = entries = 0
    for title, p, y, p_test, y_test in networks():
        for alpha in args.alpha:
            for method, seed in KINDS:
                sets = ours(p, y, p_test, alpha, method, seed)
                name = method.upper() + (", random" if seed is not None else "")
                row = f"| {title} | {alpha:g} | {name} | {figures(sets, y_test)} |"
                if mapie:
                    theirs = of_mapie(p, y, p_test, alpha, method, seed)
                    if theirs is None:
                        row += " | |"
                    else:
                        coverage = theirs[np.arange(len(y_test)), y_test].mean()
                        size = theirs.sum(-1).mean()
                        if method == "lac":
                            different += int((sets != theirs).sum())
                            entries += sets.size
                        row += f" {100 * coverage:.2f} | {size:.3f} |"
                print(row, flush=True)
    if mapie:
        print(f"\nLAC: {different} of {entries:,} entries differ from MAPIE's.")


if __name__ == "__main__":
    main()
