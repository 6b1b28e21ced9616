"""Vector scaling: a scale and a shift for each class's logit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_selcal._formulas.functions import is_masked
from keras_selcal._saving import serializable
from keras_selcal.calibrators._affine import Affine, AffineCalibrator, Penalty
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.data import Labelled
from keras_selcal.calibrators.temperature_scaling import nll_temperature

# From almost temperature scaling to almost no penalty.
_REGULARIZATIONS = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001, 0.0001)


@serializable
class VectorScaling(AffineCalibrator):
    """Vector scaling: scales and shifts each class's logit.

    Formula:

    ```
    p = softmax(w ∘ z + b)
    penalty: λ/k Σ ((T w_c − 1)² + b_c²),     T the temperature of `TemperatureScaling`
    ```

    w and b minimise the mean negative log-likelihood plus the penalty, a convex problem
    that starts from temperature scaling (w = 1/T, b = 0) and returns to it as λ grows.
    The predicted class may change. Logits of more than two classes are used unchanged,
    a common offset included; the logits of probabilities are ln p. For two
    classes, one sigmoid unit, and each label of multi-label data this is Platt scaling,
    σ(w z + b) with z = z_1 − z_0. Requires SciPy.

    Args:
        regularization: λ ≥ 0. If several values are given, 3-fold cross-validation on
            the fitting data goes from the largest to the smallest and takes the last
            one before the held-out negative log-likelihood rises. Defaults to the
            values 100, 10, 1, …, 0.0001.
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
    >>> calibrator = VectorScaling().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    References:
    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """

    _diagonal = True

    def _default_regularization(self, data: Labelled) -> Sequence[float]:
        return _REGULARIZATIONS

    def _scale(self, data: Labelled) -> Parameters:
        T = 1.0 if data.one_class else nll_temperature(data)
        return {"temperature": np.asarray(T)}

    def _features(self, logits: Any, scale: Mapping[str, Any], xp: Any) -> Any:
        x = xp.where(is_masked(logits), xp.zeros_like(logits), logits)
        # Two classes have one degree of freedom: (0, z_1 − z_0).
        return x - x[..., :1] if x.shape[-1] == 2 else x

    def _penalty(self, regularization: float, k: int, scale: Parameters) -> Penalty:
        T = float(scale["temperature"])
        return Penalty(regularization / k * T**2, regularization / k, centre=1 / T)

    def _start(self, k: int, scale: Parameters) -> Affine:
        return Affine(np.full(k, 1 / float(scale["temperature"])), np.zeros(k))
