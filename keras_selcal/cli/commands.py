"""The commands: each reads files, computes in NumPy and prints what it found."""

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal import calibrators, csf
from keras_selcal._predictions.samples import Samples
from keras_selcal.cli.files import read_predictions
from keras_selcal.cli.output import check_output, write_parameters, write_predictions
from keras_selcal.cli.parser import METHODS
from keras_selcal.cli.predictions import PredictionFile
from keras_selcal.report import CalibrationReport
from keras_selcal.report.comparison import Comparison
from keras_selcal.report.html.numbers import (
    count,
    percent,
    round_percent,
    signed,
    value_of,
)
from keras_selcal.report.tables import aligned
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.fitting import select_each
from keras_selcal.selective.threshold import check_target


def report(options: argparse.Namespace) -> None:
    """Prints the table of each model and writes the page."""
    output = check_output(options.output)
    models = _read_models(options.files, options.multi_label)
    reports = _reports(models, options)
    first, *others = reports
    given = list(models.values())
    path = first.to_html(
        output,
        others=others,
        title=options.title,
        class_names=given[0].class_names,
        images=next((m.images for m in given if m.images is not None), None),
        mistakes=options.mistakes,
    )
    for each in reports:
        print(each, end="\n\n")
    for other in others:
        print(other.compare(first), end="\n\n")
    print(f"{path}: open it in a browser")


def compare(options: argparse.Namespace) -> None:
    """Prints how each further model differs from the first."""
    if len(options.files) < 2:
        raise ValueError("compare needs two or more files of predictions")
    reports = _reports(_read_models(options.files, options.multi_label), options)
    first = reports[0]
    for other in reports[1:]:
        comparison = other.compare(first)
        print(*_in_words(comparison), sep="\n", end="\n\n")
        print(comparison, end="\n\n")


def _in_words(comparison: Comparison) -> list[str]:
    """Returns a sentence for each metric that the interval decides, and the rest."""
    name, base = comparison.names
    level = round_percent(comparison.first.confidence_level)
    lines = [f"{name} compared with {base}, {level} intervals of the difference:"]
    same: dict[str, list[str]] = {"equal": [], "undecided": []}
    for metric, difference in comparison.items():
        row, verdict = comparison.first.rows[metric], comparison.verdict(metric)
        if verdict in same:
            same[verdict].append(row.short)
            continue
        value, before = (
            value_of(x, row.unit) for x in (difference.first, difference.second)
        )
        low, high = (signed(end, row.unit) for end in (difference.low, difference.high))
        lines.append(
            f"- {row.title}: {name} is {verdict}, {value} instead of {before} "
            f"(difference {low} to {high})."
        )
    if same["equal"]:
        lines.append(f"- Equal: {', '.join(same['equal'])}.")
    if same["undecided"]:
        lines.append(f"- Chance may explain: {', '.join(same['undecided'])}.")
    return lines


def calibrate(options: argparse.Namespace) -> None:
    """Fits a calibrator, applies it, and writes predictions and parameters."""
    output = check_output(options.output, ".npz", ".csv", ".parquet")
    parameters = check_output(options.parameters, ".npz", ".json")
    if output == parameters:
        raise ValueError(f"{output}: predictions and parameters need two files")
    multi_label = options.multi_label
    fitting = _read(options.file, multi_label)
    target = fitting
    if options.apply:
        target = _read(options.apply, multi_label, needs_labels=False).like(fitting)
        if target.y_pred.shape[1:] != fitting.y_pred.shape[1:]:
            raise ValueError(
                f"{options.apply}: both files must be of one sigmoid unit, or both of "
                "two classes"
            )
        if target.from_logits != fitting.from_logits:
            raise ValueError(
                f"{options.apply}: both files must hold logits, or both probabilities"
            )
    if fitting.columns is not None:
        # The parameters are in the order of the file, as the user's arrays are.
        order = np.argsort(fitting.columns)
        fitting, target = fitting.take(order), target.take(order)
    make = getattr(calibrators, METHODS[options.method])
    calibrator = make(from_logits=fitting.from_logits, multi_label=multi_label)
    with _notes():
        calibrator.fit(fitting.y_pred, fitting.labels)
    if isinstance(calibrator, calibrators.AutoCalibration):
        _print_scores(calibrator)
        calibrator = calibrator.calibrator
    calibrated = target._replace(
        y_pred=calibrator.predict_proba(target.y_pred), from_logits=False
    )
    write_predictions(output, calibrated, multi_label)
    write_parameters(parameters, calibrator)
    print(calibrator)
    if target.labels is not None:
        reports = [
            CalibrationReport(
                data.labels,
                data.y_pred,
                from_logits=data.from_logits,
                multi_label=multi_label,
                bootstrap=0,
            )
            for data in (target, calibrated)
        ]
        rows = [
            [
                name,
                *(value_of(each[name].value, each.rows[name].unit) for each in reports),
            ]
            for name in ("accuracy", "nll", "brier", "ece", "cwece")
        ]
        on = options.apply or f"{options.file}, which it was fitted on"
        print(f"\nOn {on}:")
        print(*aligned(["metric", "before", "after"], rows, right={1, 2}), sep="\n")
    if not options.apply:
        print(
            "\nThe figures are of the samples of the fit and a little too good: pass "
            "other samples by --apply to judge the calibrator."
        )
    print(f"\n{output}: calibrated predictions\n{parameters}: fitted parameters")


