"""The thresholds that scores offer, and the search among them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import check_weights, refuse
from keras_selcal.selective.bounds import betting_p_value, binomial_tail, risk_bound

# Ratio of the coverages of successive thresholds that the search tests.
_RATIO = 1.01

# Errors that the smallest start of the search may have.
_ERRORS = 2

# How many times the data are repeated, at most, to estimate the samples it takes.
_MOST_REPEATS = 1024


@dataclass(frozen=True)
class Cuts:
    """The thresholds that scores offer, from the highest down.

    Attributes:
        thresholds: the distinct scores above −∞ in falling order, (c,).
        accepted: weight of the samples that each one accepts, (c,).
        errors: weight of the wrong ones among them, (c,).
        ends: number of samples that each one accepts, (c,).
        wrong: for each sample in falling order of its score whether it is wrong, (n,).
        groups: the index of its group, (n,), or None.
        total: weight of all samples.
        unit_weights: whether every weight is 1.
    """

    thresholds: np.ndarray
    accepted: np.ndarray
    errors: np.ndarray
    ends: np.ndarray
    wrong: np.ndarray
    groups: np.ndarray | None
    total: float
    unit_weights: bool

    @classmethod
    def of(
        cls, scores: Any, correct: Any, sample_weight: Any = None, groups: Any = None
    ) -> "Cuts":
        """Builds the cuts from what `select_threshold` is given."""
        s = to_numpy(scores).astype("float64").reshape(-1)
        right = to_numpy(correct).reshape(-1)
        n = len(s)
        weight = None
        if sample_weight is not None:
            weight = to_numpy(sample_weight).astype("float64").reshape(-1)
            check_weights(weight)
        parts = {"correct": right, "sample_weight": weight}
        if groups is not None:
            groups = parts["groups"] = to_numpy(groups).reshape(-1)
        for name, part in parts.items():
            if part is not None and len(part) != n:
                refuse(name, part.shape, f"of one entry for each of the {n} scores")
        if weight is not None:
            counts = weight > 0
            s, right, weight = s[counts], right[counts], weight[counts]
            groups = None if groups is None else groups[counts]
        if len(s) == 0:
            refuse("scores", (n,), "of at least one sample that counts")
        if np.isnan(s).any() or np.isposinf(s).any():
            refuse(
                "scores", "NaN or +inf", "finite, or −inf for what is never accepted"
            )
        if not np.isin(right, (0, 1)).all():
            refuse("correct", right, "boolean")
        order = np.argsort(-s, kind="stable")
        s, wrong = s[order], right[order] == 0
        w = np.ones(len(s)) if weight is None else weight[order]
        if groups is not None:
            groups = _shuffled_indices(groups)[order]
            if groups.max() == len(s) - 1:
                # Every sample is a group of its own.
                groups = None
        # The last position of each run of equal scores: where the cut may be.
        last = np.append(np.flatnonzero(s[1:] != s[:-1]), len(s) - 1)
        last = last[s[last] > -math.inf]
        return cls(
            s[last],
            np.cumsum(w)[last],
            np.cumsum(w * wrong)[last],
            last + 1,
            wrong,
            groups,
            float(w.sum()),
            bool((w == 1).all()),
        )

    def at(self, threshold: float) -> tuple[float, float]:
        """Returns the accepted weight and the errors at a threshold."""
        found = int((self.thresholds >= threshold).sum())
        if not found:
            return 0.0, 0.0
        return float(self.accepted[found - 1]), float(self.errors[found - 1])

    def select(
        self, coverage: float | None, risk: float | None, delta: float | None
    ) -> float:
        """Returns the threshold for a checked target."""
        if coverage is not None:
            return self.for_coverage(coverage)
        assert risk is not None
        if delta is None:
            return self.for_risk(risk)
        return self.for_guaranteed_risk(risk, delta)

    def for_coverage(self, coverage: float) -> float:
        """Returns the largest threshold that accepts a share κ."""
        # The least weight that a share κ asks for, rounding of κ n aside.
        enough = np.flatnonzero(self.accepted >= coverage * self.total * (1 - 1e-12))
        if not len(enough):
            raise ValueError(
                f"No threshold accepts a share of {coverage:g}: the calibrator rejects "
                "samples (their scores are −inf), and only "
                f"{self.accepted[-1:].sum():g} of {self.total:g} samples are left."
            )
        return float(self.thresholds[enough[0]])

    def for_risk(self, risk: float) -> float:
        """Returns the threshold of largest coverage whose own risk is at most r."""
        low = np.flatnonzero(self.errors <= risk * self.accepted * (1 + 1e-12))
        if not len(low):
            smallest = np.min(self.errors / self.accepted, initial=1)
            raise ValueError(
                f"No threshold has a risk of at most {risk:g} on these {self.total:g} "
                f"samples: the smallest is {smallest:.4g}."
            )
        return float(self.thresholds[low[-1]])

    def for_guaranteed_risk(self, risk: float, delta: float) -> float:
        """Returns a threshold of large coverage whose true risk is at most r with
        probability 1 − δ.
        """
        if not self.unit_weights:
            refuse(
                "sample_weight",
                "other weights than 0 and 1",
                "0 or 1 with `delta`: the guarantee counts independent samples. Leave "
                "the weights out, or resample the data by them",
            )
        if risk == 1 and len(self.thresholds):
            return float(self.thresholds[-1])
        best = self.search(risk, delta)
        if best < 0:
            raise ValueError(self._explanation(risk, delta))
        return float(self.thresholds[best])

    def bound(self, threshold: float, delta: float) -> float:
        """Returns what the true risk at a threshold, which was chosen without looking
        at labels, exceeds with a probability of at most δ.
        """
        accepted, errors = self.at(threshold)
        if not self.unit_weights:
            return math.nan
        if self.groups is None or not accepted:
            return risk_bound(int(errors), int(accepted), delta)
        cut = int((self.thresholds >= threshold).sum()) - 1
        low, high = errors / accepted, 1.0
        for _ in range(20):
            middle = (low + high) / 2
            passes = self._test(middle, delta)(cut) <= delta
            low, high = (low, middle) if passes else (middle, high)
        return high

    def excess_p_value(self, threshold: float, risk: float, delta: float) -> float:
        """Returns the probability of as many errors at a threshold, or more, if the
        true risk is at most r; δ is the level at which a bet on groups is best.
        """
        accepted, errors = self.at(threshold)
        if not errors or risk >= 1:
            return 1.0
        if self.groups is None:
            tail = 1.0 - binomial_tail(int(errors) - 1, int(accepted), risk)
            return max(0.0, tail)
        used = slice(0, self.ends[int((self.thresholds >= threshold).sum()) - 1])
        sizes = np.bincount(self.groups)
        values = risk - self.wrong[used]
        losses = np.bincount(self.groups[used], values, minlength=len(sizes))
        return betting_p_value(losses, risk * sizes.max(), delta)

    @property
    def num_groups(self) -> int | None:
        """Number of groups, or None where every sample is its own."""
        return None if self.groups is None else int(self.groups.max()) + 1

    def _test(
        self, risk: float, delta: float, repeats: int = 1
    ) -> Callable[[int], float]:
        """Returns a function of a cut, to be called in rising order, that gives the
        p-value of the hypothesis that its risk is above r.

        `repeats` counts the data several times.
        """
        if self.groups is None:
            return lambda cut: binomial_tail(
                repeats * int(self.errors[cut]), repeats * int(self.accepted[cut]), risk
            )
        groups = self.groups
        sizes = np.bincount(groups)
        losses, end = np.zeros(len(sizes)), 0

        def by_betting(cut: int) -> float:
            nonlocal losses, end
            new = slice(end, self.ends[cut])
            values = self.wrong[new] - risk
            losses = losses + np.bincount(groups[new], values, minlength=len(sizes))
            end = new.stop
            largest = (1 - risk) * sizes.max()
            return betting_p_value(np.tile(losses, repeats), largest, delta)

        return by_betting

    def search(self, risk: float, delta: float, repeats: int = 1) -> int:
        """Returns the cut of largest guaranteed coverage, or −1 if there is none.

        `repeats` counts the data several times, to estimate what more data can do.
        """
        accepted = repeats * self.accepted
        # Fewer samples do not pass even if all are right: (1 − r)^m > δ.
        fewest = math.log(delta) / math.log1p(-risk)
        if not len(accepted) or (self.groups is None and accepted[-1] < fewest):
            return -1
        samples = 1.0 if self.num_groups is None else self.total / self.num_groups
        starts = _starts(repeats * self.total / samples, risk, delta) * samples
        # Repeated data must not pass by a few samples that happen to be right.
        starts = starts.clip(min=repeats * self._few(risk, delta), max=accepted[-1])
        steps = math.ceil(math.log(accepted[-1] / starts[0]) / math.log(_RATIO))
        counts = np.geomspace(starts[0], accepted[-1], steps + 1)
        # Rounding must not ask for more than there is.
        positions = np.searchsorted(accepted, np.append(counts, starts) * (1 - 1e-12))
        positions = np.unique(positions)
        share = np.zeros(len(positions))
        first = np.searchsorted(accepted[positions], starts * (1 - 1e-12))
        np.add.at(share, first, delta / len(starts))
        best, level = -1, 0.0
        p_value = self._test(risk, delta, repeats)
        for cut, added in zip(positions, share, strict=True):
            level += added
            if not level:
                continue
            if p_value(cut) <= level:
                best = int(cut)
            else:
                level = 0.0
        return best

    def _few(self, risk: float, delta: float) -> float:
        """Returns how many samples say little about a risk."""
        return min(math.log(delta) / math.log1p(-risk), self.total / 2)

    def _explanation(self, risk: float, delta: float) -> str:
        """Returns why no threshold has the guarantee, and what can be had."""
        groups = self.num_groups
        unit, count = ("samples", self.total) if groups is None else ("groups", groups)
        text = (
            f"No threshold has a risk of at most {risk:g} with probability "
            f"{1 - delta:g} on these {count:g} {unit}."
        )
        low, high = risk, 1.0
        for _ in range(10):
            middle = (low + high) / 2
            possible = self.search(middle, delta) >= 0
            low, high = (low, middle) if possible else (middle, high)
        if high < 1:
            text += f" The smallest risk that they can guarantee is {high:.3g}."
        many = self.accepted >= self._few(risk, delta)
        smallest = np.min(self.errors[many] / self.accepted[many], initial=1)
        if smallest > risk:
            return (
                f"{text} More samples would not help: the smallest risk of any "
                f"threshold is {smallest:.3g} on these. Raise `risk`."
            )
        repeats = 2
        while self.search(risk, delta, repeats) < 0:
            repeats *= 2
            if repeats > _MOST_REPEATS:
                return f"{text} Raise `risk`."
        return (
            f"{text} About {repeats * count:.2g} {unit} of the same kind would be "
            f"enough for {risk:g}. Raise `risk` or `delta`, or use more data."
        )


def _starts(n: float, risk: float, delta: float) -> np.ndarray:
    """Returns how many samples the starts of the search accept, in rising order.

    They are n/2, n/4, … down to the least number that passes with a few errors at its
    share of δ.
    """

    def least(level: float) -> int:
        low, high = _ERRORS, _ERRORS + 1
        while high < n and binomial_tail(_ERRORS, high, risk) > level:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            passes = binomial_tail(_ERRORS, middle, risk) <= level
            low, high = (low, middle) if passes else (middle, high)
        return high

    if least(delta) > n / 2:
        # Few samples: one start, which passes only without an error.
        return np.array([math.log(delta) / math.log1p(-risk)])
    count = 0
    for _ in range(2):
        smallest = least(delta / (count + 1))
        count = max(0, math.floor(math.log2(n / smallest) - 0.5))
    return np.append(smallest, n / 2.0 ** np.arange(count, 0, -1))


def _shuffled_indices(groups: np.ndarray) -> np.ndarray:
    """Returns groups as indices 0, 1, … in an order that is random but fixed.

    Bets on groups adapt from one to the next, so that the order must not depend on the
    data, as it would if groups were sorted by their length.
    """
    _, indices = np.unique(groups, return_inverse=True)
    indices = indices.reshape(-1)
    return np.random.default_rng(0).permutation(int(indices.max()) + 1)[indices]
