"""The AU, AURC and KDE-XE losses as the authors' public code computes them.

They differ from the paper's formulas. The code is evidence of what the paper leaves
open, not proof of what made its tables: its history has several versions, of AURC in
particular. This module was written after reading it, and copies none of it:
https://github.com/han678/CalibWeightedRisk, commit b324335, whose AU and AURC date from
e429a75.

| loss     | paper                            | public code                            |
|----------|----------------------------------|----------------------------------------|
| AU       | score of softmax(z)              | score of softmax(softmax(z))           |
|          | C = 1/Ĝ(τ)                       | C = 1                                  |
|          | Ĝ from the batch                 | Ĝ from all batches of the epoch so far |
|          | τ is a constant                  | gradients pass through β and τ         |
|          | negative entropy, scaled to Ĝ    | sign error: every score is 1           |
| AURC     | (1/n) Σ α ℓ                      | the same; before 2025-10 mixed with ℓ  |
|          | score of softmax(z)              | score of softmax(softmax(z))           |
| KDE-XE   | XE + λ · CE_KDE                  | the same value; CE_KDE has no gradient |

`python -m recipes claims released` compares them.
"""

from typing import Any

import keras
from keras import ops

from keras_selcal import AURCLoss, DualFocalLoss, KDECrossentropy, csf
from keras_selcal._arrays import Tensor
from keras_selcal._validation import check_choice
from keras_selcal.losses import Batch, ReweightedLoss
from keras_selcal.losses.base import crossentropy

_BINS = 64
_HISTORY = "released_scores"
_serializable = keras.saving.register_keras_serializable("keras_selcal_recipes")


@_serializable  # type: ignore[untyped-decorator]
def twice_msp(probabilities: Tensor) -> Tensor:
    """Returns the largest entry of softmax(p), where p is a softmax already."""
    return ops.amax(ops.softmax(probabilities, axis=-1), axis=-1)


def _twice_margin(probabilities: Tensor) -> Tensor:
    return csf.margin(ops.softmax(probabilities, axis=-1))


def _entropy_with_sign_error(probabilities: Tensor) -> Tensor:
    """Returns 1 + H(p)/ln k, cut at 1: every score is 1, and has no gradient."""
    return ops.stop_gradient(ops.ones_like(probabilities[:, 0]))


_SCORES = {
    "msp": twice_msp,
    "margin": _twice_margin,
    "neg_entropy": _entropy_with_sign_error,
}


