"""What the paper's figures share: a picture with its caption, axes and colours."""

from typing import Any, NamedTuple

from matplotlib.figure import Figure

# From the palette of Okabe & Ito, which colour-blind readers can tell apart.
BLUE, VERMILLION, GREEN, BLACK, PALE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#000000",
    "#C9C9C9",
)


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


def finish(ax: Any, x_label: str, y_label: str, **legend: Any) -> None:
    """Labels the axes, and adds a faint grid and the legend."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, color=PALE, linewidth=0.5, alpha=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize="small", framealpha=0.9, **legend)
