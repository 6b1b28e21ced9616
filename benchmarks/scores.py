"""Confidence scores on the logits of real classifiers: AURC, and unknown inputs.

    python -m benchmarks.scores [FOLDER]

FOLDER holds logits, weights and texts (see `tests/real_data.py`); KERAS_SELCAL_IMAGES
names the folder of cifar10.npz and tiny-imagenet if it is another one, FASHION_MNIST
that of Fashion-MNIST.

Of each set one part chooses the score (`csf.compare`), the other one tells how good the
choice is. A second table judges the rule by which `compare` falls back to `msp`, on
random halves of the sets that it was not tuned on. Written before the first of these
figures was seen:

- The rule does no harm on a set if the mean test AURC of what it chooses is at most
  1 % above that of `msp`.
- It is worth its data if "always p = 4" or "the best on the held-out half" (no
  fallback) does harm on some set on which the rule does none.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks.score_sets import Set, load
from keras_selcal import csf
from keras_selcal import functional as F  # noqa: N812
from keras_selcal.csf.choice import default_candidates

NAMES = ("msp", "margin", "neg_entropy", "doctor", "gen", "max_logit", "energy")
SCORES = {name: csf.get(name) for name in NAMES} | {"p = 4": csf.MaxLogitPNorm(4)}
SPLITS = 10

# By how many % the rule may raise AURC.
HARM = 1.0


def table(*heads: str) -> None:
    """Prints the head of a table."""
    print("\n|", " | ".join(heads), "|")
    print("|---" * len(heads) + "|", flush=True)


def cells(values: Iterable[float], form: str) -> str:
    """Returns cells of a table, with a dash for NaN."""
    return " | ".join("–" if np.isnan(x) else format(x, form) for x in values)


def aurc(labels: np.ndarray, logits: np.ndarray, score: csf.ConfidenceScore) -> float:
    """Returns AURC × 10³, NaN if the score means nothing for so many classes."""
    if score.flaw(logits.shape[-1], False):
        return np.nan
    return 1e3 * F.aurc(labels, logits, score, from_logits=True)


def row(data: Set) -> str:
    """Returns AURC × 10³ of every score on the test part, and what was chosen."""
    logits, labels = data.test
    choice = csf.compare(*data.held_out)
    found = cells(
        (aurc(labels, logits, score) for score in (*SCORES.values(), choice.csf)), ".3g"
    )
    gain, low, high = (f"{1e3 * x:.2g}" for x in (choice.gain, *choice.interval))
    return (
        f"| {data.name} | {found} | `{csf.name_of(choice.csf)}` "
        f"| {gain} ({low} to {high}) |"
    )


def whole(data: Set) -> tuple[np.ndarray, np.ndarray]:
    """Returns logits and labels of both parts."""
    logits, labels = zip(data.held_out, data.test, strict=True)
    return np.concatenate(logits), np.concatenate(labels)


def changes(data: Set) -> tuple[np.ndarray, int]:
    """Returns the changes of the mean test AURC against `msp` over random halves, in %,
    and how often the rule fell back to `msp`.
    """
    logits, labels = whole(data)
    rng = np.random.default_rng(0)
    candidates = default_candidates(True, logits.shape[-1], False)
    scores = {csf.name_of(score): score for score in (*candidates, csf.msp)}
    found, fell_back = [], 0
    for _ in range(SPLITS):
        half, rest = np.array_split(rng.permutation(len(labels)), 2)
        choice = csf.compare(logits[half], labels[half])
        best = scores[min(choice.aurc, key=choice.aurc.__getitem__)]
        tried = (csf.msp, choice.csf, csf.MaxLogitPNorm(4), best)
        found.append([aurc(labels[rest], logits[rest], score) for score in tried])
        fell_back += choice.csf is csf.msp
    msp, *others = np.mean(found, axis=0)
    return 100 * (np.array(others) / msp - 1), fell_back


def judge(sets: list[Set]) -> None:
    """Prints what the rule changes on sets that it was not tuned on."""
    rules = ("rule", "always p = 4", "no fallback")
    table("data", "n", "k", "errors", *rules, "fell back to `msp`")
    found = []
    for data in sets:
        logits, labels = whole(data)
        errors = int((logits.argmax(axis=-1) != labels).sum())
        change, fell_back = changes(data)
        found.append(change)
        size = f"{len(labels):,} | {logits.shape[-1]} | {errors:,}"
        figures = f"{cells(change, '+.1f')} | {fell_back} of {SPLITS}"
        print(f"| {data.name} | {size} | {figures} |", flush=True)
    harm = dict(zip(rules, (np.array(found) > HARM).sum(axis=0).tolist(), strict=True))
    print(f"\nMore than {HARM:g} % worse than msp on so many sets: {harm}")


def unknown_tables(sets: list[Set]) -> None:
    """Prints a table of each figure of known against unknown inputs."""
    figures: dict[str, Callable[..., float]] = {
        "AUROC": lambda y, z, unknown, **how: F.ood_auroc(z, unknown, **how),
        "AUPR": lambda y, z, unknown, **how: F.ood_aupr(z, unknown, **how),
        "FPR at 95 % TPR": lambda y, z, unknown, **how: F.fpr_at_tpr(z, unknown, **how),
        "SCOD AURC": F.scod_aurc,
    }
    # All of the published test set, which is cut in halves for CIFAR-10.
    parts = [d.test if d.name.startswith("CLINC") else whole(d) for d in sets]
    for title, figure in figures.items():
        table(title, *(data.name for data in sets))
        for name, score in SCORES.items():
            values = (
                figure(labels, logits, data.unknown, csf=score, from_logits=True)
                for data, (logits, labels) in zip(sets, parts, strict=True)
            )
            print(f"| {name} | {cells(values, '.3f')} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scores", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=os.environ.get("KERAS_SELCAL_DATA"),
        help="logits and texts (default: the variable KERAS_SELCAL_DATA)",
    )
    folder = parser.parse_args().folder
    if folder is None:
        parser.error("name the folder, or set KERAS_SELCAL_DATA")
    print("AURC × 10³ on the test part")
    table("data", *SCORES, "chosen", "choice", "gain")
    sets = []
    for data in load(folder):
        sets.append(data)
        print(row(data), flush=True)
    if not sets:
        parser.error(f"there are no data in {folder}")
    print("\nKnown against unknown inputs")
    unknown_tables([data for data in sets if data.unknown is not None])
    print("\nChange of AURC against msp in %, mean over random halves")
    judge([data for data in sets if not data.tuned_on])


if __name__ == "__main__":
    main()
