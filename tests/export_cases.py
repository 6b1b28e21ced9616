"""Classifiers and calibrated models of every kind, to be exported."""

from functools import partial

import keras
import numpy as np
from classifier_data import METHODS, draw

from keras_selcal import ConformalClassifier, SelectiveClassifier, calibrators

CALIBRATORS = {
    "temperature": calibrators.TemperatureScaling,
    "vector": calibrators.VectorScaling,
    "structured_matrix": calibrators.StructuredMatrixScaling,
    "dirichlet": calibrators.DirichletCalibration,
    "histogram": calibrators.HistogramBinning,
    "isotonic": calibrators.IsotonicCalibration,
    "meta_acc": partial(calibrators.MetaAcc, 0.9),
}
SCORES = ("msp", "margin", "neg_entropy", "doctor", "gen")
SCORES_OF_LOGITS = ("max_logit", "energy", "max_logit_pnorm")
K = 3


def network(units=K, **options):
    """Returns a network that was never called."""
    identity = keras.initializers.Identity(2.0)
    layer = keras.layers.Dense(units, kernel_initializer=identity, **options)
    return keras.Sequential([keras.Input((K,), name="x"), layer])


def inputs():
    """Returns inputs for exported models, with ties, large ones and a NaN."""
    x, _ = draw(n=57, k=K, seed=1)
    x[:4] = [[0, 0, 0], [1, 1, 0], [1e4, 0, 0], [np.nan, 0, 0]]
    return x


def answers(made, x):
    """Returns the outputs that an exported classifier or model should have."""
    if isinstance(made, keras.Model):
        return {"probabilities": made.predict(x, verbose=0)}
    found = made.predict(x, verbose=0)._asdict()
    if "sets" in found:
        found["sizes"] = found["sets"].sum(axis=-1, dtype="int32")
    return {**found, "probabilities": made.predict_proba(x, verbose=0)}


def selective(csf="msp", calibrator=None, **options):
    x, y = draw(n=600, k=K)
    classifier = SelectiveClassifier(network(), csf, calibrator=calibrator, **options)
    return classifier.fit(x, y, coverage=0.7, verbose=0)


def one_unit(**options):
    x, y = draw(n=600, k=K)
    classifier = SelectiveClassifier(
        network(1, activation="sigmoid"), "margin", decision_threshold=0.4, **options
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


def sets(method="lac", **options):
    x, y = draw(n=600, k=K)
    classifier = ConformalClassifier(network(), method=method, **options)
    return classifier.fit(x, y, verbose=0)


def wrapped(make):
    x, y = draw(n=600, k=K)
    model = network()
    return make().fit_model(model, x, y, verbose=0).wrap(model)


CASES = {
    **{f"selective_{csf}": partial(selective, csf) for csf in SCORES},
    **{f"selective_{csf}": partial(selective, csf) for csf in SCORES_OF_LOGITS},
    **{
        f"selective_{name}": lambda make=make: selective("margin", make())
        for name, make in CALIBRATORS.items()
    },
    "selective_one_unit": one_unit,
    "selective_multi_label": multi_label,
    **{f"sets_{method}": partial(sets, method) for method in METHODS},
    "sets_raps_seed": partial(sets, "raps", seed=1),
    "sets_not_empty": partial(sets, allow_empty=False),
    **{f"wrapped_{name}": partial(wrapped, make) for name, make in CALIBRATORS.items()},
}
CLASSES = {
    name: [case for case in CASES if case.startswith(start)]
    for name, start in {
        "SelectiveClassifier": "selective",
        "ConformalClassifier": "sets",
        "Calibrator.wrap": "wrapped",
    }.items()
}
