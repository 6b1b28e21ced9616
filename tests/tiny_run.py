"""A run of seconds, with all kinds of state that a resumed run needs, and its end.

`python tiny_run.py FOLDER WHEN` trains in a process that kills itself: WHEN is "epoch"
(in the middle of the second one), "checkpoint" (while the first one that it makes is
half written) or "never".
"""

import dataclasses
import os
import signal
import sys

import keras
import numpy as np
from finished import finish

from recipes import models, runs, settings, tasks, training
from recipes.data.pipeline import Batches
from recipes.progress import Progress, console

ARGUMENTS = ("--dataset", "digits", "--model", "cnn", "--loss", "au", "--subset", "64")


def build(name, num_classes, input_shape, dropout=True):
    """Stands in for `models.build`: with moving statistics and random states."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(4, 3, strides=2, use_bias=False),
            layers.BatchNormalization(),
            layers.Flatten(),
            *([layers.Dropout(0.5)] if dropout else []),
            layers.Dense(num_classes),
        ]
    )


def task(epochs=4, changed=(), **changes):
    chosen = settings.settings("digits", "cnn", changes.get("loss", "au"))
    chosen = settings.with_epochs(chosen, epochs)
    chosen = dataclasses.replace(chosen, batch_size=32)
    for key, value in dict(changed).items():
        chosen = settings.override(chosen, key, value)
    fields = {"loss": "au", "seed": 0, "label_noise": 0.2, "subset": 64, **changes}
    return tasks.Task("digits", "cnn", settings=chosen, **fields)


def train(folder, **options):
    run = runs.Run(folder)
    with Progress(console()) as progress:
        training.train(run, task(**options), progress)
    return run


def made(folder, chosen, predict, **config):
    """Makes a finished run without training.

    Args:
        folder: of the run.
        chosen: its settings.
        predict: returns the predictions of a split.
        **config: the rest of its configuration.
    """
    run = runs.Run(folder)
    absent = dict.fromkeys(("subset", "label_noise", "pretrained"))
    with run.lock():
        run.claim({**absent, "settings": dataclasses.asdict(chosen), **config})
        return finish(run, predict)


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_epoch():
    get = Batches.__getitem__

    def dying(self, index):
        if self.training and self.epoch == 1 and index == 1:
            _die()
        return get(self, index)

    Batches.__getitem__ = dying


def die_in_checkpoint():
    save = np.savez

    def dying(path, *arrays, **named):
        save(path, *arrays, **named)
        if "last" in str(path):
            os.truncate(path, os.path.getsize(path) // 2)
            _die()

    np.savez = dying


if __name__ == "__main__":
    folder, when = sys.argv[1:]
    models.build = build
    {"epoch": die_in_epoch, "checkpoint": die_in_checkpoint, "never": int}[when]()
    train(folder)
