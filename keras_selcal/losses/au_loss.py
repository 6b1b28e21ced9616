"""The AU loss: area under the risk-coverage curve, below a confidence threshold."""

import math
import warnings
from typing import Any

from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._core.batch import Batch
from keras_selcal._core.ops import Tensor
from keras_selcal._core.replicas import replicas
from keras_selcal._core.saving import serializable
from keras_selcal._core.soft_cdf import (
    as_row,
    check_cdf_arguments,
    check_region,
    region_weights,
)
from keras_selcal._core.validation import check_number, refuse
from keras_selcal.losses.base import ReweightedLoss

# Above this drag a network learns slowly or not at all.
_MOST_DRAG = 0.1


def drag(weight_gradient: float, smoothing: float, num_classes: int) -> float:
    """Returns D, by how much ∇β hinders the first steps of training.

    Formula:

    ```
    D = w ln k (1 − 1/k) / (2 ln 2 · k ν)
    ```

    At the start, with p ≈ 1/k and every score in one place, the confidence p of the
    top class grows only while its accuracy a satisfies a − p > D. Near 1 and above the
    network cannot learn; at 0.2 it learns slowly.

    Args:
        weight_gradient: w of `AULoss`.
        smoothing: ν of `AULoss`.
        num_classes: k.

    Example:
    >>> round(drag(weight_gradient=1, smoothing=0.1, num_classes=10), 2)
    1.49
    """
    k = num_classes
    gain = math.log(k) * (1 - 1 / k) / (2 * math.log(2) * k)
    return weight_gradient * gain / smoothing


@serializable
class AULoss(ReweightedLoss):
    """Area under the risk-coverage curve over the low-confidence region.

    Formula:

    ```
    AU = (1/n) Σ β_i ℓ_i,     β_i = −C ln(1 − Ĝ_ν(min(s_i, τ))),     C = 1/Ĝ_ν(τ)
    ```

    with s_i the confidence score of sample i, Ĝ_ν the soft CDF of the batch's scores
    and τ the score below which the least confident share κ of the batch lies. Samples
    in the low-confidence region are weighted by their rank, those above it alike.

    Computed in O(n + M) at ν ≥ 0.004 (Ĝ_ν is interpolated, exact to 5e-6) and O(nM)
    below.

    Args:
        csf: confidence score function: `"msp"`, `"margin"`, `"neg_entropy"` or a
            callable (see `keras_selcal.csf`).
        coverage: κ in (0, 1]. Defaults to 0.75.
        threshold: τ itself, on the scale of the scores, instead of `coverage`.
        num_bins: M, bins of the soft CDF.
        smoothing: ν, on scores scaled to [0, 1]. A ν of the paper is converted by
            `keras_selcal.functional.paper_smoothing`.
        weight_gradient: w in [0, 1], the share of β's own gradient that is kept. 1 is
            the paper's gradient (Eq. gradientAU); 0 treats β as a constant. Kept in
            full, ∇β lowers every confidence in proportion to its loss, and at the
            paper's ν a network does not leave its first steps; a warning tells
            where that drag is large.
        base_loss: ℓ: `"crossentropy"`, `"brier"`, or any loss of one value a sample
            (see `ReweightedLoss`).
        from_logits: whether `y_pred` holds logits instead of probabilities.
        reduction: any of Keras's.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.
        synchronized: where a batch is split over replicas, whether all of it is
            ranked together, or each replica ranks its own share. Concerns
            `tf.distribute` and `torch.distributed`; on JAX, `keras.distribution`
            always ranks the global batch. How far apart the two are is measured in
            `benchmarks/README.md`: at 16 samples a replica, 4 % (CIFAR-10) or 13 %
            (CIFAR-100) of the gradient.

    Sample weights and masks: a sample of weight 0 changes nothing for the others; one
    of integer weight w gets the β that w copies of it would get.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], "float32")
    >>> round(float(AULoss(csf="msp")(np.array([0, 1, 1]), probabilities)), 4)
    0.2666

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. auloss
    """

    schedulable = ("strength", "weight_gradient", "smoothing", "coverage")

    def __init__(
        self,
        csf: Any = "msp",
        coverage: float | None = None,
        threshold: float | None = None,
        num_bins: int = 64,
        smoothing: float = 0.1,
        weight_gradient: float = 0.0,
        base_loss: Any = "crossentropy",
        from_logits: bool = False,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "au_loss",
        dtype: Any = None,
        synchronized: bool = False,
    ) -> None:
        super().__init__(base_loss, from_logits, reduction, name, dtype)
        self.csf = csf_module.get(csf)
        self.coverage, self.threshold = check_region(coverage, threshold)
        self.num_bins, self.smoothing = check_cdf_arguments(num_bins, smoothing)
        self.weight_gradient = self.check("weight_gradient", weight_gradient)
        self.synchronized = bool(synchronized)
        self._num_classes: int | None = None
        self._warned = False

    def check(self, name: str, value: Any) -> float:
        if name == "smoothing":
            return check_cdf_arguments(self.num_bins, value)[1]
        if name == "coverage":
            if self.threshold is not None:
                refuse("threshold", self.threshold, "None where `coverage` moves")
            return check_number(name, value, "a number in (0, 1]", above=0, most=1)
        return super().check(name, value)

    def assign(self, name: str, value: float) -> None:
        super().assign(name, value)
        self._warn_of_drag()

    def weights(self, batch: Batch) -> Tensor:
        """Returns β, (n,)."""
        self._num_classes = batch.num_classes
        self._warn_of_drag()
        w = self.current("weight_gradient")
        constant = isinstance(w, float)
        row, weight = as_row(batch.scores(self.csf), batch.sample_weight)
        beta = region_weights(
            ops.stop_gradient(row) if constant and w == 0 else row,
            weight,
            coverage=self.current("coverage"),
            threshold=self.threshold,
            num_bins=self.num_bins,
            smoothing=self.current("smoothing"),
            support=self.csf.support(batch.num_classes),
            over=replicas(self.synchronized),
        )[0]
        if constant and w in (0, 1):
            return beta
        return w * beta + (1.0 - w) * ops.stop_gradient(beta)

    def _warn_of_drag(self) -> None:
        k = self._num_classes
        if k is None or self._warned:
            return
        d = drag(self.weight_gradient, self.smoothing, k)
        if d > _MOST_DRAG:
            self._warned = True
            warnings.warn(
                f"AULoss with weight_gradient w={self.weight_gradient:g} and smoothing "
                f"ν={self.smoothing:g} has a drag of D={d:.2g} at k={k} "
                f"classes (above {_MOST_DRAG:g}): the network may learn slowly or not "
                "at all. Lower `weight_gradient` or raise `smoothing`.",
                stacklevel=2,
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "coverage": self.coverage,
            "threshold": self.threshold,
            "num_bins": self.num_bins,
            "smoothing": self.smoothing,
            "weight_gradient": self.weight_gradient,
            "synchronized": self.synchronized,
        }
