"""Labelled texts, as means of frozen word embeddings."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._extras import require
from recipes.data.base import DataError


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


def embed(texts: Any) -> np.ndarray:
    """Returns the mean of the frozen embeddings of each text's word pieces, (n, 256).

    The embeddings are those of the package `wordllama`.

    Args:
        texts: sequence of texts.
    """
    modules = ("wordllama", "safetensors.numpy", "tokenizers")
    wordllama, weights_of, words = (require(m, "Text data") for m in modules)
    # The wheel has both files; its own loader looks for one of them on the internet.
    folder = Path(wordllama.__file__).parent
    file = folder / "tokenizers" / "l2_supercat_tokenizer_config.json"
    tokenizer = words.Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    weights = weights_of.load_file(folder / "weights" / "l2_supercat_256.safetensors")
    (table,) = (value.astype("float32") for value in weights.values())
    pieces = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return np.stack([table[one.ids or [0]].mean(0) for one in pieces])
