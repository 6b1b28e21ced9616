"""How often guaranteed risks are exceeded, and the coverage that they reach.

    python -m benchmarks.guarantees [--draws 2000] [--file rows.json]

Each row draws data many times, selects a threshold with `risk` and `delta`, and
compares its true risk, which is known, with the target. `exceeded` is to be at most δ.
Rows that the file has already are not computed again, so that a run that was stopped
can continue.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
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
        e, m = int(cuts.losses[middle, 0]), int(cuts.accepted[middle])
        if binomial_tail(e, m, risk) <= delta / steps:
            best, low = middle, middle
        else:
            high = middle
    return best


def split(
    s: np.ndarray, right: np.ndarray, risk: float, delta: float
) -> tuple[Cuts, int]:
    """Starts where a fifth of the samples suggests, and searches on the others."""
    cuts = Cuts.of(s[::5], right[::5])
    share = (cuts.losses[:, 0] + 0.5) / (cuts.accepted + 1)
    # The expected errors of all samples that each threshold accepts, and their steps.
    rest = np.ones(len(s), bool)
    rest[::5] = False
    s, right = s[rest], right[rest]
    order = np.argsort(-s, kind="stable")
    at = np.searchsorted(-cuts.thresholds, -s[order], side="right") - 1
    totals = np.where(at < 0, 1.0, share[at]) * np.arange(1, len(s) + 1)
    p = np.empty(len(s))
    p[order] = np.clip(np.diff(totals, prepend=0.0), 0, 1)
    cuts = Cuts.of(s, right, error_probability=p)
    return cuts, cuts.search(risk, delta)


def independent(model: Model, draws: int) -> str:
    """Returns a row of the table of independent samples."""
    coverages, risks = true_risks(model)
    rng = np.random.default_rng(0)
    optimum = coverages[risks <= model.risk].max(initial=0.0)
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        s = rng.random(N)
        error = model.error(s)
        right = rng.random(N) >= error
        if model.levels:
            s = np.ceil(s * model.levels) / model.levels
        cuts = Cuts.of(s, right)
        guided = Cuts.of(s, right, error_probability=error)
        half = Cuts.of(s, right, error_probability=error / 2)
        width = 1 / model.levels if model.levels else 0.0
        selected = [
            ("plain", cuts, cuts.search(model.risk, DELTA)),
            ("guided", guided, guided.search(model.risk, DELTA)),
            ("half", half, half.search(model.risk, DELTA)),
            ("sgr", cuts, sgr(cuts, model.risk, DELTA)),
        ]
        if draw % 4 == 0:
            selected.append(("split", *split(s, right, model.risk, DELTA)))
        for name, used, cut in selected:
            t = used.thresholds[cut] if cut >= 0 else math.inf
            found.setdefault(name, []).append(max(0.0, 1 - t + width))
    cells = [model.title, f"{model.risk:g}", f"{optimum:.3f}"]
    for name in ("sgr", "split", "plain", "guided", "half"):
        c = np.array(found[name])
        bad = (c > 0) & (np.interp(c, coverages, risks) > model.risk + 1e-9)
        cells.append(f"{c.mean():.3f}")
        if name in ("plain", "guided", "half"):
            cells += [f"{np.mean(c == 0):.3f}", f"{bad.mean():.3f}"]
    return "| " + " | ".join(cells) + " |"


def grouped(count: int, length: int, spread: float, draws: int) -> str:
    """Returns a row of the table of tokens in sequences that are easy or hard."""

    def draw(rng: np.random.Generator, count: int) -> list[np.ndarray]:
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
    return (
        f"| {count} | 1 to {length} | {spread:g} | {optimum:.3f} | {a:.3f} | "
        f"{none:.3f} | {b:.3f} | {c:.3f} | {d:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--file", type=Path, help="JSON file that keeps finished rows")
    args = parser.parse_args()
    rows = json.loads(args.file.read_text()) if args.file and args.file.exists() else {}

    def show(key: str, row: Callable[[], str]) -> None:
        key = f"{key}, {args.draws} draws"
        if key not in rows:
            rows[key] = row()
            if args.file:
                args.file.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
        print(rows[key], flush=True)

    print(f"\nIndependent samples, n = {N}, δ = {DELTA}, {args.draws} draws\n")
    print(
        "| error at score s | r | optimum | SGR | split | coverage | none found "
        "| exceeded | guided | none found | exceeded | guided by half the errors "
        "| none found | exceeded |"
    )
    print("|---|" + 13 * "--:|")
    for i, model in enumerate(MODELS):
        show(f"model {i}", lambda model=model: independent(model, args.draws))
    print(f"\nTokens of sequences, r = 0.08, δ = {DELTA}, {args.draws} draws\n")
    print(
        "| sequences | tokens each | spread | optimum | coverage | none found "
        "| exceeded | coverage, tokens as units | exceeded |"
    )
    print("|" + 9 * "--:|")
    for kind in ((1000, 10, 0.5), (1000, 20, 1.0)):
        show(f"tokens {kind}", lambda kind=kind: grouped(*kind, args.draws))


if __name__ == "__main__":
    main()
