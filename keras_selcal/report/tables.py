"""Metrics as text tables, as plain data and as pandas DataFrames."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_selcal.report.html.numbers import NONE, scaled


def bracket(low: float, high: float, unit: str, sign: str = "") -> str:
    """Returns an interval of a text table, a dash if there is none."""
    if math.isnan(low):
        return NONE
    return f"[{scaled(low, unit, sign)}, {scaled(high, unit, sign)}]"


def unit_of(unit: str) -> str:
    """Returns the unit in a text table."""
    return "%" if unit == "share" else unit


def aligned(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: set[int]
) -> list[str]:
    """Returns the lines of a table; the columns in `right` are right-aligned."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def plain(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values that JSON can hold: None for numbers that are not finite."""
    return {
        name: None if isinstance(part, float) and not math.isfinite(part) else part
        for name, part in parts.items()
    }


def dataframe(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns a pandas DataFrame with one row for each metric."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "`to_dataframe` needs pandas: `pip install pandas`. `to_dict` does not."
        ) from error
    return pd.DataFrame.from_dict(dict(rows), orient="index").rename_axis("metric")
