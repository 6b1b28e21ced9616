"""The sections of a page, as HTML; "" if a section has nothing to show."""

import math
from collections.abc import Callable
from html import escape

from keras_selcal.report.comparison import Comparison
from keras_selcal.report.html import words
from keras_selcal.report.html.calibration import labels, reliability
from keras_selcal.report.html.markup import (
    details,
    key,
    line_style,
    table,
    with_interval,
)
from keras_selcal.report.html.mistakes import mistakes
from keras_selcal.report.html.numbers import (
    NONE,
    interval_of,
    round_percent,
    signed,
    value_of,
)
from keras_selcal.report.html.sets import prediction_sets
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.html.unknown import drift, unknown_inputs

# Coverages of the table that replaces the slider.
_COVERAGES = (0.05, *(i / 10 for i in range(1, 10)), 0.95, 0.99, 1.0)

_VERDICTS = {
    "better": "✓ better",
    "worse": "✗ worse",
    "equal": "= equal",
    "undecided": "undecided",
}

# What a verdict on the three main metrics says about a model.
_TOLD = {
    "accuracy": {
        "better": "is right more often",
        "worse": "is right less often",
        "equal": "is right equally often",
        "undecided": "may be right equally often",
    },
    "ece": {
        "better": "is better calibrated",
        "worse": "is worse calibrated",
        "equal": "is equally well calibrated",
        "undecided": "may be equally well calibrated",
    },
    "aurc": {
        "better": "makes fewer mistakes in its most confident predictions",
        "worse": "makes more mistakes in its most confident predictions",
        "equal": "makes equally many mistakes in its most confident predictions",
        "undecided": "may make equally many mistakes in its most confident predictions",
    },
}


def _glance(subject: Subject) -> str:
    if subject.missing:
        return subject.missing
    contents = []
    for report in subject.reports:
        cards = "".join(
            f'<div class="card"><p class="question">{card.question}</p>'
            f'<p class="answer">{card.answer}</p><p>{card.words}</p></div>'
            for card in words.glance(report)
        )
        contents.append(f'<div class="cards">{cards}</div>')
    return subject.each(contents, "stack")


def _comparison(subject: Subject) -> str:
    if not subject.several:
        return ""
    base, contents = subject.names[0], []
    for report, name in zip(subject.reports[1:], subject.names[1:], strict=True):
        comparison = Comparison(report, subject.first)
        contents.append(
            f"<h3>{escape(name)} against {escape(base)}</h3>"
            + _verdict(comparison, name, base)
            + _differences(comparison, name, base)
        )
    note = (
        "Both models are evaluated on the same resamples, so that the difficulty of a "
        "resample cancels. Undecided: the interval contains 0, and the difference may "
        "be due to chance. Among many metrics, one may be decided by chance, too."
        if subject.first.bootstrap
        else "Without resamples, differences cannot be distinguished from chance."
    )
    return "".join(contents) + f"<p>{note}</p>"


def _verdict(comparison: Comparison, name: str, base: str) -> str:
    if math.isnan(comparison["accuracy"].low):
        return ""
    told = [says[comparison.verdict(metric)] for metric, says in _TOLD.items()]
    return (
        f"<p>Compared with <strong>{escape(base)}</strong>, "
        f"<strong>{escape(name)}</strong> {told[0]}, {told[1]}, and {told[2]}.</p>"
    )


def _differences(comparison: Comparison, name: str, base: str) -> str:
    rows = []
    for metric, difference in comparison.items():
        about, interval, verdict = comparison.first.rows[metric], None, NONE
        if not math.isnan(difference.low):
            low, high = (signed(end, about.unit) for end in difference[1:3])
            interval = f"{low} to {high}"
            kind = comparison.verdict(metric)
            verdict = f'<span class="{kind}">{_VERDICTS[kind]}</span>'
        values = (
            value_of(x, about.unit) for x in (difference.second, difference.first)
        )
        rows.append(
            [
                f"{about.title}<small>{' → '.join(values)}</small>",
                with_interval(signed(difference.value, about.unit), interval),
                verdict,
            ]
        )
    level = round_percent(comparison.first.confidence_level)
    caption = f"{escape(name)} minus {escape(base)}, with {level} intervals"
    return table(
        caption, ["Metric", "Difference", f"{escape(name)} is"], rows, "metrics"
    )


