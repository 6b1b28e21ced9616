"""A report of all metrics with bootstrap intervals, and the comparison of two."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal import functional
from keras_selcal._core.bootstrap import Resampled, at, resample_counts
from keras_selcal._core.samples import Array, Samples, to_numpy, to_weight
from keras_selcal._core.validation import check_count, check_number, refuse


class Interval(NamedTuple):
    """A metric with its interval.

    Attributes:
        value: the metric on the samples.
        low: lower end of the interval, NaN where there is none.
        high: upper end of the interval, NaN where there is none.
    """

    value: float
    low: float
    high: float


class Difference(NamedTuple):
    """A metric of two models and their paired difference with its interval.

    Attributes:
        value: first − second.
        low: lower end of the interval, NaN where there is none.
        high: upper end of the interval, NaN where there is none.
        first: the metric of the first model.
        second: the metric of the second model.
    """

    value: float
    low: float
    high: float
    first: float
    second: float


class _Meaning(NamedTuple):
    better: str
    words: str


_LOWER, _HIGHER = "lower", "higher"
_ARROWS = {_LOWER: "↓", _HIGHER: "↑"}


class CalibrationReport(Mapping[str, Interval]):
    """All metrics of a classifier's predictions, with bootstrap intervals.

    | name                    | `keras_selcal.functional`                          |
    |-------------------------|----------------------------------------------------|
    | `accuracy`              | share of right answers                             |
    | `nll`, `brier`          | `nll`, `brier`                                     |
    | `ece`, `adaptive_ece`   | `ece` with uniform and with adaptive bins          |
    | `cwece`                 | `cwece` with uniform bins                          |
    | `smooth_ece`            | `smooth_ece`                                       |
    | `aurc`, `excess_aurc`   | `aurc`, `excess_aurc`, with the 0/1 loss           |
    | `augrc`                 | `augrc`, with the 0/1 loss                         |
    | `failure_auroc`         | `failure_auroc`                                    |
    | `risk_at_coverage_0.8`  | `risk_at_coverage`, one for each of `coverages`    |
    | `coverage_at_risk_0.01` | `coverage_at_risk`, one for each of `risks`        |

    `report["ece"]` has `value`, `low` and `high`; `str(report)` is a table. `kde_ece`
    is left out: its cost is quadratic in n, for each resample.

    Formula:

    ```
    value      θ(x_1 … x_n)
    low, high  the (1 ∓ c)/2 quantiles of θ(x_{i_1} … x_{i_n}), i drawn with replacement
    ```

    with c the confidence level; the ends are replicates, rounded outwards. A sample is
    drawn with its weight. Every metric is computed anew on each resample, exactly (the
    adaptive bins are the resample's own), save `smooth_ece`: on a coarser grid, within
    1e-5. Replicates that do not exist (`failure_auroc` where no wrong answer was drawn)
    are left out. Where the value is NaN, so are the ends.

    Calibration errors are biased upwards: the noise in a bin counts by its size, not
    its sign. A resample adds noise of its own, so that the interval of a small error
    lies too high, at times above the value, which the table then marks. In simulations
    of 1000 samples in 15 bins (`benchmarks/report_coverage.py`), 95 % intervals held an
    ECE of 0.1 in 96 % of cases, one of 0.03 in 72 %, and one of 0 never. In `compare`
    the bias cancels only as far as both models have it. `nll` and `brier` are means,
    and free of it.

    The cost grows with bootstrap·n (`benchmarks/report.py`). Memory: n·k float64
    numbers.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        from_logits: whether `y_pred` holds logits.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        bootstrap: the number of resamples; 0 for no intervals.
        seed: of the resamples, an integer of at least 0.
        sample_weight: of a shape that broadcasts to the samples'. Samples of weight 0
            are left out, whatever they hold.
        confidence_level: c in (0, 1).
        num_bins: M of the binned errors.
        coverages: numbers in (0, 1].
        risks: numbers of at least 0.
        name: what the model is called in tables.

    Example:
    >>> import numpy as np
    >>> from keras_selcal import CalibrationReport
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> report = CalibrationReport(np.array([0, 1, 1, 0]), p, bootstrap=200)
    >>> report["accuracy"]
    Interval(value=0.75, low=0.25, high=1.0)
    >>> round(report["ece"].value, 4)
    0.3

    References:
    - Efron, [Bootstrap Methods: Another Look at the
      Jackknife](https://doi.org/10.1214/aos/1176344552)
    """

    def __init__(
        self,
        y_true: Any,
        y_pred: Any,
        from_logits: bool = False,
        csf: Any = "msp",
        bootstrap: int = 1000,
        seed: int = 0,
        *,
        sample_weight: Any | None = None,
        confidence_level: float = 0.95,
        num_bins: int = 15,
        coverages: Sequence[float] = (0.8, 0.95),
        risks: Sequence[float] = (0.01, 0.05),
        name: str | None = None,
    ) -> None:
        self.from_logits = bool(from_logits)
        self.csf = csfs.get(csf)
        self.bootstrap = check_count("bootstrap", bootstrap, least=0)
        self.seed = check_count("seed", seed, least=0)
        self.confidence_level = check_number(
            "confidence_level", confidence_level, "a number in (0, 1)", above=0.0
        )
        if self.confidence_level >= 1:
            refuse("confidence_level", confidence_level, "a number in (0, 1)")
        self.num_bins = check_count("num_bins", num_bins)
        self.coverages = tuple(
            check_number("coverages", c, "numbers in (0, 1]", above=0.0, most=1.0)
            for c in np.ravel(coverages).tolist()
        )
        self.risks = tuple(
            check_number("risks", r, "numbers of at least 0", least=0.0)
            for r in np.ravel(risks).tolist()
        )
        self.name = name
        y_pred = to_numpy(y_pred)
        self._samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
        self.num_samples = self._samples.n
        # Where the samples that count stand among those given.
        leading = y_pred.shape[:-1]
        self._num_given = math.prod(leading)
        weight = to_weight(sample_weight, leading)
        counts = np.ones(self._num_given) if weight is None else weight
        self._index = np.flatnonzero(counts > 0)
        self.num_classes = self._samples.num_classes
        self._values = self._evaluate()
        self._meanings = self._explain()
        self._replicates = self._resample(self.bootstrap, self.seed)
        self._intervals = {
            metric: Interval(
                value, *_ends(value, self._replicates[metric], self.confidence_level)
            )
            for metric, value in self._values.items()
        }

    def __getitem__(self, metric: str) -> Interval:
        return self._intervals[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self._intervals)

    def __len__(self) -> int:
        return len(self._intervals)

    def _evaluate(self) -> dict[str, float]:
        """Returns the metrics on the samples themselves."""
        samples = self._samples
        data = (samples.labels, samples.y_pred)
        options: dict[str, Any] = {
            "from_logits": samples.from_logits,
            "sample_weight": samples.weight,
        }
        bins = {**options, "num_bins": self.num_bins}
        ranked = {**options, "csf": self.csf}
        # The class of a NaN is no answer.
        right = np.where(np.isnan(samples.confidence), np.nan, samples.correct)
        return {
            "accuracy": samples.mean(right),
            "nll": functional.nll(*data, **options),
            "brier": functional.brier(*data, **options),
            "ece": functional.ece(*data, **bins),
            "adaptive_ece": functional.ece(*data, **bins, binning="adaptive"),
            "cwece": functional.cwece(*data, **bins),
            "smooth_ece": functional.smooth_ece(*data, **options),
            "aurc": functional.aurc(*data, **ranked),
            "excess_aurc": functional.excess_aurc(*data, **ranked),
            "augrc": functional.augrc(*data, **ranked),
            "failure_auroc": functional.failure_auroc(*data, **ranked),
            **{
                at("risk_at_coverage", c): functional.risk_at_coverage(
                    *data, c, **ranked
                )
                for c in self.coverages
            },
            **{
                at("coverage_at_risk", r): functional.coverage_at_risk(
                    *data, r, **ranked
                )
                for r in self.risks
            },
        }

    def _explain(self) -> dict[str, _Meaning]:
        """Returns what each metric says, in words."""
        M = self.num_bins
        return {
            "accuracy": _Meaning(_HIGHER, "share of right answers"),
            "nll": _Meaning(_LOWER, "mean −ln p of the true class"),
            "brier": _Meaning(_LOWER, "squared distance of p from the truth, 0 to 2"),
            "ece": _Meaning(_LOWER, f"gap of confidence to accuracy, {M} equal bins"),
            "adaptive_ece": _Meaning(_LOWER, f"the same, {M} bins of equal mass"),
            "cwece": _Meaning(_LOWER, "the same for each class, mean of classes"),
            "smooth_ece": _Meaning(_LOWER, "the same without bins, by a kernel"),
            "aurc": _Meaning(_LOWER, "error rate of the surest, mean over coverages"),
            "excess_aurc": _Meaning(_LOWER, "AURC above that of the best ranking"),
            "augrc": _Meaning(_LOWER, "share accepted but wrong, mean over coverages"),
            "failure_auroc": _Meaning(
                _HIGHER, "chance that a right answer is surer than a wrong one"
            ),
            **{
                at("risk_at_coverage", c): _Meaning(
                    _LOWER, f"error rate of the surest {100 * c:g} %"
                )
                for c in self.coverages
            },
            **{
                at("coverage_at_risk", r): _Meaning(
                    _HIGHER, f"largest share with an error rate ≤ {100 * r:g} %"
                )
                for r in self.risks
            },
        }

    def _resample(self, bootstrap: int, seed: int) -> dict[str, Array]:
        """Returns the metrics of each resample, (bootstrap,)."""
        replicates = {name: np.full(bootstrap, np.nan) for name in self._values}
        # A prediction or a label is NaN, and with it every metric.
        if bootstrap == 0 or math.isnan(self._values["accuracy"]):
            return replicates
        resampled = Resampled(
            self._samples, self.csf, self.num_bins, self.coverages, self.risks
        )
        start = 0
        for drawn in resample_counts(self._samples.n, bootstrap, seed):
            metrics = resampled.metrics(drawn)
            for metric, values in metrics.items():
                replicates[metric][start : start + len(drawn)] = values
            start += len(drawn)
        return replicates

    def compare(self, other: "CalibrationReport") -> "Comparison":
        """Compares two models on the same samples, by the paired bootstrap.

        Both are resampled alike, with this report's seed and number of resamples, so
        that what is hard or easy about a resample cancels in their difference.

        Args:
            other: a report on the same labels and weights, with the same bins,
                coverages and risks. Its confidence score may be another one.

        Returns:
            A `Comparison`: `["ece"]` has the difference `value`, this report's metric
            minus the other's, with `low` and `high`, and both metrics.

        Example:
        >>> import numpy as np
        >>> y, p = np.array([0, 1, 1]), np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> one = CalibrationReport(y, p, bootstrap=100)
        >>> two = CalibrationReport(y, p[:, ::-1], bootstrap=100)
        >>> round(one.compare(two)["accuracy"].value, 4)
        0.3333
        """
        if not isinstance(other, CalibrationReport):
            refuse("other", other, "a CalibrationReport")
        self._check_pair(other)
        replicates = other._replicates
        if (other.bootstrap, other.seed) != (self.bootstrap, self.seed):
            replicates = other._resample(self.bootstrap, self.seed)
        differences = {}
        with np.errstate(invalid="ignore"):
            for metric, first in self._values.items():
                second = other._values[metric]
                value = float(np.subtract(first, second))
                drawn = self._replicates[metric] - replicates[metric]
                ends = _ends(value, drawn, self.confidence_level)
                differences[metric] = Difference(value, *ends, first, second)
        return Comparison(self, other, differences)

    def _check_pair(self, other: "CalibrationReport") -> None:
        mine, theirs = self._samples, other._samples
        if mine.labels.shape != theirs.labels.shape:
            wanted = f"a report on labels of shape {mine.labels.shape}"
            refuse("other", f"labels of shape {theirs.labels.shape}", wanted)
        differ = np.count_nonzero(mine.labels != theirs.labels)
        if differ:
            refuse("other", f"{differ} other labels", "a report on the same labels")
        if not np.array_equal(mine.counts, theirs.counts):
            refuse("other", "other weights", "a report with the same sample weights")
        for option in ("num_bins", "coverages", "risks"):
            wanted, came = getattr(self, option), getattr(other, option)
            if wanted != came:
                refuse("other", f"{option}={came}", f"a report with {option}={wanted}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain numbers and strings, for JSON.

        None stands for what is not finite, and for the ends where there are none.
        """
        return {
            "name": self.name,
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "csf": self.csf.__name__,
            "num_bins": self.num_bins,
            "bootstrap": self.bootstrap,
            "seed": self.seed,
            "confidence_level": self.confidence_level,
            "metrics": {
                metric: {
                    **_plain(interval._asdict()),
                    "better": self._meanings[metric].better,
                }
                for metric, interval in self.items()
            },
        }

    def to_dataframe(self) -> Any:
        """Returns a pandas DataFrame: metrics down, value, low, high, better across."""
        rows = {
            metric: {**interval._asdict(), "better": self._meanings[metric].better}
            for metric, interval in self.items()
        }
        return _dataframe(rows)

    def to_html(
        self,
        path: Any,
        *,
        others: "CalibrationReport | Sequence[CalibrationReport]" = (),
        title: str | None = None,
        class_names: Sequence[str] | None = None,
        images: Any | None = None,
        mistakes: int = 12,
    ) -> Path:
        r"""Writes the report as one HTML file, to open in a browser.

        For readers who know nothing of calibration: the findings in words, every
        metric with its interval and what it means, the reliability and risk-coverage
        plots, a slider that shows for each coverage the threshold, the risk and the
        numbers of cases, and the most confident mistakes. It needs no network; without
        JavaScript a table stands in for the slider.

        Args:
            path: of the file, which is replaced.
            others: reports of other models on the same samples, which are compared
                with this one as in `compare`.
            title: of the page; None for one by the model's name.
            class_names: a name for each class; None for their indices.
            images: of the samples, (n, h, w) or (n, h, w, c) with c = 1, 3 or 4, shown
                beside mistakes. uint8 is taken as it is, numbers in [0, 1] from black
                to white, others from their smallest to their largest.
            mistakes: how many of the most confident mistakes to list.

        Returns:
            The path.

        Example:
        >>> import tempfile
        >>> import numpy as np
        >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
        >>> report = CalibrationReport(np.array([0, 1, 1]), p, bootstrap=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = report.to_html(folder + "/report.html").read_text("utf-8")
        >>> "The model is right in 66.7\N{NO-BREAK SPACE}% of 3 cases" in page
        True
        """
        # The page needs the library's version, which is set last.
        from keras_selcal.report.html.page import build_page

        if isinstance(others, CalibrationReport):
            others = [others]
        for other in others:
            if not isinstance(other, CalibrationReport):
                refuse("others", other, "reports")
            other._check_pair(self)
        text = build_page([self, *others], title, class_names, images, mistakes)
        path = Path(path)
        # Half a surrogate pair in a name is no reason to fail.
        path.write_text(text, "utf-8", errors="replace")
        return path

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        title = "Calibration report" + (f" of {self.name}" if self.name else "")
        lines = [
            f"{title}: {self.num_samples:,} samples, {self.num_classes:,} classes, "
            f"confidence score {self.csf.__name__}",
            "",
        ]
        head = ["metric", "value", "better", "meaning"]
        rows = []
        outside = False
        for metric, interval in self.items():
            meaning = self._meanings[metric]
            row = [metric, _number(interval.value), _ARROWS[meaning.better]]
            row.append(meaning.words)
            if self.bootstrap:
                value, low, high = interval
                mark = " *" if value < low or value > high else ""
                outside |= bool(mark)
                row.insert(2, _bracket(low, high) + mark)
            rows.append(row)
        if self.bootstrap:
            head.insert(2, f"{100 * self.confidence_level:g} % interval")
        lines += _aligned(head, rows, right={1})
        lines += ["", "↓ lower is better, ↑ higher is better."]
        if self.bootstrap:
            lines.append(
                f"Intervals: percentiles over {self.bootstrap:,} bootstrap resamples."
            )
        if outside:
            lines.append(
                "* The value lies outside: resampling adds noise, which can only raise "
                "this figure."
            )
        return "\n".join(lines)


class Comparison(Mapping[str, Difference]):
    """Paired differences of two reports, as `CalibrationReport.compare` gives them."""

    def __init__(
        self,
        first: CalibrationReport,
        second: CalibrationReport,
        differences: dict[str, Difference],
    ) -> None:
        self.first = first
        self.second = second
        self._differences = differences
        names = first.name or "this", second.name or "other"
        self.names = names if names[0] != names[1] else ("this", "other")

    def __getitem__(self, metric: str) -> Difference:
        return self._differences[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self._differences)

    def __len__(self) -> int:
        return len(self._differences)

    def better(self, metric: str) -> str | None:
        """Returns the name of the better model, or None if the interval holds 0."""
        difference = self[metric]
        if not (difference.low > 0 or difference.high < 0):
            return None
        higher_wins = self.first._meanings[metric].better == _HIGHER
        return self.names[0 if (difference.low > 0) == higher_wins else 1]

    def to_dict(self) -> dict[str, Any]:
        """Returns the comparison as plain numbers and strings, for JSON.

        None stands for what is not finite, and for the ends where there are none.
        """
        return {
            "names": list(self.names),
            "num_samples": self.first.num_samples,
            "bootstrap": self.first.bootstrap,
            "seed": self.first.seed,
            "confidence_level": self.first.confidence_level,
            "metrics": {
                metric: {**_plain(difference._asdict()), "better": self.better(metric)}
                for metric, difference in self.items()
            },
        }

    def to_dataframe(self) -> Any:
        """Returns a pandas DataFrame: metrics down, the difference's parts across."""
        rows = {
            metric: {**difference._asdict(), "better": self.better(metric)}
            for metric, difference in self.items()
        }
        return _dataframe(rows)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        one, two = self.names
        bootstrap = self.first.bootstrap
        head = ["metric", one, two, "difference"]
        rows = [
            [metric, *map(_number, (d.first, d.second)), f"{d.value:+.5f}"]
            for metric, d in self.items()
        ]
        if bootstrap:
            level = self.first.confidence_level
            head += [f"{100 * level:g} % interval", "better"]
            for row, (metric, d) in zip(rows, self.items(), strict=True):
                row.append(_bracket(d.low, d.high, "+.5f"))
                same = "equal" if d.low == d.high == 0 else "undecided"
                row.append(self.better(metric) or same)
        lines = [
            f"Difference {one} − {two} on the same {self.first.num_samples:,} samples",
            "",
            *_aligned(head, rows, right={1, 2, 3}),
        ]
        if bootstrap:
            lines += [
                "",
                f"Intervals: percentiles over {bootstrap:,} resamples, the same for "
                "both. Undecided where the interval holds 0.",
            ]
        return "\n".join(lines)


def _ends(
    value: float, replicates: Array, confidence_level: float
) -> tuple[float, float]:
    """Returns both ends of the percentile interval, NaN where there is none.

    They are order statistics and not interpolated: replicates may be infinite.
    """
    replicates = np.sort(replicates[~np.isnan(replicates)])
    if math.isnan(value) or len(replicates) == 0:
        return math.nan, math.nan
    last = len(replicates) - 1
    tail = math.floor((1 - confidence_level) / 2 * last)
    return float(replicates[tail]), float(replicates[last - tail])


def _plain(parts: dict[str, float]) -> dict[str, float | None]:
    return {
        name: float(part) if math.isfinite(part) else None
        for name, part in parts.items()
    }


def _dataframe(rows: dict[str, dict[str, Any]]) -> Any:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "`to_dataframe` needs pandas: `pip install pandas`. `to_dict` does not."
        ) from error
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("metric")


def _number(value: float, form: str = ".5f") -> str:
    return "–" if math.isnan(value) else format(value, form)


def _bracket(low: float, high: float, form: str = ".5f") -> str:
    if math.isnan(low):
        return "–"
    return f"[{low:{form}}, {high:{form}}]"


def _aligned(head: list[str], rows: list[list[str]], right: set[int]) -> list[str]:
    """Returns the lines of a table; the columns `right` are flush right."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
