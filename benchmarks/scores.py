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

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.score_sets import Set, load
from keras_selcal import csf
from keras_selcal import functional as F  # noqa: N812
from keras_selcal.csf.choice import default_candidates

NAMES = ("msp", "margin", "neg_entropy", "doctor", "gen", "max_logit", "energy")
SPLITS = 10


def aurc(labels: np.ndarray, logits: np.ndarray, score: object) -> float:
    """Returns AURC × 10³, NaN if the score means nothing for so many classes."""
    if csf.get(score).flaw(logits.shape[-1], False):
        return np.nan
    return 1e3 * F.aurc(labels, logits, score, from_logits=True)


def row(data: Set) -> str:
    logits, labels = data.test
    choice = csf.compare(*data.held_out)
    scores = [*NAMES, csf.MaxLogitPNorm(4), choice.csf]
    cells = " | ".join(f"{aurc(labels, logits, score):.3g}" for score in scores)
    low, high = (f"{1e3 * end:.2g}" for end in choice.interval)
    chosen = csf.name_of(choice.csf)
    gain = f"{1e3 * choice.gain:.2g} ({low} to {high})"
    return f"| {data.name} | {cells} | `{chosen}` | {gain} |"


def rule_row(data: Set) -> str:
    """Changes of the mean test AURC against `msp` over random halves, in %."""
    logits, labels = (
        np.concatenate(parts) for parts in zip(data.held_out, data.test, strict=True)
    )
    rng = np.random.default_rng(0)
    candidates = default_candidates(True, logits.shape[-1], False)
    scores = {csf.name_of(score): score for score in (*candidates, csf.msp)}
    found, fell_back = [], 0
    for _ in range(SPLITS):
        order = rng.permutation(len(labels))
        half, rest = np.array_split(order, 2)
        choice = csf.compare(logits[half], labels[half])
        best = scores[min(choice.aurc, key=choice.aurc.__getitem__)]
        tried = (csf.msp, choice.csf, csf.MaxLogitPNorm(4), best)
        found.append([aurc(labels[rest], logits[rest], score) for score in tried])
        fell_back += choice.csf is csf.msp
    msp, *others = np.mean(found, axis=0)
    cells = " | ".join(f"{100 * (other / msp - 1):+.1f}" for other in others)
    errors = int((logits.argmax(axis=-1) != labels).sum())
    size = f"{len(labels):,} | {logits.shape[-1]} | {errors:,}"
    return f"| {data.name} | {size} | {cells} | {fell_back} of {SPLITS} |"


def unknown_rows(data: Set) -> Iterator[str]:
    logits, labels = (
        data.test
        if data.name.startswith("CLINC")
        else (np.concatenate(x) for x in zip(data.held_out, data.test, strict=True))
    )
    for score in (*NAMES, csf.MaxLogitPNorm(4)):
        options = {"csf": score, "from_logits": True}
        figures = (
            F.ood_auroc(logits, data.unknown, **options),
            F.ood_aupr(logits, data.unknown, **options),
            F.fpr_at_tpr(logits, data.unknown, **options),
            F.scod_aurc(labels, logits, data.unknown, **options),
        )
        cells = " | ".join(f"{value:.3f}" for value in figures)
        yield f"| {data.name} | `{csf.name_of(csf.get(score))}` | {cells} |"


def main() -> None:
    default = Path(__file__).parents[2] / "shared" / "data"
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("KERAS_SELCAL_DATA")
    heads = " | ".join((*NAMES, "p = 4", "chosen"))
    print(f"AURC × 10³ on the test part.\n\n| data | {heads} | choice | gain |")
    print("|---" * (len(NAMES) + 5) + "|")
    sets = []
    for data in load(Path(given) if given else default):
        sets.append(data)
        print(row(data), flush=True)
    print("\nAUROC and so on of known against unknown inputs.\n")
    print("| data | score | AUROC | AUPR | FPR at 95 % TPR | SCOD AURC |")
    print("|---" * 6 + "|")
    for data in sets:
        if data.unknown is not None:
            print(*unknown_rows(data), sep="\n", flush=True)
    print("\nChange of AURC against msp in %, mean over random halves.\n")
    print("| data | n | k | errors | rule | always p = 4 | no fallback | fell back |")
    print("|---" * 8 + "|")
    for data in sets:
        if not data.tuned_on:
            print(rule_row(data), flush=True)


if __name__ == "__main__":
    main()
