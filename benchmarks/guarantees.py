"""How often guaranteed risks are exceeded, and the coverage that they reach.

    python -m benchmarks.guarantees [--draws 2000]

Each row draws data many times, selects a threshold with `risk` and `delta`, and
compares its true risk, which is known, with the target. `exceeded` is to be at most δ.
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_selcal.selective.bounds import binomial_tail
from keras_selcal.selective.cuts import Cuts

N, DELTA = 2000, 0.1
Curve = Callable[[np.ndarray], np.ndarray]


class Model(NamedTuple):
    """Scores are uniform on [0, 1], rounded up to `levels` values.

    Attributes:
        title: what is special about it.
        error: probability of an error at a score before rounding.
        risk: the target.
        levels: number of distinct scores, or 0 for all.
    """

    title: str
    error: Curve
    risk: float
    levels: int = 0


def _falling(s: np.ndarray) -> np.ndarray:
    return 0.5 * (1 - s) ** 1.5


MODELS = [
    Model("½(1 − s)^1.5", _falling, 0.05),
    Model("½(1 − s)^1.5", _falling, 0.08),
    Model("½(1 − s)^1.5", _falling, 0.02),
    Model("1 − s", lambda s: 1 - s, 0.2),
    Model("0.6(1 − s)^8", lambda s: 0.6 * (1 - s) ** 8, 0.02),
    Model("0.01 + 0.6(1 − s)^8", lambda s: 0.01 + 0.6 * (1 - s) ** 8, 0.03),
    Model("0.03 + 0.3(1 − s)²", lambda s: 0.03 + 0.3 * (1 - s) ** 2, 0.05),
    Model(
        "not monotone: + 0.3 for s > 0.97",
        lambda s: 0.03 + 0.3 * (s > 0.97) + 0.2 * (1 - s) ** 1.5,
        0.08,
    ),
    Model(
        "not monotone: waves",
        lambda s: 0.06 + 0.05 * np.sin(40 * s) + 0.1 * (1 - s),
        0.08,
    ),
    Model("0.0501: just above the target", lambda s: 0.0501 + 0 * s, 0.05),
    Model("½(1 − s)^1.5, 20 values", _falling, 0.05, 20),
    Model("waves, 7 values", lambda s: 0.1 + 0.08 * np.sin(40 * s), 0.1, 7),
]


def true_risks(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Returns coverages in rising order, and the risk at each."""
    steps = 20_000
    coverage = np.arange(1, steps + 1) / steps
    risk = np.cumsum(model.error(1 - coverage + 0.5 / steps)) / np.arange(1, steps + 1)
    if not model.levels:
        return coverage, risk
    at = np.arange(1, model.levels + 1) / model.levels
    return at, np.interp(at, coverage, risk)


def sgr(cuts: Cuts, risk: float, delta: float) -> int:
    """Returns the cut of Geifman & El-Yaniv: a binary search with a union bound."""
    steps = math.ceil(math.log2(cuts.total))
    low, high, best = 0, len(cuts.thresholds) - 1, -1
    for _ in range(steps):
        middle = math.ceil((low + high) / 2)
        e, m = int(cuts.errors[middle]), int(cuts.accepted[middle])
        if binomial_tail(e, m, risk) <= delta / steps:
            best, low = middle, middle
        else:
            high = middle
    return best


def independent(draws: int) -> None:
    """Prints the table of independent samples."""
    print(f"\nIndependent samples, n = {N}, δ = {DELTA}, {draws} draws\n")
    print("| error at score s | r | optimum | coverage | SGR | none found | exceeded |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for model in MODELS:
        coverages, risks = true_risks(model)
        rng = np.random.default_rng(0)
        optimum = coverages[risks <= model.risk].max(initial=0.0)
        found, other, exceeded = [], [], 0
        for _ in range(draws):
            s = rng.random(N)
            right = rng.random(N) >= model.error(s)
            if model.levels:
                s = np.ceil(s * model.levels) / model.levels
            cuts = Cuts.of(s, right)
            width = 1 / model.levels if model.levels else 0.0
            for cut, results in (
                (cuts.search(model.risk, DELTA), found),
                (sgr(cuts, model.risk, DELTA), other),
            ):
                t = cuts.thresholds[cut] if cut >= 0 else math.inf
                results.append(max(0.0, 1 - t + width))
            c = found[-1]
            exceeded += c > 0 and np.interp(c, coverages, risks) > model.risk + 1e-9
        none = np.mean(np.array(found) == 0)
        print(
            f"| {model.title} | {model.risk:g} | {optimum:.3f} | {np.mean(found):.3f} "
            f"| {np.mean(other):.3f} | {none:.3f} | {exceeded / draws:.3f} |",
            flush=True,
        )


def grouped(draws: int) -> None:
    """Prints the table of tokens in sequences that are easy or hard as a whole."""
    print(f"\nTokens of sequences, r = 0.08, δ = {DELTA}, {draws} draws\n")
    print(
        "| sequences | tokens each | spread | optimum | coverage | none found "
        "| exceeded | coverage, tokens as units | exceeded |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for count, length, spread in ((1000, 10, 0.5), (1000, 20, 1.0)):

        def draw(
            rng: np.random.Generator,
            count: int,
            length: int = length,
            spread: float = spread,
        ) -> list[np.ndarray]:
            s = rng.random((count, length))
            real = np.arange(length) < rng.integers(1, length + 1, (count, 1))
            factor = np.exp(spread * rng.normal(size=(count, 1)) - spread**2 / 2)
            right = rng.random(s.shape) >= factor * _falling(s)
            index = np.broadcast_to(np.arange(count)[:, None], s.shape)
            return [part[real] for part in (s, right, index)]

        s, right, _ = draw(np.random.default_rng(1), 200_000)
        order = np.argsort(-s)
        coverages = np.arange(1, len(s) + 1) / len(s)
        risks = np.cumsum(~right[order]) * 1.0 / np.arange(1, len(s) + 1)
        optimum = coverages[risks <= 0.08].max()
        rng = np.random.default_rng(0)
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(draws):
            s, right, index = draw(rng, count)
            for by_group, results in found.items():
                cuts = Cuts.of(s, right, groups=index if by_group else None)
                cut = cuts.search(0.08, DELTA)
                results.append(1 - cuts.thresholds[cut] if cut >= 0 else 0.0)
        cells = []
        for results in found.values():
            c = np.array(results)
            bad = (c > 0) & (np.interp(c, coverages, risks) > 0.08)
            cells.append((c.mean(), np.mean(c == 0), bad.mean()))
        (a, none, b), (c, _, d) = cells
        print(
            f"| {count} | 1 to {length} | {spread:g} | {optimum:.3f} | {a:.3f} | "
            f"{none:.3f} | {b:.3f} | {c:.3f} | {d:.3f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    independent(draws)
    grouped(draws)


if __name__ == "__main__":
    main()
