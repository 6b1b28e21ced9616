"""One sigmoid unit, several labels, tokens and pixels: every metric, exact and
streaming.
"""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import load_logits
from sklearn.calibration import calibration_curve

from keras_selcal import FocalLoss
from keras_selcal import functional as F  # noqa: N812
from keras_selcal import metrics as M  # noqa: N812

EXACT = {
    "ece": F.ece,
    "ece_positive": lambda y, p, **o: F.ece(y, p, kind="positive", **o),
    "ece_adaptive": lambda y, p, **o: F.ece(y, p, 4, binning="adaptive", **o),
    "cwece": F.cwece,
    "smooth_ece": F.smooth_ece,
    "brier": F.brier,
    "brier_calibration": lambda y, p, **o: F.brier_decomposition(y, p, **o)[0],
    "nll": F.nll,
    "aurc": F.aurc,
    "aurc_brier": lambda y, p, **o: F.aurc(y, p, loss="brier", **o),
    "aurc_entropy": lambda y, p, **o: F.aurc(y, p, csf="neg_entropy", **o),
    "au": F.au,
    "excess_aurc": F.excess_aurc,
    "augrc": F.augrc,
    "failure_auroc": F.failure_auroc,
    "risk_at_coverage": lambda y, p, **o: F.risk_at_coverage(y, p, 0.6, **o),
    "coverage_at_risk": lambda y, p, **o: F.coverage_at_risk(y, p, 0.3, **o),
}
STREAMING = {
    "ece": M.ExpectedCalibrationError,
    "ece_positive": lambda **o: M.ExpectedCalibrationError(kind="positive", **o),
    "ece_adaptive": lambda **o: M.ExpectedCalibrationError(4, binning="adaptive", **o),
    "cwece": M.ClasswiseCalibrationError,
    "brier": M.BrierScore,
    "aurc": M.AURC,
    "aurc_entropy": lambda **o: M.AURC("neg_entropy", **o),
    "excess_aurc": M.ExcessAURC,
    "augrc": M.AUGRC,
    "failure_auroc": M.FailureAUROC,
    "risk_at_coverage": lambda **o: M.RiskAtCoverage(0.6, **o),
    "coverage_at_risk": lambda **o: M.CoverageAtRisk(0.3, **o),
}
# One of each kind of state: what the others inherit need not be compiled again.
KINDS = ("ece", "ece_adaptive", "cwece", "brier", "excess_aurc")


def streamed(name, y, p, sample_weight=None, **options):
    metric = STREAMING[name](**options)
    half = len(y) // 2
    for rows in (slice(half), slice(half, None)):
        w = None if sample_weight is None else sample_weight[rows]
        metric.update_state(y[rows], p[rows], w)
    return float(keras.ops.convert_to_numpy(metric.result()))


def same(value, expected, abs=1e-6):
    assert value == pytest.approx(expected, abs=abs, nan_ok=True)


def data(n=40, labels=1, seed=0):
    """A few distinct predictions, so that histograms of scores are exact."""
    rng = np.random.default_rng([seed, n, labels])
    z = rng.normal(scale=2, size=9).astype("float32")[rng.integers(0, 9, (n, labels))]
    p = 1 / (1 + np.exp(-z))
    return (rng.random((n, labels)) < p * 0.8 + 0.1).astype("int64"), z, p


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
    y, z, p = (x[:, 0] for x in data())
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
    y, z, _ = data(labels=3)
    w = 1 + np.arange(len(y)) % 3
    expected = mean_over_labels(name, y, z, w, from_logits=True)
    options = {"from_logits": True, "multi_label": True}
    same(streamed(name, y, z, w, **options), expected, 3e-6)
    if name in KINDS:
        y, z = (np.moveaxis(x.reshape(2, 20, 3), -1, 1) for x in (y, z))
        w = w.reshape(2, 20)
        same(streamed(name, y, z, w, axis=1, **options), expected, 3e-6)


def ignored_data():
    y, _, p = data(labels=2)
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
    y, p, kept = ignored_data()
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
    y, z, p = (x[:, 0] for x in data(200))
    predicted = (p > 0.3).astype(int)
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


def au_reference(losses, scores, coverage):
    """Eq. AUdef on samples, in float64."""
    low = scores[scores < np.quantile(scores, coverage)]
    if len(low) == 0:
        return np.nan
    return np.mean([losses[scores >= t].mean() for t in low])


@pytest.mark.backend_free
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), coverage=st.sampled_from([0.1, 0.25, 0.6, 0.75, 1]))
def test_au_is_the_mean_of_the_risks_of_unsure_samples(seed, coverage):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    p = rng.integers(1, 9, (n, 3)) / 8
    p /= p.sum(-1, keepdims=True)
    y, w = rng.integers(0, 3, n), rng.integers(1, 3, n)
    losses, scores = (p.argmax(-1) != y) * 1.0, p.max(-1)
    same(F.au(y, p, coverage=coverage), au_reference(losses, scores, coverage), 1e-12)
    copies = au_reference(np.repeat(losses, w), np.repeat(scores, w), coverage)
    same(F.au(y, p, coverage=coverage, sample_weight=w), copies, 1e-12)


def test_early_stopping_infers_the_mode():
    y, z, _ = data(20)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    metrics = [
        M.ExpectedCalibrationError(from_logits=True),
        M.FailureAUROC(from_logits=True),
        M.CoverageAtRisk(0.3, from_logits=True),
    ]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=metrics)
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


