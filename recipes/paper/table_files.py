"""The paper's tables in LaTeX, and the files of all forms."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from recipes.paper.tables import (
    TABLES,
    Measured,
    PaperTable,
    markdown,
    measured,
    table_csv,
    text_tables,
)
from recipes.runs import Run


def latex(
    found: Sequence[Measured],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
) -> str:
    """Returns the tables in LaTeX."""
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for paper, table in text_tables(found, fit_on, tables):
        lines += [
            "",
            r"\begin{table*}[htbp]",
            rf"\caption{{{_in_latex(f'{table.title}. {table.caption}')}}}",
            rf"\label{{tab:{paper.label}}}",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{@{{}}{'l' * len(table.heading)}@{{}}}}",
            r"\toprule",
            rf"{' & '.join(table.heading)} \\",
        ]
        for title, *cells in table.rows:
            if not cells:
                text = rf"\textbf{{{_in_latex(title)}}}"
                span = rf"\multicolumn{{{len(table.heading)}}}{{@{{}}l}}{{{text}}}"
                lines += [r"\midrule", rf"{span} \\"]
                continue
            indent = r"\hspace{1em}" if title.startswith("+") else ""
            row = " & ".join([indent + _in_latex(title), *map(_in_latex, cells)])
            lines.append(rf"{row} \\")
        lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]
    return "\n".join([*lines, ""])


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "²": "$^2$",
    "±": r"$\pm$",
}


def _in_latex(text: str) -> str:
    escaped = "".join(_LATEX.get(mark, mark) for mark in text)
    return re.sub(r"\*\*(.*?)\*\*", r"\\textbf{\1}", escaped)


def write_tables(
    runs: Iterable[Run],
    folder: str | os.PathLike[str],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
    **selected: Any,
) -> tuple[list[Path], list[str]]:
    """Writes `tables.md`, `tables.csv` and `tables.tex`.

    Args:
        runs: finished runs, of any data sets and models.
        folder: where to write; created if it does not exist.
        fit_on: where calibrators are fitted: `"val"`, `"train"`, or `"paper"` for T
            on validation images and Meta-Cal on training images.
        tables: those of `TABLES` to write.
        **selected: `pairs` and `columns`, as in `measured`.

    Returns:
        The files, and notes on what the tables leave out.
    """
    found, notes = measured(runs, fit_on, tables, **selected)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "tables.md": markdown(found, notes, fit_on, tables),
        "tables.csv": table_csv(found, tables),
        "tables.tex": latex(found, fit_on, tables),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts], notes
