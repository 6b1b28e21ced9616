"""Figures of a training: a small network on digits, observed as it trains."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_selcal import (
    AULoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    csf,
    plots,
)
from recipes import data, losses, models, settings
from recipes.data.digits import LABEL_NOISE
from recipes.optimizers import L2SGD
from recipes.paper.picture import Picture, axes
from recipes.paper.run_figures import slug
from recipes.runs import Run
from recipes.training import learning_rate

# Shares of the training after which the gradients are shown. The first is early, while
# the predictions still change.
_MOMENTS = (0.1, 0.3, 1.0)


class ObservedTraining(NamedTuple):
    """A training and what the network predicted.

    Attributes:
        labels: labels of the training samples.
        logits: logits of the training samples, by epoch.
        test_logits: logits of the test samples after the last epoch.
        epochs: number of epochs.
    """

    labels: np.ndarray
    logits: dict[int, np.ndarray]
    test_logits: np.ndarray
    epochs: int


def observe_training(epochs: int | None = None) -> ObservedTraining:
    """Trains the quickstart's network with cross-entropy, and keeps its predictions.

    Args:
        epochs: number of epochs. Defaults to the quickstart's.
    """
    chosen = settings.settings("digits", "cnn", "xe")
    if epochs is not None:
        chosen = settings.with_epochs(chosen, epochs)
    digits = data.load("digits")

    def batches(split: data.Split, training: bool = False) -> data.Batches:
        size = chosen.batch_size
        return data.Batches(split, digits.preprocessing, size, training=training)

    moments = {max(1, round(moment * chosen.epochs)) for moment in _MOMENTS}
    kept: dict[int, np.ndarray] = {}

    def keep(epoch: int, logs: Any = None) -> None:
        if epoch + 1 in moments:
            kept[epoch + 1] = model.predict(batches(digits.train), verbose=0)

    keras.utils.set_random_seed(0)
    model = models.build("cnn", digits.num_classes, digits.input_shape)
    optimizer = L2SGD(
        chosen.learning_rate, momentum=chosen.momentum, l2=chosen.weight_decay
    )
    model.compile(optimizer, losses.build("xe"))
    training = batches(digits.train, training=True)
    callbacks = keras.callbacks
    model.fit(
        training,
        epochs=chosen.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            training.callback,
            callbacks.LearningRateScheduler(lambda epoch: learning_rate(chosen, epoch)),
            callbacks.LambdaCallback(on_epoch_end=keep),
        ],
    )
    test_logits = model.predict(batches(digits.test), verbose=0)
    return ObservedTraining(digits.train.y, kept, test_logits, chosen.epochs)


def _trained(training: ObservedTraining) -> str:
    return (
        f"cross-entropy on {len(training.labels)} digits with {100 * LABEL_NOISE:g} % "
        f"of the labels wrong ({training.epochs} epochs, the quickstart's setting, "
        "seed 0)"
    )


def gradients_of_runs(runs: Iterable[Run]) -> Iterator[Picture]:
    """fig:gradients_over_epochs of runs that were trained with `--snapshots`."""
    for run in runs:
        if found := run.snapshots():
            labels = next(iter(found.values())).labels
            logits = {epoch: one.logits for epoch, one in found.items()}
            yield Picture(
                f"gradients_over_epochs-{slug(run.name)}",
                f"Evolution of the gradient, {run.name}",
                "fig:gradients_over_epochs, of our run: ∂ℓ/∂p of the true class on "
                f"{len(labels)} training images of one network as it trains.",
                _gradients(labels, logits),
            )


def gradients_over_epochs(training: ObservedTraining) -> Picture:
    """fig:gradients_over_epochs: gradients of several losses on a model's samples."""
    return Picture(
        "gradients_over_epochs",
        "Evolution of the gradient during training",
        "fig:gradients_over_epochs. ∂ℓ/∂p of the true class, on the training samples "
        "of one network as it trains; each sample is a point for each loss. The paper "
        "shows a ResNet and 20,000 samples of CIFAR-10 at epochs 40, 120 and 200 of "
        f"200. This is the small network, trained with {_trained(training)}; it is "
        "shown at earlier epochs because it soon memorises all samples. Dual is the "
        'variant "released"; AU (κ = 0.75, ν = 0.1) ranks all samples together.',
        _gradients(training.labels, training.logits),
    )


def _gradients(labels: np.ndarray, logits: dict[int, np.ndarray]) -> Any:
    drawn = {
        "XE": FocalLoss(0),
        "FL, γ = 3": FocalLoss(3),
        "Inv. FL, γ = 2": InverseFocalLoss(2),
        "Dual, γ = 5": DualFocalLoss(5, variant="released"),
        "AU": AULoss(),
    }
    (panels,) = axes(1, len(logits), 4.6, 4.6)
    named = {f"epoch {epoch}": found for epoch, found in logits.items()}
    plots.sample_gradients(drawn, labels, named, from_logits=True, ax=panels)
    for ax in panels[:-1]:
        ax.get_legend().remove()
    for ax in panels[1:]:
        ax.set_ylabel("")
    return panels[0].figure


def smoothing(training: ObservedTraining) -> Picture:
    """fig:smoothparameter: the soft CDF over a histogram of scores."""
    logits = training.test_logits
    scores = ops.convert_to_numpy(csf.msp(ops.softmax(logits)))
    support = csf.get("msp").support(logits.shape[-1])
    ((ax,),) = axes(1, 1, 6.4, 4.6)
    plots.score_cdf(scores, (0.01, 0.1, 1.0), support=support, ax=ax)
    return Picture(
        "smoothparameter",
        "The soft CDF",
        "fig:smoothparameter. Soft CDF for ν = 0.01, 0.1 and 1 over the histogram of "
        f"the scores (msp, whose support is [0, 1]) of {len(scores)} test images. The "
        f"scores are those of the small network, trained with {_trained(training)}.",
        ax.figure,
    )
