"""The convex fit that vector scaling and Dirichlet calibration share."""

from collections.abc import Callable

import numpy as np

from keras_selcal.calibrators.base import require

# Maps θ to logits (n, k), and ∂NLL/∂logits (n, k) back to ∂NLL/∂θ.
Forward = Callable[[np.ndarray], np.ndarray]
Backward = Callable[[np.ndarray], np.ndarray]
# Maps θ to a penalty and its gradient.
Penalty = Callable[[np.ndarray], tuple[float, np.ndarray]]

_MOST_ITERATIONS = 1000


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns ln softmax(z) in float64."""
    d = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    return np.asarray(d - np.log(np.exp(d).sum(axis=-1, keepdims=True)))


def mean_nll(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean negative log-likelihood of the labels."""
    log_p = np.take_along_axis(log_softmax(logits), labels[:, None], -1)
    return float(-log_p.mean())


def minimize_nll(
    start: np.ndarray,
    forward: Forward,
    backward: Backward,
    labels: np.ndarray,
    penalty: Penalty,
) -> np.ndarray:
    """Returns the θ that minimises NLL(softmax(forward(θ))) + penalty(θ), by L-BFGS."""
    optimize = require("scipy.optimize")
    n = len(labels)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = log_softmax(forward(theta))
        nll = -log_p[np.arange(n), labels].mean()
        residual = np.exp(log_p)
        residual[np.arange(n), labels] -= 1
        value, gradient = penalty(theta)
        return nll + value, backward(residual / n) + gradient

    result = optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _MOST_ITERATIONS, "maxfun": 2 * _MOST_ITERATIONS},
    )
    return np.asarray(result.x)
