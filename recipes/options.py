"""Options that commands of `python -m recipes` share, and their longer help."""

import argparse
from typing import Any

from recipes.launch import ENGINES

TRAIN = """\
example:
  python -m recipes train --dataset cifar10 --model resnet50 --loss au --csf msp

The settings are the paper's (`list` shows them). If --epochs changes the length of the
training, the milestones of the learning rate and the warm-up before the choice of the
checkpoint move in proportion. --set changes any setting: --set loss.smoothing=0.3,
--set learning_rate=0.05, --set warmup_epochs=0.

A run that was stopped or killed continues by the same command.
"""

SEARCH = """\
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

REPRODUCE = """\
examples:
  python -m recipes reproduce --dataset cifar10,cifar100 --data-dir DATA --estimate
  python -m recipes reproduce --table 2 --dataset cifar10 --data-dir DATA --jobs 2
  python -m recipes reproduce --scale 0.01 --dataset cifar10 --model preresnet56

The tables share their runs: --table selects what is written. Before training, a step of
each model is timed, and the hours are printed. A matrix that was stopped continues by
the same command.
"""


def add_fit_on(parser: argparse.ArgumentParser) -> None:
    """Adds the option on where calibrators are fitted."""
    parser.add_argument(
        "--fit-on",
        choices=("val", "train"),
        default="val",
        help="split on which temperatures and Meta-Cal are fitted (default: val; the "
        "released code has train)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Adds the options on how many runs are trained at a time, and where."""
    parser.add_argument(
        "--jobs",
        type=positive,
        help="runs at a time; they share the processors (default: 1, or with ray the "
        "number of CPUs of the cluster)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="local", help="(default: local)"
    )


def add_devices(command: Any) -> None:
    """Adds the option on the devices that share a batch."""
    command.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="devices that share each batch (default: 1, or those of all processes "
        "that were started together)",
    )


def add_task(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--epochs", type=positive, help="(default: the paper's)")
    parser.add_argument("--batch-size", type=positive, help="(default: the paper's)")
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
        "--preset",
        help="weights of KerasCV or KerasHub to start a keras_* model from, by name or "
        "folder, such as resnet50_imagenet",
    )
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="start vit_small or swin_tiny from random weights; the paper fine-tunes "
        "pretrained ones",
    )
    parser.add_argument(
        "--subset",
        type=positive,
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
        type=positive,
        default=1,
        metavar="N",
        help="epochs between checkpoints (default: 1)",
    )
    parser.add_argument(
        "--snapshots",
        metavar="EPOCHS",
        help="keep the logits of training images after these epochs, such as "
        "40,120,200: `figures` draws their gradients",
    )


def count(text: str) -> int:
    """Reads an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def positive(text: str) -> int:
    """Reads an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
