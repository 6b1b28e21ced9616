"""A picture of the paper's, with its caption, and the axes of a new one."""

import re
from typing import Any, NamedTuple

from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure and its text.

    Attributes:
        name: name of the file; begins with the paper's label.
        title: heading of its section.
        caption: what it shows, and from which data.
        figure: the matplotlib figure.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def axes(rows: int, columns: int, width: float = 5.0, height: float = 4.0) -> Any:
    """Returns the axes of a new figure, (rows, columns)."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure.subplots(rows, columns, squeeze=False)


def slug(text: str) -> str:
    """Returns a text as part of a file name."""
    return re.sub(r"[^\w.+]+", "-", text).strip("-").lower()
