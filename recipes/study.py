"""The study of STUDY.md: which runs it has, and the tables they make.

`python -m recipes study` trains what is missing and writes the page's tables anew.
"""

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from keras_selcal import analysis
from recipes import engines
from recipes.engines import training_job
from recipes.evaluation import METRICS, evaluate, measure
from recipes.losses import NAMES, TITLES
from recipes.progress import Progress, console
from recipes.runs import Run, RunError
from recipes.settings import CSFS
from recipes.tables import Table, best, cell_of

PAGE = Path(__file__).with_name("STUDY.md")
RESULTS = Path(__file__).with_name("study.csv")

SEEDS = (0, 1, 2)
SMOOTHINGS = (0.02, 0.05, 0.1, 0.3, 1.0)
WEIGHT_GRADIENTS = (0.0, 0.1, 0.3, 1.0)
# ν, w and whether w rises, of AU: the defaults, and what of the map of ν and w might
# replace them.
CHOICES = (
    (0.1, 0.0, False),
    (1.0, 0.0, False),
    (0.1, 0.1, False),
    (0.3, 0.1, False),
    (1.0, 0.1, False),
    (1.0, 0.3, False),
    (0.1, 0.3, True),
)
# Where they are compared.
COMPARED = ("digits", "scratch")
# Losses of the longest runs.
LONG = ("xe", "fl53", "dual_focal", "aurc", "au")


@dataclass(frozen=True)
class Bed:
    """What is trained, and how.

    Args:
        arguments: of `python -m recipes train`.
        rise: epochs between which a weight gradient rises, a quarter to a half of the
            training; for those that have such runs.
    """

    arguments: tuple[str, ...]
    rise: tuple[int, int] | None = None


def _from_scratch(epochs: int) -> tuple[str, ...]:
    # The last epoch is taken: the losses' own validation values would stop them at
    # different times.
    return (
        *("--dataset", "cifar10", "--model", "cnn4_narrow", "--subset", "5000"),
        *("--epochs", str(epochs), "--set", f"validate_every={epochs}"),
        *("--set", "augmentation=none"),
    )


BEDS = {
    # Overfits within minutes on one core.
    "scratch": Bed(_from_scratch(20), rise=(5, 10)),
    # Losses that weigh samples down learn slowly.
    "long": Bed(_from_scratch(60), rise=(15, 30)),
    # The quickstart's, but for the epoch that counts: other data, with wrong labels.
    "digits": Bed(
        ("--dataset", "digits", "--model", "cnn", "--set", "validate_every=60"),
        rise=(15, 30),
    ),
    # The paper's post-hoc use: a trained network goes on with another loss.
    "finetune": Bed(
        (
            *("--dataset", "cifar10", "--model", "resnet20", "--subset", "5000"),
            *("--epochs", "3", "--set", "validate_every=3"),
            *("--set", "schedule=cosine", "--set", "learning_rate=0.01"),
        ),
    ),
}


@dataclass(frozen=True)
class Experiment:
    """One run of the study.

    Args:
        bed: a key of `BEDS`.
        loss: one of `recipes.losses.NAMES`.
        csf: of the AU loss.
        smoothing: ν of the AU loss.
        weight_gradient: w of the AU loss.
        rises: whether w rises from 0, as its bed says.
        seed: of the run.
    """

    bed: str
    loss: str
    csf: str = "msp"
    smoothing: float = 0.1
    weight_gradient: float = 0.0
    rises: bool = False
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the run's folder: what differs from the defaults of the loss."""
        parts = [self.bed, self.loss]
        for field in dataclasses.fields(self)[2:-1]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(field.name if value is True else f"{field.name}{value}")
        return "-".join([*parts, f"seed{self.seed}"])

    @property
    def arguments(self) -> list[str]:
        """Arguments of `python -m recipes train`, but for folders and files."""
        bed = BEDS[self.bed]
        arguments = [*bed.arguments, "--loss", self.loss]
        if self.loss == "au":
            arguments += ["--csf", self.csf]
            arguments += ["--set", f"loss.weight_gradient={self.weight_gradient:g}"]
            arguments += ["--set", f"loss.smoothing={self.smoothing:g}"]
        if self.rises and bed.rise:
            first, last = bed.rise
            arguments += ["--set", f"weight_gradient_rise={first},{last}"]
        return [*arguments, "--seed", str(self.seed)]


