"""A report as one HTML file that needs no network and works without JavaScript."""

from collections.abc import Sequence
from datetime import date
from html import escape
from importlib import resources
from typing import Any

from keras_selcal._version import __version__
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import script_json, source_hash
from keras_selcal.report.html.numbers import count, round_percent
from keras_selcal.report.html.sections import SECTIONS
from keras_selcal.report.html.subject import Subject

_SCORES = {
    "msp": "the largest probability",
    "margin": "the largest probability minus the second",
    "neg_entropy": "the negative entropy of the probabilities",
}


def build_page(
    reports: Sequence[Evaluation],
    title: str | None = None,
    class_names: Any | None = None,
    images: Any | None = None,
    mistakes: int = 12,
) -> str:
    """Returns the page of one report, or of several models on the same samples.

    Args:
        reports: the others are compared with the first.
        title: title of the page, or None for one with the model's name.
        class_names: a name for each class, or None for their indices.
        images: images of the samples, as `Images` takes them, or None.
        mistakes: how many of the most confident mistakes to list.
    """
    subject = Subject(reports, class_names, images, mistakes)
    if title is None:
        title = "Calibration report"
        if not subject.several and reports[0].name:
            title += f" of {reports[0].name}"
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{source_hash(style)}'; script-src '{source_hash(script)}'"
    )
    links, body = "", ""
    for identity, link, heading, section in SECTIONS:
        content = section(subject)
        if content:
            links += f'<li><a href="#{identity}">{link}</a></li>'
            body += (
                f'<section id="{identity}" aria-labelledby="{identity}-heading">'
                f'<h2 id="{identity}-heading">{heading}</h2>{content}</section>\n'
            )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<!-- An empty icon keeps browsers from requesting one. -->
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#glance">Skip to the report</a>
<header>
<h1>{escape(title)}</h1>
<p>{_about(subject)}</p>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{body}</main>
<footer>{_notes(subject)}</footer>
<script type="application/json" id="stops">{script_json(subject.slider())}</script>
<script>{script}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files("keras_selcal.report.html").joinpath(name).read_text("utf-8")


def _about(subject: Subject) -> str:
    """Returns the line that describes the samples and models."""
    score = subject.first.csf.__name__
    report = subject.first
    number, kind = report.num_samples, "labels" if report.multi_label else "classes"
    samples = "1 sample" if number == 1 else f"{count(number)} samples"
    if report.num_groups is not None:
        groups = (
            "1 group" if report.num_groups == 1 else f"{report.num_groups:,} groups"
        )
        samples += f" in {groups}"
    parts = [f"{samples}, {count(report.num_classes)} {kind}"]
    if subject.several:
        names = escape(", ".join(subject.names))
        parts.append(f"{len(subject.names)} models: {names}")
    told = f" ({_SCORES[score]})" if score in _SCORES else ""
    parts.append(f"ranked by <code>{escape(score)}</code>{told}")
    if report.decision_threshold != 0.5:
        parts.append(f"decision threshold {report.decision_threshold:g}")
    if subject.weighted:
        parts.append("with sample weights")
    today = date.today().isoformat()
    parts.append(f'<time datetime="{today}">{today}</time>')
    return " · ".join(parts)


def _notes(subject: Subject) -> str:
    """Returns how the figures were computed."""
    report = subject.first
    parts = []
    if report.bootstrap:
        parts.append(
            "Intervals of metrics contain the middle "
            f"{round_percent(report.confidence_level)} of {count(report.bootstrap)} "
            f"bootstrap resamples{report.drawn} (seed {report.seed}). Intervals "
            "of small calibration errors are too high because resampling adds noise."
        )
    if report.num_groups is None:
        parts.append(
            "Intervals and guarantees take the samples for independent. If several "
            "come from one patient, device or document, pass <code>groups=</code>."
        )
    if subject.weighted:
        parts.append("Numbers of cases are shares of the weight times n.")
    parts.append(f"Made by keras_selcal {__version__}.")
    return "".join(f"<p>{part}</p>" for part in parts)
