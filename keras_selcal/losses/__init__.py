"""Losses for calibrated classifiers, and `get`, which finds them by name."""

from typing import Any

import keras

from keras_selcal._predictions.batch import Batch
from keras_selcal._saving import deserialize_if_config
from keras_selcal._validation import refuse
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
    "Batch",
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
    """Retrieves a loss by its name, configuration or class.

    `keras.losses.get` finds only Keras's own losses; this function looks among the
    losses of this library first.

    Args:
        identifier: the name of a loss (`"au_loss"`) or of its class (`"AULoss"`), a
            config from `keras.saving.serialize_keras_object`, a loss, a callable, or
            anything that `keras.losses.get` accepts.

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
