"""Drift: tests of new confidences, of a stream of them, and of the promised risk."""

import keras
import numpy as np
import pytest
from classifier_data import first_half
from report_page import page_of
from scipy.stats import ks_2samp

from keras_selcal import (
    CalibrationMonitor,
    CalibrationReport,
    SelectiveClassifier,
    csf,
)
from keras_selcal.selective import DriftMonitor, ks_test


def make_data(rng, n=1000, k=4, signal=2.5):
    y = rng.integers(0, k, n)
    return (signal * np.eye(k)[y] + rng.normal(size=(n, k))).astype("float32"), y


def identity(k=4):
    """A model whose logits are its inputs."""
    return keras.Sequential([keras.Input((k,)), keras.layers.Activation("linear")])


@pytest.fixture
def fitted(rng):
    x, y = make_data(rng)
    return SelectiveClassifier(identity()).fit(x, y, risk=0.1, delta=0.05, verbose=0)


@pytest.mark.backend_free
@pytest.mark.parametrize(("n", "m"), [(5, 3), (40, 40), (300, 57), (57, 300)])
def test_p_values_equal_those_of_scipy(rng, n, m):
    a, b = rng.normal(size=n), rng.normal(0.2, size=m)
    expected = ks_2samp(a, b, method="exact")
    assert ks_test(a, b) == pytest.approx((expected.statistic, expected.pvalue))
    assert ks_test(a, a) == (0.0, 1.0)


@pytest.mark.backend_free
def test_large_samples_use_the_limit(rng):
    a, b = rng.normal(size=5000), rng.normal(size=5000)
    expected = ks_2samp(a, b, method="asymp").pvalue
    assert ks_test(a, b)[1] == pytest.approx(expected, rel=0.05)


@pytest.mark.backend_free
def test_false_alarms_of_one_check_are_as_rare_as_stated(rng):
    # Ties of D make the test conservative: sizes without a common factor have few.
    alarms = [
        ks_test(rng.normal(size=79), rng.normal(size=20))[1] <= 0.1 for _ in range(400)
    ]
    # The standard deviation of the share is 0.015.
    assert np.mean(alarms) <= 0.1 + 3 * 0.015


@pytest.mark.backend_free
def test_false_alarms_of_a_stream_are_as_rare_as_stated(rng):
    alarms = []
    for seed in range(150):
        monitor = DriftMonitor(
            None, rng.normal(size=100), false_alarm_rate=0.1, seed=seed
        )
        alarms.append(monitor.update_confidences(rng.normal(size=400)))
    assert np.mean(alarms) <= 0.1 + 3 * np.sqrt(0.09 / 150)


@pytest.mark.backend_free
def test_a_stream_alarms_soon_after_a_change(rng):
    for shift in (-1, 1):
        monitor = DriftMonitor(None, rng.normal(size=500))
        assert not monitor.update_confidences(rng.normal(size=500))
        assert monitor.update_confidences(rng.normal(shift, size=500))
        assert 500 < monitor.alarm_at < 700
        assert "alarm=True" in repr(monitor)


def test_like_data_pass_and_others_do_not(fitted, rng):
    x, _ = make_data(rng)
    alike = fitted.check(x, verbose=0)
    assert not alike.drifted
    assert alike.n == 1000
    assert alike.risk_holds is None
    assert "are like" in str(alike)
    changed = fitted.check(make_data(rng, signal=1.0)[0], verbose=0)
    assert changed.drifted
    assert changed.p_value <= changed.false_alarm_rate == 0.01
    assert "differ from" in str(changed)
    expected = (fitted.predict(x, verbose=0).accepted).mean()
    assert alike.coverage == pytest.approx(expected)
    assert fitted.monitor().update(x) is False


