"""Losses of answers; their mean among the accepted ones is a risk."""

from typing import Any

import numpy as np

from keras_selcal._arrays import to_numbers
from keras_selcal._validation import check_choice, refuse
from keras_selcal.selective.costs import check_costs


def answer_losses(
    y_true: Any, labels: Any, *, costs: Any = None, per: str | None = None
) -> np.ndarray:
    """Computes the loss of each answer, for `select_threshold(losses=…)`.

    Formula:

    With true class y_i and answer ŷ_i,

    ```
    l_i = 1{ŷ_i ≠ y_i},        with costs C:  l_i = C[y_i, ŷ_i] / max C
    ```

    A target of at most c units of cost is then `risk=c / costs.max()`. With
    `per="class"` each class has a risk of its own, the mean loss of its accepted
    samples, and with `per="answer"` the mean loss of the accepted samples with that
    answer (1 − precision of the class).

    Args:
        y_true: class indices (n,).
        labels: the answers, class indices (n,).
        costs: (k, k), at least 0: the cost of answer ŷ (column) if the class is y
            (row). By default an error costs 1.
        per: None, `"class"` or `"answer"`.

    Returns:
        Losses (n,), or (n, k) with `per`: NaN in the columns of other classes, which
        means that the sample does not count in their risk. k is the number of rows of
        `costs`, or by default the largest class + 1.

    Example:
    >>> answer_losses([0, 1, 1], [0, 1, 0])
    array([0., 0., 1.])
    >>> answer_losses([0, 1, 1], [0, 1, 0], costs=[[0, 1], [4, 0]], per="class")
    array([[ 0., nan],
           [nan,  0.],
           [nan,  1.]])
    """
    y = to_numbers("y_true", y_true).reshape(-1)
    answers = to_numbers("labels", labels).reshape(-1)
    if len(y) != len(answers) or not len(y):
        refuse("labels", answers.shape, f"one for each of {len(y)} samples")
    k = 1 + int(max(y.max(), answers.max()))
    if costs is not None:
        costs = check_costs(costs, None, square=True)
        if not (costs >= 0).all() or not costs.any():
            refuse("costs", costs.tolist(), "at least 0, and not all 0")
        k = len(costs)
    for name, part in (("y_true", y), ("labels", answers)):
        if not np.isin(part, np.arange(k)).all():
            refuse(name, part, f"class indices from 0 to {k - 1}")
    y, answers = y.astype("int64"), answers.astype("int64")
    losses = (y != answers) * 1.0
    if costs is not None:
        losses = costs[y, answers] / costs.max()
    if per is None:
        return np.asarray(losses)
    check_choice("per", per, ("class", "answer"))
    counts = (y if per == "class" else answers)[:, None] == np.arange(k)
    return np.where(counts, losses[:, None], np.nan)


def check_losses(correct: Any, losses: Any, binary: bool) -> np.ndarray:
    """Returns losses (n, q) of what `select_threshold` is given."""
    if correct is not None:
        if not np.isin(correct, (0, 1)).all():
            refuse("correct", correct, "boolean")
        return np.asarray((correct == 0)[:, None], "float64")
    values = np.asarray(losses.astype("float64"))
    check_range(values, binary)
    values = values[:, None] if values.ndim == 1 else values
    if np.isnan(values).all(axis=0).any():
        refuse("losses", "a column of NaN", "numbers for at least one sample of a risk")
    return values


def check_range(losses: np.ndarray, binary: bool) -> None:
    """Checks that losses are in [0, 1] or NaN, and 0 or 1 if they are binary."""
    known = losses[~np.isnan(losses)]
    if ((known < 0) | (known > 1)).any():
        refuse(
            "losses",
            known.max() if known.max() > 1 else known.min(),
            "in [0, 1], or NaN where a sample does not count in a risk: divide costs "
            "and their target by the largest cost",
        )
    if binary and not np.isin(known, (0, 1)).all():
        refuse("binary", binary, "False: some losses are between 0 and 1")
