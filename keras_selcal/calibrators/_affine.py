"""Calibrators of the form softmax(W x + b), x features of the logits."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._extras import require
from keras_selcal._formulas.functions import (
    constant,
    is_masked,
    log_softmax,
    matmul,
    softmax,
)
from keras_selcal._validation import check_count, check_number
from keras_selcal.calibrators._parameters import Parameters
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled

_MOST_ITERATIONS = 1000
# Relative progress at which the final fit and the fits of the folds stop.
_TOLERANCE, _FOLD_TOLERANCE = 1e-9, 1e-6


class Affine(NamedTuple):
    """W, (k, k) or its diagonal (k,), and b (k,)."""

    W: np.ndarray
    b: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x * self.W if self.W.ndim == 1 else x @ self.W.T) + self.b


class Penalty(NamedTuple):
    """Σ on_w ∘ (W − centre)² + on_b Σ b²."""

    on_w: Any
    on_b: float
    centre: Any = 0.0


class AffineCalibrator(Calibrator):
    """Base class: p = softmax(W x + b).

    W and b minimise the mean negative log-likelihood plus a penalty, by L-BFGS. If
    several values of λ are given, cross-validation chooses one.
    """

    _diagonal = False

    def __init__(
        self,
        regularization: float | Sequence[float] | None = None,
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

        def check(value: Any) -> float:
            allowed = "a number ≥ 0, several of them, or None"
            return check_number("regularization", value, allowed, least=0)

        self.regularization: float | list[float] | None = None
        if (
            isinstance(regularization, Sequence | np.ndarray)
            and len(regularization) > 0
        ):
            self.regularization = [check(value) for value in regularization]
        elif regularization is not None:
            self.regularization = check(regularization)
        self.seed = check_count("seed", seed, least=0)

    @property
    def regularization_(self) -> Any:
        """The regularization that was used: a number; an array for multi-label data."""
        return self._value("regularization")

    @abstractmethod
    def _default_regularization(self, data: Labelled) -> float | Sequence[float]:
        """Returns the default λ, or several to choose from."""

    def _scale(self, data: Labelled) -> Parameters:
        """Returns the statistics of the fitting data that features and penalty need."""
        return {}

    @abstractmethod
    def _features(self, logits: Any, scale: Mapping[str, Any], xp: Any) -> Any:
        """Returns x (..., k) for logits (..., k), with `xp` `keras.ops` or NumPy."""

    @abstractmethod
    def _penalty(self, regularization: float, k: int, scale: Parameters) -> Penalty:
        """Returns the penalty for k classes."""

    def _start(self, k: int, scale: Parameters) -> Affine:
        """Returns the map that the fit starts from."""
        return Affine(np.ones(k) if self._diagonal else np.eye(k), np.zeros(k))

    def _fit(self, data: Labelled) -> Parameters:
        scale = self._scale(data)
        given = self.regularization
        regularization = self._default_regularization(data) if given is None else given
        if isinstance(regularization, Sequence):
            regularization = self._choose(data, scale, regularization)
        W, b = self._solve(data, scale, regularization)
        return {"W": W, "b": b, "regularization": np.asarray(regularization), **scale}

    def _choose(
        self, data: Labelled, scale: Parameters, candidates: Sequence[float]
    ) -> float:
        """Returns the λ with the smallest held-out negative log-likelihood.

        The search starts with the largest λ and stops where the likelihood falls again,
        because weak penalties take longest to fit. Each fit starts from the previous
        one.
        """
        folds = [(data[~fold], data[fold]) for fold in data.folds(self.seed)]
        best, least = max(candidates), math.inf
        starts: list[Affine | None] = [None] * len(folds)
        for regularization in sorted(candidates, reverse=True):
            total = 0.0
            for i, (fitting, held_out) in enumerate(folds):
                affine = starts[i] = self._solve(
                    fitting, scale, regularization, starts[i], _FOLD_TOLERANCE
                )
                log_p = log_softmax(self._mapped(held_out, scale, affine), np)
                of_label = log_p[np.arange(len(held_out)), held_out.labels]
                total -= float(held_out.weight @ of_label)
            if total >= least:
                break
            best, least = regularization, total
        return best

    def _mapped(self, data: Labelled, scale: Parameters, affine: Affine) -> np.ndarray:
        mapped = affine(self._features(data.logits.astype("float64"), scale, np))
        return mapped if data.masked is None else np.where(data.masked, -np.inf, mapped)

    def _solve(
        self,
        data: Labelled,
        scale: Parameters,
        regularization: float,
        start: Affine | None = None,
        tolerance: float = _TOLERANCE,
    ) -> Affine:
        optimize = require("scipy.optimize", "This calibrator")
        x = self._features(data.logits.astype("float64"), scale, np)
        n, k = x.shape
        # In units of 1/σ, W and b have the same curvature.
        sigma = math.sqrt(float(np.mean(x**2))) or 1.0
        weight = data.weight / data.total
        of_label = np.arange(n), data.labels
        masked = data.masked
        penalty = self._penalty(regularization, k, scale)
        W, b = start or self._start(k, scale)

        def unpack(theta: np.ndarray) -> Affine:
            return Affine(theta[:-k].reshape(W.shape) / sigma, theta[-k:])

        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            affine = unpack(theta)
            d = affine(x)
            if masked is not None:
                d[masked] = -np.inf
            d -= d.max(axis=-1, keepdims=True)
            d_y = d[of_label]
            residual = np.exp(d, out=d)
            total = residual.sum(axis=-1)
            nll = weight @ (np.log(total) - d_y)
            residual *= (weight / total)[:, None]
            residual[of_label] -= weight
            far = affine.W - penalty.centre
            value = np.sum(penalty.on_w * far**2)
            value += penalty.on_b * np.sum(affine.b**2)
            if self._diagonal:
                slope = np.einsum("ij,ij->j", residual, x)
            else:
                slope = residual.T @ x
            slope += 2 * penalty.on_w * far
            slope_b = residual.sum(axis=0) + 2 * penalty.on_b * affine.b
            gradient = np.concatenate([slope.ravel() / sigma, slope_b])
            return float(nll + value), gradient

        result = optimize.minimize(
            objective,
            np.concatenate([W.ravel() * sigma, b]),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxiter": _MOST_ITERATIONS,
                "maxfun": 2 * _MOST_ITERATIONS,
                "ftol": tolerance,
                "gtol": 1e-4 * math.sqrt(tolerance) / k,
            },
        )
        return unpack(np.asarray(result.x))

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        x = self._features(logits, parameters, xp)
        W, b = parameters["W"], parameters["b"]
        mapped = (x * W if self._diagonal else matmul(x, xp.transpose(W), xp)) + b
        impossible = constant(-math.inf, mapped, xp)
        return softmax(xp.where(is_masked(logits), impossible, mapped), xp)
