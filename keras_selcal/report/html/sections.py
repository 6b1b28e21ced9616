"""The sections of a page, as HTML; "" where a section has nothing to show."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from keras_selcal.report.html import pictures, words
from keras_selcal.report.html.markup import (
    details,
    key,
    line_style,
    table,
    with_interval,
)
from keras_selcal.report.html.numbers import (
    NONE,
    count,
    decimal,
    percent,
    percent_range,
    round_percent,
)
from keras_selcal.report.html.subject import Subject

if TYPE_CHECKING:
    from keras_selcal.report.report import CalibrationReport, Comparison

# Coverages of the table that stands in for the slider.
_COVERAGES = (0.05, *(i / 10 for i in range(1, 10)), 0.95, 0.99, 1.0)

_VERDICTS = {
    "better": "✓ better",
    "worse": "✗ worse",
    "equal": "= equal",
    "undecided": "undecided",
}

# What a verdict on the three main metrics says of a model.
_TOLD = {
    "accuracy": {
        "better": "is right more often",
        "worse": "is right less often",
        "equal": "is right just as often",
        "undecided": "may be right as often",
    },
    "ece": {
        "better": "is better calibrated",
        "worse": "is worse calibrated",
        "equal": "is calibrated just the same",
        "undecided": "may be as well calibrated",
    },
    "aurc": {
        "better": "has fewer mistakes among its surest answers",
        "worse": "has more mistakes among its surest answers",
        "equal": "has as many mistakes among its surest answers",
        "undecided": "may have as many mistakes among its surest answers",
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
    """Returns why there is no figure, "" where there are figures."""
    notes = ""
    for name, report in zip(subject.names, subject.reports, strict=True):
        samples = report._samples
        for broken, what in (
            (np.isnan(samples.confidence), "the prediction is no number (NaN)"),
            (np.isnan(samples.correct), "the label is none of the classes"),
        ):
            if broken.any():
                of = f"{escape(name)}: " if subject.several else ""
                index = report._index[np.argmax(broken)]
                more = int(broken.sum()) - 1
                others = f" (and {count(more)} more)" if more else ""
                notes += (
                    f'<p class="alarm"><strong>{of}nothing can be said.</strong> In '
                    f"sample {index}{others} {what}.</p>"
                )
    return notes


def _comparison(subject: Subject) -> str:
    if not subject.several:
        return ""
    base, contents = subject.names[0], []
    for report, name in zip(subject.reports[1:], subject.names[1:], strict=True):
        comparison = report.compare(subject.first)
        contents.append(
            f"<h3>{escape(name)} against {escape(base)}</h3>"
            + _verdict(comparison, name, base)
            + _differences(comparison, name, base)
        )
    note = (
        "Both models are resampled alike, so that what is hard or easy about the "
        "samples cancels. Undecided: the interval holds 0, and the difference may be "
        "chance. Among many metrics, chance may also decide one."
        if subject.first.bootstrap
        else "Without resamples, differences cannot be told from chance."
    )
    return "".join(contents) + f"<p>{note}</p>"


def _decide(comparison: "Comparison", metric: str) -> str:
    """Returns the verdict on the first of two models."""
    better, difference = comparison.better(metric), comparison[metric]
    if better is None:
        equal = difference.low == difference.high == 0
        return "equal" if equal else "undecided"
    return "better" if better == comparison.names[0] else "worse"


def _verdict(comparison: "Comparison", name: str, base: str) -> str:
    if math.isnan(comparison["accuracy"].low):
        return ""
    told = [says[_decide(comparison, metric)] for metric, says in _TOLD.items()]
    return (
        f"<p>Compared with <strong>{escape(base)}</strong>, "
        f"<strong>{escape(name)}</strong> {told[0]}, {told[1]}, and {told[2]}.</p>"
    )


def _differences(comparison: "Comparison", name: str, base: str) -> str:
    rows = []
    about = words.metric_words(comparison.first)
    for metric, difference in comparison.items():
        share, interval, verdict = about[metric].share, None, NONE
        if not math.isnan(difference.low):
            low, high = (_signed(end, share) for end in difference[1:3])
            interval = f"{low} to {high}"
            kind = _decide(comparison, metric)
            verdict = f'<span class="{kind}">{_VERDICTS[kind]}</span>'
        values = [_value(x, share) for x in (difference.second, difference.first)]
        rows.append(
            [
                f"{about[metric].name}<small>{' → '.join(values)}</small>",
                with_interval(_signed(difference.value, share), interval),
                verdict,
            ]
        )
    level = round_percent(comparison.first.confidence_level)
    caption = f"{escape(name)} minus {escape(base)}, with {level} intervals"
    head = ["Metric", "Difference", f"{escape(name)} is"]
    return table(caption, head, rows, "metrics")


def _reliability(subject: Subject) -> str:
    level = round_percent(subject.first.confidence_level)
    legend = key(
        ("bar", "how often it is right"),
        ("whisker", f"{level} interval of that (Wilson)"),
        ("said", "what it says, on average"),
        ("perfect", "right as often as it says"),
        ("number", "cases"),
    )
    contents = []
    for i, report in enumerate(subject.reports):
        if math.isnan(report["ece"].value):
            contents.append("")
            continue
        bins = words.reliability_bins(report)
        picture = pictures.reliability(bins, f"reliability-{i}", subject.plain_name(i))
        figures = _bins_table(bins, level)
        contents.append(
            f"<figure>{picture}</figure>"
            + details("The same figures as a table", figures)
            if subject.several
            else f'<div class="pair"><figure>{picture}{legend}</figure>{figures}</div>'
        )
    if not any(contents):
        return ""
    return (
        "<p>The cases are sorted by how sure the model is. An honest model is right in "
        "80&nbsp;% of the cases of which it says 80&nbsp;%: its bars end at the orange "
        "lines. Bars that end below them mean that it is too sure, bars that end above "
        "that it is too modest.</p>"
        + (legend if subject.several else "")
        + subject.each(contents, "grid")
    )


def _bins_table(bins: words.Bins, level: str) -> str:
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
    head = [
        "Confidence",
        "It says",
        f"Right in<small>{level} interval</small>",
        "Cases",
    ]
    return table("Confidence and accuracy, step by step", head, rows)


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
        "<p>A model that may say “I do not know” makes fewer mistakes. Choose how much "
        "it is to answer: it takes the cases of which it is surest.</p>"
        f'<div class="pair"><figure>{subject.picture.svg()}'
        '<div class="slider" hidden><label for="coverage">Share of cases that it '
        'answers: <b id="share"></b></label>'
        '<input type="range" id="coverage" min="0" step="1" '
        f'max="{len(subject.stops.stops) - 1}" value="{start}"></div>{legend}</figure>'
        f'<div class="outcome" hidden>{_outcomes(subject)}'
        '<p class="key split-key"><span class="right">right</span> '
        '<span class="wrong">wrong</span> <span class="left">unanswered</span></p>'
        '<p><output id="said" for="coverage"></output></p></div></div>'
        "<noscript><p>The slider needs JavaScript. The table has its figures for some "
        "coverages.</p></noscript>"
        + details("Some coverages as a table", _coverages(subject))
        + "<p>A threshold that is chosen on these samples looks better on them than it "
        "is. Choose it on others; <code>keras_selcal.select_threshold</code> gives one "
        "with a guarantee.</p>"
    )


def _outcomes(subject: Subject) -> str:
    """Returns what the script fills with the figures of a stop."""
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
    for metric, about in words.metric_words(subject.first).items():
        cells = []
        for i, report in enumerate(subject.reports):
            value, low, high = report[metric]
            interval = None
            if not math.isnan(low):
                beyond = value < low or value > high
                outside |= beyond
                interval = _ends(low, high, about.share) + (" *" if beyond else "")
            name = (
                f'<span class="of">{subject.tag(i)}</span>' if subject.several else ""
            )
            cells.append(name + with_interval(_value(value, about.share), interval))
        better = subject.first._meanings[metric].better.capitalize()
        meaning = f"<small>{about.meaning} <em>{better} is better.</em></small>"
        rows.append([f"{about.name} <code>{metric}</code>{meaning}", *cells])
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
            "<p>* The value lies outside: resampling adds noise, which can only raise "
            "this figure.</p>"
        )
    return content


def _mistakes(subject: Subject) -> str:
    if not subject.mistakes or _missing(subject):
        return ""
    contents = [_mistakes_of(subject, report) for report in subject.reports]
    return subject.each(contents, "stack") if any(contents) else ""


def _mistakes_of(subject: Subject, report: "CalibrationReport") -> str:
    samples = report._samples
    truth = samples.labels if samples.sparse else samples.labels.argmax(axis=-1)
    wrong = np.flatnonzero(samples.top != truth)
    if len(wrong) == 0:
        return "<p>There is none: every answer is right.</p>"
    ranks = samples.ranks(report.csf)
    if np.isnan(ranks).any():
        return ""
    shown = wrong[np.argsort(-ranks[wrong], kind="stable")][: subject.mistakes]
    head = ["Sample", "True class", "Predicted", "Confidence"]
    columns = [
        [str(index) for index in report._index[shown]],
        [subject.class_name(label) for label in truth[shown]],
        [subject.class_name(label) for label in samples.top[shown]],
        [_confidence(float(p)) for p in samples.confidence[shown]],
    ]
    if report.csf.__name__ != "msp":
        head.append(f"Score <code>{escape(report.csf.__name__)}</code>")
        scores = samples.scores(report.csf)[shown]
        columns.append([decimal(float(score)) for score in scores])
    number = f"{len(shown)} of {count(len(wrong))}"
    if len(shown) == len(wrong):
        number = "the only one" if len(wrong) == 1 else f"all {len(wrong)}"
    caption = f"Wrong answers, the surest first: {number}"
    rows = list(zip(*columns, strict=True))
    if subject.images is None:
        return table(caption, head, rows, "mistakes")
    sources = subject.images.data_uris(report._index[shown].tolist())
    return _gallery(caption, head, rows, sources, max(subject.images.shape) <= 64)


def _gallery(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    sources: Sequence[str],
    small: bool,
) -> str:
    """Returns the rows of a table below their images."""
    kind, items = "pixels" if small else "photo", ""
    for row, source in zip(rows, sources, strict=True):
        lines = "".join(
            f"<div><dt>{name}</dt><dd>{cell}</dd></div>"
            for name, cell in zip(head, row, strict=True)
        )
        items += (
            f'<li><img class="{kind}" src="{source}" alt="Image of sample {row[0]}">'
            f"<dl>{lines}</dl></li>"
        )
    return f'<p>{caption}</p><ul class="gallery">{items}</ul>'


def _confidence(p: float) -> str:
    # More digits would fill a phone's screen, and tell nothing.
    return percent(p, 2) if p <= 0.9999 or p == 1 else f"> {percent(0.9999, 2)}"


def _value(value: float, share: bool) -> str:
    return percent(value, 2) if share else decimal(value)


def _ends(low: float, high: float, share: bool) -> str:
    if share:
        return percent_range(low, high, 2)
    return f"{decimal(low)} to {decimal(high)}"


def _signed(value: float, share: bool) -> str:
    """Returns a difference with its sign; of shares, in points."""
    if not share or math.isnan(value):
        return decimal(value, "+.4f")
    return decimal(100 * value, "+.2f") + "\N{NO-BREAK SPACE}pts"


SECTIONS: dict[str, tuple[str, Callable[[Subject], str]]] = {
    "glance": ("At a glance", _glance),
    "comparison": ("Comparison", _comparison),
    "reliability": ("Is it right as often as it says?", _reliability),
    "abstain": ("How much should it answer?", _selection),
    "metrics": ("All metrics", _metrics),
    "mistakes": ("The most confident mistakes", _mistakes),
}
