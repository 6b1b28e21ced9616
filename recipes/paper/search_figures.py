"""Figures of hyperparameter searches; the paper prints no numbers of its own."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.losses import ALL_TITLES
from recipes.paper.groups import MODELS, dataset_title
from recipes.paper.picture import Picture, slug
from recipes.request import RunError
from recipes.runs import CONFIG, Run
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
