"""The AURC loss: area under the whole risk-coverage curve."""

from typing import Any

from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._arrays import Tensor
from keras_selcal._formulas.harmonic import ESTIMATORS, rank_weights
from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import serializable
from keras_selcal._validation import check_choice
from keras_selcal.losses.base import ReweightedLoss


@serializable
class AURCLoss(ReweightedLoss):
    """Area under the risk-coverage curve of a batch.

    Formula, for the r-th least confident of n samples:

    ```
    AURC = (1/n) Σ α_i ℓ_i,
    α_r = H_n − H_{n−r}            estimator="harmonic", H the harmonic numbers
    α_r = −ln(1 − r/(n + 1))       estimator="log"
    ```

    The weights are computed for the size of each batch, also for a short last one, and
    carry no gradient. Samples of equal score share the mean weight of their ranks.

    Args:
        csf: confidence score function: a name of `keras_selcal.csf`, such as `"msp"`,
            or a callable.
        estimator: `"harmonic"` or `"log"`.
        base_loss: ℓ: `"crossentropy"`, `"brier"`, or any loss with one value for each
            sample (see `ReweightedLoss`).
        strength: a in [0, 1]; the loss is (1 − a + a α) ℓ. With 0 it is the base loss.
        from_logits: whether `y_pred` holds logits instead of probabilities.
        multi_label: whether `y_pred` holds k independent sigmoids.
        ignore_class: samples with this label are left out.
        label_smoothing: ε in [0, 1): labels become (1 − ε) y + ε/k.
        axis: axis of the classes in `y_pred`: −1, or 1 for channels first.
        reduction: type of reduction to apply to the loss; see `keras.losses.Loss`.
        name: name of the loss.
        dtype: dtype of the result. Defaults to `keras.config.floatx()`.

    Example:
    >>> import numpy as np
    >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], "float32")
    >>> round(float(AURCLoss()(np.array([0, 1, 1]), probabilities)), 4)
    0.2282

    References:
    - Geifman et al., [Bias-Reduced Uncertainty Estimation for Deep Neural
      Classifiers](https://arxiv.org/abs/1805.08206)
    - Zhou et al., [A Novel Characterization of the Population Area Under the Risk
      Coverage Curve (AURC) and Rates of Finite Sample
      Estimators](https://arxiv.org/abs/2410.15361)
    """

    def __init__(
        self,
        csf: Any = "msp",
        *,
        estimator: str = "harmonic",
        base_loss: Any = "crossentropy",
        strength: float = 1.0,
        from_logits: bool = False,
        multi_label: bool = False,
        ignore_class: int | None = None,
        label_smoothing: float = 0.0,
        axis: int = -1,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = "aurc_loss",
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
        self.estimator = check_choice("estimator", estimator, ESTIMATORS)

    def weights(self, batch: Batch) -> Tensor:
        """Returns α, (n,)."""
        weight = batch.sample_weight
        alpha = rank_weights(
            batch.by_label(batch.scores(self.csf)),
            None if weight is None else batch.by_label(weight),
            self.estimator,
            ops,
        )
        return batch.from_labels(alpha)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "csf": self.csf.serialize(),
            "estimator": self.estimator,
        }
