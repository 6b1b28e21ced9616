"""Figures of hyperparameter searches, and of the paper's choices."""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal.plots import canvas
from recipes import search_plots, settings
from recipes.losses import TITLES
from recipes.paper.groups import MODELS, dataset_title
from recipes.paper.loss_figures import TURN
from recipes.paper.picture import Picture, axes
from recipes.paper.run_figures import slug
from recipes.runs import CONFIG, Run, RunError

_CRITERIA = {"val_nll": "min", "val_accuracy": "max", "val_ece": "min"}
# Columns of the file that are not hyperparameters.
_RESULTS = ("seed", "val_loss", *_CRITERIA, "epoch", "run", "state")


class SearchResults(NamedTuple):
    """The results of a search, as `python -m recipes search` writes them.

    Attributes:
        title: loss, model and data set.
        name: name of the folder.
        columns: the columns of the file: numbers, NaN where one is missing, or texts.
    """

    title: str
    name: str
    columns: dict[str, Any]

    def varied(self) -> tuple[list[str], list[str]]:
        """Returns the hyperparameters that vary: numbers, ν first, and others."""
        varied = [
            name
            for name, column in self.columns.items()
            if name not in _RESULTS and len(np.unique(column)) > 1
        ]
        numbers = [name for name in varied if self.columns[name].dtype.kind == "f"]
        numbers.sort(key=lambda name: name != "smoothing")
        return numbers, [name for name in varied if name not in numbers]


def read_search(path: str | os.PathLike[str]) -> SearchResults:
    """Reads the CSV file of a search."""
    path = Path(path)
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        names = reader.fieldnames or []
    if "val_loss" not in names or not rows:
        raise RunError(f"{path} is not the file of a search: it has no val_loss.")
    columns = {name: _numbers([row[name] for row in rows]) for name in names}
    name = path.absolute().parent.name
    return SearchResults(_title(path, rows) or name, name, columns)


def _numbers(texts: list[str]) -> Any:
    try:
        return np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return np.array(texts)


def _title(path: Path, rows: list[dict[str, str]]) -> str | None:
    """Returns what was searched, if the folder of a run is there to tell."""
    for row in rows:
        folder = path.parent / row.get("run", "")
        if row.get("run") and (folder / CONFIG).exists():
            config = Run(folder).config()
            model = MODELS.get(config["model"], config["model"])
            dataset = dataset_title(config["dataset"])
            return f"{TITLES[config['loss']]}, {model} on {dataset}"
    return None


def of_searches(
    searches: Sequence[SearchResults], label: str, notes: list[str]
) -> Iterator[Picture]:
    """fig:gammaselection for searches of one number, fig:nuselection for two."""
    count = 1 if label == "gammaselection" else 2
    drawn = False
    for search in searches:
        numbers, others = search.varied()
        if len(numbers) == count:
            drawn = True
            yield _picture(search, label, numbers, others)
        elif count == 1 and len(numbers) != 2:
            notes.append(
                f"{search.title}: a search over {' × '.join([*numbers, *others])} "
                "makes neither a curve nor a map."
            )
    if not drawn:
        what = "over one number, such as γ," if count == 1 else "over ν and κ"
        notes.append(f"fig:{label} of ours: no search {what} was given by --search.")


def _picture(
    search: SearchResults, label: str, numbers: list[str], others: list[str]
) -> Picture:
    columns = search.columns
    criteria = {name: best for name, best in _CRITERIA.items() if name in columns}
    if "val_nll" not in columns:
        criteria = {"val_loss": "min", **criteria}
    keys = list(zip(*(columns[name] for name in others), strict=True))
    keys = keys or [()] * len(columns["val_loss"])
    parts = list(dict.fromkeys(keys))
    panels = axes(len(parts), len(criteria), 4.6, 3.9)
    draw: Any = search_plots.search_curve
    if len(numbers) == 2:
        draw = search_plots.search_map
    for row, part in zip(panels, parts, strict=True):
        inside = np.array([key == part for key in keys])
        shown = {name: column[inside] for name, column in columns.items()}
        for ax, (value, best) in zip(row, criteria.items(), strict=True):
            draw(shown, *numbers, value, best=best, ax=ax)
        if others:
            pairs = zip(others, part, strict=True)
            words = ", ".join(f"{name} {value}" for name, value in pairs)
            row[0].set_title(
                f"{words}\n{row[0].get_title(loc='left')}".strip(),
                loc="left",
                pad=26 if len(numbers) == 2 else None,
            )
    lost = int(np.isnan(columns[next(iter(criteria))]).sum())
    without = f", {lost} of them without a result" if lost else ""
    nll = "NLL, the cross-entropy, is comparable between settings. "
    return Picture(
        f"{label}-{slug(search.name)}",
        f"Search: {search.title}",
        f"fig:{label}, of our search: {search.title}. Validation set, {len(keys)} runs"
        f"{without}. {nll if 'val_nll' in criteria else ''}"
        "Runs that differ only in the seed are averaged.",
        panels[0, 0].figure,
    )


