"""The commands of `python -m recipes`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from recipes.distribution import NAMES, prepare, start
from recipes.runs import CONFIG, Run, RunError, flat, runs_in

# Keras takes seconds to import, so that only the commands that need it do.

_TRAIN = """\
example:
  python -m recipes train --dataset cifar10 --model resnet50 --loss au --csf msp

The settings are the paper's (`list` shows them). --epochs keeps their shape: the
milestones of the learning rate and the warm-up before the choice of the checkpoint
move in proportion. --set changes any of them: --set loss.smoothing=0.3, --set
learning_rate=0.05, --set warmup_epochs=0.

A run that was stopped, whatever stopped it, continues by the same command.
"""

_SELECT = """\
examples:
  python -m recipes select --dataset cifar10 --model resnet50 --loss dual_focal
  python -m recipes select --dataset cifar10 --model resnet50 --loss au --jobs 2 \\
      --grid smoothing=0.02,0.1 --grid coverage=0.5,0.75

Without --grid, all values that the paper has chosen for some model are searched: γ of
inv_focal and dual_focal, ν × κ × CSF of au, CSF of aurc, λ of kde_xe; what --set or
--csf gives is not.

Losses with other γ, ν, κ or λ are other yardsticks, so that settings are compared by
the cross-entropy of the validation set. --by loss takes each run's own loss instead.

Runs are ordinary ones, each with its output in train.log. A search that was stopped
continues by the same command; it does not repeat what is finished.

