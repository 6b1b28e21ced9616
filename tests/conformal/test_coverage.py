"""Coverage of prediction sets: by simulation, weighted, grouped, on real logits."""

import math

import numpy as np
import pytest
from classifier_data import KINDS, draw, given_probabilities
from real_data import load_logits
from reference import softmax
from scipy.stats import betabinom

from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
)

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize("kind", KINDS)
def test_the_sets_of_the_calibration_samples_cover_as_many_as_asked(kind):
    x, y = draw(999, 5)
    options = {"method": kind[0], "seed": kind[1], "from_logits": True}
    q = conformal_threshold(conformal_scores(x, y, **options), 0.1)
    covered = conformal_sets(x, q, **options)[np.arange(999), y]
    assert covered.sum() == 900  # also the sample whose score is the threshold


@pytest.mark.parametrize("kind", KINDS)
def test_coverage_by_simulation(kind):
    """Over draws of calibration and new samples, coverage is 1 − α."""
    n, new, draws, alpha = 99, 50, 200, 0.1
    options = {"method": kind[0], "seed": kind[1], "from_logits": True}
    x, y = draw(draws * (n + new), 6, seed=1, signal=1.5)
    # All draws at once: each is a category with its own threshold.
    scores = conformal_scores(x, y, **options).reshape(draws, n + new)
    category = np.repeat(np.arange(draws), n)
    q = conformal_threshold(scores[:, :n], alpha, categories=category)
    covered = (scores[:, n:] <= q[:, None]).sum(axis=1)
    # q is the 90th of 99: coverage given the calibration samples is Beta(90, 10).
    law = betabinom(new, 90, 10)
    assert law.mean() == pytest.approx(new * (1 - alpha))
    assert abs(covered.mean() - law.mean()) < 4 * law.std() / math.sqrt(draws)


def test_class_conditional_thresholds_cover_each_class_by_simulation():
    rng = np.random.default_rng(0)
    k, n, alpha = 4, 20_000, 0.1
    # Classes of unequal difficulty.
    y = rng.integers(0, k, 2 * n)
    z = (0.5 + y)[:, None] * np.eye(k)[y] + rng.normal(size=(2 * n, k))
    scores = conformal_scores(z, y, from_logits=True)
    marginal = conformal_threshold(scores[:n], alpha)
    each = conformal_threshold(scores[:n], alpha, categories=y[:n])
    assert each.shape == (k,)

    def coverage(q):
        sets = conformal_sets(z[n:], q, from_logits=True)
        covered = sets[np.arange(n), y[n:]]
        return np.array([covered[y[n:] == c].mean() for c in range(k)])

    tolerance = 5 * math.sqrt(2 * alpha * (1 - alpha) * k / n)
    assert np.abs(coverage(each) - 0.9).max() < tolerance
    assert np.abs(coverage(marginal) - 0.9).max() > 2 * tolerance
    for c in range(k):
        expected = conformal_threshold(scores[:n][y[:n] == c], alpha)
        assert each[c] == expected


def test_weights():
    rng = np.random.default_rng(0)
    s = rng.random(50)
    plain = conformal_threshold(s, 0.1)
    assert conformal_threshold(s, 0.1, sample_weight=np.full(50, 0.3)) == plain
    padded = np.concatenate([s, rng.random(30) + 5])
    mask = np.arange(80) < 50
    assert conformal_threshold(padded, 0.1, sample_weight=mask) == plain
    w = rng.random(50)
    order = np.argsort(s)
    share = np.cumsum(w[order]) / (w.sum() + w.max())
    expected = s[order][np.flatnonzero(share >= 0.8)[0]]
    assert conformal_threshold(s, 0.2, sample_weight=w) == expected


def test_weights_hold_coverage_under_a_known_shift():
    """Calibration on easy samples, use on difficult ones: Beta(2, 1) to uniform."""
    rng = np.random.default_rng(0)
    difficulty = np.sqrt(rng.random(20_000))  # density 2 t
    s = rng.random(20_000) ** (1 / (0.2 + 3 * difficulty))
    new = rng.random(20_000) * 0.95 + 0.05
    s_new = rng.random(20_000) ** (1 / (0.2 + 3 * new))
    keep = difficulty > 0.05
    w = np.where(keep, 1 / np.maximum(difficulty, 0.05), 0)
    plain = conformal_threshold(s, 0.1)
    weighted = conformal_threshold(s, 0.1, sample_weight=w)
    assert (s_new <= weighted).mean() == pytest.approx(0.9, abs=0.012)
    assert weighted < plain


