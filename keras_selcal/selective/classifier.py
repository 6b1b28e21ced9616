"""A classifier that abstains where its confidence is too low."""

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_selcal import csf as csf_module
from keras_selcal._arrays import Array, to_floats, to_numbers
from keras_selcal._predictions.data import find_labels, predict_masked
from keras_selcal._validation import refuse
from keras_selcal.calibrators import Calibrator
from keras_selcal.selective.base import AnsweringClassifier, to_arrays
from keras_selcal.selective.checks import check_drift, counted, promise
from keras_selcal.selective.costs import check_abstain, check_costs
from keras_selcal.selective.data import FIRST_AXIS, check_finite
from keras_selcal.selective.drift import (
    DriftCheck,
    DriftMonitor,
    check_rate,
    ks_distance,
    unit_means,
)
from keras_selcal.selective.fitting import (
    evaluate,
    evaluate_mixture,
    fit_selection,
    mean_costs,
)
from keras_selcal.selective.layer import OPTIONS, SelectionLayer
from keras_selcal.selective.mixture import Mixture, check_unknown
from keras_selcal.selective.policy import Policy
from keras_selcal.selective.record import FitRecord, SelectivePrediction
from keras_selcal.selective.threshold import (
    DEFAULT_DELTA,
    check_delta,
    check_target,
)


