"""Selective classification: risk against coverage, and its summaries."""

from typing import Any, NamedTuple

import numpy as np

from keras_selcal import csf as csfs
from keras_selcal._core.ranking import Ranking
from keras_selcal._core.sample_losses import sample_losses
from keras_selcal._core.samples import Array, Samples
from keras_selcal._core.segments import Segments
from keras_selcal._core.validation import check_number


def _ranked(
    y_true: Any, y_pred: Any, csf: Any, from_logits: bool, loss: Any, sample_weight: Any
) -> tuple[Samples, Array, Array]:
    """Returns the samples, their ranks and their losses."""
    samples = Samples.of(y_true, y_pred, from_logits, sample_weight)
    return samples, samples.ranks(csfs.get(csf)), sample_losses(samples, loss)


def _ranking(ranks: Array, losses: Array, count: Array) -> Ranking:
    """Returns the groups of equal rank, from the least confident to the most."""
    groups = Segments.of(ranks)
    loss = groups.sums(losses * count)
    if np.isnan(ranks).any():
        # No rank, no figure.
        loss = np.full_like(loss, np.nan)
    return Ranking(groups.sums(count), loss, np)


def aurc(
    y_true: Any,
    y_pred: Any,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> float:
    """Area under the risk-coverage curve.

    Formula:

    ```
    AURC = (1/n) Σ_{i=1..n} R(i/n),     R(i/n) the mean loss of the i most confident
         = (1/n) Σ_r α_r ℓ_r,           α_r = H_n − H_{n−r}, r the rank from below
    ```

    Samples of equal score share their mean: the expectation over their orders.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it. From
            logits, the built-in ones rank by log-odds, which do not saturate.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'. Weight 2 equals two
            copies, weight 0 none.

    Returns:
        The area, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(aurc(np.array([0, 0, 0]), p), 4)        # (0 + 1/2 + 1/3)/3
    0.2778

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500)
    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    return float(_ranking(ranks, losses, samples.counts).aurc())


def excess_aurc(
    y_true: Any,
    y_pred: Any,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> float:
    """AURC above that of the best ranking of the same losses.

    Formula:

    ```
    E-AURC = AURC(g) − AURC(−ℓ) ≥ 0
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        The excess, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(excess_aurc(np.array([0, 0, 0]), p), 4)     # (1/2 + 1/3)/3 − (1/3)/3
    0.1667

    References:
    - Geifman et al., [Bias-Reduced Uncertainty Estimation for Deep Neural
      Classifiers](https://arxiv.org/abs/1805.08206)
    """
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    own = _ranking(ranks, losses, samples.counts).aurc()
    best = _ranking(-losses, losses, samples.counts).aurc()
    # The difference of two equal sums may round to just below 0.
    return float(np.maximum(own - best, 0.0))


def augrc(
    y_true: Any,
    y_pred: Any,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> float:
    """Area under the generalised risk-coverage curve.

    Formula:

    ```
    AUGRC = ∫₀¹ P(ℓ, g ≥ τ(κ)) dκ = (1/n²) Σ_i ℓ_i (#{j: g_j < g_i} + ½ #{j: g_j = g_i})
    ```

    where the joint risk of what is accepted replaces the mean risk among it; the curve
    is joined by straight lines from (0, 0). With the 0/1 loss and accuracy a,
    AUGRC = (1 − AUROC_f) a (1 − a) + ½ (1 − a)².

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        The area, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(augrc(np.array([0, 0, 0]), p), 4)       # (1 + 1/2)/9
    0.1667

    References:
    - Traub et al., [Overcoming Common Flaws in the Evaluation of Selective
      Classification Systems](https://arxiv.org/abs/2407.01032)
    """
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    return float(_ranking(ranks, losses, samples.counts).augrc())


def failure_auroc(
    y_true: Any,
    y_pred: Any,
    csf: Any = "msp",
    from_logits: bool = False,
    sample_weight: Any | None = None,
) -> float:
    """Probability that a right answer is surer than a wrong one.

    Formula:

    ```
    AUROC_f = P(g_i > g_j | i right, j wrong) + ½ P(g_i = g_j | i right, j wrong)
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k), by whose
            mass a sample is partly right and partly wrong.
        y_pred: probabilities or logits, (..., k).
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        The area, a float; NaN where all answers are right, or all wrong, or a
        prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> failure_auroc(np.array([0, 0, 0]), p)
    0.5

    References:
    - Hendrycks & Gimpel, [A Baseline for Detecting Misclassified and
      Out-of-Distribution Examples in Neural
      Networks](https://arxiv.org/abs/1610.02136)
    """
    ranked = _ranked(y_true, y_pred, csf, from_logits, "zero_one", sample_weight)
    samples, ranks, losses = ranked
    return float(_ranking(ranks, losses, samples.counts).failure_auroc())


class RiskCoverageCurve(NamedTuple):
    """Selective risk at every coverage that a threshold can give, rising coverage.

    Attributes:
        coverage: share of the samples with a score of at least the threshold.
        risk: their mean loss.
        threshold: the score from which samples are accepted.
    """

    coverage: Array
    risk: Array
    threshold: Array


def risk_coverage_curve(
    y_true: Any,
    y_pred: Any,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> RiskCoverageCurve:
    """Selective risk against coverage.

    Formula:

    ```
    κ(τ) = P(g ≥ τ),     R(τ) = E[ℓ | g ≥ τ]
    ```

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        csf: g, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        A `RiskCoverageCurve` with one point for each distinct score, from the most
        confident samples to all of them.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> curve = risk_coverage_curve(np.array([0, 0, 0]), p)
    >>> curve.coverage.round(3).tolist(), curve.risk.round(3).tolist()
    ([0.333, 0.667, 1.0], [0.0, 0.5, 0.333])

    References:
    - El-Yaniv & Wiener, [On the Foundations of Noise-free Selective
      Classification](https://www.jmlr.org/papers/v11/el-yaniv10a.html)
    """
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    mass, total = _ranking(ranks, losses, samples.counts).accepted()
    _, first = np.unique(ranks, return_index=True)
    threshold = samples.scores(csfs.get(csf))[first[::-1]]
    return RiskCoverageCurve(mass / mass[-1], total / mass, threshold)


def risk_at_coverage(
    y_true: Any,
    y_pred: Any,
    coverage: float,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> float:
    """Mean loss of the most confident share κ of the samples.

    Samples that tie at the cut enter by the share that fits; so does the last sample
    where κ·n is not whole.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        coverage: κ in (0, 1].
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        The risk, a float; NaN where a prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> risk_at_coverage(np.array([0, 0, 0, 0]), p, coverage=0.5)
    0.5
    """
    kappa = check_number(
        "coverage", coverage, "a number in (0, 1]", above=0.0, most=1.0
    )
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    return float(_ranking(ranks, losses, samples.counts).risk_at(kappa))


def coverage_at_risk(
    y_true: Any,
    y_pred: Any,
    risk: float,
    csf: Any = "msp",
    from_logits: bool = False,
    loss: str = "zero_one",
    sample_weight: Any | None = None,
) -> float:
    """Largest coverage at which the selective risk is at most r.

    Samples of equal score are accepted together or not at all.

    Args:
        y_true: class indices (...) or (..., 1), or distributions (..., k).
        y_pred: probabilities or logits, (..., k).
        risk: r ≥ 0.
        csf: the confidence score that ranks, as `keras_selcal.csf.get` takes it.
        from_logits: whether `y_pred` holds logits.
        loss: `"zero_one"`, `"crossentropy"` or `"brier"`.
        sample_weight: of a shape that broadcasts to the samples'.

    Returns:
        The coverage, a float, 0 where no threshold keeps the risk; NaN where a
        prediction is NaN.

    Example:
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> coverage_at_risk(np.array([0, 0, 0, 0]), p, risk=0.3)
    1.0
    """
    r = check_number("risk", risk, "a number of at least 0", least=0.0)
    ranked = _ranked(y_true, y_pred, csf, from_logits, loss, sample_weight)
    samples, ranks, losses = ranked
    return float(_ranking(ranks, losses, samples.counts).coverage_at(r))
