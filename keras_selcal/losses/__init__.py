"""Losses for calibrated classifiers, and `get` to name them."""

from typing import Any

import keras

from keras_selcal._core.saving import deserialize_if_config
from keras_selcal._core.validation import refuse
from keras_selcal.losses.au_loss import AULoss
from keras_selcal.losses.aurc_loss import AURCLoss
from keras_selcal.losses.base import ClassificationLoss, ReweightedLoss
from keras_selcal.losses.focal_losses import (
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
)
from keras_selcal.losses.kde_crossentropy import KDECrossentropy

__all__ = [
    "AULoss",
    "AURCLoss",
    "ClassificationLoss",
    "DualFocalLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDECrossentropy",
    "ReweightedLoss",
    "get",
]

_LOSSES = {
    "au_loss": AULoss,
    "aurc_loss": AURCLoss,
    "focal_loss": FocalLoss,
    "inverse_focal_loss": InverseFocalLoss,
    "dual_focal_loss": DualFocalLoss,
    "kde_crossentropy": KDECrossentropy,
}


def get(identifier: Any) -> Any:
    """Returns the loss that `identifier` means.

    Keras resolves strings to its own losses only; this one resolves to the library's
    first.

    Args:
        identifier: the name of a loss (`"au_loss"`), of its class (`"AULoss"`), a
            config as `keras.saving.serialize_keras_object` gives it, a loss, a
            callable, or anything that `keras.losses.get` knows.

    Example:
    >>> get("au_loss").name
    'au_loss'
    """
    identifier = deserialize_if_config(identifier)
    if isinstance(identifier, str):
        for name, loss in _LOSSES.items():
            if identifier in (name, loss.__name__):
                return loss()
    try:
        return keras.losses.get(identifier)
    except (ValueError, TypeError):
        listed = ", ".join(repr(name) for name in _LOSSES)
        refuse("identifier", identifier, f"one of {listed}, or a loss that Keras knows")