def test_groups_count_as_one_sample_each():
    rng = np.random.default_rng(0)
    s = rng.random(40)
    group = np.repeat(np.arange(10), 4)
    # Each of 10 groups has a mass of 1, and so has the new one.
    order = np.argsort(s)
    mass = np.cumsum(np.full(40, 0.25)) / 11
    expected = s[order][np.flatnonzero(mass >= 0.8 - 1e-12)[0]]
    names = np.array(list("abcdefghij"))[group]
    assert conformal_threshold(s, 0.2, groups=names) == expected
    # Groups of one sample change nothing; copies of a sample in its group neither.
    plain = conformal_threshold(s, 0.2)
    assert conformal_threshold(s, 0.2, groups=np.arange(40)) == plain
    copies = np.repeat(np.arange(40), rng.integers(1, 5, 40))
    assert conformal_threshold(s[copies], 0.2, groups=copies) == plain
    with pytest.warns(UserWarning, match="10 calibration groups are too few"):
        assert conformal_threshold(s, 0.05, groups=group) == math.inf


def test_groups_hold_coverage_by_simulation():
    """Scores that are equal within a group: counted singly, coverage is too low."""
    rng = np.random.default_rng(0)
    draws, count = 1500, 9
    size = rng.integers(1, 20, (draws, count))
    s = rng.random((draws, count))
    new = rng.random(draws)
    single, grouped = [], []
    for i in range(draws):
        scores = np.repeat(s[i], size[i])
        groups = np.repeat(np.arange(count), size[i])
        single.append(new[i] <= conformal_threshold(scores, 0.1))
        grouped.append(new[i] <= conformal_threshold(scores, 0.1, groups=groups))
    assert np.mean(grouped) > 0.9 - 4 * math.sqrt(0.09 / draws)
    assert np.mean(single) < 0.9 - 4 * math.sqrt(0.09 / draws)


def test_a_group_has_the_mean_of_its_weights():
    rng = np.random.default_rng(0)
    s, w = rng.random((2, 40))
    options = {"groups": np.arange(40), "sample_weight": w}
    weighted = conformal_threshold(s, 0.2, sample_weight=w)
    assert weighted != conformal_threshold(s, 0.2)
    assert conformal_threshold(s, 0.2, **options) == weighted
    # Copies of a sample in its group change nothing, nor does padding.
    copies = np.repeat(np.arange(40), rng.integers(1, 5, 40))
    padding = np.arange(len(copies) + 30) < len(copies)
    s, w, groups = (np.append(x[copies], x[:30]) for x in (s, w, np.arange(40)))
    options = {"groups": groups, "sample_weight": w * padding}
    assert conformal_threshold(s, 0.2, **options) == weighted
    # The length of a group as its weight makes each of its samples count once.
    s, groups = s[padding], groups[padding]
    lengths = np.bincount(groups)[groups]
    total = (len(s) + lengths.max()) * (1 - 1e-12)
    expected = np.sort(s)[math.ceil(0.8 * total) - 1]
    found = conformal_threshold(s, 0.2, groups=groups, sample_weight=lengths)
    assert found == expected


def test_weighted_groups_hold_coverage_under_a_known_shift():
    """Half of the groups are difficult at first, and 16 of 17 later."""
    rng = np.random.default_rng(0)
    difficult = rng.integers(0, 2, 4000)
    s = rng.random((4000, 3)) + difficult[:, None]
    w = np.repeat(np.where(difficult, 4, 0.25), 3)
    groups = np.repeat(np.arange(4000), 3)
    q = conformal_threshold(s.ravel(), 0.1, groups=groups, sample_weight=w)
    new = rng.random(20_000) + (rng.random(20_000) < 16 / 17)
    assert (new <= q).mean() == pytest.approx(0.9, abs=0.012)


# Real logits
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_on_real_logits(kind):
    data = load_logits("markus93_resnet110_c10_logits.npz")
    options = {"method": kind[0], "seed": kind[1], "from_logits": True}
    scores = conformal_scores(data["val_logits"], data["val_labels"], **options)
    q = conformal_threshold(scores, 0.05)
    test = conformal_scores(data["test_logits"], data["test_labels"], **options)
    n = len(scores)
    rank = math.ceil((n + 1) * 0.95)
    law = betabinom(len(test), rank, n + 1 - rank)
    # Two-sided at 1e-4; ties at saturated scores can only add coverage.
    assert (test <= q).sum() >= law.ppf(1e-4)
    assert (test <= q).sum() <= law.ppf(1 - 1e-4) + (test == q).sum()


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_lac_equals_mapie(alpha):
    classification = pytest.importorskip("mapie.classification")
    x, y = draw(800, 5)
    p = softmax(x.astype("float64"))
    mapie = classification.SplitConformalClassifier(
        given_probabilities(5),
        confidence_level=1 - alpha,
        conformity_score="lac",
        prefit=True,
    ).conformalize(p[:400], y[:400])
    _, theirs = mapie.predict_set(p[400:])
    q = conformal_threshold(conformal_scores(p[:400], y[:400]), alpha)
    np.testing.assert_array_equal(conformal_sets(p[400:], q), theirs[:, :, 0])
