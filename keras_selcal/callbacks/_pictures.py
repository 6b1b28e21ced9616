"""Plots of a model's predictions as PNG files in memory."""

import io
from typing import Any

from keras_selcal import plots
from keras_selcal._arrays import Array

_DPI = 100


def draw(
    y_true: Array,
    y_pred: Array,
    name: str,
    csf: Any,
    num_bins: int,
    options: dict[str, Any],
) -> dict[str, bytes]:
    """Returns a reliability diagram and a risk-coverage curve, as PNG."""
    # Without pyplot the figure is not shown or kept, and no global state changes.
    from matplotlib.figure import Figure

    named = {name: y_pred}
    reliability = Figure(figsize=(5.4, 6.0), layout="constrained")
    plots.reliability_diagram(
        y_true, named, num_bins=num_bins, **options, ax=reliability.subplots()
    )
    risk_coverage = Figure(figsize=(6.0, 4.5), layout="constrained")
    plots.risk_coverage_curve(
        y_true, named, csf=csf, **options, ax=risk_coverage.subplots()
    )
    return {
        "reliability": _png(reliability),
        "risk_coverage": _png(risk_coverage),
    }


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    return file.getvalue()
