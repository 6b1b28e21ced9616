"""Every loss on noisy digits with a small network: `python -m recipes quickstart`."""

import os
import time
from pathlib import Path

import numpy as np

from recipes import losses
from recipes.data.digits import LABEL_NOISE
from recipes.devices import ONE, Devices
from recipes.progress import Progress, console
from recipes.runs import Run
from recipes.settings import settings
from recipes.tables import RunComparison, comparisons
from recipes.tasks import Request, run_name, task_of
from recipes.training import train

DATASET, MODEL = "digits", "cnn"
BATCH_SIZE = settings(DATASET, MODEL, "au").batch_size
METRICS = ("accuracy", "ece", "adaptive_ece", "cwece", "aurc")
# Losses in the plots: seven curves would hide each other.
DRAWN = ("xe", "fl53", "au")


def quickstart(
    folder: str | os.PathLike[str],
    seeds: int = 3,
    devices: Devices = ONE,
    epochs: int | None = None,
) -> None:
    """Trains with every loss and several seeds, prints a table, and draws plots.

    Finished runs are not trained again.

    Args:
        folder: where to write the runs, `table.md`, `reliability.png` and
            `risk_coverage.png`.
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
        f"{MODEL} on {DATASET}, {100 * LABEL_NOISE:g} % of the labels wrong: "
        f"{len(losses.NAMES)} losses, {seeds} seeds each"
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
    _write(folder, found, runs)
    seconds = time.perf_counter() - start
    output.print(
        f"{folder}: table.md, reliability.png, risk_coverage.png and the runs, "
        f"after {seconds:.0f} s",
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


def _write(folder: Path, found: RunComparison, runs: list[Run]) -> None:
    """Writes the table and the plots."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from keras_selcal import plots

    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.config()["loss"], run)
    labels = run.predictions("test").labels
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
