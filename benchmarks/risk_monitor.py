"""False alarms of `RiskMonitor`, and how late it tells that a risk is too high.

    python -m benchmarks.risk_monitor [--streams 2000]

Streams are of wrong (1) and correct (0) answers; the limit is 5 %, δ = 0.05. The risk
is at the limit, drifts below it, or jumps above it after a good past. Delays count
from the jump. "Whole stream" is the same test without later starts, which looks at the
mean of everything since the beginning.
"""

import argparse
from collections.abc import Callable
from unittest import mock

import numpy as np

from keras_selcal import RiskMonitor
from keras_selcal.selective import risk_monitor

LIMIT, DELTA, LENGTH = 0.05, 0.05, 10_000

Risk = Callable[[np.ndarray], np.ndarray]

QUIET: dict[str, Risk] = {
    "always at the limit": lambda t: np.full(len(t), LIMIT),
    "swings between 1 % and the limit": lambda t: (
        LIMIT * (0.6 + 0.4 * np.sin(2 * np.pi * t / 2000))
    ),
    "1 % for 5,000 answers, then the limit": lambda t: np.where(t < 5000, 0.01, LIMIT),
}
JUMPS = [(past, risk) for past in (0, 1000, 5000) for risk in (0.075, 0.1, 0.2)]


def alarm_at(risk: Risk, rng: np.random.Generator, length: int = LENGTH) -> float:
    """Returns after how many answers a stream has an alarm, ∞ if never."""
    monitor = RiskMonitor(LIMIT, DELTA)
    monitor.update(rng.random(length) < risk(np.arange(length)))
    return np.inf if monitor.alarm_at is None else monitor.alarm_at


def jump(past: int, risk: float) -> Risk:
    """Returns a risk of 2 % that jumps."""
    return lambda t: np.where(t < past, 0.02, risk)


def delays(past: int, risk: float, streams: int, seed: int) -> np.ndarray:
    """Returns the delay of each stream, for those without an alarm before the jump."""
    rng = np.random.default_rng(seed)
    length = 3000 + 4 * past
    found = [alarm_at(jump(past, risk), rng, length) for _ in range(streams)]
    late = np.array(found) - past
    return late[late > 0]


def main(streams: int) -> None:
    """Prints both tables."""
    print("| risk | streams with a false alarm |\n|---|--:|")
    for i, (title, risk) in enumerate(QUIET.items()):
        rng = np.random.default_rng(i)
        alarms = [np.isfinite(alarm_at(risk, rng)) for _ in range(streams)]
        print(f"| {title} | {100 * np.mean(alarms):.1f} % |", flush=True)
    print("\n| good past | new risk | median delay | 90 % within | whole stream |")
    print("|--:|--:|--:|--:|--:|")
    for i, (past, risk) in enumerate(JUMPS):
        late = delays(past, risk, streams // 10, i)
        with mock.patch.object(risk_monitor, "_starts", return_value=np.zeros(1, int)):
            plain = delays(past, risk, streams // 10, i)
        figures = (np.median(late), np.quantile(late, 0.9), np.median(plain))
        cells = " | ".join(f"{figure:,.0f}" for figure in figures)
        print(f"| {past:,} | {100 * risk:g} % | {cells} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    main(parser.parse_args().streams)
