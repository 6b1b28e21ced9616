"""The AU loss: area under the risk-coverage curve up to a confidence threshold."""

import math
import warnings
from typing import Any

import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._arrays import Tensor
from keras_selcal._backend.alone import ALONE
from keras_selcal._backend.replicas import replicas
from keras_selcal._formulas.soft_cdf import (
    THROUGH,
    au_weights,
    check_cdf_arguments,
    check_region,
)
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice, check_number
from keras_selcal.losses.base import ReweightedLoss

# Above this drag a network learns slowly or not at all.
_MOST_DRAG = 0.1


def drag(weight_gradient: float, smoothing: float, num_classes: int) -> float:
    """Returns the drag D, the effect of ∇β on the first steps of training.

    Formula:

    ```
    D = w ln k (1 − 1/k) / (2 ln 2 · k ν)
    ```

    At the start, with p ≈ 1/k and all scores equal, the confidence p of the top class
    grows only while its accuracy a satisfies a − p > D. With D near 1 or above the
    network cannot learn; with D = 0.2 it learns slowly.

    Args:
        weight_gradient: w of `AULoss`.
        smoothing: ν of `AULoss`.
        num_classes: k.

    Example:
    >>> round(drag(weight_gradient=1, smoothing=0.1, num_classes=10), 2)
    1.49
    """
    k = num_classes
    gain = math.log(k) * (1 - 1 / k) / (2 * math.log(2) * k)
    return weight_gradient * gain / smoothing


