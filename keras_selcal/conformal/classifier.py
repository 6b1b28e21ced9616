"""A classifier that answers with a set of classes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal._predictions.data import check_order
from keras_selcal._predictions.models import append_layer
from keras_selcal._validation import refuse
from keras_selcal.calibrators import Calibrator
from keras_selcal.conformal.evaluation import evaluate_answers
from keras_selcal.conformal.fitting import OPTIONS, fit_layer, stratum_indices
from keras_selcal.conformal.layer import OUTPUT_OPTIONS, ConformalLayer
from keras_selcal.conformal.record import ConformalPrediction
from keras_selcal.conformal.scores import NonconformityScore, check_alpha
from keras_selcal.selective.base import AnsweringClassifier, to_arrays
from keras_selcal.selective.threshold import check_delta


class ConformalClassifier(AnsweringClassifier):
    """A classifier whose answer is a set that holds the label at a chosen rate.

    Formula:

    ```
    C(x) = { c : s_c(x) ≤ q },     P(Y ∈ C(X)) ≥ 1 − α
    ```

    with s_c the nonconformity score of class c (`conformal_scores`) and q the
    ⌈(n + 1)(1 − α)⌉-th smallest score of the n labels that `fit` gets
    (`conformal_threshold`). A better model gives smaller sets, not more coverage.

    What the guarantee means:

    - It needs held-out samples that are exchangeable with those to come; independent
      draws of one distribution are, the model's training data are not. After a shift
      of the data, fit again, or pass known likelihood ratios as `sample_weight`.
    - Without `delta`, 1 − α is an average over calibration sets: about half of them
      give sets that cover less. With `delta=δ`, the coverage is at least 1 − α with
      probability 1 − δ over the calibration set (`conformal_threshold` has the law);
      this needs independent samples, and at least ln δ / ln(1 − α) of them.
    - It is marginal: 1 − α is an average over samples. A rare or difficult class can be
      covered far less. `class_conditional=True` gives each class a threshold of its own
      and P(Y ∈ C(X) | Y = c) ≥ 1 − α; `strata=` in `fit` does the same for kinds of
      samples that are known beforehand (hospitals, age groups), and both can be
      combined. With `delta`, 1 − δ is for all of them at once. Each takes 1/α − 1
      samples at least; with fewer, a warning says how many it takes, and the class is
      in every set.
    - It is not for sets of one size: `evaluate` shows their coverage.

    Args:
        model: a functional Keras model, or a built Sequential one, with an output
            (..., k), or (..., 1) of one sigmoid unit, whose classes are (1 − p, p). Of
            several outputs, `output` is used.
        method: `"lac"`, `"aps"`, `"raps"` or `"saps"`, see `conformal_scores`. LAC has
            the smallest sets if the probabilities are right.
        alpha: α in (0, 1), the share of sets that may miss the label.
        delta: None, or δ in (0, 1), the probability that the coverage is below 1 − α.
        calibrator: a calibrator of `keras_selcal.calibrators`, or `"auto"` for
            `AutoCalibration()`. If it is not fitted yet, `fit` fits a copy on a random
            half of the samples (or groups), the same each time for data in the same
            order, and selects the threshold on the rest.
        penalty: λ of RAPS and SAPS, see `conformal_scores`. `"auto"` selects it, and
            `k_reg`, on that half by `choose_penalty`.
        k_reg: see `conformal_scores`.
        seed: None, or the seed of u, see `conformal_scores`. Pass one with APS and
            RAPS: their sets are larger without. u depends on the seed and the model's
            output for the sample only: a sample has the same set each time.
        class_conditional: whether each class has a threshold of its own.
        allow_empty: whether sets may be empty. False adds the most probable class.
        from_logits: whether the model gives logits. By default it does unless its last
            operation is a softmax or a sigmoid.
        ignore_class: samples with this label do not count in `fit` and `evaluate`.
        axis: axis of the classes in the model's output: -1, or 1 for channels first.
            Sets have their classes in the last axis in either case.
        output: the name or index of one of several outputs. The classifier keeps, and
            saves, the part of the model that computes it. Labels may be given for it
            alone, or in a dict or list as in `keras.Model.fit`.

    Attributes:
        threshold: q, once fitted; None before. A float, or (k,) where
            `class_conditional`; with strata, one (row) for each entry of `strata`.
        strata: the strata of `fit`, in order, or None.
        record: a `ConformalRecord`, what the classifier was fitted on and what it
            promises; None before `fit`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from keras_selcal import ConformalClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> x = 2 * np.eye(3)[y] + rng.normal(size=(600, 3))
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Softmax()])
    >>> classifier = ConformalClassifier(model, alpha=0.1)
    >>> classifier = classifier.fit(x[:300], y[:300], verbose=0)
    >>> prediction = classifier.predict(x[300:], verbose=0)
    >>> prediction.sets.shape, prediction.labels.shape
    ((300, 3), (300,))
    >>> classifier.evaluate(x[300:], y[300:], verbose=0)["coverage"] > 0.85
    True

    References:
    - Vovk, Gammerman & Shafer, [Algorithmic Learning in a Random
      World](https://doi.org/10.1007/978-3-031-06649-8)
    - Angelopoulos & Bates, [A Gentle Introduction to Conformal
      Prediction](https://arxiv.org/abs/2107.07511)
    """

    layer_class = ConformalLayer

    def __init__(
        self,
        model: keras.Model,
        *,
        method: str = "lac",
        alpha: float = 0.1,
        delta: float | None = None,
        calibrator: Calibrator | str | None = None,
        penalty: float | str | None = None,
        k_reg: int | None = None,
        seed: int | None = None,
        class_conditional: bool = False,
        allow_empty: bool = True,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        axis: int = -1,
        output: str | int | None = None,
    ) -> None:
        super().__init__(
            model,
            calibrator,
            from_logits,
            ignore_class=ignore_class,
            axis=axis,
            output=output,
        )
        automatic = isinstance(penalty, str)
        if automatic and (penalty != "auto" or method not in ("raps", "saps")):
            refuse("penalty", penalty, "a number, or 'auto' with RAPS and SAPS")
        if automatic and k_reg is not None:
            refuse("k_reg", k_reg, "None with penalty='auto', which selects it")
        NonconformityScore.of(method, None if automatic else penalty, k_reg, seed)
        self.method = method
        self.alpha = check_alpha(alpha)
        self.delta = None if delta is None else check_delta(delta)
        self.penalty = penalty
        self.k_reg = k_reg
        self.seed = seed
        self.class_conditional = bool(class_conditional)
        self.allow_empty = bool(allow_empty)

    def __repr__(self) -> str:
        calibrator = self.calibrator and type(self.calibrator).__name__
        threshold = np.array2string(np.asarray(self.threshold), precision=4)
        return (
            f"ConformalClassifier(model={self.model.name!r}, method={self.method!r}, "
            f"alpha={self.alpha:g}, delta={self.delta}, calibrator={calibrator}, "
            f"threshold={threshold})"
        )

    @property
    def threshold(self) -> Any:
        if self._layer is None:
            return None
        q = self._layer.thresholds.astype("float64") + self._layer.score.offset
        q = q if self.class_conditional else q[:, 0]
        q = q if self.strata is not None else q[0]
        return float(q) if np.ndim(q) == 0 else q

    @property
    def strata(self) -> list[Any] | None:
        return None if self._layer is None else self._layer.strata

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        strata: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> "ConformalClassifier":
        """Selects the threshold on held-out data and returns the classifier.

        Keras masks are applied: masked tokens do not count. The threshold lies just
        above a score, by 1e-6 or half the way to the next one: another
        backend's rounding then leaves no label out.

        Args:
            x: arrays, or a data set of (x, y) or (x, y, sample_weight) batches
                (`tf.data.Dataset`, `keras.utils.PyDataset`, PyTorch's `DataLoader`,
                any iterable).
            y: class indices or one-hot labels, where `x` is arrays.
            sample_weight: see `conformal_threshold`. Samples of weight 0, such as
                padding, do not count; unequal weights are refused with `delta`.
            groups: which samples depend on each other, see `conformal_threshold`. By
                default none do. `"first_axis"` makes each element of the first axis (a
                sequence, an image) one unit; an array of shape (b,), or of the
                samples' shape, names the group of each.
            strata: the stratum of each sample, numbers or strings in the shape of
                `groups`. Each stratum gets thresholds and a guarantee of its own;
                `predict` and `evaluate` then need `strata` as well.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.
        """
        check_order(x, strata=strata)
        data, digest = self._read(x, y, sample_weight, groups, batch_size, verbose)
        data.warn_if_dependent()
        first, data, calibrator = data.split(
            self._given_calibrator, self.penalty == "auto"
        )
        options = {name: getattr(self, name) for name in OPTIONS}
        calibration = self._calibration(calibrator)
        layer = fit_layer(first, data, strata, calibration=calibration, **options)
        # Only now: a fit that fails changes nothing.
        self._layer, self.calibrator = layer, calibrator
        self._fitted_on = digest
        return self

    def predict(
        self,
        x: Any,
        *,
        strata: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> ConformalPrediction:
        """Predicts the sets and the most probable classes.

        Masked tokens have an empty set and the label −1, and so has the padding of
        shorter batches, where batches of `x` differ in length.

        Args:
            x: whatever `keras.Model.predict` takes.
            strata: as in `fit`, if that had strata.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        check_order(x, strata=strata)
        outputs, mask = self._outputs(x, batch_size, verbose)
        samples = self.outputs.sample_shape(outputs.shape)
        index = stratum_indices(strata, samples, self.strata)
        answer = self._answer(outputs, index, mask)
        return ConformalPrediction(answer["sets"], answer["labels"])

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        strata: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> dict[str, Any]:
        """Evaluates the sets on labelled data that `fit` has not used.

        Masked tokens, samples of weight 0 and ignored classes do not count.

        Args:
            x: as in `fit`.
            y: as in `fit`.
            sample_weight: weights of the samples in all averages.
            groups: as in `fit`. Each group then counts as one sample in all averages,
                with the mean of its weights, as it does in the guarantee. If `fit` had
                groups, tokens and pixels are grouped by the first axis by default.
            strata: as in `fit`, if that had strata.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.

        Returns:
            A dict with the figures of `evaluate_sets`, `accuracy` (of the most probable
            class) and, if there are strata, `stratum_coverage`.
        """
        check_order(x, strata=strata)
        layer = self._fitted()
        if groups is None and layer.record and layer.record.groups is not None:
            groups = "first_axis"
        data, _ = self._read_new(x, y, sample_weight, groups, batch_size, verbose)
        index = stratum_indices(strata, data.labels.shape, layer.strata)
        answer = self._answer(data.y_pred, index)
        return evaluate_answers(data, answer, index, layer.strata)

    def as_model(self) -> keras.Model:
        """Returns a Keras model that does it all, to save, export or serve.

        It maps the model's inputs to a dict of `probabilities`, `sets`, `sizes` and
        `labels`. With strata, its inputs are a list: the model's inputs, and the index
        of each sample's stratum in `strata`.
        """
        layer = self._fitted()
        if layer.strata is None:
            return append_layer(self.model, layer)
        strata = keras.Input((), dtype="int32", name="strata")
        return append_layer(self.model, layer, strata)

    @classmethod
    def _arguments(cls, layer: ConformalLayer) -> dict[str, Any]:
        return {
            **layer.score.config(),
            **layer.outputs.config(*OUTPUT_OPTIONS),
            "alpha": layer.record.alpha,
            "delta": layer.record.delta,
            "class_conditional": layer.class_conditional,
            "allow_empty": layer.allow_empty,
        }

    def _answer(
        self,
        outputs: np.ndarray,
        strata: np.ndarray | None,
        mask: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        parts = {"inputs": outputs, "strata": strata, "mask": mask}
        tensors = {
            name: ops.convert_to_tensor(part)
            for name, part in parts.items()
            if part is not None
        }
        return to_arrays(self._fitted()(**tensors))