--engine ray runs on the Ray cluster at RAY_ADDRESS, or else on the one that
`ray start --head` has started on this machine. Each run takes one CPU. The nodes must
share the file system: this folder, the data and the Python environment.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    options.arguments = arguments
    try:
        options.command(options)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command continues.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has seen enough; keep Python from flushing it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RunError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m recipes",
        description="Train the paper's models with the paper's losses, and evaluate "
        "them.",
        epilog="KERAS_BACKEND chooses the backend: jax, tensorflow or torch.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Any, text: str, **options: Any) -> Any:
        added = commands.add_parser(
            name,
            help=text[0].lower() + text[1:].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        added.set_defaults(command=command)
        return added

    train = add("train", _train, "Train a model, and save its logits.", epilog=_TRAIN)
    _add_task(train)
    train.add_argument(
        "--seed",
        type=_count,
        default=0,
        help="of weights, order, augmentation and dropout (default: 0)",
    )
    train.add_argument(
        "--out", metavar="FOLDER", help="the run's folder (default: runs/, its name)"
    )
    _add_devices(train)

    select = add(
        "select",
        _select,
        "Train every setting of a grid, and choose by the validation set.",
        epilog=_SELECT,
    )
    _add_task(select)
    select.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=VALUES",
        help="search these values, such as smoothing=0.02,0.1, and nothing that is not "
        "named; may be repeated",
    )
    select.add_argument(
        "--seeds", type=_positive, default=1, help="runs of each setting (default: 1)"
    )
    select.add_argument(
        "--by",
        choices=("nll", "loss", "ece", "accuracy"),
        default="nll",
        help="what to choose by, on the validation set (default: nll)",
    )
    _add_engine(select)
    select.add_argument(
        "--gpus-per-run",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="with ray (default: 0)",
    )
    select.add_argument(
        "--out", metavar="FOLDER", help="for runs, map and choice (default: in runs/)"
    )

    evaluate = add(
        "evaluate",
        _evaluate,
        "Compute all metrics anew from the logits of runs, and print a table.",
        epilog="Runs that differ in the seed alone are averaged.",
    )
    evaluate.add_argument("run", nargs="+", help="folder of a run, or a folder of runs")
    evaluate.add_argument(
        "--split", choices=("test", "val"), default="test", help="(default: test)"
    )
    evaluate.add_argument(
        "--markdown", metavar="FILE", help="write the table to a file, too"
    )

    report = add(
        "report",
        _report,
        "Write a page on the logits of runs, to open in a browser.",
        epilog="The others are compared with the first run.",
    )
    report.add_argument("run", nargs="+", help="folder of a run, or a folder of runs")
    report.add_argument(
        "-o", "--output", default="report.html", help="(default: report.html)"
    )
    report.add_argument(
        "--split", choices=("test", "val"), default="test", help="(default: test)"
    )
    report.add_argument("--title", help="of the page")
    report.add_argument(
        "--data-dir", help="where the data set is, to show mistakes as images"
    )

    tables = add(
        "tables",
        _tables,
        "Write the paper's tables, runs beside what is published.",
        epilog="Runs that differ in the seed alone are averaged. Writes tables.md, "
        "tables.csv and tables.tex.",
    )
    tables.add_argument(
        "run", nargs="*", help="folder of a run, or a folder of runs (default: runs)"
    )
    tables.add_argument(
        "-o", "--output", default="tables", metavar="FOLDER", help="(default: tables)"
    )

    figures = add(
        "figures",
        _figures,
        "Draw the paper's figures, and the same ones of runs.",
        epilog="Writes a PNG for each, and figures.md, which shows them all.",
    )
    figures.add_argument(
        "run", nargs="*", help="folder of a run, or a folder of runs (default: runs)"
    )
    figures.add_argument(
        "-o", "--output", default="figures", metavar="FOLDER", help="(default: figures)"
    )
    figures.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="FILE",
        help="the CSV file of a search; may be repeated",
    )
    figures.add_argument(
        "--format",
        action="append",
        default=[],
        choices=("pdf", "svg"),
        help="beside PNG; may be repeated",
    )
    figures.add_argument(
        "--epochs",
        type=_positive,
        help="of the small training that two figures show (default: the quickstart's)",
    )

    add("list", _list, "Show data sets, models, losses and the paper's settings.")

    show = add("show", _show, "Show the configuration of a run, and how it went.")
    show.add_argument("run", help="folder of a run")

    study = add(
        "study",
        _study,
        "Train what is missing of the study in recipes/STUDY.md, and make its tables.",
        epilog="Stopped, it continues by the same command.",
    )
    study.add_argument("--data-dir", help="where CIFAR-10 is, a folder or a file")
    study.add_argument(
        "--pretrained",
        metavar="FILE",
        help="weights of ResNet-20; without them its runs are left out",
    )
    study.add_argument(
        "--out",
        default="runs/study",
        metavar="FOLDER",
        help="for runs, results and tables (default: runs/study)",
    )
    study.add_argument(
        "--page",
        action="store_true",
        help="have recipes/STUDY.md and study.csv take over the results",
    )
    _add_engine(study)

    quickstart = add(
        "quickstart",
        _quickstart,
        "Train a small network on noisy digits with every loss, in a few minutes.",
    )
    quickstart.add_argument(
        "--out",
        default="runs/quickstart",
        metavar="FOLDER",
        help="for runs, table and pictures (default: runs/quickstart)",
    )
    quickstart.add_argument(
        "--seeds", type=_positive, default=3, help="runs of each loss (default: 3)"
    )
    quickstart.add_argument("--epochs", type=_positive, help="(default: 60)")
    _add_devices(quickstart)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """Adds the options that tell how many runs are done at once, and where."""
    parser.add_argument(
        "--jobs",
        type=_positive,
        help="runs at a time; they share the processors (default: 1, and with ray what "
        "the cluster has room for)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where to run (default: local)",
    )


def _add_devices(command: Any) -> None:
    command.add_argument(
        "--devices",
        type=_positive,
        metavar="N",
        help="devices that share each batch (default: one, or those of all processes)",
    )
    command.add_argument(
        "--distribution",
        choices=("auto", *NAMES.values()),
        default="auto",
        help="data (JAX), mirrored (TensorFlow) or processes (PyTorch); data also "
        "joins the tasks of a SLURM step (default: auto)",
    )


