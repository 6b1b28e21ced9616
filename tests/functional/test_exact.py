"""Exact metrics against plain loops in float64, closed forms, and properties."""

import itertools
import math

import numpy as np
import pytest
import reference
from keras import ops
from metric_data import data

from keras_selcal import csf as csfs
from keras_selcal import functional as F  # noqa: N812
from keras_selcal._formulas import kernels
from keras_selcal._formulas.binning import uniform_bins
from keras_selcal._predictions.batch import Batch
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._predictions.samples import Samples
from keras_selcal.functional import calibration
from keras_selcal.functional.smooth_ece import smooth_errors
from keras_selcal.losses.kde_crossentropy import kernel_estimate

CSFS = ("msp", "margin", "neg_entropy")


def coarse(n, k, seed=0):
    """Probabilities that tie often, in score and in class."""
    rng = np.random.default_rng([seed, n, k])
    counts = rng.multinomial(4, np.full(k, 1 / k), size=n)
    return rng.integers(0, k, n), counts / 4


def loop_error(p, y, w, num_bins, binning, norm):
    """Bins one by one."""
    if binning == "uniform":
        edges = np.arange(num_bins + 1) / num_bins
        bins = [
            np.flatnonzero(((p > a) | ((a == 0) & (p == 0))) & (p <= b))
            for a, b in itertools.pairwise(edges)
        ]
    else:
        bins = np.array_split(np.argsort(p), num_bins)
    n, total = w.sum(), 0.0
    for b in bins:
        if len(b) == 0:
            continue
        gap = abs(np.average(p[b], weights=w[b]) - np.average(y[b], weights=w[b]))
        share = w[b].sum() / n
        total = {
            "l1": total + share * gap,
            "l2": total + share * gap**2,
            "max": max(total, gap),
        }[norm]
    return math.sqrt(total) if norm == "l2" else total


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize(
    ("n", "k", "num_bins"), [(1, 2, 15), (103, 2, 15), (500, 7, 1)]
)
def test_binned_errors_equal_a_loop_over_bins(n, k, num_bins, binning, norm):
    y, p = data(n, k)
    rng = np.random.default_rng(n)
    w = rng.integers(1, 4, n) if binning == "uniform" else np.ones(n)
    options = {"num_bins": num_bins, "binning": binning, "norm": norm}
    right = (p.argmax(-1) == y) * 1.0
    expected = loop_error(p.max(-1), right, w, num_bins, binning, norm)
    assert F.ece(y, p, **options, sample_weight=w) == pytest.approx(expected, abs=1e-12)
    event = F.calibration_error(p.max(-1), right, **options, sample_weight=w)
    assert event == pytest.approx(expected, abs=1e-12)

    each = F.cwece(y, p, **options, sample_weight=w, per_class=True)
    classes = [
        loop_error(p[:, c], (y == c) * 1.0, w, num_bins, binning, norm)
        for c in range(k)
    ]
    np.testing.assert_allclose(each, classes, atol=1e-12)
    mean = F.cwece(y, p, **options, sample_weight=w)
    assert mean == pytest.approx(np.mean(classes), abs=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("num_bins", [1, 3, 10, 15, 49, 100])
def test_edges_belong_to_the_bin_below(num_bins, dtype):
    edges = (np.arange(num_bins + 1) / num_bins).astype(dtype)
    # Outcomes alternate, so that a sample in the wrong bin changes the sum of gaps.
    outcome = np.arange(num_bins + 1) % 2
    index = np.maximum(np.arange(num_bins + 1) - 1, 0)
    gap = np.bincount(index, edges.astype("float64") - outcome)
    expected = np.abs(gap).sum() / (num_bins + 1)
    assert F.calibration_error(edges, outcome, num_bins) == pytest.approx(expected)


def test_the_first_of_equal_classes_is_the_predicted_one():
    p = np.full((4, 4), 0.25)
    assert F.ece(np.arange(4), p) == 0.0
    assert F.ece(np.zeros(4, int), p) == 0.75
    assert F.ece(np.full(4, 3), p) == 0.25


def test_tied_scores_at_an_adaptive_cut_are_shared_out():
    # Two runs of 1.5 samples would be 2 and 1: the tied three split 2 : 1 evenly.
    p, y = np.full(3, 0.5), np.array([1, 0, 0])
    runs = [abs(2 * (0.5 - 1 / 3)), abs(0.5 - 1 / 3)]
    for order in ([0, 1, 2], [2, 1, 0]):
        error = F.calibration_error(p, y[order], num_bins=2, binning="adaptive")
        assert error == pytest.approx(sum(runs) / 3)


def test_published_conventions():
    y, p = data(200, 3)
    confidence, right = p.max(-1), (p.argmax(-1) == y) * 1.0
    edges = np.interp(np.linspace(0, 200, 16), np.arange(200), np.sort(confidence))
    total = 0.0
    for a, b in itertools.pairwise(edges):
        inside = (confidence > a) & (confidence <= b)
        total += abs((confidence - right)[inside].sum()) / 200
    rule = {"binning": "adaptive", "binning_rule": "focal_calibration"}
    assert F.ece(y, p, **rule) == pytest.approx(total, abs=1e-12)
    assert F.ece(y, p, **rule) != F.ece(y, p, binning="adaptive")

    # [0, 0.5) and [0.5, 1] keep apart what (0, 0.5] holds together.
    p2 = np.array([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]])
    labels = np.array([0, 1])
    assert F.ece(labels, p2, num_bins=2) == pytest.approx(abs(-0.5 + 0.4) / 2)
    left = F.ece(labels, p2, num_bins=2, binning_rule="left_closed")
    assert left == pytest.approx((0.5 + 0.4) / 2)
    left = F.cwece(labels, p2, num_bins=2, binning_rule="left_closed", per_class=True)
    assert left[0] == pytest.approx((0.5 + 0.4) / 2)


