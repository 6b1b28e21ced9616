"""Several labels and one sigmoid unit on real data, beside scikit-learn."""

import keras
import numpy as np
import pytest
from keras import layers
from real_data import find, load_logits

from keras_selcal import (
    AULoss,
    CalibrationReport,
    IsotonicCalibration,
    SelectiveClassifier,
    TemperatureScaling,
    VectorScaling,
    functional,
)
from keras_selcal.conformal import control_risk, multi_label_losses

pytestmark = pytest.mark.backend_free

K = 28


def read(split, most):
    """Returns texts and multi-hot labels of GoEmotions."""
    lines = find(f"text/goemotions_{split}.tsv").read_text("utf-8").splitlines()[:most]
    texts, ids, _ = zip(*(line.split("\t") for line in lines), strict=True)
    labels = np.zeros((len(lines), K), "float32")
    for row, several in zip(labels, ids, strict=True):
        row[[int(label) for label in several.split(",")]] = 1
    return texts, labels


@pytest.fixture(scope="module")
def emotions():
    """Returns a network of 28 sigmoids trained with `AULoss`, and held-out data."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    texts, y = read("train", 6000)
    held_out, held_out_y = read("dev", None)
    vectorizer = text.TfidfVectorizer(max_features=1500)
    x = vectorizer.fit_transform(texts).toarray().astype("float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(x.shape[1:]), layers.Dense(K)])
    model.compile(
        keras.optimizers.Adam(0.05), AULoss(multi_label=True, from_logits=True)
    )
    history = model.fit(x, y, batch_size=256, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0] / 2
    new = vectorizer.transform(held_out).toarray().astype("float32")
    return model, new, held_out_y


def test_goemotions_end_to_end(emotions, tmp_path):
    model, x, y = emotions
    z = model.predict(x, verbose=0)
    assert (y.sum(-1) > 1).mean() == pytest.approx(0.16, abs=0.01)
    # Multi-hot labels do not pass through the softmax code.
    with pytest.raises(ValueError, match="multi_label=True"):
        functional.nll(y, z, from_logits=True)
    options = {"multi_label": True, "from_logits": True}
    before = functional.nll(y[1::2], z[1::2], **options)
    for make in (TemperatureScaling, VectorScaling, IsotonicCalibration):
        calibrator = make(multi_label=True).fit(z[::2], y[::2])
        p = calibrator.predict_proba(z[1::2])
        assert p.shape == (len(y) // 2, K)
        assert functional.nll(y[1::2], p, multi_label=True) < before
    report = CalibrationReport(y, z, **options, bootstrap=0)
    labels = report.per_class()
    np.testing.assert_allclose([labels[c]["frequency"] for c in range(K)], y.mean(0))
    assert report["accuracy"].value == pytest.approx(((z > 0) == (y > 0)).mean())
    assert "All labels are pooled" in str(report)
    page = report.to_html(tmp_path / "a.html")
    assert "27" in page.read_text("utf-8")

    classifier = SelectiveClassifier(model, multi_label=True, from_logits=True)
    classifier.fit(x[::2], y[::2], risk=0.25, delta=0.1, verbose=0)
    found = classifier.evaluate(x[1::2], y[1::2], verbose=0)
    assert found["coverage"].shape == (K,)
    assert (found["selective_risk"] <= 0.25).all()


def test_label_sets_hold_recall_on_goemotions(emotions):
    model, x, y = emotions
    p = 1 / (1 + np.exp(-model.predict(x, verbose=0).astype("float64")))
    thresholds = np.linspace(0, 1, 101)
    missed = multi_label_losses(y, p, thresholds)
    found = [
        control_risk(missed[::2], thresholds, 0.2),
        control_risk(missed[::2], thresholds, 0.2, delta=0.05),
    ]
    # The guarantee for this half is stricter than the one in expectation.
    assert 0 < found[1] <= found[0] < 1
    new = [missed[1::2, np.searchsorted(thresholds, t)] for t in found]
    # The other half estimates the risk up to its own noise.
    noise = 3 * new[0].std() / np.sqrt(len(new[0]))
    assert 0.2 - 2 * noise < new[0].mean() < 0.2 + noise
    assert new[1].mean() < 0.2 + noise


@pytest.mark.parametrize("method", ["temperature", "sigmoid", "isotonic"])
def test_calibrators_beside_those_of_scikit_learn(method):
    base = pytest.importorskip("sklearn.base")
    calibration = pytest.importorskip("sklearn.calibration")
    frozen = pytest.importorskip("sklearn.frozen")
    data = load_logits("imdb_probs.npz")
    p = np.clip(data["probs"][:, 1], 1e-6, 1 - 1e-6)
    z, y = np.log(p) - np.log1p(-p), data["labels"].astype("int64")

    class Logits(base.ClassifierMixin, base.BaseEstimator):
        classes_ = np.array([0, 1])

        def fit(self, x, y):
            return self

        def __sklearn_is_fitted__(self):
            return True

        def decision_function(self, x):
            return x[:, 0]

        def predict(self, x):
            return (x[:, 0] > 0).astype("int64")

    theirs = calibration.CalibratedClassifierCV(
        frozen.FrozenEstimator(Logits()), method=method, ensemble=False
    )
    theirs.fit(z[::2, None], y[::2])
    expected = theirs.predict_proba(z[1::2, None])[:, 1]
    ours = {
        "temperature": TemperatureScaling(),
        # Platt's targets are not 0 and 1; without a penalty the rest is the same.
        "sigmoid": VectorScaling(regularization=0.0),
        "isotonic": IsotonicCalibration(),
    }[method].fit(z[::2], y[::2])
    found = ours.predict_proba(z[1::2])
    tolerance = {"temperature": 1e-4, "sigmoid": 2e-3, "isotonic": 5e-3}[method]
    assert np.abs(found - expected).mean() < tolerance
    nlls = [functional.nll(y[1::2], q) for q in (found, np.clip(expected, 1e-6, 1))]
    assert nlls[0] <= nlls[1] + 1e-3


def test_brier_and_calibration_errors_beside_other_libraries():
    metrics = pytest.importorskip("sklearn.metrics")
    data = load_logits("imdb_probs.npz")
    y, p = data["labels"], np.clip(data["probs"][:, 1], 0, 1)
    # Here the score sums over both classes, there it is that of class 1.
    twice = 2 * metrics.brier_score_loss(y, p)
    assert functional.brier(y, p) == pytest.approx(twice, rel=1e-6)
    # torchmetrics' BinaryCalibrationError: l1, 15 equal-width bins of p.
    index = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
    gaps = np.abs(np.bincount(index, p.astype("float64") - y, 15)).sum() / len(y)
    assert functional.ece(y, p, kind="positive") == pytest.approx(gaps, abs=1e-6)