def _selection(subject: Subject) -> str:
    if subject.stops is None or subject.picture is None:
        return ""
    legend = key(
        *(
            (
                f"curve {line_style(i)}",
                escape(subject.names[i]) if subject.several else "this model",
            )
            for i in subject.stops.models
        ),
        ("best", "if it left out its mistakes first"),
        ("random", "if it left out cases at random"),
    )
    start = subject.stops.at_least(min(subject.first.coverages, default=0.8))
    return (
        "<p>A model that may answer “I do not know” makes fewer mistakes. Choose the "
        "share of cases that it answers; it answers those with the highest "
        "confidence.</p>"
        f'<div class="pair"><figure>{subject.picture.svg()}'
        '<div class="slider" hidden><label for="coverage">Share of cases that it '
        'answers: <b id="share"></b></label>'
        '<input type="range" id="coverage" min="0" step="1" '
        f'max="{len(subject.stops.stops) - 1}" value="{start}"></div>{legend}</figure>'
        f'<div class="outcome" hidden>{_outcomes(subject)}'
        '<p class="key split-key"><span class="right">right</span> '
        '<span class="wrong">wrong</span> <span class="left">unanswered</span></p>'
        '<p><output id="said" for="coverage"></output></p></div></div>'
        "<noscript><p>The slider needs JavaScript. The table shows some "
        "coverages.</p></noscript>"
        + details("Some coverages as a table", _coverages(subject))
        + "<p>A threshold that is chosen on these samples performs better on them than "
        "on new ones. Choose it on other samples; "
        "<code>keras_selcal.select_threshold</code> gives one with a guarantee.</p>"
    )


def _outcomes(subject: Subject) -> str:
    """Returns the elements that the script fills with the figures of a stop."""
    assert subject.stops is not None
    csf = subject.first.csf.__name__
    score = "confidence" if csf == "msp" else f"<code>{escape(csf)}</code>"
    labels = {
        "answered": "Answered",
        "left": "Left unanswered",
        "wrong": "Wrong among the answered",
        "risk": "Share of these wrong (selective risk)",
        "threshold": f"Threshold: answers if {score} is at least",
    }
    tiles = "".join(
        f'<div><dt>{label}</dt><dd data-field="{field}"></dd></div>'
        for field, label in labels.items()
    )
    return "".join(
        f'<div class="chosen">{f"<h3>{subject.tag(i)}</h3>" if subject.several else ""}'
        '<svg class="split" viewBox="0 0 100 6" preserveAspectRatio="none" '
        'aria-hidden="true"><rect class="left" width="100" height="6"/>'
        '<rect class="right" height="6"/><rect class="wrong" height="6"/></svg>'
        f'<dl class="tiles">{tiles}</dl></div>'
        for i in subject.stops.models
    )


def _coverages(subject: Subject) -> str:
    assert subject.stops is not None
    stops = sorted({subject.stops.at_least(coverage) for coverage in _COVERAGES})
    head = ["Coverage", "Threshold", "Answered", "Left", "Wrong", "Risk"]
    tables = ""
    for i in subject.stops.models:
        points = sorted({subject.stops.stops[stop][i] for stop in stops})
        caption = escape(subject.names[i]) if subject.several else "Some coverages"
        tables += table(caption, head, [subject.figures(i, point) for point in points])
    return tables


def _metrics(subject: Subject) -> str:
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
            name = f'<span class="of">{subject.tag(i)}</span>' * subject.several
            cells.append(name + with_interval(value_of(value, about.unit), interval))
        better = about.better.capitalize()
        meaning = f"{subject.first.meaning(metric)} <em>{better} is better.</em>"
        title = f"{about.title} <code>{metric}</code><small>{meaning}</small>"
        rows.append([title, *cells])
    heads = [subject.tag(i) for i in range(len(subject.reports))]
    level = round_percent(subject.first.confidence_level)
    below = f", with its {level} interval below" if subject.first.bootstrap else ""
    content = table(
        f"Each metric{below}",
        ["Metric", *(heads if subject.several else ["Value"])],
        rows,
        "metrics side" if subject.several else "metrics",
    )
    if outside:
        content += (
            "<p>* The value lies outside its interval: resampling adds noise, which "
            "can only raise this metric.</p>"
        )
    return content


def _mistakes(subject: Subject) -> str:
    if not subject.mistakes or subject.missing:
        return ""
    contents = [mistakes(subject, report) for report in subject.reports]
    return subject.each(contents, "stack") if any(contents) else ""


SECTIONS: dict[str, tuple[str, Callable[[Subject], str]]] = {
    "glance": ("At a glance", _glance),
    "comparison": ("Comparison", _comparison),
    "reliability": ("Is it right as often as it claims?", reliability),
    "labels": ("Label by label", labels),
    "abstain": ("How much should it answer?", _selection),
    "sets": ("How many classes must it name?", prediction_sets),
    "unknown": ("Inputs it has never seen", unknown_inputs),
    "drift": ("Are these data like those of the fit?", drift),
    "metrics": ("All metrics", _metrics),
    "mistakes": ("The most confident mistakes", _mistakes),
}
