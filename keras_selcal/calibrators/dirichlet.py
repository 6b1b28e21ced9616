"""Dirichlet calibration: a linear map of the log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import (
    check_choice,
    check_count,
    check_number,
    refuse,
)
from keras_selcal.calibrators._linear import log_softmax, mean_nll, minimize_nll
from keras_selcal.calibrators.base import Calibrator, Parameters

_FOLDS = 3


@serializable
class DirichletCalibration(Calibrator):
    """Dirichlet calibration: a linear map of the log-probabilities.

    Formula:

    ```
    p = softmax(W ln q + b),     q = softmax(z)
    ODIR: λ/(k(k − 1)) Σ_{i≠j} w_ij² + μ/k Σ b_j²
    L2:   λ/k² Σ w_ij² + μ/k Σ b_j²
    ```

    W and b minimise the mean negative log-likelihood plus the penalty, a convex
    problem, from W = I and b = 0. The predicted class may change. With k² + k
    parameters it needs a penalty and some tens of samples a class. Needs SciPy.

    Args:
        regularization: `"odir"` spares the diagonal of W, `"l2"` does not.
        lam: λ ≥ 0. Of several values, 3-fold cross-validation takes the one with the
            smallest negative log-likelihood. Defaults to k for ODIR and k/10 for L2,
            the powers of ten that did best on networks for CIFAR-10 and CIFAR-100.
        mu: μ ≥ 0. Defaults to λ.
        seed: of the folds.

    Attributes:
        lam_: the λ that was used, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 500)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(500, 3))
    >>> calibrator = DirichletCalibration(lam=[0.01, 1.0]).fit(logits, labels)
    >>> calibrator(logits).shape[-1]
    3

    Reference:

    - Kull et al., [Beyond temperature scaling: Obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration](https://arxiv.org/abs/1910.12656)
    """

    def __init__(
        self,
        regularization: str = "odir",
        lam: float | Sequence[float] | None = None,
        mu: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.regularization = check_choice(
            "regularization", regularization, ("odir", "l2")
        )
        allowed = "a number ≥ 0, several of them, or None"
        values = list(lam) if isinstance(lam, Sequence | np.ndarray) else [lam]
        if not values:
            refuse("lam", lam, allowed)
        self.lam: float | list[float] | None = None
        if lam is not None:
            numbers = [check_number("lam", v, allowed, least=0) for v in values]
            self.lam = numbers if len(numbers) > 1 else numbers[0]
        self.mu = None if mu is None else check_number("mu", mu, "≥ 0", least=0)
        self.seed = check_count("seed", seed, least=0)

    @property
    def lam_(self) -> float:
        return float(self.parameters["lam"])

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        log_q = log_softmax(logits)
        lam = self.lam
        if lam is None:
            k = log_q.shape[-1]
            lam = k if self.regularization == "odir" else k / 10
        elif isinstance(lam, list):
            lam = min(lam, key=lambda lam: self._held_out(log_q, labels, lam))
        W, b = self._solve(log_q, labels, lam)
        return {"W": W, "b": b, "lam": np.asarray(lam)}

    def _held_out(self, log_q: np.ndarray, labels: np.ndarray, lam: float) -> float:
        fold = np.arange(len(labels)) % _FOLDS
        np.random.default_rng(self.seed).shuffle(fold)
        nll = 0.0
        for held_out in range(_FOLDS):
            fitting, testing = fold != held_out, fold == held_out
            W, b = self._solve(log_q[fitting], labels[fitting], lam)
            if testing.any():
                nll += mean_nll(log_q[testing] @ W.T + b, labels[testing])
        return nll

    def _solve(
        self, log_q: np.ndarray, labels: np.ndarray, lam: float
    ) -> tuple[np.ndarray, np.ndarray]:
        k = log_q.shape[-1]
        if self.regularization == "odir":
            weight = lam / (k * (k - 1)) * (1 - np.eye(k))
        else:
            weight = np.full((k, k), lam / k**2)
        mu = lam if self.mu is None else self.mu
        weight = np.concatenate([weight.ravel(), np.full(k, mu / k)])

        def forward(theta: np.ndarray) -> np.ndarray:
            return np.asarray(log_q @ theta[: k * k].reshape(k, k).T + theta[k * k :])

        theta = minimize_nll(
            np.concatenate([np.eye(k).ravel(), np.zeros(k)]),
            forward,
            lambda g: np.concatenate([(g.T @ log_q).ravel(), g.sum(axis=0)]),
            labels,
            lambda theta: (float(weight @ theta**2), 2 * weight * theta),
        )
        return theta[: k * k].reshape(k, k), theta[k * k :]

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        log_q = ops.log_softmax(logits, axis=-1)
        mapped = ops.matmul(log_q, ops.transpose(parameters["W"])) + parameters["b"]
        return ops.softmax(mapped, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {
            "regularization": self.regularization,
            "lam": self.lam,
            "mu": self.mu,
            "seed": self.seed,
        }
