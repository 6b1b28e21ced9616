"""The arguments of the command line, and its help."""

import argparse
from typing import NoReturn

_DESCRIPTION = """\
Evaluates, calibrates and compares predictions of classifiers that are stored in files.
They may come from any framework.
"""

_FILES = """\
files:
  predictions.npz      `logits` or `probs` of shape (n, k), or (n,) for one sigmoid
                       unit, and `labels`, class indices or names of shape (n,);
                       optionally `class_names` (k,) and `images` (n, h, w) or
                       (n, h, w, c). In Python:
                       numpy.savez("predictions.npz", probs=probs, labels=labels)
  predictions.csv      a header; a column `label` of class indices or names, and one
                       column per class: p0, p1, … (probabilities), z0, z1, …
                       (logits), or the names of the classes (probabilities). One
                       sigmoid unit has one column, p or z.
  predictions.parquet  the columns of a .csv (needs pyarrow).

With --multi-label, `labels` are multi-hot, (n, k); in a table the column `label` lists
the true labels, separated by semicolons.
"""

_EXAMPLES = {
    "report": """
examples:
  keras-selcal report predictions.npz
  keras-selcal report before=a.npz after=b.npz -o comparison.html
  keras-selcal report predictions.npz --unknown strange.npz
""",
    "calibrate": """
examples:
  keras-selcal calibrate validation.npz --apply test.npz -o calibrated.npz
  keras-selcal calibrate validation.csv --apply new.csv --method vector -o new_p.csv
""",
    "threshold": """
examples:
  keras-selcal threshold validation.npz --risk 0.05
  keras-selcal threshold validation.npz --coverage 0.8 --test test.npz
""",
    "compare": """
examples:
  keras-selcal compare baseline=a.npz focal=b.npz au=c.npz
""",
}

_SUMMARIES = {
    "report": "write a report on predictions, as a table and as a page",
    "calibrate": "fit a calibrator on one file and apply it to another",
    "threshold": "choose the confidence from which on the model should answer",
    "compare": "compare models on the same samples, with intervals and in words",
}

METHODS = {
    "temperature": "TemperatureScaling",
    "vector": "VectorScaling",
    "structured-vector": "StructuredVectorScaling",
    "structured-matrix": "StructuredMatrixScaling",
    "dirichlet": "DirichletCalibration",
    "histogram": "HistogramBinning",
    "isotonic": "IsotonicCalibration",
}


# Not imported from `csf`, which takes longer than `--help` should.
SCORES = (
    "msp",
    "margin",
    "neg_entropy",
    "doctor",
    "gen",
    "max_logit",
    "energy",
    "max_logit_pnorm",
)


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = _Parser(prog="keras-selcal", description=_DESCRIPTION)
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", dest="command"
    )
    made = {
        name: commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}.",
            epilog=_FILES + _EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, summary in _SUMMARIES.items()
    }
    for name, about in (
        (
            "report",
            "predictions of a model; further models are compared with the first",
        ),
        ("compare", "predictions of two or more models on the same samples"),
    ):
        made[name].add_argument("files", nargs="+", metavar="[NAME=]FILE", help=about)
    _add_report(made["report"])
    _add_calibrate(made["calibrate"])
    _add_threshold(made["threshold"])
    for name in ("report", "compare"):
        made[name].add_argument(
            "--unknown",
            action="append",
            default=[],
            metavar="FILE",
            help="predictions of inputs that belong to none of the classes, labels "
            "not needed; repeated, one for each model in their order",
        )
        made[name].add_argument(
            "--resamples",
            type=int,
            default=1000,
            metavar="N",
            help="bootstrap resamples of the intervals, 0 for none "
            "(default: %(default)s)",
        )
        made[name].add_argument(
            "--decision-threshold",
            type=float,
            default=0.5,
            metavar="P",
            help="class 1 of two, or a label, is predicted if its probability is "
            "larger (default: %(default)s)",
        )
    for name in ("report", "threshold", "compare"):
        made[name].add_argument(
            "--csf",
            default="msp",
            choices=SCORES,
            help="the confidence score that ranks; the last three need logits "
            "(default: %(default)s)",
        )
    for command in made.values():
        command.add_argument(
            "--multi-label",
            action="store_true",
            help="the classes are labels of which several can be true at once",
        )
    return parser


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument(
        "-o",
        "--output",
        default="report.html",
        help="path of the page (default: %(default)s)",
    )
    report.add_argument("--title", help="title of the page")
    report.add_argument(
        "--mistakes",
        type=int,
        default=12,
        metavar="N",
        help="most confident mistakes to list (default: %(default)s)",
    )


def _add_calibrate(calibrate: argparse.ArgumentParser) -> None:
    calibrate.add_argument(
        "file", metavar="FILE", help="held-out predictions with labels, for the fit"
    )
    calibrate.add_argument(
        "--apply",
        metavar="FILE",
        help="predictions to calibrate, with or without labels (default: those of the "
        "fit)",
    )
    calibrate.add_argument(
        "--method",
        choices=METHODS,
        default="temperature",
        help="the calibrator (default: %(default)s)",
    )
    calibrate.add_argument(
        "-o",
        "--output",
        default="calibrated.npz",
        help="calibrated predictions: .npz, .csv or .parquet (default: %(default)s)",
    )
    calibrate.add_argument(
        "--parameters",
        default="calibrator.npz",
        metavar="PATH",
        help="the fitted calibrator: .npz for `Calibrator.load`, or .json to read "
        "(default: %(default)s)",
    )


def _add_threshold(threshold: argparse.ArgumentParser) -> None:
    threshold.add_argument(
        "file", metavar="FILE", help="held-out predictions with labels"
    )
    target = threshold.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--risk",
        type=float,
        metavar="R",
        help="the largest share of errors among the answers, such as 0.05",
    )
    target.add_argument(
        "--coverage",
        type=float,
        metavar="C",
        help="the least share of the samples to answer, such as 0.8",
    )
    threshold.add_argument(
        "--delta",
        type=float,
        default=0.05,
        metavar="D",
        help="the probability with which the guarantee may fail (default: %(default)s)",
    )
    threshold.add_argument(
        "--test",
        metavar="FILE",
        help="other predictions with labels, on which to test the threshold",
    )
