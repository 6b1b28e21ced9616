"""Trains the runs of STUDY.md and writes its tables: `python -m recipes study`."""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

from keras_selcal._validation import check_choice
from recipes.contest import LOSSES, METRICS, Contest, Setting, Splits, measures
from recipes.data import adult, cifar, digits, text
from recipes.data.base import DataError, Split

PAGE = Path(__file__).with_name("STUDY.md")
RESULTS = Path(__file__).with_name("study.csv")
PROTOCOLS = ("last", "best", "search")
SEEDS = 5
CONFIGURATIONS = 6


def mlp(shape: tuple[int, ...], classes: int, dropout: float) -> keras.Model:
    """Returns two hidden layers of 128 units with batch normalisation."""
    x = inputs = keras.Input(shape)
    for _ in range(2):
        x = layers.Dense(128, use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
        x = layers.Dropout(dropout)(x) if dropout else x
    return keras.Model(inputs, layers.Dense(classes)(x))


def cnn(shape: tuple[int, ...], classes: int, dropout: float) -> keras.Model:
    """Returns two strided convolutions, 0.24 million multiplications."""
    inputs = keras.Input(shape)
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    for filters, size, strides in ((24, 4, 4), (48, 3, 2)):
        x = layers.Conv2D(
            filters, size, strides=strides, padding="same", use_bias=False
        )(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.Flatten()(x)
    x = layers.Dropout(dropout)(x) if dropout else x
    return keras.Model(inputs, layers.Dense(classes)(x))


@dataclass(frozen=True)
class Bed:
    """A test bed.

    Args:
        title: what its tables call it.
        load: returns all samples to draw from, from the folders of the data.
        train: number of training samples that a seed draws.
        val: number of validation samples that a seed draws.
        epochs: length of a long training.
        network: the architecture.
        classes: number of classes.
    """

    title: str
    load: Callable[["Folders"], Splits]
    train: int
    val: int
    epochs: int
    classes: int
    network: Callable[..., keras.Model] = mlp

    def samples(self, pool: Splits, seed: int) -> Splits:
        """Returns the samples of a seed: training and validation data are drawn."""
        rest, val = pool.train.hold_out(seed, self.val)
        order = np.random.default_rng(seed).permutation(len(rest))[: self.train]
        return Splits(rest[order], val, pool.test, pool.unknown, pool.people)


class Folders(NamedTuple):
    """Where the data lies, and where embeddings are kept; None for what is not there.

    Args:
        data: folder with `text/` and `labels/`.
        cifar10: path of CIFAR-10, as `cifar.load` takes it.
        adult: folder of Adult.
        cache: folder for the embeddings of texts.
    """

    data: str | None
    cifar10: str | None
    adult: str | None
    cache: str

    def path(self, name: str, *parts: str) -> Path:
        """Returns a path in a folder, or raises an error if it was not given."""
        folder = getattr(self, name)
        if folder is None:
            raise DataError(f"its data needs the option --{_OPTIONS.get(name, name)}")
        return Path(folder, *parts)


_OPTIONS = {"data": "data-dir"}


def _texts(name: str, folders: Folders) -> Splits:
    texts = text.load(name, folders.path("data", "text"))
    x = {
        part: text.embed(found, folders.path("cache", f"{name}-{part}.npy"))
        for part, found in (
            ("train", texts.train.x),
            ("test", texts.test.x),
            ("unknown", texts.unknown),
        )
        if found is not None
    }
    train, test = Split(x["train"], texts.train.y), Split(x["test"], texts.test.y)
    return Splits(train, train[:0], test, x.get("unknown"))


def _cifar10(labels: str | None, folders: Folders) -> Splits:
    """CIFAR-10, or CIFAR-10N by the name of its labels; 5,000 images to test on."""
    train, test = cifar.splits("cifar10", folders.path("cifar10"))
    if labels:
        with np.load(folders.path("data", "labels", "cifar10n.npz")) as noisy:
            train = Split(train.x, noisy[labels].astype("int32"))
    with np.load(folders.path("data", "labels", "cifar10h.npz")) as answers:
        people = answers["counts"][:5000]
    return Splits(train, train[:0], test[:5000], people=people)


def _adult(folders: Folders) -> Splits:
    train, test = adult.load(folders.path("adult"))
    return Splits(train, train[:0], test)


def _digits(_: Folders) -> Splits:
    data = digits.load()

    def flat(*parts: Split) -> Split:
        x = np.concatenate([part.x for part in parts]).reshape(-1, 64) / 16
        return Split(x.astype("float32"), np.concatenate([part.y for part in parts]))

    return Splits(flat(data.train, data.val), data.val[:0], flat(data.test))


BEDS = {
    "goemotions": Bed("GoEmotions", partial(_texts, "goemotions"), 8064, 2000, 15, 28),
    "banking77": Bed("Banking77", partial(_texts, "banking77"), 7936, 2000, 15, 77),
    "clinc150": Bed("CLINC150", partial(_texts, "clinc150"), 7552, 2000, 15, 150),
    "cifar10": Bed("CIFAR-10", partial(_cifar10, None), 4096, 2000, 10, 10, cnn),
    "cifar10n_worst": Bed(
        "CIFAR-10N worst", partial(_cifar10, "worse_label"), 4096, 2000, 10, 10, cnn
    ),
    "cifar10n_random": Bed(
        "CIFAR-10N random", partial(_cifar10, "random_label1"), 4096, 2000, 10, 10, cnn
    ),
    "digits": Bed("digits, noisy", _digits, 640, 160, 40, 10),
    "adult": Bed("Adult", _adult, 8064, 2000, 10, 2),
}


# --- Results ------------------------------------------------------------------------

Row = dict[str, Any]
_KEYS = ("bed", "loss", "protocol", "trial", "seed", "setting")
_METRICS = tuple(f"{name}{end}" for end in ("", "_ts") for name in METRICS)
# Of beds with unknown inputs, or with the answers of people.
EXTRAS = ("unknown_auroc", "unknown_auroc_ts", "people_nll", "people_nll_ts")
FIELDS = (
    *_KEYS,
    *("epoch", "fitted", "temperature"),
    *(f"{split}_{name}" for split in ("val", "test") for name in _METRICS),
    *(
        f"{name}{end}"
        for name in ("unknown_auroc", "people_nll")
        for end in ("", "_ts")
    ),
    "seconds",
)


def read_results(path: str | os.PathLike[str] = RESULTS) -> list[Row]:
    """Returns the rows of a CSV file of results; there may be none yet."""
    if not Path(path).exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for row in rows:
        for name in FIELDS[len(_KEYS) :]:
            row[name] = float(row[name]) if row[name] else math.nan
        row["trial"], row["seed"] = int(row["trial"]), int(row["seed"])
    return rows


def _append(path: Path, rows: Sequence[Row]) -> None:
    new = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow(
                {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
            )


def _text(setting: Setting) -> str:
    return json.dumps(asdict(setting), sort_keys=True)


def _checked(
    name: str, values: Sequence[str], allowed: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(check_choice(name, value, allowed) for value in values) or allowed


# --- Runs ---------------------------------------------------------------------------


class Study:
    """Trains what a file of results does not have yet.

    Args:
        folders: where the data lies.
        results: the CSV file; each training appends its rows.
        beds: beds by name.
    """

    def __init__(
        self, folders: Folders, results: Path = RESULTS, beds: Any = BEDS
    ) -> None:
        self.folders, self.path, self.beds = folders, results, beds
        self.rows = {self._key(row): row for row in read_results(results)}
        self.contests: dict[str, Contest] = {}
        self.pools: dict[str, Splits] = {}
        # Beds that cannot be loaded, and why.
        self.missing: dict[str, str] = {}

    @staticmethod
    def _key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in _KEYS)

    def run(
        self,
        *,
        seeds: int = SEEDS,
        beds: Sequence[str] = (),
        protocols: Sequence[str] = (),
        losses: Sequence[str] = (),
    ) -> Iterator[Row]:
        """Trains what is missing and yields its rows: the beds in turn, then seeds.

        Args:
            seeds: number of seeds.
            beds: names in `BEDS`. Defaults to all.
            protocols: names in `PROTOCOLS`. `"last"` and `"best"` come from the same
                training. Defaults to all.
            losses: names in `LOSSES`. Defaults to all.
        """
        cells = [
            (bed, loss)
            for bed in _checked("bed", beds, tuple(self.beds))
            for loss in _checked("loss", losses, tuple(LOSSES))
        ]
        wanted = _checked("protocol", protocols, PROTOCOLS)
        if set(wanted) != {"search"}:
            for seed in range(seeds):
                for bed, loss in cells:
                    yield from self._train(bed, loss, 0, seed)
        if "search" not in wanted:
            return
        for trial in range(CONFIGURATIONS):
            for bed, loss in cells:
                yield from self._train(bed, loss, trial, 0)
        for bed, loss in cells:
            for seed in range(1, seeds):
                if bed not in self.missing:
                    yield from self._train(bed, loss, self.winner(bed, loss), seed)

    def settings(self, bed: str, loss: str) -> list[Setting]:
        """Returns the settings that the search tries; the first is the default."""
        default = Setting.default(loss, self.beds[bed].epochs)
        return default.searched(CONFIGURATIONS)

    def winner(self, bed: str, loss: str) -> int:
        """Returns the trial with the lowest validation NLL."""
        settings = self.settings(bed, loss)
        nll = [
            self.rows[bed, loss, "best", trial, 0, _text(setting)]["val_nll"]
            for trial, setting in enumerate(settings)
        ]
        return int(np.argmin(nll))

    def _train(self, bed: str, loss: str, trial: int, seed: int) -> Iterator[Row]:
        setting = self.settings(bed, loss)[trial]
        if (bed, loss, "best", trial, seed, _text(setting)) in self.rows:
            return
        if bed in self.missing:
            return
        one = self.beds[bed]
        if bed not in self.pools:
            try:
                pool = self.pools[bed] = one.load(self.folders)
            except (DataError, OSError, ImportError) as error:
                self.missing[bed] = str(error)
                return
            build = partial(one.network, pool.train.x.shape[1:], one.classes)
            self.contests[bed] = Contest(build)
        samples = one.samples(self.pools[bed], seed)
        outcomes, seconds = self.contests[bed].train(setting, samples, seed)
        made = []
        for protocol, outcome in outcomes.items():
            row = dict(zip(_KEYS, (bed, loss, protocol, trial, seed), strict=False))
            row |= {"setting": _text(setting), **measures(outcome, samples)}
            made.append({**row, "seconds": seconds})
        _append(self.path, made)
        for row in made:
            self.rows[self._key(row)] = row
        yield made[-1]
