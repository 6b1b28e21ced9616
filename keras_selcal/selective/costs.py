"""Decisions of least expected cost."""

from typing import Any

import numpy as np

from keras_selcal._arrays import Array, to_numbers
from keras_selcal._formulas.functions import first_largest, matmul, take_class
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import (
    check_not_empty,
    check_number,
    check_probabilities,
    refuse,
)
from keras_selcal.selective.record import ABSTAINED


def least_cost(
    probabilities: Any, costs: Any, *, abstain: float | None = None
) -> Array:
    """Returns the decision of least expected cost, or −1 where abstaining is cheaper.

    Formula:

    With p the probabilities of the k classes, C[c, d] the cost of decision d if c is
    the true class, and a the cost of an abstention,

    ```
    R_d = Σ_c p_c C[c, d]
    decision = argmin_d R_d   if min_d R_d ≤ a,     −1 elsewhere
    ```

    Of equal costs the first decision is taken. With costs of 0 for right and 1 for
    wrong answers this is the most probable class, and −1 where its probability is below
    1 − a. The rule is only as good as the probabilities: calibrate them first.

    Args:
        probabilities: (..., k); (n,) or (..., 1) of one sigmoid unit, whose classes are
            (1 − p, p).
        costs: C, (k, m): **rows are true classes, columns are decisions**. The m
            decisions may be the classes, in their order, or others. Gains are negative
            costs.
        abstain: a, the cost of an abstention. By default there are none.

    Returns:
        Decisions (...), integers; −1 also where a probability is NaN.

    Example:
    >>> costs = [[0, 1], [10, 0]]  # to answer 0 where the class is 1 costs 10
    >>> p = [[0.95, 0.05], [0.85, 0.15], [0.5, 0.5]]
    >>> least_cost(p, costs)
    array([0, 1, 1], dtype=int32)
    >>> least_cost(p, costs, abstain=0.6)
    array([ 0, -1,  1], dtype=int32)

    References:
    - Chow, [On Optimum Recognition Error and Reject
      Tradeoff](https://doi.org/10.1109/TIT.1970.1054406)
    - Elkan, [The Foundations of Cost-Sensitive
      Learning](https://www.ijcai.org/Proceedings/01-1/Papers/141.pdf)
    """
    values = to_numbers("probabilities", probabilities).astype("float64")
    check_not_empty("probabilities", values)
    if values.ndim == 0:
        refuse("probabilities", values, "of shape (..., k), or (n,) for one sigmoid")
    columns = Outputs().columns(values, False, np)
    k = columns.shape[-1]
    check_probabilities(columns.reshape(-1, k), "probabilities")
    matrix = check_costs(costs, k)
    limit = np.inf if abstain is None else check_abstain("abstain", abstain)
    decisions, least = cheapest(columns, matrix, np)
    return np.where(least <= limit, decisions, ABSTAINED).astype("int32")


def cheapest(p: Any, costs: Any, xp: Any) -> tuple[Any, Any]:
    """Returns the decisions of least expected cost, and that cost, both (...).

    Args:
        p: probabilities (..., k).
        costs: (k, m).
        xp: `keras.ops` or NumPy.
    """
    gains = -matmul(p, costs, xp)
    best = first_largest(gains, xp)
    return best[..., 0], -take_class(gains, best, xp)[..., 0]


def check_costs(costs: Any, k: int | None, square: bool = False) -> Array:
    """Returns costs (k, m) in float64, or (k, k) if they must be square."""
    matrix = to_numbers("costs", costs).astype("float64")
    rows = "k" if k is None else k
    allowed = (
        f"of shape ({rows}, {rows if square else 'm'}): true classes in rows, "
        f"{'answers' if square else 'decisions'} in columns"
    )
    fits = matrix.ndim == 2 and 0 not in matrix.shape and k in (None, len(matrix))
    if not fits or (square and matrix.shape[0] != matrix.shape[1]):
        refuse("costs", matrix.shape, allowed)
    bad = matrix[~np.isfinite(matrix)]
    if len(bad):
        refuse("costs", float(bad[0]), "finite numbers")
    return matrix


def check_abstain(argument: str, value: Any) -> float:
    """Returns the checked cost of an abstention."""
    number = check_number(argument, value, "a finite number, or None")
    if not np.isfinite(number):
        refuse(argument, value, "a finite number, or None for no abstentions")
    return number
