"""Plots show the numbers of `functional`: bars, lines, whiskers and marks."""

import numpy as np
import pytest
import reference
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plot_data import (
    LOGITS,
    PROBABILITIES,
    SCORES,
    WEIGHT,
    K,
    N,
    Y,
    legend,
    line,
    marks,
    stairs,
    wilson,
)

from keras_selcal import (
    functional,
    plots,
)

pytestmark = pytest.mark.backend_free
CORRECT = PROBABILITIES.argmax(-1) == Y


def bars(ax, label):
    (found,) = (bars for bars in ax.containers if bars.get_label() == label)
    return found


# Reliability diagram
@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_reliability_bars_are_the_curve(binning, weight, ax):
    arguments = {"num_bins": 10, "binning": binning, "sample_weight": weight}
    plots.reliability_diagram(Y, PROBABILITIES, **arguments, ax=ax)
    curve = functional.reliability_curve(Y, PROBABILITIES, **arguments)
    full = curve.share > 0
    drawn = bars(ax, "accuracy in the bin")
    np.testing.assert_allclose(
        [bar.get_height() for bar in drawn], curve.accuracy[full]
    )
    np.testing.assert_allclose([bar.get_x() for bar in drawn], curve.edges[:-1][full])
    confidence = marks(ax, "mean confidence")
    np.testing.assert_allclose(confidence[:, 0, 1], curve.confidence[full])
    np.testing.assert_allclose(confidence[:, 1, 0], curve.edges[1:][full])
    ece = functional.ece(Y, PROBABILITIES, **arguments)
    kind = "ECE" if binning == "uniform" else "adaptive ECE"
    assert ax.get_title() == f"{kind} = {ece:.3g}"


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_reliability_counts_are_seen(binning, weight, ax):
    plots.reliability_diagram(
        Y,
        LOGITS,
        num_bins=7,
        binning=binning,
        from_logits=True,
        sample_weight=weight,
        ax=ax,
    )
    if binning == "uniform":
        mass, _ = np.histogram(SCORES, 7, (0, 1), weights=weight)
        expected = mass * N / mass.sum()
    else:
        total = N if weight is None else weight.sum()
        runs = total // 7 + (np.arange(7) < total % 7)
        expected = runs * N / total
    expected = expected[expected > 0]
    numbers = [int(text.get_text()) for text in ax.texts]
    assert numbers == np.rint(expected).tolist()
    hanging = bars(ax, "samples in the bin (number below)")
    depth = -np.array([bar.get_height() for bar in hanging])
    np.testing.assert_allclose(depth / depth.max(), expected / expected.max())


@pytest.mark.parametrize("weighted", [False, True])
def test_reliability_whiskers_are_wilson_intervals(weighted, ax):
    weight = WEIGHT if weighted else np.ones(N)
    plots.reliability_diagram(
        Y,
        PROBABILITIES,
        num_bins=5,
        sample_weight=WEIGHT if weighted else None,
        confidence_level=0.9,
        ax=ax,
    )
    whiskers = marks(ax, "90 % interval")
    index = np.ceil(SCORES * 5) - 1
    for whisker, b in zip(whiskers, np.unique(index), strict=True):
        w, right = weight[index == b], CORRECT[index == b]
        m = w.sum() ** 2 / (w**2).sum()
        expected = wilson(m * np.average(right, weights=w), m, 0.9)
        np.testing.assert_allclose(whisker[:, 1], expected)


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize("n", [1, 8])
def test_reliability_whiskers_of_bins_that_are_all_right_or_all_wrong(n, binning, ax):
    p = np.repeat([[0.9, 0.1], [0.3, 0.7]], n, axis=0)
    # Class 0 is right in the bin at 0.9, and wrong in the bin at 0.7.
    plots.reliability_diagram(
        np.zeros(2 * n), p, num_bins=2 if binning == "adaptive" else 10, ax=ax
    )
    whiskers = marks(ax, "95 % interval")[:, :, 1]
    low, high = wilson(0, n)
    expected = [[low, high], [1 - high, 1 - low]]
    if binning == "uniform":
        np.testing.assert_allclose(whiskers, expected, atol=1e-9)
    assert np.all(whiskers[:, 1] - whiskers[:, 0] > 0.3)


