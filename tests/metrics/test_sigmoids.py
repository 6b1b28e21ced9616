"""One sigmoid unit, several labels, tokens and pixels: every metric, exact and
streaming.
"""

import keras
import numpy as np
import pytest
from backends import JIT_ONE_OFF
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import load_logits
from sigmoid_data import EXACT, KINDS, STREAMING, data, same, streamed
from sklearn.calibration import calibration_curve

from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

# Two batches of the 24 rows of other tests: JAX compiles operations for each shape.
ROWS = 48


def columns(p):
    return np.stack([1 - p, p], axis=-1)


def pair(z):
    return np.stack([np.zeros_like(z), z], axis=-1)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15, deadline=None)
@given(
    p=st.lists(st.floats(0, 1, width=32), min_size=3, max_size=12),
    seed=st.integers(0, 99),
)
def test_one_unit_equals_two_columns_exactly(name, p, seed):
    p = np.array(p, "float32")
    rng = np.random.default_rng(seed)
    y, w = rng.integers(0, 2, len(p)), rng.integers(1, 3, len(p))
    expected = EXACT[name](y, columns(p), sample_weight=w)
    same(EXACT[name](y, p, sample_weight=w), expected, 1e-12)
    same(EXACT[name](y.astype(bool), p[:, None], sample_weight=w), expected, 1e-12)
    z = (10 * p - 5).astype("float32")
    expected = EXACT[name](y, pair(z), from_logits=True)
    same(EXACT[name](y[:, None] * 1.0, z, from_logits=True), expected, 1e-12)


@pytest.mark.parametrize("name", STREAMING)
def test_one_unit_equals_two_columns_when_streaming(name):
    y, z, p = (x[:, 0] for x in data(ROWS))
    w = np.arange(len(y)) % 3
    same(streamed(name, y, p[:, None], w), EXACT[name](y, columns(p), sample_weight=w))
    expected = EXACT[name](y, pair(z), from_logits=True)
    same(streamed(name, y[:, None] * 1.0, z, from_logits=True), expected, 2e-6)


def mean_over_labels(name, y, values, sample_weight, **options):
    return np.mean(
        [
            EXACT[name](y[:, c], values[:, c], sample_weight=sample_weight, **options)
            for c in range(y.shape[1])
        ]
    )


@pytest.mark.backend_free
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_multi_label_is_the_mean_over_labels(name, from_logits):
    y, z, p = data(labels=3)
    values = z if from_logits else p
    w = 1 + np.arange(len(y)) % 3
    expected = mean_over_labels(name, y, values, w, from_logits=from_logits)
    options = {"from_logits": from_logits, "multi_label": True}
    same(EXACT[name](y, values, sample_weight=w, **options), expected, 1e-9)
    y, values, w = y.reshape(2, 20, 3), values.reshape(2, 20, 3), w.reshape(2, 20)
    same(EXACT[name](y, values, sample_weight=w, **options), expected, 1e-9)
    y, values = (np.moveaxis(x, -1, 1) for x in (y, values))
    same(EXACT[name](y, values, sample_weight=w, axis=1, **options), expected, 1e-9)


@pytest.mark.parametrize("name", STREAMING)
def test_multi_label_is_the_mean_over_labels_when_streaming(name):
    y, z, _ = data(ROWS, labels=3)
    w = 1 + np.arange(len(y)) % 3
    expected = mean_over_labels(name, y, z, w, from_logits=True)
    options = {"from_logits": True, "multi_label": True}
    same(streamed(name, y, z, w, **options), expected, 3e-6)
    if name in KINDS:
        y, z = (np.moveaxis(x.reshape(2, 24, 3), -1, 1) for x in (y, z))
        w = w.reshape(2, 24)
        same(streamed(name, y, z, w, axis=1, **options), expected, 3e-6)


def ignored_data(n=40):
    y, _, p = data(n, labels=2)
    y[:7, 0] = y[30:, 1] = -1
    return y, p, [y[:, c] >= 0 for c in range(2)]


