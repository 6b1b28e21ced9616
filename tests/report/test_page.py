"""The report as a page: its numbers, and what it must never contain.

`test_browser.py` looks at it in a browser.
"""

import base64
import hashlib
import io
import re
from itertools import pairwise

import numpy as np
import pytest
from keras import ops
from report_page import classifier, number, page_of, sharpened

from keras_selcal import CalibrationReport, functional
from keras_selcal.plots import canvas
from keras_selcal.report.html import numbers, png

pytestmark = pytest.mark.backend_free
MARKUP = "<script>alert('x')</script>\"& \u2028</script>"


def cases(rng):
    y, p = classifier(rng)
    yield "probabilities", y, p, {}
    yield "ties", y, np.round(p, 1) / np.round(p, 1).sum(-1, keepdims=True), {}
    yield "saturated", y, (60 * np.log(p)).astype("float32"), {"from_logits": True}
    yield "margin", y, p.astype("float32"), {"csf": "margin"}
    yield "entropy", y, np.log(p), {"csf": "neg_entropy", "from_logits": True}
    weight = rng.random(300) * (rng.random(300) < 0.9)
    yield "weights", y, p, {"sample_weight": weight}
    yield "soft", rng.dirichlet(np.ones(3), 300), p, {}


@pytest.mark.parametrize("case", range(7))
def test_slider_has_the_numbers_of_functional(rng, tmp_path, case):
    _, y, pred, options = list(cases(rng))[case]
    report = CalibrationReport(y, pred, bootstrap=0, **options)
    (model,) = page_of(report, tmp_path).slider
    samples, n = report.samples, report.num_samples
    scores = samples.scores(report.csf)
    share = samples.counts / samples.counts.sum()
    assert len(model["figures"]) == len(model["marks"]) == len(model["at"])
    for figures, shares in zip(model["figures"], model["shares"], strict=True):
        coverage, threshold, answered, left, wrong, risk = figures
        # By the threshold as printed, not by what the page was made from.
        kept = scores >= number(threshold)
        exact = share[kept].sum()
        want = functional.risk_at_coverage(y, pred, min(exact, 1.0), **options)
        assert risk == numbers.percent(want, 2)
        assert coverage == numbers.percent(exact)
        assert answered == numbers.count(exact * n)
        assert number(answered) + number(left) == pytest.approx(n, abs=0.11)
        assert wrong == numbers.count(want * exact * n)
        np.testing.assert_allclose(
            shares, [100 * exact * (1 - want), 100 * exact * want], atol=0.006
        )
    assert model["figures"][-1][0] == "100\xa0%"
    coverages = [number(figures[2]) for figures in model["figures"]]
    assert all(one < two for one, two in pairwise(coverages))


def test_slider_stops_only_where_a_threshold_can(rng, tmp_path):
    confidence = np.repeat([0.9, 0.7, 0.6], [5, 3, 2])
    p = np.stack([confidence, 1 - confidence], -1)
    (model,) = page_of(CalibrationReport([0] * 10, p, bootstrap=0), tmp_path).slider
    assert [f[1:3] for f in model["figures"]] == [
        ["0.900", "5"],
        ["0.700", "8"],
        ["0.600", "10"],
    ]


def test_slider_moves_models_together(rng, tmp_path):
    y, p = classifier(rng)
    rounded = np.round(p, 1) / np.round(p, 1).sum(-1, keepdims=True)
    one, two = (CalibrationReport(y, x, bootstrap=0) for x in (p, rounded))
    first, second = page_of(one, tmp_path, others=two).slider
    assert len(first["at"]) == len(second["at"]) == 300
    for at, other in zip(first["at"], second["at"], strict=True):
        reached = number(second["figures"][other][2])
        assert reached >= number(first["figures"][at][2])
        if other:
            below = number(second["figures"][other - 1][2])
            assert below < number(first["figures"][at][2])


