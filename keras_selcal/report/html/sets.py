"""The section on prediction sets."""

import warnings
from typing import Any

import numpy as np

from keras_selcal.conformal import (
    conformal_scores,
    conformal_sets,
    conformal_threshold,
    evaluate_sets,
)
from keras_selcal.conformal.threshold import masses
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import details, table
from keras_selcal.report.html.numbers import count, percent, round_percent
from keras_selcal.report.html.subject import Subject

# Shares of sets that may miss the right class.
_ALPHAS = (0.1, 0.05)

# Fewer samples say too little about coverage.
_FEWEST = 100

# Rows of the table of classes.
_MOST_CLASSES = 12


def prediction_sets(subject: Subject) -> str:
    """Returns how large sets are that hold the right class at a chosen rate."""
    samples = subject.first.samples
    hard = samples.sparse or bool(np.isin(samples.labels, (0, 1)).all())
    few = subject.first.num_units < _FEWEST
    if subject.first.multi_label or subject.missing or not hard or few:
        return ""
    found = [
        {alpha: _figures(report, alpha) for alpha in _ALPHAS}
        for report in subject.reports
    ]
    rows = [
        [
            (f"{subject.tag(i)}: " if subject.several else "") + round_percent(1 - a),
            percent(figures["coverage"]),
            f"{figures['mean_size']:.2f}",
            percent(figures["singleton_rate"]),
            percent(figures["empty_rate"]),
        ]
        for i, each in enumerate(found)
        for a, figures in each.items()
    ]
    head = ["Aim", "Holds the right class", "Classes in a set", "Exactly one", "None"]
    unit = "samples" if subject.first.num_groups is None else "groups"
    caption = (
        f"Sets of one half of the {unit}, with a threshold from the other half, of "
        f"{count(subject.first.num_classes)} classes"
    )
    if unit == "groups":
        caption += ". Each group counts as one case"
    alpha = _ALPHAS[0]
    return (
        "<p>Instead of one class, a model can answer with a set of classes that holds "
        "the right one at a chosen rate. A good model needs few classes for it.</p>"
        + table(caption, head, rows, "metrics")
        + details(
            "Class by class",
            _classes(subject, [each[alpha] for each in found], alpha),
        )
        + "<p>The rate is an average over all cases: a difficult class can be missed "
        "more often. <code>ConformalClassifier(class_conditional=True)</code> gives "
        "the guarantee for each class, with larger sets. It holds for new cases that "
        "come independently from the same source as these; after a shift of the data, "
        "such as another camera or other frequencies of the classes, it does not.</p>"
    )


def _figures(report: Evaluation, alpha: float) -> dict[str, Any]:
    """Returns the figures of LAC's sets for half of the samples."""
    samples = report.samples
    # The given order may be sorted by class.
    order = np.random.default_rng(0).permutation(report.num_units)
    half = np.isin(report.unit, order[: report.num_units // 2])
    # Each group counts as one sample, whose weight its samples share.
    weight = masses(samples.counts, report.unit)

    def part(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return samples.y_pred[rows], report.truth[rows], weight[rows]

    with warnings.catch_warnings():
        # A threshold that is infinite for lack of samples shows as sets of all classes.
        warnings.simplefilter("ignore")
        p, y, _ = part(half)
        scores = conformal_scores(p, y, from_logits=samples.from_logits)
        q = conformal_threshold(
            scores,
            alpha,
            sample_weight=samples.counts[half],
            groups=report.unit[half],
        )
    p, y, w = part(~half)
    sets = conformal_sets(p, q, from_logits=samples.from_logits)
    figures = evaluate_sets(y, sets, sample_weight=w)
    figures["class_count"] = np.bincount(y, minlength=sets.shape[-1])
    figures["class_size"] = np.bincount(y, sets.sum(axis=-1), sets.shape[-1])
    return figures


def _classes(subject: Subject, found: list[dict[str, Any]], alpha: float) -> str:
    """Returns the table of the classes that the first model's sets hold least often."""
    counts = found[0]["class_count"]
    present = np.flatnonzero(counts)
    worst = present[np.argsort(found[0]["class_coverage"][present], kind="stable")]
    rows = []
    for index in worst[:_MOST_CLASSES].tolist():
        cells = [subject.class_name(index), count(int(counts[index]))]
        for figures in found:
            size = figures["class_size"][index] / counts[index]
            cells += [percent(figures["class_coverage"][index]), f"{size:.2f}"]
        rows.append(cells)
    head = ["Class", "Cases"]
    for i in range(len(found)):
        of = f"{subject.tag(i)}: " if subject.several else ""
        head += [f"{of}Holds it", f"{of}Classes in a set"]
    caption = (
        f"{len(rows)} of {count(len(present))} classes, the least often held first, "
        f"for sets that aim at {round_percent(1 - alpha)}"
    )
    return table(caption, head, rows, "metrics")
