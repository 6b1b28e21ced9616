"""Plots: the drawn data, the axes, bad input, and pictures.

The pictures are compared with those in `tests/images`. After a change that is meant,
look at the new ones that this writes, and commit them:

    KERAS_SELCAL_WRITE_IMAGES=1 pytest tests/plots -k picture
"""

import ast
import os
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from backends import numpy
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from plot_data import (
    LOGITS,
    PROBABILITIES,
    SCORES,
    K,
    N,
    Y,
    legend,
    line,
    marks,
    stairs,
    wilson,
)

import keras_selcal
from keras_selcal import (
    functional,
    plots,
)

pytestmark = pytest.mark.backend_free
IMAGES = Path(__file__).parent / "images"

# Root mean square difference of colours in [0, 1]. Another version of the font
# renderer moves the text; a missing or misplaced line is more.
TOLERANCE = 0.025
SETS = PROBABILITIES >= 0.2
DRAW = {
    "set_sizes": lambda ax: plots.set_sizes(Y, SETS, ax=ax),
    "class_coverage": lambda ax: plots.class_coverage(Y, SETS, alpha=0.1, ax=ax),
    "reliability_gaps": lambda ax: plots.reliability_gaps(
        functional.reliability_curve(Y, PROBABILITIES, 10), ax=ax
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
    "threshold_risk": lambda ax: plots.threshold_risk(
        PROBABILITIES.max(-1), PROBABILITIES.argmax(-1) == Y, risk=0.4, ax=ax
    ),
    "score_cdf": lambda ax: plots.score_cdf(SCORES, ax=ax),
}


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
def test_without_matplotlib_the_error_names_the_package(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
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
    # Those of losses are drawn by test_loss_curves.py.
    of_losses = {"loss_gradients", "loss_values", "loss_weights", "sample_gradients"}
    assert set(plots.__all__) == {*DRAW, *of_losses}


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


# Names
@pytest.mark.parametrize("name", ["_private", "$5 and $6", "a_b", "100 %", "\\$x$"])
def test_names_are_shown_as_they_are(name):
    models = {name: PROBABILITIES, "other": PROBABILITIES[::-1]}
    ax = plots.risk_coverage_curve(Y, models)
    reliability = plots.reliability_diagram(Y, models)[0]
    shown = legend(ax)
    assert len(shown) == 4
    for text in (
        ax.get_legend().get_texts()[0],
        reliability.title,
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