def experiments() -> list[Experiment]:
    """Returns the runs of the study, the more telling ones first."""
    return list(dict.fromkeys(_experiments()))


def _experiments() -> Iterator[Experiment]:
    for seed in SEEDS:
        for loss in NAMES:
            yield Experiment("scratch", loss, seed=seed)
        for csf in CSFS[1:]:
            yield Experiment("scratch", "au", csf=csf, seed=seed)
    for w in WEIGHT_GRADIENTS:
        for nu in SMOOTHINGS:
            yield Experiment("scratch", "au", smoothing=nu, weight_gradient=w)
    yield from _rising()
    for loss in LONG:
        yield Experiment("long", loss)
    for loss in ("xe", "au"):
        yield Experiment("long", loss, seed=1)
    yield Experiment("long", "au", weight_gradient=0.3, rises=True)
    for loss in NAMES:
        yield Experiment("finetune", loss)
    for seed in SEEDS:
        for loss in NAMES:
            yield Experiment("digits", loss, seed=seed)
    for bed in COMPARED:
        for seed in SEEDS:
            for choice in CHOICES:
                yield Experiment(bed, "au", "msp", *choice, seed)


def _rising() -> list[Experiment]:
    return [
        Experiment("scratch", "au", "msp", nu, w, rises=True)
        for w in WEIGHT_GRADIENTS[2:]
        for nu in (0.1, 0.3)
    ]


# --- Runs ---------------------------------------------------------------------------


def run_study(
    folder: str | os.PathLike[str],
    *,
    data_dir: str | None = None,
    pretrained: str | None = None,
    jobs: int | None = None,
    engine: str = "local",
    page: bool = False,
) -> None:
    """Trains what is missing of the study, and writes its results.

    Args:
        folder: for the runs, `results.csv` and `tables.md`.
        data_dir: where CIFAR-10 is.
        pretrained: the weights of ResNet-20 to start from; without them, the runs that
            need them are left out.
        jobs: how many runs at a time.
        engine: one of `recipes.engines.ENGINES`.
        page: whether STUDY.md and study.csv take over the results; those of runs that
            are not in the folder stay.
    """
    output = console()
    folder = Path(folder)
    wanted = [one for one in experiments() if pretrained or one.bed != "finetune"]
    runs = {one: Run(folder / one.name) for one in wanted}
    data = [] if data_dir is None else ["--data-dir", data_dir]
    files = {
        "scratch": data,
        "long": data,
        "digits": [],
        "finetune": [*data, "--pretrained", str(pretrained)],
    }
    open_jobs = [
        training_job(run, [*one.arguments, *files[one.bed]])
        for one, run in runs.items()
        if not run.finished
    ]
    output.print(f"{len(runs)} runs, {len(runs) - len(open_jobs)} finished already")
    with Progress(output, len(open_jobs)) as progress:

        def report(result: engines.Result) -> None:
            note = f"{result.seconds:.0f} s" if result.finished else result.failure()
            progress.end(result.job.name, note)

        ended = engines.run_all(open_jobs, engine, at_once=jobs, report=report)
    results = [result_of(one, run) for one, run in runs.items() if run.finished]
    failed = sum(not result.finished for result in ended)
    if results:
        write_results(results, folder / "results.csv")
        parts = (f"## {name}\n\n{text}\n" for name, text in tables(results).items())
        (folder / "tables.md").write_text("\n".join(parts), encoding="utf-8")
        output.print(f"{folder}: results.csv and tables.md", markup=False)
    if page:
        _update_page(results)
    if failed:
        raise RunError(f"{failed} runs failed; the same command tries them again.")