def expected_prefix_risks(score, loss, draws=4000):
    """Mean over random orders of the ties."""
    rng = np.random.default_rng(0)
    n = len(score)
    noise = rng.random((draws, n))
    order = np.lexsort((noise, np.broadcast_to(-score, (draws, n))))
    return (np.cumsum(loss[order], -1) / np.arange(1, n + 1)).mean(0)


@pytest.mark.parametrize("csf", CSFS)
def test_aurc_is_the_mean_of_prefix_risks(csf):
    y, p = data(300, 5)
    score, loss = reference.score(p, csf), (p.argmax(-1) != y) * 1.0
    order = np.argsort(-score)
    risks = np.cumsum(loss[order]) / np.arange(1, 301)
    assert F.aurc(y, p, csf) == pytest.approx(risks.mean(), rel=1e-9)
    alpha = reference.aurc_weights(score)
    assert F.aurc(y, p, csf) == pytest.approx((alpha * loss).mean(), rel=1e-9)
    best = np.cumsum(np.sort(loss)) / np.arange(1, 301)
    expected = risks.mean() - best.mean()
    assert F.excess_aurc(y, p, csf) == pytest.approx(expected, rel=1e-8)

    y, p = coarse(12, 3)
    score, loss = reference.score(p, csf), (p.argmax(-1) != y) * 1.0
    mean = expected_prefix_risks(score.round(12), loss).mean()
    assert F.aurc(y, p.round(12), csf) == pytest.approx(mean, abs=0.01)


