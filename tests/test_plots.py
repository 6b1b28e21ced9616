"""Plots: the drawn data, the axes, bad input, and pictures.

The pictures are compared with those in `tests/images`. After a change that is meant,
look at the new ones that this writes, and commit them:

    KERAS_SELCAL_WRITE_IMAGES=1 pytest tests/test_plots.py -k picture
"""

import ast
import os
import runpy
import sys
from pathlib import Path
from statistics import NormalDist

os.environ["MPLBACKEND"] = "Agg"

import matplotlib.pyplot as plt
import numpy as np
import pytest
import reference
from backends import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import keras_selcal
from keras_selcal import (
    AULoss,
    AURCLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
    functional,
    plots,
)

pytestmark = pytest.mark.backend_free

IMAGES = Path(__file__).parent / "images"
# Root mean square difference of colours in [0, 1]. Another version of the font
# renderer moves the text; a missing or misplaced line is more.
TOLERANCE = 0.025
P = np.arange(1, 256) / 256

_rng = np.random.default_rng(7)
N, K = 300, 4
Y = _rng.integers(K, size=N)
LOGITS = 2 * _rng.normal(size=(N, K)).astype("float32")
LOGITS[np.arange(N), Y] += 4 * _rng.random(N).astype("float32")
PROBABILITIES = reference.softmax(LOGITS)
SCORES = PROBABILITIES.max(-1)
CORRECT = PROBABILITIES.argmax(-1) == Y
WEIGHT = _rng.integers(1, 4, size=N).astype("float64")

SETS = PROBABILITIES >= 0.2

DRAW = {
    "set_sizes": lambda ax: plots.set_sizes(Y, SETS, ax=ax),
    "class_coverage": lambda ax: plots.class_coverage(Y, SETS, alpha=0.1, ax=ax),
    "reliability_gaps": lambda ax: plots.reliability_gaps(
        functional.reliability_curve(Y, PROBABILITIES, 10), ax=ax
    ),
    "sample_gradients": lambda ax: plots.sample_gradients(
        {"cross-entropy": FocalLoss(0), "focal": FocalLoss(2)}, Y, PROBABILITIES, ax=ax
    ),
    "loss_values": lambda ax: plots.loss_values(
        {"cross-entropy": FocalLoss(0), "focal": FocalLoss(2)}, ax=ax
    ),
    "reliability_diagram": lambda ax: plots.reliability_diagram(
        Y, PROBABILITIES, num_bins=10, ax=ax
    ),
    "risk_coverage_curve": lambda ax: plots.risk_coverage_curve(
        Y, PROBABILITIES, threshold=0.8, ax=ax
    ),
    "confidence_histogram": lambda ax: plots.confidence_histogram(
        Y, PROBABILITIES, ax=ax
    ),
    "score_cdf": lambda ax: plots.score_cdf(SCORES, ax=ax),
    "loss_weights": lambda ax: plots.loss_weights(
        {
            "cross-entropy": FocalLoss(0),
            "focal": FocalLoss(2),
            "AURC": AURCLoss(),
            "AU": AULoss(),
        },
        ax=ax,
    ),
    "loss_gradients": lambda ax: plots.loss_gradients(
        {
            "cross-entropy": FocalLoss(0),
            "focal": FocalLoss(2),
            "inverse focal": InverseFocalLoss(2),
        },
        ax=ax,
    ),
}


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def bars(ax, label):
    (found,) = (bars for bars in ax.containers if bars.get_label() == label)
    return found


def stairs(ax, label):
    (found,) = (patch for patch in ax.patches if patch.get_label().startswith(label))
    return found.get_data()


def marks(ax, label):
    (found,) = (c for c in ax.collections if label in c.get_label())
    return np.array(found.get_segments())


def line(ax, label):
    (found,) = (one for one in ax.get_lines() if one.get_label().startswith(label))
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


# Axes and matplotlib


@pytest.mark.parametrize("name", DRAW)
def test_draws_on_the_axes_that_it_is_given_and_returns_them(name, ax):
    before = plt.get_fignums()
    assert DRAW[name](ax) is ax
    assert plt.get_fignums() == before
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.get_legend() is not None


@pytest.mark.parametrize("name", DRAW)
def test_makes_axes_of_its_own_and_shows_nothing(name, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a plot must not show itself")

    monkeypatch.setattr(plt, "show", fail)
    ax = DRAW[name](None)
    assert isinstance(ax, Axes)
    assert plt.get_fignums() == [ax.figure.number]


@pytest.mark.parametrize("name", DRAW)
def test_without_matplotlib_the_error_names_the_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ImportError, match=r'pip install "keras-selcal\[plots\]"'):
        DRAW[name](None)


PACKAGE = Path(keras_selcal.__file__).parent


def imports_outside_functions(node):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module or ""
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda)):
            yield from imports_outside_functions(child)


