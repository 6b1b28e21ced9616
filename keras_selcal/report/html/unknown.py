"""The sections on unknown inputs and on drift."""

from html import escape

import numpy as np

from keras_selcal.report.html.markup import key, line_style
from keras_selcal.report.html.numbers import count, percent, round_percent
from keras_selcal.report.html.pictures import Axes, picture, thinned
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.unknown import TPR, UnknownInputs
from keras_selcal.selective import DriftCheck

# From this AUROC on, confidence separates known from unknown inputs.
_SEPARATES = 0.9


def unknown_inputs(subject: Subject) -> str:
    """Returns how confidence tells unknown inputs from known ones."""
    models = [report.unknown for report in subject.reports if report.unknown]
    if not models or subject.missing:
        return ""
    indices = range(len(models))
    names = [
        escape(subject.names[i]) if subject.several else "this model" for i in indices
    ]
    legend = key(
        *((f"curve {line_style(i)}", names[i]) for i in indices),
        ("random", "if confidence said nothing about it"),
    )
    words = subject.each([_in_words(subject, i) for i in indices], "stack")
    share = models[0].share
    use = "as frequent in use as here"
    if share is not None:
        use = f"{round_percent(share)} of all inputs in use"
    return (
        f"<p>{count(models[0].m)} inputs belong to none of the classes. Whatever the "
        "model answers to them is wrong, so it should be less confident than "
        "about the cases that it knows.</p>"
        f'<div class="pair"><figure>{_picture(subject, models)}{legend}</figure>'
        f"<div>{words}</div></div>"
        "<p>“All metrics” has the figures with their intervals; <code>scod_aurc</code> "
        f"takes unknown inputs to be {use}. They hold for unknown inputs like these: "
        "other kinds may be easier or harder to notice.</p>"
    )


def drift(subject: Subject) -> str:
    """Returns what the check of a selective classifier says of the samples."""
    checks = [report.check for report in subject.reports]
    if not any(checks):
        return ""

    def card(check: DriftCheck | None) -> str:
        if check is None:
            return "<p>Not checked.</p>"
        answer = "No: the confidences differ" if check.drifted else "No sign of drift"
        if check.risk_holds is False:
            answer += ", and the promised risk does not hold"
        return (
            '<div class="card"><p class="question">Does its guarantee still apply?</p>'
            f'<p class="answer">{answer}</p><p>{escape(str(check))}</p></div>'
        )

    return (
        "<p>A threshold and its guarantee are of use while new data are like those "
        "that the threshold was selected on.</p>"
        + subject.each([card(check) for check in checks], "stack")
    )


def _in_words(subject: Subject, index: int) -> str:
    report = subject.reports[index]
    auroc, accepted = report["ood_auroc"], report["fpr_at_tpr_0.95"].value
    low, high = auroc[1:] if report.bootstrap else (auroc.value, auroc.value)
    if high < 0.5:
        answer = "No, rather the reverse"
    elif low <= 0.5:
        answer = "There is no sign of it"
    else:
        answer = "Mostly yes" if auroc.value >= _SEPARATES else "In part"
    return (
        '<div class="card"><p class="question">Does it notice unknown inputs?</p>'
        f'<p class="answer">{answer}</p><p>Given a known and an unknown input, the '
        f"known one has the higher confidence in {percent(auroc.value)} of pairs. If "
        f"it answers {round_percent(TPR)} of the known cases, it also answers "
        f"{percent(accepted)} of the unknown inputs.</p></div>"
    )


def _picture(subject: Subject, models: list[UnknownInputs]) -> str:
    """Draws the share of unknown inputs answered against the share of known cases."""
    axes, lines, ends = Axes(1.0), "", []
    corners = [f"{axes.x(x):.1f} {axes.y(x):.1f}" for x in (0, 1)]
    for i, model in enumerate(models):
        known, unknown = model.curve()
        half = percent(float(unknown[np.argmax(known >= 0.5)]))
        ends.append(f"{subject.plain_name(i)}: {half} at half of the known cases")
        points = " ".join(
            f"{axes.x(x):.1f} {axes.y(y):.1f}"
            for x, y in zip(*thinned(known, unknown), strict=True)
        )
        lines += f'<path class="curve {line_style(i)}" d="M{corners[0]} {points}"/>'
    frame = axes.frame(
        (0, 0.2, 0.4, 0.6, 0.8, 1),
        "share of known cases answered",
        "share of unknown inputs answered",
    )
    return picture(
        "unknown-accepted",
        "Share of unknown inputs answered against the share of known cases answered",
        f"The most confident inputs are answered first. {'; '.join(ends)}.",
        f'{frame}<path class="random" d="M{corners[0]}L{corners[1]}"/>{lines}',
    )
