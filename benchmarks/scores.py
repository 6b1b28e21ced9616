"""Confidence scores on the logits of real classifiers: AURC, and unknown inputs.

    python -m benchmarks.scores [FOLDER]

FOLDER holds logits and texts (see `tests/real_data.py`). Of each set one part chooses
the score (`csf.compare`), the other one tells how good the choice is. The text
classifiers are logistic regressions on TF-IDF features, fitted here within a minute.
"""

import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from keras_selcal import csf
from keras_selcal import functional as F  # noqa: N812

NAMES = ("msp", "margin", "neg_entropy", "doctor", "gen", "max_logit", "energy")
Split = tuple[np.ndarray, np.ndarray]


def halves(logits: np.ndarray, labels: np.ndarray) -> tuple[Split, Split]:
    return (logits[::2], labels[::2]), (logits[1::2], labels[1::2])


def load_logits(folder: Path) -> Iterator[tuple[str, Split, Split]]:
    for name, file in (
        ("CIFAR-10 ResNet-110", "markus93_resnet110_c10_logits.npz"),
        ("CIFAR-100 ResNet-50", "mukhoti_cifar100_resnet50_logits.npz"),
    ):
        data = np.load(folder / "logits" / file)
        pairs = [
            (data[f"{part}_logits"], data[f"{part}_labels"].ravel())
            for part in ("val", "test")
        ]
        yield name, pairs[0], pairs[1]
    data = np.load(folder / "logits/metacal_mnist_test-logits.npz")
    yield "MNIST", *halves(data["logits"], data["targets"].ravel())
    data = np.load(folder / "logits/imdb_probs.npz")
    yield (
        "IMDB (2 classes)",
        *halves(np.log(np.maximum(data["probs"], 1e-12)), data["labels"].ravel()),
    )


class TextClassifier:
    """Logistic regression on TF-IDF features."""

    def __init__(self, texts: list[str], labels: list[str]) -> None:
        self.features = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=4000)
        self.classes = sorted(set(labels))
        index = [self.classes.index(label) for label in labels]
        self.model = LogisticRegression(C=10.0, max_iter=60)
        self.model.fit(self.features.fit_transform(texts), index)

    def logits(self, texts: list[str]) -> np.ndarray:
        return self.model.decision_function(self.features.transform(texts))

    def split(self, texts: list[str], labels: list[str]) -> Split:
        return self.logits(texts), np.array([self.classes.index(x) for x in labels])


def load_texts(
    folder: Path,
) -> Iterator[tuple[str, Split, Split, np.ndarray | None]]:
    data = json.loads((folder / "text/clinc150.json").read_text("utf-8"))
    clinc = TextClassifier(*zip(*data["train"], strict=True))
    unknown = clinc.logits([text for text, _ in data["oos_test"]])
    parts = [clinc.split(*zip(*data[part], strict=True)) for part in ("val", "test")]
    yield "CLINC150", parts[0], parts[1], unknown
    rows = {}
    for part in ("train", "test"):
        with (folder / f"text/banking77_{part}.csv").open(encoding="utf-8") as file:
            rows[part] = [(r["text"], r["category"]) for r in csv.DictReader(file)]
    banking = TextClassifier(*zip(*rows["train"], strict=True))
    test = banking.split(*zip(*rows["test"], strict=True))
    yield "Banking77", *halves(*test), None
    texts = {}
    for part in ("train", "test"):
        lines = (folder / f"text/goemotions_{part}.tsv").read_text("utf-8").splitlines()
        pairs = [line.split("\t")[:2] for line in lines]
        texts[part] = [pair for pair in pairs if "," not in pair[1]]
    emotions = TextClassifier(*zip(*texts["train"][:12000], strict=True))
    test = [pair for pair in texts["test"] if pair[1] in emotions.classes]
    yield "GoEmotions", *halves(*emotions.split(*zip(*test, strict=True))), None


def row(name: str, held_out: Split, test: Split) -> str:
    logits, labels = test
    choice = csf.compare(*held_out)
    scores = [*NAMES, csf.MaxLogitPNorm(4), choice.csf]
    aurc = [1e3 * F.aurc(labels, logits, s, from_logits=True) for s in scores]
    cells = " | ".join(f"{value:.3g}" for value in aurc)
    low, high = (f"{1e3 * end:.2g}" for end in choice.interval)
    chosen = csf.name_of(choice.csf)
    gain = f"{1e3 * choice.gain:.2g} ({low} to {high})"
    return f"| {name} | {cells} | `{chosen}` | {gain} |"


def unknown_rows(test: Split, unknown: np.ndarray) -> Iterator[str]:
    logits, labels = test
    for score in (*NAMES, csf.MaxLogitPNorm(4)):
        options = {"csf": score, "from_logits": True}
        figures = (
            F.ood_auroc(logits, unknown, **options),
            F.ood_aupr(logits, unknown, **options),
            F.fpr_at_tpr(logits, unknown, **options),
            F.scod_aurc(labels, logits, unknown, **options),
        )
        cells = " | ".join(f"{value:.3f}" for value in figures)
        yield f"| `{csf.name_of(csf.get(score))}` | {cells} |"


def main() -> None:
    default = Path(__file__).parents[2] / "shared" / "data"
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("KERAS_SELCAL_DATA")
    folder = Path(given) if given else default
    heads = " | ".join((*NAMES, "p = 4", "chosen"))
    print(f"AURC × 10³ on the test part.\n\n| data | {heads} | choice | gain |")
    print("|---" * (len(NAMES) + 5) + "|")
    for name, held_out, test in load_logits(folder):
        print(row(name, held_out, test), flush=True)
    strange = ""
    for name, held_out, test, unknown in load_texts(folder):
        print(row(name, held_out, test), flush=True)
        if unknown is not None:
            strange = "\n".join(unknown_rows(test, unknown))
    print("\nCLINC150: 4,500 known and 1,000 out-of-scope queries.\n")
    print(
        "| score | AUROC | AUPR | FPR at 95 % TPR | SCOD AURC |\n|---|---|---|---|---|"
    )
    print(strange)


if __name__ == "__main__":
    main()
