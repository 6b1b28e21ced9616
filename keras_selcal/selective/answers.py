"""Calibrates, decides and scores: the steps from a model's outputs to its answers.

`xp` is `keras.ops` in the layers of classifiers, and NumPy in a `Policy`.
"""

import math
from typing import Any

from keras_selcal._formulas.functions import cast, first_largest, nan_in_row, softmax
from keras_selcal._predictions.outputs import Outputs
from keras_selcal.csf.score import ConfidenceScore


def calibrate(
    inputs: Any, outputs: Outputs, calibration: Any, xp: Any
) -> tuple[Any, Any, Any]:
    """Returns the inputs and their probabilities with the classes in the last axis
    (see `Outputs.columns`), and which samples the calibrator answers.

    Args:
        inputs: a model's outputs.
        outputs: what they mean.
        calibration: a `CalibrationLayer` for tensors, a fitted calibrator for arrays,
            or None.
        xp: `keras.ops` or NumPy.
    """
    columns = outputs.columns(inputs, outputs.from_logits, xp)
    if calibration is None:
        if outputs.from_logits:
            p = softmax(columns, xp) + nan_in_row(columns, xp)
        else:
            # NaN makes the whole row NaN.
            p = columns + 0.0 * xp.sum(columns, axis=-1, keepdims=True)
        return columns, p, xp.ones_like(p[..., 0], dtype="bool")
    p = outputs.columns(calibration(inputs), False, xp)
    return columns, p, calibration.accepts(inputs)


def decide(
    columns: Any, p: Any, accepted: Any, outputs: Outputs, calibration: Any, xp: Any
) -> Any:
    """Returns the predicted classes, for what `calibrate` returns.

    A sample that the calibrator rejects has the class of its largest output, since
    its probabilities are uniform.
    """
    if outputs.decision_threshold == 0.5:
        labels = cast(first_largest(p, xp)[..., 0], "int32", xp)
    else:
        labels = cast(p[..., 1] > outputs.decision_threshold, "int32", xp)
    if calibration is None:
        return labels
    of_model = cast(first_largest(columns, xp)[..., 0], "int32", xp)
    return xp.where(accepted, labels, of_model)


def score(columns: Any, p: Any, csf: ConfidenceScore, outputs: Outputs, xp: Any) -> Any:
    """Returns the score of the probabilities, or of the model's own logits."""
    d = outputs.decision_threshold
    # NaN, which is not accepted, where there are no probabilities.
    nowhere = 0.0 * xp.sum(p, axis=-1)
    if csf.needs != "logits":
        if d != 0.5:
            # Odds relative to the odds of d, which make confidence lowest there:
            # p (1 − d) against (1 − p) d.
            odds = xp.stack([d * p[..., 0], (1 - d) * p[..., 1]], axis=-1)
            p = odds / xp.sum(odds, axis=-1, keepdims=True)
        return csf(p) + nowhere
    if d != 0.5:
        shifted = columns[..., 0] + math.log(d), columns[..., 1] + math.log(1 - d)
        columns = xp.stack(shifted, axis=-1)
    return csf(columns) + nowhere
