"""Isotonic calibration: a rising curve for each class."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_selcal._extras import require
from keras_selcal._formulas.functions import TINY, at_least, at_most, clip
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
from keras_selcal.calibrators.data import Labelled


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
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

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
        isotonic = require("sklearn.isotonic", "This calibrator")
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

    def _curves(self, q: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        knots, values = parameters["knots"], parameters["values"]
        right = count_below(knots, q, xp)
        left = at_least(right - 1.0, 0.0, xp)
        right = at_most(right, knots.shape[-1] - 1.0, xp)
        x0, x1 = (take_by_class(knots, end, xp) for end in (left, right))
        y0, y1 = (take_by_class(values, end, xp) for end in (left, right))
        share = (q - x0) / at_least(x1 - x0, TINY, xp)
        return y0 + (y1 - y0) * clip(share, 0.0, 1.0, xp)
