"""Reports on samples that depend on each other, and on slices of the samples."""

import json
import math

import numpy as np
import pytest
from report_data import data, report_of

from keras_selcal import CalibrationReport, functional
from keras_selcal._resampling import resample_counts
from keras_selcal.functional.reliability import reliability_bins
from keras_selcal.report.slices import FEWEST, _difference
from keras_selcal.report.statistics import chance_ece, percentile_ends

pytestmark = pytest.mark.backend_free


def grouped(rng, n=120, k=3, number=20):
    y, z, options = data(rng, n, k)
    return y, z, np.array([f"patient {i}" for i in rng.integers(0, number, n)]), options


@pytest.mark.parametrize("metric", ["brier", "ece", "aurc"])
def test_a_resample_draws_groups_with_all_of_their_samples(rng, metric):
    y, z, groups, options = grouped(rng)
    report = report_of(y, z, 30, groups=groups, seed=3, **options)
    # Groups are numbered as they appear.
    _, first, index = np.unique(groups, return_index=True, return_inverse=True)
    index = np.argsort(np.argsort(first))[index]
    drawn = np.concatenate(list(resample_counts(len(first), 30, seed=3)))[:, index]
    function = getattr(functional, metric)
    want = [function(y, z, sample_weight=count, **options) for count in drawn]
    np.testing.assert_allclose(report.replicates[metric], want, 1e-10)
    assert report.num_groups == len(first)
    assert report[metric].value == report_of(y, z, 0, **options)[metric].value


def test_groups_of_one_sample_change_nothing(rng):
    y, z, _, options = grouped(rng)
    plain = report_of(y, z, **options)
    named = report_of(y, z, groups=np.arange(120)[::-1], **options)
    assert named == plain
    assert named.num_groups is None


def test_copies_of_a_sample_do_not_make_intervals_narrower(rng):
    y, z, _, options = grouped(rng)
    plain = report_of(y, z, 200, **options)
    copies = np.repeat(np.arange(120), 4)
    same = report_of(y[copies], z[copies], 200, groups=copies, **options)
    naive = report_of(y[copies], z[copies], 200, **options)
    for metric in ("accuracy", "brier", "ece"):
        np.testing.assert_allclose(same[metric], plain[metric], 1e-9, err_msg=metric)
    ratio = np.subtract(*naive["brier"][1:]) / np.subtract(*plain["brier"][1:])
    assert ratio == pytest.approx(0.5, abs=0.12)


def test_interval_of_groups_covers_the_mean_of_groups():
    """Each patient is easy or difficult: rows are no evidence of their own."""
    rng = np.random.default_rng(0)
    held = {"groups": 0, "rows": 0}
    trials, patients, images = 150, 40, 10
    for trial in range(trials):
        easy = rng.random(patients) < 0.7
        y = np.repeat(np.where(easy, 0, 1), images)
        p = np.tile([0.7, 0.3], (patients * images, 1))
        groups = np.repeat(np.arange(patients), images)
        # Only the counts matter: the replicates of accuracy need no full report.
        for kind, unit in (("groups", groups), ("rows", np.arange(len(y)))):
            number = unit[-1] + 1
            drawn = np.concatenate(list(resample_counts(number, 200, seed=trial)))
            right = drawn[:, unit] @ (y == 0) / drawn[:, unit].sum(-1)
            low, high = percentile_ends(float(np.mean(y == 0)), right, 0.95)
            held[kind] += low <= 0.7 <= high
        del p
    assert held["groups"] / trials > 0.88
    assert held["rows"] / trials < 0.6


def test_tokens_of_a_sequence_are_one_group_by_default(rng):
    y, z, _, options = grouped(rng)
    tokens = report_of(y.reshape(30, 4), z.reshape(30, 4, 3), **options)
    assert (tokens.num_samples, tokens.num_groups) == (120, 30)
    assert tokens == report_of(y, z, groups=np.repeat(np.arange(30), 4), **options)
    each = np.arange(120).reshape(30, 4)
    single = report_of(y.reshape(30, 4), z.reshape(30, 4, 3), groups=each, **options)
    assert single == report_of(y, z, **options)


def test_samples_that_do_not_count_leave_their_groups(rng):
    y, z, groups, options = grouped(rng)
    kept = rng.random(120) < 0.6
    kept[groups == groups[0]] = False
    part = report_of(y[kept], z[kept], groups=groups[kept], **options)
    assert report_of(y, z, groups=groups, sample_weight=kept, **options) == part
    labels = np.where(kept, y, 255)
    assert report_of(labels, z, groups=groups, ignore_class=255, **options) == part


