"""The report as a table and as data, and the comparison of two reports."""

import json
import sys

import numpy as np
import pytest
from keras import ops
from report_data import RISKS, data, report_of, resampled

from keras_selcal import CalibrationReport
from keras_selcal._resampling import resample_counts

pytestmark = pytest.mark.backend_free


def test_tensors_and_leading_dimensions(rng):
    y, p, _ = data(rng, 24, 3, "float32")
    tensors = report_of(
        ops.convert_to_tensor(y.reshape(4, 6)),
        ops.convert_to_tensor(p.reshape(4, 6, 3)),
    )
    assert tensors == report_of(y, p, groups=np.arange(24) // 6)


def test_compare_pairs_the_resamples(rng):
    y, z, options = data(rng, 200, 4)
    one = report_of(y, z, 60, seed=2, **options)
    two = report_of(y, z + 0.1 * rng.normal(size=z.shape), 60, seed=2, **options)
    difference = one.compare(two)["brier"]
    assert difference.value == one["brier"].value - two["brier"].value
    assert (difference.first, difference.second) == (one["brier"][0], two["brier"][0])
    drawn = np.concatenate(list(resample_counts(200, 60, seed=2)))
    values = [
        resampled(y, z, **options).metrics(drawn)["brier"],
        resampled(y, two.samples.y_pred, **options).metrics(drawn)["brier"],
    ]
    values = np.sort(values[0] - values[1])
    np.testing.assert_allclose(difference[1:3], values[[1, -2]], 1e-10)
    unpaired = one["brier"].high - one["brier"].low
    assert difference.high - difference.low < unpaired / 2
    back = two.compare(one)["brier"]
    assert back[:3] == (-difference.value, -difference.high, -difference.low)


def test_compare_resamples_the_other_alike(rng):
    y, z, options = data(rng, 50, 3)
    one = report_of(y, z, 30, seed=1, **options)
    same = report_of(y, z / 3, 30, seed=1, **options)
    for bootstrap, seed in ((30, 2), (0, 1)):
        other = report_of(y, z / 3, bootstrap, seed=seed, **options)
        assert one.compare(other) == one.compare(same)


def test_compare_decides(rng):
    y, z, options = data(rng, 300, 3)
    one = report_of(y, z, 50, name="sharp", **options)
    two = report_of(y, rng.permutation(z), 50, name="shuffled", **options)
    comparison = one.compare(two)
    for name in ("accuracy", "nll", "aurc", "risk_at_coverage_0.8"):
        assert comparison.better(name) == "sharp"
        assert two.compare(one).better(name) == "sharp"
    text = str(comparison)
    assert text.startswith("Difference sharp − shuffled on the same 300 samples")
    assert text.count("\n") == len(comparison) + 5
    assert comparison.to_dict()["metrics"]["nll"]["better"] == "sharp"
    json.dumps(comparison.to_dict(), allow_nan=False)
    equal = one.compare(one)
    assert equal.names == ("this", "other")
    assert equal["ece"][:3] == (0.0, 0.0, 0.0)
    assert "undecided" not in str(equal).split("Intervals")[0]
    assert equal.better("ece") is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y_true": [0, 1, 0]}, "1 other labels"),
        ({"y_true": [0, 1], "y_pred": np.eye(2)}, r"labels of shape \(2,\)"),
        ({"sample_weight": [1, 2, 1]}, "sample weights"),
        ({"num_bins": 3}, "num_bins=15"),
        ({"coverages": 0.5}, "coverages"),
        ({"risks": ()}, "risks"),
    ],
)
def test_compare_refuses(change, match):
    options = {"y_true": [0, 1, 1], "y_pred": np.eye(2)[[0, 1, 0]], "bootstrap": 0}
    one = CalibrationReport(**options)
    two = CalibrationReport(**{**options, **change})
    with pytest.raises(ValueError, match=match):
        one.compare(two)
    with pytest.raises(ValueError, match="`other` must be a CalibrationReport"):
        one.compare({"ece": 0.1})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("bootstrap", -1),
        ("bootstrap", "many"),
        ("seed", None),
        ("seed", 0.5),
        ("confidence_level", 1.0),
        ("confidence_level", 0.0),
        ("num_bins", 0),
        ("coverages", (0.5, 0.0)),
        ("coverages", "half"),
        ("risks", (-0.1,)),
        ("csf", "odds"),
        ("sample_weight", [-1.0, 1.0]),
    ],
)
def test_bad_arguments(argument, value):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        CalibrationReport([0, 1], np.eye(2), **{argument: value})


