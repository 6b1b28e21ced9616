"""Selective prediction: classifiers that answer only where they are sure enough."""

import copy
import functools
import hashlib
import math
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._models import (
    append_layer,
    check_outputs,
    gives_logits,
    is_array,
    predict_with_labels,
)
from keras_selcal._ops import Tensor
from keras_selcal._saving import serializable
from keras_selcal._validation import check_number, refuse
from keras_selcal.calibrators.base import (
    CalibrationLayer,
    Calibrator,
    Parameters,
    check_labelled_logits,
)
from keras_selcal.functional._samples import to_numpy

ABSTAINED = -1
"""The label of a sample that gets no answer."""

_DEFAULT_DELTA = 0.05
# Coverages that the search for a guaranteed risk looks at.
_COVERAGES = 500


def risk_bound(errors: int, n: int, delta: float) -> float:
    """Returns the largest risk that `errors` of `n` samples leave plausible.

    Formula:

    ```
    b = sup { b : Σ_{j ≤ e} C(n, j) b^j (1 − b)^(n − j) ≥ δ }
    ```

    The exact upper bound of Clopper and Pearson: for independent samples the true risk
    exceeds b with a probability of at most δ.

    Args:
        errors: e, the number of wrong answers.
        n: the number of answers.
        delta: δ in (0, 1).

    Example:
    >>> round(risk_bound(0, 100, 0.05), 4)  # 1 − 0.05^(1/100)
    0.0295
    """
    if errors >= n:
        return 1.0
    low, high = errors / n, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if _binomial_tail(errors, n, middle) > delta:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=4)
def _log_factorials(n: int) -> np.ndarray:
    """Returns ln 0!, …, ln n!."""
    return np.cumsum(np.log(np.maximum(np.arange(n + 1.0), 1)))


def _binomial_tail(errors: int, n: int, b: float) -> float:
    """Returns P(e ≤ errors) for n samples of risk b in (0, 1)."""
    # Tables are shared between sizes: one for each power of two.
    log_factorial = _log_factorials(1 << n.bit_length())
    j = np.arange(errors + 1)
    log_choose = log_factorial[n] - log_factorial[j] - log_factorial[n - j]
    log_terms = log_choose + j * math.log(b) + (n - j) * math.log1p(-b)
    return float(np.exp(log_terms).sum())


def select_threshold(
    scores: Any,
    correct: Any,
    coverage: float | None = None,
    risk: float | None = None,
    delta: float | None = None,
) -> float:
    """Returns the confidence from which on a classifier should answer.

    A sample is accepted where score ≥ threshold; equal scores are never split.

    - `coverage=κ`: the largest threshold that accepts at least a share κ.
    - `risk=r`: the threshold of largest coverage whose share of errors among the
      accepted samples is at most r. That share is of these samples; on new ones it
      exceeds r about half of the time.
    - `risk=r, delta=δ`: the threshold of large coverage whose true risk is at most r
      with probability 1 − δ over the samples (selection with guaranteed risk).

    The guarantee rests on the exact binomial tail. A threshold that accepts m samples,
    e of them wrong, passes at level α if

    ```
    Σ_{j ≤ e} C(m, j) r^j (1 − r)^(m − j) ≤ α
    ```

    that is, if the bound of Clopper and Pearson at α is at most r. The search walks
    through 500 coverages upwards. It starts anew at ½, ¼, ⅛, … of the samples with a
    share ½, ¼, ⅛, … of δ (the union bound); a threshold that passes hands its α on to
    the next, one that fails ends it. So δ is paid for the starts alone, and coverages
    above ½ are judged at a level between δ/2 and δ.

    The samples must be independent draws from where the threshold will be used, and
    not those that the classifier or its calibrator was fitted on.

    Args:
        scores: confidence scores (n,): the larger, the surer. A score of −∞ is never
            accepted.
        correct: whether each answer is right, (n,).
        coverage: κ in (0, 1].
        risk: r in [0, 1].
        delta: δ in (0, 1), with `risk` only.

    Example:
    >>> import numpy as np
    >>> scores = np.array([0.9, 0.8, 0.7, 0.6])
    >>> correct = np.array([True, True, False, True])
    >>> select_threshold(scores, correct, coverage=0.5)
    0.8
    >>> select_threshold(scores, correct, risk=0.25)
    0.6

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500) (the guarantee by binomial tails)
    - Angelopoulos et al., [Learn then Test: Calibrating Predictive Algorithms to
      Achieve Risk Control](https://arxiv.org/abs/2110.01052) (fixed sequences with
      several starts)
    """
    coverage, risk, delta = _check_target(coverage, risk, delta)
    s = to_numpy(scores).astype("float64").reshape(-1)
    right = to_numpy(correct).reshape(-1)
    if len(s) == 0 or len(s) != len(right):
        refuse(
            "scores",
            s.shape,
            f"one a sample, at least one, as `correct`, of shape {right.shape}",
        )
    if np.isnan(s).any() or np.isposinf(s).any():
        refuse("scores", "NaN or +inf", "finite, or −inf for what is never accepted")
    if not np.isin(right, (0, 1)).all():
        refuse("correct", right, "boolean")

    n = len(s)
    order = np.argsort(-s, kind="stable")
    s, wrong = s[order], np.cumsum(right[order] == 0)
    # The last position of each run of equal scores: where the cut may be.
    last = np.append(np.flatnonzero(s[1:] != s[:-1]), n - 1)
    last = last[s[last] > -math.inf]
    accepted, errors = last + 1, wrong[last]

    if coverage is not None:
        # The least count that a share κ asks for, rounding of κ n aside.
        enough = np.flatnonzero(accepted >= coverage * n * (1 - 1e-12))
        if not len(enough):
            raise ValueError(
                f"No threshold accepts a share of {coverage:g}: only {len(last)} "
                f"distinct scores are above −inf, {accepted[-1:].sum()} of {n} samples."
            )
        return float(s[last[enough[0]]])
    assert risk is not None
    if delta is None:
        low_risk = np.flatnonzero(errors <= risk * accepted * (1 + 1e-12))
        if not len(low_risk):
            smallest = (errors / accepted).min() if len(last) else math.nan
            raise ValueError(
                f"No threshold has a risk of at most {risk:g} on these {n} samples: "
                f"the smallest is {smallest:.4g}."
            )
        return float(s[last[low_risk[-1]]])
    return float(s[last[_guaranteed(accepted, errors, n, risk, delta)]])