def test_several_labels_with_groups(rng):
    y = rng.integers(0, 2, (60, 2))
    p = np.clip((y + rng.random((60, 2))) / 2, 0, 1)
    groups = np.arange(60) // 3
    report = CalibrationReport(y, p, multi_label=True, groups=groups, bootstrap=20)
    drawn = np.concatenate(list(resample_counts(20, 20, seed=0)))[:, groups]
    want = [
        functional.brier(y, p, multi_label=True, sample_weight=count) for count in drawn
    ]
    np.testing.assert_allclose(report.replicates["brier"], want, 1e-10)


def test_one_group_has_no_interval(rng):
    y, z, _, options = grouped(rng)
    report = report_of(y, z, groups=np.zeros(120), **options)
    assert all(math.isnan(each.low) for each in report.values())
    assert "One group has no intervals" in str(report)
    assert report.compare(report).better("nll") is None


def test_comparisons_draw_groups_too(rng):
    y, z, groups, options = grouped(rng)
    one = report_of(y, z, 50, groups=groups, **options)
    two = report_of(y, z / 3, 50, groups=groups, seed=7, **options)
    comparison = one.compare(two)
    index = one.unit
    drawn = np.concatenate(list(resample_counts(one.num_units, 50, seed=0)))[:, index]
    values = [
        functional.nll(y, z, sample_weight=count, **options)
        - functional.nll(y, z / 3, sample_weight=count, **options)
        for count in drawn
    ]
    want = percentile_ends(0.0, np.array(values), 0.95)
    np.testing.assert_allclose(comparison["nll"][1:3], want, 1e-9)
    assert f"resamples of the {one.num_groups} groups" in str(comparison)
    with pytest.raises(ValueError, match="a report with the same groups"):
        one.compare(report_of(y, z, **options))


def test_table_and_page_tell_what_is_drawn(rng, tmp_path):
    y, z, groups, options = grouped(rng)
    report = report_of(y, z, groups=groups, **options)
    number = report.num_groups
    page = report.to_html(tmp_path / "page.html").read_text("utf-8")
    for text in (str(report), page):
        assert f"120 samples in {number} groups" in text
        assert f"resamples of the {number} groups, each with all of its" in text
        assert "fewer than 30 groups are too narrow" in text
    # Ahead of every figure.
    warning = '<p class="alarm"><strong>Intervals of fewer'
    assert page.index(warning) < page.index('class="cards"')
    assert str(report).splitlines()[1].startswith("Warning: Intervals of fewer")
    assert "too narrow" not in str(report_of(y, z, 0, groups=groups, **options))
    assert "take the samples for independent" not in page
    plain = report_of(y, z, **options)
    page = plain.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "take the samples for independent" in page
    assert "group" not in str(plain)
    assert report.to_dict()["num_groups"] == number
    assert plain.to_dict()["num_groups"] is None


def test_thresholds_of_the_page_are_those_of_groups(rng):
    y, z, groups, options = grouped(rng)
    report = report_of(y, z, 0, groups=groups, **options)
    assert report.cuts.num_groups == report.num_groups
    assert report_of(y, z, 0, **options).cuts.num_groups is None


def test_bins_count_groups_in_their_intervals(rng):
    p = np.repeat(rng.random(400), 5)
    y = np.repeat(rng.random(400) < 0.5, 5) * 1.0
    units = np.repeat(np.arange(400), 5)
    options = {"num_bins": 4, "level": 0.9}
    rows = reliability_bins(p, y, np.ones(2000), **options)
    groups = reliability_bins(p, y, np.ones(2000), units=units, **options)
    single = reliability_bins(p[::5], y[::5], np.ones(400), **options)
    # Copies are worth one sample; G − 1 in place of G takes a little more.
    np.testing.assert_allclose(groups.low, single.low, atol=2e-3)
    np.testing.assert_allclose(groups.high, single.high, atol=2e-3)
    assert np.all(groups.low < rows.low)
    np.testing.assert_array_equal(groups.accuracy, rows.accuracy)
    certain = reliability_bins(p, np.ones(2000), np.ones(2000), units=units, **options)
    alone = reliability_bins(p[::5], np.ones(400), np.ones(400), **options)
    np.testing.assert_allclose(certain.low, alone.low, 1e-9)


