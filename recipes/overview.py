"""What the commands print on runs, and on what can be trained."""

from collections.abc import Sequence
from typing import Any

from recipes import data, losses, settings
from recipes.progress import console
from recipes.runs import CONFIG, Run, runs_in
from recipes.tables import Table, comparisons, setting_of
from recipes.tasks import RunError


def usable(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Returns finished runs, one for each seed of a setting, and why others are not.

    A second run of a seed says nothing about the deviation between seeds.
    """
    usable: dict[str, Run] = {}
    notes = []
    for run in runs:
        if (problem := run.problem()) is not None:
            notes.append(problem)
            continue
        config = run.config()
        same = usable.setdefault(repr((setting_of(config), config["seed"])), run)
        if same is not run:
            notes.append(f"{run.folder} has the settings and the seed of {same.folder}")
    return [*usable.values()], notes


def print_tables(
    runs: Sequence[Run], output: Any, split: str = "test", file: str | None = None
) -> None:
    """Prints the comparison of finished runs, and writes it to a Markdown file."""
    made = comparisons(runs, split=split)
    for table in made:
        output.print(table.rich(bold=output.is_terminal))
    if file is not None:
        with open(file, "w", encoding="utf-8") as target:
            target.write("\n".join(f"{table.markdown()}\n" for table in made))


def finished(paths: Sequence[str]) -> list[Run]:
    """Returns the finished runs; there may be none unless the user names some."""
    runs = runs_in(paths or ["runs"])
    if not paths:
        runs = [run for run in runs if (run.folder / CONFIG).exists()]
    found, notes = usable(runs)
    if paths and not found:
        raise RunError("; ".join(notes))
    for note in notes:
        print(f"left out: {note}")
    return found


def print_names() -> None:
    """Prints data sets, models and losses, and the paper's settings."""
    # A file gets the whole table, whatever the width of the terminal.
    output = console()
    if not output.is_terminal:
        output.width = 160
    own = ", ".join(f"{kind}:PATH" for kind in settings.OWN)
    output.print(f"data sets  {', '.join(data.NAMES)}, {own}", soft_wrap=True)
    kinds = {"models   ": "", "KerasCV  ": "keras_cv_", "KerasHub ": "keras_hub_"}
    for title, prefix in kinds.items():
        shown = [
            name
            for name in settings.MODELS
            if name.startswith(prefix or "keras_") == bool(prefix)
        ]
        output.print(f"{title}  {', '.join(shown)}", soft_wrap=True)
    named = (f"{name} ({title})" for name, title in losses.ALL_TITLES.items())
    output.print(f"losses     {', '.join(named)}, module:Name", soft_wrap=True)
    rows = settings.rows()
    output.print(Table(list(rows[0]), [list(row.values()) for row in rows]).rich())
    output.print(
        "The models of the first line are the paper's and small ones, for images of "
        "32 × 32, and mlp for features; those of KerasCV and KerasHub are for larger "
        "photographs, and take ImageNet weights by --preset. KerasCV is no longer "
        "developed. AU has constant weights (w = 0), not the paper's gradient. ν is "
        "the paper's; with "
        "--set loss.weight_gradient above 0, functional.paper_smoothing converts that "
        "of msp.",
        soft_wrap=True,
    )
