"""Plots of a search over one or two hyperparameters."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._core.samples import Array
from keras_selcal._core.validation import check_choice, refuse
from keras_selcal.plots import canvas
from recipes.search_results import CRITERIA, Search

_TITLES = {
    "gamma": "γ",
    "smoothing": "ν",
    "coverage": "κ",
    "kde_weight": "λ",
    "val_nll": "validation NLL",
    "val_loss": "validation loss",
    "val_accuracy": "validation accuracy",
    "val_ece": "validation ECE",
}
# Columns of a search's CSV that are not searched.
_RESULTS = ("seed", "epoch", "run", "state", *(f"val_{by}" for by in CRITERIA))
_ROWS = 6
_BEST = {"min": np.nanargmin, "max": np.nanargmax}


def search_curve(
    trials: Any,
    x: str,
    value: str = "val_loss",
    *,
    best: str = "min",
    ax: Any = None,
) -> Any:
    """Draws the results of trials against a hyperparameter, and marks the best.

    Trials with the same x (of several seeds, for example) are dots, and the line is
    their mean. A cross at the foot marks an x whose trials all have the value NaN.

    Args:
        trials: columns of numbers by their names, with one entry for each trial: a
            dict of lists, a `pandas.DataFrame` or the like.
        x: the column of the hyperparameter.
        value: the column of the result.
        best: `"min"` or `"max"`.
        ax: the Axes to draw on. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> ax = search_curve({"gamma": [1, 2, 3], "val_loss": [0.5, 0.3, 0.4]}, "gamma")
    >>> ax.get_legend().get_texts()[-1].get_text()
    'lowest: γ = 2'
    """
    best = check_choice("best", best, tuple(_BEST))
    at, reached = _columns(trials, x, value)
    places = np.unique(at)
    means = np.array([_mean(reached[at == place]) for place in places])
    (ax,) = canvas.axes(ax)
    repeated = len(at) > len(places)
    if repeated:
        ax.plot(
            at,
            reached,
            linestyle="none",
            marker="o",
            markersize=4,
            color=canvas.GREY,
            alpha=0.7,
            label="trials",
        )
    there = ~np.isnan(means)
    ax.plot(
        places[there],
        means[there],
        color=canvas.BLUE,
        linewidth=1.8,
        marker="o",
        markersize=6,
        markeredgecolor="white",
        label="their mean" if repeated else "trials",
        zorder=3,
    )
    if not there.all():
        ax.plot(
            places[~there],
            np.full(np.sum(~there), 0.03),
            linestyle="none",
            marker="x",
            color=canvas.GREY,
            transform=ax.get_xaxis_transform(),
            label="no value",
        )
    if there.any():
        chosen = _BEST[best](means)
        ax.plot(
            places[chosen],
            means[chosen],
            linestyle="none",
            marker="o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor=canvas.VERMILLION,
            markeredgewidth=2,
            label=f"{_superlative(best)}: {_title(x)} = {places[chosen]:g}",
            zorder=4,
        )
    if places[0] > 0 and places[-1] / places[0] >= 20:
        ax.set_xscale("log")
    ax.set_xticks(places, [f"{place:g}" for place in places])
    ax.minorticks_off()
    ax.margins(x=0.05, y=0.12)
    canvas.finish(ax, _title(x), _title(value), loc="best")
    return ax


def search_map(
    trials: Any,
    x: str,
    y: str,
    value: str = "val_loss",
    *,
    best: str = "min",
    ax: Any = None,
) -> Any:
    """Draws the results of trials for two hyperparameters, and frames the best.

    A cell is the mean of the trials that share x and y; brighter is better. A cell is
    white if it has no trial, or none with a value.

    Args:
        trials: columns of numbers by their names, with one entry for each trial: a
            dict of lists, a `pandas.DataFrame` or the like.
        x: the column of one hyperparameter.
        y: the column of another.
        value: the column of the result.
        best: `"min"` or `"max"`.
        ax: the Axes to draw on. None makes a figure.

    Returns:
        The Axes.

    Example:
    >>> trials = {"coverage": [0.5, 1], "smoothing": [0.1, 0.1], "val_loss": [0.4, 0.3]}
    >>> ax = search_map(trials, "smoothing", "coverage")
    >>> ax.get_legend().get_texts()[0].get_text()
    'lowest: κ = 1, ν = 0.1'

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. nuselection
    """
    best = check_choice("best", best, tuple(_BEST))
    right, up, reached = _columns(trials, x, y, value)
    columns, rows = np.unique(right), np.unique(up)
    cells = np.array(
        [
            [_mean(reached[(right == column) & (up == row)]) for column in columns]
            for row in rows
        ]
    )
    (ax,) = canvas.axes(ax)
    colours = "viridis" if best == "max" else "viridis_r"
    mesh = ax.pcolormesh(
        np.arange(len(columns) + 1) - 0.5,
        np.arange(len(rows) + 1) - 0.5,
        np.ma.masked_invalid(cells),
        cmap=colours,
        edgecolors="white",
        linewidth=1.5,
    )
    ax.figure.colorbar(mesh, ax=ax).outline.set_visible(False)
    if not np.isnan(cells).all():
        _write(ax, mesh, cells)
        row, column = np.unravel_index(_BEST[best](cells), cells.shape)
        ax.add_patch(_frame(int(row), int(column)))
        ax.plot(
            [],
            [],
            linestyle="none",
            marker="s",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=canvas.VERMILLION,
            markeredgewidth=2,
            label=f"{_superlative(best)}: {_title(y)} = {rows[row]:g}, "
            f"{_title(x)} = {columns[column]:g}",
        )
    ax.set_xticks(range(len(columns)), [f"{one:g}" for one in columns])
    ax.set_yticks(range(len(rows)), [f"{one:g}" for one in rows])
    ax.tick_params(length=0)
    ax.set_title(_title(value), loc="left", pad=26)
    canvas.finish(
        ax,
        _title(x),
        _title(y),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.2,
        borderpad=0.2,
        frameon=False,
    )
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return ax


def draw_search(search: Search, path: Path) -> bool:
    """Draws the figure of a search.

    Returns:
        Whether there is a picture: it needs a choice, one or two varied numbers, at
        most 6 combinations of other fields, and matplotlib.
    """
    if search.choice() is None:
        return False
    try:
        figure = search_figure(read_search(search.csv().splitlines()))
    except ImportError:
        return False
    if figure is not None:
        figure.savefig(path, dpi=100, bbox_inches="tight")
    return figure is not None


def read_search(lines: Iterable[str]) -> dict[str, Array]:
    """Returns the columns of a search's CSV: numbers, NaN if missing, or texts."""
    reader = csv.DictReader(lines)
    rows = list(reader)
    columns = {}
    for name in reader.fieldnames or ():
        texts = [row[name] for row in rows]
        try:
            columns[name] = np.array([float(text or "nan") for text in texts])
        except ValueError:
            columns[name] = np.array(texts)
    return columns