@pytest.mark.parametrize("loss", ["crossentropy", "brier"])
def test_other_losses_are_ranked_as_well(loss):
    y, p = data(100, 4)
    p_y = p[np.arange(100), y]
    values = (
        -np.log(p_y) if loss == "crossentropy" else ((p - np.eye(4)[y]) ** 2).sum(1)
    )
    order = np.argsort(-p.max(-1))
    risks = np.cumsum(values[order]) / np.arange(1, 101)
    assert F.aurc(y, p, loss=loss) == pytest.approx(risks.mean(), rel=1e-9)
    curve = F.risk_coverage_curve(y, p, loss=loss)
    np.testing.assert_allclose(curve.risk, risks, rtol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 101) / 100)
    np.testing.assert_allclose(curve.threshold, np.sort(p.max(-1))[::-1])
    at = F.risk_at_coverage(y, p, 0.37, loss=loss)
    assert at == pytest.approx(risks[36], rel=1e-12)
    mean = {"crossentropy": F.nll, "brier": F.brier}[loss]
    assert mean(y, p) == pytest.approx(values.mean(), rel=1e-12)


def test_selective_figures_on_ties():
    # Scores .9 .8 .8 .6, the wrong answers among the ties and last.
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.2, 0.8], [0.6, 0.4]])
    y = np.array([0, 0, 0, 1])
    curve = F.risk_coverage_curve(y, p)
    np.testing.assert_allclose(curve.coverage, [0.25, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0.0, 1 / 3, 0.5])
    assert F.risk_at_coverage(y, p, 0.5) == pytest.approx(0.5 / 2)
    assert F.risk_at_coverage(y, p, 0.125) == 0.0
    assert F.coverage_at_risk(y, p, 0.25) == 0.25
    assert F.coverage_at_risk(y, p, 1 / 3) == 0.75
    assert F.coverage_at_risk(y, p, 0.5) == 1.0
    assert F.failure_auroc(y, p) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    expected = (1 - 0.875) * 0.25 + 0.5 * 0.25
    assert F.augrc(y, p) == pytest.approx(expected)
    assert F.coverage_at_risk(1 - y, p[:1].repeat(4, 0), 0.1) == 0.0


def test_failure_auroc_equals_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    y, p = coarse(200, 3)
    w = np.random.default_rng(0).random(200)
    right = p.argmax(-1) == y
    expected = metrics.roc_auc_score(right, p.max(-1), sample_weight=w)
    assert F.failure_auroc(y, p, sample_weight=w) == pytest.approx(expected, rel=1e-12)


def test_augrc_follows_from_auroc_and_accuracy():
    y, p = data(150, 4)
    a = (p.argmax(-1) == y).mean()
    expected = (1 - F.failure_auroc(y, p)) * a * (1 - a) + 0.5 * (1 - a) ** 2
    assert F.augrc(y, p) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("csf", CSFS)