def test_markup_in_names_is_text(rng, tmp_path):
    y, p = classifier(rng, 60)
    score = MARKUP[:8]

    def msp(p):
        return ops.max(p, axis=-1)

    msp.__name__ = score
    one, two = (
        CalibrationReport(y, x, bootstrap=20, name=name, csf=csf)
        for x, name, csf in ((p, MARKUP, msp), (sharpened(p), MARKUP + "2", "msp"))
    )
    class_names = [MARKUP + str(i) for i in range(3)]
    page = page_of(one, tmp_path, others=[two], title=MARKUP, class_names=class_names)
    assert len(page.tagged("script")) == 2
    assert "\u2028" not in page.slider[0]["name"].replace(MARKUP, "")
    assert "\u2028" not in re.search(r'id="stops">(.*?)</script>', page.source)[1]
    for shown in (*class_names, MARKUP + "2", score):
        assert re.sub(r"\s+", " ", shown) in page.text
    assert page.slider[1]["name"] == MARKUP + "2"
    assert page.source.count("alert(") == page.source.count("alert(&#x27;") + (
        page.source.count("\\u003cscript\\u003ealert(")
    )


def test_page_is_well_formed_and_asks_for_nothing(rng, tmp_path):
    y, p = classifier(rng, 60)
    one, two = (CalibrationReport(y, x, bootstrap=20) for x in (p, sharpened(p)))
    images = rng.integers(0, 255, (60, 4, 4), dtype=np.uint8)
    for others in ([], [two], [two] * 8):
        page = page_of(one, tmp_path, others=others, images=images)
        ids = page.having("id")
        assert len(ids) == len(set(ids))
        targets = [x for a in ("for", "aria-labelledby") for x in page.having(a)]
        targets += [x[1:] for x in page.having("href") if x != "data:,"]
        assert {part for target in targets for part in target.split()} <= set(ids)
        assert len(page.tagged("h1")) == 1
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
        assert all(two - one <= 1 for one, two in pairwise(levels))
        assert all(image["alt"] for image in page.tagged("img"))
        assert all(cell.get("scope") for cell in page.tagged("th"))
        assert not page.having("style")
        assert not [a for _, x in page.elements for a in x if a.startswith("on")]
        assert all(
            source.startswith("data:image/png;") for source in page.having("src")
        )
        assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page.source)
    policy = page.tagged("meta")[1]["content"]
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", page.source, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


UNITS = {"share": " %", "points": " points"}


def test_page_has_the_figures_of_the_report(rng, tmp_path):
    y, p = classifier(rng, 400)
    one = CalibrationReport(y, p, bootstrap=50, name="one")
    two = CalibrationReport(y, rng.permutation(p), bootstrap=50, name="two")
    page = page_of(one, tmp_path, others=two)
    text = page.text.replace("\xa0", " ").replace("−", "-")
    metrics = text[text.index("Each metric, with its 95 % interval below") :]
    for metric in one:
        about = one.rows[metric]
        for report in (one, two):
            scale, form = (100, ".2f") if about.unit in UNITS else (1, ".4f")
            value, low, high = (format(scale * x, form) for x in report[metric])
            if about.unit == "share":
                value, low = (re.sub(r"^(0|100)\.00$", r"\1", x) for x in (value, low))
            unit = UNITS.get(about.unit, "")
            shown = rf"{value}{unit} {low} to {float(high):g}"
            assert re.search(shown, metrics), metric
        assert one.meaning(metric).replace("\xa0", " ").replace("−", "-") in text
    comparison = two.compare(one)
    assert "two is right less often, is worse calibrated, and makes more" in text
    # Nothing but words and pictures stands above the rows of comparison.
    assert page.source.index("<figure>") < page.source.index("✗ worse")
    for metric in ("accuracy", "nll", "aurc"):
        about, difference = one.rows[metric], comparison[metric]
        assert comparison.better(metric) == "one"
        worse = f"✗ worse: {numbers.signed(difference.value, about.unit)}"
        worse = worse.replace("\xa0", " ").replace("−", "-")
        assert re.search(rf"{re.escape(about.title)}[^✗]*{re.escape(worse)} ", metrics)


