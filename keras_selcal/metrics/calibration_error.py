"""Binned calibration errors as streaming metrics."""

from typing import Any

from keras import ops

from keras_selcal import csf as csfs
from keras_selcal._arrays import Tensor
from keras_selcal._formulas.binning import (
    KINDS,
    NORMS,
    calibration_norm,
    check_binning,
    check_kind,
    run_cuts,
    uniform_bins,
)
from keras_selcal._formulas.functions import (
    clip,
    cumsum,
    safe_log,
    where_positive,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_count, refuse
from keras_selcal.metrics.base import ClassificationMetric
from keras_selcal.metrics.ranking import cells_of, rescaled, to_cells, weighted


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

    def create_state(self, num_parts: int) -> None:
        self.size = self.num_bins
        if self.binning == "adaptive":
            self.size = cells_of(self.num_cells, num_parts, 2 * self.num_bins)
        if num_parts * self.size > 2**24:
            # Cells are numbered by floats.
            name = "num_bins" if self.binning == "uniform" else "num_cells"
            refuse(name, self.size, f"at most 2²⁴/k for k={num_parts}")
        self._sums = self.add_sums("sums", (num_parts, self.size, 3))

    def compute(self) -> tuple[Tensor, Tensor]:
        sums, present = rescaled(self.total(self._sums))
        mass, gap = sums[..., 0], sums[..., 1]
        if self.binning == "adaptive":
            cuts = run_cuts(ops.sum(mass, axis=-1, keepdims=True), self.num_bins, ops)
            gap = _upto(mass, gap, cuts)
            gap, mass = (at[:, 1:] - at[:, :-1] for at in (gap, cuts))
        return calibration_norm(gap, mass, self.norm, ops), present

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "binning": self.binning,
            "norm": self.norm,
            "num_cells": self.num_cells,
        }


def _upto(mass: Tensor, value: Tensor, cuts: Tensor) -> Tensor:
    """Returns the value of the first cells with the mass of each cut, (num_parts, m);
    a cell across a cut counts in part.
    """
    before = cumsum(mass, ops) - mass
    width = where_positive(mass > 0, mass, ops)
    share = (cuts[..., None] - before[:, None]) / width[:, None]
    share = clip(share, 0.0, 1.0, ops)
    return ops.sum(share * value[:, None], axis=-1)


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
    cut from a histogram; a cell across a cut is split between its two bins. The error
    is at most the mass of the M − 1 cells at the cuts, as a share of n (`"l1"`) or of a
    bin (`"max"`). `keras_selcal.functional.ece` is exact.

    Args:
        num_bins: M.
        binning: `"uniform"`: (a, b] of width 1/M, the first closed; `"adaptive"`: the
            sorted confidences cut into M runs of near-equal mass.
        norm: `"l1"`, `"l2"` or `"max"`.
        kind: what is calibrated: `"top_label"`, the confidence in the predicted class,
            or `"positive"`, the probability of class 1 (one sigmoid unit, two classes
            or several labels), as in scikit-learn's `calibration_curve` and
            torchmetrics' `BinaryCalibrationError`.
        pooled: with `multi_label=True`, whether the outputs of all labels share their
            bins. By default the error is the mean of the errors of the labels.
        num_cells: cells of the histogram of adaptive bins, uniform in ℓ/(4 + |ℓ|), ℓ
            the confidence's log-odds. Defaults to 4,096, and to fewer where all
            labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

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
        *,
        binning: str = "uniform",
        norm: str = "l1",
        kind: str = "top_label",
        pooled: bool = False,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "ece",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_bins,
            binning=binning,
            norm=norm,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )
        self.kind = check_choice("kind", kind, KINDS)
        self.pooled = bool(pooled)
        self.build_state()

    @property
    def separate(self) -> bool:
        return self.outputs.multi_label and not self.pooled

    def update(self, batch: Batch, w: Tensor) -> None:
        check_kind(self.kind, batch.num_classes)
        if self.kind == "top_label":
            p, outcome = batch.confidence, batch.correct
        else:
            p, outcome = batch.p[:, 1], batch.distributions[:, 1]
        if self.binning == "adaptive":
            index = to_cells(self._log_odds(batch), self.size)
        else:
            index = uniform_bins(p, self.num_bins, ops)
        columns = weighted(w, p - outcome)
        self.accumulate(self._sums, self.histogram(index, columns, self.size))

    def _log_odds(self, batch: Batch) -> Tensor:
        """Returns the log-odds of the event, (n,)."""
        if self.kind == "top_label" and batch.decision_threshold == 0.5:
            return batch.log_odds(csfs.msp)
        log_odds = batch.log_p[:, 1] - batch.log_p[:, 0]
        if self.kind == "positive":
            return log_odds
        return ops.where(batch.predicted[:, 0] == 1, log_odds, -log_odds)

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
    histogram for each class; `keras_selcal.functional.cwece` is exact.

    Args:
        num_bins: M.
        binning: `"uniform"` or `"adaptive"`, as in `ExpectedCalibrationError`.
        norm: `"l1"`, `"l2"` or `"max"`, of each class's bins.
        num_cells: cells of each class's histogram, for adaptive bins. Defaults to
            4,096, and to fewer where all classes together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

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
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "cwece",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            num_bins,
            binning=binning,
            norm=norm,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )
        self.build_state()

    def update(self, batch: Batch, w: Tensor) -> None:
        # Of several labels, a row has two classes, and its label is the second.
        first = 1 if self.outputs.multi_label else 0
        p, y = batch.p[:, first:], batch.distributions[:, first:]
        if self.binning == "adaptive":
            index = to_cells(self._log_odds(batch)[:, first:], self.size)
        else:
            index = uniform_bins(p, self.num_bins, ops)
        w = ops.broadcast_to(ops.expand_dims(w, -1), ops.shape(p))
        # One entry for each sample and class or label, sample after sample.
        index, w, gap = (ops.reshape(x, (-1,)) for x in (index, w, p - y))
        self.accumulate(self._sums, self.histogram(index, weighted(w, gap), self.size))

    def _log_odds(self, batch: Batch) -> Tensor:
        """Returns ln p_c − ln(1 − p_c), (n, k)."""
        if not batch.from_logits:
            return safe_log(batch.p, ops) - safe_log(1.0 - batch.p, ops)
        log_p = batch.log_p
        log_odds = log_p - safe_log(-ops.expm1(log_p), ops)
        # Only the largest p can be so close to 1 that its ln p loses digits.
        largest = log_p == ops.amax(log_p, axis=-1, keepdims=True)
        top = ops.expand_dims(batch.log_odds(csfs.msp), -1)
        return ops.where(largest, top, log_odds)
