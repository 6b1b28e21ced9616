"""Structured vector and matrix scaling: penalties that follow from n and k."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import softmax
from keras_selcal._saving import serializable
from keras_selcal.calibrators._affine import AffineCalibrator, Penalty
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.data import Labelled
from keras_selcal.calibrators.temperature_scaling import nll_temperature


class _Structured(AffineCalibrator):
    """Base class: an affine map of the log-probabilities of temperature scaling."""

    def _default_regularization(self, data: Labelled) -> float:
        return 1.0

    def _scale(self, data: Labelled) -> Parameters:
        T = 1.0 if data.one_class else nll_temperature(data)
        return {"temperature": np.asarray(T), "n": np.asarray(data.total)}

    def _features(self, logits: Any, scale: Mapping[str, Any], xp: Any) -> Any:
        T, n = (xp.expand_dims(scale[name], -1) for name in ("temperature", "n"))
        p = softmax(logits / T, xp)
        return xp.log((n * p + 1 / logits.shape[-1]) / (n + 1))


@serializable
class StructuredVectorScaling(_Structured):
    """Structured vector scaling (SVS): vector scaling with a penalty set by n and k.

    Formula:

    ```
    p = softmax(w ∘ ln q + b),     q = (n softmax(z/T) + 1/k)/(n + 1)
    penalty: λ (k/n) (Σ (w_c − 1)² + Σ b_c²)
    ```

    with n the number of fitting samples and T the temperature of `TemperatureScaling`.
    w and b minimise the mean negative log-likelihood plus the penalty, a convex
    problem, from w = 1 and b = 0. The predicted class may change. Requires SciPy.

    Args:
        regularization: λ ≥ 0. Defaults to 1, the authors' value. If several values are
            given, 3-fold cross-validation chooses one, as in `VectorScaling`.
        seed: seed of the folds.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

    Attributes:
        regularization_: the λ that was used, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = StructuredVectorScaling().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    References:
    - Berta et al., [Structured Matrix Scaling for Multi-Class
      Calibration](https://arxiv.org/abs/2511.03685)
    """

    _diagonal = True

    def _penalty(self, regularization: float, k: int, scale: Parameters) -> Penalty:
        weight = regularization * k / float(scale["n"])
        return Penalty(weight, weight, centre=1.0)


@serializable
class StructuredMatrixScaling(_Structured):
    """Structured matrix scaling (SMS): a matrix with a penalty set by n and k.

    Formula:

    ```
    p = softmax(W ln q + b),     q = (n softmax(z/T) + 1/k)/(n + 1)
    penalty: λ (k/n) (Σ_i (w_ii − 1)² + Σ_i b_i² + (k − 1) Σ_{i≠j} w_ij²)
    ```

    n, T, the fit and the arguments are as in `StructuredVectorScaling`, with W = I to
    start from. The predicted class may change. Requires SciPy.

    Attributes:
        regularization_: the λ that was used, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = StructuredMatrixScaling().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    References:
    - Berta et al., [Structured Matrix Scaling for Multi-Class
      Calibration](https://arxiv.org/abs/2511.03685)
    """

    _single_label_because = "W mixes the classes of one distribution"

    def _penalty(self, regularization: float, k: int, scale: Parameters) -> Penalty:
        weight = regularization * k / float(scale["n"])
        on_w = np.full((k, k), weight * (k - 1))
        np.fill_diagonal(on_w, weight)
        return Penalty(on_w, weight, centre=np.eye(k))
