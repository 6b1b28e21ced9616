"""Argument checks: each error names the argument, its value and the allowed values."""

import math
import warnings
from collections.abc import Collection, Set
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")

# Probabilities that were rounded to bfloat16 sum to 1 within 0.6 %.
SUM_TOLERANCE = 0.01

# TensorFlow's softmax in bfloat16 misses 1 by 2 % with 1,000 classes: no reason to end
# a training in NaN.
TENSOR_SUM_TOLERANCE = 0.05

# How far a probability may lie outside [0, 1]: rounding, not logits.
RANGE_TOLERANCE = 1e-3

# This many rows do not all look like something else by chance.
_MANY_ROWS = 10

# So many rows show what all are.
_ENOUGH_ROWS = 1000

# Characters of a value in an error: NumPy prints up to 1,000 numbers of an array.
_MOST_SHOWN = 500


def refuse(argument: str, value: Any, allowed: str) -> NoReturn:
    """Raises the error for a bad argument; all errors of the library have its form."""
    received = repr(value)
    if len(received) > _MOST_SHOWN:
        received = received[:_MOST_SHOWN] + "…"
    raise ValueError(f"`{argument}` must be {allowed}. Received: {argument}={received}")


def check_number(
    argument: str,
    value: Any,
    allowed: str,
    *,
    above: float | None = None,
    below: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> float:
    """Returns `value` as a float if it is within the bounds and not NaN."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        refuse(argument, value, allowed)
    inside = (
        number == number
        and (above is None or number > above)
        and (below is None or number < below)
        and (least is None or number >= least)
        and (most is None or number <= most)
    )
    if not inside:
        refuse(argument, value, allowed)
    return number


def check_count(argument: str, value: Any, least: int = 1) -> int:
    """Returns `value` as an int of at least `least`."""
    allowed = f"an integer of at least {least}"
    try:
        count = int(value)
    except (OverflowError, TypeError, ValueError):
        refuse(argument, value, allowed)
    if isinstance(value, bool) or count != value or count < least:
        refuse(argument, value, allowed)
    return count


def check_choice(argument: str, value: T, choices: Collection[T]) -> T:
    """Returns `value` if it is one of `choices`."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        refuse(argument, value, f"one of {listed}")
    return value


def check_weights(weight: np.ndarray) -> None:
    """Checks the values of sample weights."""
    bad = ~((weight >= 0) & (weight < np.inf))
    if bad.any():
        refuse(
            "sample_weight", _first(weight, bad), "finite numbers of at least 0 each"
        )


def check_labels(
    labels: np.ndarray, sparse: bool, k: int, events: bool, argument: str = "y_true"
) -> None:
    """Checks the values of labels, indices (n,) or distributions (n, k)."""
    if sparse:
        bad = ~((labels >= 0) & (labels < k))
        if labels.dtype.kind == "f":
            bad |= labels != np.floor(labels)
        allowed = "0 or 1" if events else f"whole class indices in 0 … {k - 1}"
        remedy = "; for labels to be left out pass `ignore_class=` or a weight of 0"
        if bad.any():
            refuse(argument, _first(labels, bad), allowed + remedy)
        return
    if events:
        y = labels[:, 1]
        bad = ~((y >= 0) & (y <= 1))
        if bad.any():
            refuse(
                argument,
                _first(y, bad),
                "0 or 1, or soft labels in [0, 1], for sigmoid outputs (class −1 of "
                "−1/+1 is 0; for labels to be left out pass `ignore_class=`)",
            )
        return
    bad = ~(np.abs(labels.sum(axis=-1) - 1) <= SUM_TOLERANCE)
    bad |= ~(labels >= -RANGE_TOLERANCE).all(axis=-1)
    if bad.any():
        refuse(
            argument,
            _first(labels, bad),
            "rows that sum to 1 and hold no negative number (pass `multi_label=True` "
            "if several labels can be true at once)",
        )


def check_probabilities(rows: np.ndarray, argument: str = "y_pred") -> None:
    """Checks the values of probabilities (n, k); rows with NaN are not checked."""
    bad = _no_probabilities(rows)
    if bad.any():
        refuse(
            argument,
            _first(rows, bad),
            "probabilities in [0, 1] that sum to 1 in each row (pass "
            "`from_logits=True` if they are logits, `multi_label=True` if they are "
            "independent sigmoids)",
        )


def are_probabilities(rows: np.ndarray) -> bool:
    """Returns whether all rows (n, k) without NaN are probabilities."""
    return not _no_probabilities(rows).any()


def _no_probabilities(rows: np.ndarray) -> np.ndarray:
    """Returns which rows (n, k) without NaN are no probabilities."""
    if len(rows) == 0:
        return np.zeros(0, bool)
    low, high = -RANGE_TOLERANCE, 1 + RANGE_TOLERANCE
    with np.errstate(invalid="ignore"):
        # Over a short last axis, NumPy's product is many times faster than its sum.
        sums = rows @ np.ones(rows.shape[-1], rows.dtype)
        bad = np.abs(sums - 1) > SUM_TOLERANCE
        least = rows.min()
        # Where none is negative, no value exceeds its row's sum, rounding included.
        bounded = least >= 0 and sums.max() <= high
        # The extremes of all rows are cheap; only with NaN each row is looked at.
        if not bounded and not (least >= low and rows.max() <= high):
            bad |= (rows.min(axis=-1) < low) | (rows.max(axis=-1) > high)
    return np.asarray(bad)


def check_logits(rows: np.ndarray, events: bool, argument: str = "y_pred") -> None:
    """Checks that logits (n, k) are not probabilities.

    A few logits of sigmoids can lie in [0, 1] by chance; for many, a warning is given.
    """
    if not look_like_probabilities(rows, events):
        return
    if events:
        warnings.warn(
            "All logits lie in [0, 1]. If they are probabilities of sigmoid units, "
            "pass `from_logits=False`.",
            stacklevel=5,
        )
        return
    refuse(
        argument,
        rows[0].tolist(),
        "logits; each of these rows is non-negative and sums to 1: pass "
        "`from_logits=False` if they are probabilities",
    )


def look_like_probabilities(rows: np.ndarray, events: bool) -> bool:
    """Returns whether logits (n, k) seem to be probabilities: all of them sum to 1, or
    many rows of sigmoids lie in [0, 1].

    Equal rows, rows of 0 and 1 only, and NaN are not looked at.
    """
    if len(rows) == 0 or not (rows.min() >= 0 and rows.max() <= 1 + RANGE_TOLERANCE):
        return False
    if (rows == rows[0]).all() or ((rows == 0) | (rows == 1)).all():
        return False
    if events:
        return len(rows) >= _MANY_ROWS
    sums = rows.sum(axis=-1, dtype="float64")
    return bool((np.abs(sums - 1) <= SUM_TOLERANCE).all())


def warn_of_second_softmax(rows: np.ndarray) -> None:
    """Warns if probabilities (n, k) are the softmax of probabilities.

    If q = softmax(p), then ln q = p + c, and s = Σ_j (ln q_j − min ln q) = 1 − k min p.
    No s is above 1, and where a p is nearly 0, s is nearly 1. Predictions of an
    untrained network have small s, but no accumulation at 1.
    """
    rows = rows[:_ENOUGH_ROWS]
    k = rows.shape[-1]
    # Most networks are more confident than any softmax of probabilities.
    most = math.e / (math.e + k - 1)
    if len(rows) < _MANY_ROWS or not (rows.min() > 0 and rows.max() < 1.001 * most):
        return
    log_p = np.log(rows.astype("float64"))
    s = (log_p - log_p.min(axis=-1, keepdims=True)).sum(axis=-1)
    if s.max() < 1.001 and np.mean(s > 0.999) > 0.1 and (rows != rows[0]).any():
        warnings.warn(
            "These probabilities look like the result of two softmax or sigmoid "
            f"functions in a row: none is above e/(e + k − 1) = {most:.3g}. Check "
            "whether the model already ends in one.",
            stacklevel=5,
        )


def warn_if_swapped(
    labels: np.ndarray, rows: np.ndarray, names: tuple[str, str]
) -> None:
    """Warns if predictions (n, k) are 0 and 1 only, and labels (n, k) are not."""
    if len(rows) < _MANY_ROWS or _is_binary(labels) or not _is_binary(rows):
        return
    warnings.warn(
        f"`{names[1]}` holds only 0 and 1, and `{names[0]}` other numbers: are the two "
        "arguments swapped?",
        stacklevel=5,
    )


def _is_binary(rows: np.ndarray) -> bool:
    for part in (rows[:_ENOUGH_ROWS], rows):
        if not ((part == 0) | (part == 1)).all():
            return False
    return True


def _first(values: np.ndarray, bad: np.ndarray) -> Any:
    """Returns the first bad entry or row."""
    return values[bad][0].tolist()


def check_not_empty(argument: str, array: Any) -> None:
    """Checks that an array holds something."""
    if 0 in array.shape:
        empty = f"an empty array of shape {tuple(array.shape)}"
        refuse(argument, empty, "an array of at least one sample")


def check_unmasked(argument: str, array: Any) -> None:
    """Checks that an array has no mask of NumPy's, which most functions would drop."""
    if isinstance(array, np.ma.MaskedArray):
        remedy = "an array without a mask; use `sample_weight` 0 to leave samples out"
        refuse(argument, type(array), remedy)


def check_groups(groups: np.ndarray) -> np.ndarray:
    """Returns the names or numbers of groups, if they can be sorted."""
    check_unmasked("groups", groups)
    if groups.dtype.kind == "O":
        try:
            np.unique(groups)
        except TypeError:
            some = groups.reshape(-1)[:2].tolist()
            refuse("groups", some, "numbers or words, not a mixture")
    return groups


def check_class_names(class_names: Any, num_classes: int) -> list[str] | None:
    """Returns a name for each class, or None."""
    if class_names is None:
        return None
    allowed = f"{num_classes} names, one for each class"
    if isinstance(class_names, str | Set) or not isinstance(class_names, Collection):
        refuse("class_names", class_names, allowed)
    names = [str(name) for name in class_names]
    if len(names) != num_classes:
        refuse("class_names", names, allowed)
    return names
