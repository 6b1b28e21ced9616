"""What the commands of `python -m recipes` do with their options.

Keras takes seconds to import: only the commands that need it import it.
"""

import dataclasses
import json
import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from recipes.devices import prepare, start
from recipes.runs import CONFIG, Run, RunError, flat, runs_in


def request_of(options: Namespace) -> Any:
    """Returns the `recipes.tasks.Request` of the command line."""
    from recipes.tasks import Request

    names = [field.name for field in dataclasses.fields(Request)]
    asked = {name: getattr(options, name) for name in names if name in options}
    return Request(**{**asked, "set": tuple(options.set)})


def train(options: Namespace) -> None:
    """Trains a run and prints its metrics."""
    prepare(options.devices)
    from recipes import training
    from recipes.progress import Progress, console
    from recipes.tasks import run_name, task_of

    task = task_of(request_of(options))
    devices = start(options.devices, task.settings.batch_size, options.arguments)
    output = console(quiet=devices.rank > 0)
    run = Run(options.out or os.path.join("runs", run_name(task)))
    with Progress(output) as progress:
        training.train(
            run,
            task,
            progress,
            options.checkpoint_every,
            devices,
            [int(epoch) for epoch in (options.snapshots or "").split(",") if epoch],
        )
    if devices.rank == 0:
        _print_tables([run], output)


def evaluate(options: Namespace) -> None:
    """Prints the metrics of runs."""
    from recipes.progress import console

    runs, notes = _usable(runs_in(options.run))
    if not runs:
        raise RunError("; ".join(notes))
    output = console()
    _print_tables(runs, output, options.split, options.markdown)
    for note in notes:
        output.print(f"left out: {note}", soft_wrap=True)


