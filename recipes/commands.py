"""The commands of `python -m recipes`: `cli` makes options of their parameters.

Keras takes seconds to import, and NumPy a fraction of one: commands import what they
need, so that `--help` is quick.
"""

import os
from collections.abc import Callable
from typing import Annotated, Any, Literal

from recipes.tasks import Pool, Positive, RunError, Task, names_in

FitOn = Literal["val", "train", "paper"]


def train(task: Task, *, out: str | None = None, devices: Positive = 1) -> None:
    """Train a model and save its logits.

    The settings are the paper's (`list` shows them). If --epochs changes the length of
    the training, the milestones of the learning rate and the warm-up before the choice
    of the checkpoint move in proportion. --set changes any setting: --set
    loss.smoothing=0.3, --set learning_rate=0.05, --set warmup_epochs=0.

    A run that was stopped or killed continues by the same command.

    Args:
        task: what to train.
        out: folder of the run (default: in runs/, named after the task).
        devices: devices that share each batch, on JAX.
    """
    from recipes.devices import prepare

    prepare(devices)
    from recipes import training
    from recipes.overview import print_tables
    from recipes.progress import Progress, console
    from recipes.runs import Run

    output, run = console(), Run(out or os.path.join("runs", task.name))
    with Progress(output) as progress:
        training.train(run, task, progress, count=devices)
    print_tables([run], output)


def search(
    task: Task,
    *,
    grid: tuple[str, ...] = (),
    seeds: Positive = 1,
    pool: Pool,
    out: str | None = None,
) -> None:
    r"""Train every setting of a grid and choose by the validation set.

    Examples:
      python -m recipes search --dataset cifar10 --model resnet50 --loss dual_focal
      python -m recipes search --dataset cifar10 --model resnet50 --loss au --jobs 2 \
          --grid smoothing=0.02,0.1 --grid quantile=0.5,0.75

    Without --grid, the search covers all values that the paper chose for any model: γ
    of inv_focal and dual_focal, ν × κ × CSF of au, CSF of aurc, λ of kde_xe. What --set
    or --csf fixes is not searched.

    The values of losses with different γ, ν, κ or λ cannot be compared, so settings are
    compared by the cross-entropy (NLL) on the validation set.

    The runs are ordinary ones. A search that was stopped continues by the same command
    and does not repeat finished runs. The nodes of a Ray cluster must share the file
    system: this folder, the data and the Python environment.

    Args:
        task: what to train.
        grid: search these values, such as smoothing=0.02,0.1, and only the fields that
            are named; may be repeated.
        seeds: runs of each setting.
        pool: where the runs are trained.
        out: folder for runs, map and choice (default: in runs/).
    """
    from recipes.search import run_search

    run_search(task, grid=grid, seeds=seeds, out=out, pool=pool)


def compare(
    *,
    dataset: str,
    model: str | None = None,
    losses: str | None = None,
    seeds: Annotated[int, 2] = 5,
    epochs: Positive = 20,
    data_dir: str | None = None,
    out: str = "runs/compare",
    pool: Pool,
) -> None:
    """Train on your own data with several losses, and say which one to use.

    Examples:
      python -m recipes compare --dataset npz:DATA.npz
      python -m recipes compare --dataset text:TICKETS.csv --losses xe,my_losses:MyLoss

    Every loss gets the same network, epochs and seeds. NLL and AURC after temperature
    scaling decide, at the epoch with the best validation NLL. A comparison that was
    stopped continues by the same command.

    Args:
        dataset: folder:PATH with a folder of images for each class; npz:PATH with
            arrays x and y, or x_train, y_train, x_test and y_test; text:PATH, a CSV
            file with the columns text and label (else the first and the last one); or a
            name that `list` shows.
        model: a name that `list` shows (default: cnn_strided for images, mlp for
            others).
        losses: names that `list` shows, or module:Name for one of your own, separated
            by commas; the others are compared with the first (default:
            xe,xe_smoothed,xe_dropout,focal,kde_xe,aurc,au).
        seeds: runs of each loss.
        epochs: length of each training.
        data_dir: path of a data set that `list` shows.
        out: folder for results.csv and report.html.
        pool: where the runs are trained.
    """
    from recipes import compare as comparison

    comparison.compare(
        dataset,
        model=model,
        losses=names_in("losses", losses),
        seeds=seeds,
        epochs=epochs,
        data_dir=data_dir,
        out=out,
        pool=pool,
    )


def evaluate(
    run: tuple[str, ...],
    /,
    *,
    split: Literal["test", "val", "train"] = "test",
    markdown: str | None = None,
    html: str | None = None,
    data_dir: str | None = None,
) -> None:
    """Compute all metrics from the logits of runs and print a table.

    Runs that differ only in the seed are averaged. --html writes a report in which the
    other runs are compared with the first one.

    Args:
        run: folder of a run, or a folder of runs.
        split: samples on which the runs are evaluated.
        markdown: write the table to this file, too.
        html: write a report to this file, too.
        data_dir: path of the data set, to show mistakes as images in the report.
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
    if html is not None:
        from recipes.report import write_report

        path = write_report(runs, html, split=split, data_dir=data_dir)
        output.print(f"{path}: open it in a browser", soft_wrap=True)


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
    from recipes.paper.tables import write_tables

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
        pool=pool,
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


def quickstart(*, out: str = "runs/quickstart", epochs: Positive = 80) -> None:
    """Train a small network, calibrate it, let it abstain, and write a report.

    Args:
        out: folder of the report.
        epochs: length of the training.
    """
    from recipes import quickstart as example

    example.quickstart(out, epochs)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(train, search, compare, reproduce, evaluate, tables, figures, claims, list_),
    quickstart,
)
