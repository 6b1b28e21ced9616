"""The command line of `python -m recipes`: its commands and their options."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from recipes import commands
from recipes.launch import ENGINES
from recipes.runs import RunError

_TRAIN = """\
example:
  python -m recipes train --dataset cifar10 --model resnet50 --loss au --csf msp

The settings are the paper's (`list` shows them). If --epochs changes the length of the
training, the milestones of the learning rate and the warm-up before the choice of the
checkpoint move in proportion. --set changes any setting: --set loss.smoothing=0.3,
--set learning_rate=0.05, --set warmup_epochs=0.

A run that was stopped or killed continues by the same command.
"""

_SEARCH = """\
examples:
  python -m recipes search --dataset cifar10 --model resnet50 --loss dual_focal
  python -m recipes search --dataset cifar10 --model resnet50 --loss au --jobs 2 \\
      --grid smoothing=0.02,0.1 --grid coverage=0.5,0.75

Without --grid, the search covers all values that the paper chose for any model: γ of
inv_focal and dual_focal, ν × κ × CSF of au, CSF of aurc, λ of kde_xe. What --set or
--csf fixes is not searched.

The values of losses with different γ, ν, κ or λ cannot be compared, so settings are
compared by the cross-entropy on the validation set. --by loss uses the value of each
run's own loss instead.

The runs are ordinary ones, with their output in train.log. A search that was stopped
continues by the same command and does not repeat finished runs.

--engine ray uses the Ray cluster at RAY_ADDRESS, by default the one that
`ray start --head` has started on this machine. Each run uses one CPU. The nodes must
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
        # The reader has closed the pipe; keep Python from flushing the output again.
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
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Any, text: str, **options: Any) -> Any:
        added = subparsers.add_parser(
            name,
            help=text[0].lower() + text[1:].rstrip("."),
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )
        added.set_defaults(command=command)
        return added

    train = add(
        "train", commands.train, "Train a model and save its logits.", epilog=_TRAIN
    )
    _add_task(train)
    train.add_argument(
        "--seed",
        type=_count,
        default=0,
        help="seed of weights, order, augmentation and dropout (default: 0)",
    )
    train.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder of the run (default: in runs/, named after the task)",
    )
    _add_devices(train)

    search = add(
        "search",
        commands.search,
        "Train every setting of a grid and choose by the validation set.",
        epilog=_SEARCH,
    )
    _add_task(search)
    search.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=VALUES",
        help="search these values, such as smoothing=0.02,0.1, and only the fields "
        "that are named; may be repeated",
    )
    search.add_argument(
        "--seeds", type=_positive, default=1, help="runs of each setting (default: 1)"
    )
    search.add_argument(
        "--by",
        choices=("nll", "loss", "ece", "accuracy"),
        default="nll",
        help="criterion on the validation set (default: nll)",
    )
    _add_engine(search)
    search.add_argument(
        "--gpus-per-run",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="GPUs of each run with --engine ray (default: 0)",
    )
    search.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for runs, map and choice (default: in runs/)",
    )

    evaluate = add(
        "evaluate",
        commands.evaluate,
        "Compute all metrics from the logits of runs and print a table.",
        epilog="Runs that differ only in the seed are averaged.",
    )
    evaluate.add_argument("run", nargs="+", help="folder of a run, or a folder of runs")
    evaluate.add_argument(
        "--split", choices=("test", "val"), default="test", help="(default: test)"
    )
    evaluate.add_argument(
        "--markdown", metavar="FILE", help="write the table to this file, too"
    )

    report = add(
        "report",
        commands.report,
        "Write an HTML report on the logits of runs.",
        epilog="The other runs are compared with the first one.",
    )
    report.add_argument("run", nargs="+", help="folder of a run, or a folder of runs")
    report.add_argument(
        "-o", "--output", default="report.html", help="(default: report.html)"
    )
    report.add_argument(
        "--split", choices=("test", "val"), default="test", help="(default: test)"
    )
    report.add_argument("--title", help="title of the page")
    report.add_argument(
        "--data-dir", help="path of the data set, to show mistakes as images"
    )

    tables = add(
        "tables",
        commands.tables,
        "Write the paper's tables, with runs beside the published figures.",
        epilog="Runs that differ only in the seed are averaged. Writes tables.md, "
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
        commands.figures,
        "Draw the paper's figures, and the same figures of runs.",
        epilog="Writes a PNG for each figure, and figures.md, which shows them all.",
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
        help="a search.csv that `search` has written; may be repeated",
    )
    figures.add_argument(
        "--format",
        action="append",
        default=[],
        choices=("pdf", "svg"),
        help="format in addition to PNG; may be repeated",
    )
    figures.add_argument(
        "--epochs",
        type=_positive,
        help="epochs of the small training that two figures show (default: the "
        "quickstart's)",
    )

    add(
        "list",
        commands.list_names,
        "Show data sets, models, losses and the paper's settings.",
    )

    show = add(
        "show", commands.show, "Show the configuration and the progress of a run."
    )
    show.add_argument("run", help="folder of a run")

    study = add(
        "study",
        commands.study,
        "Train the missing runs of the study in recipes/STUDY.md and make its tables.",
        epilog="A study that was stopped continues by the same command.",
    )
    study.add_argument("--data-dir", help="path of CIFAR-10, a folder or a file")
    study.add_argument(
        "--pretrained",
        metavar="FILE",
        help="weights of ResNet-20; its runs are left out without them",
    )
    study.add_argument(
        "--out",
        default="runs/study",
        metavar="FOLDER",
        help="folder for runs, results and tables (default: runs/study)",
    )
    study.add_argument(
        "--page",
        action="store_true",
        help="write the results to recipes/STUDY.md and study.csv",
    )
    _add_engine(study)

    quickstart = add(
        "quickstart",
        commands.quickstart,
        "Train a small network on noisy digits with every loss, in a few minutes.",
    )
    quickstart.add_argument(
        "--out",
        default="runs/quickstart",
        metavar="FOLDER",
        help="folder for runs, table and pictures (default: runs/quickstart)",
    )
    quickstart.add_argument(
        "--seeds", type=_positive, default=3, help="runs of each loss (default: 3)"
    )
    quickstart.add_argument("--epochs", type=_positive, help="(default: 60)")
    _add_devices(quickstart)
    return parser


def _add_engine(parser: argparse.ArgumentParser) -> None:
    """Adds the options on how many runs are trained at a time, and where."""
    parser.add_argument(
        "--jobs",
        type=_positive,
        help="runs at a time; they share the processors (default: 1, or with ray the "
        "number of CPUs of the cluster)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="local", help="(default: local)"
    )


def _add_devices(command: Any) -> None:
    command.add_argument(
        "--devices",
        type=_positive,
        metavar="N",
        help="devices that share each batch (default: 1, or those of all processes "
        "that were started together)",
    )


def _add_task(parser: argparse.ArgumentParser) -> None:
    """Adds the fields of `recipes.tasks.Request`, except for the seed."""
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
    parser.add_argument("--data-dir", help="path of the data set, a folder or a file")
    parser.add_argument("--epochs", type=_positive, help="(default: the paper's)")
    parser.add_argument("--batch-size", type=_positive, help="(default: the paper's)")
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
        "--from-scratch",
        action="store_true",
        help="start vit_small or swin_tiny from random weights; the paper fine-tunes "
        "pretrained ones",
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
