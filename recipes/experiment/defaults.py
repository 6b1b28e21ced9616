"""Chooses the defaults of `AULoss` on validation data.

`python -m recipes.experiment.defaults` trains what `defaults.csv` lacks. EXPERIMENT.md
states the rule. Every bed is small, and is trained as a user would begin: by
`compile(optimizer, AULoss())` and `fit`.
"""

import argparse
import csv
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

import keras_selcal as ks
from keras_selcal import functional
from recipes.data import cifar, fashion, text
from recipes.data.base import DataError, Split
from recipes.evaluation import paired

RESULTS = Path(__file__).with_name("defaults.csv")
FIELDS = (
    *("bed", "optimizer", "loss", "smoothing", "quantile", "weight_gradient", "seed"),
    *("accuracy", "ece", "cwece", "nll"),
)
SEEDS = 3
MOST_ACCURACY_LOST = 1.0


class Candidate(NamedTuple):
    """Arguments of `AULoss`: ν, κ and w."""

    smoothing: float
    quantile: float
    weight_gradient: float

    def build(self) -> keras.losses.Loss:
        """Returns the loss on logits."""
        return ks.AULoss(
            csf="msp",
            quantile=self.quantile,
            smoothing=self.smoothing,
            weight_gradient=self.weight_gradient,
            from_logits=True,
        )


FORMER = Candidate(0.1, 0.75, 0.0)  # the default before this search
CANDIDATES = (
    *(
        Candidate(*one, 0.0)
        for one in itertools.product((0.1, 0.3, 0.76, 2.0), (0.75, 1.0))
    ),
    *(Candidate(nu, 0.75, 0.3) for nu in (0.3, 0.76)),
    *(Candidate(0.76, kappa, 1.0) for kappa in (0.75, 1.0)),
    Candidate(2.0, 0.75, 1.0),
)


class Bed(NamedTuple):
    """A small data set, the number of its validation samples, and its network."""

    load: Callable[[Path], Split]
    train: int
    val: int
    epochs: int
    network: Callable[[tuple[int, ...], int], keras.Model]


def _mlp(shape: tuple[int, ...], classes: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Flatten(),
            layers.Dense(128, "relu"),
            layers.Dense(128, "relu"),
            layers.Dense(classes),
        ]
    )


def _cnn(shape: tuple[int, ...], classes: int) -> keras.Model:
    x = inputs = keras.Input(shape)
    for filters, size, strides in ((24, 4, 4), (48, 3, 2)):
        x = layers.Conv2D(filters, size, strides=strides, padding="same")(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(x)))


def _digits(_: Path) -> Split:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Split((x / 16).astype("float32"), y.astype("int32"))


def _fashion(folder: Path) -> Split:
    found = fashion.load(folder / "fashion").train
    return Split(found.x.astype("float32") / 255, found.y)


def _cifar10(folder: Path) -> Split:
    train, _ = cifar.splits("cifar10", folder)
    return Split(train.x.astype("float32") / 127.5 - 1, train.y)


def _banking77(folder: Path) -> Split:
    texts, names = zip(*text.read_csv(folder / "banking77_train.csv"), strict=True)
    y = np.unique(names, return_inverse=True)[1]
    return Split(text.embed(texts).astype("float32"), y.astype("int32"))


BEDS = {
    "digits": Bed(_digits, 1000, 797, 15, _mlp),
    "fashion": Bed(_fashion, 10_000, 5_000, 10, _mlp),
    "cifar10": Bed(_cifar10, 5_000, 5_000, 15, _cnn),
    "banking77": Bed(_banking77, 8_000, 2_000, 15, _mlp),
}


def _adam(steps: int) -> Any:
    return keras.optimizers.Adam(1e-3)


def _sgd(steps: int) -> Any:
    rate: Any = keras.optimizers.schedules.CosineDecay(0.05, steps)
    return keras.optimizers.SGD(rate, momentum=0.9)


OPTIMIZERS = {"adam": _adam, "sgd": _sgd}


def train(
    bed: str, optimizer: str, candidate: Candidate | None, pool: Split, seed: int
) -> dict[str, float]:
    """Trains a network, and returns its validation metrics at the last epoch.

    Args:
        bed: name in `BEDS`.
        optimizer: name in `OPTIMIZERS`.
        candidate: arguments of AU, or None for cross-entropy.
        pool: the samples, from which the seed draws.
        seed: decides samples, initial weights and the order of the batches.
    """
    plan = BEDS[bed]
    rest, val = pool.hold_out(seed, plan.val)
    order = np.random.default_rng(seed).permutation(len(rest))[: plan.train]
    used = rest[order]
    keras.utils.set_random_seed(seed)
    model = plan.network(used.x.shape[1:], int(pool.y.max()) + 1)
    steps = plan.epochs * math.ceil(len(used) / 128)
    loss = candidate and candidate.build()
    model.compile(
        OPTIMIZERS[optimizer](steps),
        loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    # `fit` shuffles by the global seed, which is the same for every loss.
    model.fit(used.x, used.y, batch_size=128, epochs=plan.epochs, verbose=0)
    logits = model.predict(val.x, batch_size=1000, verbose=0)
    metrics = (functional.ece, functional.cwece, functional.nll)
    ece, cwece, nll = (float(f(val.y, logits, from_logits=True)) for f in metrics)
    accuracy = 100 * float(np.mean(logits.argmax(1) == val.y))
    return {"accuracy": accuracy, "ece": 100 * ece, "cwece": 100 * cwece, "nll": nll}


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Returns the rows of defaults.csv."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts = ("bed", "optimizer", "loss")
    return [{k: v if k in texts else float(v) for k, v in r.items()} for r in rows]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in FIELDS[:7])


