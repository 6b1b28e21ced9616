"""Trains one network with several losses under equal conditions, and measures it.

`recipes.study` and `recipes.compare` share it. A seed decides the data, the initial
weights and the order of the batches, so that losses can be compared seed by seed.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_selcal as ks
from keras_selcal import functional
from recipes.data.base import Split


class BrierLoss(ks.losses.ReweightedLoss):
    """The Brier score as a loss."""

    def __init__(self, **options: Any) -> None:
        super().__init__("brier", **options)

    def weights(self, batch: Any) -> Any:
        return keras.ops.ones_like(batch.p_y)


class Entrant(NamedTuple):
    """A loss: its title, class, arguments, dropout, and what a search may choose."""

    title: str
    loss: Any
    arguments: dict[str, Any] = {}  # noqa: RUF012 - never changed
    dropout: float = 0.0
    choices: dict[str, tuple[Any, ...]] = {}  # noqa: RUF012 - never changed


_CSF = ("msp", "margin", "neg_entropy")
_AU = {
    "csf": _CSF,
    "smoothing": (0.03, 0.1, 0.3, 1.0),
    "coverage": (0.5, 0.75, 0.9, 1.0),
}
_GAMMA = {"gamma": (0.5, 1.0, 2.0, 3.0)}
LOSSES = {
    "xe": Entrant("cross-entropy", keras.losses.SparseCategoricalCrossentropy),
    "xe_smoothed": Entrant(
        "+ label smoothing",
        ks.FocalLoss,
        {"gamma": 0.0, "label_smoothing": 0.1},
        choices={"label_smoothing": (0.02, 0.05, 0.1, 0.2)},
    ),
    "xe_dropout": Entrant(
        "+ dropout", keras.losses.SparseCategoricalCrossentropy, dropout=0.5
    ),
    "focal": Entrant("focal, γ = 2", ks.FocalLoss, {"gamma": 2.0}, choices=_GAMMA),
    "fl53": Entrant("FL-53", ks.FocalLoss, {"gamma": "53"}),
    "dual_focal": Entrant(
        "dual focal", ks.DualFocalLoss, choices={"gamma": (1.0, 2.0, 3.0, 5.0)}
    ),
    "inv_focal": Entrant("inverse focal", ks.InverseFocalLoss, choices=_GAMMA),
    "brier": Entrant("Brier", BrierLoss),
    "kde_xe": Entrant(
        "KDE-XE", ks.KDECrossentropy, choices={"kde_weight": (0.03, 0.1, 0.3, 1.0)}
    ),
    "aurc": Entrant("AURC", ks.AURCLoss, choices={"csf": _CSF}),
    "au": Entrant("AU", ks.AULoss, choices=_AU),
    "au_cdf": Entrant(
        "AU, whole gradient",
        ks.AULoss,
        {"weight_gradient": 1.0, "through": "cdf"},
        choices={**_AU, "weight_gradient": (0.3, 1.0)},
    ),
}


@dataclass(frozen=True)
class Splits:
    """Samples of one seed.

    Args:
        train: inputs and labels to train on.
        val: inputs and labels that choose epochs, settings and temperatures.
        test: inputs and labels of which figures are reported.
        unknown: inputs of no class.
        people: how many people gave each class to each test input, (n, k).
    """

    train: Split
    val: Split
    test: Split
    unknown: np.ndarray | None = None
    people: np.ndarray | None = None


@dataclass(frozen=True)
class Setting:
    """How a network is trained: SGD with Nesterov momentum along half a cosine."""

    loss: str
    epochs: int
    learning_rate: float = 0.05
    weight_decay: float = 1e-4
    dropout: float = 0.0
    batch_size: int = 128
    arguments: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def default(cls, loss: str, epochs: int, **options: Any) -> "Setting":
        """Returns the setting of a loss that is not searched."""
        one = LOSSES[loss]
        arguments = tuple(one.arguments.items())
        return cls(loss, epochs, dropout=one.dropout, arguments=arguments, **options)

    def searched(self, count: int) -> list["Setting"]:
        """Returns this setting and others, drawn at random, `count` in all.

        Every loss gets the same learning rates, epochs, weight decays and dropouts; its
        own arguments are drawn in addition.
        """
        shared, own = np.random.default_rng(0), np.random.default_rng(1)
        choices = LOSSES[self.loss].choices
        drawn = [self]
        while len(drawn) < count:
            rate = self.learning_rate * float(shared.choice([0.2, 0.6, 2.0]))
            epochs = max(1, round(self.epochs * float(shared.choice([0.25, 0.5, 1.0]))))
            decay = float(shared.choice([1e-5, 1e-4, 1e-3]))
            dropout = float(shared.choice([0.0, 0.3, 0.5]))
            if self.loss == "xe_dropout":
                dropout = max(dropout, 0.3)
            picked = {key: own.choice(values).item() for key, values in choices.items()}
            arguments = tuple({**dict(self.arguments), **picked}.items())
            drawn.append(
                Setting(
                    *(self.loss, epochs, rate, decay, dropout, self.batch_size),
                    arguments=arguments,
                )
            )
        return drawn

    def build_loss(self) -> keras.losses.Loss:
        """Returns the loss on logits."""
        loss: keras.losses.Loss = LOSSES[self.loss].loss(
            **dict(self.arguments), from_logits=True
        )
        return loss


# The models that a contest keeps; `compare` uses each again for the next seed.
_MOST_MODELS = 16


class Trained(NamedTuple):
    """What a training gave: logits of validation, test and unknown inputs."""

    epoch: int
    fitted: float
    val: np.ndarray
    test: np.ndarray
    unknown: np.ndarray | None


@dataclass
class Contest:
    """Trains one architecture; what a backend has compiled is used again.

    Args:
        build: returns a new model, which gives logits, for a rate of dropout.
    """

    build: Callable[[float], keras.Model]
    _models: dict[Setting, keras.Model] = field(default_factory=dict)

    def train(
        self, setting: Setting, samples: Splits, seed: int
    ) -> tuple[dict[str, Trained], float]:
        """Trains a model.

        Returns:
            The outcome at the `"last"` epoch and at the `"best"` one by the NLL of the
            validation data, and the seconds of CPU.
        """
        start = time.process_time()
        model = self._model(setting)
        keras.utils.set_random_seed(seed)
        fresh = self.build(setting.dropout)
        for variable, initial in zip(model.variables, fresh.variables, strict=True):
            variable.assign(initial)
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        lowest, best = math.inf, 0
        kept: list[np.ndarray] = []
        size = min(setting.batch_size, len(samples.train))
        for epoch in range(setting.epochs):
            rate = 0.5 * setting.learning_rate
            rate *= 1 + math.cos(math.pi * epoch / setting.epochs)
            model.optimizer.learning_rate.assign(rate)
            # Full batches only: a shorter one would be compiled anew.
            order = np.random.default_rng((seed, epoch)).permutation(len(samples.train))
            batch = samples.train[order[: len(order) // size * size]]
            model.fit(batch.x, batch.y, batch_size=size, shuffle=False, verbose=0)
            nll = _nll(samples.val.y, logits_of(model, samples.val.x))
            if nll < lowest or not kept:
                lowest, best = nll, epoch + 1
                kept = [keras.ops.convert_to_numpy(v).copy() for v in model.variables]
        found = {"last": self._outcome(model, samples, setting.epochs)}
        for variable, value in zip(model.variables, kept, strict=True):
            variable.assign(value)
        found["best"] = self._outcome(model, samples, best)
        return found, time.process_time() - start

    def _model(self, setting: Setting) -> keras.Model:
        # Epochs and learning rate are not compiled.
        key = dataclasses.replace(setting, epochs=0, learning_rate=0.0)
        if key not in self._models:
            # What is compiled takes memory: hundreds of models exhaust it.
            if len(self._models) == _MOST_MODELS:
                del self._models[next(iter(self._models))]
            model = self._models[key] = self.build(setting.dropout)
            optimizer = keras.optimizers.SGD(
                setting.learning_rate,
                momentum=0.9,
                nesterov=True,
                weight_decay=setting.weight_decay,
                # Losses with large weights diverge without it.
                global_clipnorm=1.0,
            )
            model.compile(optimizer, setting.build_loss())
            optimizer.build(model.trainable_variables)
        return self._models[key]

    @staticmethod
    def _outcome(model: keras.Model, samples: Splits, epoch: int) -> Trained:
        unknown = samples.unknown
        train = logits_of(model, samples.train.x)
        return Trained(
            epoch,
            float(np.mean(train.argmax(1) == samples.train.y)),
            logits_of(model, samples.val.x),
            logits_of(model, samples.test.x),
            None if unknown is None else logits_of(model, unknown),
        )


def logits_of(model: keras.Model, x: np.ndarray, batch_size: int = 1000) -> np.ndarray:
    """Returns the model's logits, computed in batches of one size."""
    padded = np.resize(np.arange(len(x)), -(-len(x) // batch_size) * batch_size)
    logits: np.ndarray = model.predict(x[padded], batch_size=batch_size, verbose=0)
    return logits[: len(x)]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _nll(labels: np.ndarray, logits: np.ndarray) -> float:
    return -float(_log_softmax(logits)[np.arange(len(labels)), labels].mean())


# Metrics of a set of logits, in %, except NLL.
METRICS = ("accuracy", "aurc", "eaurc", "ece", "nll", "coverage")
RISK = 0.05


def measure(labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Returns the metrics of logits."""
    metrics: dict[str, Callable[..., Any]] = {
        "aurc": functional.aurc,
        "eaurc": functional.excess_aurc,
        "ece": functional.ece,
        "coverage": partial(functional.coverage_at_risk, risk=RISK),
    }
    found = {
        name: 100 * float(function(labels, logits, from_logits=True))
        for name, function in metrics.items()
    }
    accuracy = 100 * float(np.mean(logits.argmax(1) == labels))
    return {"accuracy": accuracy, "nll": _nll(labels, logits), **found}


def measures(outcome: Trained, samples: Splits) -> dict[str, float]:
    """Returns the metrics of validation and test data, before and after scaling.

    The temperature minimises the NLL of the validation data. `unknown_auroc` is the
    AUROC between test and unknown inputs, `people_nll` the cross-entropy of the test
    predictions under the shares of people's answers.
    """
    val, test = samples.val.y, samples.test.y
    scaling = ks.TemperatureScaling().fit(outcome.val, val)
    found = {"epoch": outcome.epoch, "fitted": 100 * outcome.fitted}
    found["temperature"] = temperature = float(scaling.temperature)
    for end, scale in (("", 1.0), ("_ts", temperature)):
        parts = (("val", val, outcome.val), ("test", test, outcome.test))
        for name, labels, logits in parts:
            measured = measure(labels, logits / scale)
            found |= {f"{name}_{key}{end}": value for key, value in measured.items()}
        if outcome.unknown is not None:
            pair = (outcome.test / scale, outcome.unknown / scale)
            auroc = functional.ood_auroc(*pair, from_logits=True)
            found[f"unknown_auroc{end}"] = 100 * float(auroc)
        if samples.people is not None:
            shares = samples.people / samples.people.sum(axis=1, keepdims=True)
            losses = -(shares * _log_softmax(outcome.test / scale)).sum(axis=1)
            found[f"people_nll{end}"] = float(losses.mean())
    return found


# --- Comparison ---------------------------------------------------------------------

# Whether higher is better.
HIGHER = ("accuracy", "coverage", "unknown_auroc")


class Gap(NamedTuple):
    """A mean difference and half the width of its 95 % interval."""

    mean: float
    half: float

    def verdict(self, metric: str) -> str:
        """Returns `"better"`, `"worse"`, or `"undecided"` where 0 is in the interval.

        Example:
        >>> Gap(-0.5, 0.2).verdict("nll")
        'better'
        """
        if not abs(self.mean) > self.half:
            return "undecided"
        name = metric.removesuffix("_ts").rpartition("test_")[2].rpartition("val_")[2]
        return "better" if (self.mean > 0) == (name in HIGHER) else "worse"

    def text(self, metric: str, digits: int) -> str:
        """Returns the difference, with ▲ if it is better and ▼ if it is worse."""
        mark = {"better": " ▲", "worse": " ▼"}.get(self.verdict(metric), "")
        half = "" if math.isnan(self.half) else f" ±{self.half:.{digits}f}"
        return f"{self.mean:+.{digits}f}{half}{mark}".replace("-", "−")


def paired(differences: Any, comparisons: int = 1) -> Gap:
    """Returns the mean of paired differences, with Student's interval.

    Args:
        differences: one for each pair.
        comparisons: how many intervals hold together at 95 % (Bonferroni).

    Example:
    >>> paired([1.0, 2.0, 3.0]).mean
    2.0
    """
    from scipy.stats import t

    values = np.asarray(differences, "float64")
    n = len(values)
    if n < 2:
        return Gap(float(values.mean()) if n else math.nan, math.nan)
    half = t.ppf(1 - 0.025 / comparisons, n - 1) * values.std(ddof=1) / math.sqrt(n)
    return Gap(float(values.mean()), float(half))
