"""The report: all metrics as a table, as data and as a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_selcal._validation import refuse
from keras_selcal.metric_table import METRICS
from keras_selcal.report import tables
from keras_selcal.report.comparison import Comparison, check_pair
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.numbers import scaled, value_of
from keras_selcal.report.html.page import build_page
from keras_selcal.report.slices import SHOWN, ranking_notes

# Rows of the text table of labels.
_MOST_LABELS = 12


class CalibrationReport(Evaluation):
    """All metrics of a classifier's predictions, with bootstrap intervals.

    | name                    | `keras_selcal.functional`                          |
    |-------------------------|----------------------------------------------------|
    | `accuracy`              | share of correct predictions                       |
    | `nll`, `brier`          | `nll`, `brier`                                     |
    | `refinement`            | `refinement` of the NLL; resamples keep its T      |
    | `ece`, `adaptive_ece`   | `ece` with uniform and with adaptive bins          |
    | `positive_ece`          | `ece` with kind="positive", for two classes        |
    | `cwece`                 | `cwece` with uniform bins                          |
    | `smooth_ece`            | `smooth_ece`                                       |
    | `aurc`, `excess_aurc`   | `aurc`, `excess_aurc`, with the 0/1 loss           |
    | `augrc`                 | `augrc`, with the 0/1 loss                         |
    | `failure_auroc`         | `failure_auroc`                                    |
    | `risk_at_coverage_0.8`  | `risk_at_coverage`, one for each of `coverages`    |
    | `coverage_at_risk_0.01` | `coverage_at_risk`, one for each of `risks`        |

    With `unknown`, it also has `ood_auroc`, `ood_aupr`, `fpr_at_tpr_0.95` and
    `scod_aurc`; resamples draw known and unknown inputs each among their own kind.

    `report["ece"]` has `value`, `low` and `high`; `str(report)` is a table. `kde_ece`
    is not included because its cost is quadratic in n for each resample.

    Formula:

    ```
    value      θ(x_1 … x_n)
    low, high  the (1 ∓ c)/2 quantiles of θ(x_{i_1} … x_{i_n}), i drawn with replacement
    ```

    with c the confidence level; the ends are replicates, rounded outwards. A sample is
    drawn with its weight. With `groups`, a resample draws as many groups as there are,
    each with all of its samples: images of one patient are not independent, and
    intervals that take them for it are too narrow.

    Every metric is computed exactly on each resample (with adaptive bins of the
    resample's own), except `smooth_ece`, which uses a coarser grid and is within 1e-5.
    Replicates that do not exist (`failure_auroc` of a resample without a wrong
    prediction) are left out. If the value is NaN, or there is only one sample or group,
    the ends are NaN.

    Calibration errors are biased upwards because the noise in a bin counts by its size
    and not its sign. A resample adds its own noise, and the interval of a small
    error lies too high, sometimes above the value, which the table then marks. In
    `compare` the bias cancels only as far as both models share it. `nll` and `brier`
    are means and have no bias.

    The cost grows with bootstrap·n. Memory: n·k float64 numbers.

    For one sigmoid unit and for two classes, `ece` is the error of the predicted class
    (top-label) and `positive_ece` the error of class 1. With `multi_label=True`, each
    label of a sample is a case: the metrics pool all labels, except `cwece`, which is
    the mean of the labels' positive-class errors; `per_class()` has the metrics of each
    label. A resample draws samples with all of their labels.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k); 0/1 or soft
            labels for one sigmoid unit; multi-hot, (..., k), with `multi_label`.
        y_pred: probabilities or logits, (..., k); (..., 1) or (n,) for one sigmoid
            unit.
        from_logits: whether `y_pred` holds logits.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: label of samples to leave out, or None.
        decision_threshold: class 1 of two, or a label, is predicted if its probability
            is larger than this.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        bootstrap: number of resamples; 0 for no intervals.
        seed: seed of the resamples, an integer of at least 0.
        sample_weight: weights of a shape that broadcasts to the samples'. Samples of
            weight 0 are left out, whatever they hold.
        groups: which samples depend on each other: the patient of an image, for
            example, of the samples' shape or of its first axis. By default each entry
            of the first axis is independent: a sample, or a sequence with its tokens.
        slices: a dict of columns such as `{"site": sites, "sex": sexes}`, each of the
            samples' shape or of its first axis, or None. `slices` then has the metrics
            of each value.
        class_names: a name for each class or label; None for their indices.
        confidence_level: c in (0, 1).
        num_bins: M of the binned errors.
        coverages: numbers in (0, 1].
        risks: numbers of at least 0.
        name: name of the model in tables.
        unknown: predictions (m, k) of inputs that belong to none of the classes, in the
            form of `y_pred`, or None.
        unknown_share: the share of unknown inputs in use, which `scod_aurc` depends
            on. None takes m/(n + m).
        check: what `SelectiveClassifier.check` says of these samples, which table and
            page repeat, or None.

    Example:
    >>> import numpy as np
    >>> from keras_selcal import CalibrationReport
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> report = CalibrationReport(np.array([0, 1, 1, 0]), p, bootstrap=200)
    >>> report["accuracy"]
    Interval(value=0.75, low=0.25, high=1.0)
    >>> round(report["ece"].value, 4)
    0.3
    >>> site = {"site": np.array(["north", "north", "south", "south"])}
    >>> report = CalibrationReport(np.array([0, 1, 1, 0]), p, slices=site, bootstrap=0)
    >>> report.slices["site", "south"]["accuracy"].value
    0.5

    References:
    - Efron, [Bootstrap Methods: Another Look at the
      Jackknife](https://doi.org/10.1214/aos/1176344552)
    - Field & Welsh, [Bootstrapping Clustered
      Data](https://doi.org/10.1111/j.1467-9868.2007.00593.x) (groups)
    """

    def compare(self, other: "CalibrationReport") -> Comparison:
        """Compares two models on the same samples by the paired bootstrap.

        Both models are evaluated on the same resamples, with this report's seed and
        number of resamples: the difficulty of a resample cancels in their difference.

        Args:
            other: a report on the same labels and weights, with the same bins,
                coverages and risks. Its confidence score may differ.

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
        if not isinstance(other, Evaluation):
            refuse("other", other, "a CalibrationReport")
        return Comparison(self, other)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain numbers and strings, for JSON.

        Numbers that are not finite, and intervals that do not exist, are None.
        """
        parts = {
            "name": self.name,
            "num_samples": self.num_samples,
            "num_groups": self.num_groups,
            "num_classes": self.num_classes,
            "multi_label": self.multi_label,
            "decision_threshold": self.decision_threshold,
            "csf": self.csf.__name__,
            "num_unknown": 0 if self.unknown is None else self.unknown.m,
            "num_bins": self.num_bins,
            "bootstrap": self.bootstrap,
            "seed": self.seed,
            "confidence_level": self.confidence_level,
            "metrics": self._plain(),
        }
        if self.multi_label:
            labels = self.per_class().items()
            parts["labels"] = {label: tables.plain(p) for label, p in labels}
        if self.slices:
            parts["slices"] = [
                {
                    "column": each.column,
                    "value": each.value,
                    "num_samples": each.report.num_samples,
                    "num_groups": each.report.num_groups,
                    "verdict": each.verdict,
                    "metrics": each.report._plain(),
                }
                for each in self.slices.values()
            ]
        return parts

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

        The page is for readers who do not know calibration. It has the findings in
        words, the reliability and risk-coverage plots, what calibrators and thresholds
        would bring, a slider that shows the threshold, the risk and the numbers of
        cases for each coverage, the classes, the most confident mistakes with the
        labels to check, the slices, and every metric with its interval and meaning. It
        needs no
        network; without JavaScript a table replaces the slider.

        Args:
            path: path of the file, which is replaced.
            others: reports of other models on the same samples, which are compared
                with this one as in `compare`.
            title: title of the page; by default it contains the model's name.
            class_names: a name for each class; None for the report's own.
            images: images of the samples, (n, h, w) or (n, h, w, c) with c = 1, 3 or 4,
                shown beside mistakes. uint8 is shown as it is, numbers in [0, 1] from
                black to white, others from their smallest to their largest.
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
        if isinstance(others, Evaluation):
            others = [others]
        for other in others:
            if not isinstance(other, Evaluation):
                refuse("others", other, "reports")
            check_pair(other, self)
        text = build_page([self, *others], title, class_names, images, mistakes)
        path = Path(path)
        # A lone surrogate in a name must not prevent writing the page.
        path.write_text(text, "utf-8", errors="replace")
        return path

    def __str__(self) -> str:
        title = "Calibration report" + (f" of {self.name}" if self.name else "")
        head = ["metric", "value", "unit", "better", "meaning"]
        rows, notes = [], ["↓ lower is better, ↑ higher is better."]
        outside = False
        for metric, (value, low, high) in self.items():
            about = self.rows[metric]
            meaning = self.meaning(metric).partition(":")[0].rstrip(".")
            unit = tables.unit_of(about.unit)
            row = [metric, scaled(value, about.unit), unit, about.arrow, meaning]
            if self.bootstrap:
                mark = " *" if value < low or value > high else ""
                outside |= bool(mark)
                row.insert(2, tables.bracket(low, high, about.unit) + mark)
            rows.append(row)
        if self.bootstrap:
            head.insert(2, f"{100 * self.confidence_level:g} % interval")
            notes.append(
                f"Intervals: percentiles over {self.bootstrap:,} bootstrap resamples"
                f"{self.drawn}. Intervals of small calibration errors lie too high: "
                "resampling adds noise."
            )
        if outside:
            notes.append("* The value lies outside its interval.")
        if self.check is not None:
            notes.append(str(self.check))
        if self.multi_label:
            notes.append(
                "All labels are pooled, except in cwece: errors of opposite sign "
                "cancel."
            )
        classes = "labels" if self.multi_label else "classes"
        strange = f", {self.unknown.m:,} unknown inputs" if self.unknown else ""
        within = f" in {self.num_groups:,} groups" if self.num_groups else ""
        return "\n".join(
            [
                f"{title}: {self.num_samples:,} samples{within}, "
                f"{self.num_classes:,} {classes}{strange}, confidence score "
                f"{self.csf.__name__}",
                *([f"Warning: {self.few_groups}"] if self.few_groups else []),
                "",
                *tables.aligned(head, rows, right={1}),
                *(self._label_lines() if self.multi_label else []),
                *(self._slice_lines() if self.columns else []),
                "",
                *notes,
            ]
        )

    def _label_lines(self) -> list[str]:
        """Returns a table of the labels with the largest error."""
        found = self.per_class()
        worst = sorted(found, key=lambda label: -found[label]["positive_ece"])
        head = ["label", *next(iter(found.values()))]
        rows = [
            [
                str(self.class_names[label] if self.class_names else label),
                *(
                    value_of(value, METRICS[name].unit if name in METRICS else "share")
                    for name, value in found[label].items()
                ),
            ]
            for label in worst[:_MOST_LABELS]
        ]
        return [
            "",
            f"{len(rows)} of {len(found)} labels, the largest error first:",
            "",
            *tables.aligned(head, rows, right=set(range(len(head)))),
        ]

    def _slice_lines(self) -> list[str]:
        """Returns the table of the slices."""
        names = [*SHOWN]
        grouped = self.num_groups is not None
        units = [self.rows[name].unit for name in names]
        head = ["slice", "samples", *["groups"] * grouped]
        for name, unit in zip(names, units, strict=True):
            head.append(f"{name} ({tables.unit_of(unit)})" if unit else name)
            head += [""] * bool(self.bootstrap)
        rows = []
        for each in self.slices.values():
            part = each.report
            row = [each.title, f"{part.num_samples:,}"]
            row += [f"{part.num_units:,}"] * grouped
            for name, unit in zip(names, units, strict=True):
                value, low, high = part[name]
                row.append(scaled(value, unit))
                row += [tables.bracket(low, high, unit)] * bool(self.bootstrap)
            row.append("too few" if each.verdict == "few" else each.verdict)
            rows.append(row)
        right = {i for i, name in enumerate(head) if i and name}
        return [
            "",
            f"{len(rows)} slices, the worst Brier score first:",
            "",
            *tables.aligned([*head, "than the rest"], rows, right),
            "",
            *ranking_notes(self),
        ]
