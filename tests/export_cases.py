"""Classifiers and calibrated models of every kind, to be exported."""

import importlib.util
import os
from functools import partial

import keras
import numpy as np
import pytest
from classifier_data import draw

from keras_selcal import ConformalClassifier, SelectiveClassifier, calibrators

CONVERTERS = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None
    and "KERAS_SELCAL_EXPORT" not in os.environ,
    reason="no converters and runtimes: run `tox -e export`",
)
CALIBRATORS = {
    "temperature": calibrators.TemperatureScaling,
    "vector": calibrators.VectorScaling,
    "structured_matrix": calibrators.StructuredMatrixScaling,
    "dirichlet": calibrators.DirichletCalibration,
    "histogram": calibrators.HistogramBinning,
    "isotonic": calibrators.IsotonicCalibration,
    "meta_acc": partial(calibrators.MetaAcc, 0.9),
}
# Each score, with the calibrators.
SCORES = {
    "msp": "temperature",
    "margin": "vector",
    "neg_entropy": "dirichlet",
    "doctor": "histogram",
    "gen": "isotonic",
    "max_logit": "meta_acc",
    "max_logit_pnorm": "structured_matrix",
    "energy": None,
}
K = 3


def network(units=K, **options):
    """Returns a network that was never called."""
    layers = [keras.layers.Rescaling(1.0)]  # keeps a logit of −∞
    if units != K:
        layers = [keras.layers.Dense(units, kernel_initializer="ones", **options)]
    return keras.Sequential([keras.Input((K,), name="x"), *layers])


def strata(n):
    return np.arange(n, dtype="int32") % 2


def inputs(made, format):
    """Returns arrays for an exported model, by name: ties, saturation, NaN and −∞."""
    x, _ = draw(n=57, k=K, seed=1)
    nan, inf = np.nan, np.inf
    x[:5] = [[0, 0, 0], [1, 1, 0], [1e4, 0, 0], [nan, 0, 0], [-inf, 0, 1]]
    last = getattr(made, "model", made).layers[-1]
    if format == "litert" and isinstance(last, keras.layers.Softmax):
        x[3] = 0  # of which some processors make numbers, see docs/export.md
    named = {"x": x}
    if getattr(made, "strata", None):
        named["strata"] = strata(len(x))
    return named


def answers(made, x, **strata):
    """Returns the outputs that an exported classifier or model should have."""
    if isinstance(made, keras.Model):
        return {"probabilities": made.predict(x, verbose=0)}
    found = made.predict(x, **strata, verbose=0)._asdict()
    if "sets" in found:
        found["sizes"] = found["sets"].sum(axis=-1, dtype="int32")
    return {**found, "probabilities": made.predict_proba(x, verbose=0)}


def selective(csf):
    x, y = draw(n=600, k=K)
    calibrator = SCORES[csf] and CALIBRATORS[SCORES[csf]]()
    classifier = SelectiveClassifier(network(), csf, calibrator=calibrator)
    return classifier.fit(x, y, coverage=0.7, verbose=0)


def softmax():
    """A calibrator of probabilities, which goes through their logarithms."""
    x, y = draw(n=600, k=K)
    model = keras.Sequential([keras.Input((K,), name="x"), keras.layers.Softmax()])
    classifier = SelectiveClassifier(model, calibrator=CALIBRATORS["vector"]())
    return classifier.fit(x, y, coverage=0.7, verbose=0)


def one_unit():
    x, y = draw(n=600, k=K)
    classifier = SelectiveClassifier(
        network(1, activation="sigmoid"), "margin", decision_threshold=0.4
    )
    return classifier.fit(x, y == 0, coverage=0.7, verbose=0)


def multi_label():
    x, y = draw(n=600, k=K)
    classifier = SelectiveClassifier(
        network(),
        calibrator=calibrators.TemperatureScaling(multi_label=True),
        multi_label=True,
    )
    return classifier.fit(x, np.eye(K)[y], coverage=0.7, verbose=0)


def sets(method="lac", stratified=False, **options):
    x, y = draw(n=600, k=K)
    classifier = ConformalClassifier(network(), method=method, **options)
    return classifier.fit(x, y, strata=strata(600) if stratified else None, verbose=0)


def wrapped(calibrator):
    x, y = draw(n=600, k=K)
    model = network()
    return CALIBRATORS[calibrator]().fit_model(model, x, y, verbose=0).wrap(model)


CASES = {
    **{f"selective_{csf}": partial(selective, csf) for csf in SCORES},
    "selective_softmax": softmax,
    "selective_one_unit": one_unit,
    "selective_multi_label": multi_label,
    "sets_lac": partial(sets, "lac", allow_empty=False),
    "sets_aps": partial(sets, "aps"),
    "sets_raps": partial(sets, "raps", seed=1),
    "sets_saps": partial(sets, "saps", calibrator=calibrators.TemperatureScaling()),
    "sets_strata": partial(sets, stratified=True, class_conditional=True),
    "wrapped_dirichlet": partial(wrapped, "dirichlet"),
    "wrapped_isotonic": partial(wrapped, "isotonic"),
    "wrapped_meta_acc": partial(wrapped, "meta_acc"),
}
CLASSES = {
    name: [case for case in CASES if case.startswith(start)]
    for name, start in {
        "SelectiveClassifier": "selective",
        "ConformalClassifier": "sets",
        "Calibrator.wrap": "wrapped",
    }.items()
}
