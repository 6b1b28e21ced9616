"""Selects the parameters and thresholds of a conformal classifier on labelled rows."""

import datetime
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.data import LabelledOutputs
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import row_blocks, to_numpy
from keras_selcal._core.validation import refuse
from keras_selcal.calibrators import CalibrationLayer, Calibrator
from keras_selcal.conformal.layer import ConformalLayer, ConformalRecord
from keras_selcal.conformal.scores import NonconformityScore
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold
from keras_selcal.selective.data import SelectionData

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


def spread(
    name: str,
    values: Any,
    shape: tuple[int, ...],
    names: list[Any] | None = None,
) -> np.ndarray:
    """Returns one entry for each sample of a shape, as the index in `names` if given.

    Values of fewer dimensions belong to the leading ones.
    """
    if values is None:
        refuse(name, values, "one entry for each sample, as in `fit`")
    values = to_numpy(values)
    if values.shape != shape[: values.ndim] or values.ndim == 0:
        refuse(name, values.shape, f"of shape {shape}, or a leading part of it")
    if names is not None:
        known = np.asarray(names)
        order = np.argsort(known)
        position = np.searchsorted(known, values, sorter=order)
        index = order[position.clip(max=len(known) - 1)]
        unknown = known[index] != values
        if unknown.any():
            refuse(name, values[unknown][0], f"one of those in `fit`: {names}")
        values = index.astype("int32")
    values = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    return np.broadcast_to(values, shape)


@dataclass(frozen=True)
class LabelledRows:
    """n samples that count.

    Attributes:
        outputs: of the model, (n, k) or (n, 1).
        labels: class indices (n,).
        weight: (n,), all above 0.
        groups: which samples depend on each other, (n,), or None.
        units: index of each sample's group, or else of its entry in the first axis.
        strata: index of each sample's stratum, (n,), or None.
        names: of the strata, or None.
    """

    outputs: np.ndarray
    labels: np.ndarray
    weight: np.ndarray
    groups: np.ndarray | None
    units: np.ndarray
    strata: np.ndarray | None
    names: list[Any] | None

    @classmethod
    def of(
        cls, data: SelectionData, strata: Any, names: list[Any] | None = None
    ) -> "LabelledRows":
        """Returns the samples that count.

        Args:
            data: the checked data.
            strata: (...) or fewer dimensions, or None.
            names: known strata; by default those that occur.
        """
        samples, counts = data.labels.shape, data.weight > 0
        if strata is not None and names is None:
            names = np.unique(to_numpy(strata)).tolist()
        if names is not None:
            strata = spread("strata", strata, samples, names)[counts]
        elif strata is not None:
            refuse("strata", strata, "None: `fit` had no strata")
        return cls(
            data.y_pred.reshape(*samples, -1)[counts],
            data.labels[counts].astype("int64"),
            data.weight[counts],
            None if data.groups is None else data.groups[counts],
            data.units[counts],
            strata,
            names,
        )

    @property
    def num_classes(self) -> int:
        return max(2, int(self.outputs.shape[-1]))

    def stratum_names(self) -> np.ndarray | None:
        """Returns the name of each sample's stratum."""
        return None if self.names is None else np.asarray(self.names)[self.strata]

    def balanced_weight(self) -> np.ndarray:
        """Returns weights that sum to 1 in each group."""
        if self.groups is None:
            return self.weight
        _, group = np.unique(self.groups, return_inverse=True)
        return np.asarray(self.weight / np.bincount(group, self.weight)[group])

    def halves(self) -> tuple["LabelledRows", "LabelledRows"]:
        """Returns every other sample, or group, and the rest."""
        even = self.units % 2 == 0
        return self._where(even), self._where(~even)

    def _where(self, rows: np.ndarray) -> "LabelledRows":
        if not rows.any():
            refuse("x", len(self.labels), "at least two samples, or groups, to split")
        parts: dict[str, Any] = {
            name: None if value is None else value[rows]
            for name, value in vars(self).items()
            if name != "names"
        }
        return replace(self, **parts)


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