# --- The paper's choices ------------------------------------------------------------


def published_gamma() -> Picture:
    """fig:gammaselection: the γ that the paper chose."""
    names = [f"{MODELS[m]}, {dataset_title(d)}" for d, m in settings.TUNED]
    tuned = settings.TUNED.values()
    rows = np.arange(len(names))[::-1]
    ((ax,),) = axes(1, 1, 7.0, 4.4)
    # Shifted, so that both markers are visible where the values are equal.
    for colour, marker, label, values, shift in (
        (canvas.BLUE, "o", "Inv. FL", [one.inverse for one in tuned], 0.12),
        (canvas.VERMILLION, "D", "Dual", [one.dual for one in tuned], -0.12),
    ):
        ax.plot(values, rows + shift, marker, color=colour, markersize=7, label=label)
    ax.plot(
        [TURN, TURN],
        [-0.6, len(names) - 0.4],
        color=canvas.BLUE,
        linestyle="--",
        linewidth=1.2,
        label=f"Inv. FL: positive gradients from γ = {TURN}",
    )
    ax.set_yticks(rows, names)
    ax.set_xlim(0, 7)
    ax.set_ylim(-0.6, len(names) + 0.6)
    canvas.finish(ax, "γ", "", loc="upper right", ncols=3)
    return Picture(
        "gammaselection",
        "γ, as the paper chose it",
        "fig:gammaselection. The paper plots the validation performance on "
        "Tiny-ImageNet against γ without printing the numbers. These are the γ that it "
        "chose by validation loss (tb:gammaforinvdual).",
        ax.figure,
    )


def published_region() -> Picture:
    """fig:nuselection: the κ and ν that the paper chose."""
    ((ax,),) = axes(1, 1, 7.0, 4.6)
    points: dict[str, dict[tuple[float, float], list[str]]] = {}
    for (dataset, model), tuned in settings.TUNED.items():
        of_dataset = points.setdefault(dataset, {})
        key = (tuned.smoothing, tuned.coverage)
        of_dataset.setdefault(key, []).append(MODELS[model])
    # The markers of CIFAR-10 are larger, so that those of the others do not hide them.
    styles = (
        ("o", 13, canvas.BLUE),
        ("D", 7, canvas.VERMILLION),
        ("s", 7, canvas.GREEN),
    )
    for (marker, size, colour), (dataset, found) in zip(
        styles, points.items(), strict=True
    ):
        x, y = zip(*found, strict=True)
        label = dataset_title(dataset)
        ax.plot(x, y, marker, markersize=size, color=colour, label=label)
        right = dataset == "cifar10"
        for place, members in found.items():
            ax.annotate(
                ", ".join(members),
                place,
                xytext=(9 if right else -9, 0),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                fontsize="small",
            )
    ax.set_xscale("log")
    ax.set_xlim(0.0018, 0.5)
    ax.set_ylim(0.3, 1)
    ticks = [0.005, 0.01, 0.05, 0.1]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    canvas.finish(ax, "ν", "κ: low-confidence coverage", loc="lower left")
    return Picture(
        "nuselection",
        "ν and κ, as the paper chose them",
        "fig:nuselection. The paper plots the validation performance of PreResNet56 on "
        "CIFAR-10 over ν and κ without printing the numbers. These are the κ "
        "(tb:thresholdforau) and ν that it chose for the AU loss of each model, as "
        "printed.",
        ax.figure,
    )