# --- Results ------------------------------------------------------------------------

# Of these with temperature scaling, T chosen by validation ECE as in the paper. It does
# not change the accuracy.
_MEASURED = ("accuracy", "ece", "adaptive_ece", "cwece", "aurc", "nll")
_SCALED = _MEASURED[1:]
_NOT_COMPARED = {"training_accuracy": "training accuracy", "temperature": "T"}


class Result(NamedTuple):
    """A finished run: what it was, and its figures, × 10² but for NLL and T."""

    experiment: Experiment
    values: dict[str, float]

    def row(self) -> dict[str, Any]:
        """Returns a row of `results.csv`."""
        shown = {key: f"{value:.6g}" for key, value in self.values.items()}
        return {"run": self.experiment.name, **shown}


def result_of(experiment: Experiment, run: Run) -> Result:
    """Returns the figures of a finished run."""
    from keras_selcal import TemperatureScaling

    values = evaluate(run, metrics=_MEASURED)
    temperature = TemperatureScaling("ece").fit(*run.predictions("val")).temperature
    logits, labels = run.predictions("test")
    scaled = measure(labels, logits / temperature, _SCALED)
    values |= {f"{name}_ts": value for name, value in scaled.items()}
    last = run.history()[-1]
    return Result(
        experiment,
        {
            **values,
            "temperature": temperature,
            "training_accuracy": 100 * last["accuracy"],
            "seconds": run.environment()["training_seconds"],
        },
    )