def test_ranking_by_logits_does_not_saturate(csf):
    # The surer, the more often wrong: from p, all would tie.
    gaps = np.linspace(50, 700, 40)
    z = np.stack([gaps, np.zeros(40), np.full(40, -3.0)], -1)
    y = (np.arange(40) >= 35) * 1
    loss = np.cumsum(y[::-1]) / np.arange(1, 41)
    assert F.aurc(y, z, csf, from_logits=True) == pytest.approx(loss.mean(), rel=1e-9)
    if csf != "neg_entropy":
        assert F.aurc(y, reference.softmax(z), csf) == pytest.approx(5 / 40)


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("k", [2, 10])
def test_log_odds_of_the_scores(csf, k):
    score = csfs.get(csf)
    z = np.random.default_rng(k).normal(size=(50, k), scale=3)
    log_p = reference.log_softmax(z)
    u = reference.unit_score(np.exp(log_p), csf)
    expected = np.log(u) - np.log1p(-u)
    exact = score.log_odds_from_log_probabilities(log_p, np)
    np.testing.assert_allclose(exact, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(score.log_odds(np.exp(log_p), np), expected, rtol=1e-9)
    streamed = score.log_odds_from_log_probabilities(
        ops.convert_to_tensor(log_p, dtype="float32")
    )
    np.testing.assert_allclose(ops.convert_to_numpy(streamed), expected, 1e-4, 1e-4)
    # Far beyond what a float32 probability can tell from 1.
    far = np.zeros((2, k))
    far[:, 0] = 200, 300
    far = reference.log_softmax(far).astype("float32")
    low, high = ops.convert_to_numpy(
        score.log_odds_from_log_probabilities(ops.convert_to_tensor(far))
    )
    assert 190 < low < 210
    assert high - low == pytest.approx(100, abs=0.5)


def test_brier_decomposition():
    # Two distinct forecasts, in bins of their own.
    p = np.repeat([[0.8, 0.2], [0.3, 0.7]], [10, 20], axis=0)
    y = np.array([0] * 7 + [1] * 3 + [0] * 9 + [1] * 11)
    calibration = 2 * (10 * (0.8 - 0.7) ** 2 + 20 * (0.3 - 0.45) ** 2) / 30
    refinement = 2 * (10 * 0.7 * 0.3 + 20 * 0.45 * 0.55) / 30
    parts = F.brier_decomposition(y, p)
    assert parts == pytest.approx((calibration, refinement))
    assert sum(parts) == pytest.approx(F.brier(y, p))


def test_reliability_curve_sums_to_ece():
    y, p = data(400, 5)
    w = np.random.default_rng(0).integers(0, 3, 400)
    for binning in ("uniform", "adaptive"):
        curve = F.reliability_curve(y, p, binning=binning, sample_weight=w)
        full = curve.share > 0
        gap = np.abs(curve.confidence - curve.accuracy)[full]
        expected = F.ece(y, p, binning=binning, sample_weight=w)
        assert (curve.share[full] * gap).sum() == pytest.approx(expected)
        assert curve.share.sum() == pytest.approx(1.0)
        assert np.isnan(curve.accuracy[~full]).all()
        inside = (curve.confidence >= curve.edges[:-1] - 1e-12) & (
            curve.confidence <= curve.edges[1:] + 1e-12
        )
        assert inside[full].all()


@pytest.mark.backend_free
def test_smooth_ece_of_a_row_of_nan_is_nan_and_changes_no_other(rng):
    p, residual = rng.uniform(size=50), rng.normal(size=(2, 50)) / 50
    expected = smooth_errors(p, residual[:1], 1000, 50)[0]
    residual[1] = np.nan
    found, missing = smooth_errors(p, residual, 1000, 50)
    assert found == pytest.approx(expected, abs=1e-12)
    assert np.isnan(missing)


def test_smooth_ece_solves_its_equation():
    y, p = data(60, 4, seed=3)
    c, right = p.max(-1), p.argmax(-1) == y
    sigma = F.smooth_ece(y, p)
    # The reflected kernel by its images, integrated at midpoints.
    t = (np.arange(4000) + 0.5) / 4000
    images = np.concatenate([s * c + 2 * m for m in range(-3, 4) for s in (1, -1)])
    kernel = np.exp(-0.5 * ((t[:, None] - images) / sigma) ** 2)
    kernel /= sigma * np.sqrt(2 * np.pi)
    residual = np.tile(c - right, 14) / 60
    assert np.abs(kernel @ residual).mean() == pytest.approx(sigma, rel=1e-4)
    one = np.array([[1.0, 0.0]] * 3)
    assert F.smooth_ece([0, 0, 0], one) < 1e-4
    assert F.smooth_ece([1, 1, 1], one) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", kernels.KINDS)
def test_kde_ece_is_the_mean_of_leave_one_out_errors(kind, monkeypatch):
    # Two rows a block, the last block short, whatever the kind.
    monkeypatch.setattr(kernels, "MOST_ENTRIES", 44)
    y, p = data(21, 3, dtype="float32")
    log_p = np.log(p.astype("float64"))
    expected = reference.kde_errors(p.astype("float64"), log_p, y, kind, 0.1).mean()
    assert F.kde_ece(y, p, kind=kind, bandwidth=0.1) == pytest.approx(
        expected, rel=1e-4
    )


def test_fillers_of_a_block_of_margins_have_no_likelihood(monkeypatch):
    y, p = data(21, 3, dtype="float32")
    batch = Batch.of(y, p, Outputs())
    whole = float(kernel_estimate(batch, "marginal").log_likelihood(0.1)[0])
    # Two margins a block: the last one has a filler.
    monkeypatch.setattr(kernels, "MOST_ENTRIES", 2 * 21 * 21)
    blocks = float(kernel_estimate(batch, "marginal").log_likelihood(0.1)[0])
    assert blocks == pytest.approx(whole, rel=1e-5)


def test_kde_ece_chooses_its_bandwidth():
    y, p = data(21, 3, dtype="float32")
    estimate = kernel_estimate(Batch.of(y, p, Outputs()), "canonical")
    fit = [float(estimate.log_likelihood(h)[0]) for h in kernels.BANDWIDTHS]
    h = kernels.BANDWIDTHS[int(np.argmax(fit))]
    assert F.kde_ece(y, p) == pytest.approx(F.kde_ece(y, p, bandwidth=h), rel=1e-4)


def test_a_loss_without_bound_counts_where_it_is_accepted():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [1.0, 0.0]])
    y = np.array([0, 0, 1])
    assert F.nll(y, p) == math.inf
    assert F.risk_at_coverage(y, p, 0.5, csf=_first_two, loss="crossentropy") < 0.2
    assert (
        F.risk_at_coverage(y, p, 1.0, csf=_first_two, loss="crossentropy") == math.inf
    )


