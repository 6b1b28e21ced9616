"""Prediction sets and risk control of other libraries on the same data."""

import numpy as np
import pytest
from classifier_data import given_probabilities
from real_data import load_logits
from reference import softmax

from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
    control_risk,
    multi_label_losses,
)
from keras_selcal.selective import answer_losses, select_threshold
from keras_selcal.selective.bounds import binomial_tail

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("method", ["lac", "aps", "raps", "saps"])
def test_sets_equal_those_of_crepes_on_real_logits(method, alpha):
    base = pytest.importorskip("crepes.base")
    data = load_logits("markus93_resnet110_c10_logits.npz")
    options = {"method": method, "from_logits": True}
    # Fewer than all: crepes computes p-values one by one.
    z, y = data["val_logits"][:1000], data["val_labels"].reshape(-1)[:1000]
    new = data["test_logits"][:500]
    scores = conformal_scores(z, y, **options)
    theirs = (
        base.ConformalClassifier()
        .fit(scores)
        .predict_set(
            conformal_scores(new, None, **options),
            confidence=1 - alpha,
            smoothing=False,
        )
    )
    ours = conformal_sets(new, conformal_threshold(scores, alpha), **options)
    np.testing.assert_array_equal(ours, np.asarray(theirs, bool))


def test_lac_sets_equal_those_of_mapie_on_real_logits():
    classification = pytest.importorskip("mapie.classification")
    data = load_logits("markus93_resnet110_c10_logits.npz")
    p, new = softmax(data["val_logits"]), softmax(data["test_logits"])
    y = data["val_labels"].reshape(-1).astype(int)
    theirs = classification.SplitConformalClassifier(
        given_probabilities(10),
        confidence_level=0.9,
        conformity_score="lac",
        prefit=True,
    )
    _, sets = theirs.conformalize(p, y).predict_set(new)
    ours = conformal_sets(new, conformal_threshold(conformal_scores(p, y), 0.1))
    np.testing.assert_array_equal(ours, sets[:, :, 0])


@pytest.mark.filterwarnings("ignore:No predict parameters")
def test_tests_of_precision_are_sharper_than_those_of_mapie():
    control = pytest.importorskip("mapie.risk_control")
    data = load_logits("imdb_probs.npz")
    p = data["probs"][::25].astype("float64")
    p, y = p / p.sum(-1, keepdims=True), data["labels"].reshape(-1)[::25].astype(int)
    theirs = control.BinaryClassificationController(
        np.asarray, "precision", 0.92, confidence_level=0.9
    ).calibrate(p, y)
    for t, p_value in zip(
        theirs._predict_params, theirs.p_values.reshape(-1), strict=True
    ):
        answered = p[:, 1] >= t
        exact = binomial_tail(int((y[answered] == 0).sum()), int(answered.sum()), 0.08)
        assert exact <= p_value + 1e-9
    ours = select_threshold(p[:, 1], y == 1, risk=0.08, delta=0.1)
    assert ours <= min(theirs.valid_predict_params, default=1.0)


@pytest.mark.filterwarnings("ignore:No predict parameters")
def test_precision_of_each_class_beside_mapie():
    control = pytest.importorskip("mapie.risk_control")
    risks = pytest.importorskip("mapie.risk_control.risks")
    data = load_logits("markus93_resnet110_c10_logits.npz")
    p = softmax(data["val_logits"])
    y, answers = data["val_labels"].reshape(-1).astype(int), p.argmax(-1)
    theirs = control.MultiClassificationLTTController(
        np.asarray, risks.build_precision_ovr(list(range(10))), [0.85] * 10
    ).calibrate(p, y)
    ours = select_threshold(
        p.max(-1),
        losses=answer_losses(y, answers, per="answer"),
        binary=True,
        risk=0.15,
        delta=0.1,
    )
    assert ours <= min(theirs.valid_predict_params, default=1.0)


def test_recall_of_label_sets_equals_that_of_mapie():
    control = pytest.importorskip("mapie.risk_control")
    rng = np.random.default_rng(0)
    truth = rng.random((1000, 6)) < 0.3
    truth[:, 0] |= ~truth.any(axis=1)
    p = 1 / (1 + np.exp(-(4 * truth - 2 + rng.normal(size=truth.shape))))
    grid = np.linspace(0, 0.99, 100)
    theirs = control.MultiLabelClassificationController(
        np.asarray, risk="recall", method="crc", target_level=0.9
    ).calibrate(p, truth.astype(int))
    ours = control_risk(multi_label_losses(truth, p, grid), grid, 0.1)
    # They take labels with p > t.
    assert abs(ours - float(theirs.best_predict_param[0])) <= 0.0101