def test_a_few_labels_tell_whether_the_risk_bound_holds(fitted, rng):
    x, y = make_data(rng, n=100)
    assert fitted.check(x, y, verbose=0).risk_holds
    wrong = fitted.check(x, (y + 1) % 4, verbose=0)
    assert wrong.risk_holds is False
    assert wrong.promised_risk == 0.1
    assert not wrong.drifted
    assert "contradicts the promise of at most 10.0\N{NO-BREAK SPACE}%" in str(wrong)
    assert "(p < 1e-10)" in str(wrong)


def test_nan_among_the_outputs_is_refused(fitted, rng):
    x, y = make_data(rng, n=50)
    x[7, 1] = np.nan
    monitor = fitted.monitor()
    for call in (
        lambda: fitted.check(x, verbose=0),
        lambda: fitted.check(x, y, verbose=0),
        lambda: fitted.check([(x, y)], verbose=0),
        lambda: fitted.evaluate(x, y, verbose=0),
        lambda: SelectiveClassifier(identity()).fit(x, y, coverage=0.5, verbose=0),
        lambda: monitor.update(x),
    ):
        with pytest.raises(ValueError, match=r"`model\(x\)` must be finite"):
            call()
    assert monitor.n == 0
    with pytest.raises(ValueError, match="`confidences` must be one or more numbers"):
        monitor.update_confidences([0.5, np.nan])
    with pytest.raises(ValueError, match="`new` must be one or more numbers"):
        ks_test([0.1, 0.2], [np.nan])
    # What does not count may be NaN; a figure of training is NaN, as other metrics.
    assert fitted.check(x, sample_weight=np.arange(50) != 7, verbose=0).n == 49
    assert np.isnan(fitted.drift(y, x))
    # Inputs of NaN get no answer.
    assert not fitted.predict(x, verbose=0).accepted[7]


def test_labels_in_a_data_set_are_used(fitted, rng):
    x, y = make_data(rng, n=96)
    batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 96, 32)]
    expected = fitted.check(x, y, verbose=0)
    for data in (batches, (batch for batch in batches)):
        assert fitted.check(data, verbose=0) == expected
    alone = fitted.check([(x,)], verbose=0)
    assert alone.selective_risk is None
    assert alone.p_value == expected.p_value
    with pytest.raises(
        ValueError, match=r"`model\(x\)` must be outputs for at least one"
    ):
        fitted.check(x, sample_weight=np.zeros(96), verbose=0)


def test_the_record_of_confidences_is_saved(fitted, rng, tmp_path):
    fitted.save(tmp_path / "model.keras")
    loaded = SelectiveClassifier.load(tmp_path / "model.keras")
    assert loaded.record == fitted.record
    x, _ = make_data(rng)
    expected = ks_2samp(loaded.record.confidence, fitted.predict(x, verbose=0)[2])
    check = loaded.check(x, verbose=0)
    assert check.p_value == pytest.approx(expected.pvalue, rel=1e-3)


def test_tokens_of_a_sequence_count_as_one_unit(rng):
    y = rng.integers(0, 4, (60, 7))
    x = (2.5 * np.eye(4)[y] + rng.normal(size=(60, 7, 4))).astype("float32")
    model = keras.Sequential([keras.Input((7, 4)), keras.layers.Softmax()])
    options = {"groups": "first_axis", "verbose": 0}
    fitted = SelectiveClassifier(model).fit(x, y, coverage=0.8, **options)
    assert len(fitted.record.confidence) == 60
    assert fitted.check(x, y, verbose=0).n == 60
    assert fitted.check(x, verbose=0).p_value == 1.0


