"""Isotonic calibration: a rising curve for each class."""

from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_selcal._core.ops import TINY, Tensor
from keras_selcal._core.saving import serializable
from keras_selcal.calibrators._one_vs_rest import (
    class_probabilities,
    count_below,
    renormalize,
    stack_edges,
    stack_rows,
    take_by_class,
)
from keras_selcal.calibrators.base import Calibrator, Parameters, require


@serializable
class IsotonicCalibration(Calibrator):
    """Isotonic regression, one class against the rest, renormalised.

    Formula:

    ```
    p_c ∝ f_c(q_c),     q = softmax(z)
    ```

    with f_c the non-decreasing function nearest, in squares, to the indicator of class
    c, linear between the fitting samples and constant beyond them. A row of zeros only
    becomes the uniform vector. The predicted class may change. Overfits below some
    thousand samples. Needs scikit-learn.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = IsotonicCalibration().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    Reference:

    - Zadrozny & Elkan, Transforming classifier scores into accurate multiclass
      probability estimates, KDD 2002
    """

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        isotonic = require("sklearn.isotonic")
        q = class_probabilities(logits)
        knots, values = [], []
        for c in range(q.shape[-1]):
            curve = isotonic.IsotonicRegression(y_min=0, y_max=1)
            curve.fit(q[:, c], labels == c)
            knots.append(np.asarray(curve.X_thresholds_))
            values.append(np.asarray(curve.y_thresholds_))
        edges = stack_edges(knots)
        last = [float(row[-1]) for row in values]
        return {"knots": edges, "values": stack_rows(values, edges.shape[1], last)}

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        q = ops.softmax(logits, axis=-1)
        knots, values = parameters["knots"], parameters["values"]
        right = count_below(knots, q)
        left = ops.maximum(right - 1, 0)
        right = ops.minimum(right, knots.shape[1] - 1)
        x0, x1 = take_by_class(knots, left), take_by_class(knots, right)
        y0, y1 = take_by_class(values, left), take_by_class(values, right)
        share = ops.clip((q - x0) / ops.maximum(x1 - x0, TINY), 0.0, 1.0)
        return renormalize(y0 + (y1 - y0) * share)
