"""The section of the page on prediction sets."""

import re

import numpy as np
import pytest

from keras_selcal import CalibrationReport
from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
    evaluate_sets,
)

pytestmark = pytest.mark.backend_free


def draw(n=600, k=4):
    rng = np.random.default_rng(0)
    y = rng.integers(0, k, n)
    return y, 2 * np.eye(k)[y] + rng.normal(size=(n, k))


def section(tmp_path, report, **options):
    """Returns the text of the section, without markup; "" if there is none."""
    page = report.to_html(tmp_path / "a.html", **options).read_text("utf-8")
    found = re.search(r'<section[^>]*id="sets".*?</section>', page, re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", found.group()) if found else ""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace(
        "\N{NARROW NO-BREAK SPACE}", " "
    )


def test_the_page_has_the_figures_of_sets(tmp_path):
    y, z = draw()
    report = CalibrationReport(y, z, from_logits=True, bootstrap=0)
    text = section(tmp_path, report, class_names=["ant", "bee", "cat", "<dog>"])
    one_hot = CalibrationReport(np.eye(4)[y], z, from_logits=True, bootstrap=0)
    assert "class 3" in section(tmp_path, one_hot)
    order = np.random.default_rng(0).permutation(600)
    first, second = order[:300], order[300:]
    q = conformal_threshold(conformal_scores(z[first], y[first], from_logits=True), 0.1)
    figures = evaluate_sets(y[second], conformal_sets(z[second], q, from_logits=True))
    assert f"{100 * figures['coverage']:.1f}" in text
    assert f"{figures['mean_size']:.2f}" in text
    assert f"{100 * figures['singleton_rate']:.1f}" in text
    for value in figures["class_coverage"]:
        assert f"{100 * value:.1f}" in text
    assert "bee" in text
    assert "&lt;dog&gt;" in text
    for told in ("average over all cases", "independently", "shift"):
        assert told in text


def test_pages_of_several_models_have_sets_of_each(tmp_path):
    y, z = draw()
    one, two = (
        CalibrationReport(y, scale * z, from_logits=True, bootstrap=0, name=name)
        for scale, name in ((1, "one"), (3, "two"))
    )
    text = section(tmp_path, one, others=[two])
    assert text.count("one") >= 2
    assert text.count("two") >= 2


def test_what_has_no_sets_has_no_section(tmp_path):
    y, z = draw(80)
    assert not section(tmp_path, CalibrationReport(y, z, from_logits=True, bootstrap=0))
    y, z = draw(200)
    soft = 0.9 * np.eye(4)[y] + 0.025
    for labels, options in ((soft, {}), (np.eye(4)[y], {"multi_label": True})):
        report = CalibrationReport(labels, z, from_logits=True, bootstrap=0, **options)
        assert not section(tmp_path, report)
