"""All metrics of the paper, from the logits that a run has saved."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from recipes.runs import Run


class Metric(NamedTuple):
    """A metric in tables.

    Attributes:
        title: what it is called there.
        function: of labels and logits.
        higher: whether more is better.
        scale: 100 for what the paper prints × 10².
    """

    title: str
    function: Callable[[Any, Any], float]
    higher: bool = False
    scale: float = 100.0

    @property
    def heading(self) -> str:
        """The title, with an arrow towards the better."""
        return f"{self.title} {'↑' if self.higher else '↓'}"

    @property
    def digits(self) -> int:
        """Digits after the point, in tables."""
        return 2 if self.scale > 1 else 3


def accuracy(labels: Any, logits: Any) -> float:
    """Returns the share of samples whose largest logit is the label's."""
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


def _functional(name: str, **options: Any) -> Callable[[Any, Any], float]:
    def metric(labels: Any, logits: Any) -> float:
        from keras_selcal import functional

        function = getattr(functional, name)
        return float(function(labels, logits, from_logits=True, **options))

    return metric


# 15 bins, and AURC of the 0/1 loss ranked by `msp` whatever the loss was trained with.
METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", accuracy, higher=True),
    "ece": Metric("ECE", _functional("ece")),
    "adaptive_ece": Metric("adaptive ECE", _functional("ece", binning="adaptive")),
    "cwece": Metric("cwECE", _functional("cwece")),
    "aurc": Metric("AURC", _functional("aurc", csf="msp")),
    "nll": Metric("NLL", _functional("nll"), scale=1.0),
    "brier": Metric("Brier", _functional("brier"), scale=1.0),
}


def evaluate(
    run: Run, split: str = "test", metrics: Iterable[str] = tuple(METRICS)
) -> dict[str, float]:
    """Returns metrics of a finished run, × 10² where the paper prints them so.

    Args:
        run: a finished run.
        split: `"val"` or `"test"`.
        metrics: names in `METRICS`.
    """
    logits, labels = run.predictions(split)
    return measure(labels, logits, metrics)


def measure(labels: Any, logits: Any, metrics: Iterable[str]) -> dict[str, float]:
    """Returns metrics of logits, by their names in `METRICS`, scaled as there."""
    return {
        name: METRICS[name].scale * METRICS[name].function(labels, logits)
        for name in metrics
    }
