"""What a loss does to p of the true class: its weight, its gradient, and its sign."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal import losses as library
from keras_selcal._core.batch import Batch
from keras_selcal._core.ops import Tensor
from keras_selcal._core.samples import Array, to_numpy
from keras_selcal._core.validation import check_count, check_number, refuse
from keras_selcal.losses import AURCLoss, ReweightedLoss
from keras_selcal.losses.au_loss import drag

__all__ = ["LossCurve", "SampleGradients", "drag", "loss_curve", "sample_gradients"]

# p, the steps around it, and 1 − p are whole multiples of a power of 2: exact in
# float32, which is all that some backends have.
_P = np.arange(1, 256) / 256
_STEP = 2.0**-12
_STEPS = np.arange(-2, 3)
# f′(p) = Σ c_j f(p + j h)/h + O(h⁴)
_SLOPE = np.array([1 / 12, -2 / 3, 0.0, 2 / 3, -1 / 12])
# f′(p) = Σ c_j f(p + j h)/h + O(h²), j = 0, 1, 2
_ONE_SIDED = np.array([-1.5, 2.0, -0.5])
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
    less at corners (τ, and p = 1/k). A jump of the weight has no slope. They know
    nothing of a `stop_gradient` in a loss of one's own.

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
    direct = weight * _slope(base)
    through = _kept(loss) * base_loss * _slope(weights)
    gradient = direct + through
    cancelled = np.abs(gradient) < _ROUNDING * (np.abs(direct) + np.abs(through))
    positive = _positive(np.where(cancelled, 0, gradient))
    return LossCurve(_P.copy(), weight, weight * base_loss, gradient, positive)


class SampleGradients(NamedTuple):
    """What a loss does to p of the true class, sample by sample, (n,) each.

    Attributes:
        p: probability of the true class.
        weight: w; 1 of a loss that has no weights.
        gradient: ∂(w ℓ)/∂p.
    """

    p: Array
    weight: Array
    gradient: Array


def sample_gradients(
    loss: Any, y_true: Any, y_pred: Any, from_logits: bool = False
) -> SampleGradients:
    """Returns ∂(w ℓ)/∂p of samples with respect to p of their true classes.

    `loss_curve` is for any sample, this is for those at hand: their weights are those
    that they have in a batch of all of them, and as p moves, the other classes keep
    their proportions. Derivatives are taken as there, at p rounded to 1/4096; a p that
    is closer than 1/1024 to 0 or 1 counts as that.

    Args:
        loss: as `loss_curve` takes it.
        y_true: class indices (...) or (..., 1).
        y_pred: probabilities or logits, (..., k).
        from_logits: whether `y_pred` holds logits.

    Returns:
        A `SampleGradients`.

    Example:
    >>> import numpy as np
    >>> found = sample_gradients(
    ...     "categorical_crossentropy", [0, 1], np.array([[0.5, 0.5], [0.75, 0.25]])
    ... )
    >>> found.gradient.round(2).tolist()                              # −1/p
    [-2.0, -4.0]

    Reference:

    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. gradients_over_epochs
    """
    loss = _reweighted(loss)
    predictions = to_numpy(y_pred).astype("float64")
    if predictions.ndim < 1 or predictions.shape[-1] < 2 or predictions.size == 0:
        refuse("y_pred", predictions.shape, "of shape (..., k) with k ≥ 2, not empty")
    predictions = predictions.reshape(-1, predictions.shape[-1])
    if from_logits:
        predictions = np.exp(predictions - predictions.max(-1, keepdims=True))
        predictions /= predictions.sum(-1, keepdims=True)
    if not np.all((predictions >= 0) & (predictions <= 1)):
        refuse("y_pred", y_pred, "probabilities, in [0, 1], unless `from_logits` is on")
    n, k = predictions.shape
    labels = to_numpy(y_true).reshape(-1)
    classes = np.isin(labels, np.arange(k))
    if len(labels) != n or not classes.all():
        refuse("y_true", y_true, f"class indices in 0 … {k - 1}, one for each of {n}")
    labels = labels.astype("int32")
    of_class = np.eye(k)[labels]
    others = np.where(of_class, 0.0, predictions)
    mass = others.sum(-1, keepdims=True)
    others = np.where(mass > 0, others / np.where(mass > 0, mass, 1), 1 / (k - 1))
    others = np.where(of_class, 0.0, others)
    exact = predictions[np.arange(n), labels]
    p = np.clip(np.rint(exact / _STEP) * _STEP, 4 * _STEP, 1 - 4 * _STEP)
    points = p + _STEP * _STEPS[:, None]
    moved = points[..., None] * of_class + (1 - points[..., None]) * others
    repeats = len(_STEPS) + 1
    y_true = np.tile(labels, repeats)
    if isinstance(loss, _Unweighted) and not _takes_indices(loss.base_loss):
        y_true = np.tile(of_class, (repeats, 1))
    weights, base = (
        values.reshape(repeats, n)
        for values in _in_batch(loss, y_true, moved.reshape(-1, k), predictions)
    )
    # Its own weight is the sample's: at a rounded p it would have another rank.
    direct = weights[-1] * _slope(base[:-1])
    through = _kept(loss) * base[2] * _slope(weights[:-1])
    return SampleGradients(exact, weights[-1], direct + through)


def _slope(values: Array) -> Array:
    """Returns f′ of the points in between, (5, n) → (n,), past any jump of f.

    A jump is on one side of a point at most: where slopes of both sides differ, the
    flatter one is that of the other side.
    """
    left = _ONE_SIDED @ values[2::-1] / -_STEP
    right = _ONE_SIDED @ values[2:] / _STEP
    differ = np.abs(left - right) > 0.5 * (np.abs(left) + np.abs(right))
    flatter = np.where(np.abs(left) < np.abs(right), left, right)
    return np.where(differ, flatter, _SLOPE @ values / _STEP)


def _kept(loss: ReweightedLoss) -> float:
    """Returns s, the share of the weight's own gradient that the loss keeps."""
    if isinstance(loss, AURCLoss):
        return 0.0
    return float(getattr(loss, "weight_gradient", 1.0))


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
    y_true = np.zeros(n + len(reference), "int32")
    if isinstance(loss, _Unweighted) and not _takes_indices(loss.base_loss):
        # The batch is calibrated: its probabilities are those of its labels.
        y_true = np.concatenate([np.eye(k)[y_true[:n]], reference])
    weight, base = _in_batch(loss, y_true, _predictions(p, k, rival), reference)
    return weight[:n], base[:n]


def _in_batch(
    loss: ReweightedLoss, y_true: Array, points: Array, reference: Array
) -> tuple[Array, Array]:
    """Returns w and ℓ of points and reference, of which the latter is the batch."""
    y_pred = np.concatenate([points, reference])
    counts = np.ones(len(y_pred))
    counts[len(points) :] = max(2, _REFERENCE_MASS // len(reference))
    batch = Batch.of(y_true, y_pred, False, ops.convert_to_tensor(counts))
    # As `ReweightedLoss.sample_losses`: a schedule moves between 1 and the weight.
    weight = 1 + loss.strength * (_flat(loss.weights(batch)) - 1)
    return weight, _flat(loss.base_losses(batch))


def _takes_indices(loss: Any) -> bool:
    sparse = keras.losses.SparseCategoricalCrossentropy
    return isinstance(loss, sparse) or loss is (
        keras.losses.sparse_categorical_crossentropy
    )


def _flat(values: Any) -> Array:
    """Returns a value for each sample, of (n,) or (n, 1)."""
    return to_numpy(values).astype("float64").reshape(-1)


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
