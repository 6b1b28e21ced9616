"""A policy: calibrator, score and threshold in a JSON file, applied by NumPy alone."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from keras_selcal import calibrators
from keras_selcal import csf as csf_module
from keras_selcal._arrays import Array, to_numbers
from keras_selcal._predictions.outputs import Outputs
from keras_selcal._validation import (
    are_probabilities,
    check_class_names,
    check_count,
    look_like_probabilities,
    refuse,
)
from keras_selcal.calibrators import Calibrator
from keras_selcal.calibrators._parameters import Fitted
from keras_selcal.csf.names import BUILT_IN
from keras_selcal.csf.score import BuiltIn, ConfidenceScore
from keras_selcal.selective.answers import calibrate, decide, score
from keras_selcal.selective.checks import check_drift, counted, promise
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.data import (
    FIRST_AXIS,
    OF_POLICY,
    SelectionData,
    check_calibrator,
    check_finite,
)
from keras_selcal.selective.drift import DriftCheck, check_rate
from keras_selcal.selective.fitting import fit_selection
from keras_selcal.selective.json_files import read_json, to_array, write_json
from keras_selcal.selective.record import ABSTAINED, FitRecord, SelectivePrediction
from keras_selcal.selective.threshold import accepts, check_target

_OUTPUTS = [each.name for each in fields(Outputs)]

# Entries of a record that are no figures.
_NO_FIGURES = {"n": int, "groups": int, "date": str, "choice": str, "fingerprint": str}


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """What to answer, and when to abstain, for a model's outputs.

    A policy holds what `SelectiveClassifier.fit` finds, without the model: the
    calibrator, the score, the threshold, and the record of the fit. It takes the
    outputs of the model as arrays, computes in float32 with NumPy, and needs neither
    Keras nor a backend. `SelectiveClassifier.to_policy` and `Policy.fit` make one.

    A file of a policy is plain JSON that another language can apply; `docs/deploy.md`
    documents it.

    Attributes:
        outputs: what the model's outputs mean.
        num_outputs: number of classes, of labels if multi-label, or 1 for one sigmoid
            unit.
        calibrator: the fitted calibrator, or None.
        csf: the score.
        threshold: the least confidence that is answered, a number; if multi-label, an
            array with one for each label, and of a fit with `per_class=True` one for
            each predicted class.
        record: a `FitRecord`, what the policy was fitted on and what it promises.
        class_names: names of the classes, or None.

    Example:
    >>> import numpy as np
    >>> from keras_selcal import Policy, TemperatureScaling
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 3, 2000)
    >>> logits = 2.5 * np.eye(3)[labels] + rng.normal(size=(2000, 3))
    >>> policy = Policy.fit(
    ...     logits, labels, calibrator=TemperatureScaling(), risk=0.02, delta=0.05
    ... )
    >>> policy.predict([[5.0, 0.0, 0.0], [2.0, 1.9, 0.0]]).labels.tolist()
    [0, -1]
    """

    outputs: Outputs
    num_outputs: int
    calibrator: Calibrator | None
    csf: ConfidenceScore
    threshold: Any
    record: FitRecord | None = None
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        k = check_count("num_outputs", self.num_outputs)
        names = check_class_names(self.class_names, self.num_classes)
        put("class_names", None if names is None else tuple(names))
        threshold = np.asarray(self.threshold, "float64")
        shapes = {(k,)} if self.outputs.multi_label else {(), (self.num_classes,)}
        if threshold.shape not in shapes or np.isnan(threshold).any():
            what = "a number, or " * (() in shapes) + f"{self.num_classes} numbers"
            refuse("threshold", threshold.tolist(), what)
        put("threshold", threshold if threshold.ndim else float(threshold))
        if self.calibrator is not None:
            of = self.calibrator._fitted
            assert of is not None
            of = replace(of, from_logits=self.outputs.from_logits)
            made = self.calibrator._with_parameters(self.calibrator.parameters, of)
            put("calibrator", made)

    @property
    def from_logits(self) -> bool:
        """Whether the policy takes logits, not probabilities."""
        return self.outputs.from_logits

    @property
    def one_unit(self) -> bool:
        """Whether the policy is for one sigmoid unit."""
        return self.num_outputs == 1 and not self.outputs.multi_label

    @property
    def num_classes(self) -> int:
        """Number of classes, 2 of one sigmoid unit, or of labels if multi-label."""
        return 2 if self.one_unit else self.num_outputs

    @classmethod
    def fit(
        cls,
        outputs: Any,
        labels: Any,
        *,
        coverage: float | None = None,
        risk: float | None = None,
        delta: float | None = None,
        per_class: bool = False,
        calibrator: Calibrator | str | None = None,
        csf: Any = "msp",
        from_logits: bool = True,
        multi_label: bool = False,
        decision_threshold: float = 0.5,
        ignore_class: int | None = None,
        axis: int = -1,
        class_names: Sequence[str] | None = None,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> "Policy":
        """Fits a policy on held-out outputs of a model, as `SelectiveClassifier.fit`.

        Args:
            outputs: logits, or probabilities with `from_logits=False`: (..., k), or
                (..., 1) and (n,) of one sigmoid unit.
            labels: class indices, one-hot labels or 0/1.
            coverage: see `select_threshold`. Pass exactly one of `coverage` and `risk`.
            risk: see `select_threshold`.
            delta: see `select_threshold`.
            per_class: see `SelectiveClassifier.fit`.
            calibrator: see `SelectiveClassifier`. If it is not fitted yet, a random
                half of the samples serves to fit it, and the threshold is selected on
                the rest.
            csf: see `SelectiveClassifier`.
            from_logits: whether `outputs` are logits.
            multi_label: see `SelectiveClassifier`.
            decision_threshold: see `SelectiveClassifier`.
            ignore_class: see `SelectiveClassifier`.
            axis: see `SelectiveClassifier`.
            class_names: a name for each class, or None.
            sample_weight: see `SelectiveClassifier.fit`.
            groups: see `SelectiveClassifier.fit`.
        """
        coverage, risk, delta = check_target(coverage, risk, delta)
        meaning = Outputs(
            from_logits, multi_label, ignore_class, axis, decision_threshold
        )
        automatic = isinstance(csf, str) and csf == "auto"
        csf = None if automatic else csf_module.get(csf, from_logits=from_logits)
        data = _labelled(outputs, labels, sample_weight, meaning, groups)
        if delta is not None:
            data.warn_if_dependent()
        found = fit_selection(
            data,
            check_calibrator(calibrator, meaning),
            csf,
            lambda y_pred, *chosen: _answer(y_pred, meaning, *chosen),
            coverage=coverage,
            risk=risk,
            delta=delta,
            per_class=per_class,
        )
        return cls.of_outputs(
            meaning,
            data.y_pred.shape,
            calibrator=found.calibrator,
            csf=found.csf,
            threshold=found.threshold,
            record=found.record,
            class_names=class_names,
        )

    @classmethod
    def of_outputs(
        cls, outputs: Outputs, shape: Sequence[int | None], **found: Any
    ) -> "Policy":
        """Returns the policy for outputs of a shape, of what a fit has found."""
        units: Any = 1 if outputs.is_one_unit(tuple(shape)) else shape[outputs.axis]
        return cls(outputs, units, **found)

    def predict(
        self, outputs: Any, *, from_logits: bool | None = None
    ) -> SelectivePrediction:
        """Returns labels (−1 for an abstention), which are accepted, and confidences.

        A row with NaN is not accepted.

        Args:
            outputs: logits or probabilities, whichever the policy was fitted on.
            from_logits: which of the two `outputs` are; the other kind is refused. By
                default their values tell. Values of a few sigmoids cannot, and logits
                of a single sample can sum to 1 by chance: pass it where samples come
                one by one.
        """
        answer = self._answer(outputs, from_logits)
        accepted = accepts(answer, np.float32(self.threshold), self.outputs)
        labels = np.where(accepted, answer["labels"], np.int32(ABSTAINED))
        return SelectivePrediction(labels, accepted, answer["confidence"])

    def predict_proba(self, outputs: Any, *, from_logits: bool | None = None) -> Array:
        """Returns calibrated probabilities (..., k), of rejected samples too; one
        sigmoid unit gives two columns, (1 − p, p).

        Args:
            outputs: as in `predict`.
            from_logits: as in `predict`.
        """
        return np.asarray(self._answer(outputs, from_logits)["probabilities"])

    def check(
        self,
        outputs: Any,
        labels: Any = None,
        *,
        from_logits: bool | None = None,
        false_alarm_rate: float = 0.01,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> DriftCheck:
        """Tests whether new outputs are like the fitting data; with labels, also
        whether the errors contradict the promise. See `SelectiveClassifier.check`.

        Args:
            outputs: as in `predict`, without NaN.
            labels: as in `fit`, or None.
            from_logits: as in `predict`.
            false_alarm_rate: α in (0, 1) of each test.
            sample_weight: as in `fit`.
            groups: as in `SelectiveClassifier.check`.
        """
        rate = check_rate(false_alarm_rate)
        promise(self)
        groups = FIRST_AXIS if groups is None else groups
        y_pred, data = self._checked(outputs, from_logits), None
        if labels is not None:
            data = _labelled(y_pred, labels, sample_weight, self.outputs, groups)
            weight, units = data.weight, data.units
            if self.was_fitted_on(data):
                warnings.warn(
                    "These are the data that the policy was fitted on: they do "
                    "not test its promise.",
                    stacklevel=2,
                )
        else:
            weight, units = counted(
                self.outputs, y_pred, groups, sample_weight, argument="outputs"
            )
            columns = self.outputs.columns(y_pred, self.from_logits, np)
            check_finite(columns[weight > 0], "outputs")
        answer = _answer(y_pred, self.outputs, self.calibrator, self.csf)
        return check_drift(self, answer, weight, units, rate, data)

    def was_fitted_on(self, data: SelectionData) -> bool:
        """Returns whether labelled outputs are the data of the fit."""
        return self.record is not None and self.record.fingerprint == data.fingerprint

    def cuts(
        self,
        outputs: Any,
        labels: Any,
        *,
        from_logits: bool | None = None,
        groups: Any = None,
    ) -> list[Cuts]:
        """Returns the thresholds that labelled outputs which the fit has not used
        offer, of each label.
        """
        y_pred = self._checked(outputs, from_logits)
        data = _labelled(y_pred, labels, None, self.outputs, groups)
        if self.was_fitted_on(data):
            allowed = "other data than those that the policy was fitted on"
            refuse("outputs", data.y_pred.shape, allowed)
        answer = _answer(y_pred, self.outputs, self.calibrator, self.csf)
        return data.cuts(answer, predicted=True)

    def _answer(self, outputs: Any, from_logits: bool | None) -> dict[str, Array]:
        y_pred = self._checked(outputs, from_logits)
        return _answer(y_pred, self.outputs, self.calibrator, self.csf)

    def _checked(self, outputs: Any, from_logits: bool | None) -> Array:
        """Returns outputs in float32, if they are of the kind of the fit."""
        if from_logits is not None and bool(from_logits) != self.from_logits:
            kind = "logits" if self.from_logits else "probabilities"
            allowed = f"{self.from_logits}: the policy was fitted on {kind}"
            refuse("from_logits", from_logits, allowed)
        y_pred = _to_float32(outputs)
        shape, k = y_pred.shape, self.num_outputs
        flat = self.one_unit and len(shape) == 1
        if not flat and (len(shape) < 2 or shape[self.outputs.axis] != k):
            allowed = f"of shape (..., {k}), as those that the policy was fitted on"
            refuse("outputs", shape, allowed)
        rows = self.outputs.columns(y_pred, self.from_logits, np)
        rows = rows.reshape(-1, rows.shape[-1])
        if not self.from_logits:
            if not are_probabilities(rows):
                allowed = "probabilities, which the policy was fitted on, not logits"
                refuse("outputs", rows[0].tolist(), allowed)
        elif from_logits is None:
            rows = rows[~np.isnan(rows).any(axis=-1)]
            if self.one_unit or self.outputs.multi_label:
                other = look_like_probabilities(rows, True)
            else:
                other = len(rows) > 0 and are_probabilities(rows)
            if other:
                allowed = (
                    "logits, which the policy was fitted on, not probabilities (pass "
                    "`from_logits=True` if they are logits that sum to 1)"
                )
                refuse("outputs", rows[0].tolist(), allowed)
        return y_pred

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the policy as JSON.

        Args:
            path: path of the file, such as `"policy.json"`.
        """
        entries = {
            **asdict(self.outputs),
            "num_outputs": self.num_outputs,
            "class_names": self.class_names,
            "calibrator": self.calibrator and _calibrator_entry(self.calibrator),
            "csf": _csf_entry(self.csf),
            "threshold": self.threshold,
            "record": self.record and self.record.to_dict(),
        }
        write_json(path, "Policy", entries)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Policy":
        """Loads a policy that was saved by `save`. A file holds no code.

        Args:
            path: path of the file.
        """
        names = [*_OUTPUTS, *(each.name for each in fields(cls)[1:])]
        return read_json(path, "Policy", names, cls._of_entries)

    @classmethod
    def _of_entries(cls, entries: dict[str, Any]) -> "Policy":
        given = dict(entries)
        outputs = Outputs(**{name: given.pop(name) for name in _OUTPUTS})
        if asdict(outputs) != {name: entries[name] for name in _OUTPUTS}:
            raise ValueError("`from_logits` and `multi_label` must be true or false")
        record, calibrator = given["record"], given["calibrator"]
        given["threshold"] = to_array(given["threshold"])
        given["csf"] = _csf_of(**given["csf"], from_logits=outputs.from_logits)
        if record is not None:
            given["record"] = _record_of(record)
        if calibrator is not None:
            made = given["calibrator"] = _calibrator_of(**calibrator)
            for name in ("multi_label", "axis"):
                if getattr(made.outputs, name) != getattr(outputs, name):
                    raise ValueError(f"the calibrator is of another `{name}`")
        policy = cls(outputs, **given)
        if policy.record is not None:
            _check_record(policy.record, policy)
        # Parameters that do not fit each other, or the outputs, fail here.
        shape = [1] * (2 if outputs.axis == -1 else outputs.axis + 1)
        shape[outputs.axis] = policy.num_outputs
        outputs.check_shapes(None, tuple(shape))
        equal = 0.5 if outputs.multi_label else 1 / policy.num_classes
        found = policy.predict_proba(np.full(shape, 0 if policy.from_logits else equal))
        shape[outputs.axis] = policy.num_classes
        if found.shape != tuple(shape) or np.isnan(found).any():
            raise ValueError("the parameters of the calibrator do not fit the outputs")
        return policy

    def __repr__(self) -> str:
        calibrator = self.calibrator and type(self.calibrator).__name__
        threshold = np.array2string(np.asarray(self.threshold), precision=4)
        kind = "logits" if self.from_logits else "probabilities"
        record = "" if self.record is None else f", {self.record.describe()}"
        return (
            f"Policy({kind}, num_outputs={self.num_outputs}, "
            f"csf={csf_module.name_of(self.csf)!r}, calibrator={calibrator}, "
            f"threshold={threshold}{record})"
        )


