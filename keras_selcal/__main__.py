"""The command line: `python -m keras_selcal report predictions.npz -o report.html`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from keras_selcal.report import CalibrationReport
from keras_selcal.report.predictions import Predictions, read_predictions

_DESCRIPTION = """\
Turns predictions of any framework into a report on accuracy, calibration and
selective classification: a table here, and a page for a browser.
"""

_FILES = """\
files:
  predictions.npz   `logits` or `probs` of shape (n, k), and `labels`, class indices
                    of shape (n,); if at hand, `class_names` (k,) and `images`
                    (n, h, w) or (n, h, w, c). In Python:
                    numpy.savez("predictions.npz", probs=probs, labels=labels)
  predictions.csv   a header; a column `label`, of class indices or names, and one
                    for each class: p0, p1, … (probabilities), z0, z1, … (logits), or
                    the names of the classes (probabilities)

examples:
  python -m keras_selcal report predictions.npz
  python -m keras_selcal report before=a.npz after=b.npz -o comparison.html
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m keras_selcal", description=_DESCRIPTION)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="a report on predictions, as a table and as a page",
        description=_DESCRIPTION,
        epilog=_FILES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "files",
        nargs="+",
        metavar="[NAME=]FILE",
        help="predictions of a model; several are compared with the first",
    )
    report.add_argument(
        "-o", "--output", default="report.html", help="the page (default: %(default)s)"
    )
    report.add_argument("--title", help="of the page")
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


def _report(options: argparse.Namespace) -> None:
    folder = Path(options.output).parent
    if not folder.is_dir():
        raise ValueError(f"{options.output}: there is no folder {folder}")
    models = _read(options.files)
    reports = [
        CalibrationReport(
            model.labels,
            model.y_pred,
            from_logits=model.from_logits,
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


def _read(files: Sequence[str]) -> dict[str, Predictions]:
    """Returns predictions by the name of the model."""
    models: dict[str, Predictions] = {}
    for file in files:
        name, is_named, path = file.partition("=")
        if not is_named or Path(file).exists():
            name, path = Path(file).stem, file
        if name in models:
            raise ValueError(
                f"two models are called {name}: tell them apart, NAME=FILE"
            )
        models[name] = read_predictions(path)
        first = next(iter(models.values()))
        if not np.array_equal(first.labels.ravel(), models[name].labels.ravel()):
            raise ValueError(
                f"{path}: its labels are not those of {files[0]}; models are compared "
                "on the same samples"
            )
    return models


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; an error is one line, and exit code 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (OSError, ValueError) as error:
        parser.error(" ".join(str(error).split()))


if __name__ == "__main__":
    main(sys.argv[1:])
