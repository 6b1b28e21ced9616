"""The metrics of the paper, from the logits that a run has saved."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from recipes.runs import Run


@dataclass(frozen=True)
class PaperMetric:
    """A metric as the paper prints it.

    Args:
        name: a name in `keras_selcal.metric_table`, or `"adaptive_cwece"`.
        scale: 100 for metrics that the paper prints × 10².
    """

    name: str
    scale: float = 100.0

    @property
    def title(self) -> str:
        """The name of the metric in tables."""
        return self._row.short

    @property
    def higher(self) -> bool:
        """Whether higher is better."""
        return self._row.direction == "up"

    @property
    def heading(self) -> str:
        """The title, with an arrow in the better direction."""
        return f"{self.title} {self._row.arrow}"

    @property
    def digits(self) -> int:
        """Number of digits after the decimal point in tables."""
        return 2 if self.scale > 1 else 3

    def compute(self, labels: Any, logits: Any) -> float:
        """Returns the scaled metric."""
        # AURC ranks by `msp`, whichever score the loss was trained with.
        options = {"from_logits": True, "csf": "msp"}
        return self.scale * self._row.compute(labels, logits, **options)

    @property
    def _row(self) -> Any:
        from keras_selcal import functional  # imports Keras
        from keras_selcal.metric_table import metric_row

        if self.name != "adaptive_cwece":
            return metric_row(self.name)
        function = partial(functional.cwece, binning="adaptive")
        return replace(metric_row("cwece"), function=function, short="adaptive cwECE")


_UNSCALED = ("nll", "brier")
METRICS: dict[str, PaperMetric] = {
    **{
        name: PaperMetric(name)
        for name in (
            *("accuracy", "ece", "adaptive_ece", "cwece", "adaptive_cwece", "aurc"),
        )
    },
    **{name: PaperMetric(name, scale=1.0) for name in _UNSCALED},
}


def evaluate(
    run: Run, split: str = "test", metrics: Iterable[str] = tuple(METRICS)
) -> dict[str, float]:
    """Returns metrics of a finished run, scaled as the paper prints them.

    Args:
        run: a finished run.
        split: `"val"`, `"test"` or `"train"`.
        metrics: names in `METRICS`.
    """
    logits, labels = run.predictions(split)
    return measure(labels, logits, metrics)


def measure(labels: Any, logits: Any, metrics: Iterable[str]) -> dict[str, float]:
    """Returns metrics of logits, scaled as the paper prints them.

    Example:
    >>> measure([0, 1], [[2.0, 0.0], [1.0, 0.0]], ["accuracy"])
    {'accuracy': 50.0}
    """
    return {name: METRICS[name].compute(labels, logits) for name in metrics}
