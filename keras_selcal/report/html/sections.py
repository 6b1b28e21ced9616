"""The sections of a page, as HTML; "" if a section has nothing to show."""

import math
from collections.abc import Callable
from html import escape

import numpy as np

from keras_selcal._core.reliability import ReliabilityBins
from keras_selcal.report.comparison import Comparison
from keras_selcal.report.html import pictures, words
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
    count,
    interval_of,
    percent,
    percent_range,
    round_percent,
    signed,
    value_of,
)
from keras_selcal.report.html.subject import Subject

# Coverages of the table that replaces the slider.
_COVERAGES = (0.05, *(i / 10 for i in range(1, 10)), 0.95, 0.99, 1.0)

# Rows and diagrams of the section on labels.
_MOST_LABELS, _MOST_DIAGRAMS = 200, 6

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
    missing = _missing(subject)
    if missing:
        return missing
    contents = []
    for report in subject.reports:
        cards = "".join(
            f'<div class="card"><p class="question">{card.question}</p>'
            f'<p class="answer">{card.answer}</p><p>{card.words}</p></div>'
            for card in words.glance(report)
        )
        contents.append(f'<div class="cards">{cards}</div>')
    return subject.each(contents, "stack")


def _missing(subject: Subject) -> str:
    """Returns why a model has no metrics, "" if all have them."""
    notes = ""
    for name, report in zip(subject.names, subject.reports, strict=True):
        broken = np.isnan(report.samples.confidence)
        if broken.any():
            of = f"{escape(name)}: " if subject.several else ""
            index = report.index[np.argmax(broken)]
            more = int(broken.sum()) - 1
            others = f" (and {count(more)} more)" if more else ""
            notes += (
                f'<p class="alarm"><strong>{of}there are no metrics.</strong> In '
                f"sample {index}{others} the prediction is not a number (NaN).</p>"
            )
    return notes


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


def _reliability(subject: Subject) -> str:
    level = round_percent(subject.first.confidence_level)
    two = subject.first.samples.num_classes == 2
    legend = key(
        ("bar", "observed frequency"),
        ("whisker", f"{level} interval of that (Wilson)"),
        ("said", "mean probability"),
        ("perfect", "perfect calibration"),
        ("number", "cases"),
    )
    shared = subject.several or two
    contents = [
        ""
        if math.isnan(report["ece"].value)
        else "".join(
            _diagram(subject, i, kind, "" if shared else legend)
            for kind in ("top_label", "positive")[: 1 + two]
        )
        for i, report in enumerate(subject.reports)
    ]
    if not any(contents):
        return ""
    text = (
        "The cases are grouped by the model’s confidence. A calibrated model is right "
        "in 80&nbsp;% of the cases in which it states 80&nbsp;%, so that its bars end "
        "at the orange lines. Bars that end below them mean that the model is "
        "overconfident, bars that end above them that it is underconfident."
    )
    if two:
        of = "each label" if subject.first.multi_label else "the positive class"
        text += (
            f" The second diagram groups the cases by the probability of {of}, whether "
            "or not it is predicted."
        )
    legend = legend if shared else ""
    return f"<p>{text}</p>{legend}{subject.each(contents, 'grid')}"


def _diagram(subject: Subject, index: int, kind: str, legend: str) -> str:
    """Returns a reliability diagram with its figures."""
    report = subject.reports[index]
    bins = report.bins(kind)
    name, identity = subject.plain_name(index), f"reliability-{index}-{kind}"
    picture = pictures.reliability(bins, identity, name, kind)
    level = round_percent(report.confidence_level)
    figures = _bins_table(bins, kind, level)
    title = ""
    if report.samples.num_classes == 2:
        about = report.rows["ece" if kind == "top_label" else "positive_ece"]
        error = value_of(report[about.name].value, about.unit)
        title = f"<h4>{about.title}: {error}</h4>"
    if subject.several:
        figures = details("The same figures as a table", figures)
        return f"{title}<figure>{picture}</figure>{figures}"
    return f'{title}<div class="pair"><figure>{picture}{legend}</figure>{figures}</div>'


def _bins_table(bins: ReliabilityBins, kind: str, level: str) -> str:
    rows = [
        [
            percent_range(left, right),
            percent(confidence),
            with_interval(percent(accuracy), percent_range(low, high)),
            count(number),
        ]
        for left, right, confidence, accuracy, low, high, number in zip(
            *(column.tolist() for column in bins), strict=True
        )
    ]
    top = kind == "top_label"
    observed = "Right in" if top else "Positive in"
    head = [
        "Confidence" if top else "Probability",
        "Mean",
        f"{observed}<small>{level} interval</small>",
        "Cases",
    ]
    return table("Probability and frequency in each bin", head, rows)


def _labels(subject: Subject) -> str:
    if not subject.first.multi_label or _missing(subject):
        return ""
    head = ["Label", "Frequency", "Mean probability", "Accuracy", "ECE"]
    contents = []
    for index, report in enumerate(subject.reports):
        found = report.per_label()
        worst = sorted(found, key=lambda c: -found[c]["positive_ece"])
        rows = [
            [
                subject.class_name(c),
                *(percent(found[c][x]) for x in ("frequency", "mean", "accuracy")),
                value_of(found[c]["positive_ece"], "points"),
            ]
            for c in worst[:_MOST_LABELS]
        ]
        of = "" if len(rows) == len(found) else f" of {count(len(found))}"
        caption = f"{count(len(rows))}{of} labels, the largest error first"
        parts = report.samples.split_labels()
        diagrams = "".join(
            f"<article><h4>{subject.class_name(c)}</h4><figure>"
            + pictures.reliability(
                report.bins("positive", parts[position]),
                f"label-{index}-{c}",
                f"label {c}, {subject.plain_name(index)}",
                "positive",
            )
            + "</figure></article>"
            for position, c in enumerate(found)
            if c in worst[:_MOST_DIAGRAMS]
        )
        contents.append(
            table(caption, head, rows)
            + details(
                "Reliability diagrams of the labels with the largest error",
                f'<div class="grid">{diagrams}</div>',
            )
        )
    return (
        "<p>Each label is a yes-or-no decision. The error (positive-class ECE) "
        "compares its probability with how often it is true.</p>"
        + subject.each(contents, "stack")
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
    if not subject.mistakes or _missing(subject):
        return ""
    contents = [mistakes(subject, report) for report in subject.reports]
    return subject.each(contents, "stack") if any(contents) else ""


SECTIONS: dict[str, tuple[str, Callable[[Subject], str]]] = {
    "glance": ("At a glance", _glance),
    "comparison": ("Comparison", _comparison),
    "reliability": ("Is it right as often as it claims?", _reliability),
    "labels": ("Label by label", _labels),
    "abstain": ("How much should it answer?", _selection),
    "metrics": ("All metrics", _metrics),
    "mistakes": ("The most confident mistakes", _mistakes),
}
