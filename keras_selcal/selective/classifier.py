"""A classifier that abstains where its confidence is too low."""

import copy
import hashlib
import math
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._core.models import (
    append_layer,
    check_outputs,
    gives_logits,
    is_array,
    predict_with_labels,
)
from keras_selcal._core.ops import Tensor
from keras_selcal._core.samples import to_numpy
from keras_selcal._core.validation import refuse
from keras_selcal.calibrators.base import (
    CalibrationLayer,
    Calibrator,
    check_labelled_logits,
)
from keras_selcal.selective.layer import SelectionLayer, Uncalibrated
from keras_selcal.selective.threshold import (
    check_delta,
    check_target,
    risk_bound,
    select_threshold,
)

_DEFAULT_DELTA = 0.05


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
        check_target(coverage, risk, delta)
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
        delta = check_delta(delta)
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
