"""Prediction sets and risk control on the logits of real networks.

    KERAS_BACKEND=jax python -m benchmarks.conformal
    KERAS_BACKEND=jax python -m benchmarks.conformal --risks 100

The logits are those of real networks in the folder that KERAS_SELCAL_DATA names. Where
MAPIE is installed (`pip install mapie`), its figures for the same data are shown too.
With `--risks`, guaranteed risks are compared with MAPIE's over this number of draws.
"""

import argparse
import importlib.util
import math
import os
import warnings
from pathlib import Path

import numpy as np

from benchmarks.peers import given
from keras_selcal import TemperatureScaling
from keras_selcal.conformal import (
    choose_penalty,
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)
from keras_selcal.selective import answer_losses, select_threshold

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

    classifier = SplitConformalClassifier(
        given(p, y),
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


def risk_cases():
    """Yields title, n, target, probabilities, labels and who answers what.

    The answer to a sample is `answers`, given where `scores` reach the threshold.
    """
    data = load_logits("imdb_probs.npz")
    p, y = data["probs"].astype(float), data["labels"].reshape(-1).astype(int)
    p = p / p.sum(-1, keepdims=True)
    for n, risk in ((1000, 0.08), (5000, 0.05)):
        title = f"IMDB, precision ≥ {1 - risk:g}, n = {n}"
        yield title, n, risk, p, y, p[:, 1], np.ones(len(y), int)
    data = load_logits("markus93_resnet110_c10_logits.npz")
    p = softmax(np.concatenate([data["val_logits"], data["test_logits"]]))
    y = np.concatenate([data["val_labels"].ravel(), data["test_labels"].ravel()])
    for n, risk in ((2500, 0.15), (5000, 0.1)):
        title = f"CIFAR-10, precision of each class ≥ {1 - risk:g}, n = {n}"
        yield title, n, risk, p, y.astype(int), p.max(-1), p.argmax(-1)


def threshold_of_mapie(p, y, risk, delta, binary, method):
    from mapie.risk_control import (
        BinaryClassificationController,
        MultiClassificationLTTController,
    )
    from mapie.risk_control.risks import build_precision_ovr

    options = {"confidence_level": 1 - delta, "fwer_method": method}
    if binary:
        controller = BinaryClassificationController(
            np.asarray, "precision", 1 - risk, **options
        )
    else:
        classes = list(range(p.shape[1]))
        controller = MultiClassificationLTTController(
            np.asarray,
            build_precision_ovr(classes),
            [1 - risk] * len(classes),
            classes=np.array(classes),
            **options,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        valid = controller.calibrate(p, y).valid_predict_params
    return min(valid, default=math.inf)


def compare_risks(draws, delta=0.1):
    """Prints answered shares, draws without a threshold and exceeded risks."""
    print("| | | answered | none found | exceeded |\n|---|---|--:|--:|--:|")
    for title, n, risk, p, y, scores, answers in risk_cases():
        binary = p.shape[1] == 2
        methods = ["bonferroni_holm"] + ["fixed_sequence"] * binary
        rng, found = np.random.default_rng(0), {}
        losses = answer_losses(y, answers, per=None if binary else "answer")
        for _ in range(draws):
            rows = rng.permutation(len(y))
            used, rest = rows[:n], rows[n:]
            try:
                ours = select_threshold(
                    scores[used],
                    losses=losses[used],
                    binary=True,
                    risk=risk,
                    delta=delta,
                )
            except ValueError:
                ours = math.inf
            thresholds = {"keras_selcal": ours}
            for method in methods:
                thresholds[f"MAPIE, {method}"] = threshold_of_mapie(
                    p[used], y[used], risk, delta, binary, method
                )
            for name, t in thresholds.items():
                kept = scores[rest] >= t
                worst = 0.0
                if kept.any():
                    with warnings.catch_warnings():
                        # A class that is never answered has no errors.
                        warnings.simplefilter("ignore")
                        worst = np.nanmax(np.nanmean(losses[rest][kept], axis=0))
                row = kept.mean(), t == math.inf, worst > risk
                found.setdefault(name, []).append(row)
        for name, values in found.items():
            cells = " | ".join(f"{x:.3f}" for x in np.mean(values, axis=0))
            print(f"| {title} | {name} | {cells} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformal", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--alpha",
        type=float,
        nargs="+",
        default=[0.1],
        help="error levels of the sets (default: 0.1)",
    )
    parser.add_argument(
        "--risks",
        type=int,
        metavar="DRAWS",
        help="compare guaranteed risks with MAPIE's over so many draws instead",
    )
    args = parser.parse_args()
    if "KERAS_SELCAL_DATA" not in os.environ:
        parser.error("set KERAS_SELCAL_DATA to the folder of the logits")
    if args.risks:
        return compare_risks(args.risks)
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
    if not mapie:
        print("\nMAPIE is not installed.")
    else:
        print(f"\nLAC: {different} of {entries:,} entries differ from MAPIE's.")


if __name__ == "__main__":
    main()
