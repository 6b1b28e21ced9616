"""Adult (Kohavi 1996): a table of people, and whether they earn above $50,000."""

import csv
import os
from pathlib import Path

import numpy as np

from recipes.data.base import Split

CLASS_NAMES = ("<=50K", ">50K")
# age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
_NUMBERS = (0, 2, 4, 10, 11, 12)


def load(data_dir: str | os.PathLike[str]) -> tuple[Split, Split]:
    """Returns features and labels, 32,561 to train on and 16,281 to test on.

    Numbers have mean 0 and standard deviation 1 in the training data, after ln(1 + x)
    for gains and losses; the other columns are one-hot, without values that only the
    test data has.

    Args:
        data_dir: folder with the published files `adult.data` and `adult.test`.
    """
    parts = []
    for name in ("adult.data", "adult.test"):
        with open(Path(data_dir) / name, newline="", encoding="utf-8") as file:
            rows = csv.reader(file, skipinitialspace=True)
            parts.append(np.array([row for row in rows if len(row) == 15]))
    numbers = [part[:, _NUMBERS].astype("float32") for part in parts]
    for part in numbers:
        part[:, 3:5] = np.log1p(part[:, 3:5])
    mean, std = numbers[0].mean(0), numbers[0].std(0)
    words = [np.delete(part[:, :14], _NUMBERS, axis=1) for part in parts]
    values = [np.unique(column) for column in words[0].T]
    splits = []
    for part, number, word in zip(parts, numbers, words, strict=True):
        columns = [(number - mean) / np.where(std > 0, std, 1)]
        columns += [
            (word[:, [index]] == value).astype("float32")
            for index, value in enumerate(values)
        ]
        labels = np.char.startswith(part[:, 14], ">").astype("int32")
        splits.append(Split(np.concatenate(columns, axis=1), labels))
    return splits[0], splits[1]
