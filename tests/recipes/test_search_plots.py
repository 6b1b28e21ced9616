"""Plots of a search over one or two hyperparameters."""

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from recipes.paper.search_figures import search_curve, search_map  # noqa: E402

pytestmark = pytest.mark.backend_free

TRIALS = {
    "smoothing": [0.01, 0.1, 1.0, 0.01, 0.1, 1.0, 0.1],
    "quantile": [0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.5],
    "val_nll": [0.7, 0.5, 0.6, 0.9, np.nan, 0.8, 0.3],
}


def higher(trials):
    return {**trials, "val_accuracy": trials["val_nll"]}


def line(ax, label):
    (found,) = (line for line in ax.lines if line.get_label() == label)
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_curve_is_the_mean_of_trials():
    trials = {**TRIALS, "val_nll": [0.7, 0.5, np.nan, 0.9, np.nan, np.nan, 0.3]}
    ax = pyplot.figure().subplots()
    assert search_curve(trials, "smoothing", ax=ax) is ax
    np.testing.assert_allclose(
        line(ax, "their mean").get_xydata(), [(0.01, 0.8), (0.1, 0.4)]
    )
    assert line(ax, "trials").get_xydata().shape == (7, 2)
    assert line(ax, "no value").get_xdata().tolist() == [1.0]
    assert legend(ax)[-1] == "lowest: ν = 0.1"
    assert ax.get_xscale() == "log"
    ax = search_curve(higher(trials), "quantile", "val_accuracy")
    assert legend(ax)[-1] == "highest: κ = 1"
    assert ax.get_xscale() == "linear"


def test_map_has_a_cell_for_each_pair():
    ax = search_map(TRIALS, "smoothing", "quantile")
    (mesh,) = ax.collections
    expected = [[0.7, 0.4, 0.6], [0.9, np.nan, 0.8]]
    np.testing.assert_allclose(
        np.ma.filled(mesh.get_array(), np.nan).reshape(2, 3), expected
    )
    assert [text.get_text() for text in ax.texts] == [
        "0.700", "0.400", "0.600", "0.900", "0.800"
    ]  # fmt: skip
    assert legend(ax) == ["lowest: κ = 0.5, ν = 0.1"]
    (frame,) = ax.patches
    assert (frame.get_x() // 1 + 1, frame.get_y() // 1 + 1) == (1, 0)
    ax = search_map(higher(TRIALS), "smoothing", "quantile", "val_accuracy")
    assert legend(ax) == ["highest: κ = 1, ν = 0.01"]
