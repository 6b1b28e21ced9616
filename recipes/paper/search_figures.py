"""Figures of hyperparameter searches; the paper prints no numbers of its own."""

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal.plots import canvas
from recipes import losses
from recipes.evaluation import METRICS
from recipes.paper.groups import MODELS, dataset_title
from recipes.paper.picture import Picture, slug
from recipes.runs import CONFIG, Run
from recipes.search import SHOWN
from recipes.settings import SYMBOLS
from recipes.tasks import RunError

# Columns of a search's CSV that are not searched.
_RESULTS = ("seed", "epoch", "run", "state", "val_loss")
_ROWS = 6
_ARGBEST = {"lowest": np.nanargmin, "highest": np.nanargmax}
_DOTS = {"linestyle": "none", "marker": "o"}
_CHOSEN = {
    "markerfacecolor": "none",
    "markeredgecolor": canvas.VERMILLION,
    "markeredgewidth": 2,
}


def search_curve(
    trials: Mapping[str, Any],
    x: str,
    value: str = "val_nll",
    *,
    ax: Any = None,
) -> Any:
    """Draws the results of trials against a hyperparameter, and marks the best.

    Trials with the same x (of several seeds, for example) are dots, and the line is
    their mean. A cross at the foot marks an x whose trials all have the value NaN.

    Args:
        trials: columns of numbers by their names, with one entry for each trial.
        x: the column of the hyperparameter.
        value: the column of the result, `val_` and a name in `search.SHOWN`.
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
        best = _best(value)
        chosen = _ARGBEST[best](means)
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
    value: str = "val_nll",
    *,
    ax: Any = None,
) -> Any:
    """Draws the results of trials for two hyperparameters, and frames the best.

    A cell is the mean of the trials that share x and y; brighter is better. A cell is
    white if it has no trial, or none with a value.

    Args:
        trials: columns of numbers by their names, with one entry for each trial.
        x: the column of one hyperparameter.
        y: the column of another.
        value: the column of the result, `val_` and a name in `search.SHOWN`.
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
    best = _best(value)
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
        row, column = map(int, np.unravel_index(_ARGBEST[best](cells), cells.shape))
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


def _best(column: str) -> str:
    higher = METRICS[column.removeprefix("val_")].higher
    return "highest" if higher else "lowest"


def _title(column: str) -> str:
    metric = column.removeprefix("val_")
    if metric in SHOWN:
        return f"validation {METRICS[metric].title}"
    return SYMBOLS.get(column, column.replace("_", " "))


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
        if name not in _RESULTS
        and name.removeprefix("val_") not in SHOWN
        and len(np.unique(column)) > 1
    ]
    numbers = [name for name in varied if columns[name].dtype.kind == "f"]
    numbers.sort(key=lambda name: name != "smoothing")
    return numbers, [name for name in varied if name not in numbers]


def search_figure(columns: Mapping[str, Array]) -> Any:
    """Draws every metric of a search over one or two numbers.

    The figure has a column for each metric, and a row for each combination of the other
    varied fields. A setting that lacks the result of a seed is left empty.

    Args:
        columns: the columns of a search, as `read_search` returns them.

    Returns:
        A matplotlib figure, or None if the search has no or more than two varied
        numbers, or too many rows.
    """
    from matplotlib.figure import Figure

    numbers, others = varied_fields(columns)
    count = len(columns["val_nll"])
    keys = list(zip(*(columns[name] for name in others), strict=True)) or [()] * count
    parts = list(dict.fromkeys(keys))
    if not 1 <= len(numbers) <= 2 or len(parts) > _ROWS:
        return None
    settings = list(zip(*(columns[n] for n in (*numbers, *others)), strict=True))
    lost = np.isnan(columns["val_nll"])
    incomplete = {one for one, gone in zip(settings, lost, strict=True) if gone}
    complete = np.array([one not in incomplete for one in settings])
    size = (4.6 * len(SHOWN), 3.9 * len(parts))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(parts), len(SHOWN), squeeze=False)
    draw: Any = search_curve if len(numbers) == 1 else search_map
    for row, part in zip(axes, parts, strict=True):
        inside = np.array([key == part for key in keys])
        for ax, name in zip(row, [f"val_{name}" for name in SHOWN], strict=True):
            shown = {number: columns[number][inside] for number in numbers}
            shown[name] = np.where(complete, columns[name], np.nan)[inside]
            draw(shown, *numbers, name, ax=ax)
        words = ", ".join(f"{n} {v}" for n, v in zip(others, part, strict=True))
        if words:
            title = f"{words}\n{row[0].get_title(loc='left')}".strip()
            # A map has its legend between title and cells.
            row[0].set_title(title, loc="left", pad=26 if len(numbers) == 2 else None)
    return figure


class SearchResults(NamedTuple):
    """The results of a search, as `python -m recipes search` writes them.

    Attributes:
        title: loss, model and data set.
        name: name of the folder.
        columns: the columns of the file.
    """

    title: str
    name: str
    columns: dict[str, Any]


def read_results(path: str | os.PathLike[str]) -> SearchResults:
    """Reads the CSV file of a search."""
    path = Path(path)
    columns = read_search(path.read_text(encoding="utf-8").splitlines())
    if "val_nll" not in columns or not len(columns["val_nll"]):
        raise RunError(f"{path} is not the file of a search: it has no val_nll.")
    name = path.absolute().parent.name
    folders = [path.parent / run for run in columns.get("run", ()) if run]
    for folder in folders:
        if (folder / CONFIG).exists():
            config = Run(folder).config()
            model = MODELS.get(config["model"], config["model"])
            dataset = dataset_title(config["dataset"])
            title = f"{losses.title(config['loss'])}, {model} on {dataset}"
            return SearchResults(title, name, columns)
    return SearchResults(name, name, columns)


def of_searches(
    searches: Sequence[SearchResults], label: str, notes: list[str]
) -> Iterator[Picture]:
    """fig:gammaselection for searches of one number, fig:nuselection for two."""
    count = 1 if label == "gammaselection" else 2
    drawn = False
    for search in searches:
        numbers, others = varied_fields(search.columns)
        figure = search_figure(search.columns)
        if figure is None and count == 1:
            notes.append(
                f"{search.title}: a search over {' × '.join([*numbers, *others])} "
                "makes neither a curve nor a map."
            )
        if figure is None or len(numbers) != count:
            continue
        drawn = True
        values = search.columns["val_nll"]
        lost = int(np.isnan(values).sum())
        without = f", {lost} of them without a result" if lost else ""
        yield Picture(
            f"{label}-{slug(search.name)}",
            f"Search: {search.title}",
            f"fig:{label}, of our search: {search.title}. Validation set, "
            f"{len(values)} runs{without}. NLL, the cross-entropy, is comparable "
            "between settings. Runs that differ only in the seed are averaged.",
            figure,
        )
    if not drawn:
        what = "over one number, such as γ," if count == 1 else "over ν and κ"
        notes.append(f"fig:{label} of ours: no search {what} was given by --search.")
