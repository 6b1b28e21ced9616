"""Metrics of selective classification, streaming."""

from typing import Any

from keras import ops

from keras_selcal._arrays import Tensor
from keras_selcal._formulas.functions import zero_unless
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_number
from keras_selcal.metrics.ranking import RankingMetric, ranking_of, rescaled, weighted

# Cells of the histogram of losses: exact for 0 and 1, fine for soft labels.
_LOSS_CELLS = 2**10


@serializable
class AURC(RankingMetric):
    """Area under the risk-coverage curve, with the 0/1 loss.

    Formula:

    ```
    AURC = (1/n) Σ_{i=1..n} R(i/n),     R(i/n) the error of the i most confident
    ```

    The state is a histogram of the score; samples of a cell share their mean loss (see
    `RankingMetric`). `keras_selcal.functional.aurc` is exact.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = AURC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, 0]), p)
    >>> round(float(metric.result()), 4)        # (0 + 1/2 + 1/3)/3
    0.2778

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500)
    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "aurc",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.aurc()


@serializable
class ExcessAURC(RankingMetric):
    """AURC minus the AURC of the best ranking of the same losses.

    Formula:

    ```
    E-AURC = AURC(g) − AURC(−ℓ) ≥ 0
    ```

    with the 0/1 loss. Approximate as `AURC` is; `keras_selcal.functional.excess_aurc`
    is exact.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = ExcessAURC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, 0]), p)
    >>> round(float(metric.result()), 4)        # (1/2 + 1/3)/3 − (1/3)/3
    0.1667

    References:
    - Geifman et al., [Bias-Reduced Uncertainty Estimation for Deep Neural
      Classifiers](https://arxiv.org/abs/1805.08206)
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "excess_aurc",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )

    def create_state(self, num_parts: int) -> None:
        super().create_state(num_parts)
        self._losses = self.add_sums("losses", (num_parts, _LOSS_CELLS, 3))

    def update(self, batch: Batch, w: Tensor) -> None:
        super().update(batch, w)
        loss = 1.0 - batch.correct
        # From the largest loss to the smallest: the best ranking. NaN goes to cell 0.
        place = zero_unless(loss >= 0, 1.0 - loss, ops) * (_LOSS_CELLS - 1.0)
        columns = weighted(w, loss)
        sums = self.histogram(ops.round(place), columns, _LOSS_CELLS)
        self.accumulate(self._losses, sums)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        best = ranking_of(rescaled(self.total(self._losses))[0]).aurc()
        excess = ranking.aurc() - best
        # A difference of equal sums may round to just below 0; NaN stays.
        return ops.where(excess < 0.0, ops.zeros_like(excess), excess)


@serializable
class AUGRC(RankingMetric):
    """Area under the generalised risk-coverage curve, with the 0/1 loss.

    Formula:

    ```
    AUGRC = (1/n²) Σ_i ℓ_i (#{j: g_j < g_i} + ½ #{j: g_j = g_i})
          = (1 − AUROC_f) a (1 − a) + ½ (1 − a)²,      a the accuracy
    ```

    Approximate as `AURC` is; `keras_selcal.functional.augrc` is exact.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = AUGRC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, 0]), p)
    >>> round(float(metric.result()), 4)        # (1 + 1/2)/9
    0.1667

    References:
    - Traub et al., [Overcoming Common Flaws in the Evaluation of Selective
      Classification Systems](https://arxiv.org/abs/2407.01032)
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "augrc",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.augrc()


@serializable
class FailureAUROC(RankingMetric):
    """Probability that a correct prediction has higher confidence than a wrong one.

    Formula:

    ```
    AUROC_f = P(g_i > g_j | i correct, j wrong) + ½ P(g_i = g_j | i correct, j wrong)
    ```

    The value is NaN while all predictions are correct, or all wrong. Approximate as
    `AURC` is; `keras_selcal.functional.failure_auroc` is exact.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = FailureAUROC()
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> metric.update_state(np.array([0, 0, 0]), p)
    >>> float(metric.result())
    0.5

    References:
    - Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
      Out-of-Distribution Examples in Neural
      Networks](https://arxiv.org/abs/1610.02136)
    """

    direction = "up"

    def __init__(
        self,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "failure_auroc",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.failure_auroc()


@serializable
class RiskAtCoverage(RankingMetric):
    """Error of the most confident share κ of the samples.

    The cell at the cut counts in part; the error is at most that cell's mass, as a
    share of κ·n. `keras_selcal.functional.risk_at_coverage` is exact.

    Args:
        coverage: κ in (0, 1].
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = RiskAtCoverage(0.5)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> metric.update_state(np.array([0, 0, 0, 0]), p)
    >>> float(metric.result())
    0.5
    """

    def __init__(
        self,
        coverage: float,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "risk_at_coverage",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )
        self.coverage = check_number(
            "coverage", coverage, "a number in (0, 1]", above=0.0, most=1.0
        )

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.risk_at(self.coverage)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "coverage": self.coverage}


@serializable
class CoverageAtRisk(RankingMetric):
    """Largest coverage at which the error of the accepted samples is at most r.

    The samples of a cell are accepted together or not at all. The coverage jumps where
    the risk stays near r, so there is no bound on the error for all data.
    `keras_selcal.functional.coverage_at_risk` is exact.

    Args:
        risk: r ≥ 0.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        num_cells: cells of the histogram, for each label. Defaults to 4,096, and to
            fewer where all labels together would have more than 2²⁰.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds independent sigmoids, one for each label.
        ignore_class: samples with this label are left out.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        decision_threshold: with two classes, class 1 is predicted where its
            probability is above this.
        num_classes: k, or the number of labels. None takes it from the first
            predictions; JAX's stateless methods need it before, where there are sums
            for each class or label.
        name: name of the metric.
        dtype: dtype of the metric; see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = CoverageAtRisk(0.3)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> metric.update_state(np.array([0, 0, 0, 0]), p)
    >>> float(metric.result())
    1.0
    """

    direction = "up"

    def __init__(
        self,
        risk: float,
        csf: Any = "msp",
        *,
        num_cells: int | None = None,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
        decision_threshold: float = 0.5,
        num_classes: int | None = None,
        name: str | None = "coverage_at_risk",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            csf,
            num_cells=num_cells,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            num_classes=num_classes,
            name=name,
            dtype=dtype,
        )
        self.risk = check_number("risk", risk, "a number of at least 0", least=0.0)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.coverage_at(self.risk)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "risk": self.risk}
