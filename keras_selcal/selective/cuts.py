"""The thresholds that scores offer, and the search among them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_selcal._arrays import to_numbers, to_numpy
from keras_selcal._validation import check_groups, check_weights, refuse
from keras_selcal.selective.bounds import (
    UnmetTargetError,
    betting_p_value,
    binomial_tail,
    choose_starts,
    critical_errors,
    explain_unmet,
    least_passing,
    risk_bound,
    shortest_above,
    shuffled_indices,
)
from keras_selcal.selective.losses import check_losses

# Ratio of the coverages of successive thresholds that the search tests.
_RATIO = 1.01


@dataclass(frozen=True)
class Cuts:
    """The thresholds that scores offer, from the highest down, and q risks at each.

    Attributes:
        thresholds: the distinct scores above −∞ in falling order, (c,).
        accepted: weight of the samples that each one accepts, (c,).
        counted: weight of those among them that count in each risk, (c, q).
        losses: sum of their weighted losses, such as the number of errors, (c, q).
        ends: number of samples that each one accepts, (c,).
        sample_losses: loss of each sample in falling order of its score, (n, q), NaN
            where it does not count.
        groups: the index of its group, (n,), or None.
        expected: number of errors that are expected among the accepted samples, (c,),
            or None.
        total: weight of all samples.
        unit_weights: whether every weight is 1.
        binary: whether every loss is 0 or 1.
    """

    thresholds: np.ndarray
    accepted: np.ndarray
    counted: np.ndarray
    losses: np.ndarray
    ends: np.ndarray
    sample_losses: np.ndarray
    groups: np.ndarray | None
    expected: np.ndarray | None
    total: float
    unit_weights: bool
    binary: bool

    @classmethod
    def of(
        cls,
        scores: Any,
        correct: Any,
        sample_weight: Any = None,
        groups: Any = None,
        *,
        losses: Any = None,
        binary: bool = False,
        error_probability: Any = None,
    ) -> "Cuts":
        """Builds the cuts from what `select_threshold` is given."""
        if (correct is None) == (losses is None):
            refuse("correct", correct, "given if `losses` is None, and None otherwise")
        if losses is not None and error_probability is not None:
            refuse("error_probability", error_probability, "None with `losses`")
        s = to_numbers("scores", scores).astype("float64").reshape(-1)
        n = len(s)
        parts = {"correct": correct, "losses": losses, "sample_weight": sample_weight}
        parts["error_probability"] = error_probability
        given = {n: to_numbers(n, x) for n, x in parts.items() if x is not None}
        if groups is not None:
            given["groups"] = check_groups(to_numpy(groups))
        for name, part in given.items():
            if name != "losses" or part.ndim != 2:
                given[name] = part = part.reshape(-1)
            if len(part) != n:
                refuse(name, part.shape, f"of one entry for each of the {n} scores")
        weight = given.get("sample_weight", np.ones(n)).astype("float64")
        check_weights(weight)
        rows = np.flatnonzero(weight > 0)
        if not len(rows):
            what = f"{n} samples that do not count" if n else "an empty array"
            refuse("scores", what, "scores of at least one sample that counts")
        check_scores("scores", s[rows])
        rows = rows[np.argsort(-s[rows], kind="stable")]
        s, w = s[rows], weight[rows]
        given = {name: part[rows] for name, part in given.items()}
        loss = check_losses(given.get("correct"), given.get("losses"), binary)
        index = expected = None
        if groups is not None:
            index = shuffled_indices(given["groups"])
            if index.max() == len(s) - 1:
                # Every sample is a group of its own.
                index = None
        if error_probability is not None:
            p = given["error_probability"].astype("float64")
            if not ((p >= 0) & (p <= 1)).all():
                refuse("error_probability", p, "numbers in [0, 1]")
            expected = np.cumsum(w * p)
        # The last position of each run of equal scores: where the cut may be.
        last = np.append(np.flatnonzero(s[1:] != s[:-1]), len(s) - 1)
        last = last[s[last] > -math.inf]
        counting = w[:, None] * ~np.isnan(loss)
        return cls(
            s[last],
            np.cumsum(w)[last],
            np.cumsum(counting, axis=0)[last],
            np.cumsum(counting * np.nan_to_num(loss), axis=0)[last],
            last + 1,
            loss,
            index,
            None if expected is None else expected[last],
            float(w.sum()),
            bool((w == 1).all()),
            losses is None or binary,
        )

    def at(self, threshold: float) -> tuple[float, float]:
        """Returns the accepted weight and the errors at a threshold."""
        cut = self.cut_at(threshold)
        if cut < 0:
            return 0.0, 0.0
        return float(self.accepted[cut]), float(self.losses[cut, 0])

    def _counted_at(self, threshold: float) -> tuple[float, float]:
        """Returns the weight that counts in the first risk, and the errors."""
        cut = self.cut_at(threshold)
        counted = 0.0 if cut < 0 else float(self.counted[cut, 0])
        return counted, self.at(threshold)[1]

    def cut_at(self, threshold: float) -> int:
        """Returns the cut that accepts the same samples, −1 if there are none."""
        return int((self.thresholds >= threshold).sum()) - 1

    def shortest(self, threshold: float) -> str:
        """Returns the shortest number up to a threshold that accepts the same."""
        below = self.thresholds[self.thresholds < threshold].max(initial=-math.inf)
        return shortest_above(float(below), threshold)

    @property
    def coverage(self) -> np.ndarray:
        """Share of the samples that each threshold accepts, (c,)."""
        return self.accepted / self.total

    @property
    def risk(self) -> np.ndarray:
        """Mean of the first loss among those that count in it, (c,); NaN for none."""
        counted = self.counted[:, 0]
        return self.losses[:, 0] / np.where(counted > 0, counted, math.nan)

    def select(self, coverage: float | None, risk: Any, delta: float | None) -> float:
        """Returns the threshold for a checked target."""
        if coverage is not None:
            return self.for_coverage(coverage)
        risks = np.broadcast_to(risk, self.losses.shape[1:])
        if delta is None:
            return self.for_risk(risks)
        return self.for_guaranteed_risk(risks, delta)

    def for_coverage(self, coverage: float) -> float:
        """Returns the largest threshold that accepts a share κ."""
        # The least weight that a share κ asks for, rounding of κ n aside.
        enough = np.flatnonzero(self.accepted >= coverage * self.total * (1 - 1e-12))
        if not len(enough):
            raise UnmetTargetError(
                f"No threshold accepts a share of {coverage:g}: the calibrator rejects "
                "samples (their scores are −inf), and only "
                f"{self.accepted[-1:].sum():g} of {self.total:g} samples are left."
            )
        return float(self.thresholds[enough[0]])

    def for_risk(self, risk: np.ndarray) -> float:
        """Returns the threshold of largest coverage whose own risk is at most r."""
        low = (self.losses <= risk * self.counted * (1 + 1e-12)).all(axis=1)
        if not low.any():
            raise UnmetTargetError(
                f"No threshold has a risk of at most {_text(risk)} on these "
                f"{self.total:g} samples: the smallest is {_text(self._smallest(0))}."
            )
        return float(self.thresholds[np.flatnonzero(low)[-1]])

    def for_guaranteed_risk(self, risk: np.ndarray, delta: float) -> float:
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
        if (risk == 1).all() and len(self.thresholds):
            return float(self.thresholds[-1])
        best = self.search(risk, delta)
        if best < 0:
            raise UnmetTargetError(self._explanation(risk, delta))
        return float(self.thresholds[best])

    def bound(self, threshold: float, delta: float) -> float:
        """Returns what the true risk at a threshold, which was chosen without looking
        at labels, exceeds with a probability of at most δ.
        """
        if not self.unit_weights:
            return math.nan
        counted, errors = self._counted_at(threshold)
        if (self.groups is None and self.binary) or not counted:
            return risk_bound(int(errors), int(counted), delta)
        cut = self.cut_at(threshold)
        return least_passing(
            errors / counted,
            lambda risk: self._test(np.array([risk]), delta)(cut, delta),
            steps=20,
        )

    def excess_p_value(self, threshold: float, risk: float, delta: float) -> float:
        """Returns the probability of as many errors at a threshold, or more, if the
        true risk is at most r; δ is the level at which a bet on groups is best.
        """
        counted, errors = self._counted_at(threshold)
        if not errors or risk >= 1:
            return 1.0
        if self.groups is None:
            tail = 1.0 - binomial_tail(int(errors) - 1, int(counted), risk)
            return max(0.0, tail)
        used = slice(0, self.ends[self.cut_at(threshold)])
        sizes = np.bincount(self.groups)
        values = np.nan_to_num(risk - self.sample_losses[used, 0])
        losses = np.bincount(self.groups[used], values, minlength=len(sizes))
        return float(betting_p_value(losses, risk * sizes.max(), delta))

    @property
    def num_groups(self) -> int | None:
        """Number of groups, or None where every sample is its own."""
        return None if self.groups is None else int(self.groups.max()) + 1

    def _test(
        self, risk: np.ndarray, delta: float, repeats: int = 1
    ) -> Callable[[int, float], bool]:
        """Returns a function of a cut, to be called in rising order, and a level, that
        tells whether the hypothesis is rejected that one of its risks is above r.

        `repeats` counts the data several times.
        """
        if self.groups is None and self.binary:
            risks = risk.tolist()

            def by_counting(cut: int, level: float) -> bool:
                errors = (repeats * self.losses[cut]).tolist()
                counted = (repeats * self.counted[cut]).tolist()
                return all(
                    e <= critical_errors(int(m), r, level)
                    for e, m, r in zip(errors, counted, risks, strict=True)
                )

            return by_counting
        groups = self.groups
        if groups is None:
            groups = shuffled_indices(np.arange(len(self.sample_losses)))
        largest = (1 - risk) * np.bincount(groups).max()
        excess = np.nan_to_num(self.sample_losses - risk)
        losses, end = np.zeros((int(groups.max()) + 1, len(risk))), 0

        def by_betting(cut: int, level: float) -> bool:
            nonlocal end
            new = slice(end, self.ends[cut])
            np.add.at(losses, groups[new], excess[new])
            end = new.stop
            repeated = np.tile(losses, (repeats, 1))
            return bool(betting_p_value(repeated, largest, delta).max() <= level)

        return by_betting

    def search(self, risk: Any, delta: float, repeats: int = 1) -> int:
        """Returns the cut of largest guaranteed coverage, or −1 if there is none.

        `repeats` counts the data several times, to estimate what more data can do.
        """
        risk = np.broadcast_to(np.asarray(risk, "float64"), self.losses.shape[1:])
        # A risk of 1 holds always.
        risk = np.minimum(risk, 1 - 1e-9)
        accepted = repeats * self.accepted
        # Fewer samples do not pass even if all are right: (1 − r)^m > δ.
        fewest = math.log(delta) / np.log1p(-risk)
        enough = self.groups is not None or (
            len(accepted) and (repeats * self.counted[-1] >= fewest).all()
        )
        if not len(accepted) or not enough:
            return -1
        starts, shares = self._starts(risk, delta, repeats)
        steps = math.ceil(math.log(accepted[-1] / starts.min()) / math.log(_RATIO))
        counts = np.geomspace(starts.min(), accepted[-1], steps + 1)
        # Rounding must not ask for more than there is.
        positions = np.searchsorted(accepted, np.append(counts, starts) * (1 - 1e-12))
        positions = np.unique(positions)
        share = np.zeros(len(positions))
        first = np.searchsorted(accepted[positions], starts * (1 - 1e-12))
        np.add.at(share, first, shares)
        best, level = -1, 0.0
        passes = self._test(risk, delta, repeats)
        for cut, added in zip(positions, share, strict=True):
            level += added
            if not level:
                continue
            if passes(cut, level):
                best = int(cut)
            else:
                level = 0.0
        return best

    def _starts(
        self, risk: np.ndarray, delta: float, repeats: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns how many samples the starts accept, and their shares of δ.

        If several risks are to hold, the risk that takes the most samples
        decides the starts.
        """
        accepted = repeats * self.accepted
        found = []
        for j, r in enumerate(risk.tolist()):
            counts = ~np.isnan(self.sample_losses[:, j])
            units = counts.sum()
            if self.groups is not None:
                units = len(np.unique(self.groups[counts]))
            # Accepted samples for each unit that counts.
            samples = len(counts) / max(1, units)
            predicted: tuple[np.ndarray, ...] = ()
            if self.expected is not None:
                predicted = (accepted / samples, repeats * self.expected / samples)
            starts, shares = choose_starts(repeats * units, r, delta, *predicted)
            # Repeated data must not pass by a few samples that happen to be right.
            few = repeats * samples * min(math.log(delta) / math.log1p(-r), units / 2)
            few = min(few, accepted[-1])
            starts = (starts * samples).clip(min=few, max=accepted[-1])
            found.append((starts, shares))
        return max(found, key=lambda pair: float(pair[0][0]))

    def _smallest(self, few: Any) -> np.ndarray:
        """Returns the smallest of each risk, for thresholds that count enough."""
        share = self.losses / np.maximum(self.counted, 1e-300)
        return np.where(self.counted > few, share, 1.0).min(axis=0, initial=1.0)

    def _explanation(self, risk: np.ndarray, delta: float) -> str:
        """Returns why no threshold has the guarantee, and what can be had."""
        if len(risk) > 1:
            return self._explanation_of_several(risk, delta)
        r, n, unit = float(risk[0]), self.num_groups, "groups"
        if n is None:
            n, unit = int(self.counted[-1:].sum()), "samples"
        few = min(math.log(delta) / math.log1p(-r), self.total / 2)
        return explain_unmet(
            r,
            f"with probability {1 - delta:g}",
            n,
            unit,
            possible=least_passing(r, lambda x: self.search(x, delta) >= 0, steps=10),
            smallest=float(self._smallest(few * (1 - 1e-12))[0]),
            passes=lambda count: self.search(r, delta, count // n) >= 0,
            # Fewer may all be right by luck.
            among=f" that accepts at least {math.ceil(few):,}",
        )

    def _explanation_of_several(self, risk: np.ndarray, delta: float) -> str:
        """Returns why several risks cannot be guaranteed at once."""
        for j, r in enumerate(risk):
            alone = replace(
                self,
                counted=self.counted[:, [j]],
                losses=self.losses[:, [j]],
                sample_losses=self.sample_losses[:, [j]],
            )
            if alone.search(r, delta) < 0:
                return f"Risk {j}: {alone._explanation(risk[[j]], delta)}"
        return (
            f"No threshold has risks of at most {_text(risk)} with probability "
            f"{1 - delta:g} on these {self.total:g} samples, although each risk can be "
            "guaranteed alone. Raise one of `risk`, or use more data."
        )


def check_scores(argument: str, scores: np.ndarray) -> None:
    """Refuses scores that are NaN or +∞."""
    if np.isnan(scores).any() or np.isposinf(scores).any():
        refuse(argument, "NaN or +inf", "finite, or −inf for what is never accepted")


def _text(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in np.ravel(values))
