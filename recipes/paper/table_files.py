"""Writes the paper's tables to files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from recipes.paper.latex import latex
from recipes.paper.tables import TABLES, PaperTable, markdown, measured, table_csv
from recipes.runs import Run


def write_tables(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
) -> tuple[list[Path], list[str]]:
    """Writes `tables.md`, `tables.csv` and `tables.tex`.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; created if it does not exist.
        fit_on: the split on which calibrators are fitted: `"val"` or `"train"`.
        tables: those of `TABLES` that the Markdown and LaTeX files show.

    Returns:
        The files, and notes on what the tables leave out.
    """
    found, notes = measured(runs, fit_on)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "tables.md": markdown(found, notes, fit_on, tables),
        "tables.csv": table_csv(found),
        "tables.tex": latex(found, fit_on, tables),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts], notes
