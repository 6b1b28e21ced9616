"""Reports class by class and label by label."""

import math
from functools import partial

import numpy as np
import pytest
from report_data import data, report_of

from keras_selcal import CalibrationReport, functional
from keras_selcal._resampling import resample_counts

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("kind", ["hard", "soft", "weights"])
def test_metrics_of_each_class(rng, kind):
    y, p, _ = data(rng, 60, 4, "soft" if kind == "soft" else "float32")
    if kind != "soft":
        y[y == 3] = 0
    weight = rng.random(60) if kind == "weights" else np.ones(60)
    report = report_of(y, p, 0, sample_weight=weight if kind == "weights" else None)
    hot = y if kind == "soft" else np.eye(4)[y]
    mass = hot * weight[:, None] / weight.sum()
    found = report.per_class()
    assert list(found) == [0, 1, 2, 3]
    errors = functional.cwece(y, p, per_class=True, sample_weight=weight)
    for c, values in found.items():
        frequency = mass[:, c].sum()
        right = mass[p.argmax(-1) == c, c].sum()
        assert values == pytest.approx(
            {
                "frequency": frequency,
                "mean": np.average(p[:, c], weights=weight),
                "accuracy": right / frequency if frequency else math.nan,
                "confidence": mass[:, c] @ p.max(-1) / frequency
                if frequency
                else math.nan,
                "positive_ece": errors[c],
            },
            rel=1e-5,
            nan_ok=True,
        )


def test_label_issues_are_the_labels_that_were_changed(rng):
    p = rng.dirichlet(np.full(3, 0.2), 500)
    truth = (rng.random((500, 1)) > p.cumsum(-1)).sum(-1).clip(max=2)
    changed = rng.random(500) < 0.1
    y = np.where(changed, (truth + 1) % 3, truth)
    report = report_of(y, p, 0)
    top = p.argmax(-1)
    usual = np.array([p[y == c, c].mean() for c in range(3)])
    want = (top != y) & (p.max(-1) >= usual[top])
    np.testing.assert_array_equal(report.label_issues(), want)
    # An honest model finds most of them, and few labels that were left alone.
    assert np.mean(want[changed]) > 0.6
    assert np.mean(want[~changed]) < 0.1
    both = CalibrationReport(np.eye(3)[y], p, multi_label=True, bootstrap=0)
    parts = np.stack(
        [report_of((y == c).astype(int), p[:, c], 0).label_issues() for c in range(3)],
        axis=-1,
    )
    np.testing.assert_array_equal(both.label_issues(), parts.ravel())
    assert not report_of(0.9 * np.eye(3)[y] + 0.1 / 3, p, 0).label_issues().any()
    # A class that no label has cannot be the right one.
    assert not report_of(np.zeros(500, int), p, 0).label_issues().any()


def multi_label(rng, n=60, k=4):
    p = rng.random((n, k))
    return (rng.random((n, k)) < p**1.5).astype(int), p


def test_multi_label_metrics_pool_the_labels_and_average_over_them(rng):
    y, p = multi_label(rng)
    report = CalibrationReport(y, p, multi_label=True, bootstrap=0)
    pooled = CalibrationReport(y.ravel(), p.ravel(), bootstrap=0)
    for name in set(report) - {"cwece"}:
        assert report[name] == pooled[name]
    errors = [functional.ece(y[:, c], p[:, c], kind="positive") for c in range(4)]
    assert report["cwece"].value == pytest.approx(np.mean(errors))
    found = report.per_class()
    assert list(found) == [0, 1, 2, 3]
    for c, values in found.items():
        assert values == pytest.approx(
            {
                "frequency": y[:, c].mean(),
                "mean": p[:, c].mean(),
                "accuracy": np.mean((p[:, c] > 0.5) == y[:, c]),
                "confidence": np.maximum(p, 1 - p)[:, c].mean(),
                "positive_ece": errors[c],
            }
        )
    assert (report.num_samples, report.num_classes) == (60, 4)
    assert "4 labels, the largest error first" in str(report)
    assert report.to_dict()["labels"][2] == found[2]


def test_multi_label_resamples_draw_samples_with_all_labels(rng):
    y, p = multi_label(rng)
    options = {"multi_label": True, "seed": 3, "bootstrap": 30}
    report = CalibrationReport(y, p, **options)
    drawn = np.concatenate(list(resample_counts(60, 30, seed=3)))
    for name, metric in (
        ("ece", partial(functional.ece, pooled=True)),
        ("cwece", functional.cwece),
    ):
        values = [metric(y, p, multi_label=True, sample_weight=w) for w in drawn]
        np.testing.assert_allclose(report.replicates[name], values, 1e-9)


def test_multi_label_leaves_out_ignored_labels(rng):
    y, p = multi_label(rng)
    y[3, 1] = y[7] = -1
    options = {"multi_label": True, "bootstrap": 10}
    report = CalibrationReport(y, p, ignore_class=-1, **options)
    kept = y.ravel() >= 0
    pooled = CalibrationReport(y.ravel()[kept], p.ravel()[kept], bootstrap=0)
    assert report["nll"].value == pooled["nll"].value
    assert report.num_samples == 59
    assert np.array_equal(np.unique(report.index), np.delete(np.arange(60), 7))


def test_ignored_class_of_pixels(rng):
    y, p, _ = data(rng, 24, 3, "float32")
    y[5] = 255
    report = CalibrationReport(
        y.reshape(2, 12), p.reshape(2, 12, 3), ignore_class=255, bootstrap=0
    )
    assert report == CalibrationReport(np.delete(y, 5), np.delete(p, 5, 0), bootstrap=0)
    assert report.num_given == 24
    assert 5 not in report.index
