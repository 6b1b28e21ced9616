"""Train, calibrate, abstain and report: `python -m recipes quickstart`."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal import CalibrationReport, TemperatureScaling, select_threshold
from keras_selcal.selective import risk_bound
from recipes import losses
from recipes.data.digits import LABEL_NOISE
from recipes.devices import ONE, Devices
from recipes.progress import Progress, console
from recipes.report import run_images
from recipes.request import Request
from recipes.runs import Run
from recipes.settings import settings
from recipes.tables import RunComparison, comparisons
from recipes.tasks import run_name, task_of
from recipes.training import train

DATASET, MODEL = "digits", "cnn"
BATCH_SIZE = settings(DATASET, MODEL, "au").batch_size
METRICS = ("accuracy", "ece", "adaptive_ece", "cwece", "aurc")
# Losses in the plots: seven curves would hide each other.
DRAWN = ("xe", "fl53", "au")
# The share of the samples to answer. A fifth of the labels is random, also in the test
# data, so that hardly any risk below that can be promised.
COVERAGE, DELTA = 0.5, 0.05


def quickstart(
    folder: str | os.PathLike[str],
    seeds: int = 3,
    devices: Devices = ONE,
    epochs: int | None = None,
) -> None:
    """Trains with every loss and several seeds, calibrates, abstains, and reports.

    Finished runs are not trained again.

    Args:
        folder: where to write the runs, `table.md`, `reliability.png`,
            `risk_coverage.png` and `report.html`.
        seeds: number of runs of each loss.
        devices: the devices that share each batch.
        epochs: number of epochs. Defaults to that of the settings.
    """
    output = console(quiet=devices.rank > 0)
    start = time.perf_counter()
    folder = Path(folder)
    tasks = [
        task_of(Request(DATASET, MODEL, loss, epochs=epochs, seed=seed))
        for loss in losses.NAMES
        for seed in range(seeds)
    ]
    output.print(
        f"1. Train: {MODEL} on {DATASET}, {100 * LABEL_NOISE:g} % of the labels wrong, "
        f"{len(losses.NAMES)} losses, {seeds} seeds each",
        soft_wrap=True,
    )
    runs = []
    with Progress(output, len(tasks)) as progress:
        for task in tasks:
            run = Run(folder / run_name(task))
            # A run takes seconds: more checkpoints would cost more than they save.
            train(run, task, progress, checkpoint_every=20, devices=devices)
            runs.append(run)
    if devices.rank > 0:
        return
    (found,) = comparisons(runs, METRICS)
    output.print(found.table().rich(bold=output.is_terminal))
    output.print(verdict(found), soft_wrap=True)
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.config()["loss"], run)
    _write(folder, found, first)
    reports = _calibrate_and_abstain(first["xe"], output)
    page = _report(folder, reports, first["au"])
    seconds = time.perf_counter() - start
    output.print(
        f"\n4. Report, after {seconds:.0f} s. Open it in a browser:\n   "
        f"{page.resolve()}\n   The table, the pictures and the runs are in {folder}.",
        soft_wrap=True,
    )


def verdict(found: RunComparison) -> str:
    """Says whether AU has a lower ECE than XE, and how the accuracy changes."""
    xe, au = (found.columns.index(losses.TITLES[name]) for name in ("xe", "au"))
    ece, accuracy = found.rows["ece"], found.rows["accuracy"]
    gain = ece[xe].mean - ece[au].mean
    cost = accuracy[xe].mean - accuracy[au].mean
    change = "lowers" if gain > 0 else "does not lower"
    return (
        f"AU {change} the ECE of XE: {ece[au].mean:.2f} against {ece[xe].mean:.2f}, "
        f"with {abs(cost):.2f} points {'less' if cost > 0 else 'more'} accuracy."
    )


def _calibrate_and_abstain(run: Run, output: Any) -> list[CalibrationReport]:
    """Calibrates a network, selects a threshold, and prints what both achieve."""
    val, test = run.predictions("val"), run.predictions("test")
    half = len(val.labels) // 2
    calibrator = TemperatureScaling().fit(val.logits[:half], val.labels[:half])
    p_val, p = (calibrator.predict_proba(x) for x in (val.logits[half:], test.logits))
    correct = p_val.argmax(-1) == val.labels[half:]
    threshold = select_threshold(p_val.max(-1), correct, coverage=COVERAGE)
    before, after = reports = [
        CalibrationReport(test.labels, test.logits, from_logits=True, name="XE"),
        CalibrationReport(test.labels, p, name="XE, calibrated"),
    ]
    ece, calibrated = (100 * each["ece"].value for each in reports)
    output.print(
        f"\n2. Calibrate: {losses.TITLES['xe']} of seed 0, by temperature scaling on "
        f"{half} validation samples.\n   T = {calibrator.temperature:.2f}; the ECE on "
        f"the test data changes from {ece:.1f} to {calibrated:.1f} points.",
        soft_wrap=True,
    )
    accepted = p.max(-1) >= threshold
    wrong = p.argmax(-1) != test.labels
    bound = risk_bound(int(wrong[accepted].sum()), int(accepted.sum()), DELTA)
    output.print(
        f"\n3. Abstain: answer where the confidence is at least {threshold:.3f}, which "
        f"{100 * COVERAGE:g} % of the other {len(correct)} validation samples reach.\n"
        f"   Of the test data it answers {100 * accepted.mean():.0f} %, of which "
        f"{100 * wrong[accepted].mean():.0f} % are wrong instead of "
        f"{100 * wrong.mean():.0f} % of all. With\n   {100 * (1 - DELTA):g} % "
        f"confidence, at most {100 * bound:.0f} % of new answers are wrong.",
        soft_wrap=True,
    )
    return [before, after]


def _report(folder: Path, reports: list[CalibrationReport], au: Run) -> Path:
    """Writes the page on cross-entropy, before and after calibration, and AU."""
    logits, labels = au.predictions("test")
    reports = [*reports, CalibrationReport(labels, logits, from_logits=True, name="AU")]
    return reports[0].to_html(
        folder / "report.html",
        others=reports[1:],
        title="Quickstart: digits with wrong labels",
        class_names=au.config()["data"]["class_names"],
        images=run_images(au.config(), "test", None),
    )


def _write(folder: Path, found: RunComparison, first: dict[str, Run]) -> None:
    """Writes the table and the plots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from keras_selcal import plots

    labels = first["xe"].predictions("test").labels
    logits = {
        losses.TITLES[name]: first[name].predictions("test").logits for name in DRAWN
    }
    text = f"{found.table().markdown()}\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    for draw, name in (
        (plots.reliability_diagram, "reliability"),
        (plots.risk_coverage_curve, "risk_coverage"),
    ):
        # Several models have several axes in one figure.
        figure = np.ravel(draw(labels, logits, from_logits=True))[0].figure
        figure.savefig(folder / f"{name}.png", dpi=100)
        pyplot.close(figure)
