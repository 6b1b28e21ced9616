"""Prior correction: class frequencies that differ from the training data."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_selcal._arrays import Array, to_numbers
from keras_selcal._backend.installed import require_backend
from keras_selcal._formulas.functions import softmax
from keras_selcal._predictions.outputs import Outputs, broadcast_weight, two_columns
from keras_selcal._saving import serializable
from keras_selcal._validation import check_number, refuse
from keras_selcal.calibrators._parameters import Fitted, Parameters
from keras_selcal.calibrators.base import Calibrator
from keras_selcal.calibrators.data import Labelled

if TYPE_CHECKING:
    import keras

P = TypeVar("P", bound="PriorCorrection")

# Largest relative change of a frequency at which EM stops.
_TOLERANCE = 1e-6
_MOST_STEPS = 10_000
# How far frequencies may be from a sum of 1.
_SUM_TOLERANCE = 1e-3


@serializable
class PriorCorrection(Calibrator):
    """Corrects probabilities for other class frequencies than in training.

    Formula:

    ```
    p = softmax(z + ln(target/source))
    ```

    with `source` the class frequencies that the logits z were trained for, and `target`
    the frequencies where the model is used. One sigmoid unit, and each label of
    multi-label data, is σ(z + ln(t/(1 − t)) − ln(s/(1 − s))). The correction is exact
    if only the frequencies change: inputs of one class must look the same in both.

    If `target` is known, the calibrator needs no `fit`. Otherwise `fit(logits)`
    estimates it from unlabelled predictions, by the EM algorithm with a Dirichlet
    prior around `source`:

    ```
    t_c ← (Σ_i w_i p_ic(t) + α k s_c)/(n + α k)
    Λ = 2 Σ_i w_i ln Σ_c (t_c/s_c) p_ic,     p_value = P(χ²(k − 1) ≥ Λ)
    ```

    with p_i the uncorrected and p_i(t) the corrected probabilities. If the
    likelihood-ratio test does not reject that both frequencies are equal, `target`
    stays `source` and nothing changes. The test cannot tell whether only the
    frequencies have changed; if more has, the estimate can be far off.

    The estimate needs calibrated probabilities. To chain it behind another calibrator,
    pass its outputs: `prior.fit(calibrator(logits))` with `from_logits=False`, and
    `prior.wrap(calibrator.wrap(model))` for models.

    Args:
        source: class frequencies (k,) as floats that sum to 1, or class labels (n,) as
            integers, in which every class must occur. One sigmoid unit: also the
            frequency of class 1 as a float. Multi-label data: each label's frequency
            (k,), or multi-hot labels (n, k). To estimate `target`, the mean prediction
            on samples like the training data is safer than their class frequencies,
            from which it can differ.
        target: as `source`; or None, to estimate it by `fit`. A frequency of 0 gives
            a class the probability 0. Must be given for multi-label data: if the
            frequency of one label changes, the samples without it change too.
        class_weight: the `class_weight=` that the model was trained with, a dict of
            weights by class, 1 for others. The frequencies of `source` are multiplied
            by it. Not for multi-label data.
        pseudo_count: α ≥ 0, the samples that the prior counts for in each class.
        significance: level of the test in (0, 1]; 1 accepts every estimate.
        from_logits: whether the outputs are logits; see `Calibrator`.
        multi_label: whether the outputs are independent sigmoids; see `Calibrator`.
        ignore_class: samples with this label are left out of `source` and `target`.
        axis: axis of the classes: -1, or 1 for channels first.

    Attributes:
        source: class frequencies (k,), with `class_weight` included.
        target: class frequencies (k,), given or estimated; None before `fit`.
        p_value: of the test, once fitted; None if `target` is given.

    Example:
    >>> import numpy as np
    >>> logits = np.array([[0.0, 0.0]])
    >>> correction = PriorCorrection(source=[0.5, 0.5], target=[0.9, 0.1])
    >>> print(correction(logits))
    [[0.9 0.1]]
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.choice(2, 500, p=[0.9, 0.1])
    >>> logits = 4 * np.eye(2)[labels] - 2 + rng.normal(size=(500, 2))
    >>> correction = PriorCorrection(source=[0.5, 0.5]).fit(logits)
    >>> print(correction.target.round(2))
    [0.9 0.1]

    References:
    - Saerens et al., [Adjusting the Outputs of a Classifier to New a Priori
      Probabilities](https://doi.org/10.1162/089976602753284446)
    - Alexandari et al., [Maximum Likelihood with Bias-Corrected Calibration is
      Hard-To-Beat at Label Shift Adaptation](https://arxiv.org/abs/1901.06852)
    """

    def __init__(
        self,
        source: Any,
        target: Any = None,
        *,
        class_weight: Mapping[int, float] | None = None,
        pseudo_count: float = 1.0,
        significance: float = 0.05,
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
        self.source = _frequencies("source", source, self.outputs)
        self.class_weight = class_weight
        if class_weight is not None:
            if multi_label:
                refuse("class_weight", class_weight, "None for multi-label data")
            self.source = _weighted(self.source, class_weight)
        absent = np.flatnonzero((self.source <= 0) | (self.source >= 1))
        if len(absent):
            refuse(
                "source",
                float(self.source[absent[0]]),
                f"above 0 and below 1 for every class; class {absent[0]} is not. Pass "
                "counts of the classes as counts / counts.sum()",
            )
        allowed = "a number ≥ 0"
        self.pseudo_count = check_number("pseudo_count", pseudo_count, allowed, least=0)
        allowed = "a number in (0, 1]"
        self.significance = check_number(
            "significance", significance, allowed, above=0, most=1
        )
        self._given: Array | None = None
        if target is None and multi_label:
            refuse("target", None, "given for multi-label data")
        if target is not None:
            k = len(self.source)
            given = _frequencies("target", target, self.outputs, k)
            if len(given) != k:
                allowed = f"of {k} classes, as `source`"
                refuse("target", f"of {len(given)} classes", allowed)
            self._given = given
            self._parameters = self._both(given)
            self._fitted = Fitted(k)

    def _columns_of(self, frequencies: Array) -> Array:
        """Returns frequencies (k,), or (labels, 2) for multi-label data."""
        if not self.multi_label:
            return frequencies
        return np.asarray(two_columns(frequencies, False, np))

    def _both(self, target: Array) -> dict[str, Array]:
        return {
            "source": self._columns_of(self.source),
            "target": self._columns_of(target),
        }

    @property
    def target(self) -> Array | None:
        if self._parameters is None:
            return None
        target = np.asarray(self._parameters["target"], "float64")
        return target[:, 1] if self.multi_label else target

    @property
    def p_value(self) -> Any:
        if self._parameters is None or "p_value" not in self._parameters:
            return None
        return self._value("p_value")

    def fit(
        self: P, logits: Any, labels: Any = None, *, sample_weight: Any = None
    ) -> P:
        """Estimates `target` from unlabelled predictions, and returns the calibrator.

        A `target` that was given to the constructor stays as it is.

        Args:
            logits: the classifier's outputs where it is used, as in `Calibrator.fit`.
            labels: not needed; only `ignore_class` looks at them.
            sample_weight: as in `Calibrator.fit`.
        """
        return self._fit_as(self.outputs, logits, labels, sample_weight)

    def fit_model(
        self: P,
        model: "keras.Model",
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        from_logits: bool | None = None,
        output: str | int | None = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
    ) -> P:
        """Estimates `target` from a model's outputs, and returns the calibrator.

        Args:
            model: a Keras model.
            x: inputs, in any form that `keras.Model.predict` takes. Of a data set's
                labels only those of `ignore_class` matter; its weights are applied.
            y: not used.
            sample_weight: weights, if `x` is arrays.
            from_logits: as in `Calibrator.fit_model`.
            output: the name or index of one of several outputs.
            batch_size: used if `x` is arrays.
            verbose: whether a progress bar is shown, as in `keras.Model.predict`.
        """
        require_backend()
        from keras_selcal._predictions.data import (
            LabelledData,
            find_labels,
            predict_masked,
        )
        from keras_selcal._predictions.models import OneOutput

        one = OneOutput.of(model, output)
        model = one.model
        outputs = self.outputs_of(model, from_logits)
        labelled, x = find_labels(x)
        if labelled:  # and perhaps weighted
            data = LabelledData(x, None, sample_weight, several=one.key is not None)
            logits, labels, weight = data.predict(
                one, verbose=verbose, axis=outputs.axis
            )
            needed = None if self.outputs.ignore_class is None else labels
            return self._fit_as(outputs, logits, needed, weight)
        found, mask = predict_masked(model, x, batch_size, verbose, outputs.axis)
        if mask is not None:
            weight = np.ones(()) if sample_weight is None else np.asarray(sample_weight)
            shape = outputs.sample_shape(found.shape)
            sample_weight = mask * broadcast_weight(weight, shape, np)
        return self._fit_as(outputs, found, None, sample_weight)

    def _fit_as(
        self: P, outputs: Outputs, logits: Any, labels: Any, sample_weight: Any
    ) -> P:
        if labels is None:
            logits = to_numbers("logits", logits)
            labels = _most_probable(outputs, logits)
        return super()._fit_as(outputs, logits, labels, sample_weight)

    def _fit_all(self, problems: list[Labelled]) -> Parameters:
        k = len(problems) if self.multi_label else problems[0].num_classes
        if k != len(self.source):
            allowed = f"of {len(self.source)} classes, as `source`"
            refuse("logits", f"of {k} classes", allowed)
        if self._given is not None:
            return self._both(self._given)
        return self._fit(problems[0])

    def _fit(self, data: Labelled) -> Parameters:
        source = self.source
        k = len(source)
        ratios = softmax(data.logits.astype("float64"), np) / source
        prior = self.pseudo_count * k * source
        target = source
        for _ in range(_MOST_STEPS):
            # The density at each sample, relative to the source's.
            density = ratios @ target
            counts = target * ((data.weight / density) @ ratios) + prior
            last, target = target, counts / counts.sum()
            if np.all(np.abs(target - last) <= _TOLERANCE * last):
                break
        statistic = 2 * float(data.weight @ np.log(ratios @ target))
        p_value = chi_square_tail(max(statistic, 0.0), k - 1)
        if p_value > self.significance:
            target = source
        return {**self._both(target), "p_value": np.asarray(p_value)}

    def _apply(self, logits: Any, parameters: Mapping[str, Any], xp: Any) -> Any:
        shift = xp.log(parameters["target"]) - xp.log(parameters["source"])
        return softmax(logits + shift, xp)

    def get_config(self) -> dict[str, Any]:
        given = self._given
        return {
            **super().get_config(),
            "source": self.source.tolist(),
            "target": None if given is None else given.tolist(),
            "class_weight": None,  # in `source`
        }


def _frequencies(argument: str, value: Any, outputs: Outputs, least: int = 0) -> Array:
    """Returns class frequencies (k,), of labels or as they were given.

    Labels count `least` classes or more.
    """
    array = to_numbers(argument, value)
    if array.size == 0:
        refuse(argument, value, "frequencies or labels, not empty")
    if outputs.multi_label:
        if array.ndim == 2 and np.isin(array, (0, 1)).all():
            return array.mean(axis=0, dtype="float64")
        if array.ndim == 1 and np.all((array >= 0) & (array <= 1)):
            return array.astype("float64")
        refuse(argument, value, "a frequency of each label, or multi-hot labels (n, k)")
    if array.dtype.kind in "iub":
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim == 1:
            labels = array.astype("int64")
            if outputs.ignore_class is not None:
                labels = labels[labels != outputs.ignore_class]
            if len(labels) and labels.min() >= 0:
                # A larger label leaves a class without samples, which is refused.
                labels = np.minimum(labels, len(labels) + least)
                return np.bincount(labels, minlength=least) / len(labels)
        refuse(argument, value, "class labels (n,) of at least 0, or frequencies")
    if array.ndim == 0 and 0 <= array <= 1:
        return np.array([1 - float(array), float(array)])
    array = array.astype("float64")
    far = abs(array.sum() - 1)
    if array.ndim == 1 and len(array) > 1 and (array >= 0).all():
        if far <= 1e-12:  # unchanged: a saved calibrator stays the same
            return array
        if far <= _SUM_TOLERANCE:
            return array / array.sum()
    refuse(
        argument,
        value,
        "class frequencies (k,) that sum to 1, or class labels (n,) as integers",
    )


def _weighted(source: Array, class_weight: Mapping[int, float]) -> Array:
    """Returns the frequencies that a loss with class weights sees."""
    allowed = f"a dict of positive numbers by class, 0 … {len(source) - 1}"
    if not isinstance(class_weight, Mapping):
        refuse("class_weight", class_weight, allowed)
    weighted = source.copy()
    for c, weight in class_weight.items():
        if c not in range(len(source)):
            refuse("class_weight", class_weight, allowed)
        # As an index, True would be a mask of all classes.
        weighted[int(c)] *= check_number(
            "class_weight", weight, allowed, above=0, below=math.inf
        )
    return np.asarray(weighted / weighted.sum())


def _most_probable(outputs: Outputs, logits: Array) -> Array:
    """Returns the most probable classes in the shape of labels: the data have none."""
    if logits.ndim == 0:
        refuse("logits", "a scalar", "of shape (..., k), or (n,) for one sigmoid")
    if not outputs.multi_label and logits.shape[outputs._axis(logits.shape)] == 0:
        refuse("logits", f"of shape {logits.shape}", "of at least one class")
    labels = outputs.columns(logits, outputs.from_logits, np).argmax(axis=-1)
    return np.moveaxis(labels, -1, outputs.axis) if outputs.multi_label else labels


def chi_square_tail(x: float, df: int) -> float:
    """Returns P(χ²(df) ≥ x), a finite sum for a whole number of degrees of freedom.

    Q(a, x/2) with a = df/2 falls to Q(1/2, x/2) = erfc √(x/2) or Q(1, x/2) = e^(−x/2)
    by Q(a + 1, y) = Q(a, y) + y^a e^(−y)/Γ(a + 1), whose terms are all positive.
    """
    y = x / 2
    if y == 0:
        return 1.0
    start = 0.5 if df % 2 else 1.0
    powers = np.arange(start, df / 2)
    log_gamma = np.array([math.lgamma(a + 1) for a in powers])
    terms = np.exp(powers * math.log(y) - y - log_gamma)
    first = math.erfc(math.sqrt(y)) if df % 2 else math.exp(-y)
    return float(first + terms.sum())
