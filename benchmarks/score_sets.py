"""Logits of real classifiers, for `benchmarks.scores`.

Those in files come from FOLDER (see `tests/real_data.py`); the others are computed
here: CIFAR-10 networks from published weights, and classifiers of texts and of
Fashion-MNIST, which scikit-learn fits in a few minutes. A set whose data are not at
hand is left out.
"""

import csv
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from recipes import models
from recipes.data.images import read_images, resize

Split = tuple[np.ndarray, np.ndarray]
Texts = list[tuple[str, str]]


class Set(NamedTuple):
    """Logits and labels of a classifier.

    Attributes:
        name: in tables.
        held_out: what chooses a score.
        test: what judges it.
        unknown: logits of inputs of none of the classes, or None.
        tuned_on: whether the rule of `csf.compare` was set by looking at it.
    """

    name: str
    held_out: Split
    test: Split
    unknown: np.ndarray | None = None
    tuned_on: bool = False


def _halves(logits: np.ndarray, labels: np.ndarray) -> tuple[Split, Split]:
    return (logits[::2], labels[::2]), (logits[1::2], labels[1::2])


def _files(folder: Path) -> Iterator[Set]:
    for name, file in (
        ("CIFAR-10 ResNet-110", "markus93_resnet110_c10_logits.npz"),
        ("CIFAR-100 ResNet-50", "mukhoti_cifar100_resnet50_logits.npz"),
    ):
        data = np.load(folder / "logits" / file)
        pairs = [
            (data[f"{part}_logits"], data[f"{part}_labels"].ravel())
            for part in ("val", "test")
        ]
        yield Set(name, pairs[0], pairs[1], tuned_on=True)
    data = np.load(folder / "logits/metacal_mnist_test-logits.npz")
    halves = _halves(data["logits"], data["targets"].ravel())
    yield Set("MNIST", *halves, tuned_on=True)
    data = np.load(folder / "logits/imdb_probs.npz")
    logits = np.log(np.maximum(data["probs"], 1e-12))
    yield Set("IMDB (2 classes)", *_halves(logits, data["labels"].ravel()))


def _networks(folder: Path) -> Iterator[Set]:
    """CIFAR-10 ResNets, with Tiny-ImageNet's validation images as unknown inputs."""
    images = Path(os.environ.get("KERAS_SELCAL_IMAGES", folder))
    data = np.load(images / "cifar10.npz")
    tiny = images / "tiny-imagenet/tiny-imagenet-200/val/images"
    strange = resize(read_images(sorted(tiny.glob("*.JPEG")), 64), (32, 32))
    mean, std = (
        np.array(x, "float32")
        for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of ImageNet
    )
    suffix = "th" if keras.backend.backend() == "torch" else "safetensors"
    for name in ("resnet20", "resnet56"):
        model = models.build(name, 10)
        models.load_pretrained(model, folder / f"weights/{name}.{suffix}")
        known, unknown = (
            model.predict((x / np.float32(255) - mean) / std, batch_size=250, verbose=0)
            for x in (data["x_test"], strange)
        )
        halves = _halves(known, data["y_test"].ravel())
        yield Set(f"CIFAR-10 {name.replace('resnet', 'ResNet-')}", *halves, unknown)


class _Linear:
    """Logistic regression on TF-IDF features."""

    name = "TF-IDF"

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        self.features = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=4000)
        self.model = LogisticRegression(C=10.0, max_iter=60)
        self.model.fit(self.features.fit_transform(texts), labels)

    def logits(self, texts: list[str]) -> np.ndarray:
        return self.model.decision_function(self.features.transform(texts))


class _Network:
    """A network with one hidden layer on the mean of WordLlama's embeddings."""

    name = "embeddings"

    def __init__(self, texts: list[str], labels: list[int]) -> None:
        import wordllama

        # The wheel holds weights and tokenizer; its default looks for them elsewhere.
        package = Path(wordllama.__file__).parent
        self.words = wordllama.WordLlama.load(cache_dir=package, disable_download=True)
        self.model = _perceptron().fit(self._features(texts), labels)

    def _features(self, texts: list[str]) -> np.ndarray:
        return self.words.embed(list(texts), norm=True)

    def logits(self, texts: list[str]) -> np.ndarray:
        return _perceptron_logits(self.model, self._features(texts))


def _perceptron() -> MLPClassifier:
    return MLPClassifier((256,), max_iter=30, random_state=0, n_iter_no_change=30)


def _perceptron_logits(model: MLPClassifier, x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(x @ model.coefs_[0] + model.intercepts_[0], 0)
    return hidden @ model.coefs_[1] + model.intercepts_[1]


def _corpora(folder: Path) -> Iterator[tuple[str, Texts, list[Texts], list[str]]]:
    """Name, training texts, test texts (held-out ones too, if any), unknown texts."""
    data = json.loads((folder / "text/clinc150.json").read_text("utf-8"))
    strange = [text for text, _ in data["oos_test"]]
    yield "CLINC150", data["train"], [data["val"], data["test"]], strange
    rows = {}
    for part in ("train", "test"):
        with (folder / f"text/banking77_{part}.csv").open(encoding="utf-8") as file:
            rows[part] = [(r["text"], r["category"]) for r in csv.DictReader(file)]
    yield "Banking77", rows["train"], [rows["test"]], []
    for part in ("train", "test"):
        lines = (folder / f"text/goemotions_{part}.tsv").read_text("utf-8").splitlines()
        pairs = [line.split("\t")[:2] for line in lines]
        rows[part] = [(text, label) for text, label in pairs if "," not in label]
    yield "GoEmotions", rows["train"][:12000], [rows["test"]], []


def _texts(folder: Path) -> Iterator[Set]:
    for kind in (_Linear, _Network):
        for name, train, parts, strange in _corpora(folder):
            texts, labels = zip(*train, strict=True)
            classes = {label: i for i, label in enumerate(sorted(set(labels)))}
            model = kind(list(texts), [classes[label] for label in labels])
            found = []
            for part in parts:
                known = [(text, classes[y]) for text, y in part if y in classes]
                inputs, indices = zip(*known, strict=True)
                found.append((model.logits(list(inputs)), np.array(indices)))
            held_out, test = found if len(found) == 2 else _halves(*found[0])
            unknown = model.logits(strange) if strange else None
            yield Set(f"{name}, {kind.name}", held_out, test, unknown)


def _fashion(folder: Path) -> Iterator[Set]:
    """A network with one hidden layer, of 20,000 images (Debian has the data)."""
    place = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))

    def read(name: str, head: int) -> np.ndarray:
        with gzip.open(place / name) as file:
            return np.frombuffer(file.read(), "uint8", offset=head)

    x, test = (
        read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / 255
        for part in ("train", "t10k")
    )
    y, labels = (read(f"{part}-labels-idx1-ubyte.gz", 8) for part in ("train", "t10k"))
    model = _perceptron().fit(x[:20000], y[:20000])
    logits = _perceptron_logits(model, test)
    yield Set("Fashion-MNIST", *_halves(logits, labels.astype("int64")))


_SOURCES: tuple[Callable[[Path], Iterator[Set]], ...] = (
    _files,
    _texts,
    _networks,
    _fashion,
)


def load(folder: Path) -> Iterator[Set]:
    """Yields all sets whose data are at hand."""
    for source in _SOURCES:
        try:
            yield from source(folder)
        except (ImportError, FileNotFoundError) as error:
            print(f"left out: {error}", file=sys.stderr)
