"""The section on slices of the samples."""

import math
from html import escape

from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import details, table, with_interval
from keras_selcal.report.html.numbers import (
    count,
    interval_of,
    round_percent,
    value_of,
)
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.slices import SHOWN, ranking_notes

# Rows of a table, beside those that the reader opens.
_FEW_ROWS = 12

_VERDICTS = {
    "better": "✓ better than the rest",
    "worse": "✗ worse than the rest",
    "undecided": "no clear difference",
    "few": "too few to tell",
}


def slices(subject: Subject) -> str:
    """Returns the metrics of each slice, "" if there are none."""
    if subject.missing or not subject.first.columns:
        return ""
    contents = [_table(report) if report.columns else "" for report in subject.reports]
    notes = ranking_notes(subject.first)
    return (
        "<p>A model can be good on average and bad for some. Each row has the samples "
        "with one value, such as one site.</p>"
        + subject.each(contents, "stack")
        + "".join(f"<p>{note}</p>" for note in notes)
    )


def _table(report: Evaluation) -> str:
    """Returns the metrics of the slices of a model."""
    shown = [report.rows[name] for name in SHOWN]
    rows = []
    for each in report.slices.values():
        part, verdict = each.report, _VERDICTS[each.verdict]
        size = f"{count(part.num_samples)} samples"
        if report.num_groups is not None:
            size += f" in {count(part.num_units)} groups"
        cells = [
            f'<bdi dir="auto">{escape(each.title)}</bdi><small>{size}</small>'
            f'<span class="difference {each.verdict}">{verdict}</span>'
        ]
        for about in shown:
            value, low, high = each[about.name]
            interval = None if math.isnan(low) else interval_of(low, high, about.unit)
            cells.append(
                f'<span class="of">{about.short}</span>'
                + with_interval(value_of(value, about.unit), interval)
            )
        rows.append(cells)
    head = ["Slice", *(about.short for about in shown)]
    level = round_percent(report.confidence_level)
    intervals = f", with {level} intervals" if report.bootstrap else ""

    def part_of(shown: list[list[str]], which: str) -> str:
        number = f"{which} {len(shown)} of {len(rows)}"
        if len(shown) == len(rows):
            number = f"All {len(rows)}"
        caption = f"{number} slices, the worst first{intervals}"
        return table(caption, head, shown, "metrics side")

    if len(rows) <= _FEW_ROWS + 3:
        return part_of(rows, "")
    more = rows[_FEW_ROWS:]
    return part_of(rows[:_FEW_ROWS], "The first") + details(
        f"{len(more)} more slices", part_of(more, "The next")
    )