def _add_task(parser: argparse.ArgumentParser) -> None:
    """Adds what tells the task of a run, but for its seed."""
    parser.add_argument(
        "--dataset",
        required=True,
        help="cifar10, cifar100, tiny-imagenet, digits, or folder:PATH with a folder "
        "of images for each class",
    )
    parser.add_argument("--model", required=True, help="a name that `list` shows")
    parser.add_argument(
        "--loss",
        required=True,
        help="xe, fl53, inv_focal, dual_focal, kde_xe, aurc or au",
    )
    parser.add_argument(
        "--csf", help="confidence score of au and aurc: msp, margin or neg_entropy"
    )
    parser.add_argument("--data-dir", help="where the data set is, a folder or a file")
    parser.add_argument("--epochs", type=_positive, help="instead of the paper's")
    parser.add_argument("--batch-size", type=_positive, help="instead of the paper's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a setting, such as loss.smoothing=0.3; may be repeated",
    )
    parser.add_argument(
        "--pretrained", metavar="FILE", help="weights to start from, as timm saves them"
    )
    parser.add_argument(
        "--subset",
        type=_positive,
        metavar="N",
        help="train on N images, drawn by class and always the same",
    )
    parser.add_argument(
        "--label-noise",
        type=float,
        metavar="SHARE",
        help="share of wrong labels in digits (default: 0.2)",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=_positive,
        default=1,
        metavar="N",
        help="epochs between checkpoints (default: 1)",
    )


def task_defaults() -> dict[str, Any]:
    """Returns the options that tell a task, with None or their defaults."""
    parser = argparse.ArgumentParser()
    _add_task(parser)
    given = ("dataset", "model", "loss")
    defaults = vars(parser.parse_args([w for n in given for w in (f"--{n}", "")]))
    return {**defaults, **dict.fromkeys(given)}


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


# --- train --------------------------------------------------------------------------


def _train(options: argparse.Namespace) -> None:
    from recipes.progress import Progress, console

    prepare(options.devices)
    task, name = task_of(options)
    from recipes.training import train

    distribution = start(
        options.devices,
        options.distribution,
        task.settings.batch_size,
        options.arguments,
    )
    output = console(quiet=not distribution.first)
    run = Run(options.out or os.path.join("runs", name))
    with Progress(output) as progress:
        train(run, task, progress, options.checkpoint_every, distribution)
    if distribution.first:
        _print_tables([run], output)


def task_of(options: argparse.Namespace) -> tuple[Any, str]:
    """Returns the task that is asked for, and the name of its run."""
    from recipes import settings
    from recipes.data.digits import LABEL_NOISE
    from recipes.training import Task, run_name

    marks = []
    try:
        asked = dict(change.partition("=")[::2] for change in options.set)
        chosen = settings.settings(
            options.dataset,
            options.model,
            options.loss,
            csf=options.csf,
            weight_gradient=asked.get("loss.weight_gradient", "0"),
        )
        if options.csf is not None and "csf" not in chosen.loss:
            raise RunError(f"`csf` is for the losses au and aurc, not {options.loss}.")
        if options.epochs is not None and options.epochs != chosen.epochs:
            chosen = settings.with_epochs(chosen, options.epochs)
            marks.append(f"epochs{options.epochs}")
        changes = list(options.set)
        if options.batch_size is not None:
            changes.append(f"batch_size={options.batch_size}")
        for change in changes:
            key, _, value = change.partition("=")
            chosen = settings.override(chosen, key, value)
            marks.append(f"{key.rpartition('.')[2]}{value}")
    except ValueError as error:
        raise RunError(str(error)) from error
    noise = options.label_noise
    if options.dataset == "digits":
        noise = LABEL_NOISE if noise is None else noise
    elif noise is not None:
        raise RunError(f"`label-noise` is for digits, not {options.dataset}.")
    task = Task(
        dataset=options.dataset,
        model=options.model,
        loss=options.loss,
        seed=options.seed,
        settings=chosen,
        label_noise=noise,
        subset=options.subset,
        pretrained=options.pretrained,
        data_dir=options.data_dir,
    )
    return task, run_name(task, marks)


# --- evaluate, report, tables, figures, list, show, select, quickstart --------------


def _evaluate(options: argparse.Namespace) -> None:
    from recipes.progress import console

    output = console()
    runs = runs_in(options.run)
    unfinished = [run.name for run in runs if run.config() and not run.finished]
    if len(unfinished) == len(runs):
        raise RunError(f"not finished yet: {', '.join(unfinished)}.")
    done = [run for run in runs if run.finished]
    _print_tables(done, output, options.split, options.markdown)
    if unfinished:
        output.print(f"left out, not finished yet: {', '.join(unfinished)}")


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