def _to_float32(outputs: Any) -> Array:
    return to_numbers("outputs", outputs).astype("float32", copy=False)


def _labelled(
    outputs: Any, labels: Any, sample_weight: Any, meaning: Outputs, groups: Any
) -> SelectionData:
    y_true = to_numbers("labels", labels)
    weight = sample_weight
    if weight is not None:
        weight = to_numbers("sample_weight", weight)
    y_pred = _to_float32(outputs)
    return SelectionData.of(y_pred, y_true, weight, meaning, groups, names=OF_POLICY)


def _answer(
    y_pred: Array, outputs: Outputs, calibrator: Calibrator | None, csf: ConfidenceScore
) -> dict[str, Array]:
    """Returns what `SelectionLayer.answer` does, by NumPy."""
    csf.check_classes(outputs.rows_of(y_pred.shape)[0])
    # NaN and −∞ are allowed, and need no warnings.
    with np.errstate(all="ignore"):
        columns, p, accepted = calibrate(y_pred, outputs, calibrator, np)
        confidence = score(columns, p, csf, outputs, np)
    return {
        "probabilities": outputs.restored(p, np),
        "confidence": confidence.astype("float32", copy=False),
        "accepted": accepted,
        "labels": decide(columns, p, accepted, outputs, calibrator, np),
    }


