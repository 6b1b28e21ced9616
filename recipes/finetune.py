"""Fine-tuning a trained network with a calibrating loss, as in the paper's appendix."""

from typing import Any

import keras

from keras_selcal import losses
from keras_selcal._predictions.models import gives_logits
from keras_selcal._validation import refuse
from recipes.optimizers import TorchSGD


def finetune(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    loss: Any = None,
    epochs: int = 5,
    learning_rate: float = 1e-4,
    optimizer: Any = None,
    **kwargs: Any,
) -> keras.Model:
    """Returns a copy of a trained model, trained further with another loss.

    This is how the paper uses its loss post hoc: 5 epochs of SGD (momentum 0.9, ℓ2
    decay 0.0005) at a learning rate of 1e-4 (CIFAR) or 1e-5 (Tiny-ImageNet). The model
    itself does not change; the copy's `history` shows its training.

    Args:
        model: a functional or Sequential model.
        x: training data, as in `keras.Model.fit`.
        y: labels, if `x` is arrays.
        loss: a loss or its name (see `keras_selcal.losses.get`). Defaults to `AULoss`
            with its own default arguments, not the paper's, and with `from_logits` as
            the model's output requires.
        epochs: number of epochs.
        learning_rate: learning rate of the SGD.
        optimizer: an optimizer to use instead of the SGD and `learning_rate`.
        **kwargs: further arguments of `keras.Model.fit`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from recipes.finetune import finetune
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    >>> x, y = np.eye(2, dtype="float32"), np.array([0, 1])
    >>> tuned = finetune(model, x, y, epochs=1, verbose=0)
    >>> tuned is model
    False

    References:
    - Zhou et al., Revisiting Reweighted Risk for Calibration: AURC, Focal and Inverse
      Focal Loss, Appendix
    """
    from_logits = gives_logits(model)
    if loss is None:
        loss = losses.AULoss(from_logits=from_logits)
    loss = losses.get(loss)
    if getattr(loss, "from_logits", from_logits) != from_logits:
        refuse(
            "loss",
            loss,
            f"one with from_logits={from_logits}, as this model's output requires",
        )
    if optimizer is None:
        optimizer = TorchSGD(learning_rate)
    tuned = keras.models.clone_model(model)
    tuned.set_weights(model.get_weights())
    tuned.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    tuned.fit(x, y, epochs=epochs, **kwargs)
    return tuned
