"""The section of the page on what to do, and its cross-fitted figures."""

import re

import numpy as np
import pytest
from report_page import classifier, page_of

from keras_selcal import CalibrationReport, TemperatureScaling, functional
from keras_selcal import select_threshold as select
from keras_selcal.report.recalibration import FOLDS, cross_fitted, recalibrated

pytestmark = pytest.mark.backend_free


def advice(report, tmp_path):
    source = page_of(report, tmp_path).source
    section = re.search(r'<section id="advice".*?</section>', source, re.DOTALL)[0]
    # The digits of a number stand in groups.
    section = re.sub(r"</?span[^>]*>", "", section)
    return re.sub(r"<[^>]+>", " ", section).replace("\xa0", " ")


def test_each_fold_is_calibrated_by_the_others(rng):
    y, p = classifier(rng, 300, 3, 2.0)
    weight = rng.random(300)
    report = CalibrationReport(y, p, bootstrap=0, sample_weight=weight)
    found = cross_fitted(report, "TemperatureScaling")
    fold = np.random.default_rng(0).permutation(300) % FOLDS
    for held_out in range(FOLDS):
        fit = fold != held_out
        calibrator = TemperatureScaling(from_logits=False)
        calibrator.fit(p[fit], y[fit], sample_weight=weight[fit])
        want = calibrator.predict_proba(p[~fit])
        np.testing.assert_allclose(found.y_pred[~fit], want, 1e-5)


def test_gains_are_differences_of_metrics_with_paired_intervals(rng):
    y, p = classifier(rng, 400, 3, 2.0)
    report = CalibrationReport(y, p, bootstrap=60)
    for each in recalibrated(report):
        after = cross_fitted(report, each.name).y_pred
        options = {"bootstrap": 60}
        want = CalibrationReport(y, after, **options).compare(report)
        assert each.ece == pytest.approx(functional.ece(y, after), rel=1e-5)
        for name, change in (("ece", each.ece_change), ("brier", each.brier_change)):
            assert change == pytest.approx(want[name][:3], rel=1e-4, abs=1e-6)
    assert each.name == "StructuredVectorScaling"


def test_labels_of_a_sample_stay_in_one_fold(rng):
    p = rng.random((200, 3))
    y = (rng.random((200, 3)) < p**2).astype(int)
    y[:, 2] = 0
    report = CalibrationReport(y, p, multi_label=True, bootstrap=0)
    found = cross_fitted(report, "TemperatureScaling").y_pred[:, 1].reshape(200, 3)
    alone = CalibrationReport(y[:, 0], p[:, 0], bootstrap=0)
    want = cross_fitted(alone, "TemperatureScaling").y_pred[:, 1]
    np.testing.assert_allclose(found[:, 0], want, 1e-5)
    # There is nothing to fit to a label that is never true.
    np.testing.assert_allclose(found[:, 2], p[:, 2])


@pytest.mark.parametrize(
    ("sharpness", "said"),
    [(3.0, "Yes, by temperature scaling"), (1.0, "Not on these data: no method")],
)
def test_words_follow_the_brier_score(tmp_path, sharpness, said):
    rng = np.random.default_rng(1)
    y, p = classifier(rng, 2000, 3, sharpness)
    report = CalibrationReport(y, p, bootstrap=100)
    text = re.sub(" +", " ", advice(report, tmp_path))
    assert said in text
    if sharpness > 1:
        found = recalibrated(report)[0]
        for error in (found.ece, report["ece"].value):
            assert f"{100 * error:.2f} points" in text
        assert "which lowers confidence" in text


def test_thresholds_are_those_of_select_threshold(rng, tmp_path):
    p = np.sort(rng.dirichlet(np.full(3, 0.1), 3000))[:, ::-1]
    y = (rng.random((3000, 1)) > p.cumsum(-1)).sum(-1).clip(max=2)
    report = CalibrationReport(y, p, bootstrap=0)
    text = advice(report, tmp_path)
    correct = p.argmax(-1) == y
    for risk in (0.01, 0.02, 0.05):
        threshold = select(p.max(-1), correct, risk=risk, delta=0.05)
        accepted = p.max(-1) >= threshold
        row = re.search(rf" {100 * risk:g} % +([\d.]+) +([\d.]+) % +([\d.]+) %", text)
        assert row, risk
        # The printed threshold accepts the same samples.
        np.testing.assert_array_equal(p.max(-1) >= float(row[1]), accepted)
        assert row[2] == f"{100 * accepted.mean():.1f}"
        assert row[3] == f"{100 * (1 - correct[accepted].mean()):.2f}"


@pytest.mark.parametrize("case", ["few", "right", "wrong", "weights", "soft", "absent"])
def test_advice_reads_sensibly_for_special_data(rng, tmp_path, case):
    y, p = classifier(rng, 20 if case == "few" else 200)
    options = {}
    if case == "right":
        y = p.argmax(-1)
    elif case == "wrong":
        y = p.argmin(-1)
    elif case == "weights":
        options = {"sample_weight": rng.random(200)}
    elif case == "soft":
        y = 0.9 * np.eye(3)[y] + 0.1 / 3
    elif case == "absent":
        y = np.minimum(y, 1)
    report = CalibrationReport(y, p, bootstrap=20, **options)
    text = advice(report, tmp_path)
    few = "are too few to tell whether recalibration helps"
    assert (few in text) == (case in ("few", "right", "wrong"))
    if case == "weights":
        assert "need cases of equal weight" in text
    elif case == "few":
        assert text.count("no threshold is certain enough") == 3
    else:
        assert "Wrong at most" in text
    assert "nan" not in text


def test_labels_of_one_class_cannot_be_calibrated(rng, tmp_path):
    report = CalibrationReport(np.zeros(300, int), rng.random(300), bootstrap=0)
    assert "no calibrator can be fitted" in advice(report, tmp_path)