class SelectiveClassifier(AnsweringClassifier):
    """A classifier that abstains where its confidence is too low.

    Formula:

    ```
    answer(x) = argmax p(x)   where g(p(x)) ≥ τ,     none elsewhere
    ```

    with p the calibrated probabilities of the model, g a confidence score function and
    τ the threshold that `fit` selects on held-out data. If `fit` is given
    costs, the answer is the class of least expected cost (see `least_cost`), g is minus
    that cost, and −τ the cost of an abstention.

    The model's output has shape (..., k): samples, tokens (b, t, k) or pixels
    (b, h, w, k). One sigmoid unit, (..., 1) or (n,), equals two columns (1 − p, p).
    With `multi_label=True`, each of k sigmoids is a question of its own: answers have
    shape (..., k), and each label has its own threshold.

    Args:
        model: a functional Keras model, or a built Sequential one. Of several
            outputs, `output` is used.
        csf: g: a name or a callable (see `keras_selcal.csf`), or `"auto"`. Scores of
            logits take the model's own, whatever the calibrator. `"auto"` lets `fit`
            choose by AURC on a random half of the samples (or groups), as
            `keras_selcal.csf.compare` does; the threshold is selected on the rest.
            The half is the same each time for data in the same order.
        calibrator: a calibrator of `keras_selcal.calibrators`, or `"auto"` for
            `AutoCalibration()`. If it is not fitted yet, `fit` fits a copy on that half
            and selects the threshold on the rest: the guarantee of δ holds.
            What it rejects (`MetaAcc`, `MetaMis`) is never accepted.
        from_logits: whether the model gives logits. By default it does unless its last
            operation is a softmax or a sigmoid.
        multi_label: whether the outputs are k independent sigmoids.
        decision_threshold: d in (0, 1): the answer of a sigmoid is 1 if its
            probability is above d. Confidence is then g at the odds relative to those
            of d, and lowest at p = d.
        ignore_class: samples with this label do not count in `fit` and `evaluate`.
        axis: axis of the classes in the model's output: -1, or 1 for channels first.
        output: the name or index of one of several outputs. The classifier keeps, and
            saves, the part of the model that computes it. Labels may be given for it
            alone, or in a dict or list as in `keras.Model.fit`.

    Attributes:
        threshold: τ, once fitted; an array (k,) with `multi_label=True`, one for each
            label, and with `per_class=True`, one for each class. None before.
        costs: the costs of `fit`, (k, k), or None.
        record: a `FitRecord`, what the classifier was fitted on and what it promises;
            None before `fit`.

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
    >>> classifier.record.n, classifier.record.coverage
    (200, 0.8)

    References:
    - Geifman & El-Yaniv, [Selective Classification for Deep Neural
      Networks](https://arxiv.org/abs/1705.08500)
    - El-Yaniv & Wiener, [On the Foundations of Noise-free Selective
      Classification](https://www.jmlr.org/papers/v11/el-yaniv10a.html)
    """

    layer_class = SelectionLayer

    def __init__(
        self,
        model: keras.Model,
        csf: Any = "msp",
        *,
        calibrator: Calibrator | str | None = None,
        from_logits: bool | None = None,
        multi_label: bool = False,
        decision_threshold: float = 0.5,
        ignore_class: int | None = None,
        axis: int = -1,
        output: str | int | None = None,
    ) -> None:
        super().__init__(
            model,
            calibrator,
            from_logits,
            multi_label=multi_label,
            ignore_class=ignore_class,
            axis=axis,
            decision_threshold=decision_threshold,
            output=output,
        )
        self._auto = isinstance(csf, str) and csf == "auto"
        name = "msp" if self._auto else csf
        self.csf = csf_module.get(name, from_logits=self.from_logits)

    @property
    def threshold(self) -> Any:
        """τ, with `multi_label=True` one for each label; None before `fit`."""
        return None if self._layer is None else self._layer.threshold

    @property
    def costs(self) -> Any:
        return None if self._layer is None else self._layer.costs

    def __repr__(self) -> str:
        calibrator = self.calibrator and type(self.calibrator).__name__
        score = f"csf={csf_module.name_of(self.csf)!r}"
        if self.costs is not None:
            score = f"costs={reprlib.repr(self.costs.tolist())}"
        text = (
            f"SelectiveClassifier(model={self.model.name!r}, {score}, "
            f"calibrator={calibrator}, threshold="
        )
        if self.record is None:
            return text + "None)"
        threshold = np.array2string(np.asarray(self.threshold), precision=4)
        return f"{text}{threshold}, {self.record.describe()})"

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        coverage: float | None = None,
        risk: float | None = None,
        delta: float | None = None,
        per_class: bool = False,
        costs: Any = None,
        abstain_cost: float | None = None,
        unknown: Any = None,
        unknown_share: float | None = None,
        sample_weight: Any = None,
        groups: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> "SelectiveClassifier":
        """Selects the threshold on held-out data and returns the classifier.

        Keras masks are applied: masked tokens do not count. The threshold lies just
        below the lowest accepted score, by 1e-6 or half the way to the next score, so
        that another backend's rounding rejects none of them.

        With `multi_label=True` the target applies to every label, and with `delta` it
        holds for all labels at once with probability 1 − δ (each label is tested at
        δ/k). A label for which this is not possible is never answered, with a warning.

        With `per_class=True` each class has a threshold of its own, for the samples
        that are predicted as it, and so has the target: of the samples that are
        answered with class c, at most a share r is wrong, for every c. With `delta`
        this holds for all classes at once with probability 1 − δ (each is tested at
        δ/k). A class for which it is not possible is never answered, with a warning.

        With `costs` there is nothing to select: the decisions follow from the
        probabilities (`least_cost`). The data fit the calibrator, if that is not fitted
        yet, and the rest shows what the decisions cost. Use a calibrator: the decisions
        are only as good as the probabilities.

        With `unknown`, a share π of the inputs belongs to no class, and each answer to
        one of them is an error. `fit` draws a sample of this mixture from `x` and
        `unknown` (see `select_threshold`), and the guarantee holds for the mixture. A
        calibrator is fitted, and a score chosen, on `x` alone.

        Args:
            x: arrays, or a data set of (x, y) or (x, y, sample_weight) batches
                (`tf.data.Dataset`, `keras.utils.PyDataset`, PyTorch's `DataLoader`,
                any iterable).
            y: class indices, one-hot labels or 0/1, where `x` is arrays.
            coverage: see `select_threshold`. Pass exactly one of `coverage`, `risk`
                and `costs`.
            risk: see `select_threshold`.
            delta: see `select_threshold`.
            per_class: whether the target holds within each predicted class.
            costs: C, (k, k): C[c, d] is the cost of answer d (column) if c is the true
                class (row). (2, 2) for one sigmoid unit, and for each label with
                `multi_label=True`.
            abstain_cost: cost of an abstention. By default there are none.
            unknown: inputs that belong to none of the classes, in any form that
                `keras.Model.predict` takes: independent draws of those that come in
                use, and not those that the model was trained on. With `risk` only.
            unknown_share: π in (0, 1), the share of such inputs in use.
            sample_weight: weights of at least 0, where `x` is arrays. Samples of
                weight 0 do not count; other weights than 0 and 1 are refused with
                `delta`.
            groups: what is independent of what, for the guarantee. By default each
                sample is. `"first_axis"` makes each element of the first axis (a
                sequence, an image) one unit; an array of shape (b,), or of the
                samples' shape, names the group of each.
            batch_size: used if `x` is arrays.
            verbose: as in `keras.Model.predict`.
        """
        if costs is None:
            if abstain_cost is not None:
                refuse("abstain_cost", abstain_cost, "None without `costs`")
            coverage, risk, delta = check_target(coverage, risk, delta)
        else:
            others = {"coverage": coverage, "risk": risk, "delta": delta}
            costs, abstain_cost = self._check_costs(costs, abstain_cost, others)
        others = {"coverage": coverage, "costs": costs, "groups": groups}
        share = check_unknown(unknown, unknown_share, others)
        if per_class and (costs is not None or share is not None):
            refuse("per_class", per_class, "False with `costs` or `unknown`")
        given, digest = self._read(x, y, sample_weight, groups, batch_size, verbose)
        if costs is not None:
            check_costs(costs, self.outputs.rows_of(given.y_pred.shape)[0], square=True)
        if delta is not None:
            given.warn_if_dependent()
        strange = None
        if share is not None:
            strange = self._unknown(unknown, batch_size, verbose)

        def answer(y_pred: Array, calibrator: Any, csf: Any) -> dict[str, Array]:
            layer = self._new_layer(calibrator, csf, costs=costs)
            return to_arrays(layer.answer(y_pred))

        found = fit_selection(
            given,
            self._given_calibrator,
            None if self._auto else self.csf,
            answer,
            coverage=coverage,
            risk=risk,
            delta=delta,
            per_class=per_class,
            costs=costs,
            abstain_cost=abstain_cost,
            unknown=strange,
            share=share,
            seed=digest,
        )
        if verbose and found.record.choice is not None:
            print(f'SelectiveClassifier(csf="auto") chose {found.record.choice}.')
        selection = self._new_layer(
            found.calibrator, found.csf, found.threshold, found.record, costs
        )
        # Only now: a fit that fails changes nothing.
        self.calibrator, self.csf = found.calibrator, found.csf
        self._layer = selection
        self._fitted_on = digest
        return self

    def predict(
        self, x: Any, *, batch_size: int | None = None, verbose: Any = "auto"
    ) -> SelectivePrediction:
        """Predicts labels (−1 for an abstention), which are accepted, and confidences.

        Masked tokens are not accepted, nor is a sample for which the model gives NaN:
        its confidence is NaN, and so is the confidence of padding, where batches of `x`
        differ in length.

        Args:
            x: inputs, in any form that `keras.Model.predict` takes.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.
        """
        outputs, mask = self._outputs(x, batch_size, verbose)
        given = None if mask is None else ops.convert_to_tensor(mask)
        answer = to_arrays(self._fitted()(ops.convert_to_tensor(outputs), mask=given))
        names = SelectivePrediction._fields
        return SelectivePrediction(*(answer[name] for name in names))

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        delta: float | None = None,
        unknown: Any = None,
        unknown_share: float | None = None,
        sample_weight: Any = None,
        groups: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> dict[str, Any]:
        """Evaluates the classifier on labelled data that `fit` has not used.

        Args:
            x: as in `fit`.
            y: as in `fit`.
            delta: δ of the bound. Defaults to the δ of `fit`, or else 0.05.
            unknown: as in `fit`; other inputs than there.
            unknown_share: as in `fit`, by default the same.
            sample_weight: as in `fit`.
            groups: as in `fit`, but tokens and pixels are grouped by the first axis
                by default.
            batch_size: used if `x` is arrays.
            verbose: as in `keras.Model.predict`.

        Returns:
            A dict of `coverage` (share of the samples that are accepted),
            `selective_risk` (share of errors among them; NaN where none is accepted),
            `selective_risk_bound` (what the true selective risk exceeds with a
            probability of at most δ, see `risk_bound`; NaN for weights other than 0
            and 1) and `accuracy` (on all samples, as if none were rejected). With
            `multi_label=True` each is an array with one entry for each label. If `fit`
            had `per_class=True`, also `class_coverage`, `class_risk` and
            `class_risk_bound`, (k,): the first three of the samples that are predicted
            as each class, with δ for each bound alone. If `fit` had costs, also `cost`
            (mean of what answers and abstentions cost) and `expected_cost` (what the
            probabilities predict for it). With `unknown`, these figures are of the
            mixture, and `known_coverage` and `unknown_coverage` of its two kinds.
        """
        selection = self._fitted()
        if delta is None:
            record = selection.record
            delta = (record and record.delta) or DEFAULT_DELTA
        delta = check_delta(delta)
        if unknown is not None and unknown_share is None and selection.record:
            unknown_share = selection.record.unknown_share
        others = {"costs": selection.costs, "groups": groups}
        share = check_unknown(unknown, unknown_share, others)
        per_class = np.ndim(selection.threshold) and not self.outputs.multi_label
        if share is not None and per_class:
            refuse("unknown", "inputs", "None after a fit with `per_class=True`")
        groups = FIRST_AXIS if groups is None else groups
        arguments = x, y, sample_weight, groups, batch_size, verbose
        data, digest = self._read_new(*arguments)
        if share is not None:
            strange = self._unknown(unknown, batch_size, verbose)
            mixture = Mixture.of(data, strange, share)
            answer = to_arrays(selection.answer(mixture.data.y_pred))
            return evaluate_mixture(mixture, answer, selection.threshold, delta, digest)
        answer = to_arrays(selection.answer(data.y_pred))
        figures = evaluate(data, answer, selection.threshold, delta)
        if selection.costs is not None:
            abstain = selection.record and selection.record.abstain_cost
            at = selection.threshold
            figures |= mean_costs(data, answer, at, selection.costs, abstain)
        return figures

    def check(
        self,
        x: Any,
        y: Any = None,
        *,
        false_alarm_rate: float = 0.01,
        sample_weight: Any = None,
        groups: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> DriftCheck:
        """Tests whether new data are like the data of the fit.

        The Kolmogorov–Smirnov test compares the confidences of new samples with the
        confidences of the fit, which needs no labels. If they come from the same
        distribution, it reports a drift with a probability of at most
        `false_alarm_rate`. That holds for one call: `monitor` makes a test that can be
        looked at after every batch of a stream.

        With labels, a second test with the same false alarm rate shows whether the
        errors among the accepted samples contradict the bound of the record. Few labels
        suffice to see a risk that is much higher than promised.

        Args:
            x: arrays of inputs, or a data set of batches (x,), (x, y) or
                (x, y, sample_weight), whose labels are used. Outputs of NaN raise
                ValueError, as in `fit` and `evaluate`.
            y: labels, if there are any and `x` is arrays.
            false_alarm_rate: α in (0, 1) of each test.
            sample_weight: as in `fit`.
            groups: as in `fit`, but tokens and pixels are grouped by the first axis
                by default. Each group has its mean confidence.
            batch_size: as in `keras.Model.predict`.
            verbose: as in `keras.Model.predict`.

        Returns:
            A `DriftCheck`.
        """
        rate = check_rate(false_alarm_rate)
        promise(self._fitted())
        groups = FIRST_AXIS if groups is None else groups
        labelled, x = (True, x) if y is not None else find_labels(x)
        data = None
        if labelled:
            data, _ = self._read(x, y, sample_weight, groups, batch_size, verbose)
            y_pred, weight, units = data.y_pred, data.weight, data.units
        else:
            y_pred, weight, units = self._unlabelled(
                x, sample_weight, groups, batch_size, verbose
            )
        answer = to_arrays(self._fitted().answer(y_pred))
        return check_drift(self._fitted(), answer, weight, units, rate, data)

    def drift(
        self,
        y_true: Any,
        y_pred: Any,
        *,
        sample_weight: Any = None,
        from_logits: bool | None = None,
        multi_label: bool | None = None,
        ignore_class: int | None = None,
        axis: int | None = None,
        decision_threshold: float | None = None,
    ) -> float:
        """Measures how far a model's confidences are from the confidences of the fit:
        the largest difference of the two CDFs, in [0, 1].

        For `CalibrationMonitor(data, metrics=["nll", classifier.drift])`, which then
        logs `val_drift`: while a model trains on, it tells how far the threshold of
        this classifier is from being of use for it.

        Args:
            y_true: labels, which do not matter.
            y_pred: outputs of the model, of the form that `fit` has seen.
            sample_weight: samples of weight 0 do not count.
            from_logits: not used: the classifier knows what its model returns.
            multi_label: not used.
            ignore_class: not used.
            axis: not used.
            decision_threshold: not used.

        Returns:
            The distance, a float; NaN where an output is NaN.
        """
        record, _ = promise(self._fitted())
        values = to_floats(to_numbers("y_pred", y_pred))
        weight, units = counted(self.outputs, values, FIRST_AXIS, sample_weight)
        confidence = to_arrays(self._fitted().answer(values))["confidence"]
        return ks_distance(record.confidence, unit_means(confidence, weight, units))

    def monitor(self, *, false_alarm_rate: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Creates a sequential test of whether a stream is like the data of the fit.

        Args:
            false_alarm_rate: probability of an alarm, ever, if nothing changes.
            seed: of the random numbers by which equal confidences are ordered.
        """
        record, _ = promise(self._fitted())

        def confidences(x: Any, batch_size: int | None, verbose: Any) -> Array:
            y_pred, *units = self._unlabelled(x, None, FIRST_AXIS, batch_size, verbose)
            answer = to_arrays(self._fitted().answer(y_pred))
            return unit_means(answer["confidence"], *units)

        return DriftMonitor(
            confidences,
            record.confidence,
            false_alarm_rate=false_alarm_rate,
            seed=seed,
        )

    def to_policy(self, *, class_names: Sequence[str] | None = None) -> Policy:
        """Returns calibrator, score, threshold and record without the model: a
        `Policy`, which answers the model's outputs as `predict` does, needs no backend
        and is saved as JSON.

        Args:
            class_names: a name for each class, or None.
        """
        layer = self._fitted()
        if layer.costs is not None:
            raise ValueError(
                "A policy abstains below a confidence, and this classifier was fitted "
                "with `costs`: save or export it, or apply `least_cost` to its "
                "probabilities."
            )
        calibrator = layer.calibration and layer.calibration.calibrator
        return Policy.of_outputs(
            self.outputs,
            self.model.output_shape,
            calibrator=calibrator,
            csf=layer.csf,
            threshold=layer.threshold,
            record=layer.record,
            class_names=class_names,
        )

    def _unknown(self, unknown: Any, batch_size: Any, verbose: Any) -> Array:
        """Returns the model's outputs for unknown inputs."""
        y_pred, mask = predict_masked(
            self.model, unknown, batch_size, verbose, self.outputs.axis, "unknown"
        )
        if mask is not None:
            refuse("unknown", "masked outputs", "inputs without a mask")
        return y_pred

    @classmethod
    def _arguments(cls, layer: SelectionLayer) -> dict[str, Any]:
        return {"csf": layer.csf, **layer.outputs.config(*OPTIONS)}

    def _check_costs(
        self, costs: Any, abstain_cost: float | None, others: dict[str, Any]
    ) -> tuple[Array, float | None]:
        """Returns checked costs, which replace targets, score and decision rule."""
        for name, value in others.items():
            if value is not None:
                refuse(name, value, "None with `costs`, which are the target")
        name = "auto" if self._auto else csf_module.name_of(self.csf)
        if name != "msp":
            refuse("csf", name, "left out with `costs`: confidence is minus the cost")
        d = self.outputs.decision_threshold
        if d != 0.5:
            refuse("decision_threshold", d, "left out with `costs`, which decide")
        if abstain_cost is not None:
            abstain_cost = check_abstain("abstain_cost", abstain_cost)
        return check_costs(costs, None, square=True), abstain_cost

    def _new_layer(
        self,
        calibrator: Calibrator | None,
        csf: Any,
        threshold: Any = -math.inf,
        record: FitRecord | None = None,
        costs: Array | None = None,
    ) -> SelectionLayer:
        return SelectionLayer(
            self._calibration(calibrator),
            csf,
            threshold=threshold,
            record=record,
            costs=costs,
            **self.outputs.config(*OPTIONS),
        )

    def _unlabelled(
        self,
        x: Any,
        sample_weight: Any,
        groups: Any,
        batch_size: Any,
        verbose: Any,
    ) -> tuple[Array, Array, Array]:
        """Returns the checked outputs, and weight and unit of each answer."""
        outputs, mask = self._outputs(x, batch_size, verbose)
        y_pred = to_floats(outputs)
        weight, units = counted(self.outputs, y_pred, groups, mask, sample_weight)
        check_finite(self.outputs.columns(y_pred, self.from_logits, np)[weight > 0])
        return y_pred, weight, units