def _calibrator_entry(calibrator: Calibrator) -> dict[str, Any]:
    name = type(calibrator).__name__
    if getattr(calibrators, name, None) is not type(calibrator):
        allowed = "one of keras_selcal.calibrators: the file of a policy holds no code"
        refuse("calibrator", calibrator, allowed)
    assert calibrator._fitted is not None
    return {
        "name": name,
        "parameters": dict(calibrator.parameters),
        "config": calibrator.get_config(),
        "fitted": asdict(calibrator._fitted),
    }


def _calibrator_of(
    name: str, parameters: dict[str, Any], config: dict[str, Any], fitted: Any
) -> Calibrator:
    made = getattr(calibrators, name) if name in calibrators.__all__ else None
    if not (isinstance(made, type) and issubclass(made, Calibrator)):
        raise ValueError(f"the calibrator {name!r} is not known")
    values = {name: to_array(value) for name, value in parameters.items()}
    if any(np.isnan(value).any() for value in values.values()):
        raise ValueError("a parameter of the calibrator is NaN")
    return made.from_config(config)._with_parameters(values, Fitted(**fitted))


def _csf_entry(csf: ConfidenceScore) -> dict[str, Any]:
    if not isinstance(csf, BuiltIn):
        allowed = "a score by name: the file of a policy holds no code"
        refuse("csf", csf_module.name_of(csf), allowed)
    p = {"p": csf.p} if isinstance(csf, csf_module.MaxLogitPNorm) else {}
    return {"name": csf.__name__, **p}


