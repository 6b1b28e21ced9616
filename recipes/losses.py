"""The seven losses of the paper's tables, by the names of its columns.

Three of them exist a second time, as the paper's public code computes them: see
`recipes.paper.released`.
"""

import functools
import inspect
import pkgutil
import typing
from typing import Any, NamedTuple

from keras_selcal._validation import check_choice


class _LossColumn(NamedTuple):
    """A loss: its title, its class, its fixed arguments and its other arguments."""

    title: str
    place: str
    fixed: tuple[tuple[str, Any], ...] = ()
    open: tuple[str, ...] = ()

    @property
    def loss(self) -> Any:
        """The class, imported when it is needed, as Keras takes seconds."""
        return pkgutil.resolve_name(self.place)


_COLUMNS = {
    "xe": _LossColumn("XE", "keras.losses:SparseCategoricalCrossentropy"),
    "fl53": _LossColumn("FL-53", "keras_selcal:FocalLoss", (("gamma", "53"),)),
    "inv_focal": _LossColumn(
        "Inv. FL", "keras_selcal:InverseFocalLoss", open=("gamma",)
    ),
    "dual_focal": _LossColumn(
        "Dual", "keras_selcal:DualFocalLoss", open=("gamma", "variant")
    ),
    "kde_xe": _LossColumn(
        "KDE-XE",
        "keras_selcal:KDECrossentropy",
        open=("kde_weight", "kind", "bandwidth", "order"),
    ),
    "aurc": _LossColumn(
        "AURC", "keras_selcal:AURCLoss", open=("csf", "estimator", "base_loss")
    ),
    "au": _LossColumn(
        "AU",
        "keras_selcal:AULoss",
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

# The columns of the paper's tables.
NAMES = tuple(_COLUMNS)
TITLES = {name: column.title for name, column in _COLUMNS.items()}

_SUFFIX, _PLACE = "_released", "recipes.paper.released"
_COLUMNS |= {
    f"kde_xe{_SUFFIX}": _LossColumn(
        "KDE-XE, released", f"{_PLACE}:ReleasedKDECrossentropy", open=("kde_weight",)
    ),
    f"aurc{_SUFFIX}": _LossColumn(
        "AURC, released", f"{_PLACE}:ReleasedAURCLoss", open=("strength",)
    ),
    f"au{_SUFFIX}": _LossColumn(
        "AU, released",
        f"{_PLACE}:ReleasedAULoss",
        open=("csf", "coverage", "smoothing"),
    ),
}
ALL_TITLES = {name: column.title for name, column in _COLUMNS.items()}
RELEASED = tuple(name for name in ALL_TITLES if name not in TITLES)


def column_of(name: str) -> str:
    """Returns the column of the paper's tables to which a loss belongs."""
    return name.removesuffix(_SUFFIX)


def check_name(name: str) -> str:
    """Returns the name of a loss, or raises an error that lists the known ones."""
    return check_choice("loss", name, tuple(ALL_TITLES))


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
    types: dict[str, Any] = {}
    for column in _COLUMNS.values():
        hints = typing.get_type_hints(column.loss.__init__) if column.open else {}
        for argument in column.open:  # objects are given by name
            kind = str if hints[argument] is Any else hints[argument]
            types.setdefault(argument, kind)
    return types


def build(name: str, arguments: dict[str, Any] | None = None) -> Any:
    """Returns a loss on logits.

    Args:
        name: one of `NAMES`.
        arguments: arguments of the loss's class, as in `Settings.loss`.

    Example:
    >>> build("au", {"coverage": 0.88}).coverage
    0.88
    """
    column = _COLUMNS[check_name(name)]
    options = {**dict(column.fixed), **(arguments or {}), "from_logits": True}
    return column.loss(**options)
