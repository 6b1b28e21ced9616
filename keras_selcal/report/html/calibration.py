"""The section on calibration: reliability diagrams."""

import math

from keras_selcal.functional.reliability import ReliabilityBins
from keras_selcal.report.html import pictures
from keras_selcal.report.html.markup import (
    details,
    key,
    line_style,
    table,
    with_interval,
)
from keras_selcal.report.html.numbers import (
    count,
    percent,
    percent_range,
    round_percent,
    value_of,
)
from keras_selcal.report.html.subject import Subject


def reliability(subject: Subject) -> str:
    """Returns the reliability diagrams of the models, "" if there are none."""
    level = round_percent(subject.first.confidence_level)
    two = subject.first.samples.num_classes == 2
    legend = key(
        ("bar" if subject.several else "bar s0", "observed frequency"),
        ("whisker", f"{level} interval of that (Wilson)"),
        ("said", "mean probability that it states"),
        ("perfect", "perfect calibration"),
        ("number", "cases"),
    )
    kinds = ("top_label", "positive")[: 1 + two]
    contents = []
    for i, report in enumerate(subject.reports):
        diagrams = [] if math.isnan(report["ece"].value) else kinds
        content = "".join(_diagram(subject, i, kind) for kind in diagrams)
        if not subject.several:
            content = f'<div class="pair">{content}</div>' * bool(content)
        contents.append(content)
    if not any(contents):
        return ""
    text = (
        "The cases are grouped by the model’s confidence. A calibrated model is right "
        "in 80&nbsp;% of the cases in which it states 80&nbsp;%, and its bars end "
        "at the thick lines, which mark what it states. Bars that end below them mean "
        "that the model is overconfident, bars that end above them that it is "
        "underconfident."
    )
    if two:
        of = "each label" if subject.first.multi_label else "the positive class"
        text += (
            f" The second diagram groups the cases by the probability of {of}, whether "
            "or not it is predicted."
        )
    return f"<p>{text}</p>{legend}{subject.each(contents, 'grid')}"


def _diagram(subject: Subject, index: int, kind: str) -> str:
    """Returns a reliability diagram and the table of its figures."""
    report = subject.reports[index]
    bins = report.bins(kind)
    name, identity = subject.plain_name(index), f"reliability-{index}-{kind}"
    picture = pictures.reliability(bins, identity, name, kind, line_style(index))
    figures = _bins_table(bins, kind, round_percent(report.confidence_level))
    two = report.samples.num_classes == 2
    if subject.several or two:
        figures = details("The same figures as a table", figures)
    content = f"<figure>{picture}</figure>{figures}"
    if not two:
        return content
    about = report.rows["ece" if kind == "top_label" else "positive_ece"]
    error = value_of(report[about.name].value, about.unit)
    return f"<div>{subject.subheading(f'{about.title}: {error}')}{content}</div>"


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
