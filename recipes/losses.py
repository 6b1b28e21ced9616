"""The seven losses of the paper's tables, by the names of its columns."""

import functools
import inspect
import typing
from typing import Any, NamedTuple

import keras

from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
)
from keras_selcal._core.validation import check_choice


class _LossColumn(NamedTuple):
    """A loss: its title, its class, its fixed arguments and its other arguments."""

    title: str
    loss: Any
    fixed: tuple[tuple[str, Any], ...] = ()
    open: tuple[str, ...] = ()


_COLUMNS = {
    "xe": _LossColumn("XE", keras.losses.SparseCategoricalCrossentropy),
    "fl53": _LossColumn("FL-53", FocalLoss, (("gamma", "53"),)),
    "inv_focal": _LossColumn("Inv. FL", InverseFocalLoss, open=("gamma",)),
    "dual_focal": _LossColumn("Dual", DualFocalLoss, open=("gamma", "variant")),
    "kde_xe": _LossColumn(
        "KDE-XE", KDECrossentropy, open=("kde_weight", "kind", "bandwidth", "order")
    ),
    "aurc": _LossColumn("AURC", AURCLoss, open=("csf", "estimator", "base_loss")),
    "au": _LossColumn(
        "AU",
        AULoss,
        open=(
            "csf",
            "coverage",
            "threshold",
            "num_bins",
            "smoothing",
            "weight_gradient",
            "base_loss",
        ),
    ),
}

NAMES = tuple(_COLUMNS)
TITLES = {name: column.title for name, column in _COLUMNS.items()}


def check_name(name: str) -> str:
    """Returns the name of a loss, or raises an error that lists the known ones."""
    return check_choice("loss", name, NAMES)


def defaults(name: str) -> dict[str, Any]:
    """Returns the arguments of a loss that can be chosen, with their defaults.

    Example:
    >>> defaults("dual_focal")
    {'gamma': 5.0, 'variant': 'intended'}
    """
    column = _COLUMNS[check_name(name)]
    parameters = inspect.signature(column.loss).parameters
    return {argument: parameters[argument].default for argument in column.open}


@functools.cache
def argument_types() -> dict[str, Any]:
    """Returns the type of every argument of a loss that can be chosen."""
    types = {}
    for column in _COLUMNS.values():
        hints = typing.get_type_hints(column.loss.__init__) if column.open else {}
        for argument in column.open:  # objects are given by name
            types[argument] = str if hints[argument] is Any else hints[argument]
    return types


def build(name: str, arguments: dict[str, Any] | None = None) -> keras.losses.Loss:
    """Returns a loss on logits.

    Args:
        name: one of `NAMES`.
        arguments: arguments of the loss's class, as in `Settings.loss`.

    Example:
    >>> build("au", {"coverage": 0.88}).coverage
    0.88
    """
    column = _COLUMNS[check_name(name)]
    return column.loss(**dict(column.fixed), **(arguments or {}), from_logits=True)