def test_chance_error_of_groups(rng):
    p = rng.uniform(0.4, 1, 300)
    y = (rng.random(300) < p) * 1.0
    options = {"num_bins": 15, "level": 0.95, "seed": 0}
    single = chance_ece(p, y, np.ones(300), np.arange(300), **options)
    p, y = np.repeat(p, 9), np.repeat(y, 9)
    units = np.repeat(np.arange(300), 9)
    groups = chance_ece(p, y, np.ones(2700), units, **options)
    rows = chance_ece(p, y, np.ones(2700), np.arange(2700), **options)
    assert groups == pytest.approx(single, rel=0.1)
    assert rows < 0.5 * groups


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        (np.zeros(7), "`groups` must be"),
        ("patients", "`groups` must be"),
        (np.ma.masked_array(np.zeros(120)), "without a mask"),
    ],
)
def test_bad_groups_are_refused(rng, groups, told):
    y, z, _, options = grouped(rng)
    with pytest.raises(ValueError, match=told):
        report_of(y, z, groups=groups, **options)


# Slices


def sliced(rng, n=400):
    """Predictions that are much worse where site is "south"."""
    y, z, options = data(rng, n, 3)
    site = np.array(["east", "north", "south"])[rng.integers(0, 3, n)]
    rows = site == "south"
    z[rows] = rng.normal(size=(rows.sum(), 3)) * 4
    sex = rng.integers(0, 2, n)
    return y, z, {"site": site, "sex": sex}, options


def test_slices_are_reports_of_their_samples(rng):
    y, z, slices, options = sliced(rng)
    weight = rng.random(400)
    report = report_of(y, z, slices=slices, sample_weight=weight, **options)
    assert len(report.slices) == 5
    for (column, value), each in report.slices.items():
        rows = slices[column] == value
        want = report_of(y[rows], z[rows], sample_weight=weight[rows], **options)
        assert dict(each.report) == dict(want)
        assert each["ece"] == want["ece"]
        assert (each.column, each.value) == (column, value)
    assert isinstance(next(key[1] for key in report.slices if key[0] == "sex"), int)


def test_slices_with_groups_that_span_them(rng):
    y, z, slices, options = sliced(rng)
    groups = np.arange(400) // 4
    report = report_of(y, z, slices=slices, groups=groups, **options)
    rows = slices["site"] == "south"
    want = report_of(y[rows], z[rows], groups=groups[rows], **options)
    assert dict(report.slices["site", "south"].report) == dict(want)


def test_slices_of_tokens_and_labels(rng):
    y, z, slices, options = sliced(rng)
    site = slices["site"][::4]
    of = {"slices": {"site": site}, **options}
    tokens = report_of(y.reshape(100, 4), z.reshape(100, 4, 3), 0, **of)
    plain = report_of(y, z, 0, slices={"site": site.repeat(4)}, **options)
    for key, each in tokens.slices.items():
        assert each["brier"].value == plain.slices[key]["brier"].value
    labels = rng.integers(0, 2, (100, 2))
    p = (labels + 2 * rng.random((100, 2))) / 3
    of = {"multi_label": True, "bootstrap": 10}
    several = CalibrationReport(labels, p, slices={"site": site}, **of)
    rows = site == "north"
    want = CalibrationReport(labels[rows], p[rows], **of)
    assert dict(several.slices["site", "north"].report) == dict(want)


def test_the_worst_slice_comes_first_and_small_ones_last(rng):
    y, z, slices, options = sliced(rng)
    slices["site"][:5] = "west"
    y[:5] = z[:5].argmin(-1)
    report = report_of(y, z, 0, slices=slices, **options)
    found = list(report.slices.values())
    assert (found[0].value, found[0].verdict) == ("south", "worse")
    assert (found[-1].value, found[-1].verdict) == ("west", "few")
    scores = [each["brier"].value for each in found[:-1]]
    assert scores == sorted(scores, reverse=True)
    assert {report.slices["sex", 0].verdict, report.slices["sex", 1].verdict} == {
        "undecided"
    }
    assert report.slices["site", "north"].verdict == "better"


def test_the_difference_of_a_slice_and_its_error(rng):
    y, z, slices, options = sliced(rng)
    report = report_of(y, z, 0, slices=slices, **options)
    losses, inside = rng.random(400), slices["sex"] == 1
    one, two = losses[inside], losses[~inside]
    difference, error = _difference(report, losses, inside)
    assert difference == pytest.approx(one.mean() - two.mean())
    want = math.sqrt(one.var() / len(one) + two.var() / len(two))
    assert error == pytest.approx(want)
    copies = np.repeat(np.arange(400), 3)
    report = report_of(y[copies], z[copies], 0, groups=copies, **options)
    again = _difference(report, losses[copies], inside[copies])
    assert again == pytest.approx((difference, error))