def test_reliability_without_confidence_level_has_no_whiskers(ax):
    plots.reliability_diagram(Y, PROBABILITIES, confidence_level=None, ax=ax)
    assert not any("interval" in text for text in legend(ax))


def test_reliability_of_several_models_side_by_side():
    models = {"sharp": LOGITS, "flat": LOGITS / 4}
    drawn = plots.reliability_diagram(Y, models, from_logits=True)
    assert drawn.shape == (2,)
    for ax, (name, logits) in zip(drawn, models.items(), strict=True):
        ece = functional.ece(Y, logits, from_logits=True)
        assert ax.get_title() == f"{name}\nECE = {ece:.3g}"
    given = Figure().subplots(1, 2)
    again = plots.reliability_diagram(Y, models, from_logits=True, ax=given)
    assert list(again) == list(given)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_reliability_of_hardly_any_samples(n, binning, ax):
    p = np.array([[1.0, 0.0], [0.5, 0.5]])[:n]
    plots.reliability_diagram([0, 1][:n], p, num_bins=1, binning=binning, ax=ax)
    FigureCanvasAgg(ax.figure).draw()


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_gaps_reach_from_accuracy_to_confidence(binning, ax):
    cautious = reference.softmax(LOGITS / 3)
    curve = functional.reliability_curve(Y, cautious, 10, binning=binning)
    plots.reliability_gaps(curve, ax=ax)
    full = curve.share > 0
    gap = (curve.confidence - curve.accuracy)[full]
    assert gap.min() < 0 < gap.max()
    drawn = bars(ax, "accuracy in the bin")
    np.testing.assert_allclose(
        [bar.get_height() for bar in drawn], curve.accuracy[full]
    )
    for side, words in ((gap > 0, "overconfident"), (gap < 0, "underconfident")):
        drawn = bars(ax, f"gap to the mean confidence: {words}")
        np.testing.assert_allclose(
            [bar.get_height() for bar in drawn], np.where(side, gap, 0)
        )
        np.testing.assert_allclose([bar.get_y() for bar in drawn], curve.accuracy[full])
    ece = functional.ece(Y, cautious, 10, binning=binning)
    assert ax.get_title() == f"ECE = {ece:.3g}"


def test_gaps_without_shares_have_no_ece():
    curve = functional.reliability_curve(Y, PROBABILITIES, 10)
    unknown = curve._replace(share=np.full(10, np.nan))
    axes = plots.reliability_gaps({"ours": curve, "theirs": unknown})
    assert axes[0].get_title().startswith("ours\nECE = ")
    assert axes[1].get_title() == "theirs"


SPAM = 1 / (1 + np.exp(-LOGITS[:, 0] / 2))
IS_SPAM = (np.random.default_rng(2).random(N) < SPAM**2).astype(int)


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
def test_positive_class_diagram_is_the_calibration_curve_of_scikit_learn(binning, ax):
    from sklearn.calibration import calibration_curve

    plots.reliability_diagram(
        IS_SPAM, SPAM, num_bins=5, binning=binning, kind="positive", ax=ax
    )
    strategy = "uniform" if binning == "uniform" else "quantile"
    frequency, mean = calibration_curve(IS_SPAM, SPAM, n_bins=5, strategy=strategy)
    drawn = [bar.get_height() for bar in bars(ax, "frequency in the bin")]
    # N = 300 is a multiple of 5, and no two samples tie.
    np.testing.assert_allclose(drawn, frequency)
    np.testing.assert_allclose(marks(ax, "mean probability")[:, 0, 1], mean)
    assert "positive class" in ax.get_xlabel()


