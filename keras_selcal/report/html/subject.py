"""The content of a page: the models, their names and curves, and the samples."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from keras_selcal._validation import check_class_names, check_count
from keras_selcal.report.comparison import Comparison
from keras_selcal.report.evaluation import Evaluation
from keras_selcal.report.html.markup import line_style, swatch
from keras_selcal.report.html.numbers import count, percent
from keras_selcal.report.html.pictures import RiskCoverage
from keras_selcal.report.html.png import Images
from keras_selcal.report.html.stops import Stops


class Subject:
    """The models of a page and their samples.

    Args:
        reports: reports of the models, on the same samples.
        class_names: a name for each class, or None.
        images: images of the samples, or None.
        mistakes: how many of the most confident mistakes to list.

    Attributes:
        names: distinct names of the models, not escaped.
        stops: stops of the slider, None if no model can be ranked.
        picture: the risk-coverage plot, None if there is no slider.
        comparisons: each further model compared with the first.
    """

    def __init__(
        self,
        reports: Sequence[Evaluation],
        class_names: Any | None,
        images: Any | None,
        mistakes: int,
    ) -> None:
        self.reports = list(reports)
        self.first = self.reports[0]
        # Rows of the samples: of several labels, each is a case.
        self.n = self.first.samples.n
        self.several = len(self.reports) > 1
        self.weighted = self.first.samples.weight is not None
        self.names = _distinct(self.reports)
        names = check_class_names(class_names, self.first.num_classes)
        self.class_names = self.first.class_names if names is None else names
        self.images = None if images is None else Images(images, self.first.num_given)
        self.mistakes = check_count("mistakes", mistakes, least=0)
        self.comparisons = [Comparison(r, self.first) for r in self.reports[1:]]
        self.stops: Stops | None = None
        self.picture: RiskCoverage | None = None
        stops = Stops.of(self.reports)
        if stops.models:
            self.stops = stops
            names = [self.plain_name(i) for i in range(len(self.reports))]
            self.picture = RiskCoverage(self.reports, names)

    @property
    def missing(self) -> str:
        """Why a model has no metrics, as HTML; "" if all have them."""
        notes = ""
        for name, report in zip(self.names, self.reports, strict=True):
            broken = np.isnan(report.samples.confidence)
            if broken.any():
                of = f"{escape(name)}: " if self.several else ""
                more = int(broken.sum()) - 1
                others = f" (and {count(more)} more)" if more else ""
                notes += (
                    f'<p class="alarm"><strong>{of}there are no metrics.</strong> In '
                    f"sample {report.index[np.argmax(broken)]}{others} the prediction "
                    "is not a number (NaN).</p>"
                )
        return notes

    def plain_name(self, index: int) -> str:
        """Returns the name of a model in a picture, not escaped."""
        return self.names[index] if self.several else "the model"

    def tag(self, index: int) -> str:
        """Returns a swatch of a model's line and its name."""
        return swatch(f"curve {line_style(index)}") + escape(self.names[index])

    def subheading(self, text: str) -> str:
        """Returns a heading one level below the section, or the model if several."""
        return f"<h4>{text}</h4>" if self.several else f"<h3>{text}</h3>"

    def class_name(self, index: int) -> str:
        """Returns the name of a class as HTML."""
        if self.class_names is None:
            return f"{'label' if self.first.multi_label else 'class'} {index}"
        return f'<bdi dir="auto">{escape(self.class_names[index])}</bdi>'

    def each(self, contents: Sequence[str], kind: str) -> str:
        """Returns the content of each model, under its name if there are several."""
        if not self.several:
            return contents[0]
        articles = "".join(
            f"<article><h3>{self.tag(i)}</h3>{content}</article>"
            for i, content in enumerate(contents)
        )
        return f'<div class="{kind}">{articles}</div>'

    def figures(self, index: int, point: int) -> list[str]:
        """Returns coverage, threshold, answered, left, wrong and risk at a point."""
        assert self.stops is not None
        cuts = self.stops.models[index]
        coverage, risk = float(cuts.coverage[point]), float(cuts.risk[point])
        accepted = self.n * coverage
        return [
            percent(coverage),
            cuts.shortest(float(cuts.thresholds[point])).replace("-", "−"),
            count(accepted),
            count(self.n - accepted),
            count(accepted * risk),
            percent(risk, 2),
        ]

    def slider(self) -> list[dict[str, Any]]:
        """Returns what the slider shows of each model, as text.

        `at` has a model's point for each stop, `marks` its coordinates in the picture,
        and `shares` the correct and the wrong predictions in percent of all cases.
        """
        if self.stops is None or self.picture is None:
            return []
        models = []
        for index, cuts in self.stops.models.items():
            points = sorted({stop[index] for stop in self.stops.stops})
            position = {point: i for i, point in enumerate(points)}
            wrong = 100 * cuts.coverage * cuts.risk
            right = 100 * cuts.coverage - wrong
            models.append(
                {
                    "name": self.names[index],
                    "at": [position[stop[index]] for stop in self.stops.stops],
                    "figures": [self.figures(index, point) for point in points],
                    "marks": [self.picture.mark(index, point) for point in points],
                    "shares": [
                        [round(float(share[point]), 2) for share in (right, wrong)]
                        for point in points
                    ],
                }
            )
        return models


def _distinct(reports: Sequence[Evaluation]) -> list[str]:
    """Returns a distinct name for each model."""
    names: list[str] = []
    for i, report in enumerate(reports, 1):
        name = report.name or ("the model" if len(reports) == 1 else f"model {i}")
        names.append(f"{name} ({i})" if name in names else name)
    return names
