"""Data, networks and training runs for the tests of callbacks."""

import functools

import keras
from backends import FEW_STEPS
from digits import digits
from keras import ops

from keras_selcal import CalibrationMonitor

BACKEND = keras.backend.backend()


def data():
    """Returns 64 rows for training, and 75 for validation: 32, 32 and 11 a batch."""
    (x, y), _ = digits(label_noise=0.2)
    x = x.reshape(len(x), -1)
    return (x[:64], y[:64]), (x[64:139], y[64:139])


def network(softmax=False, metrics=(), learning_rate=0.01):
    activation = "softmax" if softmax else None
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10, activation)])
    return compiled(
        model, not softmax, learning_rate=learning_rate, metrics=metrics, **FEW_STEPS
    )


# What only predicts is compiled once.
shared = functools.cache(network)


def compiled(model, from_logits=True, learning_rate=0.01, **options):
    model.compile(
        keras.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
        **options,
    )
    return model


def fit(model, callbacks, epochs=2, **options):
    options.setdefault("verbose", 0)
    x, y = data()[0]
    return model.fit(x, y, epochs=epochs, callbacks=callbacks, **options).history


def pretend(model, callbacks, epochs=range(1)):
    """Calls the callbacks as `fit` does; the weights stay as they are."""
    every = keras.callbacks.CallbackList(
        callbacks, add_history=True, model=model, epochs=epochs.stop
    )
    every.on_train_begin()
    for epoch in epochs:
        every.on_epoch_end(epoch, {"loss": 1.0})
    every.on_train_end({"loss": 1.0})
    return model.history.history


def measured(model, *arguments, **options):
    """Returns what a monitor finds without any training."""
    monitor = CalibrationMonitor(*arguments, **options)
    pretend(model, [monitor])
    return monitor.values


class Weights(keras.callbacks.Callback):
    """Keeps the weights at the end of each epoch."""

    def on_train_begin(self, logs=None):
        self.kept = []

    def on_epoch_end(self, epoch, logs=None):
        self.kept.append(self.model.get_weights())


class Batches(keras.utils.PyDataset):
    """Batches of arrays, without an end of its own, as PyDatasets may be."""

    def __init__(self, *arrays):
        super().__init__()
        self.arrays = arrays

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(32 * (index % 3), 32 * (index % 3) + 32)
        return tuple(part[rows] for part in self.arrays)


class Walkable:
    """The least that is needed: walking through it starts anew."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return (self.batches[i] for i in range(3))


def of_the_backend(*arrays):
    """Returns the backend's own kind of data set."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(arrays).batch(32).repeat()
    if BACKEND == "torch":
        import torch

        tensors = [torch.from_numpy(part) for part in arrays]
        dataset = torch.utils.data.TensorDataset(*tensors)
        # Without a generator of its own it draws from the global one.
        return torch.utils.data.DataLoader(dataset, 32, generator=torch.Generator())
    batches = Batches(*arrays)
    return Walkable([tuple(map(ops.convert_to_tensor, batches[i])) for i in range(3)])