THREE = np.full((2, 3), 1 / 3)
PAIRS = np.array([[0.9, 0.8], [0.2, 0.1]])
BAD = {
    "label out of range": ([0, 3], THREE, None, "y_true=3"),
    "label 255": ([255, 1], THREE, None, "ignore_class"),
    "label -1": ([-1, 1], [0.5, 0.5], None, "y_true=-1"),
    "fraction": ([1.7, 1.0], THREE, None, "y_true=1.7"),
    "NaN label": ([np.nan, 1.0], THREE, None, "y_true=nan"),
    "multi-hot": (np.eye(3)[[0, 1]] + np.eye(3)[2], THREE, None, "multi_label=True"),
    "logits": ([0, 1], [[4.0, -2.0], [0.0, 1.0]], None, "from_logits=True"),
    "sigmoid logits": ([0, 1], [4.0, -2.0], None, "from_logits=True"),
    "several sigmoids": ([0, 1], PAIRS, None, "multi_label=True"),
    "negative weight": ([0, 1], [0.4, 0.6], [1.0, -1.0], "sample_weight=-1.0"),
    "NaN weight": ([0, 1], [0.4, 0.6], [1.0, np.nan], "sample_weight=nan"),
}


def bad_input(bad):
    y, p, w, words = BAD[bad]
    y, p = np.asarray(y), np.asarray(p, "float32")
    return y, p, None if w is None else np.asarray(w, "float32"), words


@pytest.mark.parametrize("bad", BAD)
def test_bad_arrays_are_refused_by_every_metric(bad):
    y, p, w, words = bad_input(bad)
    for name, function in EXACT.items():
        if name == "ece_positive" and p.shape[-1] == 3:
            continue
        with pytest.raises(ValueError, match=words):
            function(y, p, sample_weight=w)
        if name in STREAMING:
            with pytest.raises(ValueError, match=words):
                STREAMING[name]().update_state(y, p, w)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", KINDS)
def test_bad_tensors_give_nan(name, bad):
    y, p, w, _ = bad_input(bad)
    metric = STREAMING[name]()
    arguments = [y, p] if w is None else [y, p, w]
    metric.update_state(*map(keras.ops.convert_to_tensor, arguments))
    assert np.isnan(keras.ops.convert_to_numpy(metric.result()))


def test_multi_label_refuses_class_indices():
    for name, function in EXACT.items():
        with pytest.raises(ValueError, match="multi-hot"):
            function(np.array([0, 1]), PAIRS, multi_label=True)
        if name in STREAMING:
            with pytest.raises(ValueError, match="multi-hot"):
                STREAMING[name](multi_label=True).update_state([0, 1], PAIRS)


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_batch_changes_nothing(name):
    y, _, p = (x[:, 0] for x in data())
    metric = STREAMING[name]()
    metric.update_state(y[:0], p[:0])
    metric.update_state(y, p)
    metric.update_state(y[:0], p[:0])
    same(float(metric.result()), EXACT[name](y, p), 2e-6)
    with pytest.raises(ValueError, match="at least one sample"):
        EXACT[name](y[:0], p[:0])


def masked_logits():
    rng = np.random.default_rng(6)
    z = rng.normal(size=(30, 4)).astype("float32")
    y = rng.integers(0, 3, 30)
    z[:, 3] = -np.inf
    z[::2, 2] = np.where(y[::2] == 2, z[::2, 2], -np.inf)
    return y, z, np.where(np.isinf(z), np.float32(-1e4), z)


@pytest.mark.backend_free
@pytest.mark.parametrize("name", [name for name in EXACT if name != "ece_positive"])
@pytest.mark.parametrize("csf", ["msp", "margin", "neg_entropy"])
def test_masked_classes_equal_very_low_logits(name, csf):
    y, z, finite = masked_logits()
    options = {"from_logits": True}
    if "au" in name or "risk" in name:
        if name == "aurc_entropy":
            return
        options["csf"] = csf
    same(EXACT[name](y, z, **options), EXACT[name](y, finite, **options), 1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_masked_classes_equal_very_low_logits_when_streaming(name):
    y, z, finite = masked_logits()
    expected = EXACT[name](y, finite, from_logits=True)
    same(streamed(name, y, z, from_logits=True), expected, 1e-4)


def test_labels_of_two_ranks_on_one_compiled_model():
    k = 4
    rng = np.random.default_rng(7)
    z = rng.normal(size=(k, k)).astype("float32")
    y = rng.integers(0, k, k)
    model = keras.Sequential(
        [keras.Input((k,)), keras.layers.Dense(k, kernel_initializer="identity")]
    )
    metrics = [M.BrierScore(from_logits=True), M.AURC(from_logits=True)]
    model.compile(loss=FocalLoss(2, from_logits=True), metrics=metrics)
    expected = F.brier(y, z, from_logits=True)
    log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    log_p = log_p[np.arange(k), y]
    focal = np.mean(-((1 - np.exp(log_p)) ** 2) * log_p)
    one_hot = np.eye(k, dtype="float32")[y]
    for labels in (y, y[:, None], one_hot, y.astype("float32"), y[:, None], one_hot):
        got = model.test_on_batch(z, labels, return_dict=True)
        assert got["loss"] == pytest.approx(focal, rel=1e-5), labels.shape
        assert got["brier"] == pytest.approx(expected, rel=1e-5), labels.shape
        assert got["aurc"] == pytest.approx(F.aurc(y, z, from_logits=True), rel=1e-4)