def sigmoid_unit(rng, n=300):
    z = 2 * rng.normal(size=n)
    return (rng.random(n) < 1 / (1 + np.exp(-z / 2))).astype(int), 1 / (1 + np.exp(-z))


def test_page_of_one_sigmoid_unit_shows_both_calibration_errors(rng, tmp_path):
    y, p = sigmoid_unit(rng)
    options = {"bootstrap": 20, "decision_threshold": 0.3}
    one = CalibrationReport(y, p, **options)
    two = CalibrationReport(y, p**2 / (p**2 + (1 - p) ** 2), **options)
    for others, count in (((), 1), ((two,), 2)):
        page = page_of(one, tmp_path, others=others, class_names=["ham", "spam"])
        text = page.text.replace("\xa0", " ")
        for name in ("ece", "positive_ece"):
            error = f"{one.rows[name].title}: {100 * one[name].value:.2f} points"
            assert error in text
        titles = [
            x
            for x in page.having("aria-labelledby")
            if x.startswith("reliability-") and "-title" in x
        ]
        assert len(titles) == 2 * count
        assert "decision threshold 0.3" in text
        assert "True class ham" in text or "spam ham" in text


def test_page_of_several_labels_has_a_row_and_a_diagram_for_each(rng, tmp_path):
    p = rng.random((200, 3))
    y = (rng.random((200, 3)) < p ** [1, 2, 4]).astype(int)
    report = CalibrationReport(y, p, multi_label=True, bootstrap=20)
    names = ["joy", "<love>", "fear"]
    page = page_of(report, tmp_path, class_names=names)
    text = page.text.replace("\xa0", " ")
    assert "200 samples, 3 labels" in text
    assert "600 decisions about 3 labels" in text
    section = text[text.index("All 3 labels, the largest error") :]
    found = report.per_class()
    worst = sorted(found, key=lambda c: -found[c]["positive_ece"])
    shown = [section.index(f" {names[c]} ") for c in worst]
    assert shown == sorted(shown)
    for c in worst:
        row = " ".join(
            [
                names[c],
                *(f"{100 * found[c][x]:.1f} %" for x in list(found[c])[:3]),
                f"{100 * found[c]['positive_ece']:.2f}",
            ]
        )
        assert row in re.sub(" +", " ", section)
    titles = " ".join(page.having("aria-labelledby"))
    assert all(f"label-0-{c}-title" in titles for c in range(3))
    wrong = np.flatnonzero(((p > 0.5) != y).ravel())
    surest = wrong[np.argmax(np.abs(p.ravel()[wrong] - 0.5))]
    answer = ("no, but it is true", "yes, but it is not true")
    mistake = (
        f" {surest // 3} {names[surest % 3]} {answer[int(p.ravel()[surest] > 0.5)]}"
    )
    assert mistake in re.sub(" +", " ", text)


def test_no_resamples_no_intervals(rng, tmp_path):
    y, p = classifier(rng, 60)
    one, two = (CalibrationReport(y, x, bootstrap=0) for x in (p, sharpened(p)))
    text = page_of(one, tmp_path, others=two).text
    assert "no difference can be told from chance" in text
    assert "worse" not in text
    assert "bootstrap" not in text


