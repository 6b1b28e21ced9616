"""Kernel density estimate of the calibration error, with Dirichlet kernels."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._batch import Batch
from keras_selcal._ops import Tensor, lgamma1p, safe_log
from keras_selcal._validation import check_number, refuse
from keras_selcal.functional.cdf import count_weights

KINDS = ("canonical", "top_label", "marginal")

# Candidates of bandwidth="auto": four a decade, from 1e-4 to 1.
BANDWIDTHS = tuple(float(h) for h in np.logspace(-4, 0, 17))

# Kernel entries held at a time where one matrix a class is needed: 16 MB of float32.
_MOST_ENTRIES = 2**22

# A logarithm of 0 that stays finite in sums and differences.
_LOG_ZERO = -1e30


def check_bandwidth(bandwidth: Any) -> float | str:
    """Returns the checked bandwidth."""
    if isinstance(bandwidth, str):
        if bandwidth != "auto":
            refuse("bandwidth", bandwidth, 'a number above 0, or "auto"')
        return bandwidth
    return check_number(
        "bandwidth", bandwidth, 'a number above 0, or "auto"', above=0.0
    )


def kde_calibration_errors(
    batch: Batch, kind: str, bandwidth: float | str, order: int = 1
) -> Tensor:
    """Returns |Ê[y | p_j] − p_j|^order of each sample j of a batch, (n,).

    Ê is the kernel regression of the labels on the predictions, leaving sample j out.
    One n × n kernel matrix is held at a time; for `"marginal"`, which has one a class,
    a bounded block of them, recomputed in the backward pass.
    """
    estimate = _Canonical(batch) if kind == "canonical" else _Marginals(batch, kind)
    h: Any = bandwidth
    if h == "auto":
        grid = ops.convert_to_tensor(BANDWIDTHS, dtype=batch.y_pred.dtype)
        fit = ops.stop_gradient(ops.map(estimate.log_likelihood, grid))
        h = ops.stop_gradient(ops.take(grid, ops.argmax(fit)))
    else:
        h = ops.cast(h, batch.y_pred.dtype)
    errors = estimate.errors(h, order)
    # A sample with no other to compare it with has no estimate, and no error.
    return ops.where(estimate.others > 0, errors, 0.0)


class _LeaveOneOut:
    """Weights by which samples stand in for the label of another one."""

    def __init__(self, batch: Batch) -> None:
        like = batch.y_pred[:, 0]
        self.count = count_weights(like, batch.sample_weight)
        rest = ops.maximum(self.count - 1.0, 0.0)
        self.others = ops.sum(self.count) - self.count + rest
        index = ops.cumsum(ops.ones_like(like))
        own = ops.expand_dims(index, 1) == ops.expand_dims(index, 0)

        def log(count: Tensor) -> Tensor:
            return ops.where(count > 0, safe_log(count), _LOG_ZERO)

        # A sample of weight w has w − 1 copies of itself among the others.
        self.log_count = ops.where(own, log(rest), log(self.count))

    def regress(self, log_kernel: Tensor, labels: Tensor) -> Tensor:
        return ops.matmul(ops.softmax(log_kernel + self.log_count, axis=-1), labels)

    def log_likelihood_of(self, log_kernel: Tensor) -> Tensor:
        density = ops.logsumexp(log_kernel + self.log_count, axis=-1)
        alone = self.others <= 0
        density = ops.where(alone, 0.0, density - safe_log(self.others))
        return ops.sum(self.count * density)


class _Canonical(_LeaveOneOut):
    """The whole probability vector, with a Dirichlet kernel on the simplex."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.p, self.log_p = batch.p, batch.log_p
        self.labels = batch.labels
        if batch.sparse:
            k = batch.num_classes
            self.labels = ops.one_hot(batch.labels[:, 0], k, dtype=self.p.dtype)

    def log_kernel(self, h: Tensor) -> Tensor:
        """Returns ln k(p_j; p_i) up to a constant of h, with j down and i across."""
        norm = ops.sum(lgamma1p(self.p / h), axis=-1)
        return ops.matmul(self.log_p, ops.transpose(self.p)) / h - norm

    def errors(self, h: Tensor, order: int) -> Tensor:
        gap = ops.abs(self.regress(self.log_kernel(h), self.labels) - self.p)
        return ops.sum(gap**order, axis=-1)

    def log_likelihood(self, h: Tensor) -> Tensor:
        k = self.p.shape[-1]
        constant = lgamma1p(1.0 / h + (k - 1.0))
        return self.log_likelihood_of(self.log_kernel(h) + constant)


class _Marginals(_LeaveOneOut):
    """One probability at a time, with a beta kernel on [0, 1].

    Top label: the largest probability and whether it is right. Marginal: each class.
    """

    def __init__(self, batch: Batch, kind: str) -> None:
        super().__init__(batch)
        if kind == "top_label":
            top = ops.argmax(batch.y_pred, axis=-1)[:, None]
            if batch.sparse:
                labels = ops.cast(top == batch.labels, batch.y_pred.dtype)
            else:
                labels = ops.take_along_axis(batch.labels, top, axis=-1)
            log_p = ops.max(batch.log_p, axis=-1, keepdims=True)
            p = ops.max(batch.p, axis=-1, keepdims=True)
        else:
            labels, k = batch.labels, batch.num_classes
            if batch.sparse:
                labels = ops.one_hot(labels[:, 0], k, dtype=batch.y_pred.dtype)
            p, log_p = batch.p, batch.log_p
        q = -ops.expm1(log_p) if batch.in_logs else 1.0 - p
        log_q = safe_log(q)
        self.num_margins = int(p.shape[-1])
        n = batch.y_pred.shape[0]
        block = 1 if n is None else max(1, _MOST_ENTRIES // max(n * n, 1))
        block = min(block, self.num_margins)
        pad = -self.num_margins % block
        # (margins, n) in blocks, as (blocks, block, n).
        self.margins = tuple(
            ops.reshape(
                ops.pad(ops.transpose(x), ((0, pad), (0, 0))),
                (-1, block, ops.shape(x)[0]),
            )
            for x in (p, q, log_p, log_q, labels)
        )

    @staticmethod
    def log_kernel(h: Tensor, p: Tensor, q: Tensor, log_p: Any, log_q: Any) -> Tensor:
        """Returns ln k(p_j; p_i) up to a constant of h, (margins, n, n)."""
        x, y = ops.expand_dims(p / h, 1), ops.expand_dims(q / h, 1)
        log_p, log_q = ops.expand_dims(log_p, 2), ops.expand_dims(log_q, 2)
        return x * log_p + y * log_q - (lgamma1p(x) + lgamma1p(y))

    def errors(self, h: Tensor, order: int) -> Tensor:
        def of_block(margins: tuple[Tensor, ...]) -> Tensor:
            *predictions, labels = margins
            log_kernel = self.log_kernel(h, *predictions)
            mean = self.regress(log_kernel, ops.expand_dims(labels, -1))
            return ops.abs(mean[..., 0] - predictions[0]) ** order

        errors = ops.map(keras.remat(of_block), self.margins)
        errors = ops.reshape(errors, (-1, ops.shape(self.count)[0]))
        return ops.mean(errors[: self.num_margins], axis=0)

    def log_likelihood(self, h: Tensor) -> Tensor:
        constant = lgamma1p(1.0 / h + 1.0)

        def of_block(margins: tuple[Tensor, ...]) -> Tensor:
            log_kernel = self.log_kernel(h, *margins[:-1]) + constant
            return self.log_likelihood_of(log_kernel)

        return ops.sum(ops.map(of_block, self.margins))
