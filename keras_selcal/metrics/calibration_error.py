"""Binned calibration errors as streaming metrics."""

from typing import Any

import numpy as np
from keras import ops
from keras.backend import backend, standardize_dtype

from keras_selcal import csf as csfs
from keras_selcal._backend.histogram import Histogram
from keras_selcal._backend.host import array_module, cast
from keras_selcal._backend.ops import Tensor, safe_log
from keras_selcal._formulas.binning import (
    KINDS,
    NORMS,
    calibration_norm,
    check_binning,
    check_kind,
    run_cuts,
    uniform_bins,
    uniform_edges,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_count, refuse
from keras_selcal.metrics.base import MOST_CELLS, ClassificationMetric
from keras_selcal.metrics.ranking import to_cells


def positive(batch: Batch) -> Tensor:
    """Returns the probability of class 1 of two, (n,)."""
    # The sum of one column is contiguous, as torch's searchsorted wants it.
    return batch.xp.sum(batch.p[:, 1:], axis=-1)


class _BinnedError(ClassificationMetric):
    """Sums of mass and gap in bins of p, or in the cells that adaptive bins are cut
    from.
    """

    def __init__(
        self,
        num_bins: int,
        *,
        binning: str,
        norm: str,
        num_cells: int | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.num_bins, self.binning, _ = check_binning(num_bins, binning)
        self.norm = check_choice("norm", norm, NORMS)
        if num_cells is not None:
            num_cells = check_count("num_cells", num_cells, least=2)
        self.num_cells = num_cells

    def create_state(self, groups: int) -> None:
        self.size = self.num_bins
        if self.binning == "adaptive":
            default = max(2 * self.num_bins, min(self.cells(), MOST_CELLS // groups))
            self.size = self.num_cells or default
        if groups * self.size >= 2**31:
            # Cells are numbered by int32.
            refuse("num_cells", self.num_cells, f"below 2³¹/k for k={groups}")
        self._sums = self.add_sums("sums", (groups, self.size, 2))
        self._present = self.add_sums("present", (groups,))

    def cells(self) -> int:
        """Returns the default number of cells, for few classes."""
        raise NotImplementedError

    def bins(self, p: Tensor) -> Tensor:
        """Returns the index of each p, (m,), among bins (a, b], the first closed."""
        last = self.num_bins - 1
        if isinstance(p, np.ndarray):
            return uniform_bins(p, self.num_bins)
        edges = uniform_edges(self.num_bins, standardize_dtype(p.dtype))
        edges = ops.convert_to_tensor(edges)
        if backend() == "torch":
            # One operation; NaN goes to the last bin, and its weight is NaN.
            index = ops.searchsorted(edges[1:-1], p, side="left")
            return ops.cast(index, "int32")
        if backend() == "jax" and self.num_bins <= 64:
            # XLA counts in registers, and gathers edges one by one. NaN goes to bin 0.
            above = ops.cast(p[:, None] > edges[1:-1], "int32")
            return ops.sum(above, axis=-1)
        # Backends differ in where NaN goes.
        p = ops.where(ops.equal(p, p), p, 0.0)
        # p·M is the bin, except at edges and for rounding; faster than a search.
        index = ops.clip(ops.cast(p * self.num_bins, "int32"), 0, last)
        low, high = ops.take(edges, index), ops.take(edges, index + 1)
        above, below = (ops.cast(at, "int32") for at in (p > high, p <= low))
        return ops.clip(index + above - below, 0, last)

    def compute(self) -> tuple[Tensor, Tensor]:
        present = self.total(self._present)
        if self.binning == "adaptive":
            histogram = Histogram(self.pairs(self._sums), present)
            cuts = run_cuts(histogram.n[:, None], self.num_bins, histogram.xp)
            # A cell across a cut is split between its two runs.
            upto = histogram.upto(cuts)
            gap, mass = (at[:, 1:] - at[:, :-1] for at in (upto, cuts))
        else:
            sums = self.total(self._sums)
            gap, mass = sums[..., 1], sums[..., 0]
        return calibration_norm(gap, mass, self.norm, array_module(gap)), present

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "binning": self.binning,
            "norm": self.norm,
            "num_cells": self.num_cells,
        }


@serializable
class ExpectedCalibrationError(_BinnedError):
    """Expected calibration error of the predicted class, or of the positive one.

    Formula:

    ```
    ECE = Σ_b (n_b/n) |conf_b − acc_b|           norm="l1"
    ECE = √ Σ_b (n_b/n) (conf_b − acc_b)²        norm="l2"
    ECE = max_b |conf_b − acc_b|                 norm="max"
    ```

    with conf_b and acc_b the mean confidence and the accuracy in bin b. With
    kind="positive", for two classes, these are the mean probability of class 1 and its
    frequency.

    Uniform bins are exact, however the data are split into batches. Adaptive bins are
    cut from a histogram; a cell across a cut is split between its two bins, so
    that the error against `functional.ece` is at most the mass of the M − 1 cells at
    the cuts, as a share of n (`"l1"`) or of a bin (`"max"`). On the logits of CIFAR-10,
    CIFAR-100 and MNIST networks it is below 1e-4.

    Args:
        num_bins: M.
        binning: `"uniform"`: (a, b] of width 1/M, the first closed; `"adaptive"`: the
            sorted confidences cut into M runs of near-equal mass.
        norm: `"l1"`, `"l2"` or `"max"`.
        kind: which probability is to match which frequency. `"top_label"`: that of the
            predicted class, and its accuracy. `"positive"`, for one sigmoid unit, two
            classes or several labels: that of class 1, as scikit-learn's
            `calibration_curve` and torchmetrics' `BinaryCalibrationError` have it.
        pooled: with `multi_label=True`, whether the outputs of all labels share their
            bins. By default the error is the mean of the errors of the labels.
        num_cells: cells of the histogram of adaptive bins, uniform in ℓ/(4 + |ℓ|), ℓ
            the confidence's log-odds. Defaults to 2¹⁷, and to 2²⁰ for `"max"`.
        **options: `from_logits`, `multi_label`, `ignore_class`, `axis`,
            `decision_threshold` and others, see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = ExpectedCalibrationError()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 1, 1]), p)
    >>> round(float(metric.result()), 4)
    0.3

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    - Nixon et al., [Measuring Calibration in Deep
      Learning](https://arxiv.org/abs/1904.01685), for adaptive bins
    """

    row_wise = True

    def __init__(
        self,
        num_bins: int = 15,
        *,
        binning: str = "uniform",
        norm: str = "l1",
        kind: str = "top_label",
        pooled: bool = False,
        num_cells: int | None = None,
        name: str | None = "ece",
        **options: Any,
    ) -> None:
        super().__init__(
            num_bins,
            binning=binning,
            norm=norm,
            num_cells=num_cells,
            name=name,
            **options,
        )
        self.kind = check_choice("kind", kind, KINDS)
        self.pooled = bool(pooled)
        self.build_state()

    @property
    def grouped(self) -> bool:
        return self.outputs.multi_label and not self.pooled

    def cells(self) -> int:
        # A sample on the wrong side of a cut moves "max" by M/n at once.
        return 2**20 if self.norm == "max" else 2**17

    def update(self, batch: Batch, w: Tensor) -> None:
        check_kind(self.kind, batch.num_classes)
        p, outcome = self._event(batch)
        if self.binning == "adaptive":
            index = to_cells(self._log_odds(batch), self.size)
        else:
            index = self.bins(p)
        rows = batch.xp.stack([w, w * (p - outcome)], axis=-1)
        self.accumulate_rows(self._sums, rows, index, self._present)

    def _event(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the probability of an event and whether it happened, both (n,)."""
        if self.kind == "top_label":
            return batch.top_label()
        return positive(batch), batch.distributions[:, 1]

    def _log_odds(self, batch: Batch) -> Tensor:
        """Returns the log-odds of the event, (n,)."""
        if self.kind == "top_label" and batch.threshold == 0.5:
            return batch.log_odds(csfs.msp)
        log_odds = batch.log_p[:, 1] - batch.log_p[:, 0]
        if self.kind == "positive":
            return log_odds
        predicted = batch.predicted()[:, 0]
        return batch.xp.where(predicted == 1, log_odds, -log_odds)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind, "pooled": self.pooled}


@serializable
class ClasswiseCalibrationError(_BinnedError):
    """Class-wise calibration error: each class's probability, mean over all classes.

    Formula:

    ```
    cwECE = (1/k) Σ_c Σ_b (n_{b,c}/n) |p̄_{b,c} − ȳ_{b,c}|
    ```

    with p̄_{b,c} the mean of p_c and ȳ_{b,c} the frequency of class c among the samples
    whose p_c lies in bin b. Uniform bins are exact. Adaptive ones are cut from a
    histogram for each class; the error against `functional.cwece` is below 1e-4 on
    the logits of CIFAR-10, CIFAR-100 and MNIST networks.

    Args:
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `ExpectedCalibrationError`.
        norm: `"l1"`, `"l2"` or `"max"`, of each class's bins.
        num_classes: k. None takes it from the first predictions; JAX's stateless
            methods need it before.
        num_cells: cells of each class's histogram, for adaptive bins. Defaults to 2¹²,
            and to fewer above 4096 classes: the state has at most 2²⁴ in all (268 MB),
            and at least two a bin.
        **options: `from_logits`, `multi_label`, `ignore_class`, `axis` and others, see
            `ClassificationMetric`. With `multi_label=True`, the classes are the labels.

    Example:
    >>> import numpy as np
    >>> metric = ClasswiseCalibrationError(num_classes=2)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 1, 1]), p)
    >>> round(float(metric.result()), 4)
    0.3

    References:
    - Kull et al., [Beyond temperature scaling: Obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration](https://arxiv.org/abs/1910.12656)
    """

    class_wise = True

    def __init__(
        self,
        num_bins: int = 15,
        *,
        binning: str = "uniform",
        norm: str = "l1",
        num_cells: int | None = None,
        name: str | None = "cwece",
        **options: Any,
    ) -> None:
        super().__init__(
            num_bins,
            binning=binning,
            norm=norm,
            num_cells=num_cells,
            name=name,
            **options,
        )
        self.build_state()

    def cells(self) -> int:
        return 2**12

    def update(self, batch: Batch, w: Tensor) -> None:
        xp = batch.xp
        if self.outputs.multi_label:
            columns, present = slice(1, 2), self.group_counts(w)
            p = positive(batch)[:, None]
        else:
            columns, present = slice(None), xp.sum(cast(w > 0, w.dtype))
            p = batch.p
        gap = p - batch.distributions[:, columns]
        if self.binning == "adaptive":
            index = to_cells(self._log_odds(batch)[:, columns], self.size)
        else:
            index = xp.reshape(self.bins(xp.reshape(p, (-1,))), xp.shape(p))
        weights = xp.broadcast_to(w[:, None], xp.shape(p))
        rows = xp.reshape(xp.stack([weights, weights * gap], axis=-1), (-1, 2))
        # One entry for each sample and class or label, sample after sample.
        self.accumulate_rows(self._sums, rows, xp.reshape(index, (-1,)))
        self.accumulate(self._present, present)

    def _log_odds(self, batch: Batch) -> Tensor:
        """Returns ln p_c − ln(1 − p_c), (n, k)."""
        if not batch.in_logs:
            return safe_log(batch.p) - safe_log(1.0 - batch.p)
        log_p = batch.log_p
        xp = batch.xp
        log_odds = log_p - safe_log(-xp.expm1(log_p))
        # Only the largest p can be so close to 1 that its ln p loses digits.
        largest = log_p == xp.amax(log_p, axis=-1, keepdims=True)
        return xp.where(largest, batch.log_odds(csfs.msp)[:, None], log_odds)

    def result_per_class(self) -> Tensor:
        """Returns each class's calibration error, (k,)."""
        return self.result_per_group()