def test_page_stays_small(rng, tmp_path):
    y, p = classifier(rng, 2345)
    one, two = (CalibrationReport(y, x, bootstrap=0) for x in (p, sharpened(p)))
    page = page_of(one, tmp_path, others=[two] * 7)
    assert len(page.source.encode()) < 500_000
    page = page_of(one, tmp_path)
    assert len(page.slider[0]["at"]) == 1000
    wide = rng.dirichlet(np.ones(1000), 40)
    report = CalibrationReport(wide.argmax(-1) // 2, wide, bootstrap=0)
    names = [f"class number {i}" for i in range(1000)]
    page = page_of(report, tmp_path, class_names=names)
    assert len(page.source.encode()) < 100_000


def test_mistakes_are_the_surest_and_keep_their_index(rng, tmp_path):
    y, p = classifier(rng, 60)
    weight = np.ones(60)
    weight[:7] = 0
    report = CalibrationReport(y, p, bootstrap=0, sample_weight=weight)
    images = np.arange(60 * 16).reshape(60, 4, 4)
    page = page_of(
        report, tmp_path, mistakes=5, class_names=["a", "b", "c"], images=images
    )
    wrong = np.flatnonzero((p.argmax(-1) != y) & (weight > 0))
    want = wrong[np.argsort(-p.max(-1)[wrong])][:5]
    shown = page.tagged("img")
    assert [x["alt"] for x in shown] == [f"Image of sample {i}" for i in want]
    drawn = png.Images(images, 60).data_uris(want.tolist())
    assert [x["src"] for x in shown] == drawn
    first = f"Sample {want[0]} True class {'abc'[y[want[0]]]} Predicted"
    assert re.sub(" +", " ", first) in page.text
    assert "mistakes" not in page_of(report, tmp_path, mistakes=0).having("id")


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
def test_images_are_png(rng, channels):
    imread = pytest.importorskip("matplotlib.image").imread
    shape = (3, 5, 7) if channels is None else (3, 5, 7, channels)
    images = rng.integers(0, 256, shape).astype(np.uint8)
    for scaled in (images, images / 255, images.astype("float32") * 4 - 300):
        if scaled is not images and images.max() - images.min() < 255:
            images.flat[:2] = 0, 255
            scaled = images / 255
        (uri,) = png.Images(scaled, 3).data_uris([1])
        data = base64.b64decode(uri.partition(",")[2])
        read = np.rint(255 * imread(io.BytesIO(data))).astype(int)
        want = images[1].squeeze(-1) if channels == 1 else images[1]
        np.testing.assert_array_equal(read, want)


def test_large_images_are_shrunk(rng):
    imread = pytest.importorskip("matplotlib.image").imread
    image = np.full((1, 300, 400, 3), 0.25)
    (uri,) = png.Images(image, 1).data_uris([0])
    read = imread(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert read.shape == (75, 100, 3)
    np.testing.assert_allclose(read, 0.25, atol=0.003)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"class_names": ["a", "b"]}, "`class_names` must be 3 names"),
        ({"class_names": "abc"}, "`class_names` must be 3 names"),
        ({"images": np.zeros((60, 8))}, r"`images` must be of shape \(60, h, w\)"),
        ({"images": np.zeros((59, 8, 8))}, r"`images` must be of shape \(60, h, w\)"),
        ({"images": np.full((60, 2, 2), "x")}, "`images` must be an array of numbers"),
        ({"others": ["report"]}, "`others` must be"),
        (
            {"others": CalibrationReport([0], [[1.0, 0.0]], bootstrap=0)},
            "`other` must be a report",
        ),
        ({"mistakes": -1}, "`mistakes` must be"),
    ],
)
def test_bad_arguments(rng, tmp_path, options, match):
    report = CalibrationReport(*classifier(rng, 60), bootstrap=0)
    with pytest.raises(ValueError, match=match):
        report.to_html(tmp_path / "report.html", **options)
    assert not (tmp_path / "report.html").exists()


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(
        channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
    )
    return linear @ [0.2126, 0.7152, 0.0722]


def series_of(number):
    return [f"s{i}" for i in range(number)]


def test_colours_can_be_told_apart(rng, tmp_path):
    source = page_of(CalibrationReport([0], [[0.9, 0.1]], bootstrap=0), tmp_path).source
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", source, re.DOTALL)[:2]
    )
    series = [light[f"s{i}"].upper() for i in range(7)]
    assert series == list(canvas._COLOURS)
    for scheme in (light, {**light, **dark}):
        for text in ("ink", "muted"):
            for ground in ("paper", "card"):
                pair = sorted(luminance(scheme[x]) for x in (text, ground))
                assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (text, ground)
        for mark in ("right", "wrong"):
            pair = sorted(luminance(scheme[x]) for x in (mark, "card"))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3, mark
        meanings = [scheme[x] for x in ("ink", "right", "wrong", *series_of(7))]
        assert len(set(meanings)) == 10