def test_titles_of_two_classes_name_both_errors():
    errors = {
        "top_label": functional.ece(IS_SPAM, SPAM),
        "positive": functional.ece(IS_SPAM, SPAM, kind="positive"),
    }
    for kind in errors:
        ax = plots.reliability_diagram(IS_SPAM, SPAM[:, None], kind=kind)
        assert ax.get_title() == (
            f"top-label ECE = {errors['top_label']:.3g}, "
            f"positive-class ECE = {errors['positive']:.3g}"
        )


def test_multi_label_diagrams_pool_the_labels(ax):
    p = 1 / (1 + np.exp(-LOGITS))
    y = (p > 0.6).astype(int)
    plots.reliability_diagram(y, p, multi_label=True, kind="positive", ax=ax)
    pooled = plots.reliability_diagram(y.ravel(), p.ravel(), kind="positive")
    for one, two in zip(
        *(bars(a, "frequency in the bin") for a in (ax, pooled)), strict=True
    ):
        assert one.get_bbox().bounds == two.get_bbox().bounds
    ax = plots.risk_coverage_curve(y, p, multi_label=True)
    curve = functional.risk_coverage_curve(y.ravel(), p.ravel())
    np.testing.assert_array_equal(line(ax, "this model").get_ydata(), curve.risk)


def test_decision_threshold_decides_what_is_correct():
    wrong = (SPAM > 0.2) != IS_SPAM
    ax = plots.risk_coverage_curve(IS_SPAM, SPAM, decision_threshold=0.2)
    np.testing.assert_allclose(line(ax, "random").get_ydata(), wrong.mean())
    ax = plots.confidence_histogram(IS_SPAM, SPAM, decision_threshold=0.2)
    assert f"wrong predictions ({100 * wrong.mean():.3g} %)" in legend(ax)[1]


# Risk-coverage curve
def test_risk_coverage_lines_are_the_functional_results(ax):
    plots.risk_coverage_curve(Y, PROBABILITIES, csf="margin", ax=ax)
    curve = functional.risk_coverage_curve(Y, PROBABILITIES, csf="margin")
    own = line(ax, "this model")
    np.testing.assert_array_equal(own.get_xdata(), curve.coverage)
    np.testing.assert_array_equal(own.get_ydata(), curve.risk)
    aurc = functional.aurc(Y, PROBABILITIES, csf="margin")
    excess = functional.excess_aurc(Y, PROBABILITIES, csf="margin")
    assert own.get_label() == f"this model: AURC {aurc:.3g}"
    best = line(ax, "best possible")
    # The mean of the best curve's risks is its AURC.
    assert np.mean(best.get_ydata()) == pytest.approx(aurc - excess)
    assert f"AURC {aurc - excess:.3g}" in best.get_label()
    wrong = np.arange(1, N + 1) - CORRECT.sum()
    np.testing.assert_allclose(
        best.get_ydata(), np.maximum(wrong, 0) / np.arange(1, N + 1)
    )
    np.testing.assert_allclose(line(ax, "random").get_ydata(), 1 - CORRECT.mean())


def test_risk_coverage_takes_weights_and_losses(ax):
    arguments = {"loss": "brier", "sample_weight": WEIGHT, "from_logits": True}
    plots.risk_coverage_curve(Y, LOGITS, **arguments, ax=ax)
    curve = functional.risk_coverage_curve(Y, LOGITS, **arguments)
    np.testing.assert_array_equal(line(ax, "this model").get_ydata(), curve.risk)
    brier = functional.brier(Y, LOGITS, from_logits=True, sample_weight=WEIGHT)
    np.testing.assert_allclose(line(ax, "random").get_ydata(), brier)
    assert "Brier" in ax.get_ylabel()


def test_risk_coverage_marks_a_threshold_or_a_coverage():
    accepted = SCORES >= 0.8
    at, risk = accepted.mean(), 1 - CORRECT[accepted].mean()
    ax = plots.risk_coverage_curve(Y, PROBABILITIES, threshold=0.8)
    point = line(ax, "coverage")
    np.testing.assert_allclose([point.get_xdata(), point.get_ydata()], [[at], [risk]])
    assert point.get_label() == (f"coverage {100 * at:.3g} %, risk {100 * risk:.3g} %")
    ax = plots.risk_coverage_curve(Y, PROBABILITIES, coverage=0.333)
    risk = functional.risk_at_coverage(Y, PROBABILITIES, coverage=0.333)
    np.testing.assert_allclose(line(ax, "coverage 33.3 %").get_ydata(), [risk])