def _guaranteed(
    accepted: np.ndarray, errors: np.ndarray, n: int, risk: float, delta: float
) -> int:
    """Returns the position of the cut of largest guaranteed coverage."""
    if risk == 1 and len(accepted):
        return len(accepted) - 1
    # Fewer samples do not pass even if all are right: (1 − r)^m > δ.
    fewest = math.log(delta) / math.log1p(-risk) if risk else math.inf
    if not len(accepted) or accepted[-1] < fewest:
        raise ValueError(
            f"No threshold has a risk of at most {risk:g} with probability "
            f"{1 - delta:g}: that takes at least {np.ceil(fewest):g} accepted samples, "
            f"all of them right. Received: {accepted[-1:].sum()}"
        )
    counts = np.arange(1, _COVERAGES + 1) / _COVERAGES * n
    counts = np.append(counts[counts >= fewest], fewest)
    positions = np.unique(np.searchsorted(accepted, counts.clip(max=accepted[-1])))
    # Starts at n/2, n/4, …, each with half of the δ that is left, as long as half of
    # their samples would do without an error; the lowest one gets the rest.
    share = np.zeros(len(positions))
    start, left, lowest = n / 2, delta, 0
    while start / 2 * math.log1p(-risk) <= math.log(left / 2):
        lowest = int(np.searchsorted(accepted[positions], start))
        lowest = min(lowest, len(positions) - 1)
        share[lowest] += left / 2
        start, left = start / 2, left / 2
    share[lowest] += left

    best, level = -1, 0.0
    for position, added in zip(positions, share, strict=True):
        level += added
        e, m = int(errors[position]), int(accepted[position])
        if level and _binomial_tail(e, m, risk) <= level:
            best = int(position)
        else:
            level = 0.0
    if best < 0:
        some = positions[:: max(1, len(positions) // 20)]
        smallest = min(
            risk_bound(int(errors[position]), int(accepted[position]), delta)
            for position in some
        )
        raise ValueError(
            f"No threshold has a risk of at most {risk:g} with probability "
            f"{1 - delta:g} on these {n} samples: the bound of single thresholds goes "
            f"down to {smallest:.3g}. Raise `risk` or `delta`, or bring more samples."
        )
    return best


def _check_target(
    coverage: float | None, risk: float | None, delta: float | None
) -> tuple[float | None, float | None, float | None]:
    if (coverage is None) == (risk is None):
        refuse("coverage", coverage, "given, or else `risk`, and not both")
    if coverage is not None:
        coverage = check_number(
            "coverage", coverage, "a number in (0, 1]", above=0, most=1
        )
        if delta is not None:
            refuse("delta", delta, "left out with `coverage`; it belongs to `risk`")
    if risk is not None:
        risk = check_number("risk", risk, "a number in [0, 1]", least=0, most=1)
    if delta is not None:
        delta = _check_delta(delta)
    return coverage, risk, delta


def _check_delta(delta: float) -> float:
    number = check_number("delta", delta, "a number in (0, 1)", above=0, most=1)
    if number == 1:
        refuse("delta", delta, "a number in (0, 1)")
    return number


class SelectivePrediction(NamedTuple):
    """Answers of a selective classifier.

    Attributes:
        labels: predicted classes; −1 (`ABSTAINED`) where the sample is not accepted.
        accepted: which samples are answered.
        confidence: confidence scores, of rejected samples too.
    """

    labels: np.ndarray
    accepted: np.ndarray
    confidence: np.ndarray


@serializable
class Uncalibrated(Calibrator):
    """The softmax alone, where no calibrator is given."""

    def _fit(self, logits: np.ndarray, labels: np.ndarray) -> Parameters:
        return {}

    def _apply(self, logits: Tensor, parameters: Any) -> Tensor:
        return ops.softmax(logits, axis=-1)


@serializable
class SelectionLayer(keras.layers.Layer):
    """Calibrates, scores and decides: the last layer of a saved selective classifier.

    Maps a model's output (..., k) to a dict of `probabilities` (..., k), `confidence`
    (...), `accepted` (...) and `labels` (...), the last −1 where not accepted.

    Args:
        calibration: a `CalibrationLayer`.
        csf: confidence score function.
        threshold: the confidence from which on samples are accepted.
        delta: δ of the fit, if it had one.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(
        self,
        calibration: CalibrationLayer,
        csf: Any = "msp",
        threshold: float = -math.inf,
        delta: float | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("dtype", "float32")
        super().__init__(**kwargs)
        self.calibration = calibration
        self.csf = csf_module.get(csf)
        self.threshold = float(threshold)
        self.delta = delta
        self.built = True

    def call(self, inputs: Tensor) -> dict[str, Tensor]:
        answer = self.answer(inputs)
        accepted = answer["accepted"] & (answer["confidence"] >= self.threshold)
        return {
            "probabilities": answer["probabilities"],
            "confidence": answer["confidence"],
            "accepted": accepted,
            "labels": ops.where(accepted, answer["labels"], ABSTAINED),
        }

    def answer(self, inputs: Tensor) -> dict[str, Tensor]:
        """Returns the same before the threshold: every sample keeps its label.

        `accepted` is what the calibrator answers. A sample that it rejects has the
        label of its largest logit: the uniform vector has none.
        """
        probabilities = self.calibration(inputs)
        accepted = self.calibration.accepts(inputs)
        labels = ops.where(
            accepted, ops.argmax(probabilities, axis=-1), ops.argmax(inputs, axis=-1)
        )
        return {
            "probabilities": probabilities,
            "confidence": self.csf(probabilities),
            "accepted": accepted,
            "labels": ops.cast(labels, "int32"),
        }

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "calibration": keras.saving.serialize_keras_object(self.calibration),
            "csf": self.csf.serialize(),
            "threshold": self.threshold,
            "delta": self.delta,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SelectionLayer":
        calibration = keras.saving.deserialize_keras_object(config["calibration"])
        return cls(**{**config, "calibration": calibration})


class SelectiveClassifier:
    """A classifier that abstains where it is not sure enough.

    Formula:

    ```
    answer(x) = argmax p(x)   where g(p(x)) ≥ τ,     none elsewhere
    ```

    with p the calibrated probabilities of the model, g a confidence score function and
    τ the threshold that `fit` selects on held-out data.

    Args:
        model: a functional Keras model, or a built Sequential one, of one output.
        csf: g: `"msp"`, `"margin"`, `"neg_entropy"` or a callable (see
            `keras_selcal.csf`).
        calibrator: a calibrator of `keras_selcal.calibrators`. If it is not fitted yet,
            `fit` fits a copy on every other sample and selects the threshold on the
            rest, so that the guarantee of δ holds. What it rejects (`MetaAcc`,
            `MetaMis`) is never accepted.
        from_logits: whether the model gives logits. By default it does unless its last
            operation is a softmax.

    Attributes:
        threshold: τ, once fitted; None before.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from keras_selcal import SelectiveClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 300)
    >>> x = 2 * np.eye(3)[y] + rng.normal(size=(300, 3))
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Softmax()])
    >>> classifier = SelectiveClassifier(model)
    >>> classifier = classifier.fit(x[:200], y[:200], coverage=0.8, verbose=0)
    >>> labels, accepted, confidence = classifier.predict(x[200:], verbose=0)
    >>> bool((labels[~accepted] == -1).all())
    True

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500)
    - El-Yaniv & Wiener, [On the Foundations of Noise-free Selective
      Classification](https://www.jmlr.org/papers/v11/el-yaniv10a.html)
    """

    def __init__(
        self,
        model: keras.Model,
        csf: Any = "msp",
        calibrator: Calibrator | None = None,
        from_logits: bool | None = None,
    ) -> None:
        if not isinstance(model, keras.Model):
            refuse("model", model, "a Keras model")
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            refuse("calibrator", calibrator, "a calibrator of keras_selcal, or None")
        self.model = model
        self.csf = csf_module.get(csf)
        self.calibrator = calibrator
        self.from_logits = gives_logits(model, from_logits)
        self._selection: SelectionLayer | None = None
        self._fitted_on: Any = None

    @property
    def threshold(self) -> float | None:
        return None if self._selection is None else self._selection.threshold

    def fit(
        self,
        x: Any,
        y: Any = None,
        coverage: float | None = None,
        risk: float | None = None,
        delta: float | None = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> "SelectiveClassifier":
        """Selects the threshold on held-out data and returns the classifier.

        The threshold lies just below the lowest accepted score, by 1e-6 or half the
        way to the next score, so that another backend's rounding rejects none of them.

        Args:
            x: arrays, or a data set of (x, y) batches (`tf.data.Dataset`,
                `keras.utils.PyDataset`, PyTorch's `DataLoader`, any iterable).
            y: class indices or one-hot labels, where `x` is arrays.
            coverage: see `select_threshold`; this or `risk`.
            risk: see `select_threshold`.
            delta: see `select_threshold`.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.
        """
        _check_target(coverage, risk, delta)
        outputs, labels = predict_with_labels(self.model, x, y, batch_size, verbose)
        outputs, labels = check_labelled_logits(outputs, labels)
        check_outputs(outputs, self.from_logits)
        digest = _digest(x, outputs, labels)
        calibrator = self.calibrator
        if calibrator is None:
            calibrator = Uncalibrated()._with_parameters({}, outputs.shape[-1])
        elif not calibrator.fitted:
            logits = outputs if self.from_logits else _log(outputs)
            calibrator = copy.copy(calibrator).fit(logits[::2], labels[::2])
            outputs, labels = outputs[1::2], labels[1::2]
        selection = SelectionLayer(
            CalibrationLayer(calibrator, self.from_logits), self.csf, delta=delta
        )
        answer = _to_numpy(selection.answer(ops.convert_to_tensor(outputs)))
        scores = np.where(answer["accepted"], answer["confidence"], -math.inf)
        correct = answer["labels"] == labels
        threshold = select_threshold(scores, correct, coverage, risk, delta)
        selection.threshold = _with_margin(threshold, scores)
        if self.calibrator is not None:
            self.calibrator = calibrator
        self._selection = selection
        self._fitted_on = digest
        return self

    def predict(
        self, x: Any, batch_size: int | None = None, verbose: Any = "auto"
    ) -> SelectivePrediction:
        """Returns labels (−1 for an abstention), which are accepted, and confidences.

        Args:
            x: whatever `keras.Model.predict` takes.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        outputs = self.model.predict(x, batch_size=batch_size, verbose=verbose)
        decision = self._decide(outputs)
        return SelectivePrediction(
            decision["labels"], decision["accepted"], decision["confidence"]
        )

    def predict_probabilities(
        self, x: Any, batch_size: int | None = None, verbose: Any = "auto"
    ) -> np.ndarray:
        """Returns calibrated probabilities (..., k), of rejected samples too.

        Args:
            x: whatever `keras.Model.predict` takes.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        outputs = self.model.predict(x, batch_size=batch_size, verbose=verbose)
        return self._decide(outputs)["probabilities"]

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        delta: float | None = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> dict[str, float]:
        """Returns how the classifier does on labelled data, not those of `fit`.

        Args:
            x: as in `fit`.
            y: as in `fit`.
            delta: δ of the bound. Defaults to that of `fit`, or else 0.05.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.

        Returns:
            A dict of `coverage` (share of the samples that are accepted),
            `selective_risk` (share of errors among them; NaN where none is accepted),
            `selective_risk_bound` (what the true selective risk exceeds with a
            probability of at most δ, see `risk_bound`) and `accuracy` (on all samples,
            as if none were rejected).
        """
        selection = self._fitted()
        if delta is None:
            delta = selection.delta or _DEFAULT_DELTA
        delta = _check_delta(delta)
        outputs, labels = predict_with_labels(self.model, x, y, batch_size, verbose)
        outputs, labels = check_labelled_logits(outputs, labels)
        if self._fitted_on == _digest(x, outputs, labels):
            warnings.warn(
                "The classifier is evaluated on the data that its threshold was "
                "selected on: risk and coverage look better than they are.",
                stacklevel=2,
            )
        answer = _to_numpy(selection.answer(ops.convert_to_tensor(outputs)))
        accepted = self._decide(outputs)["accepted"]
        correct = answer["labels"] == labels
        n, errors = int(accepted.sum()), int((accepted & ~correct).sum())
        return {
            "coverage": float(accepted.mean()),
            "selective_risk": errors / n if n else math.nan,
            "selective_risk_bound": risk_bound(errors, n, delta),
            "accuracy": float(correct.mean()),
        }

    def as_model(self) -> keras.Model:
        """Returns a Keras model that does it all, to save, export or serve.

        It maps the model's inputs to a dict of `probabilities`, `confidence`,
        `accepted` and `labels` (−1 where not accepted).
        """
        return append_layer(self.model, self._fitted())

    def save(self, path: Any) -> None:
        """Saves model, calibrator, confidence score and threshold as one .keras file.

        Args:
            path: ends in .keras.
        """
        if not str(path).endswith(".keras"):
            refuse("path", str(path), "a path that ends in .keras")
        self.as_model().save(path)

    @classmethod
    def load(cls, path: Any) -> "SelectiveClassifier":
        """Loads what `save` has written, on this or any other backend.

        Args:
            path: of a .keras file.
        """
        loaded = keras.saving.load_model(path, compile=False)
        # Inputs, then the model, then the layer that `as_model` has put behind it.
        layers = list(getattr(loaded, "layers", ()))
        if len(layers) < 3 or not isinstance(layers[-1], SelectionLayer):
            refuse("path", str(path), "a file saved by `SelectiveClassifier.save`")
        model, selection = layers[-2], layers[-1]
        calibrator: Calibrator | None = selection.calibration.calibrator
        if isinstance(calibrator, Uncalibrated):
            calibrator = None
        from_logits = selection.calibration.from_logits
        classifier = cls(model, selection.csf, calibrator, from_logits)
        classifier._selection = selection
        return classifier

    def _fitted(self) -> SelectionLayer:
        if self._selection is None:
            raise ValueError("This SelectiveClassifier has no threshold: call `fit`.")
        return self._selection

    def _decide(self, outputs: np.ndarray) -> dict[str, np.ndarray]:
        return _to_numpy(self._fitted()(ops.convert_to_tensor(outputs)))


def _log(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, np.finfo("float32").tiny))


def _to_numpy(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: ops.convert_to_numpy(value) for name, value in tensors.items()}


def _with_margin(threshold: float, scores: np.ndarray) -> float:
    """Returns a threshold just below that accepts the same scores, in float32 too."""
    below = scores[scores < threshold].max(initial=-math.inf)
    lower = float(np.float32(max(threshold - 1e-6, (threshold + below) / 2)))
    return lower if below < lower <= threshold else threshold


def _digest(x: Any, outputs: np.ndarray, labels: np.ndarray) -> bytes:
    """Returns a fingerprint of labelled data: of arrays by their content, of a data
    set, which may shuffle, by the sorted outputs.
    """
    digest = hashlib.blake2b(digest_size=16)
    if is_array(x):
        for leaf in keras.tree.flatten(x):
            digest.update(np.ascontiguousarray(to_numpy(leaf)).view("uint8").data)
    else:
        order = np.lexsort((*outputs.T, labels))
        outputs, labels = outputs[order], labels[order]
        digest.update(outputs.tobytes())
    digest.update(labels.tobytes())
    return digest.digest()
