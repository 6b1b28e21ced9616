"""Post-hoc calibration of saved logits: the numbers that the paper's tables print."""

import contextlib
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from keras import ops

from keras_selcal import MetaAcc, MetaMis, TemperatureScaling
from keras_selcal.calibrators.temperature_scaling import TEMPERATURE_GRID
from recipes.evaluation import measure
from recipes.runs import Predictions

# Targets of Meta-Cal in the paper's sources, which have none for other data sets.
MISCOVERAGE = 0.05
ACCURACY = {"cifar10": 0.97, "cifar100": 0.87, "tiny-imagenet": 0.85}

TITLES = {"ts": "+TS", "metamis": "+MetaMis", "metaacc": "+MetaAcc"}

SPLITS = {"val": "validation", "train": "training"}
# Where the temperature and Meta-Cal are fitted, by the name of the option. A comment in
# the paper's source names the training set. The authors' logits agree with it for
# Meta-Cal and disagree for T (the claim `table_a`): that is "paper".
FIT_ON = {
    "val": ("val", "val"),
    "train": ("train", "train"),
    "paper": ("val", "train"),
}
# A target of MetaAcc below the model's accuracy is raised in these steps.
_STEP = 0.005

# Numbers by (posthoc, metric).
Values = dict[tuple[str, str], float]


def posthoc_values(
    fitted: Predictions,
    test: Predictions,
    accuracy: float | None = None,
    methods: Collection[str] = tuple(TITLES),
    meta_fitted: Predictions | None = None,
) -> tuple[Values, list[str]]:
    """Returns the numbers that the tables print for a run, and notes on the fit.

    Samples that Meta-Cal rejects get the uniform distribution, and 1/k of them count as
    correct.

    Args:
        fitted: predictions to fit the temperature on.
        test: predictions to evaluate.
        accuracy: target of MetaAcc; None leaves it out. It is raised in steps of 0.005
            as long as the model exceeds it without rejecting anything.
        methods: names in `TITLES`, of the calibrators that are needed.
        meta_fitted: predictions to fit Meta-Cal on. Defaults to `fitted`.

    Returns:
        Values × 10² by (posthoc, metric), and temperatures as they are; and notes on a
        T at the end of its grid, and on calibrators that could not be fitted, or only
        with a higher target.
    """
    logits, labels = test
    meta_fitted, notes = meta_fitted or fitted, []
    names = ("adaptive_ece", "accuracy", "cwece")
    values = _measured("none", labels, logits, (*names, "ece"))
    if "ts" in methods:
        ts = TemperatureScaling(objective="ece").fit(*fitted)
        values |= _measured("ts", labels, logits / ts.temperature, names)
        values["ts", "temperature"] = ts.temperature
        if ts.temperature in (TEMPERATURE_GRID[0], TEMPERATURE_GRID[-1]):
            end = f"T = {ts.temperature:g}, at the end of its grid"
            notes.append(f"+TS has {end}, where ECE may not have its minimum")
    makers: dict[str, list[Any]] = {}
    if "metamis" in methods:
        makers["metamis"] = [MetaMis(MISCOVERAGE)]
    if "metaacc" in methods and accuracy is not None:
        steps = range(1 + round((1 - accuracy) / _STEP))
        targets = [min(accuracy + step * _STEP, 1.0) for step in steps]
        makers["metaacc"] = [MetaAcc(target) for target in targets]
    for name, candidates in makers.items():
        calibrator = _first_fitted(candidates, meta_fitted)
        if calibrator is None:
            why = "too few of them are classified correctly"
            if name == "metaacc":
                why = f"rejecting some reaches no accuracy from {accuracy:g} to 1"
            place = f"cannot be fitted on these {len(meta_fitted.labels)} images"
            notes.append(f"{TITLES[name]} {place}, because {why}")
            continue
        if calibrator is not candidates[0]:
            target = f"{accuracy:g} to {calibrator.accuracy:.3g}"
            notes.append(f"{TITLES[name]} has its target accuracy raised from {target}")
        accepted = np.asarray(ops.convert_to_numpy(calibrator.accepts(logits)))
        answered = np.where(accepted[:, None], logits / calibrator.temperature, 0.0)
        values |= _measured(name, labels, answered, ("adaptive_ece",))
        found = calibrator.evaluate(logits, labels)
        values[name, "accuracy"] = 100 * found["uniform_accuracy"]
    return values, notes


def _first_fitted(candidates: list[Any], fitted: Predictions) -> Any:
    """Returns the first calibrator that can be fitted, or None."""
    for calibrator in candidates:
        with contextlib.suppress(ValueError):
            return calibrator.fit(*fitted)
    return None


def _measured(posthoc: str, labels: Any, logits: Any, names: Iterable[str]) -> Values:
    found = measure(labels, logits, names)
    return {(posthoc, name): value for name, value in found.items()}
