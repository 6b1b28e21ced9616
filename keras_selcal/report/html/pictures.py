"""Reliability and risk-coverage plots as SVG, coloured by the style sheet."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from keras_selcal._arrays import Array
from keras_selcal._formulas.ranking import best_ranking
from keras_selcal.functional.reliability import ReliabilityBins
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import line_style
from keras_selcal.report.html.numbers import count, percent, round_percent

_WIDTH, _HEIGHT = 420, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 12, 48
# A strip below the axes of a reliability plot shows the samples in each bin.
_STRIP, _GAP = 40, 8

# Points of a drawn line: about as many as pixels can show.
_MOST_POINTS = 300


class Axes:
    """Maps data to the picture's coordinates, and draws what frames them."""

    def __init__(self, top_value: float, foot: int = 0) -> None:
        self.top_value = top_value
        self.bottom = _HEIGHT - _BOTTOM - foot

    def x(self, value: float) -> float:
        return _LEFT + value * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        height = self.bottom - _TOP
        return self.bottom - min(value / self.top_value, 1.05) * height

    def frame(self, y_ticks: Sequence[float], x_label: str, y_label: str) -> str:
        """Returns grid, ticks and labels."""
        right, foot = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for tick in y_ticks:
            y = self.y(tick)
            parts.append(
                f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4.5:.1f}" text-anchor="end">'
                f"{round_percent(tick)}</text>"
            )
        for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
            anchor = "end" if tick == 1 else "middle"
            x = self.x(tick)
            parts.append(
                f'<path class="tick" d="M{x:.1f} {foot}v4"/>'
                f'<text x="{min(x, right) + (6 if tick == 1 else 0):.1f}" '
                f'y="{foot + 19}" text-anchor="{anchor}">{round_percent(tick)}</text>'
            )
        middle = (_LEFT + right) / 2
        centre = (_TOP + self.bottom) / 2
        parts.append(
            f'<path class="axis" d="M{_LEFT} {self.bottom}H{right}"/>'
            f'<text class="label" x="{middle:.0f}" y="{_HEIGHT - 6}" '
            f'text-anchor="middle">{x_label}</text>'
            f'<text class="label" x="14" y="{centre:.0f}" text-anchor="middle" '
            f'transform="rotate(-90 14 {centre:.0f})">{y_label}</text>'
        )
        return "".join(parts)


def picture(identity: str, title: str, description: str, content: str) -> str:
    """Returns an SVG picture with its texts for screen readers."""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{identity}-title {identity}-desc">'
        f'<title id="{identity}-title">{escape(title)}</title>'
        f'<desc id="{identity}-desc">{escape(description)}</desc>{content}</svg>'
    )


# What a reliability plot of each kind shows on its axes.
AXES = {
    "top_label": ("confidence", "how often it is right"),
    "positive": ("probability of the positive class", "how often it is positive"),
}


def reliability(
    bins: ReliabilityBins, identity: str, name: str, kind: str, style: str
) -> str:
    """Returns frequency against probability, and the samples in each bin below."""
    x_label, y_label = AXES[kind]
    axes = Axes(1.0, foot=_STRIP + _GAP)
    bars, lines, strip = [], [], []
    most = bins.number.max()
    foot = _HEIGHT - _BOTTOM
    for left, right, confidence, accuracy, low, high, number in zip(*bins, strict=True):
        a, b, y = axes.x(left), axes.x(right), axes.y(accuracy)
        middle, depth = (a + b) / 2, _STRIP * number / most
        hint = (
            f"<title>Mean {x_label} {percent(confidence)}; {y_label}: "
            f"{percent(accuracy)} of {count(number)} cases</title>"
        )
        bars.append(
            f'<rect class="bar {style}" x="{a + 0.75:.1f}" y="{y:.1f}" '
            f'width="{b - a - 1.5:.1f}" height="{axes.bottom - y:.1f}">{hint}</rect>'
        )
        said = axes.y(confidence)
        lines.append(
            f'<path class="whisker" d="M{middle:.1f} {axes.y(low):.1f}'
            f'V{axes.y(high):.1f}"/>'
            f'<path class="said" d="M{a:.1f} {said:.1f}H{b:.1f}"/>'
        )
        strip.append(
            f'<rect class="number" x="{a + 0.75:.1f}" y="{foot - depth:.1f}" '
            f'width="{b - a - 1.5:.1f}" height="{depth:.1f}">{hint}</rect>'
        )
    diagonal = (
        f'<path class="perfect" d="M{axes.x(0):.1f} {axes.y(0):.1f}'
        f'L{axes.x(1):.1f} {axes.y(1):.1f}"/>'
    )
    content = (
        axes.frame((0, 0.2, 0.4, 0.6, 0.8, 1), x_label, y_label)
        + "".join(bars)
        + diagonal
        + "".join(lines)
        + "".join(strip)
        + f'<path class="axis" d="M{_LEFT} {foot}H{_WIDTH - _RIGHT}"/>'
    )
    below = int(np.sum(bins.accuracy < bins.confidence))
    return picture(
        identity,
        f"{y_label.capitalize()} against {x_label}: {name}",
        f"{len(bins.number)} bins hold cases; in {below} of them the frequency is "
        "lower than the mean probability. The table below has the figures.",
        content,
    )


