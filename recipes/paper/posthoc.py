"""Post-hoc calibration of saved logits: the numbers that the paper's tables print."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from keras import ops

from keras_selcal import MetaAcc, MetaMis, TemperatureScaling
from recipes.evaluation import measure
from recipes.runs import Predictions

# Targets of Meta-Cal in the paper's sources, which have none for other data sets.
MISCOVERAGE = 0.05
ACCURACY = {"cifar10": 0.97, "cifar100": 0.87, "tiny-imagenet": 0.85}

TITLES = {"ts": "+TS", "metamis": "+MetaMis", "metaacc": "+MetaAcc"}

# Numbers by (posthoc, metric).
Values = dict[tuple[str, str], float]


def posthoc_values(
    val: Predictions, test: Predictions, accuracy: float | None = None
) -> tuple[Values, list[str]]:
    """Returns the numbers that the tables print for a run, and what failed to fit.

    Samples that Meta-Cal rejects get the uniform distribution, and 1/k of them count as
    correct.

    Args:
        val: predictions to fit the calibrators on.
        test: predictions to evaluate.
        accuracy: target of MetaAcc; None leaves it out.

    Returns:
        Values × 10² by (posthoc, metric), and temperatures as they are; and the errors
        of the calibrators that could not be fitted.
    """
    logits, labels = test
    names = ("adaptive_ece", "accuracy", "cwece")
    values = _measured("none", labels, logits, (*names, "ece"))
    ts = TemperatureScaling(objective="ece").fit(*val)
    values |= _measured("ts", labels, logits / ts.temperature, names)
    values["ts", "temperature"] = ts.temperature
    errors = []
    calibrators: dict[str, Any] = {"metamis": MetaMis(MISCOVERAGE)}
    if accuracy is not None:
        calibrators["metaacc"] = MetaAcc(accuracy)
    for name, calibrator in calibrators.items():
        try:
            calibrator.fit(*val)
        except ValueError as error:
            errors.append(f"{TITLES[name]}: {' '.join(str(error).split())}")
            continue
        accepted = np.asarray(ops.convert_to_numpy(calibrator.accepts(logits)))
        answered = np.where(accepted[:, None], logits / calibrator.temperature, 0.0)
        values |= _measured(name, labels, answered, ("adaptive_ece",))
        found = calibrator.evaluate(logits, labels)
        values[name, "accuracy"] = 100 * found["uniform_accuracy"]
    return values, errors


def _measured(posthoc: str, labels: Any, logits: Any, names: Iterable[str]) -> Values:
    found = measure(labels, logits, names)
    return {(posthoc, name): value for name, value in found.items()}
