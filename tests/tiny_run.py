"""A run of seconds, with all kinds of state that a resumed run needs, and its end.

`python tiny_run.py FOLDER WHEN ...` trains in processes that kill themselves, one after
the other: WHEN is "epoch" (in the middle of the second one) or "checkpoint" (while the
first one that it makes is half written). They are forked, since importing a backend
takes longer than all of the training. After each one, its exit code and the epochs in
the history are printed.
"""

import dataclasses
import os
import signal
import sys
from multiprocessing import get_context

import keras
import numpy as np
from finished import finish

from recipes import models, runs, tasks, training
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
    set_ = tuple(f"{key}={value}" for key, value in dict(changed).items())
    fields = {"loss": "au", "subset": 64, "batch_size": 32, **changes}
    return tasks.Task("digits", "cnn", epochs=epochs, set=set_, **fields)


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


def train_and_die(folder, when):
    models.build = build
    {"epoch": die_in_epoch, "checkpoint": die_in_checkpoint}[when]()
    train(folder)


if __name__ == "__main__":
    folder, *whens = sys.argv[1:]
    for when in whens:
        arguments = (folder, when)
        process = get_context("fork").Process(target=train_and_die, args=arguments)
        process.start()
        process.join()
        epochs = [int(row["epoch"]) for row in runs.Run(folder).history()]
        print(process.exitcode, epochs, flush=True)