def _first_two(p):
    return ops.where(p[..., 0] < 1.0, p[..., 0], 0.0)


def test_selective_fallback_lowers_the_binned_ece():
    # A score that tells right from wrong, with confidences that do not fit.
    _, p = data(500, 4)
    score = p.max(-1)
    y = np.where(score >= 0.55, p.argmax(-1), (p.argmax(-1) + 1) % 4)
    fallback = F.selective_fallback(y, p, threshold=0.55)
    np.testing.assert_array_equal(fallback[score >= 0.55], np.eye(4)[y[score >= 0.55]])
    assert (fallback[score < 0.55] == 0.25).all()
    for binning in ("uniform", "adaptive"):
        before, after = (
            [F.ece(y, q, num_bins=m, binning=binning) for m in range(1, 31)]
            for q in (p, fallback)
        )
        assert max(after) < max(before)


@pytest.mark.backend_free
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", [None, "left_closed"])
@pytest.mark.parametrize("num_bins", [1, 4])
def test_class_sums_are_those_of_every_entry(
    soft, weighted, rule, num_bins, monkeypatch
):
    """The first bin, in which most entries lie, is summed apart from the others."""
    n, k = 60, 20
    # Blocks of 17 rows; the last one has 9.
    monkeypatch.setattr(calibration, "_CACHED_ENTRIES", 17 * k)
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.full(k, 0.1), n).astype("float32")
    p[0], p[1] = np.eye(k)[3], np.repeat([0.25, 0.0], [4, 16])
    p[2] = np.nextafter(p[0], np.float32(2))  # above 1, by rounding
    labels = rng.dirichlet(np.full(k, 0.1), n) if soft else rng.integers(0, k, n)
    w = rng.random(n) * 3 if weighted else None
    samples = Samples.given(labels, p, w)
    gap, mass = calibration.class_sums(samples, num_bins, "uniform", rule)
    index = uniform_bins(p, num_bins, rule is not None)
    inside = index[:, :, None] == np.arange(num_bins)
    counts = np.ones(n) if w is None else w
    y = labels if soft else np.eye(k)[labels]
    np.testing.assert_allclose(mass, np.einsum("i,icb->cb", counts, inside))
    expected = np.einsum("i,ic,icb->cb", counts, p - y, inside)
    np.testing.assert_allclose(gap, expected, atol=1e-12)
