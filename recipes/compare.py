"""Compares losses on your own data: `python -m recipes compare`.

Every loss trains the same network for the same number of epochs with the same seeds. A
seed decides the validation data, the initial weights and the order of the batches, so
that losses can be compared seed by seed. NLL and AURC after temperature scaling decide.
"""

import csv
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from keras_selcal import CalibrationReport
from keras_selcal.report.html import markup
from recipes import losses as table_of_losses
from recipes import models, training
from recipes.engine import ONE, Job, train_all
from recipes.evaluation import (
    COVERAGE,
    DECIDING,
    Gap,
    digits_of,
    paired,
    scaled_measures,
    titled,
)
from recipes.progress import Progress, console
from recipes.runs import Run
from recipes.settings import COMPARED, TRANSFORMERS
from recipes.tables import Table
from recipes.tasks import Pool, RunError, Task

# What is compared by default; the first loss is the one to beat.
DEFAULT = ("xe", "xe_smoothed", "xe_dropout", "focal", "kde_xe", "aurc", "au")
PRIMARY = tuple(f"{name}_ts" for name in DECIDING)
SHOWN = (*PRIMARY, "accuracy", f"{COVERAGE}_ts", "ece_ts", "ece")
_PROTOCOLS = {"best": "Best epoch by validation NLL", "last": "Last epoch"}

Row = Mapping[str, Any]


