"""The choice of a calibrator by cross-validation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.functions import TINY, softmax
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._saving import class_in_files, name_in_files, serializable
from keras_selcal._validation import check_count, refuse
from keras_selcal.calibrators._parameters import Parameters, cast_all
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled, gather
from keras_selcal.calibrators.dirichlet import DirichletCalibration
from keras_selcal.calibrators.structured import (
    StructuredMatrixScaling,
    StructuredVectorScaling,
)
from keras_selcal.calibrators.temperature_scaling import TemperatureScaling

A = TypeVar("A", bound="AutoCalibration")

_FOLDS = 5
# A matrix is not a candidate if n·k² is above this: its fits would take minutes.
_MOST_PRODUCTS = 1e8
# The default candidates, the simplest first. All but the first need SciPy.
_DEFAULT: tuple[type[Calibrator], ...] = (
    TemperatureScaling,
    StructuredVectorScaling,
    StructuredMatrixScaling,
    DirichletCalibration,
)


class CandidateScore(NamedTuple):
    """How well a candidate of `AutoCalibration` predicts held-out samples.

    Attributes:
        name: name of its class, or its text where several have the same.
        log_loss: mean log loss in nats.
        standard_error: standard error of the difference from the best candidate.
    """

    name: str
    log_loss: float
    standard_error: float


@serializable
class Identity(Calibrator):
    """No calibration: p = softmax(z)."""

    _may_reorder = False

    def _fit(self, data: Labelled) -> Parameters:
        return {}

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        return softmax(logits, xp)


@serializable
class AutoCalibration(Calibrator):
    """Chooses a calibrator by cross-validation, and fits it.

    Formula:

    ```
    L_m = mean of −ln p_m(y) over the samples that m was not fitted on, in 5 folds
    chosen: the first m, in order of simplicity, with L_m − L_best ≤ SE(L_m − L_best)
    ```

    A complex candidate is chosen only if its held-out log loss is lower than the
    simpler ones' by more than one standard error of the paired difference. The identity
    (no calibration) is chosen if it is the best itself. The chosen candidate is fitted
    on all samples. The standard error takes samples for independent: of tokens, pixels
    or several images of a patient, a complex candidate is chosen more easily.

    Args:
        candidates: calibrators that are not fitted, the simplest first. The identity
            is always compared too. Defaults to `TemperatureScaling` and, with SciPy,
            `StructuredVectorScaling`; of more than two classes, if n·k² is at most 1e8,
            also `StructuredMatrixScaling` and `DirichletCalibration`.
        seed: seed of the folds.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`. One
            calibrator is chosen for all labels.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

    Attributes:
        chosen: name of the chosen candidate, once fitted.
        scores: list of (name, log_loss, standard_error) of each candidate.
        calibrator: the chosen calibrator, fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 9 * np.eye(3)[labels] + 9 * rng.normal(size=(500, 3))
    >>> calibrator = AutoCalibration().fit(logits, labels)
    >>> calibrator.chosen
    'TemperatureScaling'
    >>> for name, log_loss, standard_error in calibrator.scores[:2]:
    ...     print(f"{name}: {log_loss:.2f} ± {standard_error:.2f}")
    Identity: 2.70 ± 0.20
    TemperatureScaling: 0.78 ± 0.00

    References:
    - Hastie et al., The Elements of Statistical Learning, section 7.10 (the
      one-standard-error rule)
    """

    def __init__(
        self,
        candidates: Sequence[Calibrator] | None = None,
        *,
        seed: int = 0,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.seed = check_count("seed", seed, least=0)
        self.candidates: list[Calibrator] | None = None
        if candidates is not None:
            allowed = "a list of calibrators that are not fitted, or None"
            if not isinstance(candidates, Sequence):
                refuse("candidates", candidates, allowed)
            for each in candidates:
                nested = isinstance(each, AutoCalibration)
                if not isinstance(each, Calibrator) or each.fitted or nested:
                    refuse("candidates", candidates, allowed)
                for name, value in self.outputs.config("multi_label", "axis").items():
                    if getattr(each.outputs, name) != value:
                        refuse("candidates", each, f"calibrators of {name}={value}")
            self.candidates = list(candidates)

    @property
    def chosen(self) -> str | None:
        return None if self._fitted is None else self._fitted.chosen

    @property
    def scores(self) -> list[CandidateScore]:
        rows = [] if self._fitted is None else self._fitted.scores
        return [CandidateScore(*row) for row in rows]

    @property
    def calibrator(self) -> Calibrator:
        parameters = self.parameters
        return self._chosen()._with_parameters(parameters, self._fitted)

    def _chosen(self) -> Calibrator:
        assert self._fitted is not None
        return self._by_name()[str(self._fitted.chosen)]

    def _by_name(self) -> dict[str, Calibrator]:
        """Returns all candidates, the simplest first."""
        options = self.outputs.config("multi_label", "axis")
        candidates = self.candidates
        if candidates is None:
            candidates = [
                make(**options)
                for make in _DEFAULT
                if not (self.multi_label and make._single_label_because)
            ]
        candidates = [Identity(**options), *candidates]
        names = [type(each).__name__ for each in candidates]
        return {
            name if names.count(name) == 1 else repr(each).split(", not")[0][1:]: each
            for name, each in zip(names, candidates, strict=True)
        }

    def _suitable(self, data: Labelled) -> dict[str, Calibrator]:
        """Returns the candidates for such data."""
        found = self._by_name()
        if self.candidates is not None:
            return found
        k = data.num_classes
        matrix = k > 2 and len(data) * k**2 <= _MOST_PRODUCTS and data.masked is None
        scipy = find_spec("scipy") is not None
        return {
            name: each
            for name, each in found.items()
            if isinstance(each, Identity | TemperatureScaling)
            or (scipy and (matrix or not each._single_label_because))
        }

    def _choose(self, problems: list[Labelled]) -> tuple[str, list[CandidateScore]]:
        candidates = self._suitable(problems[0])
        losses = np.stack(
            [
                np.concatenate([held_out(each, data, self.seed) for data in problems])
                for each in candidates.values()
            ]
        )
        weight = np.concatenate([data.weight for data in problems])
        counts = ~np.isnan(losses).any(axis=0)
        if not counts.any():
            allowed = "of enough distinct samples for cross-validation"
            refuse("logits", f"{len(weight)} samples", allowed)
        mean, error = compare(losses[:, counts], weight[counts])
        names = list(candidates)
        rows = zip(names, mean.tolist(), error.tolist(), strict=True)
        return names[simplest(mean, error)], [CandidateScore(*row) for row in rows]

    def _fit_as(
        self: A, outputs: Outputs, logits: Any, labels: Any, sample_weight: Any
    ) -> A:
        problems, _ = gather(outputs, logits, labels, sample_weight)
        chosen, scores = self._choose(problems)
        best = self._by_name()[chosen]
        best = best.fitted_copy(logits, labels, sample_weight, outputs)
        assert best._fitted is not None
        self._parameters = best.parameters
        self._fitted = replace(
            best._fitted, chosen=chosen, scores=[list(row) for row in scores]
        )
        return self

    def _fit(self, data: Labelled) -> Parameters:
        chosen, _ = self._choose([data])
        return self._by_name()[chosen]._fit(data)

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        return self._chosen()._apply(logits, parameters, xp)

    def _accepts(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        return self._chosen()._accepts(logits, parameters, xp)

    def __repr__(self) -> str:
        return super().__repr__().replace("fitted: ", f"fitted: chosen={self.chosen}, ")

    def get_config(self) -> dict[str, Any]:
        candidates = self.candidates
        return {
            **super().get_config(),
            "candidates": candidates
            and [
                {"class": name_in_files(type(each)), "config": each.get_config()}
                for each in candidates
            ],
        }

    @classmethod
    def from_config(cls: type[A], config: dict[str, Any]) -> A:
        candidates = config["candidates"] and [
            class_in_files(each["class"]).from_config(each["config"])
            for each in config["candidates"]
        ]
        return cls(**{**config, "candidates": candidates})


def held_out(calibrator: Calibrator, data: Labelled, seed: int) -> Array:
    """Returns −ln p(y) of each sample, (n,), by fits to the other folds; NaN in a fold
    that holds all samples.
    """
    losses = np.full(len(data), math.nan)
    for rows in data.folds(seed, _FOLDS):
        inside = data[rows]
        parameters = cast_all(calibrator._fit(data[~rows]), "float64", np)
        with np.errstate(all="ignore"):
            p = calibrator._apply(inside.logits.astype("float64"), parameters, np)
        of_label = p[np.arange(len(inside)), inside.labels]
        losses[rows] = -np.log(np.maximum(of_label, TINY))
    return losses


def compare(losses: Array, weight: Array) -> tuple[Array, Array]:
    """Returns the mean loss of each candidate, and the standard error of its difference
    from the lowest, for losses (candidates, n).
    """
    n = weight.sum()
    mean = losses @ weight / n
    best = mean.argmin()
    spread = (losses - losses[best] - (mean - mean[best])[:, None]) ** 2 @ weight
    return mean, np.sqrt(spread / n / max(n - 1, 1))


def simplest(mean: Array, error: Array) -> int:
    """Returns the first candidate within one standard error of the best, but the
    identity, the first of all, only if it is the best: few samples cannot show the
    gain of temperature scaling, and lose it.
    """
    if mean.argmin() == 0:
        return 0
    return 1 + int(np.argmax((mean - mean.min() <= error)[1:]))