def write_results(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Writes results to a CSV file."""
    rows = [result.row() for result in results]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_results(path: str | os.PathLike[str] | None = None) -> list[Result]:
    """Returns the results in a CSV file, the page's own unless told otherwise."""
    with open(path or RESULTS, newline="", encoding="utf-8") as file:
        rows = {row.pop("run"): row for row in csv.DictReader(file)}
    return [
        Result(one, {key: float(value) for key, value in rows[one.name].items()})
        for one in experiments()
        if one.name in rows
    ]


# --- Tables -------------------------------------------------------------------------


def tables(results: Sequence[Result]) -> dict[str, str]:
    """Returns the tables of the page in Markdown, by their names there."""
    by_loss = {
        bed: {TITLES[loss]: _of(results, Experiment(bed, loss)) for loss in NAMES}
        for bed in BEDS
    }
    by_csf = {csf: _of(results, Experiment("scratch", "au", csf)) for csf in CSFS}
    rising = {_named(r.experiment): [r] for r in results if r.experiment in _rising()}
    return {
        **{bed: _columns(by_loss[bed]) for bed in BEDS},
        "csf": _columns(by_csf),
        "drag": _map(results, lambda e, _: f"{_drag(e):.2g}"),
        "accuracy": _map(results, lambda _, v: f"{v['accuracy']:.1f}"),
        "training": _map(results, lambda _, v: f"{v['training_accuracy']:.1f}"),
        "ece": _map(results, lambda _, v: f"{v['ece']:.1f}"),
        "ece_ts": _map(results, lambda _, v: f"{v['ece_ts']:.1f}"),
        "rise": _columns(rising),
        **{f"choices_{bed}": _choices(results, bed) for bed in (*COMPARED, "long")},
    }


def _of(results: Sequence[Result], experiment: Experiment) -> list[Result]:
    """Returns the results of an experiment, of any seed."""
    seeds = [dataclasses.replace(experiment, seed=seed) for seed in SEEDS]
    return [r for r in results if r.experiment in seeds]


def _columns(columns: Mapping[str, Sequence[Result]]) -> str:
    """Returns metrics by columns, mean ± standard deviation over the results."""
    columns = {title: results for title, results in columns.items() if results}
    if not columns:
        return "Not run yet."
    names = ("training_accuracy", *_MEASURED, *(f"{name}_ts" for name in _SCALED))
    names += ("temperature",)
    rows = [[_heading(name), *_texts(name, columns.values())] for name in names]
    runs = ["runs", *(str(len(results)) for results in columns.values())]
    return Table(["", *columns], [*rows, runs]).markdown()


def _choices(results: Sequence[Result], bed: str) -> str:
    """Returns the choices of AU's ν and w by metrics, cross-entropy before them."""
    rows = {TITLES["xe"]: _of(results, Experiment(bed, "xe"))}
    for choice in CHOICES:
        one = Experiment(bed, "au", "msp", *choice)
        rows[_named(one)] = _of(results, one)
    rows = {title: found for title, found in rows.items() if found}
    if not rows:
        return "Not run yet."
    names = ("accuracy", "ece", "aurc", "nll", "ece_ts", "nll_ts")
    columns = [_texts(name, rows.values()) for name in names]
    lines = [list(line) for line in zip(rows, *columns, strict=True)]
    return Table(["", *map(_heading, names)], lines).markdown()


def _named(experiment: Experiment) -> str:
    """Returns what is written for the ν and w of an experiment."""
    name = f"ν = {experiment.smoothing:g}, w = {experiment.weight_gradient:g}"
    if experiment.rises:
        name += ", rising"
    default = Experiment(experiment.bed, "au", seed=experiment.seed)
    return f"{name} (default)" if experiment == default else name


def _heading(name: str) -> str:
    if name in _NOT_COMPARED:
        return _NOT_COMPARED[name]
    heading = METRICS[name.removesuffix("_ts")].heading
    return f"{heading.replace(' ↓', '')} + TS ↓" if name.endswith("_ts") else heading


def _texts(name: str, groups: Iterable[Sequence[Result]]) -> list[str]:
    """Returns a value of groups of results, mean ± deviation, the best one bold."""
    cells = [cell_of([r.values[name] for r in results]) for results in groups]
    if name in _NOT_COMPARED:
        return [cell.text(digits=1) for cell in cells]
    metric = METRICS[name.removesuffix("_ts")]
    marked = best(cells, metric.digits, metric.higher)
    return [cell.text(metric.digits) for cell in marked]


def _map(
    results: Sequence[Result], text: Callable[[Experiment, dict[str, float]], str]
) -> str:
    """Returns a table of w by ν for constant weight gradients of the first seed."""
    values = {r.experiment: r.values for r in results}
    rows = []
    for w in WEIGHT_GRADIENTS:
        wanted = [Experiment("scratch", "au", "msp", nu, w) for nu in SMOOTHINGS]
        cells = [text(one, values[one]) if one in values else "" for one in wanted]
        rows.append([f"{w:g}", *cells])
    return Table(["w \\ ν", *(f"{nu:g}" for nu in SMOOTHINGS)], rows).markdown()


def _drag(experiment: Experiment) -> float:
    return analysis.drag(experiment.weight_gradient, experiment.smoothing, 10)


def _update_page(results: Sequence[Result]) -> None:
    """Takes results over into study.csv and STUDY.md."""
    by_name = {r.experiment.name: r for r in (*read_results(), *results)}
    merged = [by_name[one.name] for one in experiments() if one.name in by_name]
    write_results(merged, RESULTS)
    page = with_tables(PAGE.read_text(encoding="utf-8"), merged)
    PAGE.write_text(page, encoding="utf-8")


_TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- end -->", re.DOTALL)


def tables_in(page: str) -> list[str]:
    """Returns the names of the tables that stand in a page.

    Each stands between the lines `<!-- table NAME -->` and `<!-- end -->`.
    """
    return _TABLE.findall(page)


def with_tables(page: str, results: Sequence[Result]) -> str:
    """Returns the page with its tables made anew."""
    made = tables(results)

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n\n{made[match[1]]}\n\n<!-- end -->"

    return _TABLE.sub(replaced, page)
