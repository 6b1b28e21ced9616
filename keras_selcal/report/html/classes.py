"""The section on classes or labels: their metrics, and which are confused."""

import math

import numpy as np

from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html import pictures
from keras_selcal.report.html.markup import details, line_style, table
from keras_selcal.report.html.numbers import count, percent, scaled
from keras_selcal.report.html.subject import Subject

# Rows of a table, with those that the reader opens; classes of a confusion matrix.
_FEW_ROWS, _MOST_ROWS, _MOST_CLASSES = 12, 200, 12
_MOST_DIAGRAMS = 6
_SHADES = 9


def classes(subject: Subject) -> str:
    """Returns the metrics of each class or label, and the confused classes."""
    if subject.missing:
        return ""
    contents = []
    for index, report in enumerate(subject.reports):
        found = report.per_class()
        order = sorted(found, key=lambda c: _rank(report, found[c]))
        content = _table(subject, report, found, order)
        if report.multi_label:
            content += _diagrams(subject, index, order[:_MOST_DIAGRAMS])
        elif report.num_classes <= _MOST_CLASSES:
            matrix = _matrix(subject, report)
            content += (
                details("Confusion matrix", matrix) if subject.several else matrix
            )
        else:
            content += _pairs(subject, report)
        contents.append(content)
    if subject.first.multi_label:
        text = (
            "Each label is a yes-or-no decision. Its error (positive-class ECE) "
            "compares its probability with how often it is true."
        )
    else:
        text = (
            "Of the cases of each class: how often the model is right, and how "
            "confident it is of what it predicts. The error (class-wise ECE) compares "
            "the probability of the class with how often it is true, over all cases."
        )
    return f"<p>{text}</p>{subject.each(contents, 'grid')}"


def _rank(report: Evaluation, of_class: dict[str, float]) -> float:
    """Returns what sorts classes by accuracy, absent ones last, and labels by error."""
    if report.multi_label:
        return -of_class["positive_ece"]
    return math.inf if math.isnan(of_class["accuracy"]) else of_class["accuracy"]


def _table(
    subject: Subject,
    report: Evaluation,
    found: dict[int, dict[str, float]],
    order: list[int],
) -> str:
    columns = {
        "Frequency": "frequency",
        "Right in": "accuracy",
        "Confidence": "confidence",
    }
    kind, sorting = "classes", "least often right"
    if report.multi_label:
        kind, sorting = "labels", "largest error"
        columns = {
            "True in": "frequency",
            "Mean probability": "mean",
            "Right in": "accuracy",
        }
    rows = [
        [
            subject.class_name(c),
            *(percent(found[c][name]) for name in columns.values()),
            scaled(found[c]["positive_ece"], "points"),
        ]
        for c in order
    ]
    first = "Label" if report.multi_label else "Class"
    head = [first, *columns, "ECE<small>points</small>"]

    def part(shown: list[list[str]], which: str) -> str:
        caption = f"{which}{count(len(shown))} of {count(len(rows))} {kind}"
        if len(shown) == len(rows):
            caption = f"All {count(len(rows))} {kind}"
        return table(f"{caption}, the {sorting} first", head, shown)

    few = rows if len(rows) <= _FEW_ROWS + 3 else rows[:_FEW_ROWS]
    content = part(few, "")
    if len(few) < len(rows):
        more = rows[_FEW_ROWS:_MOST_ROWS]
        content += details(f"{count(len(more))} more {kind}", part(more, "The next "))
    return content


def _matrix(subject: Subject, report: Evaluation) -> str:
    """Returns the confusion matrix, shaded by the share of the class."""
    samples, k = report.samples, report.num_classes
    share = samples.n * samples.counts / samples.counts.sum()
    numbers = np.bincount(report.truth * k + samples.top, share, k * k).reshape(k, k)
    rows = []
    for c, of_class in enumerate(numbers):
        cells = [subject.class_name(c)]
        for predicted, number in enumerate(of_class.tolist()):
            # The root shows small shares.
            shade = math.ceil(_SHADES * math.sqrt(number / (of_class.sum() or 1)))
            kind = "right" if predicted == c else "wrong"
            cells.append(f'<span class="heat {kind} h{shade}">{count(number)}</span>')
        rows.append(cells)
    names = [subject.class_name(c) for c in range(k)]
    caption = "Cases of each class (rows) by the class that is predicted (columns)"
    return table(caption, ["Class", *names], rows, "confusion")


def _pairs(subject: Subject, report: Evaluation) -> str:
    """Returns the pairs of classes that are confused most often."""
    samples, k, truth = report.samples, report.num_classes, report.truth
    share = samples.n * samples.counts / samples.counts.sum()
    of_class = np.bincount(truth, share, k)
    wrong = truth != samples.top
    pairs, inverse = np.unique(
        truth[wrong] * k + samples.top[wrong], return_inverse=True
    )
    if not len(pairs):
        return ""
    numbers = np.bincount(inverse.reshape(-1), share[wrong])
    rows = []
    for i in np.argsort(-numbers, kind="stable")[:_FEW_ROWS]:
        c, predicted = divmod(int(pairs[i]), k)
        number = float(numbers[i])
        rows.append(
            [
                subject.class_name(c),
                subject.class_name(predicted),
                count(number),
                percent(number / float(of_class[c])),
            ]
        )
    head = ["Class", "Predicted", "Cases", "Of the class"]
    caption = f"The most frequent confusions: {len(rows)} of {count(len(pairs))}"
    return table(caption, head, rows)


def _diagrams(subject: Subject, index: int, labels: list[int]) -> str:
    """Returns the reliability diagrams of some labels."""
    report = subject.reports[index]
    diagrams = "".join(
        f"<article>{subject.subheading(subject.class_name(c))}<figure>"
        + pictures.reliability(
            report.bins("positive", c),
            f"label-{index}-{c}",
            f"label {c}, {subject.plain_name(index)}",
            "positive",
            line_style(index),
        )
        + "</figure></article>"
        for c in labels
    )
    return details(
        "Reliability diagrams of the labels with the largest error",
        f'<div class="grid">{diagrams}</div>',
    )
