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
from keras_selcal._arrays import Array
from keras_selcal._predictions.samples import Samples
from keras_selcal.cli.files import read_predictions
from keras_selcal.cli.labels import fail
from keras_selcal.cli.output import (
    check_output,
    write_answers,
    write_parameters,
    write_predictions,
)
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
from keras_selcal.selective import Policy
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.fitting import select_each
from keras_selcal.selective.threshold import DEFAULT_DELTA, check_target


def report(options: argparse.Namespace) -> None:
    """Prints the table of each model and writes the page."""
    output = check_output(options.output)
    models = _read_models(options)
    reports = _reports(models, options)
    first, *others = reports
    given = list(models.values())
    path = first.to_html(
        output,
        others=others,
        title=options.title,
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
    reports = _reports(_read_models(options), options)
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
        y_pred=calibrator.predict_proba(target.y_pred),
        from_logits=False,
        calibrator=type(calibrator).__name__,
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
    print(
        "\nA threshold that was selected on raw predictions does not apply to "
        "calibrated ones:\n`keras-selcal fit` fits a calibrator and its threshold."
    )


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
    policy = None if options.policy is None else Policy.load(options.policy)
    multi_label, extra = options.multi_label, _columns(options)
    if policy is None:
        data = _read(options.file, multi_label, extra=extra)
    else:
        multi_label = policy.outputs.multi_label
        data = _read_for(policy, options.policy, options.file, extra=extra)
        name = csf.name_of(policy.csf)
        if options.csf not in (None, policy.csf.__name__):
            raise ValueError(
                f"--csf must be {name}, the score of {options.policy}, or left out. "
                f"Received: {options.csf}"
            )

    def cuts_of(data: PredictionFile) -> list[Cuts]:
        groups = _groups(options, data)
        if policy is not None:
            return policy.cuts(
                data.y_pred, data.labels, from_logits=data.from_logits, groups=groups
            )
        return _cuts(data, options.csf or "msp", multi_label, groups)

    cuts = cuts_of(data)
    with _notes():
        found = select_each(cuts, coverage, risk, delta)
    # The printed numbers are what users apply; an infinite one answers nothing.
    shown = [
        cut.shortest(at) if math.isfinite(at) else str(at)
        for cut, at in zip(cuts, found, strict=True)
    ]
    found = [float(at) for at in shown]
    if policy is None:
        kind = _kind_of_file(data, options.csf or "msp")
    else:
        kind = f"{_kind(policy)}, of {options.policy}"
    if multi_label:
        _print_labels(data.class_names, cuts, shown)
        print(f"\nConfidence: {kind}.")
    else:
        print(f"Answer if the confidence is at least {shown[0]}.\n")
        print(f"Confidence: {kind}.")
        _print_samples(f"these {count(cuts[0].total)} samples", cuts[0], found[0])
    print()
    units = "samples" if options.groups is None else "groups"
    print(_guarantee(cuts, found, risk, options.delta, units))
    if options.test:
        if policy is None:
            test = _read(options.test, multi_label, extra=extra).like(data)
            _refuse_mixture(data, test)
        else:
            test = _read_for(policy, options.policy, options.test, extra=extra)
        tests = cuts_of(test)
        print()
        if multi_label:
            _print_labels(data.class_names, tests, shown)
            return
        _print_samples(options.test, tests[0], found[0])
        bound = percent(tests[0].bound(found[0], options.delta))
        sure = round_percent(1 - options.delta)
        print(f"With {sure} confidence, these samples show a risk of at most {bound}.")


def _kind_of_file(data: PredictionFile, name: str) -> str:
    """Returns what the confidence of predictions in a file is."""
    if data.calibrator is not None:
        return f"{name} of probabilities that {data.calibrator} has calibrated"
    what = "logits" if data.from_logits else "probabilities"
    return (
        f"{name} of raw {what}, as they are in {data.path}. If you calibrate\nthem, "
        "this threshold does not apply: `keras-selcal fit` fits both"
    )


def _kind(policy: Policy) -> str:
    """Returns what the confidence of a policy is."""
    name = csf.name_of(policy.csf)
    if policy.csf.needs == "logits":
        return f"{name} of raw logits"
    if policy.calibrator is None:
        return f"{name} of raw {'logits' if policy.from_logits else 'probabilities'}"
    return f"{name} of probabilities calibrated by {type(policy.calibrator).__name__}"


def _refuse_mixture(data: PredictionFile, test: PredictionFile) -> None:
    """Refuses a test on predictions of another kind than the threshold is for."""
    if data.calibrator != test.calibrator:
        raise ValueError(
            f"{test.path}: both files must be raw, or both calibrated by "
            f"{data.calibrator or test.calibrator}"
        )


def _cuts(
    data: PredictionFile, name: str, multi_label: bool, groups: Array | None
) -> list[Cuts]:
    """Returns the thresholds that predictions offer, of each label."""
    samples = Samples.given(
        data.labels,
        data.y_pred,
        from_logits=data.from_logits,
        multi_label=multi_label,
    )
    score = csf.get(name)
    return [
        Cuts.of(part.scores(score), part.correct, groups=groups)
        for part in samples.split_labels()
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
    cuts: Sequence[Cuts],
    found: Sequence[float],
    risk: float | None,
    delta: float,
    units: str,
) -> str:
    """Returns what holds for new data, in words."""
    if risk is None:
        bounds = [
            label.bound(at, delta / len(cuts))
            for label, at in zip(cuts, found, strict=True)
        ]
        most = percent(max(bounds))
    else:
        most = round_percent(risk)
    return _promise(most, delta, len(cuts) > 1, units)


def _promise(most: str, delta: float, several: bool, units: str) -> str:
    each = " for every label at once" if several else ""
    return (
        f"Guarantee: with probability {round_percent(1 - delta)}, at most {most} of "
        f"the answers on new data are\nwrong{each}. The probability is over the draw "
        f"of these {units}. They must be independent,\ncome from the population in "
        "which the threshold is used, and must not have served to\ntrain or calibrate "
        "the model."
    )


def fit(options: argparse.Namespace) -> None:
    """Fits a policy, writes it and prints what it promises."""
    output = check_output(options.output, ".json")
    # The policy has the order of the file, as the user's arrays have.
    read = _read(options.file, options.multi_label, extra=_columns(options))
    data = read.in_file_order()
    _refuse_calibrated(data)
    delta = options.delta
    if delta is None and options.risk is not None:
        delta = DEFAULT_DELTA
    calibrator = None
    if options.method != "none":
        make = getattr(calibrators, METHODS[options.method])
        calibrator = make(from_logits=data.from_logits, multi_label=options.multi_label)
    with _notes():
        policy = Policy.fit(
            data.y_pred,
            data.labels,
            coverage=options.coverage,
            risk=options.risk,
            delta=delta,
            calibrator=calibrator,
            csf=options.csf,
            from_logits=data.from_logits,
            multi_label=options.multi_label,
            class_names=data.class_names,
            groups=_groups(options, data),
        )
    policy.save(output)
    _print_policy(policy)
    print(f"\n{output}: the policy, for `keras-selcal apply` and `check`")


def _print_policy(policy: Policy) -> None:
    record = policy.record
    assert record is not None
    if policy.calibrator is not None:
        print(policy.calibrator)
    if record.choice is not None:
        print(f"Score: {record.choice}.")
    print(f"Confidence: {_kind(policy)}.\n")
    several = policy.outputs.multi_label
    pairs = np.stack([record.coverage, record.selective_risk], axis=-1).reshape(-1, 2)
    cells = [[percent(x) if math.isfinite(x) else "–" for x in row] for row in pairs]
    where = f"On the {count(record.n)} samples that the threshold was selected on"
    if several:
        names = policy.class_names or map(str, range(policy.num_classes))
        rows = [[name, *row] for name, row in zip(names, cells, strict=True)]
        head = ["label", "answered", "wrong"]
        print(f"{where}:", *aligned(head, rows, right={1, 2}), sep="\n")
    else:
        answered, wrong = cells[0]
        print(f"{where}, it answers {answered}, of which\n{wrong} are wrong.")
    if record.bound is not None and record.delta is not None:
        bound = float(np.max(record.bound))
        most = percent(bound) if record.target_risk is None else round_percent(bound)
        units = "samples" if record.groups is None else "groups"
        print(f"\n{_promise(most, record.delta, several, units)}")


def apply(options: argparse.Namespace) -> None:
    """Writes the answers of a policy to new predictions."""
    output = check_output(options.output, ".csv", ".npz", ".parquet")
    policy = Policy.load(options.policy)
    data = _read_for(policy, options.policy, options.file, needs_labels=False)
    answers = policy.predict(data.y_pred, from_logits=data.from_logits)
    probabilities = policy.predict_proba(data.y_pred, from_logits=data.from_logits)
    if data.y_pred.ndim == 1:
        probabilities = probabilities[:, 1]
    calibrator = policy.calibrator and type(policy.calibrator).__name__
    data = data._replace(
        y_pred=probabilities,
        from_logits=False,
        class_names=list(policy.class_names) if policy.class_names else None,
        calibrator=calibrator or None,
    )
    write_answers(output, data, answers, policy.outputs.multi_label)
    share, n = float(answers.accepted.mean()), count(len(data.y_pred))
    print(
        f"{output}: answers to {percent(share)} of {n} samples; it abstains elsewhere"
    )


def check(options: argparse.Namespace) -> int:
    """Prints whether new predictions are like the fitting data; returns 1 if not."""
    policy = Policy.load(options.policy)
    given = {"needs_labels": False, "extra": _columns(options)}
    data = _read_for(policy, options.policy, options.file, **given)
    with _notes():
        found = policy.check(
            data.y_pred,
            data.labels,
            from_logits=data.from_logits,
            false_alarm_rate=options.false_alarm_rate,
            groups=_groups(options, data),
        )
    print(found)
    alarm = found.drifted or found.risk_holds is False
    print("Alarm: do not rely on the policy's promise." if alarm else "No alarm.")
    return int(alarm)


def _read_for(policy: Policy, name: str, path: str, **options: Any) -> PredictionFile:
    """Returns a file of outputs of the kind, and in the order, of a policy.

    Args:
        policy: the policy.
        name: its path, for errors.
        path: path of the file.
        **options: of `read_predictions`.
    """
    data = _read(path, policy.outputs.multi_label, **options)
    _refuse_calibrated(data)
    like = PredictionFile(
        np.zeros(1 if policy.one_unit else (1, policy.num_outputs)),
        None,
        policy.from_logits,
        None if policy.class_names is None else list(policy.class_names),
        path=name,
    ).by_number()
    data = data.like(like)
    if data.y_pred.ndim != like.y_pred.ndim:
        what = "of one sigmoid unit" if policy.one_unit else "of two classes"
        raise ValueError(f"{path}: must be {what}, as the data of {name}")
    if data.from_logits != policy.from_logits:
        kind = "logits" if policy.from_logits else "probabilities"
        raise ValueError(f"{path}: must hold {kind}, which {name} was fitted on")
    return data if like.columns is None else data.take(np.argsort(like.columns))


def _refuse_calibrated(data: PredictionFile) -> None:
    """Refuses what `calibrate` has written: a policy calibrates the model's outputs."""
    if data.calibrator is not None:
        raise ValueError(
            f"{data.path}: was calibrated by {data.calibrator}; a policy takes the "
            "outputs of the model itself"
        )


# Each returns None, or the exit status.
COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "report": report,
    "fit": fit,
    "apply": apply,
    "check": check,
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
    read = list(models.values())
    groups = _groups(options, *read)
    slices = {name: _column(name, *read) for name in _columns(options)[1:]}
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
            groups=groups,
            slices=slices,
            class_names=model.class_names,
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
        given = {"needs_labels": False, "extra": _columns(options)}
        read = _read(path, options.multi_label, **given).like(model)
        if read.from_logits != model.from_logits:
            kind = "logits" if model.from_logits else "probabilities"
            raise ValueError(f"{path}: must hold {kind}, as the predictions of {name}")
        found.append(read.y_pred)
    return found


def _columns(options: argparse.Namespace) -> list[str]:
    """Returns the columns that are not predictions: the groups, then the slices."""
    return [options.groups, *getattr(options, "slices", [])]


def _groups(options: argparse.Namespace, *files: PredictionFile) -> Array | None:
    """Returns the groups of the samples, or None."""
    return None if options.groups is None else _column(options.groups, *files)


def _column(name: str, *files: PredictionFile) -> Array:
    """Returns a column of the first file that has it; others must not contradict it."""
    found = [
        (file, file.extra[name].reshape(-1)) for file in files if name in file.extra
    ]
    if not found:
        fail(
            files[0].path, f"has no column `{name}`. Found: {', '.join(files[0].found)}"
        )
    (first, values), *others = found
    for other, theirs in others:
        if not np.array_equal(values, theirs):
            fail(other.path, f"the column `{name}` is not the same as in {first.path}")
    return values


def _read_models(options: argparse.Namespace) -> dict[str, PredictionFile]:
    """Returns predictions by the name of the model."""
    models: dict[str, PredictionFile] = {}
    multi_label, extra = options.multi_label, _columns(options)
    for file in options.files:
        name, is_named, path = file.partition("=")
        if not is_named or Path(file).exists():
            name, path = Path(file).stem, file
        if name in models:
            raise ValueError(
                f"two models have the name {name}; give them names as in NAME=FILE"
            )
        model = _read(path, multi_label, extra=extra)
        if not multi_label and model.labels is not None:
            model = model._replace(labels=_without_one_hot(model.labels))
        models[name] = model
    read = list(models.values())
    # Models without class names take the names of the first that has some.
    named = next((model for model in read if model.class_names), read[0])
    for name, model in models.items():
        models[name] = model.like(named)._replace(class_names=named.class_names)
    first, *others = models.values()
    for other in others:
        assert first.labels is not None
        assert other.labels is not None
        if not np.array_equal(first.labels.ravel(), other.labels.ravel()):
            raise ValueError(
                f"{other.path}: the labels differ from the labels in {first.path}; "
                "models are compared on the same samples"
            )
    return models


def _without_one_hot(labels: Any) -> Any:
    """Returns one-hot labels as class indices (n,), and others as they are."""
    if labels.ndim == 2 and labels.shape[1] > 1 and np.isin(labels, (0, 1)).all():
        return labels.argmax(axis=-1)
    return labels
