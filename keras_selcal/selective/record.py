"""Answers of a selective classifier, what it was fitted on, and what it promises."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

Figure = float | tuple[float, ...]

ABSTAINED = -1
"""The label of a sample that gets no answer."""


class SelectivePrediction(NamedTuple):
    """Answers of a selective classifier.

    Attributes:
        labels: predicted classes; −1 (`ABSTAINED`) where the sample is not accepted.
        accepted: which samples are answered.
        confidence: confidence scores, of rejected samples too.
    """

    labels: np.ndarray
    accepted: np.ndarray
    confidence: np.ndarray


class Record:
    """Base class of what a fit leaves behind, a dataclass that JSON can hold."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the record in a form that JSON can hold."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()  # type: ignore[call-overload]
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Any:
        return cls(
            **{
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values.items()
            }
        )


@dataclass(frozen=True)
class FitRecord(Record):
    """What a selective classifier was fitted on, and what it promises.

    With `multi_label=True`, `coverage`, `selective_risk` and `bound` have one entry for
    each label. With `per_class=True`, `bound` has one for each class.

    Attributes:
        n: number of samples that the threshold was selected on. Padding, ignored
            samples, and those that the calibrator was fitted on do not count.
        groups: number of independent groups that they form, or None where each sample
            is independent.
        coverage: share of these samples that is accepted.
        selective_risk: share of errors among the accepted ones.
        target_coverage: κ of `fit`, or None.
        target_risk: r of `fit`, or None.
        delta: δ of `bound`, or None where there is no bound.
        bound: with probability 1 − δ the true selective risk is at most this (for
            several labels or classes: of all at once). None where nothing is promised.
        date: day of the fit, in ISO format.
        choice: how `csf="auto"` chose, in a sentence, or None.
        unknown_share: of `fit`, or None. If it is given, all figures are of the mixture
            with that share of unknown inputs, and n is the size of the sample that was
            drawn of it.
        known_coverage: share of the known inputs that is accepted, or None.
        unknown_coverage: share of the unknown inputs that is accepted, or None.
        abstain_cost: of `fit`, or None.
        cost: with the costs of `fit`, the mean cost of these samples; an abstention
            costs `abstain_cost`.
        expected_cost: the mean cost that the probabilities predict for them. Where it
            is far from `cost`, the probabilities are not calibrated.
        confidence: confidences of the samples, or of 2,000 of them drawn at random, in
            rising order; of grouped samples, the mean of each group. `check` compares
            new ones with them.
        fingerprint: of the model's outputs and the labels given to `fit`: BLAKE2b (16
            bytes, in hex) of the outputs as float32 and the labels as int64.
        class_coverage: with `per_class=True`, the share that is accepted of the samples
            that are predicted as each class; NaN for a class that none is.
        class_risk: the share of errors among those.
    """

    n: int
    groups: int | None
    coverage: Figure
    selective_risk: Figure
    target_coverage: float | None
    target_risk: float | None
    delta: float | None
    bound: Figure | None
    date: str
    choice: str | None = None
    unknown_share: float | None = None
    known_coverage: float | None = None
    unknown_coverage: float | None = None
    abstain_cost: float | None = None
    cost: Figure | None = None
    expected_cost: Figure | None = None
    confidence: tuple[float, ...] = field(default=(), repr=False)
    fingerprint: str | None = field(default=None, repr=False)
    class_coverage: tuple[float, ...] | None = None
    class_risk: tuple[float, ...] | None = None

    def describe(self) -> str:
        """Returns the figures in one line, as arguments; of the confidences the 5 %,
        50 % and 95 % quantiles.
        """
        parts = [
            f"date={self.date}",
            f"coverage={_text(self.coverage)}",
            f"n={self.n}",
        ]
        if self.groups is not None:
            parts.append(f"groups={self.groups}")
        parts.append(f"selective_risk={_text(self.selective_risk)}")
        if self.target_risk is not None:
            parts.append(f"target_risk={self.target_risk:g}")
        if self.bound is None:
            parts.append("bound=None")
        else:
            parts.append(f"delta={self.delta:g}, bound={_text(self.bound)}")
        if self.unknown_share is not None:
            parts.append(f"unknown_share={self.unknown_share:g}")
            parts.append(f"known_coverage={self.known_coverage:.4g}")
            parts.append(f"unknown_coverage={self.unknown_coverage:.4g}")
        if self.cost is not None and self.expected_cost is not None:
            if self.abstain_cost is not None:
                parts.append(f"abstain_cost={self.abstain_cost:g}")
            parts.append(f"cost={_text(self.cost)}")
            parts.append(f"expected_cost={_text(self.expected_cost)}")
        if self.confidence:
            ends = np.quantile(self.confidence, (0.05, 0.5, 0.95))
            parts.append(f"confidence={' … '.join(f'{end:.4g}' for end in ends)}")
        if self.choice is not None:
            parts.append(f"choice={self.choice!r}")
        return ", ".join(parts)


def _text(figure: Figure) -> str:
    if not isinstance(figure, tuple):
        return f"{figure:.4g}"
    return f"{min(figure):.4g} … {max(figure):.4g}"