def test_no_module_imports_matplotlib_when_it_is_imported():
    # In a process of its own this would be clearer, and take as long as all the rest.
    found = set()
    for path in PACKAGE.rglob("*.py"):
        names = set(imports_outside_functions(ast.parse(path.read_text("utf-8"))))
        found |= names
        roots = {name.partition(".")[0] for name in names}
        assert not roots & {"matplotlib", "mpl_toolkits", "PIL"}, path
    assert {"numpy", "keras_selcal.plots"} <= found


def test_plots_can_be_imported_without_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("matplotlib")]:
        monkeypatch.setitem(sys.modules, name, None)
    for path in (PACKAGE / "plots").glob("*.py"):
        runpy.run_path(str(path))
    assert sorted(plots.__all__) == sorted(DRAW)


@pytest.mark.parametrize("name", DRAW)
def test_axes_of_another_kind_are_refused(name):
    with pytest.raises(ValueError, match="`ax` must be"):
        DRAW[name]("here")
    with pytest.raises(ValueError, match="`ax` must be"):
        DRAW[name](Figure().subplots(1, 2))


# Prediction sets


def test_set_sizes_are_split_by_whether_they_hold_the_label(ax):
    plots.set_sizes(Y, SETS, ax=ax)
    sizes, covered = SETS.sum(-1), SETS[np.arange(N), Y]
    holds, edges, _ = stairs(ax, "sets that hold the label")
    both, _, below = stairs(ax, "sets that miss the label")
    np.testing.assert_allclose(edges, np.arange(sizes.max() + 2) - 0.5)
    for size in range(sizes.max() + 1):
        assert holds[size] == pytest.approx((covered & (sizes == size)).mean())
        assert both[size] == pytest.approx((sizes == size).mean())
    np.testing.assert_allclose(below, holds)


def test_class_coverage_has_a_bar_and_an_interval_for_each_class(ax):
    plots.class_coverage(Y, SETS, alpha=0.1, ax=ax)
    covered = SETS[np.arange(N), Y]
    share = np.array([covered[c == Y].mean() for c in range(K)])
    order = np.argsort(share)
    values, _, baseline = stairs(ax, "classes")
    np.testing.assert_allclose(values, share[order])
    assert baseline == covered.mean()
    whiskers = marks(ax, "95 % interval")
    for whisker, c in zip(whiskers, order, strict=True):
        m = (c == Y).sum()
        np.testing.assert_allclose(whisker[:, 1], wilson(covered[c == Y].sum(), m))
    names = [label.get_text() for label in ax.get_xticklabels()]
    assert names == [str(c) for c in order]
    assert line(ax, "1 − α").get_ydata()[0] == 0.9


@pytest.mark.parametrize("draw", [plots.set_sizes, plots.class_coverage])
def test_plots_of_sets_refuse_what_are_no_sets_or_labels(draw, ax):
    with pytest.raises(ValueError, match="`sets` must be"):
        draw(Y, PROBABILITIES, ax=ax)
    with pytest.raises(ValueError, match="`y_true` must be"):
        draw(Y + 1, SETS, ax=ax)
    with pytest.raises(ValueError, match="`y_true` must be"):
        draw(Y[1:], SETS, ax=ax)


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


def wilson(successes, m, level=0.95):
    """Returns the Wilson interval by its equation |s − p| = z √(p(1 − p)/m)."""
    z, s = NormalDist().inv_cdf((1 + level) / 2), successes / m
    return sorted(np.roots([1 + z**2 / m, -2 * s - z**2 / m, s**2]))


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


def test_risk_coverage_of_several_models(ax):
    models = {"sharp": LOGITS, "noisy": LOGITS + _rng.normal(size=LOGITS.shape)}
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


# Names


@pytest.mark.parametrize("name", ["_private", "$5 and $6", "a_b", "100 %", "\\$x$"])
def test_names_are_shown_as_they_are(name):
    models = {name: PROBABILITIES, "other": PROBABILITIES[::-1]}
    ax = plots.risk_coverage_curve(Y, models)
    reliability = plots.reliability_diagram(Y, models)[0]
    weights = plots.loss_weights({name: FocalLoss(2)})
    shown = legend(ax)
    assert len(shown) == 4
    for text in (
        ax.get_legend().get_texts()[0],
        reliability.title,
        weights.get_legend().get_texts()[0],
    ):
        written, is_math = text._preprocess_math(text.get_text())
        assert not is_math
        assert written.strip().startswith(name)


# Bad input

