"""The section on abstention: the risk-coverage plot, its slider and its table."""

from html import escape

from keras_selcal.report.html.markup import details, grouped, key, line_style, table
from keras_selcal.report.html.subject import Subject

# Coverages of the table that replaces the slider.
_COVERAGES = (0.05, *(i / 10 for i in range(1, 10)), 0.95, 0.99, 1.0)


def abstention(subject: Subject) -> str:
    """Returns the risk-coverage plot and its slider, "" if there is no ranking."""
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
        "<p>A model that may answer “I do not know” can make fewer mistakes. Choose "
        "the share of cases that it answers; it answers those with the highest "
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
        + "<p>A threshold that is chosen with the slider performs better on these "
        'cases than on new ones; <a href="#advice">What to do</a> has thresholds with '
        "a guarantee.</p>"
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
        rows = [subject.figures(i, point) for point in points]
        for row in rows:
            row[1] = grouped(row[1])
        tables += table(caption, head, rows)
    return tables
