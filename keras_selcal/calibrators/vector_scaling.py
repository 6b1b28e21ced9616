"""Vector scaling: a scale and a shift for each class's logit."""

from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal.calibrators._linear import minimize_nll
from keras_selcal.calibrators.base import Calibrator, Parameters


@serializable
class VectorScaling(Calibrator):
    """Vector scaling: scales and shifts each class's logit.

    Formula:

    ```
    p = softmax(w ∘ z + b)
    ```

    w and b minimise the negative log-likelihood, a convex problem, from w = 1 and
    b = 0. The predicted class may change. Needs SciPy.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = VectorScaling().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    Reference:

    - Guo et al., [On Calibration of Modern Neural
      Networks](https://arxiv.org/abs/1706.04599)
    """

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        z = logits.astype("float64")
        k = z.shape[-1]
        theta = minimize_nll(
            np.concatenate([np.ones(k), np.zeros(k)]),
            lambda theta: z * theta[:k] + theta[k:],
            lambda g: np.concatenate([(g * z).sum(axis=0), g.sum(axis=0)]),
            labels,
            lambda theta: (0.0, np.zeros_like(theta)),
        )
        return {"w": theta[:k], "b": theta[k:]}

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        return ops.softmax(logits * parameters["w"] + parameters["b"], axis=-1)