def _usable(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Returns finished runs, one for each seed of a setting, and why others are not.

    A second run of a seed says nothing about the deviation between seeds.
    """
    from recipes.tables import setting_of

    usable: dict[str, Run] = {}
    notes = []
    for run in runs:
        if (problem := run.problem()) is not None:
            notes.append(problem)
            continue
        config = run.config()
        same = usable.setdefault(repr((setting_of(config), config["seed"])), run)
        if same is not run:
            notes.append(f"{run.folder} has the settings and the seed of {same.folder}")
    return [*usable.values()], notes


def _print_tables(
    runs: Sequence[Run], output: Any, split: str = "test", file: str | None = None
) -> None:
    from recipes.tables import comparisons

    made = [found.table() for found in comparisons(runs, split=split)]
    for table in made:
        output.print(table.rich(bold=output.is_terminal))
    if file is not None:
        with open(file, "w", encoding="utf-8") as target:
            target.write("\n".join(f"{table.markdown()}\n" for table in made))


def report(options: Namespace) -> None:
    """Writes a report page."""
    from recipes.report import write_report

    path = write_report(
        options.run,
        options.output,
        split=options.split,
        title=options.title,
        data_dir=options.data_dir,
    )
    print(f"{path}: open it in a browser")


def tables(options: Namespace) -> None:
    """Writes the paper's tables."""
    from recipes.paper.table_files import write_tables

    runs = _finished(options)
    files, notes = write_tables(runs, options.output, options.fit_on)
    for note in notes:
        print(note)
    count = len(runs)
    print(f"{', '.join(map(str, files))}: {count} run{'s' * (count != 1)}")


def figures(options: Namespace) -> None:
    """Draws the paper's figures."""
    from recipes.paper.figures import write_figures

    files, notes = write_figures(
        _finished(options),
        options.output,
        searches=options.search,
        formats=options.format,
        epochs=options.epochs,
    )
    for note in notes:
        print(note)
    count = sum(path.suffix == ".png" for path in files)
    print(f"{files[-1]}: shows {count} picture{'s' * (count != 1)}")


def _finished(options: Namespace) -> list[Run]:
    """Returns the finished runs; there may be none unless the user names some."""
    runs = runs_in(options.run or ["runs"])
    if not options.run:
        runs = [run for run in runs if (run.folder / CONFIG).exists()]
    usable, notes = _usable(runs)
    if options.run and not usable:
        raise RunError("; ".join(notes))
    for note in notes:
        print(f"left out: {note}")
    return usable


def list_names(options: Namespace) -> None:
    """Prints names and the paper's settings."""
    from recipes import data, losses, settings
    from recipes.progress import console
    from recipes.tables import Table

    # A file gets the whole table, whatever the width of the terminal.
    output = console()
    if not output.is_terminal:
        output.width = 160
    output.print(f"data sets  {', '.join(data.NAMES)}, folder:PATH", soft_wrap=True)
    kinds = {"models   ": "", "KerasCV  ": "keras_cv_", "KerasHub ": "keras_hub_"}
    for title, prefix in kinds.items():
        shown = [
            name
            for name in settings.MODELS
            if name.startswith(prefix or "keras_") == bool(prefix)
        ]
        output.print(f"{title}  {', '.join(shown)}", soft_wrap=True)
    named = (f"{name} ({title})" for name, title in losses.ALL_TITLES.items())
    output.print(f"losses     {', '.join(named)}", soft_wrap=True)
    rows = settings.rows()
    output.print(Table(list(rows[0]), [list(row.values()) for row in rows]).rich())


def show(options: Namespace) -> None:
    """Prints the configuration and the progress of a run."""
    from recipes.progress import console

    output = console(soft_wrap=True)
    run = Run(options.run)
    config, history = run.config(), run.history()
    for key, value in flat(config).items():
        output.print(f"{key:28} {json.dumps(value, ensure_ascii=False)}")
    if run.finished:
        for key, value in flat(run.environment()).items():
            output.print(f"{key:28} {json.dumps(value, ensure_ascii=False)}")
    epochs, warmup = (
        config["settings"].get(name, 0) for name in ("epochs", "warmup_epochs")
    )
    state = "finished" if run.finished else "not finished: the same command continues"
    output.print(f"\n{len(history)} of {epochs} epochs done, {state}")
    if history:
        warm = [row for row in history if row["epoch"] > warmup] or history
        # Epochs without a validation have NaN.
        validated = [row for row in warm if row["val_loss"] == row["val_loss"]]
        best = min(validated or warm, key=lambda row: row["val_loss"])
        for title, row in (("best", best), ("last", history[-1])):
            values = ", ".join(
                f"{name} {row[name]:.4f}"
                for name in ("loss", "accuracy", "val_loss", "val_accuracy")
            )
            output.print(f"{title} epoch {int(row['epoch'])}: {values}")


def search(options: Namespace) -> None:
    """Searches a grid of settings."""
    # Runs may share a GPU with each other and with this process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    from recipes.search import run_search

    run_search(
        request_of(options),
        grid=options.grid,
        seeds=options.seeds,
        by=options.by,
        out=options.out,
        engine=options.engine,
        jobs=options.jobs,
        gpus=options.gpus_per_run,
    )


def reproduce(options: Namespace) -> None:
    """Trains the paper's matrix and writes its tables."""
    from recipes import reproduce as matrix

    weights = dict(one.partition("=")[::2] for one in options.pretrained)
    if unnamed := [name for name, file in weights.items() if not file]:
        raise RunError(f"`pretrained` must be MODEL=FILE. Received: {unnamed[0]!r}")
    wanted = matrix.Matrix(
        datasets=_split(options.dataset),
        models=_split(options.model),
        losses=_split(options.losses),
        seeds=options.seeds,
        scale=options.scale,
        data_dir=options.data_dir,
        pretrained=weights,
        from_scratch=options.from_scratch,
    )
    scale = "" if options.scale == 1 else f"-scale{options.scale:g}"
    matrix.reproduce(
        wanted,
        options.out or os.path.join("runs", f"reproduce{scale}"),
        table=options.table,
        fit_on=options.fit_on,
        jobs=options.jobs,
        engine=options.engine,
        estimate_only=options.estimate,
    )


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(",") if part)


def claims(options: Namespace) -> None:
    """Checks the paper's claims."""
    from recipes.claims import check_claims

    runs = runs_in(options.run)
    check_claims(options.name, options.out, runs=runs, page=options.page)


def study(options: Namespace) -> None:
    """Trains what the study lacks, or writes its page."""
    from recipes import study as runs
    from recipes import study_page

    if options.page:
        study_page.update(runs.PAGE, runs.read_results())
        return
    folders = runs.Folders(
        options.data_dir, options.cifar10, options.adult, options.out
    )
    plan = runs.Study(folders)
    for row in plan.run(
        seeds=options.seeds,
        beds=_split(options.bed),
        protocols=_split(options.protocol),
        losses=_split(options.losses),
    ):
        print(*(row[name] for name in ("bed", "loss", "trial", "seed")), flush=True)
    for bed, reason in plan.missing.items():
        print(f"left out: {bed}: {reason}")


def quickstart(options: Namespace) -> None:
    """Trains a small network with every loss."""
    prepare(options.devices)
    from recipes import quickstart as example

    devices = start(options.devices, example.BATCH_SIZE, options.arguments)
    example.quickstart(options.out, options.seeds, devices, options.epochs)
