"""Isotonic calibration: a rising curve for each class."""

from collections.abc import Mapping

import numpy as np
from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._extras import require
from keras_selcal._formulas.functions import TINY
from keras_selcal._predictions.labelled import Labelled
from keras_selcal._saving import serializable
from keras_selcal.calibrators._one_vs_rest import (
    OneVsRest,
    class_probabilities,
    count_below,
    stack_edges,
    stack_rows,
    take_by_class,
)
from keras_selcal.calibrators._parameters import Parameters


@serializable
class IsotonicCalibration(OneVsRest):
    """Isotonic regression, one class against the rest, renormalised.

    Formula:

    ```
    p_c ∝ (n f_c(q_c) + (q_c + 1/k)/2)/(n + 1),     q = softmax(z)
    ```

    with f_c the non-decreasing function nearest, in squares, to the indicator of class
    c, linear between the fitting samples and constant beyond them. n is the number of
    fitting samples. The terms beside f_c count as one more sample, half of it as the
    model predicts and half uniform: no probability is 0, and the model's ranking
    decides where f_c is constant.

    The predicted class may change, and `fit` warns if accuracy falls. The calibrator
    overfits with fewer than some thousand samples. Requires scikit-learn, whose own
    isotonic calibration is f_c renormalised, with probabilities of 0.

    Args:
        **kwargs: `from_logits`, `multi_label`, `ignore_class` and `axis`; see
            `Calibrator`.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = IsotonicCalibration().fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    References:
    - Zadrozny & Elkan, Transforming classifier scores into accurate multiclass
      probability estimates, KDD 2002
    """

    def _fit(self, data: Labelled) -> Parameters:
        isotonic = require("sklearn.isotonic", "calibrators", "This calibrator")
        q, hits, weight = class_probabilities(data)
        knots, values = [], []
        for c in range(q.shape[-1]):
            counts = weight[:, c] > 0
            if not counts.any():  # a class that occurs in no sample
                knots.append(np.array([0.0, 1.0]))
                values.append(np.array([0.0, 1.0]))
                continue
            curve = isotonic.IsotonicRegression(y_min=0, y_max=1)
            curve.fit(q[counts, c], hits[counts, c], weight[counts, c])
            knots.append(np.asarray(curve.X_thresholds_))
            values.append(np.asarray(curve.y_thresholds_))
        edges = stack_edges(knots)
        last = [float(row[-1]) for row in values]
        return {
            "knots": edges,
            "values": stack_rows(values, edges.shape[1], last),
            "n": np.asarray(data.total),
        }

    def _curves(self, q: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        knots, values = parameters["knots"], parameters["values"]
        right = count_below(knots, q)
        left = ops.maximum(right - 1, 0)
        right = ops.minimum(right, knots.shape[1] - 1)
        x0, x1 = take_by_class(knots, left), take_by_class(knots, right)
        y0, y1 = take_by_class(values, left), take_by_class(values, right)
        share = ops.clip((q - x0) / ops.maximum(x1 - x0, TINY), 0.0, 1.0)
        return y0 + (y1 - y0) * share
