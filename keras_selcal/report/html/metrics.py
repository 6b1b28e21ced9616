"""The table of all metrics, with the differences of several models."""

import math

from keras_selcal.report.comparison import Comparison
from keras_selcal.report.html.markup import table, with_interval
from keras_selcal.report.html.numbers import (
    interval_of,
    round_percent,
    scaled,
    signed,
    value_of,
)
from keras_selcal.report.html.subject import Subject

_VERDICTS = {
    "better": "✓ better",
    "worse": "✗ worse",
    "equal": "= equal",
    "undecided": "undecided",
}


def metrics(subject: Subject) -> str:
    """Returns every metric of each model, compared with the first."""
    rows, outside = [], False
    for metric, about in subject.first.rows.items():
        cells = []
        for i, report in enumerate(subject.reports):
            value, low, high = report[metric]
            interval = None
            if not math.isnan(low):
                beyond = value < low or value > high
                outside |= beyond
                interval = interval_of(low, high, about.unit) + " *" * beyond
            cell = f'<span class="of">{subject.tag(i)}</span>' * subject.several
            cell += with_interval(value_of(value, about.unit), interval)
            if i:
                cell += _difference(subject.comparisons[i - 1], metric)
            cells.append(cell)
        better = about.better.capitalize()
        meaning = f"{subject.first.meaning(metric)} <em>{better} is better.</em>"
        title = f"{about.title} <code>{metric}</code><small>{meaning}</small>"
        rows.append([title, *cells])
    heads = [subject.tag(i) for i in range(len(subject.reports))]
    level = round_percent(subject.first.confidence_level)
    caption = "Each metric"
    if subject.first.bootstrap:
        caption += f", with its {level} interval below"
    if subject.several:
        caption += "; then the difference to the first model"
    content = table(
        caption,
        ["Metric", *(heads if subject.several else ["Value"])],
        rows,
        "metrics side" if subject.several else "metrics",
    )
    notes = ["* The value lies outside its interval."] if outside else []
    if subject.several and subject.first.bootstrap:
        notes.append(
            "The models are evaluated on the same resamples: the difficulty of "
            "a resample cancels in a difference. Undecided: its interval contains 0, "
            "and it may be due to chance. Among many metrics, one may be decided by "
            "chance, too."
        )
    elif subject.several:
        notes.append("Without resamples, no difference can be told from chance.")
    return content + "".join(f"<p>{note}</p>" for note in notes)


def _difference(comparison: Comparison, metric: str) -> str:
    """Returns a difference, with its interval and what that decides."""
    value, low, high, *_ = comparison[metric]
    unit = comparison.first.rows[metric].unit
    text, verdict = signed(value, unit), "undecided"
    if not math.isnan(low):
        verdict = comparison.verdict(metric)
        text = f"{_VERDICTS[verdict]}: {text} ({scaled(low, unit, '+')} to "
        text += f"{scaled(high, unit, '+')})"
    return f'<span class="difference {verdict}">{text}</span>'
