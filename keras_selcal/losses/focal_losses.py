"""Focal, inverse focal and dual focal loss: weights that are functions of p."""

import warnings
from typing import Any

from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import TINY, at_least, constant
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_number
from keras_selcal.losses.base import ReweightedLoss


class _FocalFamily(ReweightedLoss):
    """Cross-entropy times a weight with an exponent γ."""

    gamma: float | str

    def get_config(self) -> dict[str, Any]:
        config = {**super().get_config(), "gamma": self.gamma}
        del config["base_loss"]
        return config


def _power(x: Tensor, gamma: Any) -> Tensor:
    """Returns x^γ for x ≥ 0 with a finite gradient at 0 for every γ ≥ 0."""
    return at_least(x, TINY, ops) ** gamma


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
        strength: a in [0, 1]; the loss is −(1 − a + a w) ln p_y, w the weight. With 0
            it is cross-entropy.
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
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "focal_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "crossentropy",
            strength=strength,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        allowed = 'a number of at least 0, or "53"'
        self.gamma = gamma if gamma == "53" else _check_gamma(gamma, allowed)

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 − p_y)^γ."""
        gamma: Any = self.gamma
        if gamma == "53":
            low = ops.stop_gradient(batch.p_y) < 0.2
            gamma = 3.0 + 2.0 * ops.cast(low, batch.p_y.dtype)
        return _power(batch.one_minus_p_y, gamma)


@serializable
class InverseFocalLoss(_FocalFamily):
    """Inverse focal loss: the higher p of the true class, the higher the weight.

    Formula:

    ```
    ℓ(p, y) = −(1 + p_y)^γ ln p_y
    ```

    with p_y the probability of the true class. γ = 0 is cross-entropy. For γ above
    3.591 the gradient −(1 + p)^γ/p − γ(1 + p)^{γ−1} ln p is positive for some p, where
    the loss lowers p_y; γ > 3.5 gives a warning.

    Args:
        gamma: γ ≥ 0.
        strength: a in [0, 1]; the loss is −(1 − a + a w) ln p_y, w the weight. With 0
            it is cross-entropy.
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
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "inverse_focal_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "crossentropy",
            strength=strength,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        self.gamma = _check_gamma(gamma)
        if self.gamma > 3.5:
            warnings.warn(
                f"InverseFocalLoss with gamma={self.gamma:g} (above 3.5): its gradient "
                "may be positive for some probabilities, which then fall in training.",
                stacklevel=2,
            )

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 + p_y)^γ."""
        return (1.0 + batch.p_y) ** self.gamma


@serializable
class DualFocalLoss(_FocalFamily):
    """Dual focal loss: the smaller the margin over the best rival, the more weight.

    Formula:

    ```
    ℓ(p, y) = −(1 − p_y + p_j)^γ ln p_y
    ```

    with p_y the probability of the true class and p_j the largest other probability
    (Eq. dfl). `recipes/paper` has the variants of the authors' code.

    Args:
        gamma: γ ≥ 0.
        strength: a in [0, 1]; the loss is −(1 − a + a w) ln p_y, w the weight. With 0
            it is cross-entropy.
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
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "dual_focal_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "crossentropy",
            strength=strength,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        self.gamma = _check_gamma(gamma)

    def weights(self, batch: Batch) -> Tensor:
        """Returns (1 − p_y + p_j)^γ."""
        return _power(batch.one_minus_p_y + self.rival(batch), self.gamma)

    def rival(self, batch: Batch) -> Tensor:
        """Returns p_j, in the shape of `batch.p_y`."""
        p = batch.p
        if batch.sparse:
            own = batch.distributions > 0
            return ops.amax(_struck_out(own, p), axis=-1, keepdims=True)
        first = ops.amax(p, axis=-1, keepdims=True)
        at_first = p >= first
        second = ops.amax(_struck_out(at_first, p), axis=-1, keepdims=True)
        alone = ops.sum(ops.cast(at_first, p.dtype), axis=-1, keepdims=True) < 2
        # The only largest class has the second as its rival, all others the first.
        return ops.where(at_first & alone, second, first)


def _struck_out(at: Tensor, p: Tensor) -> Tensor:
    """Returns p, and −1 at some places."""
    return ops.where(at, constant(-1.0, p, ops), p)
