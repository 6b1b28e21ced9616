"""The arguments of the command line, and its help."""

import argparse
from typing import Any, NoReturn

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

A file may have more columns, or arrays of shape (n,), that --groups and --slices name:
the patient or the site of each sample. They stand in the first file that has them.

A policy (.json) is what `fit` writes; docs/deploy.md documents it. `check` exits with
status 0 if there is no alarm, 1 if there is one, and 2, as all commands, for errors.

With --multi-label, `labels` are multi-hot, (n, k); in a table the column `label` lists
the true labels, separated by semicolons.

Classes are known by their names: two files are matched by name, in any order. Names
that are numbers (2, 0, 1), or 0 … k-1 beside the same text (class_0, class_10), are
class numbers. A label is a name or such a number; if the names are not numbers, it may
also be a position, counted from 0.
"""

# What each command does, and examples.
_COMMANDS = {
    "report": (
        "write a report on predictions, as a table and as a page",
        "predictions.npz",
        "before=a.npz after=b.npz -o comparison.html",
        "predictions.npz --unknown strange.npz",
        "predictions.csv --groups patient --slices site sex",
    ),
    "fit": (
        "fit a policy: a calibrator and a confidence threshold",
        "validation.npz --risk 0.05 -o policy.json",
        "validation.npz --coverage 0.8 --method none",
    ),
    "apply": (
        "answer or abstain, by a policy",
        "policy.json new.npz -o answers.csv",
    ),
    "check": (
        "test whether new predictions are like the fitting data of a policy; with "
        "labels, also whether its promise holds",
        "policy.json week42.npz",
    ),
    "calibrate": (
        "fit a calibrator on one file and apply it to another",
        "validation.npz --apply test.npz -o calibrated.npz",
        "validation.csv --apply new.csv --method vector -o new_p.csv",
    ),
    "threshold": (
        "select the confidence threshold above which the model answers",
        "validation.npz --risk 0.05",
        "validation.npz --coverage 0.8 --test test.npz",
        "other.npz --risk 0.02 --policy policy.json",
    ),
    "compare": (
        "compare models on the same samples, with intervals and in words",
        "baseline=a.npz focal=b.npz au=c.npz",
    ),
}

METHODS = {
    "temperature": "TemperatureScaling",
    "vector": "VectorScaling",
    "structured-vector": "StructuredVectorScaling",
    "structured-matrix": "StructuredMatrixScaling",
    "dirichlet": "DirichletCalibration",
    "histogram": "HistogramBinning",
    "isotonic": "IsotonicCalibration",
    "auto": "AutoCalibration",
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
    made = {}
    for name, (summary, *examples) in _COMMANDS.items():
        lines = "".join(f"  keras-selcal {name} {example}\n" for example in examples)
        made[name] = commands.add_parser(
            name,
            help=summary,
            description=f"{summary.capitalize()}.",
            epilog=f"{_FILES}\nexamples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add(names: str, flags: str, about: str, **options: Any) -> None:
        if options.get("default") not in (None, []):
            about += " (default: %(default)s)"
        for name in names.split():
            made[name].add_argument(*flags.split(), help=about, **options)

    model = {"nargs": "+", "metavar": "[NAME=]FILE"}
    file = {"metavar": "FILE"}
    about = "predictions of a model; further models are compared with the first"
    add("report", "files", about, **model)
    about = "predictions of two or more models on the same samples"
    add("compare", "files", about, **model)
    add("calibrate", "file", "held-out predictions with labels, for the fit", **file)
    add("threshold fit", "file", "held-out predictions with labels", **file)
    about = "the policy that `fit` has written"
    add("apply check", "policy", about, metavar="POLICY")
    add("apply", "file", "predictions to answer, with or without labels", **file)
    add("check", "file", "new predictions, with or without labels", **file)
    add("fit", "-o --output", "path of the policy", default="policy.json")
    about = "answers, confidences and probabilities: .csv, .npz or .parquet"
    add("apply", "-o --output", about, default="answers.csv")
    about = "the probability of a false alarm, of each of the two tests"
    rate: dict[str, Any] = {"type": float, "default": 0.01, "metavar": "A"}
    add("check", "--false-alarm-rate", about, **rate)
    add("report", "-o --output", "path of the page", default="report.html")
    add("report", "--title", "title of the page")
    about = "most confident mistakes to list"
    add("report", "--mistakes", about, type=int, default=12, metavar="N")
    about = (
        "predictions to calibrate, with or without labels (default: the fitting data)"
    )
    add("calibrate", "--apply", about, **file)
    about = "the calibrator; auto chooses one by cross-validation"
    add("calibrate", "--method", about, choices=METHODS, default="temperature")
    about += ", fitted on a random half of the samples; the rest is for the threshold"
    methods = [*METHODS, "none"]
    add("fit", "--method", about, choices=methods, default="temperature")
    about = "calibrated predictions: .npz, .csv or .parquet"
    add("calibrate", "-o --output", about, default="calibrated.npz")
    about = "the fitted calibrator: .npz for `Calibrator.load`, or .json to read"
    add("calibrate", "--parameters", about, default="calibrator.npz", metavar="PATH")
    for name in ("threshold", "fit"):
        target = made[name].add_mutually_exclusive_group(required=True)
        about = "the largest share of errors among the answers, such as 0.05"
        target.add_argument("--risk", type=float, metavar="R", help=about)
        about = "the least share of the samples to answer, such as 0.8"
        target.add_argument("--coverage", type=float, metavar="C", help=about)
    about = "a policy; the threshold is for its calibrated confidences"
    add("threshold", "--policy", about, metavar="POLICY")
    about = "the probability with which the guarantee may fail"
    add("threshold", "--delta", about, type=float, default=0.05, metavar="D")
    about += ", with --risk (default: 0.05)"
    add("fit", "--delta", about, type=float, metavar="D")
    about = "other predictions with labels, on which to test the threshold"
    add("threshold", "--test", about, **file)
    add(
        "report compare",
        "--unknown",
        "predictions of inputs that belong to none of the classes, labels not needed; "
        "repeated, one for each model in their order",
        action="append",
        default=[],
        **file,
    )
    about = "column that names what is independent, such as the patient of each image:"
    about += " intervals and guarantees then count these, not samples"
    add("report compare threshold fit check", "--groups", about, metavar="COLUMN")
    about = "columns, such as site and sex: show the metrics for each of their values"
    add("report", "--slices", about, nargs="+", default=[], metavar="COLUMN")
    about = "bootstrap resamples of the intervals, 0 for none"
    add("report compare", "--bootstrap", about, type=int, default=1000, metavar="N")
    about = "predict class 1 of two, or a label, if its probability is larger"
    decision: dict[str, Any] = {"type": float, "default": 0.5, "metavar": "P"}
    add("report compare", "--decision-threshold", about, **decision)
    about = "the score that ranks predictions by confidence; msp is the probability of"
    about += " the predicted class; the last three scores need logits"
    add("report compare", "--csf", about, choices=SCORES, default="msp")
    scores = [*SCORES, "auto"]
    automatic = "; auto chooses on the half of the calibrator"
    add("fit", "--csf", about + automatic, choices=scores, default="msp")
    about += " (default: msp, or the score of the policy)"
    add("threshold", "--csf", about, choices=SCORES)
    about = "several classes can be true at once"
    others = " ".join(made.keys() - {"apply", "check"})
    add(others, "--multi-label", about, action="store_true")
    return parser
