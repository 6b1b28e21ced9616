"""The commands of `python -m recipes`: `cli` makes options of their parameters.

Keras takes seconds to import, and NumPy a fraction of one: commands import what they
need, so that `--help` is quick.
"""

import os
from collections.abc import Callable
from typing import Any, Literal

from recipes.loss_commands import compare, study
from recipes.request import Pool, Positive, Request, RunError, names_in

FitOn = Literal["val", "train", "paper"]


def train(
    request: Request, *, out: str | None = None, devices: Positive | None = None
) -> None:
    """Train a model and save its logits.

    The settings are the paper's (`list` shows them). If --epochs changes the length of
    the training, the milestones of the learning rate and the warm-up before the choice
    of the checkpoint move in proportion. --set changes any setting: --set
    loss.smoothing=0.3, --set learning_rate=0.05, --set warmup_epochs=0.

    A run that was stopped or killed continues by the same command.

    Args:
        request: what to train.
        out: folder of the run (default: in runs/, named after the task).
        devices: devices that share each batch (default: those of all processes).
    """
    from recipes.devices import prepare, start

    prepare(devices)
    from recipes import training
    from recipes.overview import print_tables
    from recipes.progress import Progress, console
    from recipes.runs import Run
    from recipes.tasks import run_name, task_of

    task = task_of(request)
    again = ["train", *request.arguments()]
    again += [] if out is None else ["--out", out]
    joined = start(devices, task.settings.batch_size, again)
    output = console(quiet=joined.rank > 0)
    run = Run(out or os.path.join("runs", run_name(task)))
    epochs = names_in("snapshots", request.snapshots)
    if not all(map(str.isdecimal, epochs)):
        raise RunError(f"`snapshots` must be epochs. Received: {request.snapshots!r}")
    with Progress(output) as progress:
        training.train(
            run, task, progress, request.checkpoint_every, joined, [*map(int, epochs)]
        )
    if joined.rank == 0:
        print_tables([run], output)


def search(
    request: Request,
    *,
    grid: tuple[str, ...] = (),
    seeds: Positive = 1,
    by: Literal["nll", "loss", "ece", "accuracy"] = "nll",
    pool: Pool,
    gpus_per_run: float = 0.0,
    out: str | None = None,
) -> None:
    r"""Train every setting of a grid and choose by the validation set.

    Examples:
      python -m recipes search --dataset cifar10 --model resnet50 --loss dual_focal
      python -m recipes search --dataset cifar10 --model resnet50 --loss au --jobs 2 \
          --grid smoothing=0.02,0.1 --grid coverage=0.5,0.75

    Without --grid, the search covers all values that the paper chose for any model: γ
    of inv_focal and dual_focal, ν × κ × CSF of au, CSF of aurc, λ of kde_xe. What --set
    or --csf fixes is not searched.

    The values of losses with different γ, ν, κ or λ cannot be compared, so settings are
    compared by the cross-entropy on the validation set. --by loss uses the value of
    each run's own loss instead.

    The runs are ordinary ones, with their output in train.log. A search that was
    stopped continues by the same command and does not repeat finished runs.

    --engine ray uses the Ray cluster at RAY_ADDRESS, by default the one that
    `ray start --head` has started on this machine. Each run uses one CPU. The nodes
    must share the file system: this folder, the data and the Python environment.

    Args:
        request: what to train.
        grid: search these values, such as smoothing=0.02,0.1, and only the fields that
            are named; may be repeated.
        seeds: runs of each setting.
        by: criterion on the validation set.
        pool: where the runs are trained.
        gpus_per_run: GPUs of each run with --engine ray.
        out: folder for runs, map and choice (default: in runs/).
    """
    # Runs may share a GPU with each other and with this process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    from recipes.search import run_search

    options: Any = {"seeds": seeds, "by": by, "gpus": gpus_per_run}
    run_search(
        request, grid=grid, out=out, jobs=pool.jobs, engine=pool.engine, **options
    )


def evaluate(
    run: tuple[str, ...],
    /,
    *,
    split: Literal["test", "val", "train"] = "test",
    markdown: str | None = None,
) -> None:
    """Compute all metrics from the logits of runs and print a table.

    Runs that differ only in the seed are averaged.

    Args:
        run: folder of a run, or a folder of runs.
        split: images on which the runs are evaluated.
        markdown: write the table to this file, too.
    """
    from recipes.overview import print_tables, usable
    from recipes.progress import console
    from recipes.runs import runs_in

    runs, notes = usable(runs_in(run))
    if not runs:
        raise RunError("; ".join(notes))
    output = console()
    print_tables(runs, output, split, markdown)
    for note in notes:
        output.print(f"left out: {note}", soft_wrap=True)


def report(
    run: tuple[str, ...],
    /,
    *,
    output: str = "report.html",
    split: Literal["test", "val"] = "test",
    title: str | None = None,
    data_dir: str | None = None,
) -> None:
    """Write an HTML report on the logits of runs.

    The other runs are compared with the first one.

    Args:
        run: folder of a run, or a folder of runs.
        output: file of the page.
        split: images on which the runs are evaluated.
        title: title of the page.
        data_dir: path of the data set, to show mistakes as images.
    """
    from recipes.report import write_report

    path = write_report(run, output, split=split, title=title, data_dir=data_dir)
    print(f"{path}: open it in a browser")


def tables(
    run: tuple[str, ...] = (), /, *, output: str = "tables", fit_on: FitOn = "val"
) -> None:
    """Write the paper's tables, with runs beside the published figures.

    Runs that differ only in the seed are averaged. Writes tables.md, tables.csv and
    tables.tex.

    Args:
        run: folder of a run, or a folder of runs (default: runs).
        output: folder of the tables.
        fit_on: images for T and Meta-Cal; paper is val for T, train for Meta-Cal.
    """
    from recipes.overview import finished
    from recipes.paper.table_files import write_tables

    runs = finished(run)
    files, notes = write_tables(runs, output, fit_on)
    shown = f"{', '.join(map(str, files))}: {len(runs)} run{'s' * (len(runs) != 1)}"
    print("\n".join([*notes, shown]))


