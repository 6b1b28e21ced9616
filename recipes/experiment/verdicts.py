"""The verdicts of EXPERIMENT.md, computed from results.csv by the rule stated there."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.experiment.training import METRICS, read

PAGE = Path(__file__).with_name("EXPERIMENT.md")
HEADING = "## Results\n"

Rows = Sequence[dict[str, Any]]

HOLDS, FAILS = "holds", "does not hold"
UNDECIDED, UNTESTED = "undecided", "could not be tested"
CHECKPOINTS, SCALINGS = ("best", "last"), ("none", "ts")
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
    from scipy.stats import t

    ours, theirs = (figures(rows, cell, name, metric) for name in (arm, rival))
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < _LEAST_SEEDS:
        return Comparison(math.nan, math.nan, len(seeds))
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    if np.isnan(gaps).any():
        diverged = any(math.isnan(ours[seed]) for seed in seeds)
        worse = math.inf if metric != "accuracy" else -math.inf
        return Comparison(worse if diverged else -worse, 0.0, len(gaps))
    half = t.ppf(1 - 0.025 / comparisons, len(gaps) - 1) * gaps.std(ddof=1)
    return Comparison(float(gaps.mean()), float(half / len(gaps) ** 0.5), len(gaps))


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


# --- The page -----------------------------------------------------------------------


def write_page() -> None:
    """Writes the tables below the heading *Results* of EXPERIMENT.md."""
    head = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    PAGE.write_text(head + HEADING + "\n" + results(read()), encoding="utf-8")


def results(rows: Rows) -> str:
    """Returns the verdicts and the tables of figures, in Markdown."""
    from recipes.experiment.plan import ARMS, BEDS

    parts = [f"**`au_ordering`: {ordering(rows)}.**"]
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
    parts.append(_table(["bed", *(arm.title for arm in ARMS.values())], table))
    for bed, counts in finished.items():
        if not any(counts.values()):
            continue
        for checkpoint in CHECKPOINTS:
            parts.append(f"### {BEDS[bed].title}, {checkpoint} epoch")
            parts += _of_bed(rows, bed, checkpoint)
    return "\n\n".join(parts) + "\n"


def _of_bed(rows: Rows, bed: str, checkpoint: str) -> list[str]:
    from recipes.experiment.plan import ARMS

    scalings = {"none": "before scaling", "ts": "after TS"}
    verdicts = []
    columns = {"the paper's AU": READINGS, **{a: (a,) for a in AU_ARMS}}
    for claim in CLAIMS:
        for scaling, title in scalings.items():
            cell = Cell(bed, checkpoint, scaling)
            words = [verdict(rows, cell, claim, arms) for arms in columns.values()]
            verdicts.append([f"`{claim}`", title, *words])
    names = [name if name not in ARMS else ARMS[name].title for name in columns]
    parts = [_table(["claim", "", *names], verdicts)]
    for scaling, title in scalings.items():
        cell = Cell(bed, checkpoint, scaling)
        lines = []
        for arm, plan in ARMS.items():
            line = [plan.title]
            for metric in METRICS:
                values = list(figures(rows, cell, arm, metric).values())
                digits = 3 if metric == "nll" else 2
                if not values:
                    line.append("")
                    continue
                text = f"{np.mean(values):.{digits}f}"
                gap = compare(rows, cell, arm, "xe", metric)
                if arm != "xe" and gap.seeds >= _LEAST_SEEDS:
                    text += f" ({gap.mean:+.{digits}f} ±{gap.half:.{digits}f})"
                    text += {"lower": " ↓", "higher": " ↑"}.get(gap.word, "")
                line.append(text.replace("-", "−"))
            lines.append(line)
        parts += [
            f"Mean over seeds, {title}. In brackets: the difference from cross-entropy "
            "with its 95 % interval, ↓ or ↑ where it excludes 0.",
            _table(["arm", *METRICS], lines),
        ]
    return parts


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