@_serializable
class ReleasedAULoss(ReweightedLoss):
    """The AU loss of the public code.

    Formula:

    ```
    β_i = −ln(1 − Ĝ(min(s_i, τ))),     1/(n + 1) ≤ Ĝ ≤ n/(n + 1)
    Ĝ(s) = Σ_m h_m σ((s − c_m)/ν) / Σ_m h_m
    ```

    with h the counts of 64 bins on [0, 1]: of the batch, or of the epoch if
    `ReleasedScores` is among the callbacks. With `csf="neg_entropy"`, every β is
    −ln(1 − σ(1/(128 ν))): 0.7743 for ν = 0.05.

    Args:
        csf: `"msp"`, `"margin"` or `"neg_entropy"`, each with the code's error.
        quantile: κ, the quantile of the batch's scores that is τ.
        smoothing: ν, as the paper prints it.
        **options: the arguments of `ReweightedLoss`.

    Example:
    >>> from keras import ops
    >>> logits = ops.array([[2.0, 0.0], [0.0, 1.0]])
    >>> loss = ReleasedAULoss(csf="neg_entropy", smoothing=0.05, from_logits=True)
    >>> xe = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> labels = ops.array([0, 0])
    >>> round(float(loss(labels, logits) / xe(labels, logits)), 4)
    0.7743
    """

    def __init__(
        self,
        csf: str = "msp",
        quantile: float = 0.75,
        smoothing: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.variables: dict[str, Any] = {}
        self.csf = check_choice("csf", csf, tuple(_SCORES))
        self.quantile, self.smoothing = quantile, smoothing

    def weights(self, batch: Batch) -> Tensor:
        """Returns β, (n,)."""
        s = _SCORES[self.csf](batch.p)
        rows = ops.clip(ops.floor(ops.stop_gradient(s) * _BINS), 0, _BINS - 1)
        ones = ops.ones_like(s)
        h = ops.segment_sum(ones, ops.cast(rows, "int32"), num_segments=_BINS)
        if _HISTORY in self.variables:
            h = h + ops.convert_to_tensor(self.variables[_HISTORY])
            self.variables[_HISTORY].assign(ops.stop_gradient(h))
        n = ops.sum(ones)
        centres = (ops.arange(_BINS, dtype=s.dtype) + 0.5) / _BINS

        def cdf(at: Tensor) -> Tensor:
            steps = ops.sigmoid((at[:, None] - centres) / self.smoothing)
            return ops.clip(
                ops.sum(h * steps, -1) / ops.sum(h), 1 / (n + 1), n / (n + 1)
            )

        tau = ops.reshape(ops.quantile(s, self.quantile), (1,))
        return -ops.log(1 - ops.where(s >= tau, cdf(tau), cdf(s)))

    def get_config(self) -> dict[str, Any]:
        mine = {name: getattr(self, name) for name in ("csf", "quantile", "smoothing")}
        return {**super().get_config(), **mine}


class ReleasedScores(keras.callbacks.Callback):
    """Lets `ReleasedAULoss` count the scores of an epoch and of its validation."""

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._counts = _Counts()
        model.loss.variables[_HISTORY] = self._counts.counts
        # Keras locks a subclassed model once it is built, because layers that are added
        # later would not be trained, and unlocks it itself to add state.
        locked = model._tracker.locked
        model._tracker.unlock()
        model.released_scores = self._counts
        model._tracker.locked = locked
        model.train_function = model.test_function = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._counts.counts.assign(ops.zeros((_BINS,)))

    def on_train_end(self, logs: Any = None) -> None:
        self.model._tracker.untrack(self._counts)
        del self.model.released_scores
        self.model.loss.variables.pop(_HISTORY)
        self.model.train_function = self.model.test_function = None


class _Counts(keras.metrics.Metric):
    """A histogram in a model's state; only `ReleasedScores` clears it."""

    def __init__(self) -> None:
        super().__init__(name=_HISTORY)
        self.counts = self.add_variable((_BINS,), "zeros", name="counts")

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        pass

    def reset_state(self) -> None:
        pass

    def result(self) -> Tensor:
        return ops.sum(self.counts)


@_serializable
class ReleasedAURCLoss(AURCLoss):
    """The AURC loss of the public code, ranked by the score of softmax(softmax(z)).

    Since commit e429a75 (2025-10-07) the code computes α ℓ. Until commit 85bd2e5 it
    computed (1 − a) ℓ + a α ℓ, with a = 0.9 for CIFAR-10; 0.5 (ResNet-50), 0.9
    (ResNet-110), 0.2 (WRN) and 0.8 (PreResNet-56) for CIFAR-100; and 0.8 (ViT-Small)
    and 0.9 (Swin-Tiny) for Tiny-ImageNet. There α also has a gradient through soft
    ranks by default, which is left out here.

    Args:
        strength: a.
        **options: the arguments of `AURCLoss`, except for `csf`.
    """

    def __init__(self, strength: float = 1.0, **options: Any) -> None:
        options.pop("csf", None)
        super().__init__(twice_msp, strength=strength, **options)


@_serializable
class ReleasedKDECrossentropy(KDECrossentropy):
    """KDE-XE of the public code: the calibration error is a number without gradient.

    Training is that of cross-entropy; only the choice of the checkpoint differs. The
    estimate of the calibration error is that of this library.
    """

    def sample_losses(self, batch: Batch) -> Tensor:
        xe = batch.expectation(crossentropy(batch))
        return xe + ops.stop_gradient(super().sample_losses(batch) - xe)


VARIANTS = ("intended", "discarded", "released")


@_serializable
class DualFocalVariant(DualFocalLoss):
    """Dual focal loss, −(1 − p_y + p_j)^γ ln p_y, with one of three rivals p_j.

    - `"intended"`: the largest other probability, as the formula is meant (Eq. dfl).
    - `"discarded"`: the same, but 0 where p_y < p_j: the paper's account of the
      authors' code.
    - `"released"`: the largest probability strictly below p_y, 0 if there is none: what
      that code computes, with which the published models were trained.

    Args:
        gamma: γ ≥ 0.
        variant: `"intended"`, `"discarded"` or `"released"`.
        **options: the arguments of `ReweightedLoss`; labels are class indices.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.3, 0.6, 0.1]], "float32")
    >>> loss = DualFocalVariant(gamma=2, variant="released")
    >>> round(float(loss(np.array([0]), p)), 4)  # (1 − 0.3 + 0.1)² · −ln 0.3
    0.7705
    """

    def __init__(
        self, gamma: float = 5.0, variant: str = "released", **options: Any
    ) -> None:
        super().__init__(gamma, **options)
        self.variant = check_choice("variant", variant, VARIANTS)

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 − p_y + p_j)^γ."""
        if self.variant == "intended":
            return super().weights(batch)
        z = batch.y_pred
        own = ops.take_along_axis(z, ops.cast(batch.labels, "int32"), axis=-1)
        first = ops.amax(z, axis=-1, keepdims=True)
        if self.variant == "released":
            eligible, none = z < own, own <= ops.amin(z, axis=-1, keepdims=True)
        else:
            classes = ops.arange(batch.num_classes, dtype=z.dtype)
            eligible, none = classes != batch.labels, own < first
        p_j = ops.amax(ops.where(eligible, batch.p, 0.0), axis=-1, keepdims=True)
        return (batch.one_minus_p_y + ops.where(none, 0.0, p_j)) ** self.gamma

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "variant": self.variant}
