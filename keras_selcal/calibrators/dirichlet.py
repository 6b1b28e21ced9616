"""Dirichlet calibration: a linear map of the log-probabilities."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import constant, is_masked, log_softmax
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_number, refuse
from keras_selcal.calibrators._affine import AffineCalibrator, Penalty
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.data import Labelled

# `fit` takes minutes if n·k² is above this, and warns.
_MOST_PRODUCTS = 5e8


@serializable
class DirichletCalibration(AffineCalibrator):
    """Dirichlet calibration: a linear map of the log-probabilities.

    Formula:

    ```
    p = softmax(W ln q + b),     q = softmax(z)
    ODIR: λ/(k(k − 1)) Σ_{i≠j} w_ij² + μ/k Σ b_j²
    L2:   λ/k² Σ w_ij² + μ/k Σ b_j²
    ```

    W and b minimise the mean negative log-likelihood plus the penalty, a convex
    problem, from W = I and b = 0. The predicted class may change. With k² + k
    parameters it needs a penalty and some tens of samples for each class; for n·k²
    above 5e8 (n = 2500, k = 1000) `fit` warns that it takes minutes. A logit of −∞ has
    no finite image under W: `fit` refuses it, and the calibrator returns NaN for a
    sample with one. Requires SciPy.

    Args:
        regularizer: `"odir"` leaves the diagonal of W free, `"l2"` does not.
        regularization: λ ≥ 0. If several values are given, 3-fold cross-validation
            chooses one, as in `VectorScaling`. Defaults to k for ODIR and k/10 for L2,
            the powers of ten that did best on networks for CIFAR-10 and CIFAR-100.
        bias_regularization: μ ≥ 0. Defaults to λ.
        seed: seed of the folds.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: False: W mixes the classes of one distribution.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

    Attributes:
        regularization_: the λ that was used, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = DirichletCalibration().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    References:
    - Kull et al., [Beyond temperature scaling: Obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration](https://arxiv.org/abs/1910.12656)
    """

    _single_label_because = "W mixes the classes of one distribution"

    def __init__(
        self,
        regularizer: str = "odir",
        *,
        regularization: float | Sequence[float] | None = None,
        bias_regularization: float | None = None,
        seed: int = 0,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            regularization,
            seed=seed,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.regularizer = check_choice("regularizer", regularizer, ("odir", "l2"))
        self.bias_regularization = bias_regularization
        if bias_regularization is not None:
            self.bias_regularization = check_number(
                "bias_regularization",
                bias_regularization,
                "a number ≥ 0, or None",
                least=0,
            )

    def _default_regularization(self, data: Labelled) -> float:
        k = data.num_classes
        return float(k) if self.regularizer == "odir" else k / 10

    def _features(self, logits: Any, scale: Mapping[str, Any], xp: Any) -> Any:
        return log_softmax(logits, xp)

    def _penalty(self, regularization: float, k: int, scale: Parameters) -> Penalty:
        if self.regularizer == "odir":
            on_w = regularization / (k * (k - 1)) * (1 - np.eye(k))
        else:
            on_w = np.full((k, k), regularization / k**2)
        mu = (
            regularization
            if self.bias_regularization is None
            else self.bias_regularization
        )
        return Penalty(on_w, mu / k)

    def _fit(self, data: Labelled) -> Parameters:
        if data.masked is not None:
            refuse("logits", -np.inf, "finite: DirichletCalibration mixes classes")
        n, k = data.logits.shape
        if n * k**2 > _MOST_PRODUCTS:
            warnings.warn(
                f"DirichletCalibration fits a matrix of {k}² entries to {n} samples, "
                "which can take many minutes: each of up to 1000 steps needs n·k² "
                "products, a second or two at n = 2500 and k = 1000. Use "
                "`StructuredVectorScaling` or `VectorScaling` for so many classes.",
                stacklevel=5,
            )
        return super()._fit(data)

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        masked = xp.any(is_masked(logits), axis=-1, keepdims=True)
        logits = xp.where(masked, constant(np.nan, logits, xp), logits)
        return super()._apply(logits, parameters, xp)
