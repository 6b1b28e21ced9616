"""Metrics as text tables, as plain data and as pandas DataFrames."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from keras_selcal.report.html.numbers import NONE, scaled

T = TypeVar("T", bound="NamedTuple")


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


class MetricTable(Mapping[str, T]):
    """Base class: intervals by the name of their metric."""

    _found: dict[str, T]

    def __getitem__(self, metric: str) -> T:
        return self._found[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return str(self)

    @abstractmethod
    def better(self, metric: str) -> str | None:
        """Returns what is better."""

    def _parts(self) -> dict[str, dict[str, Any]]:
        return {
            metric: {**row._asdict(), "better": self.better(metric)}
            for metric, row in self.items()
        }

    def _plain(self) -> dict[str, Any]:
        return {metric: plain(parts) for metric, parts in self._parts().items()}

    def to_dataframe(self) -> Any:
        """Returns a pandas DataFrame with one row for each metric."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "`to_dataframe` needs pandas: `pip install pandas`. `to_dict` does not."
            ) from error
        return pd.DataFrame.from_dict(self._parts(), orient="index").rename_axis(
            "metric"
        )
