"""Derivatives of the soft CDF in NumPy, where it computes for PyTorch (`host.py`)."""

from typing import Any

import numpy as np

from keras_selcal._backend.ops import sum_by_cell


def gradient_of_scores(
    cdf: Any, u: Any, gradient: Any, count: Any, between: tuple[Any, Any, Any] | None
) -> Any:
    """Returns the gradient with respect to the scores of a function of Ĝ at them.

    Args:
        cdf: a `SoftCDF` of NumPy arrays.
        u: the scores in [0, 1], (rows, n).
        gradient: that with respect to Ĝ(u), (rows, n).
        count: how many samples each score stands for, (rows, n).
        between: the bin centres below and above each score, and how far on it is
            between them, if their counts have a gradient; None if they have none.
    """
    of_points = gradient * _slope(cdf, u)
    if between is None:
        return of_points
    low, high, offset = between
    of_counts = _gradient_of_shares(cdf, u, gradient) / cdf.n
    rise = np.take_along_axis(of_counts, high, -1)
    rise -= np.take_along_axis(of_counts, low, -1)
    shared = (offset >= 0.0) & (offset <= 1.0)
    rise *= count * of_counts.shape[-1]
    return of_points + np.where(shared, rise, 0.0)


def _slope(cdf: Any, u: Any) -> Any:
    """Returns Ĝ′(u)."""
    if not cdf.num_pieces:
        step = cdf.sigmoids(u)
        rise = np.sum(step * (1.0 - step) * cdf.shares[:, None], axis=-1)
        return rise / cdf.smoothing
    _, t, c = cdf.piece(u)
    rise = c[..., 1] + t * (2.0 * c[..., 2] + 3.0 * t * c[..., 3])
    return rise * cdf.num_pieces


def _gradient_of_shares(cdf: Any, u: Any, gradient: Any) -> Any:
    """Returns Σ_i g_i ∂Ĝ(u_i)/∂(h_m/n), (rows, M)."""
    if not cdf.num_pieces:
        return np.matmul(gradient[:, None], cdf.sigmoids(u))[:, 0]
    piece, t, _ = cdf.piece(u)

    def at_nodes(begin: Any, end: Any) -> Any:
        nodes = cdf.num_pieces + 1
        sums = sum_by_cell(gradient * begin, piece, nodes, np)
        return sums + sum_by_cell(gradient * end, piece + 1, nodes, np)

    # Ĝ and its slope at both ends of a piece, times these, add up to Ĝ inside.
    end = t * t * (3.0 - 2.0 * t)
    of_values = at_nodes(1.0 - end, end)
    of_slopes = at_nodes(t * (1.0 - t) ** 2, t * t * (t - 1.0))
    of_slopes /= cdf.smoothing * cdf.num_pieces
    step = cdf.steps
    return of_values @ step + of_slopes @ (step * (1.0 - step))