def _print_scores(calibrator: calibrators.AutoCalibration) -> None:
    """Prints the candidates of a choice."""
    rows = [
        [name, f"{log_loss:.4f}", f"{error:.4f}" if error else "best"]
        for name, log_loss, error in calibrator.scores
    ]
    head = ["candidate", "held-out log loss", "± difference from the best"]
    print(*aligned(head, rows, right={1, 2}), sep="\n")
    print(f"Chosen: {calibrator.chosen}, the simplest within one standard error.\n")


def threshold(options: argparse.Namespace) -> None:
    """Prints the threshold, what it does on these samples, and what is guaranteed."""
    delta = None if options.risk is None else options.delta
    coverage, risk, delta = check_target(options.coverage, options.risk, delta)
    data = _read(options.file, options.multi_label)
    cuts = _cuts(data, options)
    with _notes():
        found = select_each(cuts, coverage, risk, delta)
    # The printed numbers are what users apply; an infinite one answers nothing.
    shown = [
        cut.shortest(at) if math.isfinite(at) else str(at)
        for cut, at in zip(cuts, found, strict=True)
    ]
    found = [float(at) for at in shown]
    if options.multi_label:
        _print_labels(data.class_names, cuts, shown)
    else:
        print(f"Answer if the confidence ({options.csf}) is at least {shown[0]}.\n")
        _print_samples(f"these {count(cuts[0].total)} samples", cuts[0], found[0])
    print()
    print(_guarantee(cuts, found, risk, options.delta))
    if options.test:
        tests = _cuts(_read(options.test, options.multi_label).like(data), options)
        print()
        if options.multi_label:
            _print_labels(data.class_names, tests, shown)
            return
        _print_samples(options.test, tests[0], found[0])
        bound = percent(tests[0].bound(found[0], options.delta))
        sure = round_percent(1 - options.delta)
        print(f"With {sure} confidence, these samples show a risk of at most {bound}.")


def _cuts(data: PredictionFile, options: argparse.Namespace) -> list[Cuts]:
    """Returns the thresholds that predictions offer, of each label."""
    samples = Samples.given(
        data.labels,
        data.y_pred,
        from_logits=data.from_logits,
        multi_label=options.multi_label,
    )
    score = csf.get(options.csf)
    return [
        Cuts.of(part.scores(score), part.correct) for part in samples.split_labels()
    ]


def _print_samples(where: str, cuts: Cuts, at: float) -> None:
    accepted, errors = cuts.at(at)
    share = percent(errors / accepted) if accepted else "none"
    everywhere = percent(float(cuts.sample_losses.mean()))
    print(
        f"On {where} it answers {percent(accepted / cuts.total)} "
        f"({count(accepted)}), of which {share} ({count(errors)})\n"
        f"are wrong. Without abstention {everywhere} are wrong."
    )