@serializable
class AULoss(ReweightedLoss):
    """Area under the risk-coverage curve up to a confidence threshold.

    Formula:

    ```
    AU = (1/n) Σ β_i ℓ_i,     β_i = −C ln(1 − Ĝ_ν(min(s_i, τ))),     C = 1/Ĝ_ν(τ)
    ```

    with s_i the confidence score of sample i, Ĝ_ν the soft CDF of the batch's scores
    and τ the score below which the least confident share κ of the batch lies.

    The loss gives confident samples more weight: β rises with the rank of a sample's
    confidence up to τ and is constant above it. With scores spread evenly over [0, 1],
    β is 1.09 for the least and 1.43 for the most confident samples by default, and 0.10
    and 1.83 with the paper's `smoothing=0.1`.

    The default arguments were chosen on validation data
    (`recipes/experiment/EXPERIMENT.md`): on four data sets, with Adam and SGD, accuracy
    is at most 0.2 points below cross-entropy, and ECE before scaling is 0.90 times as
    large (95 % interval 0.75 to 1.09), which is no clear gain. With `smoothing=0.1`,
    accuracy is up to 4 points lower. `smoothing=0.76, weight_gradient=1` is the paper's
    loss for 10 classes; it lowers confidence, and with it the ECE of overconfident
    networks.

    The cost is O(nM).

    Args:
        csf: confidence score function: a name of `keras_selcal.csf`, such as `"msp"`,
            or a callable.
        quantile: κ in (0, 1]; τ is the κ-quantile of the batch's scores. Defaults to
            0.75.
        threshold: τ itself, on the scale of the scores; pass at most one of
            `quantile` and `threshold`.
        num_bins: M, the number of bins of the soft CDF.
        smoothing: ν, on scores scaled to [0, 1]. The larger ν is, the less the weights
            differ. `keras_selcal.functional.paper_smoothing` converts a ν of the paper.
        weight_gradient: w in [0, 1], the share of β's own gradient that is kept. 1 is
            the paper's gradient (Eq. gradientAU); 0 treats β as a constant. In full,
            ∇β lowers every confidence in proportion to its loss, and a network does
            not learn at the paper's ν; a warning is given where this drag is large.
        through: what β's gradient includes. `"score"`: only the effect of a sample's
            score on its own β, with Ĝ_ν held fixed, as in the paper. `"cdf"`: also its
            effect on Ĝ_ν, the CDF of these same scores. The gradient at s_i is then
            about β′(s_i)(ℓ_i − ℓ̄(s_i)), ℓ̄(s) the mean loss at confidence s: samples
            that are worse than others of like confidence move down, better ones move
            up, and the batch as a whole is not dragged down, unless many scores lie
            within half a bin of an end of the support. With `smoothing=0.1`
            it was no better than constant weights in `recipes/STUDY.md`. In either case
            Ĝ_ν(τ) is held constant, and with it C and the β of samples above τ; also
            with a given `threshold`, where Ĝ_ν(τ) does change with the scores.
        base_loss: ℓ: `"crossentropy"`, `"brier"`, or any loss with one value for each
            sample (see `ReweightedLoss`).
        synchronized: whether replicas of `tf.distribute` or `torch.distributed` rank
            their samples together, or each its own share of the batch. With JAX,
            `keras.distribution` always ranks the global batch. `docs/devices.md`
            measures the difference.
        strength: a in [0, 1]; the loss is (1 − a + a β) ℓ. With 0 it is the base loss.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label are left out.
        label_smoothing: ε in [0, 1): labels become (1 − ε) y + ε/k.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        reduction: type of reduction to apply to the loss; see `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.

    Sample weights and masks: a sample of weight 0 changes nothing for the others; one
    of integer weight m gets the β that m copies of it would get.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], "float32")
    >>> round(float(AULoss(csf="msp")(np.array([0, 1, 1]), probabilities)), 4)
    0.5417

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Eq. auloss
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        quantile: float | None = None,
        threshold: float | None = None,
        num_bins: int = 64,
        smoothing: float = 2.0,
        weight_gradient: float = 0.0,
        through: str = "score",
        base_loss: Any = "crossentropy",
        synchronized: bool = False,
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "au_loss",
        dtype: Any = None,
    ) -> None:
        super().__init__(
            base_loss,
            strength=strength,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            label_smoothing=label_smoothing,
            axis=axis,
            reduction=reduction,
            name=name,
            dtype=dtype,
        )
        self.csf = csf_module.get(csf, from_logits=self.from_logits)
        self.quantile, self.threshold = check_region(quantile, threshold)
        self.num_bins, self.smoothing = check_cdf_arguments(num_bins, smoothing)
        self.weight_gradient = check_number(
            "weight_gradient", weight_gradient, "a number in [0, 1]", least=0, most=1
        )
        self.through = check_choice("through", through, THROUGH)
        self.synchronized = bool(synchronized)
        self._warned = False

    def weights(self, batch: Batch) -> Tensor:
        """Returns β, (n,)."""
        self._warn_of_drag(batch.num_classes)
        w, weight, threshold = self.weight_gradient, batch.sample_weight, self.threshold
        scores = batch.by_label(self.csf.squashed(batch.scores(self.csf), ops))
        if threshold is not None:
            threshold = float(self.csf.squashed(np.float64(threshold), np))
        beta = au_weights(
            ops.stop_gradient(scores) if w == 0 else scores,
            None if weight is None else batch.by_label(weight),
            level=self.quantile,
            threshold=threshold,
            num_bins=self.num_bins,
            smoothing=self.smoothing,
            support=self.csf.squashed_support(batch.num_classes),
            through=self.through,
            replicas=replicas() if self.synchronized else ALONE,
            xp=ops,
        )
        beta = batch.from_labels(beta)
        if w in (0, 1):
            return beta
        return w * beta + (1.0 - w) * ops.stop_gradient(beta)

    def _warn_of_drag(self, num_classes: int) -> None:
        if self._warned or self.through == "cdf":
            return
        d = drag(self.weight_gradient, self.smoothing, num_classes)
        if d > _MOST_DRAG:
            self._warned = True
            warnings.warn(
                f"AULoss with weight_gradient w={self.weight_gradient:g} and smoothing "
                f"ν={self.smoothing:g} has a drag of D={d:.2g} at k={num_classes} "
                f"classes (above {_MOST_DRAG:g}): the network may learn slowly or not "
                "at all. Lower `weight_gradient` or raise `smoothing`.",
                stacklevel=2,
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "quantile": self.quantile,
            "threshold": self.threshold,
            "num_bins": self.num_bins,
            "smoothing": self.smoothing,
            "weight_gradient": self.weight_gradient,
            "through": self.through,
            "synchronized": self.synchronized,
        }
