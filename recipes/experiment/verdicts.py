"""The verdicts of EXPERIMENT.md, computed from results.csv by the rule stated there."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.evaluation import paired
from recipes.experiment.plan import ARMS, BEDS, GAINS
from recipes.experiment.results import GAINS as GAINS_FILE
from recipes.experiment.results import METRICS, SCALINGS, read
from recipes.tables import Table

PAGE = Path(__file__).with_name("EXPERIMENT.md")
HEADING = "## Results\n"

Rows = Sequence[dict[str, Any]]

HOLDS, FAILS = "holds", "does not hold"
UNDECIDED, UNTESTED = "undecided", "could not be tested"
CHECKPOINTS = ("best", "last")
READINGS = ("au_w1", "au_released")
AU_ARMS = (*READINGS, "au", "au_rising")
RIVALS = ("xe", "dual_focal", "inv_focal", "aurc")
CLAIMS = ("ece_below_xe", "cwece_below_xe", "ece_lowest", "cwece_lowest")
_LEAST_SEEDS = 3
_MOST_ACCURACY_LOST = 1.0


class Cell(NamedTuple):
    """Where figures are compared."""

    bed: str
    checkpoint: str
    scaling: str


class Comparison(NamedTuple):
    """A mean paired difference, half the width of its interval, and the seeds."""

    mean: float
    half: float
    seeds: int

    @property
    def word(self) -> str:
        """`"lower"`, `"higher"`, `"undecided"` or `"could not be tested"`.

        Example:
        >>> Comparison(-1.0, 0.4, 5).word
        'lower'
        """
        if self.seeds < _LEAST_SEEDS:
            return UNTESTED
        if abs(self.mean) <= self.half:
            return UNDECIDED
        return "lower" if self.mean < 0 else "higher"


def figures(rows: Rows, cell: Cell, arm: str, metric: str) -> dict[int, float]:
    """Returns a test metric of an arm by seed."""
    return {
        int(row["seed"]): row[f"test_{metric}"]
        for row in rows
        if (row["bed"], row["checkpoint"], row["scaling"]) == cell and row["arm"] == arm
    }


def compare(
    rows: Rows, cell: Cell, arm: str, rival: str, metric: str, comparisons: int = 1
) -> Comparison:
    """Compares an arm with a rival, seed by seed."""
    ours, theirs = (figures(rows, cell, name, metric) for name in (arm, rival))
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < _LEAST_SEEDS:
        return Comparison(math.nan, math.nan, len(seeds))
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if np.isnan(gaps).any():
        diverged = any(math.isnan(ours[seed]) for seed in seeds)
        worse = math.inf if metric != "accuracy" else -math.inf
        return Comparison(worse if diverged else -worse, 0.0, len(gaps))
    return Comparison(*paired(gaps, comparisons), len(gaps))


def verdict(rows: Rows, cell: Cell, claim: str, arms: Sequence[str] = READINGS) -> str:
    """Returns the verdict on a claim, if AU is any of these arms.

    Args:
        rows: the rows of results.csv.
        cell: bed, checkpoint and scaling.
        claim: name in `CLAIMS`.
        arms: readings of AU; the claim holds if it holds for one of them.
    """
    found = [_of_one(rows, cell, claim, arm, len(arms)) for arm in arms]
    for word in (UNTESTED, HOLDS, UNDECIDED):
        if word in found:
            return word
    return FAILS


def _of_one(rows: Rows, cell: Cell, claim: str, arm: str, readings: int) -> str:
    metric, _, scope = claim.partition("_")
    rivals = RIVALS if scope == "lowest" else ("xe",)
    accuracy = compare(rows, cell, arm, "xe", "accuracy")
    words = [compare(rows, cell, arm, rival, metric, readings).word for rival in rivals]
    if UNTESTED in (accuracy.word, *words):
        return UNTESTED
    if accuracy.mean < -_MOST_ACCURACY_LOST:
        return FAILS
    if all(word == "lower" for word in words):
        return HOLDS
    # That any of several rivals is lower is several chances to be wrong.
    m = len(rivals) if scope == "lowest" else readings
    beaten = [compare(rows, cell, arm, r, metric, m).word == "higher" for r in rivals]
    return FAILS if any(beaten) else UNDECIDED


def all_verdicts(rows: Rows, checkpoint: str = "best") -> dict[tuple[Cell, str], str]:
    """Returns the verdicts of `au_ordering`, of the beds that could be tested."""
    beds = sorted({row["bed"] for row in rows})
    found = {
        (cell, claim): verdict(rows, cell, claim)
        for bed in beds
        for scaling in SCALINGS
        for cell in [Cell(bed, checkpoint, scaling)]
        for claim in ("ece_below_xe", "ece_lowest")
    }
    return {key: word for key, word in found.items() if word != UNTESTED}


def ordering(rows: Rows) -> str:
    """Returns the verdict of the claim `au_ordering`."""
    words = set(all_verdicts(rows).values())
    if not words:
        return "could not be tested here"
    if words == {HOLDS}:
        return HOLDS
    if HOLDS in words:
        return "holds under a condition"
    return FAILS if FAILS in words else UNDECIDED


def _mean(of_seeds: Mapping[int, float], seeds: Collection[int]) -> float:
    return float(np.mean([of_seeds[seed] for seed in seeds]))


def answer(rows: Rows) -> str:
    """Returns what was found about ECE at the best epoch, in sentences."""
    said = []
    for bed, plan in BEDS.items():
        cells = [Cell(bed, "best", scaling) for scaling in SCALINGS]
        before, after = (verdict(rows, cell, "ece_below_xe") for cell in cells)
        if UNTESTED in (before, after):
            continue
        arms = ("xe", *READINGS)
        of_arms = [figures(rows, cells[0], arm, "ece").keys() for arm in arms]
        seeds = set.intersection(*map(set, of_arms))
        figures_of = [
            f"{ARMS[arm].title}: "
            + ", ".join(
                f"{_mean(figures(rows, cell, arm, metric), seeds):.{digits}f}"
                for cell, metric, digits in (
                    *((cell, "ece", 2) for cell in cells),
                    (cells[0], "accuracy", 1),
                )
            )
            for arm in arms
        ]
        said.append(
            f"On {plan.title} ({len(seeds)} seeds), the verdict on a lower ECE than "
            f"cross-entropy's is *{before}* before scaling and *{after}* after TS. "
            "Means of ECE before scaling, ECE after TS and accuracy, in %: "
            f"{'; '.join(figures_of)}."
        )
    return " ".join(said)


# --- Free gains ---------------------------------------------------------------------


def gain(rows: Rows, bed: str, name: str) -> str:
    """Returns whether something of `GAINS` is ahead of cross-entropy on a bed.

    Args:
        rows: the rows of free_gains.csv.
        bed: name in `BEDS`.
        name: name in `GAINS`.

    Returns:
        `"ahead"`, `"behind"`, `"mixed"`, `"undecided"` or `"could not be tested"`.
    """
    cell, m = Cell(bed, "best", "ts"), 2 * (len(GAINS) - 1)
    words = {compare(rows, cell, name, "xe", one, m).word for one in ("nll", "aurc")}
    if UNTESTED in words:
        return UNTESTED
    if compare(rows, cell, name, "xe", "accuracy").word == "lower":
        words.add("higher")  # of the error
    if {"lower", "higher"} <= words:
        return "mixed"
    said = {"lower": "ahead", "higher": "behind"}
    return next((said[word] for word in said if word in words), UNDECIDED)


# --- The page -----------------------------------------------------------------------


def write_page() -> None:
    """Writes the tables below the heading *Results* of EXPERIMENT.md."""
    head = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    text = results(read(), read(GAINS_FILE))
    PAGE.write_text(f"{head}{HEADING}\n{text}", encoding="utf-8")


def results(rows: Rows, gains: Rows = ()) -> str:
    """Returns the verdicts and the tables of figures, in Markdown.

    Args:
        rows: the rows of results.csv.
        gains: the rows of free_gains.csv.
    """
    parts = [f"**`au_ordering`: {ordering(rows)}.** {answer(rows)}".strip()]
    finished = {
        bed: {
            arm: len(figures(rows, Cell(bed, "last", "none"), arm, "accuracy"))
            for arm in ARMS
        }
        for bed in BEDS
    }
    table = [
        [BEDS[bed].title, *(f"{n} of {BEDS[bed].seeds}" for n in counts.values())]
        for bed, counts in finished.items()
    ]
    parts.append("Seeds of finished runs:")
    parts.append(
        Table(["bed", *(arm.title for arm in ARMS.values())], table).markdown()
    )
    for bed, counts in finished.items():
        if not any(counts.values()):
            continue
        for checkpoint in CHECKPOINTS:
            parts.append(f"### {BEDS[bed].title}, {checkpoint} epoch")
            parts += _of_bed(rows, bed, checkpoint)
    for bed in BEDS:
        if any(row["bed"] == bed for row in gains):
            parts += _of_gains(gains, bed)
    return "\n\n".join(parts) + "\n"


def _of_gains(rows: Rows, bed: str) -> list[str]:
    cell = Cell(bed, "best", "ts")
    titles = {name: one.title for name, one in GAINS.items()}
    verdicts = {name: gain(rows, bed, name) for name in GAINS if name != "xe"}
    table = _figures(rows, cell, titles)
    seeds = {name: len(figures(rows, cell, name, "nll")) for name in GAINS}
    lines = [
        [*line, str(seeds[name]), verdicts.get(name, "")]
        for name, line in table.items()
    ]
    return [
        f"### Free gains: {BEDS[bed].title}, best epoch, after TS",
        _CAPTION.format("after TS"),
        Table(["", *METRICS, "seeds", "verdict"], lines).markdown(),
    ]


_CAPTION = (
    "Mean over seeds, {}. In brackets: the difference from cross-entropy with its 95 % "
    "interval, ↓ or ↑ where it excludes 0."
)


def _figures(rows: Rows, cell: Cell, titles: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns a line of figures for each arm."""
    lines = {}
    for arm, title in titles.items():
        lines[arm] = [title]
        for metric in METRICS:
            values = list(figures(rows, cell, arm, metric).values())
            digits = 3 if metric == "nll" else 2
            text = f"{np.mean(values):.{digits}f}" if values else ""
            gap = compare(rows, cell, arm, "xe", metric)
            if arm != "xe" and gap.seeds >= _LEAST_SEEDS:
                text += f" ({gap.mean:+.{digits}f} ±{gap.half:.{digits}f})"
                text += {"lower": " ↓", "higher": " ↑"}.get(gap.word, "")
            lines[arm].append(text.replace("-", "−"))
    return lines


def _of_bed(rows: Rows, bed: str, checkpoint: str) -> list[str]:
    scalings = {"none": "before scaling", "ts": "after TS"}
    verdicts = []
    columns = {"the paper's AU": READINGS, **{a: (a,) for a in AU_ARMS}}
    for claim in CLAIMS:
        for scaling, title in scalings.items():
            cell = Cell(bed, checkpoint, scaling)
            words = [verdict(rows, cell, claim, arms) for arms in columns.values()]
            verdicts.append([f"`{claim}`", title, *words])
    names = [name if name not in ARMS else ARMS[name].title for name in columns]
    parts = [Table(["claim", "", *names], verdicts).markdown()]
    arms = {name: arm.title for name, arm in ARMS.items()}
    for scaling, title in scalings.items():
        lines = _figures(rows, Cell(bed, checkpoint, scaling), arms)
        parts.append(_CAPTION.format(title))
        parts.append(Table(["arm", *METRICS], list(lines.values())).markdown())
    return parts
