"""The findings of a report in plain words."""

import math
from html import escape
from typing import NamedTuple

import numpy as np

from keras_selcal.functional.reliability import ReliabilityBins
from keras_selcal.report.comparison import Comparison
from keras_selcal.report.evaluation import Evaluation, Interval
from keras_selcal.report.html.numbers import (
    count,
    percent,
    percent_range,
    percents,
    points,
    round_percent,
)
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.statistics import chance_ece

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

# An ECE below the first is called small, from the second on large.
_SMALL, _LARGE = 0.02, 0.1
# The model errs in one direction if that makes up this share of the error.
_ONE_SIDED = 0.75
# From this failure AUROC on, confidence separates correct from wrong predictions.
_SEPARATES = 0.9


class Card(NamedTuple):
    """One of the questions at a glance, with a short answer and a long one."""

    question: str
    answer: str
    words: str


def at_a_glance(subject: Subject) -> str:
    """Returns the questions with the answers of each model, and how they compare."""
    if subject.missing:
        return subject.missing
    cards = ""
    for answers in zip(*(glance(report) for report in subject.reports), strict=True):
        cards += f'<div class="card"><p class="question">{answers[0].question}</p>'
        # Models with the same answer share it.
        for card in dict.fromkeys(answers):
            same = [subject.tag(i) for i, x in enumerate(answers) if x == card]
            cards += "".join(
                f'<p class="of">{tag}</p>' * subject.several for tag in same
            )
            cards += f'<p class="answer">{card.answer}</p><p>{card.words}</p>'
        cards += "</div>"
    base, *others = map(escape, subject.names)
    compared = "".join(
        _compared(comparison, name, base)
        for comparison, name in zip(subject.comparisons, others, strict=True)
    )
    few = subject.first.few_groups
    warning = f'<p class="alarm"><strong>{few}</strong></p>' if few else ""
    return f'{warning}{compared}<div class="cards">{cards}</div>'


def _compared(comparison: Comparison, name: str, base: str) -> str:
    """Returns a sentence on two models, "" if no interval decides about them."""
    if math.isnan(comparison["accuracy"].low):
        return ""
    told = [says[comparison.verdict(metric)] for metric, says in _TOLD.items()]
    return (
        f"<p>Compared with <strong>{base}</strong>, <strong>{name}</strong> {told[0]}, "
        f"{told[1]}, and {told[2]}.</p>"
    )


def glance(report: Evaluation) -> list[Card]:
    """Returns accuracy, calibration and selection of a model in words."""
    return [_accuracy(report), _calibration(report), _selection(report)]


def _accuracy(report: Evaluation) -> Card:
    accuracy, n = report["accuracy"], report.samples.n
    level, shown = report.confidence_level, percent(accuracy.value)
    cases = "the one case" if n == 1 else f"{count(n)} cases"
    if report.multi_label:
        cases = f"{count(n)} decisions about {count(report.num_classes)} labels"
    every = cases if n == 1 else f"all {cases}"
    if accuracy.value == 1 and report.num_units == n:
        # n correct predictions at an error rate q have probability (1 − q)ⁿ.
        most = percent(1 - (1 - level) ** (1 / n))
        words = (
            f"The model is right in {every}. With {round_percent(level)} confidence, "
            f"it is wrong in at most {most} of cases like these."
        )
    elif accuracy.value in (0, 1):
        words = f"The model is {('wrong', 'right')[int(accuracy.value)]} in {every}."
    else:
        words = f"The model is right in {shown} of {cases}{_between(accuracy, level)}."
    return Card("How often is it right?", shown, words)


def _between(interval: Interval, level: float) -> str:
    """Returns an interval of shares in brackets, or nothing if there is none."""
    if math.isnan(interval.low) or interval.low == interval.high:
        return ""
    ends = percent_range(interval.low, interval.high)
    return f" ({round_percent(level)} interval: {ends})"


