"""The sections of a page: to add one, write its function and a line in the list."""

from collections.abc import Callable
from typing import NamedTuple

from keras_selcal.report.html.abstain import abstention
from keras_selcal.report.html.advice import advice
from keras_selcal.report.html.calibration import reliability
from keras_selcal.report.html.classes import classes
from keras_selcal.report.html.metrics import metrics
from keras_selcal.report.html.mistakes import mistakes
from keras_selcal.report.html.sets import prediction_sets
from keras_selcal.report.html.slices import slices
from keras_selcal.report.html.subject import Subject
from keras_selcal.report.html.unknown import drift, unknown_inputs
from keras_selcal.report.html.words import at_a_glance


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        identity: its anchor.
        link: its name in the navigation.
        heading: its heading.
        content: returns its HTML, or "" if it has nothing to show.
    """

    identity: str
    link: str
    heading: str
    content: Callable[[Subject], str]


SECTIONS = (
    Section("glance", "At a glance", "At a glance", at_a_glance),
    Section(
        "reliability", "Calibration", "Is it right as often as it claims?", reliability
    ),
    Section("advice", "What to do", "What to do", advice),
    Section("abstain", "Abstaining", "How much should it answer?", abstention),
    Section("classes", "Classes", "Class by class", classes),
    Section("slices", "Slices", "Is it equally good for all?", slices),
    Section("sets", "Sets", "How many classes must it name?", prediction_sets),
    Section("unknown", "Unknown inputs", "Inputs it has never seen", unknown_inputs),
    Section("drift", "Drift", "Are these data like the data of the fit?", drift),
    Section("mistakes", "Mistakes", "Its mistakes, or wrong labels?", mistakes),
    Section("metrics", "All metrics", "All metrics", metrics),
)
