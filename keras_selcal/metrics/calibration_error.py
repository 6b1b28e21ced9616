"""Binned calibration errors as streaming metrics."""

import math
from typing import Any

from keras import ops
from keras.backend import standardize_dtype

from keras_selcal import csf as csfs
from keras_selcal._core.batch import Batch
from keras_selcal._core.binning import (
    NORMS,
    calibration_norm,
    cell_sums,
    check_binning,
    uniform_edges,
)
from keras_selcal._core.ops import Tensor, safe_log, segment_sum
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import check_choice, check_count, refuse
from keras_selcal.metrics.base import (
    ClassificationMetric,
    rescaled,
    score_log_odds,
    to_cells,
    top_label,
)

# Cells of all classes' histograms together, unless told.
_MOST_CELLS = 2**24


class _BinnedError(ClassificationMetric):
    """Sums of mass and gap in bins of p, or in the cells that adaptive bins are cut
    from.
    """

    def __init__(
        self,
        num_bins: int,
        binning: str,
        norm: str,
        num_cells: int | None,
        from_logits: bool,
        name: str | None,
        dtype: Any,
    ) -> None:
        super().__init__(from_logits, name, dtype)
        self.num_bins, self.binning, _ = check_binning(num_bins, binning)
        self.norm = check_choice("norm", norm, NORMS)
        if num_cells is not None:
            num_cells = check_count("num_cells", num_cells, least=2)
        self.num_cells = num_cells

    @property
    def size(self) -> int:
        """The number of bins, or of the cells that adaptive ones are cut from."""
        if self.binning == "uniform":
            return self.num_bins
        return self.default_cells() if self.num_cells is None else self.num_cells

    def default_cells(self) -> int:
        raise NotImplementedError

    def bins(self, p: Tensor) -> Tensor:
        """Returns the index of each p, (m,), among bins (a, b], the first closed."""
        edges = uniform_edges(self.num_bins, standardize_dtype(p.dtype))[1:-1]
        index = ops.cast(
            ops.searchsorted(ops.convert_to_tensor(edges), p, side="left"), "int32"
        )
        # Where NaN goes differs between backends.
        return ops.where(ops.equal(p, p), index, 0)

    def errors(self, sums: Tensor, present: Tensor) -> Tensor:
        """Returns the error of each row of sums (rows, size, 2)."""
        if self.binning == "adaptive":
            sums = rescaled(sums, present)
            runs = cell_sums(sums[..., 1], sums[..., 0], self.num_bins)
            return calibration_norm(*runs, self.norm, ops)
        return calibration_norm(sums[..., 1], sums[..., 0], self.norm, ops)

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
    """Expected calibration error of the predicted class.

    Formula:

    ```
    ECE = Σ_b (n_b/n) |conf_b − acc_b|           norm="l1"
    ECE = √ Σ_b (n_b/n) (conf_b − acc_b)²        norm="l2"
    ECE = max_b |conf_b − acc_b|                 norm="max"
    ```

    with conf_b and acc_b the mean confidence and the accuracy in bin b. Uniform bins
    are exact, however the data are split into batches. Adaptive bins are cut from a
    histogram; a cell across a cut is shared out between its two bins, so that the
    error against `functional.ece` is at most the mass of the M − 1 cells at the cuts,
    as a share of n (`"l1"`) or of a bin (`"max"`). On the logits of CIFAR-10,
    CIFAR-100 and MNIST networks it is below 1e-4.

    Args:
        num_bins: M.
        binning: `"uniform"`: (a, b] of width 1/M, the first closed; `"adaptive"`: the
            sorted confidences cut into M runs of near-equal mass.
        norm: `"l1"`, `"l2"` or `"max"`.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        name: name of the metric.
        dtype: dtype of the metric.
        num_cells: cells of the histogram of adaptive bins, uniform in ℓ/(4 + |ℓ|), ℓ
            the confidence's log-odds. Defaults to 2¹⁷, and to 2²⁰ for `"max"`.

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

    def __init__(
        self,
        num_bins: int = 15,
        binning: str = "uniform",
        norm: str = "l1",
        from_logits: bool = False,
        name: str | None = "ece",
        dtype: Any = None,
        num_cells: int | None = None,
    ) -> None:
        super().__init__(num_bins, binning, norm, num_cells, from_logits, name, dtype)
        self._sums = self.add_sums("sums", (self.size, 2))
        self._present = self.add_sums("present", ())

    def default_cells(self) -> int:
        # A sample on the wrong side of a cut moves "max" by M/n at once.
        return 2**20 if self.norm == "max" else 2**17

    def update(self, batch: Batch, w: Tensor) -> None:
        confidence, correct = top_label(batch)
        if self.binning == "adaptive":
            index = to_cells(score_log_odds(batch, csfs.msp), self.size)
        else:
            index = self.bins(confidence)
        rows = ops.stack([w, w * (confidence - correct)], axis=-1)
        sums = segment_sum(rows, index, self.size)
        self.accumulate(self._sums, sums)
        self.accumulate(self._present, ops.sum(ops.cast(w > 0, w.dtype)))

    def result(self) -> Tensor:
        return self.errors(self.total(self._sums)[None], self.total(self._present))[0]


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
        num_classes: k. None takes it from the first predictions; JAX's stateless
            methods need it before.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        name: name of the metric.
        dtype: dtype of the metric.
        norm: `"l1"`, `"l2"` or `"max"`, of each class's bins.
        num_cells: cells of each class's histogram, for adaptive bins. Defaults to 2¹²,
            and to fewer above 4096 classes: the state has at most 2²⁴ in all (268 MB),
            and at least two a bin.

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

    def __init__(
        self,
        num_bins: int = 15,
        binning: str = "uniform",
        num_classes: int | None = None,
        from_logits: bool = False,
        name: str | None = "cwece",
        dtype: Any = None,
        norm: str = "l1",
        num_cells: int | None = None,
    ) -> None:
        super().__init__(num_bins, binning, norm, num_cells, from_logits, name, dtype)
        if num_classes is not None:
            num_classes = check_count("num_classes", num_classes, least=2)
        self.num_classes = num_classes
        self._built = False
        if num_classes is not None:
            self._build(num_classes)

    def default_cells(self) -> int:
        return max(2 * self.num_bins, min(2**12, _MOST_CELLS // self._k))

    def _build(self, num_classes: int) -> None:
        self._k = num_classes
        if num_classes * self.size >= 2**31:
            # Cells are numbered by int32.
            refuse("num_cells", self.num_cells, f"below 2³¹/k for k={num_classes}")
        self._sums = self.add_sums("sums", (num_classes, self.size, 2))
        self._present = self.add_sums("present", ())
        self._built = True

    def update(self, batch: Batch, w: Tensor) -> None:
        k = batch.num_classes
        if not self._built:
            self._build(k)
        if k != self._k:
            refuse("y_pred", f"(..., {k})", f"predictions of {self._k} classes")
        p = batch.p
        gap = ops.where(batch.valid[:, None], p - batch.distributions, math.nan)
        if self.binning == "adaptive":
            index = to_cells(self._log_odds(batch), self.size)
        else:
            index = ops.reshape(self.bins(ops.reshape(p, (-1,))), ops.shape(p))
        index = index + ops.arange(k, dtype="int32") * self.size
        w = ops.broadcast_to(w[:, None], ops.shape(p))
        sums = segment_sum(
            ops.reshape(ops.stack([w, w * gap], axis=-1), (-1, 2)),
            ops.reshape(index, (-1,)),
            k * self.size,
        )
        self.accumulate(self._sums, ops.reshape(sums, (k, self.size, 2)))
        self.accumulate(self._present, ops.sum(ops.cast(w[:, 0] > 0, w.dtype)))

    def _log_odds(self, batch: Batch) -> Tensor:
        """Returns ln p_c − ln(1 − p_c), (n, k)."""
        if not batch.in_logs:
            return safe_log(batch.p) - safe_log(1.0 - batch.p)
        log_p = batch.log_p
        log_odds = log_p - safe_log(-ops.expm1(log_p))
        # Only the largest p can be too close to 1 for its ln p to tell.
        largest = log_p == ops.amax(log_p, axis=-1, keepdims=True)
        return ops.where(largest, score_log_odds(batch, csfs.msp)[:, None], log_odds)

    def result_per_class(self) -> Tensor:
        """Returns each class's calibration error, (k,)."""
        if not self._built:
            raise ValueError(
                "`result_per_class` needs `num_classes`, or an update before it."
            )
        return self.errors(self.total(self._sums), self.total(self._present))

    def result(self) -> Tensor:
        if not self._built:
            return ops.zeros((), dtype=self.state_dtype)
        return ops.mean(self.result_per_class())

    def stateless_update_state(
        self, metric_variables: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._built:
            refuse("num_classes", None, "given before a stateless update")
        return super().stateless_update_state(metric_variables, *args, **kwargs)

    def merge_state(self, metrics: Any) -> None:
        for other in metrics:
            built = isinstance(other, ClasswiseCalibrationError) and other._built
            if built and not self._built:
                self._build(other._k)
        super().merge_state([other for other in metrics if other.variables])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}
