"""The most confident mistakes of a model, as a table or below their images."""

from collections.abc import Sequence
from html import escape

import numpy as np

from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import table
from keras_selcal.report.html.numbers import count, decimal, percent
from keras_selcal.report.html.subject import Subject


def mistakes(subject: Subject) -> str:
    """Returns the most confident mistakes of each model, and which labels to check."""
    if not subject.mistakes or subject.missing:
        return ""
    contents = [_of_model(subject, report) for report in subject.reports]
    return subject.each(contents, "grid") if any(contents) else ""


def _of_model(subject: Subject, report: Evaluation) -> str:
    """Returns the most confident mistakes, "" if the samples cannot be ranked."""
    samples, truth = report.samples, report.truth
    wrong = np.flatnonzero(samples.top != truth)
    if len(wrong) == 0:
        return "<p>There are none: every prediction is correct.</p>"
    ranks = samples.ranks(report.csf)
    if np.isnan(ranks).any():
        return ""
    shown = wrong[np.argsort(-ranks[wrong], kind="stable")][: subject.mistakes]
    head = ["Sample", "True class", "Predicted", "Confidence"]
    columns = [
        [str(index) for index in report.index[shown]],
        [subject.class_name(label) for label in truth[shown]],
        [subject.class_name(label) for label in samples.top[shown]],
        [_confidence(float(p)) for p in samples.confidence[shown]],
    ]
    suspect, told = report.label_issues(), ""
    if suspect.any():
        below = " All of those below are among them."
        if not suspect[shown].all():
            below = ""
            head.append("Label")
            columns.append(["check it" if x else "" for x in suspect[shown]])
        told = (
            f"<p>In {count(int(suspect.sum()))} of {count(len(wrong))} mistakes the "
            "model contradicts the label at least as confidently as it usually "
            "supports the class that it predicts (its mean probability in cases with "
            "that label). Either the model or the label is wrong there: check these "
            f"labels first.{below} <code>report.label_issues()</code> has them all.</p>"
        )
    if samples.label_index is not None:
        head[1:3] = ["About", "Predicted"]
        answers = ("no, but it is true", "yes, but it is not true")
        columns[1] = [subject.class_name(c) for c in samples.label_index[shown]]
        columns[2] = [answers[label] for label in samples.top[shown]]
    if report.csf.__name__ != "msp":
        head.append(f"Score <code>{escape(report.csf.__name__)}</code>")
        scores = samples.scores(report.csf)[shown]
        columns.append([decimal(float(score)) for score in scores])
    number = f"{len(shown)} of {count(len(wrong))}"
    if len(shown) == len(wrong):
        number = "the only one" if len(wrong) == 1 else f"all {len(wrong)}"
    caption = f"Wrong predictions, the most confident first: {number}"
    rows = list(zip(*columns, strict=True))
    if subject.images is None:
        return told + table(caption, head, rows, "mistakes")
    sources = subject.images.data_uris(report.index[shown].tolist())
    kind = "pixels" if max(subject.images.shape) <= 64 else "photo"
    return told + _gallery(caption, head, rows, sources, kind)


def _gallery(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    sources: Sequence[str],
    kind: str,
) -> str:
    """Returns the rows of a table below their images."""
    items = ""
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
    # More digits would fill a phone's screen without being informative.
    return (
        percent(p, 2)
        if p <= 0.9999 or p == 1
        else f">\N{NO-BREAK SPACE}{percent(0.9999, 2)}"
    )
