"""The numbers that the paper prints.

`tables.csv` has a line for every number in the paper's three tables of results, as
printed: accuracies and calibration errors × 10², as means over three seeds.

| column  | meaning                                                                |
|---------|------------------------------------------------------------------------|
| table   | the paper's label: combined_acc_ece, cwece_ts_split or ece_a_ts_split  |
| dataset | cifar10, cifar100 or tiny-imagenet                                     |
| model   | a name of `recipes.models`                                             |
| posthoc | none, ts, metamis or metaacc                                           |
| metric  | accuracy, ece, adaptive_ece, cwece or temperature                      |
| loss    | a name of `recipes.losses`                                             |
| value   | the number, with the digits that the paper prints                      |
| bold    | 1 if the paper prints it in bold                                       |

`reliability.csv` has the bars of fig:rc_ece, for PreResNet56 on CIFAR-10 in 10 bins:
the accuracy and mean confidence of each bin, and the ECE that the diagram prints. In
bins without samples, accuracy and confidence are the middle of the bin.
"""

import csv
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent


class Key(NamedTuple):
    """Identifies a number by its place in the tables."""

    table: str
    dataset: str
    model: str
    posthoc: str
    metric: str
    loss: str


class Figure(NamedTuple):
    """A number, and whether the paper prints it in bold."""

    value: float
    bold: bool


class Bar(NamedTuple):
    """A bin of a reliability diagram."""

    lower: float
    upper: float
    accuracy: float
    confidence: float


class Diagram(NamedTuple):
    """The reliability diagram of a loss."""

    ece: float
    bars: tuple[Bar, ...]


@functools.cache
def figures() -> dict[Key, Figure]:
    """Returns every number of the paper's tables.

    Example:
    >>> figures()["combined_acc_ece", "cifar10", "resnet50", "none", "ece", "xe"]
    Figure(value=3.0, bold=False)
    """
    return {
        Key(*(row[name] for name in Key._fields)): Figure(
            float(row["value"]), row["bold"] == "1"
        )
        for row in _rows("tables.csv")
    }


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Returns the data sets and models of the tables, in the paper's order."""
    return tuple(dict.fromkeys((key.dataset, key.model) for key in figures()))


@functools.cache
def diagrams() -> dict[str, Diagram]:
    """Returns the reliability diagrams of fig:rc_ece, by the name of the loss.

    Example:
    >>> diagrams()["au"].ece
    0.92
    """
    drawn: dict[str, Diagram] = {}
    for row in _rows("reliability.csv"):
        before = drawn.get(row["loss"], Diagram(float(row["ece"]), ()))
        bar = Bar(*(float(row[name]) for name in Bar._fields))
        drawn[row["loss"]] = before._replace(bars=(*before.bars, bar))
    return drawn


def _rows(name: str) -> Iterator[dict[str, str]]:
    with open(_FOLDER / name, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