def _calibration(report: Evaluation) -> Card:
    question = "Can its confidence be trusted?"
    samples, error = report.samples, report["ece"].value
    chance = chance_ece(
        *samples.event("top_label"),
        samples.counts,
        report.unit,
        num_bins=report.num_bins,
        level=report.confidence_level,
        seed=report.seed,
    )
    says, right = percents(samples.mean(samples.confidence), report["accuracy"].value)
    average = f"On average it states {says} confidence and is right in {right}."
    if error <= chance:
        measured = (
            f" The calibration error (ECE) of {points(error)} is no larger than a "
            "perfectly calibrated model would show by chance on this many cases: up to "
            f"{points(chance)}."
        )
        few = chance >= _LARGE
        answer = "Too few cases to tell" if few else "Yes, as far as these data show"
        return Card(question, answer, average + measured)
    measured = (
        f" The calibration error (ECE) is {points(error)}; a perfectly calibrated "
        f"model would show at most {points(chance)} by chance."
    )
    if "positive_ece" in report:
        positive = points(report["positive_ece"].value)
        of = "a label" if report.multi_label else "the positive class"
        measured += (
            f" The probability of {of} is off by {positive} (positive-class ECE)."
        )
    bins = report.bins()
    over, under = (np.sum(np.maximum(sign * bins.gap, 0.0)) for sign in (1, -1))
    # A bin is an example if the interval of its accuracy excludes its confidence.
    clear = (bins.confidence < bins.low) | (bins.confidence > bins.high)
    examples = {}
    for sign in (1, -1):
        gap = np.where(clear, sign * bins.gap, 0.0)
        if gap.max() > 0:
            examples[sign] = _example(bins, int(np.argmax(gap)))
    if len(examples) == 2 and max(over, under) < _ONE_SIDED * (over + under):
        answer = "No: overconfident in some cases, underconfident in others"
        return Card(question, answer, " ".join(examples.values()) + measured)
    sign = 1 if over > under else -1
    if len(examples) == 1:
        (sign,) = examples
    degree = "slightly " if error < _SMALL else "far " if error >= _LARGE else ""
    if sign > 0:
        direction = "too confident" if degree == "far " else "overconfident"
    else:
        direction = "too cautious" if degree == "far " else "underconfident"
    words = examples.get(sign, average) + measured
    return Card(question, f"No: it is {degree}{direction}", words)


def _example(bins: ReliabilityBins, index: int) -> str:
    says, right = percents(float(bins.confidence[index]), float(bins.accuracy[index]))
    number = count(float(bins.number[index]))
    return f"When it states {says}, it is right in {right} (of {number} cases)."


def _selection(report: Evaluation) -> Card:
    question = "Does it know when it is wrong?"
    auroc, accuracy = report["failure_auroc"], report["accuracy"].value
    unknown = None
    if math.isnan(report["aurc"].value):
        unknown = "This cannot be determined because a confidence score is NaN."
    elif accuracy == 1:
        unknown = "It made no mistake on these cases."
    elif accuracy == 0:
        unknown = "It was always wrong, so leaving out cases cannot help."
    if unknown:
        return Card(question, "–", unknown)
    low = auroc.value if math.isnan(auroc.low) else auroc.low
    if auroc.high < 0.5:
        answer = "No, rather the reverse"
    elif low <= 0.5:
        answer = "There is no sign of it"
    else:
        answer = "Mostly yes" if auroc.value >= _SEPARATES else "In part"
    words = (
        "Given a correct and a wrong prediction, the correct one has the higher "
        f"confidence in {percent(auroc.value)} of pairs."
    )
    if report.coverages:
        coverage = min(report.coverages)
        risk = report[f"risk_at_coverage_{coverage:g}"].value
        words += (
            f" If it leaves the least confident {round_percent(1 - coverage)} "
            f"unanswered, {percent(risk)} of its answers are wrong instead of "
            f"{percent(1 - accuracy)}."
        )
    kept = [risk for risk in report.risks if 0 < risk < 1 - accuracy]
    if kept:
        share = report[f"coverage_at_risk_{min(kept):g}"].value
        part = f"{percent(share)} of the cases" if share > 0 else "none of the cases"
        words += f" With at most {round_percent(min(kept))} wrong it can answer {part}."
    return Card(question, answer, words)