def varied_fields(columns: Mapping[str, Array]) -> tuple[list[str], list[str]]:
    """Returns the varied fields of a search: numbers, ν first, and others."""
    varied = [
        name
        for name, column in columns.items()
        if name not in _RESULTS and len(np.unique(column)) > 1
    ]
    numbers = [name for name in varied if columns[name].dtype.kind == "f"]
    numbers.sort(key=lambda name: name != "smoothing")
    return numbers, [name for name in varied if name not in numbers]


def search_figure(columns: Mapping[str, Array]) -> Any:
    """Draws every criterion of a search over one or two numbers.

    The figure has a column for each criterion, and a row for each combination of the
    other varied fields. A setting that lacks the result of a seed is left empty.

    Args:
        columns: the columns of a search, as `read_search` returns them.

    Returns:
        A matplotlib figure, or None if the search has no or more than two varied
        numbers, or too many rows.
    """
    from matplotlib.figure import Figure

    numbers, others = varied_fields(columns)
    count = len(columns["val_loss"])
    keys = list(zip(*(columns[name] for name in others), strict=True)) or [()] * count
    parts = list(dict.fromkeys(keys))
    if not 1 <= len(numbers) <= 2 or len(parts) > _ROWS:
        return None
    shared = [columns[name] for name in (*numbers, *others)]
    settings = list(zip(*shared, strict=True))
    lost = np.isnan(columns["val_loss"])
    incomplete = {one for one, gone in zip(settings, lost, strict=True) if gone}
    complete = np.array([one not in incomplete for one in settings])
    # Values of a run's own loss cannot be compared.
    criteria = {by: one for by, one in CRITERIA.items() if by != "loss"}
    size = (4.6 * len(criteria), 3.9 * len(parts))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(parts), len(criteria), squeeze=False)
    draw: Any = search_curve if len(numbers) == 1 else search_map
    for row, part in zip(axes, parts, strict=True):
        inside = np.array([key == part for key in keys])
        for ax, (by, criterion) in zip(row, criteria.items(), strict=True):
            value, best = f"val_{by}", "max" if criterion.higher else "min"
            shown = {name: columns[name][inside] for name in numbers}
            shown[value] = np.where(complete, columns[value], np.nan)[inside]
            draw(shown, *numbers, value, best=best, ax=ax)
        words = ", ".join(f"{n} {v}" for n, v in zip(others, part, strict=True))
        if words:
            title = f"{words}\n{row[0].get_title(loc='left')}".strip()
            # A map has its legend between title and cells.
            row[0].set_title(title, loc="left", pad=26 if len(numbers) == 2 else None)
    return figure


def _columns(trials: Any, *names: str) -> list[Array]:
    """Returns columns of numbers, without NaN except in the last one."""
    found = []
    for name in names:
        try:
            column = np.asarray(trials[name], "float64")
        except (KeyError, IndexError, TypeError, ValueError):
            known = list(trials) if isinstance(trials, Iterable) else trials
            refuse("trials", known, f"columns of numbers, {name!r} among them")
        found.append(column)
    shapes = {column.shape for column in found}
    if len(shapes) > 1 or found[0].ndim != 1 or not found[0].size:
        refuse("trials", shapes, "columns of one length, at least 1")
    if any(np.isnan(column).any() for column in found[:-1]):
        refuse("trials", trials, f"free of NaN, but for {names[-1]!r}")
    return found


def _mean(values: Array) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else np.nan


def _title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " "))


def _superlative(best: str) -> str:
    return "lowest" if best == "min" else "highest"


def _write(ax: Any, mesh: Any, cells: Array) -> None:
    """Writes the values into the cells, with enough digits to distinguish them."""
    spread = np.nanmax(cells) - np.nanmin(cells)
    digits = 3 if spread == 0 else int(np.clip(2 - np.floor(np.log10(spread)), 1, 4))
    for (row, column), cell in np.ndenumerate(cells):
        if np.isnan(cell):
            continue
        red, green, blue, _ = mesh.to_rgba(cell)
        bright = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45
        ax.text(
            column,
            row,
            f"{cell:.{digits}f}",
            ha="center",
            va="center",
            fontsize="small",
            color=canvas.BLACK if bright else "white",
        )


def _frame(row: int, column: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (column - 0.47, row - 0.47),
        0.94,
        0.94,
        fill=False,
        edgecolor=canvas.VERMILLION,
        linewidth=3,
    )
