"""SmoothECE of residuals on a grid."""

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.functions import TINY

# exp(−9²/2) = 3e-18: what a Gaussian leaves of a frequency πk with πkσ > 9.
_FARTHEST = 9.0
# A round ends the search if smECE_σ and σ, of which the one falls and the other rises,
# differ by no more: σ* lies between them.
_CLOSE = 1e-13


def smooth_errors(p: Array, residual: Array, steps: int, rounds: int) -> Array:
    """Returns smECE for each row of residuals.

    Args:
        p: confidences in [0, 1], (n,).
        residual: w (p̂ − 1[ŷ = y]) / Σ w, (rows, n).
        steps: number of steps of the grid on [0, 1].
        rounds: number of rounds of the search for σ*, which starts with [0, 1].
    """
    spectrum = np.fft.rfft(_even(_on_grid(p, residual, steps)))
    frequency = np.pi * np.arange(steps + 1)

    def error(sigma: Array) -> Array:
        # The narrowest keeps most; a row of NaN stays NaN, and does not count.
        removed = frequency * np.fmin.reduce(sigma) > _FARTHEST
        kept = np.count_nonzero(~removed)
        # The transform of a Gaussian; period 2 makes it the reflected one.
        gaussian = np.exp(-0.5 * (frequency[:kept] * sigma[:, None]) ** 2)
        curve = np.fft.irfft(spectrum[:, :kept] * gaussian, 2 * steps)
        curve = np.abs(curve[:, : steps + 1])
        # The mirror image doubles each residual, and it is spread over period 2.
        return np.asarray(curve.sum(axis=-1) - (curve[:, 0] + curve[:, -1]) / 2)

    # Regula falsi for smECE_σ − σ, which falls: ≥ 0 at `low`, ≤ 0 at `high`. An end
    # that stays twice has its height halved (Illinois), so that both ends close in.
    low, high = np.zeros(len(residual)), np.ones(len(residual))
    value = error(low)
    up, down = value, error(high) - high
    above = np.ones(len(residual), bool)
    for _ in range(rounds):
        sigma = high - down * (high - low) / np.minimum(down - up, -TINY)
        value = error(sigma)
        if not (np.abs(value - sigma) > _CLOSE).any():
            break
        before, above = above, value > sigma
        factor = np.where(above == before, 0.5, 1.0)
        up = np.where(above, value - sigma, factor * up)
        down = np.where(above, factor * down, value - sigma)
        low, high = np.where(above, sigma, low), np.where(above, high, sigma)
    return value


def _on_grid(p: Array, residual: Array, steps: int) -> Array:
    """Returns the residuals, each split between the two nearest grid points."""
    position = p * steps
    left = np.minimum(position.astype(np.intp), steps - 1)
    share = position - left
    shape = (len(residual), steps + 1)
    size = shape[0] * shape[1]
    index = (left + np.arange(0, size, steps + 1)[:, None]).reshape(-1)
    grid = np.bincount(index, (residual * (1 - share)).reshape(-1), size)
    grid += np.bincount(index + 1, (residual * share).reshape(-1), size)
    return grid.reshape(shape)


def _even(grid: Array) -> Array:
    """Returns one period of each row mirrored at both ends."""
    ends = np.zeros_like(grid)
    # A point on the mirror coincides with its image and counts twice.
    ends[:, 0], ends[:, -1] = grid[:, 0], grid[:, -1]
    doubled = grid + ends
    return np.concatenate([doubled, doubled[:, -2:0:-1]], axis=-1)
