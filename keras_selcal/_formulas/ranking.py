"""Metrics of a ranking by confidence, as functions of groups of equal rank.

A ranking is the mass Σ w and the loss Σ w ℓ of each group, from the least confident
to the most, in the last axis. Samples of a group share its mean loss. The exact metrics
group equal scores, the streaming ones the cells of their histogram; empty groups are
allowed.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal._formulas.functions import (
    TINY,
    at_least,
    clip,
    constant,
    cumsum,
    floor,
    where_positive,
    zero_unless,
)
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
        return cumsum(self.mass, self.xp) - self.mass

    def accepted(self) -> tuple[Any, Any]:
        """Returns the mass and the loss of each group and all more confident ones, from
        the most confident group to the least.
        """
        both = self.xp.flip(self.xp.stack([self.mass, self.loss]), axis=-1)
        sums = cumsum(both, self.xp)
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
        # The k-th of a group's m samples, of mean loss ℓ, is at the risk
        # (L + k ℓ)/(M + k), L and M the loss and the mass of the more confident groups.
        # The sum over k is m ℓ + (L − M ℓ)(H_{M+m} − H_M).
        xp = self.xp
        upto = self.accepted()
        mass, loss = xp.flip(self.mass, axis=-1), xp.flip(self.loss, axis=-1)
        above, above_loss = (
            xp.concatenate([xp.zeros_like(x[..., :1]), x[..., :-1]], -1) for x in upto
        )
        spread = harmonic_difference(above, mass, xp)
        kept = 1.0 - above * spread / where_positive(mass > 0, mass, xp)
        risks = zero_unless(mass > 0, loss * kept + above_loss * spread, xp)
        return xp.sum(risks, axis=-1) / at_least(upto[0][..., -1], TINY, xp)

    def au(self, level: float) -> Any:
        """Mean of the selective risks at the scores below the κ-quantile."""
        xp = self.xp
        n, _, upto = self.ends()
        # The quantile lies between the samples at positions i and i + 1, from 0 on.
        position = level * (n - 1.0)
        i = floor(position, xp)
        between = position > i
        # The sample at i is below it if the one at i + 1 is in a later group.
        below = xp.where(between, upto <= i + 1.0, upto <= i)
        low = zero_unless(below, self.mass, xp)
        mass, loss = (xp.flip(sums, axis=-1) for sums in self.accepted())
        risk = loss / at_least(mass, TINY, xp)
        total = xp.sum(low, axis=-1)
        area = xp.sum(zero_unless(low > 0, low * risk, xp), axis=-1)
        area = area / where_positive(total > 0, total, xp) + 0.0 * loss[..., 0]
        return _nan_unless(total > 0, area, xp)

    def augrc(self) -> Any:
        """(1/n²) Σ ℓ (mass below + half the group's own)."""
        n = at_least(self.n, TINY, self.xp)[..., None]
        rank = (self.before + self.mass / 2) / n
        return self.xp.sum(rank * (self.loss / n), axis=-1)

    def failure_auroc(self) -> Any:
        """P(a correct prediction has higher confidence than a wrong one); ties count
        half.
        """
        xp = self.xp
        right = self.mass - self.loss
        all_right, all_wrong = xp.sum(right, axis=-1), xp.sum(self.loss, axis=-1)
        wrong_below = cumsum(self.loss, xp) - self.loss / 2
        both = (all_right > 0) & (all_wrong > 0)
        share = wrong_below / where_positive(both, all_wrong, xp)[..., None]
        area = xp.sum(right * share, axis=-1) / where_positive(both, all_right, xp)
        return _nan_unless(both, area, xp)

    def average_precision(self, positive: str) -> Any:
        """Σ (recall gained by a group) · precision, from the first group on: the most
        confident one to find samples of loss 0 ("known"), or the least confident one
        to find samples of loss 1 ("unknown").
        """
        xp = self.xp
        mass, found = self.mass, self.loss
        if positive == "known":
            mass, found = xp.flip(mass, axis=-1), xp.flip(mass - found, axis=-1)
        total = xp.sum(found, axis=-1)
        upto = cumsum(mass, xp)
        precision = cumsum(found, xp) / at_least(upto, TINY, xp)
        area = xp.sum(found * precision, axis=-1)
        return _nan_unless(total > 0, area / where_positive(total > 0, total, xp), xp)

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
        return _nan_unless(both, least / where_positive(both, wrong, xp), xp)

    def risk_at(self, coverage: float) -> Any:
        """Mean loss of the most confident share κ; the group at the cut counts in
        part.
        """
        xp = self.xp
        n, _, upto = self.ends()
        wanted = coverage * n
        # What is left for a group once the more confident ones are in.
        share = (wanted - (n - upto)) / where_positive(self.mass > 0, self.mass, xp)
        share = clip(share, 0.0, 1.0, xp)
        # An infinite loss that is not accepted does not count; NaN always does.
        counts = (share > 0) | xp.isnan(self.loss)
        accepted = xp.sum(share * zero_unless(counts, self.loss, xp), axis=-1)
        return accepted / at_least(wanted[..., 0], TINY, xp)

    def coverage_at(self, risk: float) -> Any:
        """Largest coverage of a mean loss of at most r; whole groups only."""
        xp = self.xp
        mass, loss = self.accepted()
        kept = zero_unless(meets(risk, loss, mass, self.slack), mass, xp)
        n, total = mass[..., -1], loss[..., -1]
        coverage = xp.amax(kept, axis=-1) / at_least(n, TINY, xp)
        return xp.where(xp.isnan(total), total, coverage)


def _nan_unless(condition: Any, x: Any, xp: Any) -> Any:
    """Returns x where the condition holds, and NaN elsewhere."""
    return xp.where(condition, x, constant(float("nan"), x, xp))


def meets(risk: float, loss: Any, mass: Any, slack: float) -> Any:
    """Returns where the mean loss is at most r, up to a share of r."""
    return loss <= risk * mass * (1 + slack)


def best_ranking(losses: Any, counts: Any) -> tuple[Any, Any]:
    """Returns coverage and risk of NumPy samples accepted in rising order of loss."""
    order = np.argsort(losses, kind="stable")
    upto = np.cumsum(counts[order])
    return upto / upto[-1], np.cumsum((counts * losses)[order]) / upto
