"""Kernel density estimate of the calibration error, with Dirichlet kernels."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._batch import Batch, combined_weight
from keras_selcal._ops import Tensor, as_float, lgamma1p, safe_log
from keras_selcal._validation import (
    check_choice,
    check_count,
    check_number,
    refuse,
)
from keras_selcal.functional.cdf import count_weights

KINDS = ("canonical", "top_label", "marginal")

# Candidates of bandwidth="auto": four a decade, from 1e-4 to 1.
BANDWIDTHS = tuple(float(h) for h in np.logspace(-4, 0, 17))

# Kernel entries held at a time where it is done in blocks: 16 MB of float32.
_MOST_ENTRIES = 2**22

# Samples whose likelihood chooses the bandwidth of a whole data set.
_MOST_ROWS = 500

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
    estimate = _estimate(batch, kind)
    h = _likeliest(estimate) if bandwidth == "auto" else bandwidth
    return estimate.errors(h, order)


def kde_ece(
    y_true: Any,
    y_pred: Any,
    kind: str = "canonical",
    bandwidth: float | str = "auto",
    order: int = 1,
    from_logits: bool = False,
    sample_weight: Any | None = None,
) -> float:
    """Kernel density estimate of the calibration error.

    Formula:

    ```
    CE = (1/n) Σ_j ‖Ê[y | p_j] − p_j‖,
    Ê[y | p_j] = Σ_{i≠j} k(p_j; p_i) y_i / Σ_{i≠j} k(p_j; p_i)
    ```

    with k(·; p_i) the density of the Dirichlet distribution of parameters p_i/h + 1.
    Quadratic in n, a bounded block of the kernel matrix at a time, on the backend.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        kind: `"canonical"`: the whole probability vector, in the L1 norm;
            `"top_label"`: the largest probability; `"marginal"`: each class's
            probability, mean over classes.
        bandwidth: h > 0, or `"auto"`: the one of 17 values from 1e-4 to 1 with the
            largest leave-one-out likelihood, of 500 of the samples if there are more.
        order: exponent of the differences; 1 for the L1 error, 2 for its square.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.

    Returns:
        The error, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8]], "float32")
    >>> round(kde_ece(np.array([0, 0, 1]), p, bandwidth=0.1), 3)
    0.733

    References:
    - Popordanoska et al., [A Consistent and Differentiable Lp Canonical Calibration
      Error Estimator](https://arxiv.org/abs/2210.07810)
    """
    check_choice("kind", kind, KINDS)
    h: Any = check_bandwidth(bandwidth)
    order = check_count("order", order)
    y_pred = as_float(y_pred)
    weight = combined_weight(y_pred, sample_weight)
    batch = Batch.of(y_true, y_pred, from_logits, weight)
    n = int(batch.y_pred.shape[0])
    if h == "auto":
        # Each row's likelihood still sums over all samples: h fits n.
        h = _likeliest(_estimate(batch, kind, np.arange(0, n, -(-n // _MOST_ROWS))))
    step = min(n, max(1, _MOST_ENTRIES // n))
    # The last block is filled up with the last sample.
    blocks = np.minimum(np.arange(n + -n % step), n - 1).reshape(-1, step)
    errors = ops.map(
        lambda rows: _estimate(batch, kind, rows).errors(h, order),
        ops.convert_to_tensor(blocks, dtype="int32"),
    )
    values = ops.convert_to_numpy(errors).reshape(-1)[:n].astype("float64")
    count = ops.convert_to_numpy(count_weights(batch.y_pred[:, 0], batch.sample_weight))
    return float(np.average(values, weights=count))


def _likeliest(estimate: Any) -> Tensor:
    """Returns the bandwidth of the largest leave-one-out likelihood."""
    grid = ops.convert_to_tensor(BANDWIDTHS, dtype=estimate.count.dtype)
    fit = ops.stop_gradient(ops.map(estimate.log_likelihood, grid))
    return ops.stop_gradient(ops.take(grid, ops.argmax(fit)))


def _estimate(batch: Batch, kind: str, rows: Any = None) -> Any:
    """Returns the estimate for some rows of a batch, from all of it."""
    if kind == "canonical":
        return _Canonical(batch, rows)
    return _Marginals(batch, kind, rows)


class _LeaveOneOut:
    """Weights by which samples stand in for the label of another one.

    Rows j are those that are estimated (indices, or None for all), columns i those
    that it is done from.
    """

    def __init__(self, batch: Batch, rows: Any) -> None:
        like = batch.y_pred[:, 0]
        count = count_weights(like, batch.sample_weight)
        rest = ops.maximum(count - 1.0, 0.0)
        self.rows = rows
        self.count = self.of_rows(count)
        self.others = self.of_rows(ops.sum(count) - count + rest)
        index = ops.cumsum(ops.ones_like(like))
        own = ops.expand_dims(self.of_rows(index), 1) == ops.expand_dims(index, 0)

        def log(count: Tensor) -> Tensor:
            return ops.where(count > 0, safe_log(count), _LOG_ZERO)

        # A sample of weight w has w − 1 copies of itself among the others.
        self.log_count = ops.where(own, log(rest), log(count))

    def of_rows(self, values: Tensor, axis: int = 0) -> Tensor:
        return values if self.rows is None else ops.take(values, self.rows, axis=axis)

    def errors(self, h: Any, order: int) -> Tensor:
        """Returns the error of each row; 0 where there is no other sample."""
        return ops.where(self.others > 0, self.differences(h, order), 0.0)

    def differences(self, h: Any, order: int) -> Tensor:
        raise NotImplementedError

    def regress(self, log_kernel: Tensor, labels: Tensor) -> Tensor:
        # Not `ops.softmax`, which warns of a batch of one.
        log_weight = log_kernel + self.log_count
        total = ops.logsumexp(log_weight, axis=-1, keepdims=True)
        return ops.matmul(ops.exp(log_weight - total), labels)

    def log_likelihood_of(self, log_kernel: Tensor) -> Tensor:
        density = ops.logsumexp(log_kernel + self.log_count, axis=-1)
        alone = self.others <= 0
        density = ops.where(alone, 0.0, density - safe_log(self.others))
        return ops.sum(self.count * density, axis=-1)


class _Canonical(_LeaveOneOut):
    """The whole probability vector, with a Dirichlet kernel on the simplex."""

    def __init__(self, batch: Batch, rows: Any) -> None:
        super().__init__(batch, rows)
        self.p, self.log_p = batch.p, self.of_rows(batch.log_p)
        self.labels = batch.labels
        if batch.sparse:
            k = batch.num_classes
            self.labels = ops.one_hot(batch.labels[:, 0], k, dtype=self.p.dtype)

    def log_kernel(self, h: Any) -> Tensor:
        """Returns ln k(p_j; p_i) up to a constant of h, with j down and i across."""
        norm = ops.sum(lgamma1p(self.p / h), axis=-1)
        return ops.matmul(self.log_p, ops.transpose(self.p)) / h - norm

    def differences(self, h: Any, order: int) -> Tensor:
        mean = self.regress(self.log_kernel(h), self.labels)
        gap = ops.abs(mean - self.of_rows(self.p))
        return ops.sum(gap**order, axis=-1)

    def log_likelihood(self, h: Any) -> Tensor:
        k = self.p.shape[-1]
        constant = lgamma1p(1.0 / h + (k - 1.0))
        return self.log_likelihood_of(self.log_kernel(h) + constant)


class _Marginals(_LeaveOneOut):
    """One probability at a time, with a beta kernel on [0, 1].

    Top label: the largest probability and whether it is right. Marginal: each class.
    """

    def __init__(self, batch: Batch, kind: str, rows: Any) -> None:
        super().__init__(batch, rows)
        if kind == "top_label":
            top = ops.argmax(batch.y_pred, axis=-1)[:, None]
            if batch.sparse:
                labels = ops.cast(top == batch.labels, batch.y_pred.dtype)
            else:
                labels = ops.take_along_axis(batch.labels, top, axis=-1)
            log_p = ops.amax(batch.log_p, axis=-1, keepdims=True)
            p = ops.amax(batch.p, axis=-1, keepdims=True)
        else:
            labels, k = batch.labels, batch.num_classes
            if batch.sparse:
                labels = ops.one_hot(labels[:, 0], k, dtype=batch.y_pred.dtype)
            p, log_p = batch.p, batch.log_p
        q = -ops.expm1(log_p) if batch.in_logs else 1.0 - p
        log_q = safe_log(q)
        self.num_margins = int(p.shape[-1])
        n = batch.y_pred.shape[0]
        size = n if rows is None else int(rows.shape[0])
        block = 1 if n is None else max(1, _MOST_ENTRIES // max(n * size, 1))
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

    def log_kernel(self, h: Any, p: Any, q: Any, log_p: Any, log_q: Any) -> Tensor:
        """Returns ln k(p_j; p_i) up to a constant of h, (margins, rows, n)."""
        x, y = ops.expand_dims(p / h, 1), ops.expand_dims(q / h, 1)
        log_p = ops.expand_dims(self.of_rows(log_p, axis=1), 2)
        log_q = ops.expand_dims(self.of_rows(log_q, axis=1), 2)
        return x * log_p + y * log_q - (lgamma1p(x) + lgamma1p(y))

    def differences(self, h: Any, order: int) -> Tensor:
        def of_block(margins: tuple[Tensor, ...]) -> Tensor:
            *predictions, labels = margins
            log_kernel = self.log_kernel(h, *predictions)
            mean = self.regress(log_kernel, ops.expand_dims(labels, -1))
            p = self.of_rows(predictions[0], axis=1)
            return ops.abs(mean[..., 0] - p) ** order

        # Recomputed in the backward pass, blocks do not add up in memory.
        errors = self.map_blocks(of_block, keras.remat(of_block))
        errors = ops.reshape(errors, (-1, ops.shape(self.count)[0]))
        return ops.mean(errors[: self.num_margins], axis=0)

    def log_likelihood(self, h: Any) -> Tensor:
        constant = lgamma1p(1.0 / h + 1.0)

        def of_block(margins: tuple[Tensor, ...]) -> Tensor:
            log_kernel = self.log_kernel(h, *margins[:-1]) + constant
            return self.log_likelihood_of(log_kernel)

        # The margins that fill up the last block are not there.
        fit = ops.reshape(self.map_blocks(of_block, of_block), (-1,))
        return ops.sum(fit[: self.num_margins])

    def map_blocks(self, of_one: Any, of_many: Any) -> Tensor:
        """Returns `of_one` of the only block, or `of_many` of each one, stacked."""
        if self.margins[0].shape[0] == 1:
            return of_one(tuple(x[0] for x in self.margins))
        return ops.map(of_many, self.margins)
