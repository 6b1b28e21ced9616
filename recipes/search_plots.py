"""Plots of a search over one or two hyperparameters."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal._predictions.samples import Array
from keras_selcal.plots import canvas
from recipes.search_results import CRITERIA, SYMBOLS, Search

# Columns of a search's CSV that are not searched.
_RESULTS = ("seed", "epoch", "run", "state", *(f"val_{by}" for by in CRITERIA))
_ROWS = 6
_BEST = {"lowest": np.nanargmin, "highest": np.nanargmax}
_DOTS = {"linestyle": "none", "marker": "o"}
_CHOSEN = {
    "markerfacecolor": "none",
    "markeredgecolor": canvas.VERMILLION,
    "markeredgewidth": 2,
}


def search_curve(
    trials: Mapping[str, Any],
    x: str,
    value: str = "val_loss",
    *,
    best: str = "lowest",
    ax: Any = None,
) -> Any:
    """Draws the results of trials against a hyperparameter, and marks the best.

    Trials with the same x (of several seeds, for example) are dots, and the line is
    their mean. A cross at the foot marks an x whose trials all have the value NaN.

    Args:
        trials: columns of numbers by their names, with one entry for each trial.
        x: the column of the hyperparameter.
        value: the column of the result.
        best: `"lowest"` or `"highest"`.
        ax: the Axes to draw on. None makes a figure.

    Returns:
        The Axes.
    """
    at, reached = (np.asarray(trials[name], "float64") for name in (x, value))
    places = np.unique(at)
    means = np.array([_mean(reached[at == place]) for place in places])
    (ax,) = canvas.axes(ax)
    repeated = len(at) > len(places)
    if repeated:
        style = {**_DOTS, "markersize": 4, "color": canvas.GREY, "alpha": 0.7}
        ax.plot(at, reached, label="trials", **style)
    there = ~np.isnan(means)
    style = {"marker": "o", "markersize": 6, "markeredgecolor": "white"}
    label = "their mean" if repeated else "trials"
    style |= {"color": canvas.BLUE, "linewidth": 1.8, "label": label, "zorder": 3}
    ax.plot(places[there], means[there], **style)
    if not there.all():
        foot = np.full(np.sum(~there), 0.03)
        style = {**_DOTS, "marker": "x", "color": canvas.GREY, "label": "no value"}
        ax.plot(places[~there], foot, transform=ax.get_xaxis_transform(), **style)
    if there.any():
        chosen = _BEST[best](means)
        label = f"{best}: {_title(x)} = {places[chosen]:g}"
        style = {**_DOTS, **_CHOSEN, "markersize": 13, "label": label, "zorder": 4}
        ax.plot(places[chosen], means[chosen], **style)
    if places[0] > 0 and places[-1] / places[0] >= 20:
        ax.set_xscale("log")
    ax.set_xticks(places, [f"{place:g}" for place in places])
    ax.minorticks_off()
    ax.margins(x=0.05, y=0.12)
    canvas.finish(ax, _title(x), _title(value), loc="best")
    return ax


def search_map(
    trials: Mapping[str, Any],
    x: str,
    y: str,
    value: str = "val_loss",
    *,
    best: str = "lowest",
    ax: Any = None,
) -> Any:
    """Draws the results of trials for two hyperparameters, and frames the best.

    A cell is the mean of the trials that share x and y; brighter is better. A cell is
    white if it has no trial, or none with a value.

    Args:
        trials: columns of numbers by their names, with one entry for each trial.
        x: the column of one hyperparameter.
        y: the column of another.
        value: the column of the result.
        best: `"lowest"` or `"highest"`.
        ax: the Axes to draw on. None makes a figure.

    Returns:
        The Axes.

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Fig. nuselection
    """
    from matplotlib.patches import Rectangle

    right, up, reached = (np.asarray(trials[n], "float64") for n in (x, y, value))
    columns, rows = np.unique(right), np.unique(up)
    cells = np.array(
        [
            [_mean(reached[(right == column) & (up == row)]) for column in columns]
            for row in rows
        ]
    )
    (ax,) = canvas.axes(ax)
    mesh = ax.pcolormesh(
        np.arange(len(columns) + 1) - 0.5,
        np.arange(len(rows) + 1) - 0.5,
        np.ma.masked_invalid(cells),
        cmap="viridis" if best == "highest" else "viridis_r",
        edgecolors="white",
        linewidth=1.5,
    )
    ax.figure.colorbar(mesh, ax=ax).outline.set_visible(False)
    if not np.isnan(cells).all():
        _write(ax, mesh, cells)
        row, column = map(int, np.unravel_index(_BEST[best](cells), cells.shape))
        frame = Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False)
        frame.set(edgecolor=canvas.VERMILLION, linewidth=3)
        ax.add_patch(frame)
        label = (
            f"{best}: {_title(y)} = {rows[row]:g}, {_title(x)} = {columns[column]:g}"
        )
        style = {**_DOTS, **_CHOSEN, "marker": "s", "markersize": 9, "label": label}
        ax.plot([], [], **style)
    ax.set_xticks(range(len(columns)), [f"{one:g}" for one in columns])
    ax.set_yticks(range(len(rows)), [f"{one:g}" for one in rows])
    ax.tick_params(length=0)
    ax.set_title(_title(value), loc="left", pad=26)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
    canvas.finish(ax, _title(x), _title(y), borderaxespad=0.2, borderpad=0.2, **place)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return ax


def _mean(values: Array) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else np.nan


def _title(name: str) -> str:
    by = name.removeprefix("val_")
    if name != by and by in CRITERIA:
        return f"validation {'loss' if by == 'loss' else CRITERIA[by].title}"
    return SYMBOLS.get(name, name.replace("_", " "))


def _write(ax: Any, mesh: Any, cells: Array) -> None:
    """Writes the values into the cells, with enough digits to distinguish them."""
    spread = np.nanmax(cells) - np.nanmin(cells)
    digits = 3 if spread == 0 else int(np.clip(2 - np.floor(np.log10(spread)), 1, 4))
    for (row, column), cell in np.ndenumerate(cells):
        if not np.isnan(cell):
            bright = np.dot(mesh.to_rgba(cell)[:3], (0.2126, 0.7152, 0.0722)) > 0.45
            style = {"ha": "center", "va": "center", "fontsize": "small"}
            style["color"] = canvas.BLACK if bright else "white"
            ax.text(column, row, f"{cell:.{digits}f}", **style)


# --- The figure of a search ---------------------------------------------------------


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
    settings = list(zip(*(columns[n] for n in (*numbers, *others)), strict=True))
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
            shown = {name: columns[name][inside] for name in numbers}
            shown["val_" + by] = np.where(complete, columns["val_" + by], np.nan)[
                inside
            ]
            draw(shown, *numbers, f"val_{by}", best=criterion.superlative, ax=ax)
        words = ", ".join(f"{n} {v}" for n, v in zip(others, part, strict=True))
        if words:
            title = f"{words}\n{row[0].get_title(loc='left')}".strip()
            # A map has its legend between title and cells.
            row[0].set_title(title, loc="left", pad=26 if len(numbers) == 2 else None)
    return figure