class RiskCoverage:
    """The risk-coverage curves of some models in one picture.

    Args:
        reports: reports of all models; those without a ranking are left out.
        names: their names.
    """

    def __init__(self, reports: Sequence[Evaluation], names: Sequence[str]) -> None:
        self._curves = {i: x.cuts for i, x in enumerate(reports) if x.cuts is not None}
        self._names = names
        self._best = {
            i: best_ranking(1 - reports[i].samples.correct, reports[i].samples.counts)
            for i in self._curves
        }
        # The few most confident predictions may all be wrong, and their risk of 1 would
        # flatten the rest.
        seen = [
            curve.risk[curve.coverage >= 0.05].max() for curve in self._curves.values()
        ]
        step, top = _ticks(max(*seen, 1e-4))
        self._axes = Axes(top)
        self._ticks = np.arange(0, top + step / 2, step)

    def mark(self, index: int, point: int) -> tuple[float, float]:
        """Returns the coordinates of the mark of a model's point."""
        curve = self._curves[index]
        x = self._axes.x(float(curve.coverage[point]))
        return round(x, 1), round(self._axes.y(float(curve.risk[point])), 1)

    def svg(self) -> str:
        """Returns the picture; a script places its marks."""
        axes, left, right = self._axes, self._axes.x(0), self._axes.x(1)
        lines, curves, marks, ends = "", "", "", []
        for i, curve in self._curves.items():
            style, all_answered = line_style(i), float(curve.risk[-1])
            lines += (
                f'<path class="best {style}" d="M{self._path(*self._best[i])}"/>'
                f'<path class="random {style}" d="M{left:.1f} '
                f'{axes.y(all_answered):.1f}H{right:.1f}"/>'
            )
            path = self._path(curve.coverage, curve.risk)
            curves += f'<path class="curve {style}" d="M{path}"/>'
            marks += (
                f'<g class="mark {style}" data-floor="{axes.bottom}">'
                '<path d="M0 0"/><circle r="6"/></g>'
            )
            ends.append(
                f"{self._names[i]}: {percent(all_answered)} wrong if all is answered"
            )
        frame = axes.frame(
            self._ticks.tolist(), "share of cases answered", "share of these wrong"
        )
        inside = (
            f'<clipPath id="inside"><rect x="{_LEFT}" y="{_TOP - 2}" '
            f'width="{right - left + 1:.1f}" height="{axes.bottom - _TOP + 4}"/>'
            f'</clipPath><g clip-path="url(#inside)">{lines}{curves}</g>'
        )
        return picture(
            "risk-coverage",
            "Share of wrong answers against the share of cases answered",
            f"The most confident cases are answered first. {'; '.join(ends)}. The "
            "table below has the figures.",
            frame + inside + marks,
        )

    def _path(self, coverage: Array, risk: Array) -> str:
        axes, (coverage, risk) = self._axes, thinned(coverage, risk)
        return " ".join(
            f"{axes.x(x):.1f} {axes.y(y):.1f}"
            for x, y in zip(coverage.tolist(), risk.tolist(), strict=True)
        )


def thinned(coverage: Array, risk: Array) -> tuple[Array, Array]:
    """Returns a curve by its last point in each of many steps of coverage."""
    step = np.ceil(coverage * _MOST_POINTS - 1e-9)
    last = np.append(step[1:] != step[:-1], True)
    return coverage[last], risk[last]


def _ticks(highest: float) -> tuple[float, float]:
    """Returns a round step of at most six ticks, and the top of the axis."""
    size = 10.0 ** math.floor(math.log10(highest))
    step = next(s * size for s in (0.2, 0.25, 0.5, 1, 2) if s * size * 5 >= highest)
    return step, min(1.0, step * math.ceil(highest / step - 1e-9))
