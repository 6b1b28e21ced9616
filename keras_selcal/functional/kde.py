"""Kernel density estimate of the calibration error, with Dirichlet kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, is_tensor, to_numpy
from keras_selcal._formulas import kernels
from keras_selcal._formulas.functions import safe_log
from keras_selcal._formulas.kernels import (
    KINDS,
    KernelEstimate,
    check_bandwidth,
    check_size,
    margins_of,
)
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal._validation import check_choice, check_count

# Samples whose likelihood chooses the bandwidth of a whole data set.
_MOST_ROWS = 500


def kde_ece(
    y_true: Any,
    y_pred: Any,
    *,
    kind: str = "canonical",
    bandwidth: float | str = "auto",
    exponent: int = 1,
    block_size: int | None = None,
    subsample: int | None = None,
    from_logits: bool = False,
    multi_label: bool = False,
    ignore_class: int | None = None,
    axis: int = -1,
    sample_weight: Any | None = None,
) -> float:
    """Kernel density estimate of the calibration error.

    Formula:

    ```
    CE = (1/n) Σ_j ‖Ê[y | p_j] − p_j‖,
    Ê[y | p_j] = Σ_{i≠j} k(p_j; p_i) y_i / Σ_{i≠j} k(p_j; p_i)
    ```

    with k(·; p_i) the density of the Dirichlet distribution of parameters p_i/h + 1.
    The cost is quadratic in n; a bounded block of the kernel matrix is held at a time.
    Tensors of the Keras backend are computed there, in their own precision, and
    everything else in NumPy, in float64. On GPUs, TensorFlow rounds the factors of
    matrix products to TF32, which spoils kernels of a small bandwidth: turn it off by
    `tf.config.experimental.enable_tensor_float_32_execution(False)`, or pass arrays.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k), or (..., 1) of one sigmoid unit.
        kind: `"canonical"`: the whole probability vector, in the L1 norm;
            `"top_label"`: the largest probability; `"marginal"`: each class's
            probability, mean over classes.
        bandwidth: h > 0, or `"auto"`: the one of 17 values from 1e-4 to 1 with the
            largest leave-one-out likelihood, of at most 500 of the samples.
        exponent: exponent of the differences; 1 for the L1 error, 2 for its square.
        block_size: rows of the kernel matrix that are held at a time. By default they
            have at most 4 million entries.
        subsample: number m of reference samples that Ê is estimated from, evenly spaced
            among those that count, instead of all. This is an approximation, of cost
            n × m. From few samples the estimate is too large: from 512 of 8192 (k = 10,
            h = 0.1) by 30 % canonical, 2 % top-label, 9 % marginal, from 2048 by 11,
            3 and 1 % (`benchmarks/scale.py`).
        from_logits: whether `y_pred` holds logits.
        multi_label: whether `y_pred` holds k independent sigmoids; the error is then
            the mean over labels.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        sample_weight: weights that broadcast to the shape of the samples. Weight 2
            equals two copies, weight 0 none.

    Returns:
        The error, a float; NaN if a prediction is NaN.

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
    exponent = check_count("exponent", exponent)
    block_size = check_size("block_size", block_size)
    subsample = check_size("subsample", subsample)
    outputs = Outputs(from_logits, multi_label, ignore_class, axis=axis)

    def mean_error(n: int, estimate: Callable[..., KernelEstimate]) -> float:
        size = block_size
        if size is None:
            size = max(1, kernels.MOST_ENTRIES // min(n, subsample or n))
        sizes = {"block_size": size, "subsample": subsample}
        bandwidth = h
        if h == "auto":
            # The likelihood of each row sums over all columns: h fits their number.
            rows = np.arange(0, n, -(-n // _MOST_ROWS))
            bandwidth = estimate(**sizes, rows=rows).likeliest()
        found = estimate(**sizes)
        values, count = (
            to_numpy(x).astype("float64")
            for x in (found.errors(bandwidth, exponent), found.count)
        )
        # Labels of which no sample counts have no error.
        values, count = (x[count.any(axis=-1)] for x in (values, count))
        return float(np.mean(np.average(values, axis=-1, weights=count)))

    if not is_tensor(y_pred):
        samples = Samples.of(y_true, y_pred, outputs, sample_weight)
        return samples.mean_over_labels(
            lambda part: mean_error(part.n, partial(_of_samples, part, kind))
        )
    from keras_selcal._backend.ops import mask_of
    from keras_selcal._predictions.batch import Batch
    from keras_selcal.losses.kde_crossentropy import kernel_estimate

    if mask_of(y_pred) is None:
        Samples.of(y_true, y_pred, outputs, sample_weight)  # checks the values
    batch = Batch.of(y_true, y_pred, outputs, sample_weight).still()
    n = int(batch.y_pred.shape[0]) // batch.num_labels
    return mean_error(n, partial(kernel_estimate, batch, kind))


def _of_samples(
    samples: Samples,
    kind: str,
    *,
    block_size: int,
    subsample: int | None,
    rows: Array | None = None,
) -> KernelEstimate:
    """Returns the kernel estimate of samples of one label."""
    if samples.from_logits:
        log_p = samples.each(samples.log_p)
        p, rest = np.exp(log_p), -np.expm1(log_p)
    else:
        p = samples.y_pred.astype("float64")
        log_p, rest = safe_log(p, np), 1.0 - p
    margins = margins_of(p, log_p, rest, samples.one_hot(), kind, 1, np)
    return KernelEstimate(
        margins,
        samples.counts[None],
        np,
        block_size=block_size,
        subsample=subsample,
        rows=rows,
    )
