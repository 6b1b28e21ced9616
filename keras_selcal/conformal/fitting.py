"""Selects the parameters and thresholds of a conformal classifier."""

import datetime
import math
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.data import LabelledOutputs
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import row_blocks, to_numpy
from keras_selcal.calibrators import CalibrationLayer, Calibrator
from keras_selcal.conformal.layer import ConformalLayer
from keras_selcal.conformal.results import ConformalRecord
from keras_selcal.conformal.samples import LabelledRows
from keras_selcal.conformal.scores import NonconformityScore
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold

# Attributes of `ConformalClassifier` that `fit_layer` takes.
OPTIONS = (
    "method",
    "alpha",
    "penalty",
    "k_reg",
    "seed",
    "class_conditional",
    "allow_empty",
)


def fit_layer(
    rows: LabelledRows,
    calibrator: Calibrator | None,
    outputs: Outputs,
    *,
    method: str,
    alpha: float,
    penalty: Any,
    k_reg: int | None,
    seed: int | None,
    class_conditional: bool,
    **options: Any,
) -> tuple[ConformalLayer, Calibrator | None]:
    """Returns the fitted layer and calibrator, see `ConformalClassifier`."""
    automatic = penalty == "auto"
    score = NonconformityScore.of(
        method, None if automatic else penalty, k_reg, seed
    ).config()
    unfitted = calibrator is not None and not calibrator.fitted
    if unfitted or automatic:
        first, rows = rows.halves()
    if calibrator is not None and unfitted:
        found = LabelledOutputs(first.outputs, first.labels, first.weight)
        calibrator = calibrator.fitted_copy(found, outputs)
    record = ConformalRecord(
        n=len(rows.labels),
        groups=None if rows.groups is None else len(np.unique(rows.groups)),
        alpha=alpha,
        per_class=class_conditional,
        per_stratum=rows.names is not None,
        date=datetime.date.today().isoformat(),
    )

    calibration = None
    if calibrator is not None:
        calibration = CalibrationLayer(calibrator, outputs.from_logits)

    def new_layer() -> ConformalLayer:
        return ConformalLayer(
            rows.num_classes,
            outputs.from_logits,
            calibration,
            ignore_class=outputs.ignore_class,
            **score,
            class_conditional=class_conditional,
            strata=rows.names,
            record=record,
            **options,
        )

    layer = new_layer()
    if automatic:
        p, _ = _in_blocks(layer, first.outputs)
        score |= choose_penalty(p, first.labels, alpha, method=method, seed=seed)
        layer = new_layer()
    _, scores = _in_blocks(layer, rows.outputs)
    scores = np.take_along_axis(scores, rows.labels[:, None], axis=-1)[:, 0]
    cells = np.zeros(len(scores), "int64") if rows.strata is None else rows.strata
    if class_conditional:
        cells = cells * rows.num_classes + rows.labels
    shape = layer.thresholds.shape
    count = math.prod(shape)
    q = conformal_threshold(
        scores,
        alpha,
        sample_weight=rows.weight,
        groups=rows.groups,
        categories=cells if count > 1 else None,
        num_categories=count,
    )
    layer.thresholds = _with_margin(np.reshape(q, -1), scores, cells).reshape(shape)
    return layer, calibrator


def _in_blocks(
    layer: ConformalLayer, outputs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and scores of all classes, a few rows at a time."""
    found = [
        [to_numpy(x) for x in layer.of_classes(ops.convert_to_tensor(outputs[block]))]
        for block in row_blocks(outputs.shape)
    ]
    probabilities, scores = zip(*found, strict=True)
    return np.concatenate(probabilities), np.concatenate(scores)


def _with_margin(q: np.ndarray, scores: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Returns thresholds just above that let the same scores pass, in float32."""
    following = np.full(len(q), math.inf)
    np.minimum.at(following, cells, np.where(scores > q[cells], scores, math.inf))
    higher = np.minimum(q + 1e-6, (q + following) / 2).astype("float32")
    return np.where((higher >= q) & (higher < following), higher, q.astype("float32"))
