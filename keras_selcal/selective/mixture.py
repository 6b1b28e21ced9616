"""Samples of the mixture of known and unknown inputs that a classifier meets in use."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_floats, to_numbers
from keras_selcal._validation import check_number, refuse
from keras_selcal.selective.bounds import binomial_tail
from keras_selcal.selective.cuts import check_scores
from keras_selcal.selective.data import SelectionData, check_finite
from keras_selcal.selective.record import ABSTAINED

# Share of δ for the case that there are too few inputs of a kind.
_SHORTAGE = 0.05


def check_unknown(unknown: Any, share: Any, others: dict[str, Any]) -> float | None:
    """Returns the share of unknown inputs, if there are any, and refuses what does not
    go with them.
    """
    if unknown is None:
        if share is not None:
            refuse("unknown_share", share, "None without `unknown`")
        return None
    for name, value in others.items():
        if value is not None:
            refuse(
                name,
                value,
                "None with `unknown`, whose inputs are independent, and count as "
                "errors in a `risk`",
            )
    allowed = "the share of unknown inputs in use, a number in (0, 1)"
    return check_number("unknown_share", share, allowed, above=0, below=1)


def remaining(delta: float) -> float:
    """Returns the part of δ that is left for a sample of `draw_mixture`."""
    return (1 - _SHORTAGE) * delta


def draw_mixture(
    n: int, m: int, share: float, delta: float, seed: bytes
) -> tuple[Array, Array]:
    """Returns which of n known and m unknown inputs are a sample of their mixture.

    N independent draws of a mixture with a share π of unknown inputs hold
    K ~ Binomial(N, π) unknown ones. If K is drawn so, K of the unknown inputs and N − K
    of the known ones are therefore N independent draws of the mixture, and what is
    proved for independent samples holds for it, such as the exact test of a risk.
    (Weights would not do: a weighted number of errors is not binomial. Nor would a
    fixed K, for which the number of errors is not binomial either.)

    N depends on n, m, π and δ only: it is the largest for which the inputs suffice,
    K ≤ m and N − K ≤ n, with a probability of at least 1 − δ/20. In the other case K is
    cut to what there is; a statement that holds with probability 1 − 19δ/20 for N draws
    of the mixture thus holds with probability 1 − δ.

    Args:
        n: number of known inputs, independent draws of their kind.
        m: number of unknown inputs, likewise.
        share: π.
        delta: δ.
        seed: a fingerprint of the data. The same data give the same sample, on every
            backend, and other data an independent one.

    Returns:
        Indices of known inputs, and of unknown ones.
    """

    def suffice(total: int) -> bool:
        """Whether they do for N draws: P(K > m) + P(N − K > n) is small."""
        short = 0.0
        if total > m:
            short += 1 - binomial_tail(m, total, share)
        if total > n:
            short += 1 - binomial_tail(n, total, 1 - share)
        return short <= _SHORTAGE * delta

    low, high = 0, n + m + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suffice(middle) else (low, middle)
    if not low:
        refuse("unknown", f"{m} inputs beside {n} known ones", "more inputs")
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    k = int(np.clip(rng.binomial(low, share), low - n, m))
    return rng.permutation(n)[: low - k], rng.permutation(m)[:k]


def mixed_scores(
    scores: Any, correct: Any, unknown: Any, share: float, delta: float
) -> tuple[Array, Array]:
    """Returns scores and what is correct of a sample of the mixture."""
    known = to_numbers("scores", scores).astype("float64").reshape(-1)
    strange = to_numbers("unknown", unknown).astype("float64").reshape(-1)
    right = to_numbers("correct", correct).reshape(-1)
    if len(right) != len(known):
        refuse("correct", right.shape, f"of one entry for each of {len(known)} scores")
    # All of them, for not all are drawn.
    check_scores("scores", known)
    check_scores("unknown", strange)
    seed = hashlib.blake2b(known.tobytes() + right.tobytes(), digest_size=16).digest()
    first, second = draw_mixture(len(known), len(strange), share, delta, seed)
    return (
        np.concatenate([known[first], strange[second]]),
        np.concatenate([right[first], np.zeros(len(second), right.dtype)]),
    )


@dataclass(frozen=True)
class Mixture:
    """Known and unknown inputs, of which the latter belong to no class.

    Attributes:
        data: the known inputs, followed by the unknown ones with the label −1, which is
            no class: every answer is an error.
        n: number of known inputs, those that do not count included.
        share: π, the share of unknown inputs in use.
    """

    data: SelectionData
    n: int
    share: float

    @classmethod
    def of(cls, data: SelectionData, unknown: Array, share: float) -> "Mixture":
        """Joins checked data and the model's outputs for unknown inputs."""
        outputs, y_pred = data.outputs, to_floats(unknown)
        if outputs.multi_label or data.labels.ndim != 1:
            refuse(
                "unknown",
                y_pred.shape,
                "None unless each input has one label: an unknown input belongs to no "
                "class",
            )
        if y_pred.shape[1:] != data.y_pred.shape[1:]:
            allowed = f"inputs for which outputs are {data.y_pred.shape[1:]} each"
            refuse("unknown", y_pred.shape, allowed)
        if not np.isin(data.weight, (0, 1)).all():
            refuse("sample_weight", "other weights", "0 or 1 with `unknown`")
        check_finite(outputs.columns(y_pred, outputs.from_logits, np), "unknown")
        m = len(y_pred)
        last = 1 + int(data.units.max())
        joined = replace(
            data,
            y_pred=np.concatenate([data.y_pred, y_pred]),
            labels=np.append(data.labels, np.full(m, ABSTAINED)),
            weight=np.append(data.weight, np.ones(m)),
            units=np.append(data.units, last + np.arange(m)),
        )
        return cls(joined, len(data.y_pred), share)

    @property
    def _counts(self) -> tuple[Array, Array]:
        """Positions of the known inputs that count, and of the unknown ones."""
        known = np.flatnonzero(self.data.weight[: self.n] > 0)
        return known, np.arange(self.n, len(self.data.weight))

    def drawn(self, delta: float, seed: bytes) -> SelectionData:
        """Returns the data with only a sample of the mixture, see `draw_mixture`."""
        parts = self._counts
        found = draw_mixture(len(parts[0]), len(parts[1]), self.share, delta, seed)
        weight = np.zeros(len(self.data.weight))
        for part, index in zip(parts, found, strict=True):
            weight[part[index]] = 1
        return replace(self.data, weight=weight)

    def weighted(self) -> SelectionData:
        """Returns all of the data, with weights by which a share π is unknown."""
        weight = np.zeros(len(self.data.weight))
        for part, share in zip(self._counts, (1 - self.share, self.share), strict=True):
            weight[part] = share / len(part)
        return replace(self.data, weight=weight)

    def coverages(self, answer: dict[str, Array], threshold: float) -> dict[str, float]:
        """Returns the shares of known and of unknown inputs that are accepted."""
        accepted = answer["accepted"] & (answer["confidence"] >= threshold)
        known, unknown = (float(accepted[part].mean()) for part in self._counts)
        return {"known_coverage": known, "unknown_coverage": unknown}
