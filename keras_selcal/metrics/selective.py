"""Metrics of selective classification, streaming."""

from typing import Any

from keras_selcal._backend.histogram import Histogram
from keras_selcal._backend.host import cast
from keras_selcal._backend.ops import TINY, Tensor, may_loop
from keras_selcal._formulas.ranking import Ranking
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_number
from keras_selcal.metrics.ranking import RankingMetric, ranking_of, rescaled

# Cells of the histogram of losses: exact for 0 and 1, fine for soft labels.
_LOSS_CELLS = 2**10


@serializable
class AURC(RankingMetric):
    """Area under the risk-coverage curve, with the 0/1 loss.

    Formula:

    ```
    AURC = (1/n) Σ_{i=1..n} R(i/n),     R(i/n) the error of the i most confident
    ```

    The state is a histogram of the score; samples of a cell share their mean loss. The
    error against `functional.aurc` is below 1e-4 on the logits of CIFAR-10, CIFAR-100
    and MNIST networks.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

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
        self, csf: Any = "msp", *, name: str | None = "aurc", **options: Any
    ) -> None:
        super().__init__(csf, name=name, **options)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.aurc()


@serializable
class ExcessAURC(RankingMetric):
    """AURC above that of the best ranking of the same losses.

    Formula:

    ```
    E-AURC = AURC(g) − AURC(−ℓ) ≥ 0
    ```

    with the 0/1 loss; the error against `functional.excess_aurc` is that of `AURC`.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

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
        self, csf: Any = "msp", *, name: str | None = "excess_aurc", **options: Any
    ) -> None:
        super().__init__(csf, name=name, **options)

    def create_state(self, groups: int) -> None:
        super().create_state(groups)
        self._losses = self.add_sums("losses", (groups, _LOSS_CELLS, 2))

    def update(self, batch: Batch, w: Tensor) -> None:
        super().update(batch, w)
        loss = 1.0 - batch.top_label()[1]
        # From the largest loss to the smallest: the best ranking.
        xp = batch.xp
        place = (1.0 - xp.where(xp.equal(loss, loss), loss, 1.0)) * (_LOSS_CELLS - 1)
        cells = xp.clip(cast(xp.round(place), "int32"), 0, _LOSS_CELLS - 1)
        rows = xp.stack([w, w * loss], axis=-1)
        self.accumulate_rows(self._losses, rows, cells)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        losses = rescaled(self.total(self._losses), self.total(self._present))
        best = ranking_of(losses).aurc()
        excess = ranking.aurc() - best
        # A difference of equal sums may round to just below 0; NaN stays.
        return ranking.xp.where(excess < 0.0, 0.0, excess)


@serializable
class AUGRC(RankingMetric):
    """Area under the generalised risk-coverage curve, with the 0/1 loss.

    Formula:

    ```
    AUGRC = (1/n²) Σ_i ℓ_i (#{j: g_j < g_i} + ½ #{j: g_j = g_i})
          = (1 − AUROC_f) a (1 − a) + ½ (1 − a)²,      a the accuracy
    ```

    The error against `functional.augrc` is below 1e-4 on the logits of CIFAR-10,
    CIFAR-100 and MNIST networks.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

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
        self, csf: Any = "msp", *, name: str | None = "augrc", **options: Any
    ) -> None:
        super().__init__(csf, name=name, **options)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.augrc()


@serializable
class FailureAUROC(RankingMetric):
    """Probability that a correct prediction has higher confidence than a wrong one.

    Formula:

    ```
    AUROC_f = P(g_i > g_j | i correct, j wrong) + ½ P(g_i = g_j | i correct, j wrong)
    ```

    The value is NaN while all predictions are correct, or all wrong. The error against
    `functional.failure_auroc` is below 1e-4 on the logits of CIFAR-10, CIFAR-100 and
    MNIST networks.

    Args:
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

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
        self, csf: Any = "msp", *, name: str | None = "failure_auroc", **options: Any
    ) -> None:
        super().__init__(csf, name=name, **options)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.failure_auroc()


@serializable
class RiskAtCoverage(RankingMetric):
    """Error of the most confident share κ of the samples.

    The cell at the cut counts in part; the error against
    `functional.risk_at_coverage` is at most that cell's mass, as a share of κ·n, and
    below 1e-4 on the logits of CIFAR-10, CIFAR-100 and MNIST networks.

    Args:
        coverage: κ in (0, 1].
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = RiskAtCoverage(0.5)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> metric.update_state(np.array([0, 0, 0, 0]), p)
    >>> float(metric.result())
    0.5
    """

    default_cells = 2**18

    def __init__(
        self,
        coverage: float,
        csf: Any = "msp",
        *,
        name: str | None = "risk_at_coverage",
        **options: Any,
    ) -> None:
        super().__init__(csf, name=name, **options)
        self.coverage = check_number(
            "coverage", coverage, "a number in (0, 1]", above=0.0, most=1.0
        )

    def compute(self) -> tuple[Tensor, Tensor]:
        present = self.total(self._present)
        histogram = Histogram(self.pairs(self._histogram), present, descending=True)
        wanted = self.coverage * histogram.n
        loss = histogram.upto(wanted[:, None])[:, 0]
        return loss / histogram.xp.maximum(wanted, TINY), present

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "coverage": self.coverage}


@serializable
class CoverageAtRisk(RankingMetric):
    """Largest coverage at which the error of the accepted samples is at most r.

    The samples of a cell are accepted together or not at all. The coverage jumps where
    the risk stays near r, so there is no bound for all data; on the logits of CIFAR-10,
    CIFAR-100 and MNIST networks it is within one sample of
    `functional.coverage_at_risk`.

    Args:
        risk: r ≥ 0.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        **options: `num_cells`, see `RankingMetric`; `from_logits`, `multi_label`,
            `ignore_class`, `axis` and others, see `ClassificationMetric`.

    Example:
    >>> import numpy as np
    >>> metric = CoverageAtRisk(0.3)
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> metric.update_state(np.array([0, 0, 0, 0]), p)
    >>> float(metric.result())
    1.0
    """

    default_cells = 2**20
    direction = "up"

    def __init__(
        self,
        risk: float,
        csf: Any = "msp",
        *,
        name: str | None = "coverage_at_risk",
        **options: Any,
    ) -> None:
        super().__init__(csf, name=name, **options)
        self.risk = check_number("risk", risk, "a number of at least 0", least=0.0)

    def of_ranking(self, ranking: Ranking) -> Tensor:
        return ranking.coverage_at(self.risk)

    def compute(self) -> tuple[Tensor, Tensor]:
        present = self.total(self._present)
        if not may_loop(present):
            return super().compute()
        histogram = Histogram(self.pairs(self._histogram), present, descending=True)
        return histogram.coverage_at(self.risk), present

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "risk": self.risk}
