"""Metrics of a ranking by confidence, as functions of groups of equal rank.

A ranking is the mass Σ w and the loss Σ w ℓ of each group, from the least confident
to the most, in the last axis. Samples of a group share its mean loss. The exact metrics
group equal scores, the streaming ones the cells of their histogram; empty groups are
allowed.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal._backend.ops import TINY, cumsum, sums_after
from keras_selcal._formulas.harmonic import harmonic_difference

# Shares of a hair: r·mass may round to just below a loss that equals it. Weights that
# are sums of float32 have been rounded before.
EXACT = 1e-12
ROUNDED = 1e-6


class Ranking(NamedTuple):
    """Groups of samples in rising confidence, on `xp` NumPy or `keras.ops`.

    Sums are compared up to a share `slack` of them.
    """

    mass: Any
    loss: Any
    xp: Any
    slack: float = EXACT

    @property
    def n(self) -> Any:
        return self.xp.sum(self.mass, axis=-1)

    @property
    def before(self) -> Any:
        """The mass of the less confident groups."""
        return cumsum(self.mass) - self.mass

    def accepted(self) -> tuple[Any, Any]:
        """Returns the mass and the loss of each group and all more confident ones, from
        the most confident group to the least.
        """
        both = self.xp.flip(self.xp.stack([self.mass, self.loss]), axis=-1)
        sums = cumsum(both)
        return sums[0], sums[1]

    def ends(self) -> tuple[Any, Any, Any]:
        """Returns n, and the mass below and up to each group.

        Summed from the most confident group on, whose place the weights are most
        sensitive to, and once: in float32, two sums of 10⁸ samples in different orders
        are hundreds apart, and a group would end beyond n.
        """
        at_least = self.xp.flip(self.accepted()[0], axis=-1)
        n = at_least[..., :1]
        before = n - at_least
        return n, before, self.xp.concatenate([before[..., 1:], n], axis=-1)

    def aurc(self) -> Any:
        """(1/n) Σ_i R(i/n), R(i/n) the mean loss of the i most confident samples."""
        xp = self.xp
        if xp is np and self.mass.ndim == 1:
            counts = self.mass.astype(np.intp)
            size = counts.sum()
            # Few copies: faster than harmonic sums.
            if size <= 4 * len(counts) and (counts == self.mass).all():
                return self._mean_risk(counts, size)
        # The k-th of a group's m samples, of mean loss ℓ, is at the risk
        # (L + k ℓ)/(M + k), L and M the loss and the mass of the more confident groups.
        # The sum over k is m ℓ + (L − M ℓ)(H_{M+m} − H_M).
        mass, loss = self.mass, self.loss
        above = sums_after(xp.stack([mass, loss]))
        n = above[0][..., 0] + mass[..., 0]
        spread = harmonic_difference(above[0], mass, xp)
        kept = 1.0 - above[0] * spread / xp.where(mass > 0, mass, 1.0)
        risks = xp.where(mass > 0, loss * kept + above[1] * spread, 0.0)
        return xp.sum(risks, axis=-1) / xp.maximum(n, TINY)

    def _mean_risk(self, counts: Any, size: int) -> Any:
        """Returns the mean of the risks at coverages 1/n … 1, for NumPy counts."""
        each = self.loss / np.maximum(counts, 1)
        if size > len(counts) or not counts.all():
            each = np.repeat(each, counts)
        risks = np.cumsum(each[::-1])
        risks /= np.arange(1.0, size + 1.0)
        return risks.mean()

    def au(self, coverage: float) -> Any:
        """Mean of the selective risks at the scores below the κ-quantile."""
        xp = self.xp
        n, _, upto = self.ends()
        # The quantile lies between the samples at positions i and i + 1, from 0 on.
        position = coverage * (n - 1.0)
        i = xp.floor(position)
        between = position > i
        # The sample at i is below it if the one at i + 1 is in a later group.
        below = xp.where(between, upto <= i + 1.0, upto <= i)
        low = xp.where(below, self.mass, 0.0)
        mass, loss = (xp.flip(sums, axis=-1) for sums in self.accepted())
        risk = loss / xp.maximum(mass, TINY)
        total = xp.sum(low, axis=-1)
        area = xp.sum(xp.where(low > 0, low * risk, 0.0), axis=-1)
        area = area / xp.where(total > 0, total, 1.0) + 0.0 * loss[..., 0]
        return xp.where(total > 0, area, float("nan"))

    def augrc(self) -> Any:
        """(1/n²) Σ ℓ (mass below + half the group's own)."""
        n = self.xp.maximum(self.n, TINY)[..., None]
        rank = (self.before + self.mass / 2) / n
        return self.xp.sum(rank * (self.loss / n), axis=-1)

    def failure_auroc(self) -> Any:
        """P(a correct prediction has higher confidence than a wrong one); ties count
        half.
        """
        xp = self.xp
        right = self.mass - self.loss
        all_right, all_wrong = xp.sum(right, axis=-1), xp.sum(self.loss, axis=-1)
        wrong_below = cumsum(self.loss) - self.loss / 2
        both = (all_right > 0) & (all_wrong > 0)
        share = wrong_below / xp.where(both, all_wrong, 1.0)[..., None]
        area = xp.sum(right * share, axis=-1) / xp.where(both, all_right, 1.0)
        return xp.where(both | (area != area), area, float("nan"))

    def average_precision(self, positive: str) -> Any:
        """Σ (recall gained by a group) · precision, from the first group on: the most
        confident one to find samples of loss 0 ("known"), or the least confident one
        to find those of loss 1 ("unknown").
        """
        xp = self.xp
        mass, found = self.mass, self.loss
        if positive == "known":
            mass, found = xp.flip(mass, axis=-1), xp.flip(mass - found, axis=-1)
        total = xp.sum(found, axis=-1)
        upto = xp.cumsum(mass, axis=-1)
        precision = xp.cumsum(found, axis=-1) / xp.maximum(upto, TINY)
        area = xp.sum(found * precision, axis=-1) / xp.where(total > 0, total, 1.0)
        return xp.where((total > 0) | (area != area), area, float("nan"))

    def fpr_at(self, tpr: float) -> Any:
        """Share of the loss in the most confident groups that hold a share `tpr` of
        the rest of the mass; whole groups only.
        """
        xp = self.xp
        mass, loss = self.accepted()
        right, wrong = mass[..., -1] - loss[..., -1], loss[..., -1]
        enough = mass - loss >= (tpr * (1 - self.slack)) * right[..., None]
        least = xp.amin(xp.where(enough, loss, wrong[..., None]), axis=-1)
        both = (right > 0) & (wrong > 0)
        share = least / xp.where(both, wrong, 1.0)
        return xp.where(both | (share != share), share, float("nan"))

    def risk_at(self, coverage: float) -> Any:
        """Mean loss of the most confident share κ; the group at the cut counts in
        part.
        """
        xp = self.xp
        n, _, upto = self.ends()
        wanted = coverage * n
        # What is left for a group once the more confident ones are in.
        share = (wanted - (n - upto)) / xp.where(self.mass > 0, self.mass, 1.0)
        loss = self.loss
        # An infinite loss that is not accepted does not count; NaN always does.
        loss = xp.where((share > 0) | (loss != loss), loss, 0.0)
        accepted = xp.sum(xp.clip(share, 0.0, 1.0) * loss, axis=-1)
        return accepted / xp.maximum(wanted[..., 0], TINY)

    def coverage_at(self, risk: float) -> Any:
        """Largest coverage of a mean loss of at most r; whole groups only."""
        xp = self.xp
        mass, loss = self.accepted()
        kept = at_most(risk, loss, mass, self.slack)
        n = mass[..., -1]
        coverage = xp.amax(xp.where(kept, mass, 0.0), axis=-1) / xp.maximum(n, TINY)
        total = loss[..., -1]
        return xp.where(total == total, coverage, float("nan"))


def at_most(risk: float, loss: Any, mass: Any, slack: float) -> Any:
    """Returns where the mean loss is at most r, up to a share of r."""
    return loss <= risk * mass * (1 + slack)


def best_ranking(losses: Any, counts: Any) -> tuple[Any, Any]:
    """Returns coverage and risk of NumPy samples accepted in rising order of loss."""
    order = np.argsort(losses, kind="stable")
    upto = np.cumsum(counts[order])
    return upto / upto[-1], np.cumsum((counts * losses)[order]) / upto
