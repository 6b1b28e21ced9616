"""The command line of `python -m recipes`: its commands and their options."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from recipes import commands
from recipes.options import (
    REPRODUCE,
    SEARCH,
    TRAIN,
    add_devices,
    add_engine,
    add_fit_on,
    add_task,
    count,
    positive,
)
from recipes.runs import RunError


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
        "train", commands.train, "Train a model and save its logits.", epilog=TRAIN
    )
    add_task(train)
    train.add_argument(
        "--seed",
        type=count,
        default=0,
        help="seed of weights, order, augmentation and dropout (default: 0)",
    )
    train.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder of the run (default: in runs/, named after the task)",
    )
    add_devices(train)

    search = add(
        "search",
        commands.search,
        "Train every setting of a grid and choose by the validation set.",
        epilog=SEARCH,
    )
    add_task(search)
    search.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="FIELD=VALUES",
        help="search these values, such as smoothing=0.02,0.1, and only the fields "
        "that are named; may be repeated",
    )
    search.add_argument(
        "--seeds", type=positive, default=1, help="runs of each setting (default: 1)"
    )
    search.add_argument(
        "--by",
        choices=("nll", "loss", "ece", "accuracy"),
        default="nll",
        help="criterion on the validation set (default: nll)",
    )
    add_engine(search)
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
        "--split",
        choices=("test", "val", "train"),
        default="test",
        help="(default: test)",
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
    add_fit_on(tables)

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
        type=positive,
        help="epochs of the small training that two figures show (default: the "
        "quickstart's)",
    )

    reproduce = add(
        "reproduce",
        commands.reproduce,
        "Train every cell of the paper's tables, and write them beside the paper's.",
        epilog=REPRODUCE,
    )
    reproduce.add_argument(
        "--table", choices=("1", "2", "A"), help="table to write (default: all)"
    )
    for name, text in (
        ("--dataset", "data sets, separated by commas (default: the paper's)"),
        ("--model", "models, separated by commas (default: the paper's)"),
        ("--losses", "losses, separated by commas; `released` for those of the public "
         "code (default: all, the paper's seven)"),
    ):  # fmt: skip
        reproduce.add_argument(name, metavar="NAMES", help=text)
    reproduce.add_argument(
        "--seeds", type=positive, default=3, help="runs of each cell (default: 3)"
    )
    reproduce.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the training images and of the epochs (default: 1)",
    )
    reproduce.add_argument("--data-dir", help="folder that holds the data sets")
    reproduce.add_argument(
        "--pretrained",
        action="append",
        default=[],
        metavar="MODEL=FILE",
        help="weights of vit_small or swin_tiny; may be repeated",
    )
    reproduce.add_argument(
        "--from-scratch",
        action="store_true",
        help="start transformers without weights from random ones",
    )
    reproduce.add_argument(
        "--estimate", action="store_true", help="print the estimate of the hours only"
    )
    reproduce.add_argument(
        "--out",
        metavar="FOLDER",
        help="folder for runs and tables (default: runs/reproduce)",
    )
    add_fit_on(reproduce)
    add_engine(reproduce)

    claims = add(
        "claims",
        commands.claims,
        "Check the paper's claims, as in recipes/CLAIMS.md.",
    )
    claims.add_argument("name", nargs="*", help="name of a claim (default: all)")
    claims.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a run on which the claims on networks are checked, too",
    )
    claims.add_argument("--page", action="store_true", help="update recipes/CLAIMS.md")
    claims.add_argument(
        "--out",
        default="runs/claims",
        metavar="FOLDER",
        help="folder for pictures and a network (default: runs/claims)",
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
        "Train the missing runs of the study in recipes/STUDY.md.",
        epilog="Results are appended to recipes/study.csv: a study that was stopped "
        "continues by the same command. Beds whose data is not given are left out.",
    )
    for name, text in (
        ("--data-dir", "folder with text/ and labels/, the published files of texts "
         "and of people's labels"),
        ("--cifar10", "path of CIFAR-10, a folder or a file"),
        ("--adult", "folder with adult.data and adult.test"),
    ):  # fmt: skip
        study.add_argument(name, metavar="PATH", help=text)
    for name in ("bed", "protocol", "losses"):
        text = "names, separated by commas (default: all)"
        study.add_argument(f"--{name}", metavar="NAMES", help=text)
    study.add_argument(
        "--seeds", type=positive, default=5, help="runs of each loss (default: 5)"
    )
    study.add_argument(
        "--out",
        default="runs/study",
        metavar="FOLDER",
        help="folder for the embeddings of texts (default: runs/study)",
    )
    study.add_argument(
        "--page",
        action="store_true",
        help="train nothing; write the tables of recipes/STUDY.md from study.csv",
    )

    quickstart = add(
        "quickstart",
        commands.quickstart,
        "Train on noisy digits with every loss, calibrate, abstain and report.",
    )
    quickstart.add_argument(
        "--out",
        default="runs/quickstart",
        metavar="FOLDER",
        help="folder for runs, table, pictures and report (default: runs/quickstart)",
    )
    quickstart.add_argument(
        "--seeds", type=positive, default=3, help="runs of each loss (default: 3)"
    )
    quickstart.add_argument("--epochs", type=positive, help="(default: 60)")
    add_devices(quickstart)
    return parser
