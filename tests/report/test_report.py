"""The metrics of a report, and their bootstrap intervals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from report_data import COVERAGES, RISKS, data, report_of, resampled

from keras_selcal import CalibrationReport, _resampling, functional
from keras_selcal._resampling import resample_counts
from keras_selcal.metric_table import METRICS
from keras_selcal.report import bootstrap as bootstraps

pytestmark = pytest.mark.backend_free
RANKED = ("aurc", "excess_aurc", "augrc", "failure_auroc")

# What is not exact on a resample, by how much.
TOLERANCE = {"smooth_ece": 1e-5}


def accuracy(y, p, from_logits=False, sample_weight=None):
    top = p.argmax(-1)
    right = y == top if y.ndim == 1 else np.take_along_axis(y, top[:, None], -1)[:, 0]
    return np.average(right, weights=sample_weight)


def reference(y, p, csf="msp", num_bins=15, **options):
    """Every metric by its public function."""
    bins, ranked = {**options, "num_bins": num_bins}, {**options, "csf": csf}
    two = p.ndim == 1 or p.shape[-1] == 2
    kinds = (
        {"positive_ece": functional.ece(y, p, kind="positive", **bins)} if two else {}
    )
    return {
        "accuracy": accuracy(y, p, **options),
        "nll": functional.nll(y, p, **options),
        "refinement": functional.refinement(y, p, **options),
        "brier": functional.brier(y, p, **options),
        "ece": functional.ece(y, p, **bins),
        **kinds,
        "adaptive_ece": functional.ece(y, p, binning="adaptive", **bins),
        "cwece": functional.cwece(y, p, **bins),
        "smooth_ece": functional.smooth_ece(y, p, **options),
        **{name: getattr(functional, name)(y, p, **ranked) for name in RANKED},
        **{
            f"risk_at_coverage_{c:g}": functional.risk_at_coverage(y, p, c, **ranked)
            for c in COVERAGES
        },
        **{
            f"coverage_at_risk_{r:g}": functional.coverage_at_risk(y, p, r, **ranked)
            for r in RISKS
        },
    }


def assert_same(got, want):
    assert set(got) == set(want)
    # Resamples keep the temperature of all samples, so that theirs is not lower.
    assert got["refinement"] >= want["refinement"] - 1e-9
    for name, value in want.items():
        if name == "refinement":
            continue
        atol = TOLERANCE.get(name, 1e-12)
        np.testing.assert_allclose(got[name], value, 1e-11, atol, err_msg=name)


KINDS = ("logits", "ties", "saturated", "untrained", "float32", "soft")


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_functions(rng, kind):
    y, p, options = data(rng, 60, 20, kind)
    for weight in (None, rng.random(60)):
        options["sample_weight"] = weight
        report = report_of(y, p, 0, csf="margin", num_bins=7, **options)
        want = reference(y, p, "margin", 7, **options)
        got = {name: interval.value for name, interval in report.items()}
        assert list(got) == list(want)
        np.testing.assert_array_equal(list(got.values()), list(want.values()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "k", "num_bins"), [(1, 3, 15), (83, 2, 1), (150, 40, 15)]
)
def test_a_resample_is_a_sample_weight(rng, kind, n, k, num_bins):
    y, p, options = data(rng, n, k, kind)
    name = "neg_entropy" if k == 2 else "msp"
    metrics = resampled(y, p, name, num_bins, **options)
    drawn = next(resample_counts(n, 3, seed=1))
    got = metrics.metrics(drawn)
    for row, count in enumerate(drawn):
        want = reference(y, p, name, num_bins, sample_weight=count, **options)
        assert_same({key: value[row] for key, value in got.items()}, want)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_weights_are_drawn_with_their_samples(rng, scale):
    y, p, options = data(rng, 70, 5, "ties")
    weight = scale * rng.random(70)
    weight[:5] = 0.0
    p[:5] = np.nan
    metrics = resampled(y, p, sample_weight=weight, **options)
    y, p, weight = y[5:], p[5:], weight[5:]
    drawn = next(resample_counts(65, 2, seed=1))
    got = metrics.metrics(drawn)
    for row, count in enumerate(drawn):
        index = np.repeat(np.arange(65), count)
        want = reference(y[index], p[index], sample_weight=weight[index])
        assert_same({key: value[row] for key, value in got.items()}, want)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_a_resample_is_the_samples_drawn(drawing):
    n, k = drawing.draw(st.integers(1, 6)), drawing.draw(st.integers(2, 4))
    cells = st.lists(st.integers(0, 3), min_size=k, max_size=k)
    p = np.array(drawing.draw(st.lists(cells, min_size=n, max_size=n)), "float64")
    p[:, 0] += p.sum(-1) == 0
    p /= p.sum(-1, keepdims=True)
    indices = st.lists(st.integers(0, n - 1), min_size=n, max_size=n)
    y = np.array(drawing.draw(indices)) % k
    index = np.array(drawing.draw(indices))
    got = resampled(y, p, num_bins=4).metrics(np.bincount(index, minlength=n)[None])
    want = reference(y[index], p[index], num_bins=4)
    assert_same({key: value[0] for key, value in got.items()}, want)


def binary(rng, n=120):
    """Labels and probabilities of one sigmoid unit, not quite calibrated."""
    z = 2 * rng.normal(size=n)
    return (rng.random(n) < 1 / (1 + np.exp(-z / 2))).astype(int), 1 / (1 + np.exp(-z))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_one_sigmoid_unit_equals_two_columns(rng, shape, threshold):
    y, p = binary(rng)
    options = {"bootstrap": 10, "decision_threshold": threshold}
    two = CalibrationReport(y, np.stack([1 - p, p], -1), **options)
    assert CalibrationReport(y, p.reshape(shape), **options) == two
    assert CalibrationReport(y.astype(bool), p, **options) == two
    z = np.log(p / (1 - p)).reshape(shape)
    logits = CalibrationReport(y, z, from_logits=True, **options)
    for name, interval in logits.items():
        np.testing.assert_allclose(interval, two[name], 1e-6, 1e-7, err_msg=name)


def test_probability_that_rounding_puts_above_1_is_certain():
    report = CalibrationReport([1, 0], np.array([1.00001, 0.25]), bootstrap=0)
    assert report["nll"].value == pytest.approx(-np.log(0.75) / 2, abs=1e-4)


def test_two_classes_have_two_calibration_errors(rng):
    y, p = binary(rng)
    report = CalibrationReport(y, p, bootstrap=0, num_bins=5)
    index = np.ceil(p * 5) - 1
    gaps = [abs(np.sum((p - y)[index == b])) for b in range(5)]
    assert report["positive_ece"].value == pytest.approx(np.sum(gaps) / len(p))
    confidence, right = np.maximum(p, 1 - p), (p > 0.5) == y
    index = np.ceil(confidence * 5) - 1
    gaps = [abs(np.sum((confidence - right)[index == b])) for b in range(5)]
    assert report["ece"].value == pytest.approx(np.sum(gaps) / len(p))
    assert report.rows["ece"].title == "Top-label ECE (ECE)"
    three = CalibrationReport([0, 1], np.eye(3)[:2], bootstrap=0)
    assert "positive_ece" not in three


def test_decision_threshold_decides_what_is_correct(rng):
    y, p = binary(rng)
    report = CalibrationReport(y, p, bootstrap=0, decision_threshold=0.2)
    assert report["accuracy"].value == np.mean((p > 0.2) == y)
    plain = CalibrationReport(y, p, bootstrap=0)
    assert report["positive_ece"].value == plain["positive_ece"].value
    assert report["risk_at_coverage_0.8"] != plain["risk_at_coverage_0.8"]


@pytest.mark.parametrize(
    ("y_true", "y_pred", "told"),
    [
        ([0, 1], [[2.0, -1.0], [0.5, 3.0]], "from_logits=True"),
        ([0, 1], [5.0, -3.0], "`y_pred` must be"),
        ([-1, 1], [0.2, 0.7], "0 or 1"),
        ([0, 2], [0.2, 0.7], "0 or 1"),
        ([[1, 1, 0]], [[0.2, 0.3, 0.5]], "multi_label=True"),
        ([0, 3], np.eye(3)[:2], "`ignore_class=`.*y_true=3"),
        ([0, 1.7], np.eye(3)[:2], "whole class indices"),
    ],
)
def test_bad_data_is_refused_with_a_remedy(y_true, y_pred, told):
    with pytest.raises(ValueError, match=told):
        CalibrationReport(y_true, y_pred)


def test_counts_are_multinomial_and_blocks_do_not_matter(monkeypatch):
    n, num = 33, 4000
    counts = np.concatenate(list(resample_counts(n, num, seed=3)))
    assert counts.shape == (num, n)
    assert np.all(counts.sum(-1) == n)
    assert abs(counts.var() - (1 - 1 / n)) < 0.02
    assert np.all(np.abs(counts.mean(0) - 1) < 5 / math.sqrt(num))
    monkeypatch.setattr(_resampling, "_MOST_COUNTS", 1)
    again = np.concatenate(list(resample_counts(n, 50, seed=3)))
    np.testing.assert_array_equal(again, counts[:50])
    other = np.concatenate(list(resample_counts(n, 50, seed=4)))
    assert not np.array_equal(again, other)


def test_ends_are_percentiles_of_the_resamples(rng):
    y, z, options = data(rng, 90, 4)
    report = report_of(y, z, 57, confidence_level=0.8, seed=5, **options)
    drawn = np.concatenate(list(resample_counts(90, 57, seed=5)))
    values = [functional.aurc(y, z, sample_weight=count, **options) for count in drawn]
    low = np.quantile(values, 0.1, method="lower")
    high = np.quantile(values, 0.9, method="higher")
    np.testing.assert_allclose(report["aurc"][1:], (low, high), 1e-12)
    assert low < report["aurc"].value < high
    wide = report_of(y, z, 57, confidence_level=0.99, seed=5, **options)["aurc"]
    assert (wide.low, wide.high) == pytest.approx((min(values), max(values)))


def test_seed_decides(rng):
    y, z, options = data(rng, 40, 3)
    one, same, other = (report_of(y, z, seed=seed, **options) for seed in (0, 0, 1))
    assert one == same
    assert one["nll"] != other["nll"]
    assert one["nll"].value == other["nll"].value


def test_coverage_of_the_interval(monkeypatch):
    # Data sets of known metrics, with an ECE far above its noise; the share of
    # intervals that hold them has a standard error of 1.3 %. SmoothECE costs most and
    # is not needed.
    row = replace(METRICS["smooth_ece"], function=lambda *args, **options: 0.0)
    monkeypatch.setitem(METRICS, "smooth_ece", row)
    monkeypatch.setattr(bootstraps, "_SMOOTH_STEPS", 2)
    monkeypatch.setattr(bootstraps, "_SMOOTH_ROUNDS", 0)
    trials = 300
    rng = np.random.default_rng(0)
    c = np.array([0.6, 0.9])
    # P(right) = 0.7 whatever the confidence c.
    brier = np.mean(2 * (0.7 * (1 - c) ** 2 + 0.3 * c**2))
    truth = {"accuracy": 0.7, "brier": brier, "ece": np.mean(np.abs(c - 0.7))}
    held = dict.fromkeys(truth, 0)
    for trial in range(trials):
        c = rng.choice([0.6, 0.9], 100)
        p = np.stack([c, 1 - c], axis=-1)
        y = (rng.random(100) >= 0.7).astype(int)
        report = CalibrationReport(y, p, bootstrap=200, seed=trial)
        for name in held:
            held[name] += report[name].low <= truth[name] <= report[name].high
    for name, count in held.items():
        assert 0.9 <= count / trials <= 0.98, name


def test_no_bootstrap_no_interval(rng):
    y, z, options = data(rng, 30, 3)
    report = report_of(y, z, 0, **options)
    assert all(math.isnan(i.low) and math.isnan(i.high) for i in report.values())
    assert "interval" not in str(report)
    assert report.to_dict()["metrics"]["ece"]["low"] is None
    comparison = report.compare(report)
    assert math.isnan(comparison["ece"].low)
    assert comparison.better("ece") is None
    assert "interval" not in str(comparison)


def test_one_sample():
    report = CalibrationReport([1], [[0.25, 0.75]], bootstrap=5)
    values = {"accuracy": 1.0, "ece": 0.25, "aurc": 0.0}
    assert {name: report[name].value for name in values} == values
    # A resample is the sample itself and does not show how others would differ.
    assert all(math.isnan(each.low) for each in report.values())
    assert math.isnan(report["failure_auroc"].value)


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(rng, right):
    p = rng.dirichlet(np.ones(3), 20)
    y = p.argmax(-1) if right else p.argmin(-1)
    report = CalibrationReport(y, p, bootstrap=20)
    assert report["accuracy"] == (float(right),) * 3
    assert report["aurc"] == pytest.approx((1.0 - right,) * 3)
    assert report["excess_aurc"] == pytest.approx((0.0,) * 3, abs=1e-8)
    assert report["augrc"] == pytest.approx(((1.0 - right) / 2,) * 3)
    assert report["coverage_at_risk_0.05"] == (float(right),) * 3
    assert all(map(math.isnan, report["failure_auroc"]))
    line = next(x for x in str(report).splitlines() if x.startswith("failure_auroc"))
    assert line.split()[1:3] == ["–", "–"]


def test_resamples_without_a_wrong_answer_are_left_out():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    report = CalibrationReport([0, 0, 0, 1], p, bootstrap=50)
    assert report["failure_auroc"] == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("from_logits", [False, True])
def test_nan_gives_nan(rng, from_logits):
    p = rng.dirichlet(np.ones(3), 20)
    p[4, 1] = np.nan
    report = report_of(rng.integers(0, 3, 20), p, from_logits=from_logits)
    assert np.isnan(list(report.values())).all()
    assert "nan" not in str(report)
    part = {"value": None, "low": None, "high": None, "better": "lower"}
    assert report.to_dict()["metrics"]["ece"] == part


def test_score_that_is_nan_leaves_the_other_metrics(rng):
    def broken(p):
        return ops.where(p[..., 0] > 0.5, math.nan, p[..., 0])

    y, p, _ = data(rng, 40, 3, "float32")
    report = report_of(y, p, csf=broken)
    plain = report_of(y, p)
    assert np.isnan(report["aurc"]).all()
    assert report["ece"] == plain["ece"]


def test_metrics_that_the_bootstrap_does_not_know_are_computed_one_by_one(
    rng, monkeypatch
):
    row = replace(METRICS["nll"], name="surprise")
    ranked = replace(METRICS["aurc"], name="other_aurc")
    monkeypatch.setitem(METRICS, "surprise", row)
    monkeypatch.setitem(METRICS, "other_aurc", ranked)
    y, z, options = data(rng, 40, 3)
    for weight in (None, rng.random(40)):
        report = report_of(y, z, sample_weight=weight, csf="margin", **options)
        np.testing.assert_allclose(report["surprise"], report["nll"], 1e-12)
        np.testing.assert_allclose(report["other_aurc"], report["aurc"], 1e-12)
        assert report["surprise"].low < report["surprise"].high


def test_infinite_loss():
    p = np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    report = CalibrationReport([1, 0, 0, 0], p, bootstrap=200)
    assert report["nll"] == (math.inf, math.log(2), math.inf)
    assert report.to_dict()["metrics"]["nll"]["value"] is None
    with np.errstate(all="raise"):
        assert "∞" in str(report)
    assert math.isnan(report.compare(report)["nll"].value)
