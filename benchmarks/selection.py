"""Methods that select a threshold of guaranteed risk, for many draws at once."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtr

from keras_selcal.selective.bounds import (
    best_candidate,
    candidate_starts,
    choose_starts,
    critical_errors,
    fewest_samples,
    with_predicted,
)

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


class Draws(NamedTuple):
    """The cuts (see `Cuts`) of many draws, from the highest threshold down.

    Attributes:
        coverage: true coverage of each, (draws, cuts).
        accepted: number of samples.
        errors: number of errors among them.
        expected: number that is expected.
    """

    coverage: np.ndarray
    accepted: np.ndarray
    errors: np.ndarray
    expected: np.ndarray

    @classmethod
    def of(
        cls, model: Model, s: np.ndarray, right: np.ndarray, error: np.ndarray
    ) -> "Draws":
        order = np.argsort(-s, axis=1, kind="stable")
        s, wrong, error = (
            np.take_along_axis(part, order, axis=1) for part in (s, ~right, error)
        )
        sums = np.cumsum(wrong, axis=1), np.cumsum(error, axis=1)
        if not model.levels:
            accepted = np.broadcast_to(np.arange(1, s.shape[1] + 1), s.shape)
            return cls(1 - s, accepted, *sums)
        # Every level has a sample.
        last = np.diff(s, axis=1, append=-1.0) < 0
        ends = np.nonzero(last)[1].reshape(len(s), model.levels)
        coverage = 1 - np.take_along_axis(s, ends, axis=1) + 1 / model.levels
        return cls(
            coverage, ends + 1, *(np.take_along_axis(x, ends, axis=1) for x in sums)
        )

    def cuts_at(self, count: float) -> np.ndarray:
        """Returns the first cut of each draw that accepts a number of samples."""
        if self.accepted.strides[0]:
            return np.argmax(self.accepted >= count * (1 - 1e-12), axis=1)
        cut = np.searchsorted(self.accepted[0], count * (1 - 1e-12))
        return np.full(len(self.accepted), cut)

    def passes(self, risk: float, level: float) -> np.ndarray:
        """Returns which cuts pass the exact test by themselves."""
        return self.errors <= most_errors(risk, level)[self.accepted]

    def coverage_at(self, cuts: np.ndarray) -> np.ndarray:
        """Returns the coverage of one cut of each draw, 0 for −1."""
        found = np.take_along_axis(self.coverage, cuts[:, None].clip(0), axis=1)
        return np.where(cuts >= 0, found[:, 0], 0.0)


@functools.cache
def most_errors(risk: float, level: float) -> np.ndarray:
    """Returns with how many errors 0, …, N samples pass the exact test."""
    return np.array([critical_errors(m, risk, level) for m in range(N + 1)])


def search(
    draws: Draws, risk: float, starts: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Returns the cut that `Cuts.search` returns, for each draw."""
    few = min(math.log(DELTA) / math.log1p(-risk), N / 2)
    starts = starts.clip(few, N)
    steps = math.ceil(math.log(N / starts.min()) / math.log(1.01))
    counts = np.append(np.geomspace(starts.min(), N, steps + 1), starts)
    cuts = np.sort(np.stack([draws.cuts_at(m) for m in counts], axis=1), axis=1)
    rows = np.arange(len(cuts))
    share = np.zeros(cuts.shape)
    for start, amount in zip(starts, shares, strict=True):
        first = np.argmax(cuts >= draws.cuts_at(start)[:, None], axis=1)
        share[rows, first] += amount
    errors = np.take_along_axis(draws.errors, cuts, axis=1)
    accepted = np.take_along_axis(draws.accepted, cuts, axis=1)
    best, level = np.full(len(cuts), -1), np.zeros(len(cuts))
    for i, added in enumerate(share.T):
        level += added
        for value in np.unique(level[level > 0]):
            at = level == value
            passed = errors[at, i] <= most_errors(risk, value)[accepted[at, i]]
            best[at] = np.where(passed, cuts[at, i], best[at])
            level[at] = np.where(passed, value, 0.0)
    return best