@pytest.mark.backend_free
@pytest.mark.parametrize("name", EXACT)
def test_ignored_labels_do_not_count(name):
    y, p, kept = ignored_data()
    values = [EXACT[name](y[k, c], p[k, c]) for c, k in enumerate(kept)]
    same(EXACT[name](y[:, 1], p[:, 1], ignore_class=-1), values[1], 1e-9)
    options = {"multi_label": True, "ignore_class": -1}
    same(EXACT[name](y, p, **options), np.mean(values), 1e-9)
    # A label without a single sample has no value.
    y[:, 0] = -1
    same(EXACT[name](y, p, **options), values[1], 1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_ignored_labels_do_not_count_when_streaming(name):
    y, p, kept = ignored_data(ROWS)
    values = [EXACT[name](y[k, c], p[k, c]) for c, k in enumerate(kept)]
    options = {"multi_label": True, "ignore_class": -1}
    same(streamed(name, y, p, **options), np.mean(values), 3e-6)
    y[:, 0] = -1
    same(streamed(name, y, p, **options), values[1], 3e-6)
    same(streamed(name, y[:, 1], p[:, 1], ignore_class=-1), values[1], 3e-6)


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_pooled_labels_share_their_bins(binning):
    y, _, p = data(labels=3)
    options = {"kind": "positive", "binning": binning}
    expected = F.ece(y.reshape(-1), p.reshape(-1), **options)
    pooled = {"pooled": True, "multi_label": True, **options}
    assert F.ece(y, p, **pooled) == pytest.approx(expected, abs=1e-12)
    metric = M.ExpectedCalibrationError(**pooled)
    metric.update_state(y, p)
    same(float(metric.result()), expected, 2e-6)
    errors = F.cwece(y, p, binning=binning, multi_label=True, per_class=True)
    for c, error in enumerate(errors):
        same(error, F.ece(y[:, c], p[:, c], **options))


def test_definition_of_torchmetrics():
    """`BinaryCalibrationError`: confidence is p, accuracy the frequency of y = 1."""
    y, _, p = (x[:, 0] for x in data(300))
    index = np.clip(np.ceil(p * 10).astype(int) - 1, 0, 9)
    gaps = np.abs(np.bincount(index, p.astype("float64") - y, 10)) / len(y)
    mass = np.bincount(index, minlength=10) / len(y)
    filled = np.where(mass > 0, mass, 1)
    expected = {
        "l1": gaps.sum(),
        "l2": np.sqrt((gaps**2 / filled).sum()),
        "max": (gaps / filled).max(),
    }
    for norm, error in expected.items():
        same(F.ece(y, p, 10, norm=norm, kind="positive"), error)
        metric = M.ExpectedCalibrationError(10, norm=norm, kind="positive")
        metric.update_state(y, p)
        same(float(metric.result()), error)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_positive_ece_is_that_of_torchmetrics(norm):
    module = pytest.importorskip("torchmetrics.functional.classification")
    torch = pytest.importorskip("torch")
    # No p on an edge: its bins are closed on the left, ours on the right.
    rng = np.random.default_rng(6)
    p = rng.uniform(0.001, 0.999, 700)
    y = (rng.random(700) < p**2).astype(int)
    theirs = module.binary_calibration_error(
        torch.tensor(p), torch.tensor(y), n_bins=15, norm=norm
    )
    assert F.ece(y, p, norm=norm, kind="positive") == pytest.approx(float(theirs))


@pytest.mark.backend_free
@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_positive_curve_is_that_of_scikit_learn(binning):
    # No p on an edge: scikit-learn's bins are closed on the left, ours on the right.
    rng = np.random.default_rng(5)
    p = rng.uniform(size=700)
    y = rng.random(700) < p**2
    strategy = {"uniform": "uniform", "adaptive": "quantile"}[binning]
    frequency, mean = calibration_curve(y, p, n_bins=7, strategy=strategy)
    curve = F.reliability_curve(y, p, 7, binning=binning, kind="positive")
    tolerance = {"uniform": 1e-12, "adaptive": 0.02}[binning]
    np.testing.assert_allclose(curve.accuracy, frequency, atol=tolerance)
    np.testing.assert_allclose(curve.confidence, mean, atol=tolerance)


def test_real_reviews():
    found = load_logits("imdb_probs.npz")
    # Stored with errors of 1e-5: scikit-learn takes nothing outside [0, 1].
    y, p = found["labels"], np.clip(found["probs"][:, 1], 0, 1)
    assert F.risk_at_coverage(y, p, 1.0) == pytest.approx(1 - 0.89576, abs=1e-9)
    frequency, mean = calibration_curve(y, p, n_bins=15)
    curve = F.reliability_curve(y, p, kind="positive")
    np.testing.assert_allclose(curve.accuracy, frequency, atol=2e-3)
    np.testing.assert_allclose(curve.confidence, mean, atol=2e-3)
    for kind in ("top_label", "positive"):
        metric = M.ExpectedCalibrationError(kind=kind)
        for rows in np.array_split(np.arange(len(y)), 5):
            metric.update_state(y[rows], p[rows])
        same(float(metric.result()), F.ece(y, p, kind=kind), 1e-5)
    same(F.ece(y, p), F.ece(y, columns(p)), 1e-12)


@pytest.mark.parametrize("from_logits", [False, True])
def test_decision_threshold_moves_the_prediction(from_logits):
    y, z, p = (x[:, 0] for x in data(24, seed=3))
    predicted = (p > 0.3).astype(int)
    assert (predicted != (p > 0.5)).any()
    risk = np.mean(predicted != y)
    values = z if from_logits else p
    options = {"from_logits": from_logits, "decision_threshold": 0.3}
    same(F.risk_at_coverage(y, values, 1.0, **options), risk)
    metric = M.RiskAtCoverage(1.0, **options)
    metric.update_state(y, values)
    same(float(metric.result()), risk)
    confidence = np.where(predicted == 1, p, 1 - p)
    expected = F.calibration_error(confidence, predicted == y)
    same(F.ece(y, values, **options), expected)
    for binning in ("uniform", "adaptive"):
        metric = M.ExpectedCalibrationError(binning=binning, **options)
        metric.update_state(y, values)
        same(float(metric.result()), F.ece(y, values, binning=binning, **options), 2e-6)
    with pytest.raises(ValueError, match="decision_threshold"):
        F.ece([0, 1], np.full((2, 3), 1 / 3), decision_threshold=0.3)


def test_positive_needs_two_classes():
    y, p = np.array([0, 1]), np.full((2, 3), 1 / 3)
    for call in (F.ece, F.smooth_ece, F.reliability_curve):
        with pytest.raises(ValueError, match="k=3"):
            call(y, p, kind="positive")
    with pytest.raises(ValueError, match="k=3"):
        M.ExpectedCalibrationError(kind="positive").update_state(y, p)


def au_reference(losses, scores, quantile):
    """Eq. AUdef on samples, in float64."""
    low = scores[scores < np.quantile(scores, quantile)]
    if len(low) == 0:
        return np.nan
    return np.mean([losses[scores >= t].mean() for t in low])


@pytest.mark.backend_free
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), quantile=st.sampled_from([0.1, 0.25, 0.6, 0.75, 1]))
def test_au_is_the_mean_of_the_risks_of_unsure_samples(seed, quantile):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    p = rng.integers(1, 9, (n, 3)) / 8
    p /= p.sum(-1, keepdims=True)
    y, w = rng.integers(0, 3, n), rng.integers(1, 3, n)
    losses, scores = (p.argmax(-1) != y) * 1.0, p.max(-1)
    same(F.au(y, p, quantile=quantile), au_reference(losses, scores, quantile), 1e-12)
    copies = au_reference(np.repeat(losses, w), np.repeat(scores, w), quantile)
    same(F.au(y, p, quantile=quantile, sample_weight=w), copies, 1e-12)


