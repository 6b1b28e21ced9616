"""The sections on calibration: reliability diagrams, and label by label."""

import math

from keras_selcal._core.reliability import ReliabilityBins
from keras_selcal.report.html import pictures
from keras_selcal.report.html.markup import details, key, table, with_interval
from keras_selcal.report.html.numbers import (
    count,
    percent,
    percent_range,
    round_percent,
    value_of,
)
from keras_selcal.report.html.subject import Subject

_MOST_LABELS, _MOST_DIAGRAMS = 200, 6


def reliability(subject: Subject) -> str:
    """Returns the reliability diagrams of the models, "" if there are none."""
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


def labels(subject: Subject) -> str:
    """Returns the metrics of each label, "" if there is one label only."""
    if not subject.first.multi_label or subject.missing:
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
