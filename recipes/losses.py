"""The losses by name: one table for training, searches, comparisons and tables.

The first seven are the columns of the paper's tables. Three of them, and the dual focal
loss, exist a second time, as the paper's public code computes them: see
`recipes.paper.released`. A loss of your own is `module:Name`, such as
`my_losses:MyLoss`.
"""

import functools
import inspect
import pkgutil
import typing
from typing import Any, NamedTuple

from keras_selcal._validation import refuse

_RELEASED = "recipes.paper.released"
_SUFFIX = "_released"


class Loss(NamedTuple):
    """A loss.

    Attributes:
        title: its name in tables.
        words: its name in sentences.
        place: module and class, imported when it is needed, as Keras takes seconds.
        open: arguments that `--set loss.NAME=VALUE` can change.
        arguments: arguments whose value is not the default of the class.
        dropout: rate of dropout of the network.
    """

    title: str
    words: str
    place: str
    open: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}  # noqa: RUF012 - never changed
    dropout: float = 0.0


_XE = "keras.losses:SparseCategoricalCrossentropy"
_AU = ("csf", "quantile", "threshold", "num_bins", "smoothing", "weight_gradient")
_KDE = ("kde_weight", "kind", "bandwidth", "exponent")
_FOCAL, _GAMMA = "keras_selcal:FocalLoss", ("gamma",)
_PAPER = {
    "xe": Loss("XE", "cross-entropy", _XE),
    "fl53": Loss("FL-53", "FL-53", _FOCAL, arguments={"gamma": "53"}),
    "inv_focal": Loss(
        "Inv. FL", "inverse focal", "keras_selcal:InverseFocalLoss", _GAMMA
    ),
    "dual_focal": Loss(
        *("Dual", "dual focal", f"{_RELEASED}:DualFocalVariant"),
        *(("gamma", "variant"), {"variant": "intended"}),
    ),
    "kde_xe": Loss("KDE-XE", "KDE-XE", "keras_selcal:KDECrossentropy", _KDE),
    "aurc": Loss(
        "AURC", "AURC", "keras_selcal:AURCLoss", ("csf", "estimator", "base_loss")
    ),
    "au": Loss("AU", "AU", "keras_selcal:AULoss", (*_AU, "base_loss")),
}
_OTHERS = {
    f"kde_xe{_SUFFIX}": Loss(
        *("KDE-XE, released", "the released KDE-XE"),
        *(f"{_RELEASED}:ReleasedKDECrossentropy", ("kde_weight",)),
    ),
    f"aurc{_SUFFIX}": Loss(
        *("AURC, released", "the released AURC"),
        *(f"{_RELEASED}:ReleasedAURCLoss", ("strength",)),
    ),
    f"au{_SUFFIX}": Loss(
        *("AU, released", "the released AU"),
        *(f"{_RELEASED}:ReleasedAULoss", ("csf", "quantile", "smoothing")),
    ),
    "focal": Loss("FL", "the focal loss", _FOCAL, _GAMMA),
    "xe_smoothed": Loss(
        *("XE, smoothed", "cross-entropy with label smoothing", _FOCAL),
        *(("label_smoothing",), {"gamma": 0.0, "label_smoothing": 0.1}),
    ),
    "xe_dropout": Loss("XE, dropout", "cross-entropy with dropout", _XE, dropout=0.5),
}
_LOSSES = {**_PAPER, **_OTHERS}

# The columns of the paper's tables.
NAMES = tuple(_PAPER)
TITLES = {name: loss.title for name, loss in _PAPER.items()}
ALL_TITLES = {name: loss.title for name, loss in _LOSSES.items()}
RELEASED = tuple(name for name in _OTHERS if name.endswith(_SUFFIX))
# Arguments of every Keras loss, which belong to no loss in particular.
_GENERAL = ("self", "name", "reduction", "dtype", "from_logits", "options", "kwargs")


def _entry(name: str) -> Loss:
    """Returns a row of the table, or that of a loss of one's own."""
    _, colon, attribute = name.partition(":")
    if not colon:
        if name not in _LOSSES:
            listed = ", ".join(map(repr, _LOSSES))
            refuse("loss", name, f"one of {listed}, or module:Name for one of your own")
        return _LOSSES[name]
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"`loss` must be module:Name of a loss that can be imported from here. "
            f"Received: loss={name!r} ({error})"
        ) from error
    if not callable(found):
        refuse("loss", name, "module:Name of a class or a function")
    own: tuple[str, ...] = ()
    if isinstance(found, type):
        parameters = inspect.signature(found).parameters.values()
        own = tuple(
            one.name
            for one in parameters
            if one.name not in _GENERAL and one.default is not one.empty
        )
    return Loss(attribute, attribute, name, own)


def column_of(name: str) -> str:
    """Returns the column of the paper's tables to which a loss belongs."""
    return name.removesuffix(_SUFFIX)


def check_name(name: str) -> str:
    """Returns the name of a loss, or raises an error that lists the known ones."""
    _entry(name)
    return name


def title(name: str) -> str:
    """Returns the name of a loss in tables; also where it cannot be imported."""
    return ALL_TITLES.get(name, name.rpartition(":")[2])


def words(name: str) -> str:
    """Returns the name of a loss in sentences."""
    return _LOSSES[name].words if name in _LOSSES else title(name)


def dropout(name: str) -> float:
    """Returns the rate of dropout that belongs to a loss."""
    return _entry(name).dropout


def defaults(name: str) -> dict[str, Any]:
    """Returns the arguments of a loss that can be chosen, with their defaults.

    Example:
    >>> defaults("inv_focal")
    {'gamma': 2.0}
    """
    loss = _entry(name)
    if not loss.open:
        return {}
    parameters = inspect.signature(pkgutil.resolve_name(loss.place)).parameters
    # A default of None may stand for a number, which the configuration has.
    built = build(name)
    config = built.get_config() if hasattr(built, "get_config") else {}
    given = {key: one.default for key, one in parameters.items()} | config
    return {argument: given[argument] for argument in loss.open}


@functools.cache
def _hints() -> dict[str, Any]:
    """Returns the annotations of every argument in the table."""
    types: dict[str, Any] = {}
    for loss in _LOSSES.values():
        kind = pkgutil.resolve_name(loss.place)
        hints = typing.get_type_hints(kind.__init__) if loss.open else {}
        for argument in loss.open:  # objects are given by name
            hint = hints.get(argument, type(loss.arguments.get(argument)))
            types.setdefault(argument, str if hint is Any else hint)
    return types


def argument_type(argument: str, value: Any) -> Any:
    """Returns the type of an argument of a loss.

    Args:
        argument: its name.
        value: its present value, whose type counts for a loss of one's own.
    """
    if argument in _hints():
        return _hints()[argument]
    return str if value is None else type(value)


def build(name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Returns a loss on logits.

    A class of your own is called with `from_logits=True` if it has that argument. A
    function, or a `keras.losses.Loss`, is taken as it is, and receives logits.

    Args:
        name: a name in the table, or `module:Name`.
        arguments: arguments of the loss's class, as in `Settings.loss`.

    Example:
    >>> build("fl53").gamma
    '53'
    """
    loss = _entry(name)
    found = pkgutil.resolve_name(loss.place)
    if not isinstance(found, type):
        return found
    options = {**loss.arguments, **(arguments or {})}
    makers: tuple[Any, ...] = found.__mro__
    signatures = (inspect.signature(one.__init__) for one in makers)
    if any("from_logits" in signature.parameters for signature in signatures):
        options["from_logits"] = True
    return found(**options)