def test_early_stopping_infers_the_mode():
    y, z, _ = data(20)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    metrics = [
        M.ExpectedCalibrationError(from_logits=True),
        M.FailureAUROC(from_logits=True),
        M.CoverageAtRisk(0.3, from_logits=True),
    ]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=metrics, run_eagerly=not JIT_ONE_OFF)
    callbacks = [
        keras.callbacks.EarlyStopping(f"val_{metric.name}", patience=9)
        for metric in metrics
    ]
    model.fit(z, y, validation_data=(z, y), verbose=0, callbacks=callbacks)
    found = [callback.monitor_op.__name__ for callback in callbacks]
    assert found == ["less", "greater", "greater"]
    assert not np.isnan(model.history.history["val_ece"]).any()


def test_get():
    for name in ("ece", "cwece", "brier", "aurc", "excess_aurc", "augrc"):
        metric = M.get(name)
        assert metric.name == name
        assert type(M.get(type(metric).__name__)) is type(metric)
    config = keras.saving.serialize_keras_object(M.AURC("margin", multi_label=True))
    copy = M.get(config)
    assert copy.csf.__name__ == "margin"
    assert copy.outputs.multi_label
    assert isinstance(M.get("accuracy"), object)
    with pytest.raises(ValueError, match="'ece'"):
        M.get("no such metric")
