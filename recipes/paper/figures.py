"""The paper's figures: `python -m recipes figures RUNS -o FOLDER`.

Each figure is named after the paper's label. Figures of formulas or of numbers that the
paper prints are always drawn. Figures of runs and of searches are drawn from those that
are given, and are named after the label and the runs.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from recipes.paper import loss_figures, run_figures, search_figures, training_figures
from recipes.paper.picture import Picture
from recipes.paper.search_figures import SearchResults
from recipes.runs import Run


def write_figures(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    *,
    searches: Iterable[str | os.PathLike[str]] = (),
    formats: Iterable[str] = (),
    epochs: int | None = None,
) -> tuple[list[Path], list[str]]:
    """Writes every figure that can be drawn, and `figures.md`, which shows them.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; created if it does not exist.
        searches: CSV files that `python -m recipes search` wrote.
        formats: `"pdf"` or `"svg"`, in addition to PNG.
        epochs: length of the training that two of the figures show. Defaults to that
            of the settings of `digits`.

    Returns:
        The files, and notes on what is left out or was trained with other settings.
    """
    folder = Path(folder)
    notes: list[str] = []
    # Read before the training, which a file that cannot be read should not cost.
    found = [search_figures.read_results(path) for path in searches]
    folder.mkdir(parents=True, exist_ok=True)
    written, sections = [], ["# The paper's figures"]
    names: set[str] = set()
    example = training_figures.example(folder, epochs)
    for picture in pictures(list(runs), found, example, notes):
        name = picture.name
        while name in names:  # searches in folders of one name
            name += "+"
        names.add(name)
        for kind in dict.fromkeys(("png", *formats)):
            path = folder / f"{name}.{kind}"
            picture.figure.savefig(path, dpi=120)
            written.append(path)
        shown = f"![{picture.title}]({name}.png)"
        sections += [f"## {picture.title}", shown, picture.caption]
    if notes:
        sections += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    page = folder / "figures.md"
    page.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    return [*written, page], notes


def pictures(
    runs: list[Run], searches: list[SearchResults], example: Run, notes: list[str]
) -> Iterator[Picture]:
    """Yields the pictures in the paper's order."""
    yield loss_figures.weight_and_loss()
    yield run_figures.published_reliability()
    yield from run_figures.reliability_of_runs(runs, notes)
    yield from run_figures.influence_of_csf(runs, notes)
    yield loss_figures.gradient_comparison()
    yield loss_figures.dual_focal()
    yield training_figures.gradients_over_epochs(example)
    yield from training_figures.gradients_of_runs(runs)
    yield from search_figures.of_searches(searches, "gammaselection", notes)
    yield training_figures.smoothing(example)
    yield from search_figures.of_searches(searches, "nuselection", notes)
    yield training_figures.gradient_by_nu(example)
