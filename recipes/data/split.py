"""Seeded, stratified hold-out."""

import numpy as np


def holdout_size(n: int, most: int | None = None) -> int:
    """Returns how many of `n` samples are held out: a fifth, or `most` if fewer."""
    return n // 5 if most is None else min(n // 5, most)


def stratified_holdout(y, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices kept and the indices held out, both ascending.

    Exactly `size` samples are held out, of each class its share (rounded by the
    largest remainders), and at least one sample of each class is kept.

    Args:
        y: class indices, (n,).
        size: number of samples to hold out.
        seed: which samples of a class are taken.

    Example:
    >>> kept, held = stratified_holdout([0, 0, 0, 0, 1, 1, 1, 1], 2, seed=0)
    >>> len(kept), len(held)
    (6, 2)
    """
    y = np.asarray(y)
    classes, of_class, counts = np.unique(y, return_inverse=True, return_counts=True)
    if not 0 <= size <= len(y) - len(classes):
        raise ValueError(
            "`size` must leave at least one sample of each class: from 0 to "
            f"{len(y) - len(classes)} here. Received: size={size}"
        )
    quota = size * counts / len(y)
    taken = np.minimum(np.floor(quota), counts - 1).astype(int)
    while (missing := size - taken.sum()) > 0:
        wanting = np.where(taken < counts - 1, quota - taken, -np.inf)
        taken[np.argsort(-wanting, kind="stable")[:missing]] += 1
        taken = np.minimum(taken, counts - 1)
    rng = np.random.default_rng(seed)
    held = np.zeros(len(y), bool)
    for c, number in enumerate(taken):
        held[rng.choice(np.flatnonzero(of_class == c), number, replace=False)] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
