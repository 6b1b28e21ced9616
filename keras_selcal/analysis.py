"""What a loss does to p of the true class: its weight, its gradient, and its sign."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import losses as library
from keras_selcal._batch import Batch
from keras_selcal._ops import Tensor
from keras_selcal._validation import check_count, check_number, refuse
from keras_selcal.functional._samples import Array, to_numpy
from keras_selcal.losses import AURCLoss, ReweightedLoss
from keras_selcal.losses.au_loss import drag

__all__ = ["LossCurve", "drag", "loss_curve"]

# p, the steps around it, and 1 − p are whole multiples of a power of 2: exact in
# float32, which is all that some backends have.
_P = np.arange(1, 256) / 256
_STEP = 2.0**-12
_STEPS = np.arange(-2, 3)
# f′(p) = Σ c_j f(p + j h)/h + O(h⁴)
_SLOPE = np.array([1 / 12, -2 / 3, 0.0, 2 / 3, -1 / 12])
# Two terms that cancel to less than this share of their size have cancelled: float32
# knows no better.
_ROUNDING = 1e-3

# How much the reference counts, the curve's own points counting 1: large, so that they
# change next to nothing in it, and whole in float32.
_REFERENCE_MASS = 2**22
_REFERENCE_SIZE = 1024


@dataclass(frozen=True)
class LossCurve:
    """A loss of one sample, against p of its true class.

    Attributes:
        p: 1/256, 2/256, …, 255/256.
        weight: w(p); 1 of a loss that has no weights.
        loss: w(p) ℓ(p).
        gradient: ∂(w ℓ)/∂p.
        positive: the intervals (from, to) of p where the gradient is above 0, so that
            training lowers p of the true class; () where there is none. Their ends are
            interpolated between the points of `p`.
    """

    p: Array
    weight: Array
    loss: Array
    gradient: Array
    positive: tuple[tuple[float, float], ...]


def loss_curve(
    loss: Any,
    num_classes: int = 10,
    y_pred: Any | None = None,
    *,
    rival: float | None = None,
) -> LossCurve:
    """Returns weight, loss and gradient of a sample, against p of its true class.

    Training lowers p of the true class where the gradient is positive. Inverse focal
    loss does that for γ > 1/W(1/e) ≈ 3.591 (W Lambert's function), first at
    p = W(1/e) ≈ 0.278; `AULoss` with a `weight_gradient` does it at low p, and `drag`
    tells what that means at the start of training.

    Formula:

    ```
    ∂(w ℓ)/∂p = w ∂ℓ/∂p + s ℓ ∂w/∂p
    ```

    with s the share of the weight's own gradient that the loss keeps: `weight_gradient`
    of `AULoss`, 0 for `AURCLoss`, 1 otherwise.

    The prediction at p has p for the true class; the other classes share 1 − p and move
    with it. What depends on a whole batch (weights of AU and AURC, kernels of
    `KDECrossentropy`) is computed in a large one, distributed as `y_pred`, or with
    `msp` uniform on [1/k, 1].

    Derivatives are central differences of fourth order, in the backend's precision: in
    float32 good to about 1e-3 for focal weights and 5e-3 for the weight of `AULoss`,
    less at corners (τ, and p = 1/k). They know nothing of a `stop_gradient` in a loss
    of one's own.

    Args:
        loss: a loss of this library, one of Keras's, the name of one, or a function of
            (y_true, y_pred) that gives a value for each sample. Other than this
            library's and Keras's sparse ones get one-hot labels.
        num_classes: k.
        y_pred: probabilities (..., k) that stand for the batch; k is then theirs.
        rival: the share of 1 − p that one other class has; the rest is shared evenly.
            None: all others have the same. With 1 the sample is misclassified where
            p < ½.

    Returns:
        A `LossCurve`.

    Example:
    >>> curve = loss_curve("categorical_crossentropy")
    >>> curve.p[127].item(), curve.gradient[127].round(3).item()      # −1/p
    (0.5, -2.0)
    >>> from keras_selcal import InverseFocalLoss
    >>> loss_curve(InverseFocalLoss(gamma=3.5)).positive
    ()

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, App. gradient
    """
    loss = _reweighted(loss)
    if y_pred is None:
        k = check_count("num_classes", num_classes, least=2)
        position = (np.arange(_REFERENCE_SIZE) + 0.5) / _REFERENCE_SIZE
        reference = _predictions(1 / k + (1 - 1 / k) * position, k)
    else:
        reference = to_numpy(y_pred).astype("float64")
        if reference.ndim < 2 or reference.shape[-1] < 2 or reference.size == 0:
            refuse("y_pred", reference.shape, "of shape (..., k) with k ≥ 2, not empty")
        reference = reference.reshape(-1, reference.shape[-1])
        if not np.all((reference >= 0) & (reference <= 1)):
            refuse("y_pred", y_pred, "probabilities, in [0, 1]")
    if rival is not None:
        k = reference.shape[-1]
        least = 1 / (k - 1)
        allowed = f"a number from 1/(k − 1) = {least:.3g} to 1"
        rival = check_number("rival", rival, allowed, least=least, most=1)
    # In one batch: what stands for a constant of the batch (τ, C) then does not move.
    points = (_P + _STEP * _STEPS[:, None]).reshape(-1)
    weights, base = (
        values.reshape(len(_STEPS), len(_P))
        for values in _weight_and_loss(loss, points, reference, rival)
    )
    weight, base_loss = weights[2], base[2]
    share = 0.0 if isinstance(loss, AURCLoss) else getattr(loss, "weight_gradient", 1.0)
    direct = weight * (_SLOPE @ base) / _STEP
    through = share * base_loss * (_SLOPE @ weights) / _STEP
    gradient = direct + through
    cancelled = np.abs(gradient) < _ROUNDING * (np.abs(direct) + np.abs(through))
    positive = _positive(np.where(cancelled, 0, gradient))
    return LossCurve(_P.copy(), weight, weight * base_loss, gradient, positive)


class _Unweighted(ReweightedLoss):
    """Any loss, as one whose weights are 1."""

    def weights(self, batch: Batch) -> Tensor:
        return ops.ones_like(batch.y_pred[:, 0])


def _reweighted(loss: Any) -> ReweightedLoss:
    allowed = "a loss, its name, or a function of a value for each sample"
    if isinstance(loss, str):
        loss = library.get(loss)
    if isinstance(loss, ReweightedLoss):
        return loss
    if not callable(loss):
        refuse("loss", loss, allowed)
    return _Unweighted(loss)


def _predictions(p: Array, k: int, rival: float | None = None) -> Array:
    """Returns (p, r (1 − p), the others), (n, k)."""
    rival = 1 / (k - 1) if rival is None else rival
    share = np.full(k - 1, (1 - rival) / max(k - 2, 1))
    share[0] = rival
    return np.concatenate([p[:, None], (1 - p)[:, None] * share], axis=-1)


def _weight_and_loss(
    loss: ReweightedLoss, p: Array, reference: Array, rival: float | None
) -> tuple[Array, Array]:
    """Returns w and ℓ of samples with p at the true class, in the reference batch."""
    n, k = len(p), reference.shape[-1]
    y_pred = np.concatenate([_predictions(p, k, rival), reference])
    counts = np.ones(len(y_pred))
    counts[n:] = max(2, _REFERENCE_MASS // len(reference))
    y_true = np.zeros(len(y_pred), "int32")
    if isinstance(loss, _Unweighted) and not _takes_indices(loss.base_loss):
        # The batch is calibrated: its probabilities are those of its labels.
        y_true = np.concatenate([np.eye(k)[y_true[:n]], reference])
    batch = Batch.of(y_true, y_pred, False, ops.convert_to_tensor(counts))
    # As `ReweightedLoss.sample_losses`: a schedule moves between 1 and the weight.
    weight = 1 + loss.strength * (_of_points(loss.weights(batch), n) - 1)
    return weight, _of_points(loss.base_losses(batch), n)


def _takes_indices(loss: Any) -> bool:
    sparse = keras.losses.SparseCategoricalCrossentropy
    return isinstance(loss, sparse) or loss is (
        keras.losses.sparse_categorical_crossentropy
    )


def _of_points(values: Any, n: int) -> Array:
    return to_numpy(values).astype("float64")[:n].reshape(n)


def _positive(gradient: Array) -> tuple[tuple[float, float], ...]:
    """Returns the intervals of p where the gradient is above 0."""
    above = np.concatenate([[False], gradient > 0, [False]])
    starts = np.flatnonzero(~above[:-1] & above[1:]).tolist()
    ends = (np.flatnonzero(above[:-1] & ~above[1:]) - 1).tolist()

    def crossing(inside: int, outside: int) -> float:
        if not 0 <= outside < len(gradient):
            return float(_P[inside])
        high, low = gradient[inside], gradient[outside]
        return float(_P[inside] + (_P[outside] - _P[inside]) * high / (high - low))

    return tuple(
        (crossing(start, start - 1), crossing(end, end + 1))
        for start, end in zip(starts, ends, strict=True)
    )
