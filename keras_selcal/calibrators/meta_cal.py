"""Meta-Cal: temperature scaling that rejects samples of high entropy."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_selcal._extras import require
from keras_selcal._formulas.functions import (
    cast,
    constant,
    is_masked,
    log_softmax,
    softmax,
)
from keras_selcal._saving import serializable
from keras_selcal._validation import check_count, check_number, refuse
from keras_selcal.calibrators._parameters import Parameters, cast_all
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled, gather
from keras_selcal.calibrators.temperature_scaling import nll_temperature

# The authors' choices.
_BAG_SHARE = 10
_MOST_IN_BAG = 500
_NUM_BINS = 20
# Errors that the bag of `MetaAcc` should hold at the target accuracy.
_ERRORS_IN_BAG = 10


def _entropy(logits: Any, xp: Any) -> Any:
    """Returns H = −Σ p ln p of softmax(z), (...); a masked class adds 0."""
    log_p = log_softmax(logits, xp)
    return -xp.sum(xp.exp(log_p) * log_p, axis=-1)


class Bag(NamedTuple):
    """Samples set aside to find the threshold.

    Attributes:
        rows: which samples, in the order of their entropy, (m,).
        weight: the weight of each in the bag, (m,); the last one drawn may be in it in
            part.
    """

    rows: np.ndarray
    weight: np.ndarray

    @classmethod
    def draw(
        cls, data: Labelled, entropy: np.ndarray, among: Any, size: int, seed: int
    ) -> "Bag":
        """Draws samples with a total weight of `size`, copies of a sample together."""
        candidates = np.arange(len(data))[among]
        drawn = candidates[np.argsort(data.hashes(seed)[candidates], kind="stable")]
        weight = data.weight[drawn]
        weight = np.clip(size - (np.cumsum(weight) - weight), 0, weight)
        drawn, weight = drawn[weight > 0], weight[weight > 0]
        order = np.argsort(entropy[drawn], kind="stable")
        return cls(drawn[order], weight[order])

    @property
    def upto(self) -> np.ndarray:
        """The cumulative weight, (m,)."""
        return np.cumsum(self.weight)


class MetaCalibrator(Calibrator):
    """Base class of `MetaAcc` and `MetaMis`.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    ```

    A bag of the fitting samples gives the threshold h on the entropy H; T minimises
    the negative log-likelihood of the other samples below h.
    """

    _single_label_because = "a sample is accepted or rejected as a whole"
    _may_reorder = False

    def __init__(
        self,
        seed: int = 0,
        *,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.seed = check_count("seed", seed, least=0)

    @property
    def temperature(self) -> float:
        """T, once fitted."""
        return float(self.parameters["temperature"])

    @property
    def threshold(self) -> float:
        """H in nats, once fitted: samples of at least this entropy are rejected."""
        return float(self.parameters["threshold"])

    @abstractmethod
    def _bag_and_threshold(
        self, data: Labelled, entropy: np.ndarray, correct: np.ndarray
    ) -> tuple[Bag, float]:
        """Returns the bag and h."""

    def _fit(self, data: Labelled) -> Parameters:
        entropy = _entropy(data.logits.astype("float64"), np)
        correct = data.logits.argmax(axis=-1) == data.labels
        bag, h = self._bag_and_threshold(data, entropy, correct)
        rest = data.weight.copy()
        rest[bag.rows] -= bag.weight
        below = (entropy < h) & (rest > 0)
        if not below.any():
            raise ValueError(
                f"No sample outside the bag of {len(bag.rows)} has an entropy below "
                f"the threshold {h:g}: no temperature can be fitted."
            )
        T = nll_temperature(replace(data, weight=rest)[below])
        return {"temperature": np.asarray(T), "threshold": np.asarray(h)}

    def _accepts(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        return _entropy(logits, xp) < parameters["threshold"]

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        h = parameters["threshold"]
        entropy = xp.expand_dims(_entropy(logits, xp), -1)
        scaled = softmax(logits / parameters["temperature"], xp)
        # Uniform over the classes that can occur; NaN where the logits hold NaN.
        possible = 1.0 - cast(is_masked(logits), logits.dtype, xp)
        uniform = possible / xp.sum(possible, axis=-1, keepdims=True)
        uniform = xp.where(entropy >= h, uniform, constant(np.nan, uniform, xp))
        return xp.where(entropy < h, scaled, uniform)

    def evaluate(
        self, logits: Any, labels: Any, *, sample_weight: Any = None
    ) -> dict[str, float]:
        """Measures what the rejection costs and gains on labelled data.

        Args:
            logits: as in `fit`.
            labels: as in `fit`.
            sample_weight: as in `fit`.

        Returns:
            A dict with `coverage` (share of the samples that are accepted),
            `miscoverage` (share of the correct predictions that are rejected),
            `accepted_accuracy` (accuracy of the accepted samples), `accuracy`
            (accuracy of all samples, by their largest logits) and `uniform_accuracy`
            (accuracy of all samples, where a rejected one counts as a guess, 1/k). A
            share of no samples is NaN.
        """
        (data,), _ = gather(self.outputs, logits, labels, sample_weight)
        z = data.logits
        accepted = self._accepts(z, cast_all(self.parameters, z.dtype, np), np)
        correct = data.logits.argmax(axis=-1) == data.labels

        def share(of: np.ndarray, among: np.ndarray) -> float:
            w = data.weight[among]
            return float(w @ of[among] / w.sum()) if among.any() else float("nan")

        everyone = np.ones_like(correct)
        guess = np.where(accepted, correct, 1 / data.num_classes)
        return {
            "coverage": share(accepted, everyone),
            "miscoverage": share(~accepted, correct),
            "accepted_accuracy": share(correct, accepted),
            "accuracy": share(correct, everyone),
            "uniform_accuracy": share(guess, everyone),
        }


@serializable
class MetaMis(MetaCalibrator):
    """Meta-Cal under a miscoverage constraint.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    h = the (1 − α) quantile of H among the correct samples of the bag
    ```

    At most a share α of the correctly classified samples is rejected. The bag is a
    tenth of the correct samples, at most 500. Rejected samples get the uniform vector,
    whose largest entry has no meaning; `accepts(logits)` returns which samples are
    accepted.

    Args:
        miscoverage: α in (0, 1).
        seed: seed of the bag.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: False: a sample is accepted or rejected as a whole.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

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

    References:
    - Ma & Blaschko, [Meta-Cal: Well-controlled Post-hoc Calibration by
      Ranking](https://arxiv.org/abs/2105.04290)
    """

    def __init__(
        self,
        miscoverage: float = 0.05,
        *,
        seed: int = 0,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            seed,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.miscoverage = check_number(
            "miscoverage", miscoverage, "a number in (0, 1)", above=0, below=1
        )

    def _bag_and_threshold(
        self, data: Labelled, entropy: np.ndarray, correct: np.ndarray
    ) -> tuple[Bag, float]:
        total = float(data.weight @ correct)
        size = min(int(total // _BAG_SHARE), _MOST_IN_BAG)
        if size == 0:
            raise ValueError(
                f"MetaMis takes a tenth of the correct samples as its bag and needs at "
                f"least {_BAG_SHARE} of them. Received: {total:g}"
            )
        bag = Bag.draw(data, entropy, correct, size, self.seed)
        # The quantile of np.quantile(…, method="higher"), each sample w times.
        position = np.ceil((size - 1) * (1 - self.miscoverage))
        at = np.searchsorted(bag.upto, position, side="right")
        return bag, float(entropy[bag.rows[min(int(at), len(bag.rows) - 1)]])


@serializable
class MetaAcc(MetaCalibrator):
    """Meta-Cal under a coverage accuracy constraint.

    Formula:

    ```
    p = softmax(z / T)   where H(softmax(z)) < h,     uniform elsewhere
    h = l(accuracy), l the isotonic regression of entropy on accuracy over the bag
    ```

    The accepted samples have the given accuracy. The bag, sorted by entropy, is cut
    into 20 bins of equal mass; l relates the mean entropy of each bin to the accuracy
    of all bins up to its end, which tends to reject more than necessary. The bag is a
    tenth of the samples, at most 500 or as many as hold 10 errors at the target
    accuracy. Rejected samples are treated as in `MetaMis`. Requires scikit-learn.

    Args:
        accuracy: the target in (0, 1]. If the bag does not reach it, or the classifier
            exceeds it without rejecting anything, `fit` raises an error that states
            the possible range.
        seed: seed of the bag.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: False: a sample is accepted or rejected as a whole.
        ignore_class: samples with this label are left out of the fit.
        axis: axis of the classes: -1, or 1 for channels first.

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

    References:
    - Ma & Blaschko, [Meta-Cal: Well-controlled Post-hoc Calibration by
      Ranking](https://arxiv.org/abs/2105.04290)
    """

    def __init__(
        self,
        accuracy: float,
        *,
        seed: int = 0,
        from_logits: bool = True,
        multi_label: bool = False,
        ignore_class: int | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__(
            seed,
            from_logits=from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
        )
        self.accuracy = check_number(
            "accuracy", accuracy, "a number in (0, 1]", above=0, most=1
        )

    def _bag_and_threshold(
        self, data: Labelled, entropy: np.ndarray, correct: np.ndarray
    ) -> tuple[Bag, float]:
        isotonic = require("sklearn.isotonic", "This calibrator")
        n = data.total
        wanted = _ERRORS_IN_BAG / max(1 - self.accuracy, _ERRORS_IN_BAG / n)
        size = min(int(n // _BAG_SHARE), max(_MOST_IN_BAG, int(wanted)))
        if size == 0:
            refuse("logits", n, f"at least {_BAG_SHARE} samples: a tenth is the bag")
        bag = Bag.draw(data, entropy, slice(None), size, self.seed)
        # Near-equal runs of the bag, as np.array_split makes them, each sample w times.
        num_bins = min(_NUM_BINS, size)
        run = np.diff(np.arange(num_bins + 1) * size // num_bins)
        ends = np.cumsum(np.sort(run)[::-1])[:, None]
        upto = np.minimum(bag.upto, ends)
        share = np.diff(upto, axis=0, prepend=0)
        share = np.diff(share, axis=1, prepend=0)
        mass = share.sum(axis=1)
        accuracy = share @ correct[bag.rows] / mass
        accuracy = np.cumsum(accuracy) / np.arange(1, num_bins + 1)
        mean_entropy = share @ entropy[bag.rows] / mass
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