def test_slices_without_a_difference_have_no_verdict():
    """All verdicts together are wrong in at most 5 % of reports."""
    rng = np.random.default_rng(0)
    wrong, trials = 0, 60
    for _ in range(trials):
        p = rng.dirichlet(np.ones(2), 240)
        y = (rng.random(240) < p[:, 1]).astype(int)
        columns = {"a": rng.integers(0, 3, 240), "b": rng.integers(0, 2, 240)}
        report = CalibrationReport(y, p, bootstrap=0, slices=columns)
        verdicts = {each.verdict for each in report.slices.values()}
        wrong += verdicts != {"undecided"}
    assert wrong / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


def test_table_page_and_data_show_the_slices(rng, tmp_path):
    y, z, slices, options = sliced(rng)
    slices["site"] = np.where(slices["site"] == "east", "<b>east", slices["site"])
    report = report_of(y, z, slices=slices, **options)
    text = str(report)
    assert "5 slices, the worst Brier score first" in text
    south = next(line for line in text.splitlines() if line.startswith("site: south"))
    assert south.endswith("worse")
    assert "allowing for 5 comparisons" in text
    page = report.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "✗ worse than the rest" in page
    assert "site: &lt;b&gt;east" in page
    assert "<b>east" not in page
    assert "allowing for 5 comparisons" in page
    parts = json.loads(json.dumps(report.to_dict()))["slices"]
    assert parts[0]["value"] == "south"
    assert (
        parts[0]["metrics"]["ece"]["value"]
        == report.slices["site", "south"]["ece"].value
    )
    plain = report_of(y, z, **options)
    assert "slices" not in plain.to_dict()
    assert "slice" not in str(plain)
    both = report.to_html(tmp_path / "page.html", others=plain).read_text("utf-8")
    assert both.count("✗ worse than the rest") == 1


def test_many_slices_are_opened(rng, tmp_path):
    y, z, options = data(rng, 400, 2)
    report = report_of(y, z, 0, slices={"ward": np.arange(400) % 40}, **options)
    page = report.to_html(tmp_path / "page.html").read_text("utf-8")
    assert "The first 12 of 40 slices" in page
    assert "<summary>28 more slices</summary>" in page
    assert f"fewer than {FEWEST} samples come last (40 here)" in page


def test_values_of_pandas_and_missing_values(rng):
    y, z, options = data(rng, 6, 2)
    site = np.array(["a", None, "a", 3, "b", None], dtype=object)
    score = np.array([1.0, np.nan, 1.0, 2.5, 2.5, np.nan])
    given = {"site": site, "score": score, "sex": ["", "m", "f", "f", "m", ""]}
    found = report_of(y, z, 0, slices=given, **options).slices
    assert found["sex", ""].title == "sex: (empty)"
    assert found["site", "None"].report.num_samples == 2
    titles = {each.title for each in found.values()}
    assert {"site: 3", "score: 1", "score: 2.5", "score: nan"} <= titles
    assert sum(each.report.num_samples for each in found.values()) == 18


@pytest.mark.parametrize(
    ("slices", "told"),
    [
        (np.zeros(120), "a dict such as"),
        ({"site": np.zeros(3)}, r"`slices\['site'\]` must be of the samples' shape"),
        ({"age": np.arange(120) / 7}, "cut numbers into ranges"),
    ],
)
def test_bad_slices_are_refused(rng, slices, told):
    y, z, _, options = grouped(rng)
    with pytest.raises(ValueError, match=told):
        report_of(y, z, 0, slices=slices, **options)


def test_predictions_of_nan_leave_other_slices(rng):
    y, z, options = data(rng, 80, 3)
    z[3] = np.nan
    half = np.arange(80) // 40
    found = report_of(y, z, slices={"half": half}, **options).slices
    assert not math.isnan(found["half", 1]["brier"].value)
    assert list(found) == [("half", 1), ("half", 0)]


def test_class_names_of_a_report(rng, tmp_path):
    y, z, _, options = grouped(rng)
    report = report_of(y, z, 0, class_names=["ant", "bee", "cat"], **options)
    page = report.to_html(tmp_path / "page.html").read_text("utf-8")
    assert '<bdi dir="auto">bee</bdi>' in page
    page = report.to_html(tmp_path / "page.html", class_names=["xyz"] * 3)
    assert "bee" not in page.read_text("utf-8")
    with pytest.raises(ValueError, match="`class_names` must be 3 names"):
        report_of(y, z, 0, class_names=["ant"], **options)
    labels = rng.integers(0, 2, (30, 2))
    several = CalibrationReport(
        labels,
        labels * 0.8 + 0.1,
        multi_label=True,
        bootstrap=0,
        class_names=["u", "v"],
    )
    assert any(line.split()[:1] == ["v"] for line in str(several).splitlines())
