"""Pictures of a model's predictions as PNG files in memory."""

import io
from typing import Any

from keras_selcal import plots
from keras_selcal.callbacks._validation_data import Predictions

_DPI = 100


def require_matplotlib() -> None:
    """Raises an error that names the extra where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "`picture_dir` and `log_dir` need matplotlib: "
            '`pip install "keras-selcal[plots]"`.'
        ) from error


def draw(
    predictions: Predictions, name: str, csf: Any, num_bins: int
) -> dict[str, bytes]:
    """Returns a reliability diagram and a risk-coverage curve, as PNG."""
    # A figure without pyplot: nothing is shown, kept, or set for other figures.
    from matplotlib.figure import Figure

    y_true, y_pred, from_logits, sample_weight = predictions
    options: dict[str, Any] = {
        "from_logits": from_logits,
        "sample_weight": sample_weight,
    }
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
