"""A classifier that answers with a set of classes."""

import copy
import math
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal._core.data import LabelledOutputs
from keras_selcal._core.models import (
    append_layer,
    check_extensible,
    check_outputs,
    gives_logits,
)
from keras_selcal._core.outputs import Outputs
from keras_selcal._core.samples import row_blocks, to_numpy
from keras_selcal._core.validation import refuse
from keras_selcal.calibrators import CalibrationLayer, Calibrator
from keras_selcal.conformal.arrays import check_alpha
from keras_selcal.conformal.layer import ConformalLayer
from keras_selcal.conformal.samples import LabelledRows, predict_rows, spread
from keras_selcal.conformal.scores import Score
from keras_selcal.conformal.threshold import choose_penalty, conformal_threshold


class ConformalPrediction(NamedTuple):
    """Answers of a conformal classifier.

    Attributes:
        sets: which classes each set holds, boolean (..., k).
        labels: the most probable classes (...), whether their set holds them or not.
        sizes: how many classes each set holds, (...).
    """

    sets: np.ndarray
    labels: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.sets.sum(axis=-1))


class ConformalClassifier:
    """A classifier whose answer is a set that holds the right class with probability
    1 − α.

    Formula:

    ```
    C(x) = { c : s_c(x) ≤ q },     P(Y ∈ C(X)) ≥ 1 − α
    ```

    with s_c the nonconformity score of class c (`conformal_scores`) and q the
    ⌈(n + 1)(1 − α)⌉-th smallest score of the n labels that `fit` gets
    (`conformal_threshold`). The model can be any: a better one gives smaller sets, not
    more coverage.

    What the guarantee means:

    - It needs held-out samples that are exchangeable with those to come; independent
      draws of one distribution are. Data that the model was trained on are not, and
      after a shift of the data it no longer holds: fit again on labelled data of the
      new kind, or pass known likelihood ratios as `sample_weight`.
    - It is marginal: 1 − α is an average over samples, and over calibration sets. A
      rare or difficult class can be covered far less. `class_conditional=True` gives
      each class a threshold of its own and P(Y ∈ C(X) | Y = c) ≥ 1 − α; `strata=` in
      `fit` does the same for groups of samples that are known beforehand (hospitals,
      age groups), and both can be combined. It takes 1/α − 1 samples at least in each,
      some hundred for useful sets; where there are fewer, a warning says so and sets
      hold the class in question always.
    - It says nothing about sets of one size. `evaluate` shows the coverage by size and
      by class.

    Args:
        model: a functional Keras model, or a built Sequential one, with one output:
            (..., k), or (..., 1) of one sigmoid unit, whose classes are (1 − p, p).
        method: `"lac"`, `"aps"`, `"raps"` or `"saps"`, see `conformal_scores`. LAC has
            the smallest sets; RAPS and SAPS vary more with the difficulty.
        alpha: α in (0, 1), the share of sets that may miss the label.
        calibrator: a calibrator of `keras_selcal.calibrators`. If it is not fitted yet,
            `fit` fits a copy on every other sample and takes the threshold from the
            rest. The guarantee does not need it; sets may become smaller.
        penalty: λ of RAPS and SAPS, see `conformal_scores`. `"auto"` selects it, and
            `k_reg`, on every other sample by `choose_penalty`.
        k_reg: see `conformal_scores`.
        seed: None, or the seed of u, see `conformal_scores`: APS, RAPS and SAPS have
            smaller sets with it. u depends on the seed and the model's output for the
            sample only, so that a sample has the same set each time.
        class_conditional: whether each class has a threshold of its own.
        allow_empty: whether sets may be empty. False adds the most probable class.
        from_logits: whether the model gives logits. By default it does unless its last
            operation is a softmax.

    Attributes:
        threshold: q, once fitted; None before. A float, or (k,) where
            `class_conditional`; with strata, one (row) for each entry of `strata`.
        strata: the strata of `fit`, in order, or None.

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
    - Those of `conformal_scores` and `conformal_threshold`
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        method: str = "lac",
        alpha: float = 0.1,
        calibrator: Calibrator | None = None,
        penalty: float | str | None = None,
        k_reg: int | None = None,
        seed: int | None = None,
        class_conditional: bool = False,
        allow_empty: bool = True,
        from_logits: bool | None = None,
    ) -> None:
        if not isinstance(model, keras.Model):
            refuse("model", model, "a Keras model")
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            refuse("calibrator", calibrator, "a calibrator of keras_selcal, or None")
        automatic = isinstance(penalty, str)
        if automatic and (penalty != "auto" or method not in ("raps", "saps")):
            refuse("penalty", penalty, "a number, or 'auto' with RAPS and SAPS")
        if automatic and k_reg is not None:
            refuse("k_reg", k_reg, "None with penalty='auto', which selects it")
        Score.of(method, None if automatic else penalty, k_reg, seed)
        self.model = model
        self.method = method
        self.alpha = check_alpha(alpha)
        self.calibrator = calibrator
        self.penalty = penalty
        self.k_reg = k_reg
        self.seed = seed
        self.class_conditional = bool(class_conditional)
        self.allow_empty = bool(allow_empty)
        self.from_logits = gives_logits(model, from_logits)
        self._layer: ConformalLayer | None = None
        self._fitted_on: bytes | None = None

    def __repr__(self) -> str:
        return (
            f"ConformalClassifier({self.model.name}, method={self.method!r}, "
            f"alpha={self.alpha:g}, threshold={self.threshold!r})"
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

    @property
    def record(self) -> dict[str, Any]:
        """What the classifier was fitted on and what it promises."""
        return dict(self._fitted().record)

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

        The threshold lies just above the score that it is, by 1e-6 or half the way to
        the next one, so that another backend's rounding leaves no label out.

        Args:
            x: arrays, or a data set of (x, y) batches (`tf.data.Dataset`,
                `keras.utils.PyDataset`, PyTorch's `DataLoader`, any iterable).
            y: class indices or one-hot labels, where `x` is arrays.
            sample_weight: see `conformal_threshold`. Samples of weight 0, such as
                padding, do not count.
            groups: which samples depend on each other, see `conformal_threshold`: one
                entry for each sample, or for each first index of outputs (b, t, k),
                such as `np.arange(b)`.
            strata: the stratum of each sample, numbers or strings in the shape of
                `groups`. Each stratum gets thresholds and a guarantee of its own;
                `predict` and `evaluate` then need `strata` as well.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.
        """
        rows = predict_rows(
            self.model,
            x,
            y,
            sample_weight=sample_weight,
            groups=groups,
            strata=strata,
            batch_size=batch_size,
            verbose=verbose,
        )
        columns = rows.columns(self.from_logits)
        check_outputs(
            LabelledOutputs(columns, rows.labels, rows.weight),
            Outputs(from_logits=self.from_logits),
        )
        if rows.nested and groups is None:
            warnings.warn(
                "The model gives several predictions for each input: tokens of one "
                "sequence, or pixels of one image, depend on each other, and the "
                "guarantee is for independent samples. Pass `groups=np.arange(len(x))` "
                "to count each input as one unit.",
                stacklevel=2,
            )
        digest = rows.digest()
        calibrator, automatic = self.calibrator, self.penalty == "auto"
        penalty = None if automatic else self.penalty
        options = Score.of(self.method, penalty, self.k_reg, self.seed).config()
        unfitted = calibrator is not None and not calibrator.fitted
        if unfitted or automatic:
            first, rows = rows.halves()
        if calibrator is not None and unfitted:
            calibrator = copy.copy(calibrator)
            calibrator.fit(first.logits(self.from_logits), first.labels)
        layer = self._new_layer(rows, calibrator, options)
        if automatic:
            p = _in_blocks(lambda z: layer.of_classes(z)[0], first.outputs)
            options |= choose_penalty(
                p, first.labels, self.alpha, method=self.method, seed=self.seed
            )
            layer = self._new_layer(rows, calibrator, options)
        scores = _in_blocks(lambda z: layer.of_classes(z)[1], rows.outputs)
        scores = np.take_along_axis(scores, rows.labels[:, None], axis=-1)[:, 0]
        cells = np.zeros(len(scores), "int64") if rows.strata is None else rows.strata
        shape = layer.thresholds.shape
        if self.class_conditional:
            cells = cells * rows.num_classes + rows.labels
        q = conformal_threshold(
            scores,
            self.alpha,
            sample_weight=rows.weight,
            groups=rows.groups,
            categories=cells if math.prod(shape) > 1 else None,
            num_categories=math.prod(shape),
        )
        q = np.reshape(q, -1)
        layer.thresholds = _with_margin(q, scores, cells).reshape(shape)
        if self.calibrator is not None:
            self.calibrator = calibrator
        self._layer = layer
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
        """Returns the sets and the most probable classes.

        Args:
            x: whatever `keras.Model.predict` takes.
            strata: as in `fit`, if that had strata.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        self._fitted()
        outputs = self.model.predict(x, batch_size=batch_size, verbose=verbose)
        answer = self._answer(outputs, strata)
        return ConformalPrediction(answer["sets"], answer["labels"])

    def predict_probabilities(
        self, x: Any, *, batch_size: int | None = None, verbose: Any = "auto"
    ) -> np.ndarray:
        """Returns calibrated probabilities (..., k).

        Args:
            x: whatever `keras.Model.predict` takes.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        layer = self._fitted()
        outputs = self.model.predict(x, batch_size=batch_size, verbose=verbose)
        return to_numpy(layer.of_classes(ops.convert_to_tensor(outputs))[0])

    predict_proba = predict_probabilities

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        strata: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> dict[str, Any]:
        """Returns how the sets do on labelled data, not those of `fit`.

        Args:
            x: as in `fit`.
            y: as in `fit`.
            sample_weight: weights of the samples in all averages.
            strata: as in `fit`, if that had strata.
            batch_size: where `x` is arrays.
            verbose: as in `keras.Model.predict`.

        Returns:
            A dict of

            - `coverage`: share of the sets that hold the label,
            - `mean_size`: average number of classes in a set,
            - `singleton_rate` and `empty_rate`: share of the sets with one class and
              with none,
            - `accuracy`: of the most probable class,
            - `class_coverage`: coverage of each class, (k,); NaN for one without
              samples,
            - `size_coverage`: coverage of the sets of each size 0 … k, (k + 1,); NaN
              for a size without sets (size-stratified coverage),
            - `size_rate`: share of the sets of each size, (k + 1,),
            - `stratum_coverage`: coverage by stratum, a dict, if there are strata.
        """
        layer = self._fitted()
        rows = predict_rows(
            self.model,
            x,
            y,
            sample_weight=sample_weight,
            strata=strata,
            names=layer.strata,
            batch_size=batch_size,
            verbose=verbose,
        )
        if self._fitted_on == rows.digest():
            warnings.warn(
                "The classifier is evaluated on the data that its threshold was "
                "selected on: the coverage is no test of the guarantee.",
                stacklevel=2,
            )
        answer = self._answer(rows.outputs, rows.stratum_names())
        sets, w = answer["sets"], rows.weight
        sizes = sets.sum(axis=-1)
        covered = np.take_along_axis(sets, rows.labels[:, None], axis=-1)[:, 0]
        right = answer["labels"] == rows.labels
        k = rows.num_classes
        figures: dict[str, Any] = {
            "coverage": float(np.average(covered, weights=w)),
            "mean_size": float(np.average(sizes, weights=w)),
            "singleton_rate": float(np.average(sizes == 1, weights=w)),
            "empty_rate": float(np.average(sizes == 0, weights=w)),
            "accuracy": float(np.average(right, weights=w)),
            "class_coverage": _mean_by(rows.labels, covered, w, k),
            "size_coverage": _mean_by(sizes, covered, w, k + 1),
            "size_rate": np.bincount(sizes, w, k + 1) / w.sum(),
        }
        if layer.strata is not None and rows.strata is not None:
            means = _mean_by(rows.strata, covered, w, len(layer.strata))
            figures["stratum_coverage"] = dict(
                zip(layer.strata, means.tolist(), strict=True)
            )
        return figures

    def as_model(self) -> keras.Model:
        """Returns a Keras model that does it all, to save, export or serve.

        It maps the model's inputs to a dict of `probabilities`, `sets`, `sizes` and
        `labels`. With strata, its inputs are a list: those of the model, and the index
        of each sample's stratum in `strata`.
        """
        layer = self._fitted()
        if layer.strata is None:
            return append_layer(self.model, layer)
        check_extensible(self.model)
        sequential = isinstance(self.model, keras.Sequential)
        inputs = self.model.inputs[0] if sequential else self.model.input
        strata = keras.Input((), dtype="int32", name="strata")
        outputs = layer(self.model(inputs), strata)
        return keras.Model([inputs, strata], outputs, name=f"sets_of_{self.model.name}")

    def save(self, path: Any) -> None:
        """Saves model, calibrator, score and thresholds as one .keras file.

        Args:
            path: ends in .keras.
        """
        if not str(path).endswith(".keras"):
            refuse("path", str(path), "a path that ends in .keras")
        self.as_model().save(path)

    @classmethod
    def load(cls, path: Any) -> "ConformalClassifier":
        """Loads what `save` has written, on this or any other backend.

        Args:
            path: of a .keras file.
        """
        loaded = keras.saving.load_model(path, compile=False)
        parts = list(getattr(loaded, "layers", ()))
        models = [part for part in parts if isinstance(part, keras.Model)]
        if not models or not isinstance(parts[-1], ConformalLayer):
            refuse("path", str(path), "a file saved by `ConformalClassifier.save`")
        layer = parts[-1]
        classifier = cls(
            models[-1],
            **layer.score.config(),
            alpha=layer.alpha,
            calibrator=layer.calibration and layer.calibration.calibrator,
            class_conditional=layer.class_conditional,
            allow_empty=layer.allow_empty,
            from_logits=layer.from_logits,
        )
        classifier._layer = layer
        return classifier

    def _new_layer(
        self, rows: LabelledRows, calibrator: Any, options: dict[str, Any]
    ) -> ConformalLayer:
        promise = f"P(label in set) >= {1 - self.alpha:g}"
        per = ["class"] * self.class_conditional + ["stratum"] * (
            rows.names is not None
        )
        units = "samples" if rows.groups is None else "groups"
        record = {
            units: rows.num_units,
            "promise": promise + (f" for each {' and '.join(per)}" if per else ""),
            "holds_for": f"{units} exchangeable with those of `fit`",
        }
        return ConformalLayer(
            rows.num_classes,
            self.from_logits,
            calibrator and CalibrationLayer(calibrator, self.from_logits),
            **options,
            allow_empty=self.allow_empty,
            class_conditional=self.class_conditional,
            strata=rows.names,
            alpha=self.alpha,
            record=record,
        )

    def _fitted(self) -> ConformalLayer:
        if self._layer is None:
            raise ValueError("This ConformalClassifier has no threshold: call `fit`.")
        return self._layer

    def _answer(self, outputs: np.ndarray, strata: Any) -> dict[str, np.ndarray]:
        layer = self._fitted()
        if layer.strata is None:
            if strata is not None:
                refuse("strata", strata, "None: `fit` had no strata")
            answer = layer(ops.convert_to_tensor(outputs))
        else:
            index = spread("strata", strata, outputs.shape[:-1], layer.strata)
            answer = layer(ops.convert_to_tensor(outputs), ops.convert_to_tensor(index))
        return {name: to_numpy(value) for name, value in answer.items()}


def _in_blocks(function: Any, outputs: np.ndarray) -> np.ndarray:
    """Returns function(outputs), a few rows at a time."""
    return np.concatenate(
        [
            to_numpy(function(ops.convert_to_tensor(outputs[block])))
            for block in row_blocks(outputs.shape)
        ]
    )


def _with_margin(q: np.ndarray, scores: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Returns thresholds just above that let the same scores pass, in float32."""
    following = np.full(len(q), math.inf)
    np.minimum.at(following, cells, np.where(scores > q[cells], scores, math.inf))
    higher = np.minimum(q + 1e-6, (q + following) / 2).astype("float32")
    return np.where((higher >= q) & (higher < following), higher, q.astype("float32"))


def _mean_by(index: np.ndarray, values: Any, weight: Any, count: int) -> np.ndarray:
    """Returns the mean of values by index, (count,); NaN where there is none."""
    total = np.bincount(index, weight, count)
    with np.errstate(invalid="ignore"):
        return np.bincount(index, weight * values, count) / total
