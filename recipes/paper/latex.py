"""The paper's tables in LaTeX."""

from collections.abc import Sequence

from recipes.losses import TITLES
from recipes.paper.tables import TABLES, Measured, PaperTable, caption, cell_text, rows


def latex(
    found: Sequence[Measured],
    fit_on: str = "val",
    tables: Sequence[PaperTable] = TABLES,
) -> str:
    """Returns the tables in LaTeX."""
    lines = [r"% \usepackage{booktabs,graphicx}"]
    for table in tables:
        title = f"{table.title}. {caption(table, found, fit_on)}"
        lines += [
            "",
            r"\begin{table*}[htbp]",
            rf"\caption{{{_in_latex(title)}}}",
            rf"\label{{tab:{table.label}}}",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{@{{}}l{'l' * len(TITLES)}@{{}}}}",
            r"\toprule",
            rf"& {' & '.join(TITLES.values())} \\",
        ]
        heading = ""
        for row in rows(table, found):
            if row.heading != heading:
                heading = row.heading
                text = rf"\textbf{{{_in_latex(heading)}}}"
                span = rf"\multicolumn{{{1 + len(TITLES)}}}{{@{{}}l}}{{{text}}}"
                lines += [r"\midrule", rf"{span} \\"]
            indent = "" if row.posthoc == "none" else r"\hspace{1em}"
            cells = [
                cell_text(numbers, r"\textbf{{{}}}").replace("±", _LATEX["±"])
                for numbers in row.cells.values()
            ]
            lines.append(rf"{indent}{_in_latex(row.title)} & {' & '.join(cells)} \\")
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
    return "".join(_LATEX.get(mark, mark) for mark in text)