def test_table(rng):
    y, z, options = data(rng, 1200, 3)
    report = report_of(y, z, name="net", csf="margin", confidence_level=0.9, **options)
    lines = str(report).splitlines()
    assert lines[0] == (
        "Calibration report of net: 1,200 samples, 3 classes, confidence score margin"
    )
    head, *rows = lines[2 : 3 + len(report)]
    assert head.split("  ")[0] == "metric"
    assert "90 % interval" in head
    arrows = head.index("better")
    for row, (name, (value, low, high)) in zip(rows, report.items(), strict=True):
        unit = report.rows[name].unit
        scale, form = (100, ".2f") if unit in ("share", "points") else (1, ".4f")
        value, low, high = (format(scale * x, form) for x in (value, low, high))
        if unit == "share":
            value, low, high = (
                x.replace("100.00", "100") if x != "0.00" else "0"
                for x in (value, low, high)
            )
        assert row.split()[:4] == [name, value, f"[{low},", f"{high}]"]
        shown = {"share": "%", "points": "points", "nats": "nats"}.get(unit)
        assert shown is None or shown in row[: row.index("]") + 12]
        better = report.to_dict()["metrics"][name]["better"]
        assert row[arrows] == {"lower": "↓", "higher": "↑"}[better]
        assert len(row) > arrows + 10
    assert "20 bootstrap resamples" in lines[-1]
    assert "Intervals of small calibration errors lie too high" in lines[-1]
    assert repr(report) == str(report)


def test_table_marks_a_value_outside_its_interval(rng):
    # Perfectly calibrated: all of the ECE is noise, of which a resample has twice.
    c = rng.uniform(0.5, 1.0, 500)
    y = (rng.random(500) >= c).astype(int)
    report = CalibrationReport(y, np.stack([c, 1 - c], -1), num_bins=100, bootstrap=50)
    assert report["ece"].value < report["ece"].low
    marked = [line.split()[0] for line in str(report).splitlines() if "] *" in line]
    assert "ece" in marked
    assert "accuracy" not in marked
    assert "* The value lies outside" in str(report)


def test_to_dict_is_json(rng):
    y, z, options = data(rng, 30, 3)
    report = report_of(y, z, **options)
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read["num_samples"] == 30
    assert read["num_classes"] == 3
    assert (read["csf"], read["bootstrap"], read["seed"]) == ("msp", 20, 0)
    assert list(read["metrics"]) == list(report)
    for name, part in read["metrics"].items():
        assert (part["value"], part["low"], part["high"]) == report[name]
    higher = {n for n, part in read["metrics"].items() if part["better"] == "higher"}
    assert higher == {
        "accuracy",
        "failure_auroc",
        *(f"coverage_at_risk_{r:g}" for r in RISKS),
    }


def test_to_dataframe(rng):
    pytest.importorskip("pandas", reason="pandas is not installed")
    y, z, options = data(rng, 30, 3)
    report = report_of(y, z, **options)
    frame = report.to_dataframe()
    assert list(frame.index) == list(report)
    assert list(frame.columns) == ["value", "low", "high", "better"]
    assert frame.loc["ece", "high"] == report["ece"].high
    frame = report.compare(report).to_dataframe()
    assert frame.loc["ece", "second"] == report["ece"].value


def test_to_dataframe_without_pandas(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    report = report_of([0, 1], np.eye(2), 0)
    with pytest.raises(ImportError, match="pip install pandas"):
        report.to_dataframe()
    with pytest.raises(ImportError, match="pip install pandas"):
        report.compare(report).to_dataframe()