NAN = np.where(np.arange(N)[:, None] == 3, np.nan, PROBABILITIES)
BAD = [
    (lambda: plots.reliability_diagram(Y, PROBABILITIES, num_bins=0), "num_bins"),
    (lambda: plots.reliability_diagram(Y, PROBABILITIES, binning="x"), "binning"),
    (
        lambda: plots.reliability_diagram(Y, PROBABILITIES, confidence_level=1.0),
        "confidence_level",
    ),
    (lambda: plots.reliability_diagram(Y, PROBABILITIES, kind="positive"), "kind"),
    (lambda: plots.reliability_diagram(Y, PROBABILITIES, kind="both"), "kind"),
    (lambda: plots.reliability_diagram(Y, LOGITS), "y_pred"),
    (lambda: plots.reliability_diagram(Y, NAN), "y_pred"),
    (lambda: plots.reliability_diagram(Y, {}), "y_pred"),
    (lambda: plots.reliability_diagram(Y + K, PROBABILITIES), "y_true"),
    (lambda: plots.reliability_diagram(Y[1:], PROBABILITIES), "y_true"),
    (
        lambda: plots.risk_coverage_curve(Y, PROBABILITIES, threshold=0.5, coverage=1),
        "coverage",
    ),
    (lambda: plots.risk_coverage_curve(Y, PROBABILITIES, threshold=2), "threshold"),
    (lambda: plots.risk_coverage_curve(Y, PROBABILITIES, coverage=0), "coverage"),
    (lambda: plots.risk_coverage_curve(Y, PROBABILITIES, loss="x"), "loss"),
    (lambda: plots.risk_coverage_curve(Y, PROBABILITIES, csf="x"), "csf"),
    (lambda: plots.risk_coverage_curve(Y, NAN), "y_pred"),
    (lambda: plots.confidence_histogram(Y, PROBABILITIES, num_bins=0), "num_bins"),
    (lambda: plots.confidence_histogram(Y, NAN), "y_pred"),
    (lambda: plots.score_cdf(SCORES, smoothing=0), "smoothing"),
    (lambda: plots.score_cdf(SCORES, smoothing=()), "smoothing"),
    (lambda: plots.score_cdf(SCORES, num_bins=0), "num_bins"),
    (lambda: plots.score_cdf(SCORES, support=(1, 0)), "support"),
    (lambda: plots.score_cdf(3 * SCORES), "scores"),
    (lambda: plots.score_cdf(np.append(SCORES, np.nan)), "scores"),
    (lambda: plots.score_cdf([]), "scores"),
    (lambda: plots.reliability_gaps({}), "curves"),
    (lambda: plots.reliability_gaps(SCORES), "curves"),
    (lambda: plots.sample_gradients(AULoss(), Y, LOGITS), "y_pred"),
    (lambda: plots.sample_gradients(AULoss(), Y + K, PROBABILITIES), "y_true"),
    (lambda: plots.sample_gradients(AULoss(), Y[1:], PROBABILITIES), "y_true"),
    (lambda: plots.sample_gradients(KDECrossentropy(), Y, PROBABILITIES), "losses"),
    (lambda: plots.loss_weights(KDECrossentropy()), "losses"),
    (lambda: plots.loss_weights({}), "losses"),
    (lambda: plots.loss_weights(3), "losses"),
    (lambda: plots.loss_weights(AULoss(), num_classes=1), "num_classes"),
    (lambda: plots.loss_gradients(AULoss(), y_pred=LOGITS), "y_pred"),
    (lambda: plots.loss_gradients(AULoss(), y_pred=SCORES), "y_pred"),
]


@pytest.mark.parametrize(("call", "argument"), BAD)
def test_bad_input_is_named_and_leaves_no_figure(call, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must"):
        call()
    assert plt.get_fignums() == []


def test_tensors_of_the_backend_are_taken(ax):
    from keras import ops

    plots.confidence_histogram(
        ops.convert_to_tensor(Y), ops.convert_to_tensor(LOGITS), from_logits=True, ax=ax
    )
    plots.score_cdf(ops.max(ops.softmax(ops.convert_to_tensor(LOGITS)), -1), ax=ax)
    assert numpy(line(ax, "empirical").get_xdata()).shape == (N + 2,)


# Pictures


def picture(draw, spoil=None):
    """Returns the drawing as red, green and blue in [0, 1], (rows, columns, 3)."""
    figure = Figure(figsize=(6, 6), dpi=50, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    ax = draw(figure.subplots())
    if spoil is not None:
        spoil(ax)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def difference(one, two):
    """Returns the root mean square difference of colours in [0, 1]."""
    return float(np.sqrt(np.mean((one / 255.0 - two / 255.0) ** 2)))


def remove_a_line_or_patch(ax):
    (ax.patches or ax.get_lines())[0].remove()


@pytest.mark.parametrize("name", DRAW)
def test_picture(name):
    path = IMAGES / f"{name}.png"
    drawn = picture(DRAW[name])
    if os.environ.get("KERAS_SELCAL_WRITE_IMAGES"):
        Image.fromarray(drawn).quantize(64).save(path, optimize=True)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB"))
    assert expected.shape == drawn.shape
    assert difference(drawn, expected) < TOLERANCE


@pytest.mark.parametrize("name", DRAW)
def test_picture_without_one_line_or_patch_is_told_apart(name):
    with Image.open(IMAGES / f"{name}.png") as image:
        expected = np.asarray(image.convert("RGB"))
    spoilt = picture(DRAW[name], remove_a_line_or_patch)
    assert difference(spoilt, expected) > TOLERANCE
