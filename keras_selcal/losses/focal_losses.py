"""Focal, inverse focal and dual focal loss: weights that are functions of p."""

import warnings
from typing import Any

from keras import ops

from keras_selcal._backend.ops import (
    Tensor,
    largest,
    largest_log_p,
    safe_power,
    top_two,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_number
from keras_selcal.losses.base import ReweightedLoss


class _FocalFamily(ReweightedLoss):
    """Cross-entropy times a weight with an exponent γ."""

    gamma: float | str

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "gamma": self.gamma}
        del config["base_loss"]
        return config


def _check_gamma(gamma: Any, allowed: str = "a number of at least 0") -> float:
    return check_number("gamma", gamma, allowed, least=0.0, most=1e6)


@serializable
class FocalLoss(_FocalFamily):
    """Focal loss: the higher p of the true class, the lower the weight.

    Formula:

    ```
    ℓ(p, y) = −(1 − p_y)^γ ln p_y
    ```

    with p_y the probability of the true class. γ = 0 is cross-entropy.

    Args:
        gamma: γ ≥ 0, or `"53"` for FL-53: γ = 5 where p_y < 0.2, else 3.
        name: name of the loss.
        **options: the arguments of `ReweightedLoss`: `strength`, `from_logits`,
            `multi_label`, `ignore_class`, `label_smoothing`, `axis`, `reduction`,
            `dtype`.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6]], "float32")
    >>> round(float(FocalLoss(gamma=2)(np.array([0, 0]), probabilities)), 4)
    0.1655

    References:
    - Lin et al., [Focal Loss for Dense Object
      Detection](https://arxiv.org/abs/1708.02002)
    - Mukhoti et al., [Calibrating Deep Neural Networks using Focal
      Loss](https://arxiv.org/abs/2002.09437) (FL-53)
    """

    def __init__(
        self,
        gamma: float | str = 2.0,
        *,
        name: str | None = "focal_loss",
        **options: Any,
    ) -> None:
        super().__init__("crossentropy", name=name, **options)
        allowed = 'a number of at least 0, or "53"'
        self.gamma = gamma if gamma == "53" else _check_gamma(gamma, allowed)

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 − p_y)^γ."""
        gamma: Any = self.gamma
        if gamma == "53":
            gamma = ops.where(ops.stop_gradient(batch.p_y) < 0.2, 5.0, 3.0)
            gamma = ops.cast(gamma, batch.p_y.dtype)
        return safe_power(batch.one_minus_p_y, gamma)


@serializable
class InverseFocalLoss(_FocalFamily):
    """Inverse focal loss: the higher p of the true class, the higher the weight.

    Formula:

    ```
    ℓ(p, y) = −(1 + p_y)^γ ln p_y
    ```

    with p_y the probability of the true class. γ = 0 is cross-entropy. For γ above
    3.591 the gradient −(1 + p)^γ/p − γ(1 + p)^{γ−1} ln p is positive for some p, where
    the loss lowers p_y (see `keras_selcal.analysis`); γ > 3.5 gives a warning.

    Args:
        gamma: γ ≥ 0.
        name: name of the loss.
        **options: the arguments of `ReweightedLoss`: `strength`, `from_logits`,
            `multi_label`, `ignore_class`, `label_smoothing`, `axis`, `reduction`,
            `dtype`.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.4, 0.6]], "float32")
    >>> round(float(InverseFocalLoss(gamma=2)(np.array([0, 0]), probabilities)), 4)
    1.0881

    References:
    - Wang et al., [Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of
      Overconfidence](https://proceedings.neurips.cc/paper/2021/hash/61f3a6dbc9120ea78ef75544826c814e-Abstract.html)
    """

    def __init__(
        self,
        gamma: float = 2.0,
        *,
        name: str | None = "inverse_focal_loss",
        **options: Any,
    ) -> None:
        super().__init__("crossentropy", name=name, **options)
        self.gamma = _check_gamma(gamma)
        if self.gamma > 3.5:
            warnings.warn(
                f"InverseFocalLoss with gamma={self.gamma:g} (above 3.5): its gradient "
                "may be positive for some probabilities, which then fall in training.",
                stacklevel=2,
            )

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 + p_y)^γ."""
        return ops.power(1.0 + batch.p_y, self.gamma)


DUAL_FOCAL_VARIANTS = ("intended", "discarded", "released")


@serializable
class DualFocalLoss(_FocalFamily):
    """Dual focal loss: the smaller the margin over the best rival, the more weight.

    Formula:

    ```
    ℓ(p, y) = −(1 − p_y + p_j)^γ ln p_y
    ```

    with p_y the probability of the true class. The variant defines p_j:

    - `"intended"`: the largest other probability, as the formula is meant (Eq. dfl).
    - `"discarded"`: the same, but 0 where p_y < p_j: the paper's account of the
      authors' code.
    - `"released"`: the largest probability strictly below p_y, 0 if there is none:
      this is what the authors' code computes, with which the published models were
      trained.

    Args:
        gamma: γ ≥ 0.
        variant: `"intended"`, `"discarded"` or `"released"`.
        name: name of the loss.
        **options: the arguments of `ReweightedLoss`: `strength`, `from_logits`,
            `multi_label`, `ignore_class`, `label_smoothing`, `axis`, `reduction`,
            `dtype`.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], "float32")
    >>> round(float(DualFocalLoss(gamma=2)(np.array([0, 0]), probabilities)), 4)
    1.0619

    References:
    - Tao et al., [Dual Focal Loss for Calibration](https://arxiv.org/abs/2305.13665)
    """

    def __init__(
        self,
        gamma: float = 5.0,
        *,
        variant: str = "intended",
        name: str | None = "dual_focal_loss",
        **options: Any,
    ) -> None:
        super().__init__("crossentropy", name=name, **options)
        self.gamma = _check_gamma(gamma)
        self.variant = check_choice("variant", variant, DUAL_FOCAL_VARIANTS)

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 − p_y + p_j)^γ."""
        if self.variant == "released":
            rival = _largest_below(batch)
        else:
            rival = _largest_other(batch)
        p_j = batch.as_p(rival)
        if self.variant == "discarded":
            own = batch.log_p_y if batch.in_logs else batch.p_y
            p_j = ops.where(own < rival, 0.0, p_j)
        return safe_power(batch.one_minus_p_y + p_j, self.gamma)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "variant": self.variant}


def _largest_other(batch: Batch) -> Tensor:
    """Returns the largest of `y_pred` at a class other than each one of `y_pred_y`."""
    if batch.sparse and batch.logits is not None:
        own = batch.class_indices
        return largest_log_p(batch.y_pred, batch.logits, apart_from=own)
    if batch.sparse:
        return largest(batch.y_pred, apart_from=batch.class_indices)
    first, second = top_two(batch.y_pred)
    return ops.where(batch.y_pred_y >= first, second, first)


def _largest_below(batch: Batch) -> Tensor:
    """Returns the largest of `y_pred` strictly below each one of `y_pred_y`, or the
    value of a probability of 0.
    """
    nothing = -1e30 if batch.in_logs else 0.0
    if batch.sparse:
        below = ops.where(batch.y_pred < batch.y_pred_y, batch.y_pred, nothing)
        return largest(below)
    # One sort serves every class: each takes its predecessor if that is smaller; equal
    # values take that of the first of them, by a running maximum.
    order = ops.argsort(batch.y_pred, axis=-1)
    ranked = ops.take_along_axis(batch.y_pred, order, axis=-1)
    previous = ops.roll(ranked, 1, axis=-1)
    below = ops.where(previous < ranked, previous, nothing)
    shift = 1
    while shift < batch.num_classes:
        padded = ops.pad(
            below[:, :-shift], ((0, 0), (shift, 0)), constant_values=nothing
        )
        below = ops.maximum(below, padded)
        shift *= 2
    return ops.take_along_axis(below, ops.argsort(order, axis=-1), axis=-1)
