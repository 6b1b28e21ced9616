"""Metrics of many bootstrap resamples at once.

A resample of n samples is a row of counts (n,): how often it holds each of them.
Values that depend on one sample alone (its confidence, correctness, losses, bin, rank)
are computed once. A metric is then a few sums over counts, for a block of rows at a
time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, row_blocks
from keras_selcal._formulas.binning import (
    calibration_norm,
    run_sums,
    uniform_index,
)
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.samples import Samples
from keras_selcal._segments import Segments
from keras_selcal.functional.sample_losses import sample_losses
from keras_selcal.functional.smooth_ece import smooth_errors

# SmoothECE of a resample is computed on a coarser grid than the metric itself: within
# 1e-5 of it, at a small part of the cost.
_SMOOTH_STEPS = 2**11
_SMOOTH_ROUNDS = 10

# Up to this number of sums, a plain loop is as fast as a matrix product.
_FEW_SUMS = 100


class Resampled:
    """The metrics of a report on resamples of its samples.

    Args:
        samples: the samples.
        csf: the confidence score that ranks.
        num_bins: M.
        coverages: where the selective risk is taken.
        risks: where the coverage is taken.
        refined: cross-entropy of the samples at their best temperature, (n,), which
            resamples keep.
    """

    def __init__(
        self,
        samples: Samples,
        csf: Any,
        num_bins: int,
        coverages: Sequence[float],
        risks: Sequence[float],
        refined: Array,
    ) -> None:
        self.samples = samples
        self.num_bins = num_bins
        self.coverages = coverages
        self.risks = risks
        p, correct = samples.confidence.astype("float64"), samples.correct
        self._gap = p - correct
        self._means = np.stack(
            [
                correct,
                sample_losses(samples, "crossentropy"),
                sample_losses(samples, "brier"),
                refined,
            ]
        )
        # 0·∞ is NaN: an infinite loss is counted only where it is drawn.
        self._infinite = np.isinf(self._means).astype("float64")
        self._means[np.isinf(self._means)] = 0.0
        self._by_bin = Segments.of(uniform_index(samples.confidence, num_bins))
        self._by_confidence = Segments.of(samples.confidence)
        self._losses = 1.0 - correct
        # Correct predictions that are neighbours in rank add no loss: one group does.
        ranks = Segments.of(samples.ranks(csf))
        self._by_rank = ranks.merged(self._losses == 0)
        self._by_loss = Segments.of(-self._losses)
        self._positive: tuple[Array, Segments] | None = None
        if samples.num_classes == 2:
            p, y = samples.event("positive")
            self._positive = (
                p.astype("float64") - y,
                Segments.of(uniform_index(p, num_bins)),
            )
        self._classes: _ClassBins | _LabelBins
        if samples.label_index is None:
            self._classes = _ClassBins(samples, num_bins)
        else:
            self._classes = _LabelBins(samples, num_bins)

    def metrics(self, drawn: Array) -> dict[str, Array]:
        """Returns each metric of each resample, (rows,).

        Args:
            drawn: how often each sample is drawn, (rows, n).
        """
        count = self.samples.counts_of(drawn)
        total = count.sum(axis=-1)
        return {
            **self._proper_scores(count, total),
            **self._calibration(count, total),
            **self._selective(count),
        }

    def _proper_scores(self, count: Array, total: Array) -> dict[str, Array]:
        means = _dots(count, self._means) / total[:, None]
        means[_dots(count, self._infinite) > 0] = np.inf
        names = "accuracy", "nll", "brier", "refinement"
        return dict(zip(names, means.T, strict=True))

    def _calibration(self, count: Array, total: Array) -> dict[str, Array]:
        gap = count * self._gap
        mass = self._by_confidence.sums(count)
        height = self._by_confidence.sums(gap)
        runs = run_sums(np.cumsum(mass), np.cumsum(height), total, self.num_bins)
        p = np.clip(self.samples.confidence.astype("float64"), 0.0, 1.0)
        residual = count * (p - self.samples.correct) / total[:, None]
        errors = {}
        if self._positive is not None:
            of_positive, by_bin = self._positive
            sums = by_bin.sums(count * of_positive)
            errors["positive_ece"] = np.abs(sums).sum(axis=-1) / total
        return {
            **errors,
            "ece": np.abs(self._by_bin.sums(gap)).sum(axis=-1) / total,
            "adaptive_ece": calibration_norm(*runs, "l1", np),
            "cwece": self._classes.error(count, total),
            "smooth_ece": smooth_errors(p, residual, _SMOOTH_STEPS, _SMOOTH_ROUNDS),
        }

    def _selective(self, count: Array) -> dict[str, Array]:
        losses = count * self._losses
        ranking = Ranking(self._by_rank.sums(count), self._by_rank.sums(losses), np)
        best = Ranking(self._by_loss.sums(count), self._by_loss.sums(losses), np)
        aurc = ranking.aurc()
        return {
            "aurc": aurc,
            "excess_aurc": np.maximum(aurc - best.aurc(), 0.0),
            "augrc": ranking.augrc(),
            "failure_auroc": ranking.failure_auroc(),
            **{at("risk_at_coverage", c): ranking.risk_at(c) for c in self.coverages},
            **{at("coverage_at_risk", r): ranking.coverage_at(r) for r in self.risks},
        }


def _dots(count: Array, values: Array) -> Array:
    """Returns Σ_i count_{r,i} values_{m,i}, (rows, m)."""
    # A threaded BLAS spends more on its threads than a few short sums take.
    if len(values) <= _FEW_SUMS:
        return np.asarray(np.einsum("ri,mi->rm", count, values))
    return np.asarray(count @ values.T)


def at(metric: str, value: float) -> str:
    """Returns the name of a metric that is taken at a value."""
    return f"{metric}_{value:g}"


class _ClassBins:
    """Uniform bins of each class's probability.

    Probabilities add up to 1, so at most M − 1 of a sample lie above 1/M. Only
    these are summed bin by bin; a class's first bin gets the rest of its sum.
    """

    def __init__(self, samples: Samples, num_bins: int) -> None:
        n, k = samples.y_pred.shape
        self._gap = np.empty((k, n))
        above = []
        for block in row_blocks((n, k)):
            p = samples.p(block)
            self._gap[:, block] = (p - samples.one_hot(block)).T
            index = uniform_index(p, num_bins)
            row, c = np.nonzero(index)
            above.append((row + block.start, c, index[row, c]))
        row, c, index = (np.concatenate(parts) for parts in zip(*above, strict=True))
        bins = Segments.of(c * num_bins + index)
        self._row = row[bins.order]
        self._gap_above = self._gap[c, row][bins.order]
        self._starts = bins.starts
        # The bins stand class by class; some classes may have none above the first.
        self._class = c[bins.order][bins.starts]
        self._class_starts = Segments.of(self._class).starts

    def error(self, count: Array, total: Array) -> Array:
        """Returns cwECE of each row of counts (rows, n)."""
        first = _dots(count, self._gap)
        error = np.zeros(len(count))
        if len(self._starts):
            entries = count[:, self._row] * self._gap_above
            gap = np.add.reduceat(entries, self._starts, axis=-1)
            of_class = np.add.reduceat(gap, self._class_starts, axis=-1)
            first[:, self._class[self._class_starts]] -= of_class
            error += np.abs(gap).sum(axis=-1)
        error += np.abs(first).sum(axis=-1)
        return error / (total * first.shape[-1])


class _LabelBins:
    """Uniform bins of the probability of each label of multi-label data."""

    def __init__(self, samples: Samples, num_bins: int) -> None:
        p, y = samples.event("positive")
        label = samples.label_index
        assert label is not None
        bins = Segments.of(label * num_bins + uniform_index(p, num_bins))
        self._gap, self._bins = p.astype("float64") - y, bins
        self._label = Segments.of(label)
        # The bins stand label by label.
        self._starts = Segments.of(label[bins.order][bins.starts]).starts

    def error(self, count: Array, total: Array) -> Array:
        """Returns the mean error of the labels for each row of counts (rows, n)."""
        gap = np.abs(self._bins.sums(count * self._gap))
        of_label = np.add.reduceat(gap, self._starts, axis=-1)
        mass = self._label.sums(count)
        # A label without a sample in the resample does not count.
        drawn = mass > 0
        error = of_label / np.where(drawn, mass, 1.0)
        return np.asarray(error.sum(axis=-1) / drawn.sum(axis=-1))
