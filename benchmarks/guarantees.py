"""How often guaranteed risks are exceeded, and the coverage that they reach.

    python -m benchmarks.guarantees [--draws 2000] [--file rows.json]

Each row draws data many times, selects a threshold with `risk` and `delta` by several
methods, and compares its true risk, which is known, with the target. Rows that the file
has already are not computed again, so that a run that was stopped can continue.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.selection import (
    DELTA,
    Draws,
    Model,
    N,
    one_bet,
    one_start,
    predicted,
    search,
    sgr,
    split,
    union,
)
from keras_selcal.selective.bounds import choose_starts, fewest_samples
from keras_selcal.selective.cuts import Cuts


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


def any_method(model: Model) -> tuple[float, float]:
    """Returns bounds on coverage (up to the optimum) and on the probability to find a
    threshold, for any method that keeps the guarantee, even one that knows the model.

    A coverage of at least c is selected with a probability of at most δ from data in
    which every coverage ≥ c has a risk of r or more. By the lemma of Neyman and
    Pearson, it is then selected from the model's own data at most as often as the
    likelihood ratio between the two rejects at level δ. The other data have the errors
    of the model, tilted above c until their mean is r, and at least r below c.
    """
    coverages, risks = true_risks(model)
    optimum = coverages[risks <= model.risk].max(initial=0.0)
    if not optimum:
        return 0.0, DELTA
    rng, draws = np.random.default_rng(2), 2000
    rank = (np.arange(N) + 0.5) / N
    p = model.error(1 - rank)
    at = np.append(1e-9, np.linspace(0.02, optimum, 25))
    power = []
    for c in at:
        q = np.maximum(p, model.risk)
        above = rank <= c
        low, high = 0.0, 20.0
        while above.any() and high - low > 1e-9:
            odds = p[above] / (1 - p[above]) * math.exp((low + high) / 2)
            q[above] = odds / (1 + odds)
            if q[above].mean() < model.risk:
                low = (low + high) / 2
            else:
                high = (low + high) / 2
        used = np.abs(p - q) > 1e-9
        ratio = np.log([(1 - p[used]) / (1 - q[used]), (p[used] + 1e-300) / q[used]])
        null, own = (
            np.where(rng.random((draws, used.sum())) < x[used], ratio[1], ratio[0])
            # The sum rejects at random where it is equal to the quantile.
            .sum(axis=1)
            + 1e-9 * rng.random(draws)
            for x in (q, p)
        )
        power.append(np.mean(own > np.quantile(null, 1 - DELTA)))
    power = np.minimum.accumulate(power)
    return float(np.trapezoid(power, at)), float(power[0])


def best_start(model: Model) -> int:
    """Returns the start of largest mean coverage, which takes knowing the model."""
    starts = {fewest_samples(e, model.risk, DELTA) for e in range(0, 150, 2)} | {
        fewest_samples(1, model.risk, DELTA)
    }
    starts = sorted(m for m in starts if m < N)
    draws = Draws.of(model, *draw(model, np.random.default_rng(1), 200))
    passed = draws.passes(model.risk, DELTA)
    found = [draws.coverage_at(one_start(draws, passed, m)).mean() for m in starts]
    return starts[int(np.argmax(found))]


def draw(
    model: Model, rng: np.random.Generator, draws: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns scores, which answers are right, and the probabilities of an error."""
    s = rng.random((draws, N))
    error = model.error(s)
    right = rng.random((draws, N)) >= error
    if model.levels:
        s = np.ceil(s * model.levels) / model.levels
    return s, right, error


