"""Labelled texts from their published files, as means of frozen word embeddings."""

import csv
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._extras import require
from keras_selcal._validation import check_choice
from recipes.data.base import DataError, Split

NAMES = ("goemotions", "banking77", "clinc150")


class Texts(NamedTuple):
    """Texts and class indices to train and to test on, and texts of no class."""

    train: Split
    test: Split
    class_names: tuple[str, ...]
    unknown: np.ndarray | None = None


def load(name: str, data_dir: str | os.PathLike[str]) -> Texts:
    """Returns the texts of a data set.

    Args:
        name: `"goemotions"` (Demszky et al. 2020; texts with one label only),
            `"banking77"` (Casanueva et al. 2020) or `"clinc150"` (Larson et al. 2019;
            its out-of-scope test queries are `unknown`).
        data_dir: folder with the published files: `goemotions_train.tsv`, `_dev`,
            `_test` and `_classes.txt`, `banking77_train.csv` and `_test.csv`, or
            `clinc150.json` (its `data_full.json`).
    """
    folder = Path(data_dir)
    check_choice("name", name, NAMES)
    if name == "banking77":
        return _named(*(read_csv(folder / f"{name}_{s}.csv") for s in _SPLITS))
    if name == "clinc150":
        with open(folder / f"{name}.json", encoding="utf-8") as file:
            parts = json.load(file)
        texts = _named(parts["train"] + parts["val"], parts["test"])
        return texts._replace(unknown=np.array([text for text, _ in parts["oos_test"]]))
    pairs = {}
    for split in ("train", "dev", "test"):
        with open(folder / f"{name}_{split}.tsv", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t")[:2] for line in file]
        pairs[split] = [(text, int(ids)) for text, ids in rows if "," not in ids]
    lines = (folder / f"{name}_classes.txt").read_text(encoding="utf-8").split("\n")
    classes = tuple(line for line in lines if line)
    train, test = (_split(pairs[s]) for s in _SPLITS)
    dev = _split(pairs["dev"])
    joined = Split(np.append(train.x, dev.x), np.append(train.y, dev.y))
    return Texts(joined, test, classes)


_SPLITS = ("train", "test")


def read_csv(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Returns pairs of text and class from a CSV file with a heading.

    The class is in the column `category` or `label`, else in the last one; the text is
    in the column `text`, else in the first one.
    """
    with open(path, newline="", encoding="utf-8") as file:
        heading, *rows = [row for row in csv.reader(file) if row] or [[]]
    text, label = (
        next((heading.index(name) for name in names if name in heading), last)
        for names, last in ((("text",), 0), (("category", "label"), len(heading) - 1))
    )
    if (
        text == label
        or not rows
        or min(map(len, rows)) <= max(text, label)
        or not all(row[text].strip() and row[label].strip() for row in rows)
    ):
        raise DataError(
            f"{path} needs a heading such as text,label, and a text and a label in "
            "each row."
        )
    return [(row[text], row[label]) for row in rows]


def _named(train: Any, test: Any) -> Texts:
    """Returns the texts of pairs of text and name of a class."""
    classes = sorted({name for _, name in train})
    index = {name: number for number, name in enumerate(classes)}
    first, second = (
        _split([(text, index[name]) for text, name in part]) for part in (train, test)
    )
    return Texts(first, second, tuple(classes))


def _split(pairs: Any) -> Split:
    texts, labels = zip(*pairs, strict=True)
    return Split(np.array(texts), np.array(labels, "int32"))


def embed(texts: Any, cache: str | os.PathLike[str] | None = None) -> np.ndarray:
    """Returns the mean of the frozen embeddings of each text's word pieces, (n, 256).

    The embeddings are those of the package `wordllama`.

    Args:
        texts: sequence of texts.
        cache: a NumPy file to read the embeddings from, or to write them to.
    """
    if cache is not None and Path(cache).exists():
        found: np.ndarray = np.load(cache)
        if len(found) == len(texts):
            return found
    modules = ("wordllama", "safetensors.numpy", "tokenizers")
    wordllama, weights_of, words = (require(m, "text", "Text data") for m in modules)
    # The wheel has both files; its own loader looks for one of them on the internet.
    folder = Path(wordllama.__file__).parent
    file = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    tokenizer = words.Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    weights = weights_of.load_file(folder / "weights" / "l2_supercat_256.safetensors")
    (table,) = (value.astype("float32") for value in weights.values())
    pieces = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    vectors = np.stack([table[one.ids or [0]].mean(0) for one in pieces])
    if cache is not None:
        Path(cache).parent.mkdir(parents=True, exist_ok=True)
        np.save(cache, vectors)
    return vectors
