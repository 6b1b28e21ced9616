"""The section on what to do: recalibration and thresholds, tried on these cases."""

import numpy as np

from keras_selcal.calibrators import TemperatureScaling
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import grouped, table, with_interval
from keras_selcal.report.html.numbers import (
    count,
    percent,
    round_percent,
    scaled,
    signed,
    value_of,
)
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.recalibration import (
    FOLDS,
    Recalibrated,
    num_classes_seen,
    recalibrated,
)

# Shares of wrong answers that thresholds keep, and how often they may fail to.
_RISKS, _DELTA = (0.01, 0.02, 0.05), 0.05

# Fewer cases, or fewer right or wrong predictions, say too little about calibration.
_FEWEST, _FEWEST_OF_EACH = 100, 10

# A smaller part of the Brier score is a small gain.
_LITTLE = 0.01

_NAMES = {
    "TemperatureScaling": "temperature scaling",
    "StructuredVectorScaling": "vector scaling",
}


def advice(subject: Subject) -> str:
    """Returns what recalibration and thresholds would bring."""
    if subject.missing:
        return ""
    contents = []
    for report in subject.reports:
        parts = {
            "Recalibrate it?": _recalibration(report),
            "When should it abstain?": _thresholds(report),
        }
        content = "".join(
            f"<div>{subject.subheading(head)}{part}</div>"
            for head, part in parts.items()
            if part
        )
        kind = "stack" if subject.several else "pair"
        contents.append(f'<div class="{kind}">{content}</div>')
    return subject.each(contents, "grid")


def _recalibration(report: Evaluation) -> str:
    samples = report.samples
    right = samples.mean(samples.correct) * samples.n
    wrong = samples.n - right
    if report.num_units < _FEWEST or min(right, wrong) < _FEWEST_OF_EACH:
        return (
            f"<p>These {count(samples.n)} predictions, {count(wrong)} of them wrong, "
            "are too few to tell whether recalibration helps.</p>"
        )
    if samples.label_index is None and num_classes_seen(samples.labels) < 2:
        return "<p>All cases are of one class: no calibrator can be fitted.</p>"
    found = recalibrated(report)
    rows = [
        [
            "none",
            scaled(report["ece"].value, "points"),
            "–",
            percent(right / samples.n),
        ]
    ]
    for each in found:
        change = signed(each.brier_change.value, "")
        ends = [signed(end, "") for end in each.brier_change[1:]]
        interval = " to ".join(ends) if report.bootstrap else None
        rows.append(
            [
                _NAMES[each.name],
                scaled(each.ece, "points"),
                with_interval(change, interval),
                percent(each.accuracy),
            ]
        )
    level = round_percent(report.confidence_level)
    head = ["Method", "ECE<small>points</small>", "Brier score", "Accuracy"]
    if report.bootstrap:
        head[2] += f"<small>change, {level} interval</small>"
    caption = (
        f"On cases that the method was not fitted on: {FOLDS} folds, each with what "
        "was fitted on the others"
    )
    return f"<p>{_verdict(report, found)}</p>" + table(caption, head, rows)


def _verdict(report: Evaluation, found: list[Recalibrated]) -> str:
    """Returns which calibrator to use, by the Brier score: it has no bias."""
    if not report.bootstrap:
        return "Without resamples, no gain can be told from chance."
    helpful = [each for each in found if each.brier_change.high < 0]
    if not helpful:
        return (
            "Not on these data: no method makes the probabilities clearly better (by "
            "the Brier score, which is the squared distance of the probabilities from "
            "the labels)."
        )
    best = helpful[0]
    for other in helpful[1:]:
        gained = other.brier_draws - best.brier_draws
        if np.quantile(gained, report.confidence_level) < 0:
            best = other
    before, after = (value_of(x, "points") for x in (report["ece"].value, best.ece))
    answer = "Yes, by"
    if -best.brier_change.value < _LITTLE * report["brier"].value:
        answer = "It would change little. The best is"
    text = (
        f"{answer} <strong>{_NAMES[best.name]}</strong> "
        f"(<code>keras_selcal.{best.name}</code>). On cases that it was not fitted on, "
        f"the calibration error (ECE) is {after} instead of {before}."
    )
    if best.name == "TemperatureScaling" and not report.multi_label:
        samples = report.samples
        fitted = TemperatureScaling(from_logits=samples.from_logits).fit(
            samples.y_pred, samples.labels, sample_weight=samples.weight
        )
        T = fitted.temperature
        does = "above 1, which lowers" if T > 1 else "at most 1, which raises"
        text += f" Fitted on all cases, its T is {T:.3g}: {does} confidence."
    return text


def _thresholds(report: Evaluation) -> str:
    cuts = report.cuts
    if cuts is None:
        return ""
    if not cuts.unit_weights:
        return "<p>Thresholds with a guarantee need cases of equal weight.</p>"
    rows = []
    for risk in _RISKS:
        cut, limit = cuts.search(risk, _DELTA), round_percent(risk)
        if cut < 0:
            rows.append([limit, "no threshold is certain enough", "–", "–"])
            continue
        rows.append(
            [
                limit,
                grouped(cuts.shortest(float(cuts.thresholds[cut]))),
                percent(float(cuts.coverage[cut])),
                percent(float(cuts.risk[cut]), 2),
            ]
        )
    score = "confidence" if report.csf.__name__ == "msp" else "the score"
    head = ["Wrong at most", f"Answer if {score} is at least", "Answers", "Wrong here"]
    caption = "Thresholds that keep the share of wrong answers below a limit"
    these = "these" if report.num_groups is None else "their groups"
    return table(caption, head, rows) + (
        f"<p>A threshold keeps its limit on new cases with {round_percent(1 - _DELTA)} "
        f"confidence, if {these} come independently from the same source, and if the "
        "model was not trained or chosen on the cases of this page.</p>"
    )