def test_labels_each_have_a_promise(rng):
    x = rng.normal(size=(400, 3)).astype("float32")
    y = (rng.uniform(size=(400, 3)) < 1 / (1 + np.exp(-4 * x))).astype("int32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(4.0)])
    fitted = SelectiveClassifier(model, multi_label=True, from_logits=True)
    fitted.fit(x, y, coverage=0.5, verbose=0)
    assert fitted.check(x, y, verbose=0).risk_holds
    assert fitted.check(x, 1 - y, verbose=0).risk_holds is False
    assert fitted.check(x, verbose=0).n == 400


def test_an_unfitted_classifier_has_nothing_to_compare_with(fitted, rng):
    with pytest.raises(ValueError, match="call `fit`"):
        SelectiveClassifier(identity()).check(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="false_alarm_rate"):
        fitted.check(np.zeros((2, 4)), false_alarm_rate=1.0)


def scaled_logits(rng, n, k=20):
    """Logits whose scale says nothing: the norm is best divided out."""
    y = rng.integers(0, k, n)
    signal = 3 * np.eye(k)[y] + rng.normal(size=(n, k))
    return (signal * np.exp(rng.normal(size=(n, 1)))).astype("float32"), y


def test_auto_chooses_on_one_half_and_says_so(rng, capsys, tmp_path):
    x, y = scaled_logits(rng, 2000)
    fitted = SelectiveClassifier(identity(20), "auto")
    fitted.fit(x, y, coverage=0.7, verbose=1)
    assert isinstance(fitted.csf, csf.MaxLogitPNorm)
    assert "lower than with msp by" in fitted.record.choice
    assert fitted.record.choice in capsys.readouterr().out
    assert fitted.record.n == 1000
    first = first_half(2000)
    expected = csf.compare(x[first], y[first])
    assert fitted.csf.p == expected.csf.p
    fitted.save(tmp_path / "model.keras")
    loaded = SelectiveClassifier.load(tmp_path / "model.keras")
    assert loaded.csf.p == fitted.csf.p
    quantiles = np.quantile(fitted.record.confidence, (0.05, 0.5, 0.95))
    for said in (
        f"csf='MaxLogitPNorm(p={fitted.csf.p:g})'",
        f"date={fitted.record.date}, coverage=0.7, n=1000",
        "confidence=" + " … ".join(f"{value:.4g}" for value in quantiles),
        fitted.record.choice,
    ):
        assert said in repr(loaded)
    new, _ = scaled_logits(rng, 200)
    found, wanted = (one.predict(new, verbose=0) for one in (loaded, fitted))
    np.testing.assert_array_equal(found.labels, wanted.labels)


def test_auto_falls_back_to_msp(rng):
    x = rng.normal(size=(800, 5), scale=2).astype("float32")
    p = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
    y = (p.cumsum(axis=-1) > rng.uniform(size=(800, 1))).argmax(axis=-1)
    fitted = SelectiveClassifier(identity(5), "auto").fit(x, y, coverage=0.5, verbose=0)
    assert fitted.csf is csf.msp
    assert "is unsure, with" in fitted.record.choice


def test_the_monitor_of_training_logs_the_distance_from_the_fit(rng, fitted):
    x, y = make_data(rng, 200)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    model.layers[0].set_weights([np.eye(4), np.zeros(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss)
    weight = np.arange(200) < 150
    monitor = CalibrationMonitor((x, y, weight), metrics=["nll", fitted.drift])
    history = model.fit(x, y, callbacks=[monitor], verbose=0).history
    # With a rate of 0 the model stays the identity, as the classifier's own.
    expected = fitted.check(x[:150], verbose=0).distance
    assert history["val_drift"] == pytest.approx([expected], abs=1e-5)


def test_a_report_shows_the_check(rng, fitted, tmp_path):
    x, y = make_data(rng, 200)
    for scale, verdict in ((1, "No sign of drift"), (3, "the confidences differ")):
        check = fitted.check(scale * x, y, verbose=0)
        report = CalibrationReport(
            y, scale * x, from_logits=True, check=check, bootstrap=0
        )
        assert str(check) in str(report)
        page = page_of(report, tmp_path)
        assert verdict in page.text
        assert "Does its guarantee still apply?" in page.text
    plain = page_of(CalibrationReport(y, x, from_logits=True, bootstrap=0), tmp_path)
    assert "guarantee still" not in plain.text
    with pytest.raises(ValueError, match="`check` must be what"):
        CalibrationReport(y, x, from_logits=True, check=0.5, bootstrap=0)