def missing(rows: Sequence[dict[str, Any]], beds: Sequence[str]) -> Iterator[Any]:
    """Yields what is not trained yet, seed by seed."""
    done = {_key(row) for row in rows}
    losses = [None, *CANDIDATES]
    for seed, bed, optimizer, one in itertools.product(
        range(SEEDS), beds, OPTIMIZERS, losses
    ):
        name, arguments = ("au", one) if one else ("xe", (0.0, 0.0, 0.0))
        key = (bed, optimizer, name, *arguments, seed)
        if key not in done:
            yield key, one


# --- The rule -----------------------------------------------------------------------


class Judged(NamedTuple):
    """A candidate by the rule.

    Attributes:
        lost: the most accuracy that it loses to cross-entropy in any cell, in points.
        cell: the bed and optimizer of that loss.
        ratio: geometric mean over the cells of its ECE divided by cross-entropy's.
        least: lower end of the 95 % interval of that mean, over the cells.
        most: upper end of it.
    """

    lost: float
    cell: str
    ratio: float
    least: float
    most: float

    @property
    def admissible(self) -> bool:
        """Whether accuracy is within one point of cross-entropy's everywhere."""
        return self.lost <= MOST_ACCURACY_LOST


def judge(rows: Sequence[dict[str, Any]]) -> dict[Candidate, Judged]:
    """Returns the candidates that have a run in every cell that cross-entropy has."""
    means: dict[tuple[Any, ...], dict[str, float]] = {}
    for key, group in itertools.groupby(
        sorted(rows, key=_key), key=lambda row: _key(row)[:6]
    ):
        found = list(group)
        means[key] = {m: float(np.mean([r[m] for r in found])) for m in FIELDS[7:]}
    cells = [key[:2] for key in means if key[2] == "xe"]
    judged = {}
    for one in CANDIDATES:
        if not cells or any((*cell, "au", *one) not in means for cell in cells):
            continue
        lost, ratios = {}, []
        for cell in cells:
            ours = means[(*cell, "au", *one)]
            plain = means[(*cell, "xe", 0.0, 0.0, 0.0)]
            lost[" ".join(cell)] = plain["accuracy"] - ours["accuracy"]
            ratios.append(math.log(ours["ece"] / plain["ece"]))
        worst = max(lost, key=lambda cell: lost[cell])
        mean, half = paired(ratios)
        ends = (math.exp(mean), math.exp(mean - half), math.exp(mean + half))
        judged[one] = Judged(lost[worst], worst, *ends)
    return judged


def choice(
    rows: Sequence[dict[str, Any]], *, constant_weights: bool = True
) -> Candidate:
    """Returns the candidate that the rule chooses, or else the former default.

    Args:
        rows: the rows of defaults.csv.
        constant_weights: whether w must be 0, which was added to the rule when the
            figures were known.
    """
    if {row["bed"] for row in rows} != {*BEDS}:
        return FORMER
    judged = judge(rows)
    allowed = {
        one: found
        for one, found in judged.items()
        if found.admissible and not (constant_weights and one.weight_gradient)
    }
    if not allowed or FORMER not in judged:
        return FORMER
    best = min(allowed, key=lambda one: allowed[one].ratio)
    if FORMER in allowed and not allowed[best].most < judged[FORMER].ratio:
        return FORMER
    return best


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the candidates in Markdown."""
    lines = [
        "| ν | κ | w | most accuracy lost | where | ECE ÷ that of cross-entropy | "
        "admissible |",
        "|---|---|---|---|---|---|---|",
    ]
    for one, found in judge(rows).items():
        arguments = " | ".join(f"{value:g}" for value in one)
        ratio = f"{found.ratio:.2f} ({found.least:.2f} to {found.most:.2f})"
        lines.append(
            f"| {arguments} | {found.lost:.1f} | {found.cell} | {ratio} | "
            f"{'yes' if found.admissible else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Trains what is missing, and prints the candidates and the choice."""
    parser = argparse.ArgumentParser(prog="python -m recipes.experiment.defaults")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--beds", nargs="+", choices=BEDS, default=list(BEDS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    pools: dict[str, Split] = {}
    failed: dict[str, str] = {}
    for key, one in missing(read(options.results), options.beds):
        bed, optimizer, seed = key[0], key[1], key[-1]
        if bed in failed:
            continue
        try:
            if bed not in pools:
                pools[bed] = BEDS[bed].load(options.data_dir)
        except (DataError, OSError) as error:
            failed[bed] = str(error)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the drag of w = 1
            found = train(bed, optimizer, one, pools[bed], seed)
        texts = (f"{value:.6g}" for value in found.values())
        new = not options.results.exists()
        with options.results.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([FIELDS] if new else [])
            writer.writerow([*key, *texts])
    for bed, why in failed.items():
        print(f"left out: {bed}: {why}")
    rows = read(options.results)
    print(table(rows))
    print("chosen, any w:", choice(rows, constant_weights=False)._asdict())
    print("chosen, w = 0: ", choice(rows)._asdict())


if __name__ == "__main__":
    main()
