"""Cross-entropy with a kernel estimate of the calibration error (KDE-XE)."""

from typing import Any

from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.counts import count_weights
from keras_selcal._formulas.kernels import (
    KINDS,
    KernelEstimate,
    check_bandwidth,
    check_size,
    margins_of,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_count, check_number
from keras_selcal.losses.base import ClassificationLoss, crossentropy


@serializable
class KDECrossentropy(ClassificationLoss):
    """Cross-entropy plus λ times a kernel density estimate of the calibration error.

    Formula:

    ```
    ℓ_j = −ln p_{j,y} + λ ‖Ê[y | p_j] − p_j‖,
    Ê[y | p_j] = Σ_{i≠j} k(p_j; p_i) y_i / Σ_{i≠j} k(p_j; p_i)
    ```

    with k(·; p_i) the density of the Dirichlet distribution of parameters p_i/h + 1,
    evaluated in log space. Gradients flow through predictions and kernels. Quadratic
    in the batch: `block_size` bounds the memory, `subsample` the time as well.

    Args:
        kde_weight: λ ≥ 0. The paper uses 0.3 on CIFAR-10 and 0.5 on CIFAR-100.
        kind: what is calibrated: `"canonical"` the whole probability vector (L1
            norm), `"top_label"` the largest probability, `"marginal"` each class's
            probability (mean over classes).
        bandwidth: h > 0, or `"auto"`: for each batch the one of 17 values from 1e-4
            to 1 with the largest leave-one-out likelihood, which costs as many
            evaluations of the kernel.
        exponent: exponent of the differences; 1 for the L1 error, 2 for its square.
        block_size: rows of the n × n kernel matrix that are held at a time. The
            backward pass computes them again. None holds the whole matrix.
        subsample: number m of reference samples that Ê is estimated from, evenly spaced
            among the samples that count. This is an approximation of cost n × m, with
            the error stated at `functional.kde_ece`. None, or m ≥ n, uses all.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label are left out.
        label_smoothing: ε in [0, 1): labels become (1 − ε) y + ε/k.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        reduction: type of reduction to apply to the loss; see `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], "float32")
    >>> round(float(KDECrossentropy()(np.array([0, 1, 1]), probabilities)), 4)
    0.6731

    References:
    - Popordanoska et al., [A Consistent and Differentiable Lp Canonical Calibration
      Error Estimator](https://arxiv.org/abs/2210.07810)
    """

    def __init__(
        self,
        kde_weight: float = 0.3,
        *,
        kind: str = "canonical",
        bandwidth: float | str = 0.1,
        exponent: int = 1,
        block_size: int | None = None,
        subsample: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "kde_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        self.kde_weight = check_number(
            "kde_weight", kde_weight, "a number of at least 0", least=0.0
        )
        self.kind = check_choice("kind", kind, KINDS)
        self.bandwidth = check_bandwidth(bandwidth)
        self.exponent = check_count("exponent", exponent)
        self.block_size = check_size("block_size", block_size)
        self.subsample = check_size("subsample", subsample)

    def sample_losses(self, batch: Batch) -> Tensor:
        sizes = {"block_size": self.block_size, "subsample": self.subsample}
        h: Any = self.bandwidth
        if h == "auto":
            # Without a gradient, nothing is kept for a backward pass.
            h = kernel_estimate(batch.still(), self.kind, **sizes).likeliest()
        estimate = kernel_estimate(batch, self.kind, **sizes)
        error = batch.from_labels(estimate.errors(h, self.exponent))
        return batch.expectation(crossentropy(batch)) + self.kde_weight * error

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kde_weight": self.kde_weight,
            "kind": self.kind,
            "bandwidth": self.bandwidth,
            "exponent": self.exponent,
            "block_size": self.block_size,
            "subsample": self.subsample,
        }


def kernel_estimate(
    batch: Batch,
    kind: str,
    *,
    block_size: int | None = None,
    subsample: int | None = None,
    rows: Any = None,
) -> KernelEstimate:
    """Returns the kernel estimate of a batch; see `KernelEstimate`."""
    p, log_p, weight = batch.p, batch.log_p, batch.sample_weight
    rest = -ops.expm1(log_p) if batch.from_logits else 1.0 - p
    margins = margins_of(
        p, log_p, rest, batch.distributions, kind, batch.num_labels, ops
    )
    count = count_weights(
        batch.by_label(batch.y_pred[:, 0]),
        None if weight is None else batch.by_label(weight),
        ops,
    )
    return KernelEstimate(
        margins, count, ops, block_size=block_size, subsample=subsample, rows=rows
    )
