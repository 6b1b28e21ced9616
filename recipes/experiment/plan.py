"""What is trained: beds (data and network) and arms (losses)."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

import keras_selcal as ks
from recipes.data import cifar
from recipes.data.base import DataError, Preprocessing, Split
from recipes.models.resnet import cifar_resnet
from recipes.paper.released import ReleasedAULoss, ReleasedScores


class Data(NamedTuple):
    """The three splits of one seed, and how an image becomes an input."""

    train: Split
    val: Split
    test: Split
    preprocessing: Preprocessing


class Bed(NamedTuple):
    """Data, network, and length of training.

    Args:
        title: name in tables.
        load: returns the data of a seed from a folder or file.
        network: returns a new model, which gives logits.
        epochs: number of epochs.
        warmup: epochs whose weights are never chosen: a fifth, as in the paper.
        seeds: number of seeds that are planned.
    """

    title: str
    load: Callable[[Path, int], Data]
    network: Callable[[], keras.Model]
    epochs: int
    warmup: int
    seeds: int


class Arm(NamedTuple):
    """A loss: its title, a function that builds it, and its callbacks."""

    title: str
    loss: Callable[[], keras.losses.Loss]
    callbacks: Callable[[int], list[keras.callbacks.Callback]] = lambda epochs: []


class RisingWeightGradient(keras.callbacks.Callback):
    """Raises w of `AULoss` from 0 to 0.3 in the second quarter of the epochs."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.points = ([epochs / 4, epochs / 2], [0.0, 0.3])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        w = float(np.interp(epoch, *self.points))
        if w != self.model.loss.weight_gradient:
            self.model.loss.weight_gradient = w
            # w is a constant of the compiled step.
            self.model.make_train_function(force=True)


# γ is the paper's for ResNet-50 on CIFAR-10. 0.76 is the paper's ν = 0.1 on the scale
# of this library, `paper_smoothing(0.1, 10)`.
ARMS = {
    "xe": Arm(
        "cross-entropy",
        lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    ),
    "au": Arm("AU, default", lambda: ks.AULoss(csf="msp", from_logits=True)),
    "au_w1": Arm(
        "AU, w = 1, ν = 0.76",
        lambda: ks.AULoss(
            csf="msp", smoothing=0.76, weight_gradient=1.0, from_logits=True
        ),
    ),
    "au_rising": Arm(
        "AU, w rising to 0.3",
        lambda: ks.AULoss(csf="msp", from_logits=True),
        lambda epochs: [RisingWeightGradient(epochs)],
    ),
    "au_released": Arm(
        "AU, public code",
        lambda: ReleasedAULoss(csf="msp", from_logits=True),
        lambda epochs: [ReleasedScores()],
    ),
    "dual_focal": Arm(
        "dual focal", lambda: ks.DualFocalLoss(gamma=5.0, from_logits=True)
    ),
    "inv_focal": Arm(
        "inverse focal", lambda: ks.InverseFocalLoss(gamma=2.0, from_logits=True)
    ),
    "aurc": Arm("AURC", lambda: ks.AURCLoss(csf="msp", from_logits=True)),
}


def _fashion(path: Path, seed: int) -> Data:
    """Fashion-MNIST: 50,000 images to train on, 10,000 for validation and for test.

    Each 2 × 2 pixels become four channels of one pixel, which keeps every value and
    makes the network four times as fast.
    """

    def read(name: str, offset: int) -> np.ndarray:
        file = path / f"{name}.gz"
        if not file.is_file():
            raise DataError(f"{file} was not found: pass Fashion-MNIST's folder.")
        return np.frombuffer(gzip.decompress(file.read_bytes()), "uint8", offset=offset)

    def split(name: str) -> Split:
        x = read(f"{name}-images-idx3-ubyte", 16).reshape(-1, 14, 2, 14, 2)
        y = read(f"{name}-labels-idx1-ubyte", 8)
        x = x.transpose(0, 1, 3, 2, 4).reshape(-1, 14, 14, 4)
        return Split(np.ascontiguousarray(x), y.astype("int32"))

    train, val = split("train").hold_out(seed, 10_000)
    # Mean and deviation of all training pixels.
    preprocessing = Preprocessing((14, 14), (0.2860,) * 4, (0.3530,) * 4)
    return Data(train, val, split("t10k"), preprocessing)


def _cifar10(path: Path, seed: int) -> Data:
    """CIFAR-10: 10,000 images to train on, 5,000 for validation, 10,000 for test."""
    training, test = cifar.splits("cifar10", path)
    rest, val = training.hold_out(seed, 5_000)
    _, train = rest.hold_out(seed, 10_000)
    preprocessing = Preprocessing(
        (32, 32),
        (0.4914, 0.4822, 0.4465),
        (0.2023, 0.1994, 0.2010),
        augmentation="crop_flip",
    )
    return Data(train, val, test, preprocessing)


BEDS = {
    "fashion": Bed(
        "Fashion-MNIST, ResNet-8",
        _fashion,
        lambda: cifar_resnet(10, (14, 14, 4), depth=8),
        epochs=6,
        warmup=1,
        seeds=5,
    ),
    "cifar10": Bed(
        "CIFAR-10, ResNet-20",
        _cifar10,
        lambda: cifar_resnet(10, (32, 32, 3), depth=20),
        epochs=60,
        warmup=12,
        seeds=3,
    ),
}

BATCH_SIZE = 128


def optimizer(samples: int, epochs: int) -> keras.optimizers.Optimizer:
    """Returns SGD along half a cosine, the same for every arm.

    Momentum, learning rate and weight decay are the paper's: Keras's weight decay is
    decoupled from the momentum, so that 0.005 decays like the paper's 0.0005, which the
    momentum multiplies by ten. Gradients are clipped, because dual focal loss diverges
    without it.
    """
    steps = epochs * math.ceil(samples / BATCH_SIZE)
    rate: Any = keras.optimizers.schedules.CosineDecay(0.1, steps)
    return keras.optimizers.SGD(
        rate, momentum=0.9, weight_decay=0.005, global_clipnorm=1.0
    )
