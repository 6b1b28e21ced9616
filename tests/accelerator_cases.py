"""Every loss, metric and layer with every score and every form of data."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import reference
from calibrator_data import auto
from keras.src.backend import set_keras_mask

from keras_selcal import calibrators
from keras_selcal import losses as L  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812
from keras_selcal.conformal.layer import ConformalLayer
from keras_selcal.selective.layer import SelectionLayer

N, K, LABELS = 24, 5, 3


@dataclass
class Form:
    """A batch, and the options that say what it means."""

    y: np.ndarray
    y_pred: np.ndarray
    weight: np.ndarray | None = None
    mask: np.ndarray | None = None
    options: dict[str, Any] = field(default_factory=lambda: {"from_logits": True})
    classes: int = K


def _forms():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, K), scale=2).astype("float32")
    y = (z + rng.gumbel(size=z.shape)).argmax(-1).astype("int32")
    weight = (np.arange(N) % 3).astype("float32")
    mask = np.arange(N) % 4 > 0
    logits = {"from_logits": True}
    unit, events = z[:, :1], (z[:, :LABELS] > 0).astype("int32")
    return {
        "logits": Form(y, z),
        "probabilities": Form(y, reference.softmax(z).astype("float32"), options={}),
        "one_hot": Form(np.eye(K, dtype="float32")[y], z),
        "weights": Form(y, z, weight),
        "mask": Form(y, z, mask=mask),
        "ignore_class": Form(
            np.where(mask, y, -1), z, options={**logits, "ignore_class": -1}
        ),
        "one_unit": Form(events[:, 0], unit, classes=2),
        "multi_label": Form(
            events,
            z[:, :LABELS],
            options={**logits, "multi_label": True},
            classes=LABELS,
        ),
        "tokens": Form(y.reshape(4, 6), z.reshape(4, 6, K), mask=mask.reshape(4, 6)),
    }


FORMS = _forms()
SCORES = ("msp", "margin", "neg_entropy", "doctor", "gen")
SCORES_OF_LOGITS = ("max_logit", "energy", "max_logit_pnorm")

RANKING_LOSSES = {
    "au_gradient": partial(L.AULoss, weight_gradient=1.0, smoothing=2.0),
    "au": L.AULoss,
    "aurc": L.AURCLoss,
}
LOSSES = {
    "au_threshold": partial(L.AULoss, threshold=0.6),
    "au_cdf": partial(L.AULoss, weight_gradient=1.0, through="cdf"),
    "au_brier": partial(L.AULoss, base_loss="brier"),
    "aurc_log": partial(L.AURCLoss, estimator="log"),
    "focal": L.FocalLoss,
    "focal_53": partial(L.FocalLoss, "53"),
    "inverse_focal": L.InverseFocalLoss,
    "dual_focal": L.DualFocalLoss,
    "kde_canonical": L.KDECrossentropy,
    "kde_top_label": partial(L.KDECrossentropy, kind="top_label"),
    "kde_marginal": partial(L.KDECrossentropy, kind="marginal"),
    "kde_auto": partial(L.KDECrossentropy, bandwidth="auto"),
    "kde_blocks": partial(L.KDECrossentropy, block_size=8),
    "kde_subsample": partial(L.KDECrossentropy, subsample=8),
    "smoothed_labels": partial(L.FocalLoss, label_smoothing=0.1),
}
RANKING_METRICS = {
    "aurc": M.AURC,
    "excess_aurc": M.ExcessAURC,
    "augrc": M.AUGRC,
    "failure_auroc": M.FailureAUROC,
    "risk_at_coverage": partial(M.RiskAtCoverage, 0.8),
    "coverage_at_risk": partial(M.CoverageAtRisk, 0.3),
}
METRICS = {
    "ece": M.ExpectedCalibrationError,
    "ece_max": partial(M.ExpectedCalibrationError, norm="max"),
    "ece_adaptive": partial(M.ExpectedCalibrationError, binning="adaptive"),
    "cwece": M.ClasswiseCalibrationError,
    "cwece_adaptive": partial(M.ClasswiseCalibrationError, binning="adaptive"),
    "brier": M.BrierScore,
}
CALIBRATORS = {
    "temperature": calibrators.TemperatureScaling,
    "vector": calibrators.VectorScaling,
    "dirichlet": calibrators.DirichletCalibration,
    "histogram": calibrators.HistogramBinning,
    "isotonic": calibrators.IsotonicCalibration,
    "structured_matrix": calibrators.StructuredMatrixScaling,
    "meta_mis": partial(calibrators.MetaMis, 0.1),
    "auto": auto,
    "prior": calibrators.PriorCorrection,
}


def _scores_of(form):
    """Returns the scores that such predictions have."""
    if "from_logits" not in FORMS[form].options:
        return SCORES
    if form in ("one_unit", "multi_label"):
        # The quotient of two centred logits and their norm is a constant.
        return *SCORES, "max_logit", "energy"
    return *SCORES, *SCORES_OF_LOGITS


def _cases(ranking, others):
    first = next(iter(ranking))
    for form in FORMS:
        for name, make in ranking.items():
            # What the others do with scores, the first one does as well.
            for score in _scores_of(form) if name == first else ["msp"]:
                yield f"{name}-{score}-{form}", partial(make, csf=score), form
        for name, make in others.items():
            yield f"{name}-{form}", make, form


def _loss(make, form):
    return make(**FORMS[form].options)


def _metric(make, form):
    options = dict(FORMS[form].options)
    if form == "multi_label" or getattr(make, "func", make) is METRICS["cwece"]:
        options["num_classes"] = FORMS[form].classes
    return make(**options)


def loss_cases():
    """Returns for each case a function that makes the loss, and its form of data."""
    cases = _cases(RANKING_LOSSES, LOSSES)
    return {name: (partial(_loss, make, form), form) for name, make, form in cases}


def metric_cases():
    """Returns for each case a function that makes the metric, and its form of data."""
    cases = _cases(RANKING_METRICS, METRICS)
    return {name: (partial(_metric, make, form), form) for name, make, form in cases}


def layer_cases():
    """Returns for each case a function that makes the layer, and its form of data."""
    found = {}
    forms = ("logits", "probabilities", "mask", "one_unit", "multi_label")
    for form in forms:
        for name in CALIBRATORS:
            if form != "multi_label" or not name.startswith(("dir", "str", "meta")):
                layer = partial(calibrators.CalibrationLayer, _fitted(name, form))
                found[f"{name}-{form}"] = layer, form
    for form in (
        "logits",
        "probabilities",
        "mask",
        "one_unit",
        "multi_label",
        "tokens",
    ):
        for score in (*_scores_of(form), "costs"):
            found[f"selection-{score}-{form}"] = partial(_selection, score, form), form
        for method in ("lac", "aps", "raps", "saps"):
            if form != "multi_label":
                found[f"{method}-{form}"] = partial(_sets, method, form), form
    return found


def _fitted(name, form):
    data = FORMS[form]
    options = {"from_logits": False, **data.options}
    rows = np.resize(np.arange(N), 240)
    if name == "prior":
        source = np.full(data.classes, 0.3)
        options |= {"source": source, "target": source[::-1] + 0.1}
        if form != "multi_label":
            source = np.arange(1.0, data.classes + 1)
            source /= source.sum()
            options |= {"source": source, "target": source[::-1]}
    return CALIBRATORS[name](**options).fit(data.y_pred[rows], data.y[rows])


def _selection(score, form):
    data = FORMS[form]
    threshold = 0.5 if form != "multi_label" else np.full(LABELS, 0.5)
    costs = None
    if score == "costs":
        score, costs = "msp", 1 - np.eye(2 if form == "multi_label" else data.classes)
    return SelectionLayer(
        csf=score,
        costs=costs,
        threshold=threshold,
        from_logits="from_logits" in data.options,
        multi_label=form == "multi_label",
    )


def _sets(method, form):
    data = FORMS[form]
    layer = ConformalLayer(
        data.classes,
        "from_logits" in data.options,
        method=method,
        penalty=0.1 if method in ("raps", "saps") else None,
        k_reg=2 if method == "raps" else None,
        seed=None if method == "lac" else 0,
    )
    layer.thresholds = np.full((1, 1), 0.7)
    return layer


# With every form of data, also where every case would take too long.
WHOLE = (
    *("au_gradient-msp", "aurc-msp", "focal", "kde_canonical"),
    *("ece", "ece_adaptive", "cwece"),
)


def few(cases):
    """Returns one case for each loss, metric, layer and score, and those of WHOLE."""
    seen, chosen = set(), {}
    for name, case in cases.items():
        what = name.rpartition("-")[0]
        parts = {*what.split("-")}
        if what in WHOLE or not parts <= seen:
            seen |= parts
            chosen[name] = case
    return chosen


def arrays(form):
    """Returns the arrays of a form that are not None: labels, predictions, weight and
    mask.
    """
    data = FORMS[form]
    named = {"y": data.y, "y_pred": data.y_pred, "w": data.weight, "mask": data.mask}
    return {name: array for name, array in named.items() if array is not None}


def loss_of(loss, y, y_pred, w=None, mask=None):
    """Returns a loss, as `compile` calls it."""
    set_keras_mask(y_pred, mask)
    return loss(y, y_pred, w)


def result_of(metric, y, y_pred, w=None, mask=None):
    """Returns the result of a metric after an update, as `compile` calls it."""
    set_keras_mask(y_pred, mask)
    metric.update_state(y, y_pred, w)
    return metric.result()


def stateless_result_of(metric, variables, y, y_pred, w=None, mask=None):
    """Returns the same, and the state, of a state that is given."""
    set_keras_mask(y_pred, mask)
    variables = metric.stateless_update_state(variables, y, y_pred, w)
    return metric.stateless_result(variables), variables


def answer_of(layer, y, y_pred, w=None, mask=None):
    """Returns what a layer answers, as a list."""
    masked = mask is not None and not isinstance(layer, calibrators.CalibrationLayer)
    options = {"mask": mask} if masked else {}
    return keras.tree.flatten(layer(y_pred, **options))