def _csf_of(name: str, from_logits: bool, p: float | None = None) -> ConfidenceScore:
    if name not in BUILT_IN or (p is None) == (name == "max_logit_pnorm"):
        raise ValueError(f"the score {name!r} with p={p} is not known")
    score = name if p is None else csf_module.MaxLogitPNorm(p)
    return csf_module.get(score, from_logits=from_logits)


def _record_of(entry: dict[str, Any]) -> FitRecord:
    values = {
        name: x if x is None or name in _NO_FIGURES else to_array(x).tolist()
        for name, x in entry.items()
    }
    record: FitRecord = FitRecord.from_dict(values)
    return record


def _check_record(record: FitRecord, policy: Policy) -> None:
    """Checks that the record of a file is one of a fit of this policy."""
    k, each = policy.num_classes, np.shape(policy.threshold)
    labels = each if policy.outputs.multi_label else ()
    # Other figures are numbers.
    shapes = {
        "coverage": labels,
        "selective_risk": labels,
        "bound": each,
        "class_coverage": (k,),
        "class_risk": (k,),
        "confidence": (len(record.confidence),),
    }
    needed = {"n", "date", "coverage", "selective_risk"}
    if record.bound is not None:
        needed |= {"delta"}
    if record.unknown_share is not None:
        needed |= {"known_coverage", "unknown_coverage"}
    for name, value in vars(record).items():
        if value is None:
            fits = name not in needed
        elif name in _NO_FIGURES:
            fits = isinstance(value, _NO_FIGURES[name])
        else:
            fits = np.shape(value) == shapes.get(name, ())
        if not fits:
            raise ValueError(f"`{name}` of the record does not fit the policy")
    if np.isnan(record.confidence).any():
        raise ValueError("a confidence of the record is NaN")
