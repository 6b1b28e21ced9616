"""The words and numbers of a report page."""

import re

import numpy as np
import pytest
from report_page import classifier, number, page_of

from keras_selcal import CalibrationReport, functional
from keras_selcal.functional.reliability import wilson
from keras_selcal.report.html import numbers, words
from keras_selcal.report.statistics import chance_ece
from keras_selcal.selective.bounds import shortest_above

pytestmark = pytest.mark.backend_free


def test_thresholds_are_short_numbers_in_between():
    assert shortest_above(0.3, 0.9) == "0.900"
    assert shortest_above(-np.inf, 0.25) == "0.250"
    assert shortest_above(-0.0012341, -0.001234) == "-0.001234"
    low, high = 1 - 2**-52, 1 - 2**-53
    assert low < float(shortest_above(low, high)) <= high


def test_percentages_are_never_0_or_100_for_what_is_not():
    for share in (1e-9, 3e-5, 0.0004, 0.5, 0.9999, 1 - 1e-8):
        assert 0 < number(numbers.percent(share)) < 100
    assert numbers.percent(0.125, 1) == numbers.percent(0.125 + 1e-15, 1)
    assert numbers.percents(0.99911, 0.99912) == ["99.911\xa0%", "99.912\xa0%"]


@pytest.mark.parametrize(
    ("sharpness", "answer"),
    [(1.0, "Yes"), (3.0, "too confident"), (0.4, "too cautious")],
)
def test_words_tell_how_the_confidence_is(sharpness, answer):
    rng = np.random.default_rng(1)
    report = CalibrationReport(*classifier(rng, 2000, 3, sharpness), bootstrap=50)
    card = words.glance(report)[1]
    assert answer in card.answer
    assert ("When it states" in card.words) == (sharpness != 1)


def test_words_tell_both_directions(rng):
    c = np.repeat([0.65, 0.95], 1000)
    right = rng.random(2000) < np.repeat([0.8, 0.8], 1000)
    report = CalibrationReport(1 - right, np.stack([c, 1 - c], -1), bootstrap=20)
    card = words.glance(report)[1]
    assert card.answer == "No: overconfident in some cases, underconfident in others"
    assert card.words.count("When it states") == 2


def test_chance_explains_what_it_should(rng):
    # An honest model is suspected in 5 % of cases: in 11 of 100 or more with a
    # probability of 1 %.
    suspected = 0
    for seed in range(100):
        y, p = classifier(rng, 200)
        each = (p.max(-1), p.argmax(-1) == y, np.ones(200), np.arange(200))
        chance = chance_ece(*each, num_bins=15, level=0.95, seed=seed)
        suspected += functional.ece(y, p) > chance
    assert 0 < suspected <= 10
    report = CalibrationReport(*classifier(rng, 2000, 3, 1.25), bootstrap=0)
    samples = report.samples
    chance = chance_ece(
        *samples.event("top_label"),
        samples.counts,
        report.unit,
        num_bins=15,
        level=0.95,
        seed=0,
    )
    assert 1 < report["ece"].value / chance < 2
    assert "overconfident" in words.glance(report)[1].answer
    few = CalibrationReport(*classifier(rng, 20), bootstrap=0)
    assert words.glance(few)[1].answer == "Too few cases to tell"


def test_wilson_holds_the_share(rng):
    for share in (0.03, 0.5, 0.98):
        seen = rng.binomial(40, share, 4000) / 40
        low, high = wilson(seen, np.full(4000, 40.0), 0.95)
        assert 0.92 < np.mean((low <= share) & (share <= high)) < 0.985


@pytest.mark.parametrize(
    ("case", "said", "unsaid"),
    [
        ("one", "The model is right in the one case.", "mistakes can"),
        (
            "right",
            "right in all 20 cases. With 95 % confidence, it is wrong",
            "of its answers are wrong",
        ),
        ("wrong", "It was always wrong", "Does it know when it is wrong? No"),
        ("nan", "there are no metrics. In sample 4 the prediction", "How much should"),
        ("score", "a confidence score is NaN", "How much should"),
    ],
)
def test_degenerate_data_reads_sensibly(rng, tmp_path, case, said, unsaid):
    p = rng.dirichlet(np.full(3, 5.0), 20)
    p = np.sort(p)[:, ::-1]
    y, options = np.zeros(20, int), {}
    if case == "one":
        p, y = p[:1], y[:1]
    elif case == "wrong":
        y = y + 2
    elif case == "nan":
        p = p.copy()
        p[4, 1] = np.nan
    elif case == "score":
        y[:4] = 1
        options = {"csf": lambda p: p[..., 0] * np.nan}
    report = CalibrationReport(y, p, bootstrap=10, **options)
    text = page_of(report, tmp_path).text.replace("\xa0", " ")
    assert said in text
    assert unsaid not in text
    assert "nan" not in re.sub("NaN", "", text).lower().split()
