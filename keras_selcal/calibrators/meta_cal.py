"""Meta-Cal: temperature scaling for the samples that are worth an answer."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_selcal._core.ops import Tensor
from keras_selcal._core.saving import serializable
from keras_selcal._core.validation import check_count, check_number, refuse
from keras_selcal.calibrators._linear import log_softmax
from keras_selcal.calibrators.base import (
    Calibrator,
    Parameters,
    check_labelled_logits,
    require,
)
from keras_selcal.calibrators.temperature_scaling import nll_temperature

# The authors' choices.
_BAG_SHARE = 10
_MOST_IN_BAG = 500
_NUM_BINS = 20
# Errors that the bag of `MetaAcc` should hold at the target accuracy.
_ERRORS_IN_BAG = 10


def _entropy(logits: np.ndarray) -> np.ndarray:
    log_p = log_softmax(logits)
    return np.asarray(-(np.exp(log_p) * log_p).sum(axis=-1))


class MetaCalibrator(Calibrator):
    """Base class of `MetaAcc` and `MetaMis`.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    ```

    A bag of the fitting samples gives the threshold h on the entropy H; T minimises
    the negative log-likelihood of the other samples below h.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = check_count("seed", seed, least=0)

    @property
    def temperature(self) -> float:
        """T, once fitted."""
        return float(self.parameters["temperature"])

    @property
    def threshold(self) -> float:
        """The entropy h in nats from which on samples are rejected, once fitted."""
        return float(self.parameters["threshold"])

    @abstractmethod
    def _bag_and_threshold(
        self, entropy: np.ndarray, correct: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """Returns the samples of the bag and h."""

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        entropy = _entropy(logits)
        correct = logits.argmax(axis=-1) == labels
        rng = np.random.default_rng(self.seed)
        bag, h = self._bag_and_threshold(entropy, correct, rng)
        below = entropy < h
        below[bag] = False
        if not below.any():
            raise ValueError(
                f"No sample outside the bag of {len(bag)} has an entropy below the "
                f"threshold {h:g}: there is nothing to fit the temperature on."
            )
        T = nll_temperature(logits[below], labels[below])
        return {"temperature": np.asarray(T), "threshold": np.asarray(h)}

    def _accepts(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        log_p = ops.log_softmax(logits, axis=-1)
        return -ops.sum(ops.exp(log_p) * log_p, axis=-1) < parameters["threshold"]

    def _apply(self, logits: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        accepted = ops.expand_dims(self._accepts(logits, parameters), -1)
        scaled = ops.softmax(logits / parameters["temperature"], axis=-1)
        return ops.where(accepted, scaled, 1 / logits.shape[-1])

    def evaluate(self, logits: Any, labels: Any) -> dict[str, float]:
        """Returns what the rejection costs and gains on labelled data.

        Args:
            logits: (..., k).
            labels: class indices or one-hot.

        Returns:
            A dict of `coverage` (share of the samples that are answered),
            `miscoverage` (share of the right answers that are withheld),
            `accepted_accuracy` (of the answered samples alone), `accuracy` (of all
            samples, the rejected ones by their largest logit) and `uniform_accuracy`
            (of all samples, a rejected one counting 1/k, as a guess would). A share
            of no samples is NaN.
        """
        z, y = check_labelled_logits(logits, labels)
        accepted = ops.convert_to_numpy(self.accepts(z))
        correct = z.argmax(axis=-1) == y

        def share(of: np.ndarray, among: np.ndarray) -> float:
            return float(of[among].mean()) if among.any() else float("nan")

        everyone = np.ones_like(correct)
        guess = np.where(accepted, correct, 1 / z.shape[-1])
        return {
            "coverage": share(accepted, everyone),
            "miscoverage": share(~accepted, correct),
            "accepted_accuracy": share(correct, accepted),
            "accuracy": share(correct, everyone),
            "uniform_accuracy": share(guess, everyone),
        }

    def get_config(self) -> dict[str, Any]:
        return {"seed": self.seed}


@serializable
class MetaMis(MetaCalibrator):
    """Meta-Cal under a miscoverage constraint.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    h = the (1 − α) quantile of H among the correct samples of the bag
    ```

    At most a share α of the samples that the classifier gets right is rejected. The
    bag is a tenth of the correct samples, 500 at most. Rejected samples get the
    uniform vector; `accepts(logits)` tells which they are, for the uniform vector's
    largest entry means nothing.

    Args:
        miscoverage: α in (0, 1).
        seed: of the bag.

    Attributes:
        temperature: T, once fitted.
        threshold: h, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 2000)
    >>> logits = 3 * np.eye(3)[labels] + rng.normal(size=(2000, 3))
    >>> calibrator = MetaMis(miscoverage=0.1).fit(logits, labels)
    >>> abs(calibrator.evaluate(logits, labels)["miscoverage"] - 0.1) < 0.05
    True

    Reference:

    - Ma & Blaschko, [Meta-Cal: Well-controlled Post-hoc Calibration by
      Ranking](https://arxiv.org/abs/2105.04290)
    """

    def __init__(self, miscoverage: float = 0.05, seed: int = 0) -> None:
        super().__init__(seed)
        self.miscoverage = check_number(
            "miscoverage", miscoverage, "a number in (0, 1)", above=0, most=1
        )
        if self.miscoverage == 1:
            refuse("miscoverage", miscoverage, "a number in (0, 1)")

    def _bag_and_threshold(
        self, entropy: np.ndarray, correct: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        candidates = np.flatnonzero(correct)
        size = min(len(candidates) // _BAG_SHARE, _MOST_IN_BAG)
        if size == 0:
            raise ValueError(
                f"MetaMis takes a tenth of the correct samples as its bag and needs at "
                f"least {_BAG_SHARE} of them. Received: {len(candidates)}"
            )
        bag = rng.permutation(candidates)[:size]
        h = np.quantile(entropy[bag], 1 - self.miscoverage, method="higher")
        return bag, float(h)

    def get_config(self) -> dict[str, Any]:
        return {"miscoverage": self.miscoverage, **super().get_config()}


@serializable
class MetaAcc(MetaCalibrator):
    """Meta-Cal under a coverage accuracy constraint.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    h = l(accuracy), l the isotonic regression of entropy on accuracy over the bag
    ```

    The samples that are answered have the given accuracy. The bag, sorted by entropy,
    is cut into 20 bins of equal mass; l relates the mean entropy of each bin to the
    accuracy of all bins up to its end, which errs on the side of accuracy. The bag is
    a tenth of the samples, at most 500 or as many as hold 10 errors at the target
    accuracy. Rejected samples get the uniform vector; `accepts(logits)` tells which
    they are, for the uniform vector's largest entry means nothing. Needs scikit-learn.

    Args:
        accuracy: the target in (0, 1]. One that the bag does not reach, or that the
            classifier exceeds without rejecting anything, is an error at `fit` that
            tells the range.
        seed: of the bag.

    Attributes:
        temperature: T, once fitted.
        threshold: h, once fitted.

    Example:
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 4000)
    >>> logits = 2 * np.eye(3)[labels] + rng.normal(size=(4000, 3))
    >>> calibrator = MetaAcc(accuracy=0.95).fit(logits, labels)
    >>> abs(calibrator.evaluate(logits, labels)["accepted_accuracy"] - 0.95) < 0.03
    True

    Reference:

    - Ma & Blaschko, [Meta-Cal: Well-controlled Post-hoc Calibration by
      Ranking](https://arxiv.org/abs/2105.04290)
    """

    def __init__(self, accuracy: float, seed: int = 0) -> None:
        super().__init__(seed)
        self.accuracy = check_number(
            "accuracy", accuracy, "a number in (0, 1]", above=0, most=1
        )

    def _bag_and_threshold(
        self, entropy: np.ndarray, correct: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        isotonic = require("sklearn.isotonic")
        n = len(entropy)
        wanted = _ERRORS_IN_BAG / max(1 - self.accuracy, _ERRORS_IN_BAG / n)
        size = min(n // _BAG_SHARE, max(_MOST_IN_BAG, int(wanted)))
        if size == 0:
            refuse("logits", n, f"at least {_BAG_SHARE} samples: a tenth is the bag")
        bag = rng.permutation(n)[:size]
        bag = bag[np.argsort(entropy[bag], kind="stable")]
        bins = np.array_split(bag, min(_NUM_BINS, size))
        accuracy = np.array([correct[members].mean() for members in bins])
        accuracy = np.cumsum(accuracy) / np.arange(1, len(bins) + 1)
        mean_entropy = [entropy[members].mean() for members in bins]
        lowest, highest = accuracy.min(), accuracy.max()
        if not lowest <= self.accuracy <= highest:
            refuse(
                "accuracy",
                self.accuracy,
                f"within what can be reached by rejecting, [{lowest:.4g}, "
                f"{highest:.4g}] on a bag of {size} samples",
            )
        curve = isotonic.IsotonicRegression(increasing=False)
        curve.fit(accuracy, mean_entropy)
        return bag, float(curve.predict([self.accuracy])[0])

    def get_config(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, **super().get_config()}