def test_risk_coverage_of_several_models(rng, ax):
    models = {"sharp": LOGITS, "noisy": LOGITS + rng.normal(size=LOGITS.shape)}
    plots.risk_coverage_curve(Y, models, from_logits=True, ax=ax)
    for name, logits in models.items():
        curve = functional.risk_coverage_curve(Y, logits, from_logits=True)
        np.testing.assert_array_equal(line(ax, name).get_ydata(), curve.risk)
    assert legend(ax)[2:] == ["best possible ranking", "random ranking"]


def test_risk_coverage_of_a_perfect_model(ax):
    plots.risk_coverage_curve([0, 1], np.eye(2), ax=ax)
    FigureCanvasAgg(ax.figure).draw()
    np.testing.assert_array_equal(line(ax, "this model").get_ydata(), [0])


# Confidence histogram
@pytest.mark.parametrize("csf", ["msp", "neg_entropy"])
def test_confidence_histogram_of_correct_and_wrong_predictions(csf, ax):
    plots.confidence_histogram(
        Y, PROBABILITIES, csf=csf, num_bins=12, sample_weight=WEIGHT, ax=ax
    )
    scores = reference.score(PROBABILITIES, csf)
    support = (-np.log(K), 0) if csf == "neg_entropy" else (0, 1)
    for kind, which in (("correct", CORRECT), ("wrong", ~CORRECT)):
        expected, edges = np.histogram(
            scores[which], 12, support, weights=WEIGHT[which]
        )
        drawn = stairs(ax, kind)
        np.testing.assert_allclose(drawn.values, expected / WEIGHT[which].sum())
        np.testing.assert_allclose(drawn.edges, edges, atol=1e-12)


def test_confidence_histogram_of_predictions_that_are_all_correct(ax):
    plots.confidence_histogram([0, 1], np.eye(2), ax=ax)
    assert legend(ax) == [
        "correct predictions (100 %), mean 1",
        "wrong predictions (0 %)",
    ]
    assert stairs(ax, "correct").values[-1] == 1
    assert not stairs(ax, "wrong").values.any()


# Score CDF
def test_score_cdf_lines_are_the_cdfs(ax):
    plots.score_cdf(SCORES, ax=ax)
    for nu in (0.01, 0.1, 1):
        drawn = line(ax, f"soft CDF, ν = {nu:g}")
        expected = reference.soft_cdf(SCORES, drawn.get_xdata(), 64, nu)
        np.testing.assert_allclose(drawn.get_ydata(), expected, atol=1e-5)
    empirical = line(ax, "empirical")
    np.testing.assert_allclose(empirical.get_xdata()[1:-1], np.sort(SCORES))
    np.testing.assert_allclose(empirical.get_ydata()[1:-1], np.arange(1, N + 1) / N)
    heights = stairs(ax, "histogram").values
    expected = np.histogram(SCORES, 64, (0, 1))[0]
    np.testing.assert_allclose(heights, expected * 0.5 / expected.max())


def test_score_cdf_of_another_support_and_of_weights():
    scores = -np.log(K) * (1 - SCORES)
    ax = plots.score_cdf(scores, 0.1, support=(-np.log(K), 0), sample_weight=WEIGHT)
    drawn = line(ax, "soft CDF")
    copies = np.repeat(SCORES, WEIGHT.astype(int))
    at = 1 + drawn.get_xdata() / np.log(K)
    expected = reference.soft_cdf(copies, at, smoothing=0.1)
    np.testing.assert_allclose(drawn.get_ydata(), expected, atol=2e-3)
    np.testing.assert_allclose(
        line(ax, "empirical").get_ydata()[1:-1],
        np.cumsum(WEIGHT[np.argsort(scores)]) / WEIGHT.sum(),
    )