def _report(options: argparse.Namespace) -> None:
    from recipes.report import write_report

    path = write_report(
        options.run,
        options.output,
        split=options.split,
        title=options.title,
        data_dir=options.data_dir,
    )
    print(f"{path}: open it in a browser")


def _tables(options: argparse.Namespace) -> None:
    from recipes.paper.tables import write_tables

    runs = _finished(options)
    files, notes = write_tables(runs, options.output)
    for note in notes:
        print(note)
    count = len(runs)
    print(f"{', '.join(map(str, files))}: {count} run{'s' * (count != 1)}")


def _figures(options: argparse.Namespace) -> None:
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


def _finished(options: argparse.Namespace) -> list[Run]:
    """Returns the finished runs that are meant; unless named, there need be none."""
    runs = runs_in(options.run or ["runs"])
    if not options.run:
        runs = [run for run in runs if (run.folder / CONFIG).exists()]
    unfinished = [run.name for run in runs if run.config() and not run.finished]
    if unfinished:
        print(f"left out, not finished yet: {', '.join(unfinished)}")
    return [run for run in runs if run.finished]


def _list(options: argparse.Namespace) -> None:
    from recipes import data, losses, settings
    from recipes.progress import console
    from recipes.tables import Table

    # Wide enough for the whole table where the output is no terminal.
    output = console()
    if not output.is_terminal:
        output.width = 160
    output.print(f"data sets  {', '.join(data.NAMES)}, folder:PATH", soft_wrap=True)
    output.print(f"models     {', '.join(settings.MODELS)}", soft_wrap=True)
    named = (f"{name} ({title})" for name, title in losses.TITLES.items())
    output.print(f"losses     {', '.join(named)}", soft_wrap=True)
    rows = settings.rows()
    output.print(Table(list(rows[0]), [list(row.values()) for row in rows]).rich())


def _show(options: argparse.Namespace) -> None:
    from recipes.progress import console

    output = console(soft_wrap=True, markup=False)
    run = Run(options.run)
    config, history = run.config(), run.history()
    for key, value in flat(config).items():
        output.print(f"{key:28} {json.dumps(value, ensure_ascii=False)}")
    if run.finished:
        for key, value in flat(run.environment()).items():
            output.print(f"{key:28} {json.dumps(value, ensure_ascii=False)}")
    epochs = config["settings"]["epochs"]
    state = "finished" if run.finished else "not finished: the same command continues"
    output.print(f"\n{len(history)} of {epochs} epochs done, {state}")
    if history:
        warmup = config["settings"]["warmup_epochs"]
        warm = [row for row in history if row["epoch"] > warmup] or history
        # Epochs without a validation have NaN, which is the least of nothing.
        validated = [row for row in warm if row["val_loss"] == row["val_loss"]]
        best = min(validated or warm, key=lambda row: row["val_loss"])
        for title, row in (("best", best), ("last", history[-1])):
            values = ", ".join(
                f"{name} {row[name]:.4f}"
                for name in ("loss", "accuracy", "val_loss", "val_accuracy")
            )
            output.print(f"{title} epoch {int(row['epoch'])}: {values}")


def _select(options: argparse.Namespace) -> None:
    # Runs may share a GPU, with each other and with this process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    from recipes.selection import select

    select(options)


def _study(options: argparse.Namespace) -> None:
    from recipes.study import run_study

    run_study(
        options.out,
        data_dir=options.data_dir,
        pretrained=options.pretrained,
        jobs=options.jobs,
        engine=options.engine,
        page=options.page,
    )


def _quickstart(options: argparse.Namespace) -> None:
    prepare(options.devices)
    from recipes.quickstart import BATCH_SIZE, quickstart

    distribution = start(
        options.devices,
        options.distribution,
        BATCH_SIZE,
        options.arguments,
    )
    quickstart(options.out, options.seeds, distribution, options.epochs)
