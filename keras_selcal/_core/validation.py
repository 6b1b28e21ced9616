"""Argument checks: each error names the argument, its value and the allowed values."""

import math
from collections.abc import Collection
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def refuse(argument: str, value: Any, allowed: str) -> NoReturn:
    """Raises the error for a bad argument, in the one form that the library uses."""
    raise ValueError(f"`{argument}` must be {allowed}. Received: {argument}={value!r}")


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
    """Returns `value` as a float inside the given bounds; NaN is in none."""
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