def check(model: Model, found: dict[str, np.ndarray], *data: np.ndarray) -> None:
    """Checks that the library selects the same in the first draws."""
    width = 1 / model.levels if model.levels else 0.0
    factors = {"plain": None, "predicted": 1.0, "⅛ predicted": 0.125}
    for i, (s, right, error) in enumerate(zip(*data, strict=True)):
        for name, factor in factors.items():
            p = None if factor is None else factor * error
            cuts = Cuts.of(s, right, error_probability=p)
            cut = cuts.search(model.risk, DELTA)
            c = 1 - cuts.thresholds[cut] + width if cut >= 0 else 0.0
            if abs(c - found[name][i]) > 1e-9:
                raise AssertionError(f"{model.title}, {name}: {c}, {found[name][i]}")


def independent(model: Model, draws: int) -> dict[str, list[float]]:
    """Returns coverage, share without a threshold, and share of exceeded risks of each
    method.
    """
    rng = np.random.default_rng(0)
    start = best_start(model)
    data = draw(model, rng, draws)
    cuts, risk = Draws.of(model, *data), model.risk
    selected = {
        "best start": one_start(cuts, cuts.passes(risk, DELTA), start),
        "predicted": predicted(cuts, risk, 1.0),
        "⅛ predicted": predicted(cuts, risk, 0.125),
        "plain": search(cuts, risk, *choose_starts(N, risk, DELTA)),
        "union": union(cuts, risk),
        "SGR": sgr(cuts, risk),
        "bet": one_bet(cuts, risk),
    }
    found = {name: cuts.coverage_at(cut) for name, cut in selected.items()}
    found["split"] = split(model, *data)
    check(model, found, *(part[:20] for part in data))
    coverages, risks = true_risks(model)
    coverage, success = any_method(model)
    optimum = coverages[risks <= model.risk].max(initial=0.0)
    row = {"optimum": [optimum], "any method": [coverage, 1 - success]}
    for name, c in found.items():
        bad = (c > 0) & (np.interp(c, coverages, risks) > model.risk + 1e-9)
        row[name] = [c.mean(), np.mean(c == 0), bad.mean()]
    return {name: np.round(values, 4).tolist() for name, values in row.items()}


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


METHODS = (
    "any method",
    "best start",
    "predicted",
    "⅛ predicted",
    "plain",
    "split",
    "union",
    "SGR",
    "bet",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000, help="of data sets")
    parser.add_argument("--file", type=Path, help="JSON file that keeps finished rows")
    args = parser.parse_args()
    rows = json.loads(args.file.read_text()) if args.file and args.file.exists() else {}

    def row(key: str, compute: Callable[[], Any]) -> Any:
        key = f"{key}, {args.draws} draws"
        if key not in rows:
            rows[key] = compute()
            if args.file:
                args.file.write_text(json.dumps(rows, indent=1, ensure_ascii=False))
        return rows[key]

    found = [
        row(f"model {i}", lambda model=model: independent(model, args.draws))
        for i, model in enumerate(MODELS)
    ]
    print(f"\nIndependent samples, n = {N}, δ = {DELTA}, {args.draws} draws")
    for part, title in enumerate(("mean coverage", "none found", "risk exceeded")):
        methods = [name for name in METHODS if len(found[0][name]) > part]
        print(f"\n{title}\n\n| error at score s | r | optimum |", end="")
        print(" " + " | ".join(methods) + " |")
        print("|---|" + (len(methods) + 2) * "--:|")
        for model, figures in zip(MODELS, found, strict=True):
            cells = [f"{figures[name][part]:.3f}" for name in methods]
            optimum = f"{figures['optimum'][0]:.3f}"
            cells = [model.title, f"{model.risk:g}", optimum, *cells]
            print("| " + " | ".join(cells) + " |")
    few = args.draws // 10
    print(f"\nTokens of sequences, r = 0.08, δ = {DELTA}, {few} draws\n")
    print(
        "| sequences | tokens each | spread | optimum | coverage | none found "
        "| exceeded | coverage, tokens as units | exceeded |"
    )
    print("|" + 9 * "--:|")
    for kind in ((1000, 10, 0.5), (1000, 20, 1.0)):
        print(row(f"tokens {kind}", lambda kind=kind: grouped(*kind, few)))


if __name__ == "__main__":
    main()
