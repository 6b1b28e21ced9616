"""The metrics of runs, from the logits that they have saved, and their differences."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from recipes.runs import Predictions, Run


@dataclass(frozen=True)
class PaperMetric:
    """A metric as the paper prints it.

    Args:
        name: a name in `keras_selcal.metric_table`, such as
            `"coverage_at_risk_0.05"`, or `"adaptive_cwece"`.
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

    def compute(self, labels: Any, logits: Any, csf: Any = "msp") -> float:
        """Returns the scaled metric; AURC ranks by `csf`, whatever loss was trained."""
        options = {"from_logits": True, "csf": csf}
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


# What `compare` shows: the first two decide, after temperature scaling.
DECIDING = ("nll", "aurc")
COVERAGE = "coverage_at_risk_0.05"
COMPARED = (*DECIDING, "accuracy", "ece", "cwece", COVERAGE)


def metric(name: str) -> PaperMetric:
    """Returns a metric by its name."""
    return METRICS.get(name) or PaperMetric(name)


def titled(name: str) -> str:
    """Returns the title of a figure such as `"nll_ts"`, with an arrow to the better.

    Example:
    >>> titled("nll_ts")
    'NLL + TS ↓'
    """
    heading = metric(name.removesuffix("_ts")).heading
    return f"{heading[:-2]} + TS{heading[-2:]}" if name.endswith("_ts") else heading


def digits_of(name: str) -> int:
    """Returns the number of digits of a figure after the decimal point in tables."""
    return 3 if "nll" in name else 2


def scaled_measures(
    val: Predictions,
    test: Predictions,
    metrics: Iterable[str] = COMPARED,
    *,
    csf: str = "msp",
) -> dict[str, float]:
    """Returns metrics of validation and test data, before and after scaling.

    The temperature minimises the NLL of the validation data. Keys are such as
    `"test_nll"` and, after scaling, `"test_nll_ts"`.

    Args:
        val: logits and labels of the validation data.
        test: logits and labels of the test data.
        metrics: names of metrics.
        csf: the score that ranks the samples, or `"auto"` for the one that ranks the
            validation data best.
    """
    from keras_selcal import TemperatureScaling
    from keras_selcal.csf import choose

    score = choose(*val) if csf == "auto" else csf

    temperature = float(TemperatureScaling().fit(*val).temperature)
    found = {"temperature": temperature}
    for split, (logits, labels) in (("val", val), ("test", test)):
        for end, scale in (("", 1.0), ("_ts", temperature)):
            for name in metrics:
                value = metric(name).compute(labels, logits / scale, score)
                found[f"{split}_{name}{end}"] = value
    return found


# --- Differences --------------------------------------------------------------------

# Metrics of which more is better, by the start of their names.
_HIGHER = ("accuracy", "coverage", "unknown_auroc")


class Gap(NamedTuple):
    """A mean difference and half the width of its 95 % interval."""

    mean: float
    half: float

    def verdict(self, metric: str) -> str:
        """Returns `"better"`, `"worse"`, or `"undecided"` where 0 is in the interval.

        Example:
        >>> Gap(-0.5, 0.2).verdict("nll")
        'better'
        """
        if not abs(self.mean) > self.half:
            return "undecided"
        name = metric.removeprefix("test_").removeprefix("val_")
        return "better" if (self.mean > 0) == name.startswith(_HIGHER) else "worse"

    def text(self, metric: str) -> str:
        """Returns the difference, with ▲ if it is better and ▼ if it is worse.

        Example:
        >>> Gap(-0.5, 0.2).text("ece")
        '−0.50 ±0.20 ▲'
        """
        digits = digits_of(metric)
        mark = {"better": " ▲", "worse": " ▼"}.get(self.verdict(metric), "")
        half = "" if math.isnan(self.half) else f" ±{self.half:.{digits}f}"
        return f"{self.mean:+.{digits}f}{half}{mark}".replace("-", "−")


def paired(differences: Any, comparisons: int = 1) -> Gap:
    """Returns the mean of paired differences, with Student's interval.

    Args:
        differences: one for each pair.
        comparisons: how many intervals hold together at 95 % (Bonferroni).

    Example:
    >>> paired([1.0, 2.0, 3.0]).mean
    2.0
    """
    from scipy.stats import t

    values = np.asarray(differences, "float64")
    n = len(values)
    if n < 2:
        return Gap(float(values.mean()) if n else math.nan, math.nan)
    half = t.ppf(1 - 0.025 / comparisons, n - 1) * values.std(ddof=1) / math.sqrt(n)
    return Gap(float(values.mean()), float(half))