def _print_labels(
    names: Sequence[str] | None, cuts: Sequence[Cuts], shown: Sequence[str]
) -> None:
    rows = []
    for i, (label, at) in enumerate(zip(cuts, shown, strict=True)):
        accepted, errors = label.at(float(at))
        share = percent(errors / accepted) if accepted else "–"
        rows.append(
            [
                names[i] if names else str(i),
                "never" if at == "inf" else at,
                percent(accepted / label.total),
                share,
            ]
        )
    head = ["label", "answer from confidence", "answered", "wrong"]
    print(*aligned(head, rows, right={1, 2, 3}), sep="\n")


def _guarantee(
    cuts: Sequence[Cuts], found: Sequence[float], risk: float | None, delta: float
) -> str:
    """Returns what holds for new data, in words."""
    each = " for every label at once" if len(cuts) > 1 else ""
    if risk is None:
        bounds = [
            label.bound(at, delta / len(cuts))
            for label, at in zip(cuts, found, strict=True)
        ]
        most = percent(max(bounds))
    else:
        most = round_percent(risk)
    return (
        f"Guarantee: with probability {round_percent(1 - delta)}, at most {most} of "
        f"the answers on new data are\nwrong{each}. The probability is over the draw "
        "of these samples. They must be independent,\ncome from the population in "
        "which the threshold is used, and must not have served to\ntrain or calibrate "
        "the model."
    )


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "report": report,
    "calibrate": calibrate,
    "threshold": threshold,
    "compare": compare,
}


@contextmanager
def _notes() -> Iterator[None]:
    """Prints warnings as one-line notes."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    for note in notes:
        print(f"note: {note.message}", file=sys.stderr)


def _read(path: str, multi_label: bool, **options: Any) -> PredictionFile:
    with _notes():
        return read_predictions(path, multi_label, **options)


def _reports(
    models: dict[str, PredictionFile], options: argparse.Namespace
) -> list[CalibrationReport]:
    unknown = _read_unknown(models, options)
    return [
        CalibrationReport(
            model.labels,
            model.y_pred,
            from_logits=model.from_logits,
            multi_label=options.multi_label,
            decision_threshold=options.decision_threshold,
            csf=options.csf,
            bootstrap=options.bootstrap,
            name=name,
            unknown=strange,
        )
        for (name, model), strange in zip(models.items(), unknown, strict=True)
    ]


def _read_unknown(
    models: dict[str, PredictionFile], options: argparse.Namespace
) -> list[Any]:
    """Returns the predictions of unknown inputs of each model, or None."""
    if not options.unknown:
        return [None] * len(models)
    if len(options.unknown) != len(models):
        raise ValueError(
            f"--unknown is needed once for each of the {len(models)} models. Received: "
            f"{len(options.unknown)} files"
        )
    found = []
    for path, (name, model) in zip(options.unknown, models.items(), strict=True):
        read = _read(path, options.multi_label, needs_labels=False).like(model)
        if read.from_logits != model.from_logits:
            kind = "logits" if model.from_logits else "probabilities"
            raise ValueError(f"{path}: must hold {kind}, as the predictions of {name}")
        found.append(read.y_pred)
    return found


def _read_models(files: Sequence[str], multi_label: bool) -> dict[str, PredictionFile]:
    """Returns predictions by the name of the model."""
    models: dict[str, PredictionFile] = {}
    for file in files:
        name, is_named, path = file.partition("=")
        if not is_named or Path(file).exists():
            name, path = Path(file).stem, file
        if name in models:
            raise ValueError(
                f"two models have the name {name}; give them names as in NAME=FILE"
            )
        model = _read(path, multi_label)
        if not multi_label and model.labels is not None:
            model = model._replace(labels=_without_one_hot(model.labels))
        models[name] = model
    read = list(models.values())
    # Models without class names have those of the first that has some.
    named = next((model for model in read if model.class_names), read[0])
    for name, model in models.items():
        models[name] = model.like(named)._replace(class_names=named.class_names)
    first, *others = models.values()
    for other in others:
        assert first.labels is not None
        assert other.labels is not None
        if not np.array_equal(first.labels.ravel(), other.labels.ravel()):
            raise ValueError(
                f"{other.path}: the labels differ from those of {first.path}; models "
                "are compared on the same samples"
            )
    return models


def _without_one_hot(labels: Any) -> Any:
    """Returns one-hot labels as class indices (n,), and others as they are."""
    if labels.ndim == 2 and labels.shape[1] > 1 and np.isin(labels, (0, 1)).all():
        return labels.argmax(axis=-1)
    return labels