def figures(
    run: tuple[str, ...] = (),
    /,
    *,
    output: str = "figures",
    search: tuple[str, ...] = (),
    format: tuple[Literal["pdf", "svg"], ...] = (),
    epochs: Positive | None = None,
) -> None:
    """Draw the paper's figures, and the same figures of runs.

    Writes a PNG for each figure, and figures.md, which shows them all.

    Args:
        run: folder of a run, or a folder of runs (default: runs).
        output: folder of the figures.
        search: a search.csv that `search` has written; may be repeated.
        format: format in addition to PNG; may be repeated.
        epochs: epochs of the small training that two figures show (default: 60).
    """
    from recipes.overview import finished
    from recipes.paper.figures import write_figures

    options: Any = {"searches": search, "formats": format, "epochs": epochs}
    files, notes = write_figures(finished(run), output, **options)
    count = sum(path.suffix == ".png" for path in files)
    shown = f"{files[-1]}: shows {count} picture{'s' * (count != 1)}"
    print("\n".join([*notes, shown]))


def reproduce(
    *,
    table: Literal["1", "2", "A"] | None = None,
    dataset: str | None = None,
    model: str | None = None,
    losses: str | None = None,
    seeds: Positive = 3,
    scale: float = 1.0,
    data_dir: str | None = None,
    pretrained: tuple[str, ...] = (),
    from_scratch: bool = False,
    estimate: bool = False,
    out: str | None = None,
    fit_on: FitOn = "val",
    set: tuple[str, ...] = (),
    pool: Pool,
) -> None:
    """Train every cell of the paper's tables, and write them beside the paper's.

    Examples:
      python -m recipes reproduce --dataset cifar10,cifar100 --data-dir DATA --estimate
      python -m recipes reproduce --table 2 --dataset cifar10 --data-dir DATA --jobs 2

    The column AU has constant weights (w = 0). --set loss.weight_gradient=1 trains the
    printed gradient, with ν converted to the scale of this library.

    The tables share their runs: --table selects what is written. Before training, a
    step of each model is timed, and the hours are printed. A matrix that was stopped
    continues by the same command.

    Args:
        table: table to write (default: all).
        dataset: data sets, separated by commas (default: the paper's).
        model: models, separated by commas (default: the paper's). What has no partner
            in the paper is combined with all, and labelled.
        losses: losses, separated by commas; `released` for those of the public code
            (default: all, the paper's seven).
        seeds: runs of each cell.
        scale: share of the training images and of the epochs; below 1, small networks
            stand in for the paper's.
        data_dir: folder that holds the data sets.
        pretrained: weights of a model to start from, MODEL=FILE; may be repeated. The
            paper fine-tunes vit_small and swin_tiny.
        from_scratch: start transformers without weights from random ones.
        estimate: print the estimate of the hours only; needs no weights, and no data
            if --data-dir is not given.
        out: folder for runs and tables (default: runs/reproduce).
        fit_on: images for T and Meta-Cal; paper is val for T, train for Meta-Cal.
        set: change a setting, NAME=VALUE; may be repeated.
        pool: where the runs are trained.
    """
    from recipes import reproduce as matrix

    weights = dict(one.partition("=")[::2] for one in pretrained)
    if unnamed := [name for name, file in weights.items() if not file]:
        raise RunError(f"`pretrained` must be MODEL=FILE. Received: {unnamed[0]!r}")

    wanted = matrix.Matrix(
        datasets=names_in("dataset", dataset),
        models=names_in("model", model),
        losses=names_in("losses", losses),
        seeds=seeds,
        scale=scale,
        data_dir=data_dir,
        pretrained=weights,
        from_scratch=from_scratch,
        changes=set,
    )
    suffix = "" if scale == 1 else f"-scale{scale:g}"
    matrix.reproduce(
        wanted,
        out or os.path.join("runs", f"reproduce{suffix}"),
        table=table,
        fit_on=fit_on,
        jobs=pool.jobs,
        engine=pool.engine,
        estimate_only=estimate,
    )


def claims(
    name: tuple[str, ...] = (),
    /,
    *,
    run: tuple[str, ...] = (),
    page: bool = False,
    out: str = "runs/claims",
) -> None:
    """Check the paper's claims, as in recipes/CLAIMS.md.

    Args:
        name: name of a claim (default: all).
        run: a run on which the claims on networks are checked, too; may be repeated.
        page: update recipes/CLAIMS.md.
        out: folder for pictures and a network.
    """
    from recipes.claims import check_claims
    from recipes.runs import runs_in

    check_claims(name, out, runs=runs_in(run), page=page)


def list_() -> None:
    """Show data sets, models, losses and the paper's settings."""
    from recipes.overview import print_names

    print_names()


def show(run: str, /) -> None:
    """Show the configuration and the progress of a run.

    Args:
        run: folder of a run.
    """
    from recipes.overview import print_run
    from recipes.runs import Run

    print_run(Run(run))


def quickstart(*, out: str = "runs/quickstart", epochs: Positive = 80) -> None:
    """Train a small network, calibrate it, let it abstain, and write a report.

    Args:
        out: folder of the report.
        epochs: length of the training.
    """
    from recipes import quickstart as example

    example.quickstart(out, epochs)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(train, search, evaluate, report, tables, figures, reproduce, claims, list_),
    *(show, study, compare, quickstart),
)