def compare(
    dataset: str,
    *,
    model: str | None = None,
    losses: Sequence[str] = (),
    seeds: int = 5,
    epochs: int = 20,
    data_dir: str | None = None,
    out: str = "runs/compare",
    pool: Pool = ONE,
) -> list[str]:
    """Trains with each loss and seed, writes results.csv and report.html.

    The arguments are those of the command. Returns the verdict, as `verdict` gives it.
    """
    output, folder = console(), Path(out)
    chosen = tuple(losses) or DEFAULT
    if len(set(chosen)) < max(2, len(chosen)):
        raise RunError(
            "`losses` must be two or more different names. Received: "
            f"losses={','.join(chosen)!r}"
        )
    # All that can be wrong is told before the first training.
    options: Any = {"data_dir": data_dir, "from_scratch": model in TRANSFORMERS}
    found = training.read_data(Task(dataset, model or "mlp", chosen[0], **options))
    model = model or ("cnn_strided" if found.train.x.ndim == 4 else "mlp")
    # Small data gets smaller batches, so that an epoch has several steps.
    size = min(128, max(16, len(found.train) // 8))
    options |= {"epochs": epochs, "batch_size": size}
    jobs = [
        Job(
            Run(folder / "runs" / f"{_file_name(loss)}-{seed}"),
            Task(
                *(dataset, model, loss),
                **options,
                set=COMPARED,
                split_seed=seed,
                seed=seed,
            ),
        )
        for seed in range(seeds)
        for loss in chosen
    ]
    for job in jobs[: len(chosen)]:
        job.task.settings  # noqa: B018 - refuses what cannot be trained
    try:
        models.build(model, found.num_classes, found.input_shape)
    except ValueError as error:
        raise RunError(" ".join(str(error).split())) from error

    shared = {training.data_key(jobs[0].task): found}
    with Progress(output, len(jobs)) as progress:
        ended = train_all(jobs, progress, pool, loaded=shared)
    if failed := [one for one in ended if one.error is not None]:
        raise RunError(
            f"{failed[0].error} ({len(failed)} of {len(jobs)} runs failed; the same "
            "command tries them again.)"
        )
    rows = [row for job in jobs for row in rows_of(job)]
    with open(folder / "results.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

    told = verdict(gaps_of(rows, "best"), chosen[0])
    tables = [table(rows, protocol) for protocol in _PROTOCOLS]
    how = (
        f"{model}, {epochs} epochs, {seeds} seeds, {len(found.train):,} training, "
        f"{len(found.val):,} validation and {len(found.test):,} test samples. "
        "▲ is better and ▼ is worse. A seed decides the validation data, the initial "
        "weights and the order of batches; the test data is the same. Intervals of NLL "
        "and AURC hold for all losses together at 95 %."
    )
    late = [row["epoch"] == epochs for row in rows if row["protocol"] == "best"]
    if 2 * sum(late) > len(late):
        how += (
            f" The last epoch was the best one in {sum(late)} of {len(late)} "
            "trainings: more epochs may change the verdict."
        )
    for one in tables:
        output.print(one.rich(bold=output.is_terminal))
    page = _report(folder, jobs[: len(chosen)], rows, told, tables, how)
    output.print("\n".join([how, "", *told, ""]), soft_wrap=True)
    output.print(f"{page} and {folder / 'results.csv'}", soft_wrap=True)
    return told


def _file_name(loss: str) -> str:
    return "".join(c if c.isalnum() or c in "_." else "_" for c in loss)


def rows_of(job: Job) -> list[dict[str, Any]]:
    """Returns a row of figures for each protocol of a finished run."""
    run, task = job
    epochs = {"best": run.environment()["best_epoch"], "last": task.settings.epochs}
    return [
        {
            **{"loss": task.loss, "protocol": protocol, "seed": task.seed},
            "epoch": epochs[protocol],
            **scaled_measures(
                run.predictions(f"{start}val"), run.predictions(f"{start}test")
            ),
        }
        for protocol, start in (("best", ""), ("last", "last-"))
    ]


# --- Verdict ------------------------------------------------------------------------

Gaps = dict[str, dict[str, Gap]]


def gaps_of(rows: Sequence[Row], protocol: str) -> Gaps:
    """Returns the losses minus the first one by metric, paired over seeds.

    The intervals of the metrics that decide hold for all losses together at 95 %
    (Bonferroni), so that more losses do not find more by chance.
    """
    by_loss: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["seed"]):
        if row["protocol"] == protocol:
            by_loss.setdefault(row["loss"], []).append(row)
    base = rows[0]["loss"]
    rivals = [loss for loss in by_loss if loss != base]
    return {
        loss: {
            name: paired(
                [
                    one[f"test_{name}"] - other[f"test_{name}"]
                    for one, other in zip(by_loss[loss], by_loss[base], strict=True)
                ],
                comparisons=len(rivals) * len(PRIMARY),
            )
            for name in SHOWN
        }
        for loss in rivals
    }


def decided(gaps: Mapping[str, Gap]) -> str:
    """Returns `"better"`, `"worse"`, `"mixed"` or `"undecided"`, by `PRIMARY`."""
    said = {gaps[name].verdict(name) for name in PRIMARY} - {"undecided"}
    return "mixed" if len(said) > 1 else next(iter(said), "undecided")


def verdict(gaps: Gaps, base: str) -> list[str]:
    """Returns the verdict in sentences: what to use, and then a line for each loss."""
    words = table_of_losses.words
    first = words(base)
    better = [loss for loss in gaps if decided(gaps[loss]) == "better"]
    lines = [f"Use {first}: no other loss was better on this data."]
    if all(decided(found) == "undecided" for found in gaps.values()):
        lines = [
            f"Undecided: these runs tell no loss from {first}. More seeds may; until "
            f"then, use {first}."
        ]
    if better:
        best = min(better, key=lambda loss: gaps[loss]["nll_ts"].mean)
        lines = [f"Use {words(best)}: it was better than {first} on this data."]
    kinds = {
        "better": f"is better than {first}",
        "worse": f"is worse than {first}",
        "mixed": f"is better than {first} by one metric and worse by the other",
        "undecided": f"is no different from {first} as far as these runs can tell",
    }
    for loss, found in gaps.items():
        figures = ", ".join(
            f"{titled(name)[:-2]} {found[name].text(name)}" for name in PRIMARY
        )
        lines.append(f"{words(loss)} {kinds[decided(found)]}: {figures}.")
    return [line[0].upper() + line[1:] for line in lines]


def table(rows: Sequence[Row], protocol: str) -> Table:
    """Returns the first loss, and the differences of the others from it."""
    base = rows[0]["loss"]
    first = [r for r in rows if (r["loss"], r["protocol"]) == (base, protocol)]
    means = [
        f"{np.mean([r[f'test_{m}'] for r in first]):.{digits_of(m)}f}" for m in SHOWN
    ]
    lines = [[table_of_losses.words(base), *means]]
    for loss, found in gaps_of(rows, protocol).items():
        texts = [found[name].text(name) for name in SHOWN]
        lines.append([table_of_losses.words(loss), *texts])
    heading = ["test data", *map(titled, SHOWN)]
    return Table(heading, lines, title=_PROTOCOLS[protocol])


# --- Page ---------------------------------------------------------------------------


def _report(
    folder: Path,
    jobs: Sequence[Job],
    rows: Sequence[Row],
    told: Sequence[str],
    tables: Sequence[Table],
    how: str,
) -> Path:
    """Writes report.html: the verdict over all seeds, and the models of seed 0."""
    reports = []
    for run, task in jobs:
        key = (task.loss, "best", task.seed)
        (row,) = (r for r in rows if (r["loss"], r["protocol"], r["seed"]) == key)
        logits, labels = run.predictions("test")
        options: Any = {"from_logits": True, "name": table_of_losses.words(task.loss)}
        scaled = logits / row["temperature"]
        reports.append(CalibrationReport(labels, scaled, **options))
    page = folder / "report.html"
    dataset = jobs[0].task.dataset
    reports[0].to_html(
        page,
        others=reports[1:],
        title=f"Losses on {Path(dataset.partition(':')[2] or dataset).name}",
        class_names=jobs[0].run.config()["data"]["class_names"],
    )
    first, *others = map(escape, told)
    items = "".join(f"<li>{line}</li>" for line in others)
    shown = "".join(
        markup.table(
            one.title,
            [*map(escape, one.heading)],
            [[*map(escape, row)] for row in one.rows],
        )
        for one in tables
    )
    section = (
        '<section id="verdict" aria-labelledby="verdict-heading">'
        '<h2 id="verdict-heading">Which loss to use</h2>'
        f"<p><b>{first}</b></p><ul>{items}</ul>{shown}<p>{escape(how)}</p>"
        "<p>The sections below compare the models of seed 0 at their best epochs, "
        "after temperature scaling.</p></section>\n"
    )
    text = page.read_text("utf-8")
    text = text.replace("<main>\n", f"<main>\n{section}", 1)
    link = '<li><a href="#verdict">Verdict</a></li>'
    text = text.replace('Sections"><ul>', f'Sections"><ul>{link}', 1)
    page.write_text(text, "utf-8")
    return page