def predicted(draws: Draws, risk: float, factor: float) -> np.ndarray:
    """Returns what `search` does with the starts that predicted errors suggest."""
    starts = candidate_starts(N, risk, DELTA)
    cuts = np.stack([draws.cuts_at(m) for m in starts], axis=1)
    share = factor * (
        np.take_along_axis(draws.expected, cuts, axis=1)
        / np.take_along_axis(draws.accepted, cuts, axis=1)
    )
    chosen = best_candidate(starts, share, risk, DELTA)
    best = np.empty(len(cuts), int)
    for i in np.unique(chosen):
        used = (
            choose_starts(N, risk, DELTA)
            if i < 0
            else with_predicted(float(starts[i]), N, risk, DELTA)
        )
        at = chosen == i
        best[at] = search(rows_of(draws, at), risk, *used)
    return best


def rows_of(draws: Draws, rows: Any) -> Draws:
    accepted = draws.accepted
    if accepted.strides[0]:
        accepted = accepted[rows]
    else:
        shape = draws.errors[rows].shape
        accepted = np.broadcast_to(accepted[0], shape)
    return Draws(
        draws.coverage[rows], accepted, draws.errors[rows], draws.expected[rows]
    )


def one_start(draws: Draws, passed: np.ndarray, start: int) -> np.ndarray:
    """Returns the last cut of an unbroken sequence of passes from a start, or −1."""
    first = draws.cuts_at(start)
    failed = ~passed & (np.arange(passed.shape[1]) >= first[:, None])
    end = np.where(failed.any(axis=1), failed.argmax(axis=1), passed.shape[1])
    return np.where(end > first, end - 1, -1)


def sgr(draws: Draws, risk: float) -> np.ndarray:
    """Returns the cut of Geifman & El-Yaniv: a binary search with a union bound."""
    steps = math.ceil(math.log2(N))
    passed = draws.passes(risk, DELTA / steps)
    rows = np.arange(len(passed))
    low, best = np.zeros(len(passed), int), np.full(len(passed), -1)
    high = np.full(len(passed), passed.shape[1] - 1)
    for _ in range(steps):
        middle = (low + high + 1) // 2
        good = passed[rows, middle]
        best, low = np.where(good, middle, best), np.where(good, middle, low)
        high = np.where(good, high, middle)
    return best


def union(draws: Draws, risk: float) -> np.ndarray:
    """Returns the best of 25 coverages, each tested at δ/25: a simultaneous band."""
    passed = draws.passes(risk, DELTA / 25)
    best = np.full(len(passed), -1)
    for count in np.geomspace(20, N, 25):
        cuts = draws.cuts_at(count)
        best = np.where(passed[np.arange(len(cuts)), cuts], cuts, best)
    return best


def one_bet(draws: Draws, risk: float) -> np.ndarray:
    """Returns the last cut at which a mixture of bets along the ordered samples has
    won 1/δ. It is valid if every threshold has at least the risk of higher ones.
    """
    capital = np.zeros(draws.errors.shape)
    right = draws.accepted - draws.errors
    for stake in np.geomspace(0.05, 0.95, 20) / (1 - risk):
        won, lost = math.log1p(stake * risk), math.log1p(stake * (risk - 1))
        capital += np.exp(right * won + draws.errors * lost) / 20
    last = capital.shape[1] - 1 - np.argmax(capital[:, ::-1] >= 1 / DELTA, axis=1)
    return np.where((capital >= 1 / DELTA).any(axis=1), last, -1)


def split(model: Model, s: np.ndarray, right: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Returns the coverage of a search that starts where a fifth of the samples
    suggests, on the others.
    """
    rest = np.arange(N) % 5 > 0
    draws = Draws.of(model, s[:, rest], right[:, rest], p[:, rest])
    risk = model.risk
    starts = [fewest_samples(e, risk, DELTA) for e in range(0, 60, 3)]
    starts = [m for m in starts if m <= rest.sum()]
    width = 1 / model.levels if model.levels else 0.0
    power = []
    for i, m in enumerate(starts):
        threshold = 1 + width - draws.coverage_at(draws.cuts_at(m))
        above = s[:, ::5] >= threshold[:, None] - 1e-12
        errors = (above & ~right[:, ::5]).sum(axis=1)
        rate = np.where(
            above.any(axis=1), (errors + 0.5) / (above.sum(axis=1) + 1), 0.5
        )
        power.append(bdtr(3.0 * i, m, rate))
    chosen = np.argmax(power, axis=0)
    passed = draws.passes(risk, DELTA)
    found = np.zeros(len(s))
    for i in np.unique(chosen):
        at = chosen == i
        part = rows_of(draws, at)
        found[at] = part.coverage_at(one_start(part, passed[at], starts[i]))
    return found
