"""Figures of hyperparameter searches, and of the paper's choices."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal.plots import canvas
from recipes import settings
from recipes.losses import ALL_TITLES
from recipes.paper.groups import MODELS, dataset_title
from recipes.paper.loss_figures import TURN
from recipes.paper.picture import Picture, axes
from recipes.paper.run_figures import slug
from recipes.runs import CONFIG, Run, RunError
from recipes.search_plots import read_search, search_figure, varied_fields


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
    if "val_loss" not in columns or not len(columns["val_loss"]):
        raise RunError(f"{path} is not the file of a search: it has no val_loss.")
    name = path.absolute().parent.name
    folders = [path.parent / run for run in columns.get("run", ()) if run]
    for folder in folders:
        if (folder / CONFIG).exists():
            config = Run(folder).config()
            model = MODELS.get(config["model"], config["model"])
            dataset = dataset_title(config["dataset"])
            title = f"{ALL_TITLES[config['loss']]}, {model} on {dataset}"
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
        losses = search.columns["val_loss"]
        lost = int(np.isnan(losses).sum())
        without = f", {lost} of them without a result" if lost else ""
        yield Picture(
            f"{label}-{slug(search.name)}",
            f"Search: {search.title}",
            f"fig:{label}, of our search: {search.title}. Validation set, "
            f"{len(losses)} runs{without}. NLL, the cross-entropy, is comparable "
            "between settings. Runs that differ only in the seed are averaged.",
            figure,
        )
    if not drawn:
        what = "over one number, such as γ," if count == 1 else "over ν and κ"
        notes.append(f"fig:{label} of ours: no search {what} was given by --search.")


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
