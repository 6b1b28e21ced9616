"""The command line: `python -m keras_selcal report predictions.npz -o report.html`.

Keras is imported by the commands and not by this module, so that help and argument
errors appear at once.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from keras_selcal.report.files import PredictionFile

_DESCRIPTION = """\
Turns predictions of any framework into a report on accuracy, calibration and
selective classification: a table in the terminal and a page for a browser.
"""

_FILES = """\
files:
  predictions.npz   `logits` or `probs` of shape (n, k), or (n,) for one sigmoid unit,
                    and `labels`, class indices or names of shape (n,); optionally
                    `class_names` (k,) and `images` (n, h, w) or (n, h, w, c).
                    In Python:
                    numpy.savez("predictions.npz", probs=probs, labels=labels)
  predictions.csv   a header; a column `label` of class indices or names, and one
                    column per class: p0, p1, … (probabilities), z0, z1, … (logits), or
                    the names of the classes (probabilities). One sigmoid unit has one
                    column, p or z.

With --multi-label, `labels` are multi-hot, (n, k); in a .csv the column `label` lists
the true labels, separated by semicolons.

examples:
  python -m keras_selcal report predictions.npz
  python -m keras_selcal report before=a.npz after=b.npz -o comparison.html
"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m keras_selcal", description=_DESCRIPTION)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="write a report on predictions, as a table and as a page",
        description=_DESCRIPTION,
        epilog=_FILES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "files",
        nargs="+",
        metavar="[NAME=]FILE",
        help="predictions of a model; further models are compared with the first",
    )
    report.add_argument(
        "-o",
        "--output",
        default="report.html",
        help="path of the page (default: %(default)s)",
    )
    report.add_argument("--title", help="title of the page")
    report.add_argument(
        "--multi-label",
        action="store_true",
        help="the classes are labels of which several can be true at once",
    )
    report.add_argument(
        "--decision-threshold",
        type=float,
        default=0.5,
        metavar="P",
        help="class 1 of two, or a label, is predicted if its probability is larger "
        "(default: %(default)s)",
    )
    report.add_argument(
        "--csf",
        default="msp",
        choices=("msp", "margin", "neg_entropy"),
        help="the confidence score that ranks (default: %(default)s)",
    )
    report.add_argument(
        "--resamples",
        type=int,
        default=1000,
        metavar="N",
        help="bootstrap resamples of the intervals, 0 for none (default: %(default)s)",
    )
    report.add_argument(
        "--mistakes",
        type=int,
        default=12,
        metavar="N",
        help="most confident mistakes to list (default: %(default)s)",
    )
    report.set_defaults(run=_report)
    return parser


def _choose_backend() -> None:
    """Chooses an installed Keras backend if the user has not chosen one.

    Commands on files compute in NumPy, but Keras cannot be imported without a backend.
    """
    if "keras" in sys.modules or os.environ.get("KERAS_BACKEND"):
        return
    # Keras's NumPy backend needs JAX and starts faster than the others.
    for package, backend in (
        ("jax", "numpy"),
        ("torch", "torch"),
        ("tensorflow", "tensorflow"),
    ):
        if find_spec(package):
            os.environ["KERAS_BACKEND"] = backend
            return
    raise ValueError(
        "Keras needs a backend: install JAX, PyTorch or TensorFlow, for example "
        '`pip install "keras-selcal[jax]"`'
    )


def _report(options: argparse.Namespace) -> None:
    _choose_backend()
    from keras_selcal.report import CalibrationReport

    folder = Path(options.output).parent
    if not folder.is_dir():
        raise ValueError(f"{options.output}: there is no folder {folder}")
    models = _read(options.files, options.multi_label)
    reports = [
        CalibrationReport(
            model.labels,
            model.y_pred,
            from_logits=model.from_logits,
            multi_label=options.multi_label,
            decision_threshold=options.decision_threshold,
            csf=options.csf,
            bootstrap=options.resamples,
            name=name,
        )
        for name, model in models.items()
    ]
    first, *others = reports
    given = list(models.values())
    path = first.to_html(
        options.output,
        others=others,
        title=options.title,
        class_names=next((m.class_names for m in given if m.class_names), None),
        images=next((m.images for m in given if m.images is not None), None),
        mistakes=options.mistakes,
    )
    for report in reports:
        print(report, end="\n\n")
    for other in others:
        print(other.compare(first), end="\n\n")
    print(f"{path}: open it in a browser")


def _read(files: Sequence[str], multi_label: bool) -> "dict[str, PredictionFile]":
    """Returns predictions by the name of the model."""
    import numpy as np

    from keras_selcal.report.files import read_predictions

    models: dict[str, PredictionFile] = {}
    for file in files:
        name, is_named, path = file.partition("=")
        if not is_named or Path(file).exists():
            name, path = Path(file).stem, file
        if name in models:
            raise ValueError(
                f"two models have the name {name}; give them names as in NAME=FILE"
            )
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            models[name] = read_predictions(path, multi_label)
        for note in notes:
            print(f"note: {note.message}", file=sys.stderr)
        first = next(iter(models.values()))
        if not np.array_equal(first.labels.ravel(), models[name].labels.ravel()):
            raise ValueError(
                f"{path}: the labels differ from those of {files[0]}; models are "
                "compared on the same samples"
            )
    return models


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; errors are one line, with exit code 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (MemoryError, OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
