"""What a memory of past scores buys for small batches of `AULoss`.

    KERAS_BACKEND=torch python -m benchmarks.cdf_memory

First the error of β: batches drawn from real logits (KERAS_SELCAL_DATA; random ones
where that is not set), ranked with a memory that is full, against the β of all 10,000
samples; root mean square, relative, in percent. A network that stands still: the best
that a memory can do.

Then training: the small CNN on noisy digits at batch 16, 30 epochs of SGD (momentum
0.9, cosine from 0.02), the weights at the end, with and without memory, and for
comparison with cross-entropy. Test accuracy, ECE and AURC in percent, mean ± standard
deviation over seeds.
"""

import argparse

import keras
import numpy as np
from keras import ops

from benchmarks.replicas import predictions, relative, weights
from keras_selcal import AULoss, CDFMemory, functional
from keras_selcal._memory import ScoreMemory
from keras_selcal.callbacks._loss_state import State
from keras_selcal.functional.weights import region_weights
from recipes import data, models
from recipes.data.pipeline import Inputs

MOMENTA = (0.0, 0.5, 0.9, 0.99)
SIZES = (8, 16, 32, 64, 128, 256, 512)
EPOCHS, BATCH, RATE = 30, 16, 0.02


def beta_error(scores, population, size, momentum, steps):
    rng = np.random.default_rng(0)
    memory = ScoreMemory(64, momentum)
    memory.variable = State("memory", memory.counts).variable
    errors = []
    warm_up = round(3 / (1 - momentum))
    with memory.learning():
        for step in range(warm_up + steps):
            batch = rng.choice(len(scores), size, replace=False)
            beta = region_weights(
                ops.convert_to_tensor(scores[batch]),
                *(0.75, None, 64, 0.1, (0.0, 1.0), None),
                with_past=memory.with_batch,
            )
            if step >= warm_up:
                errors.append(relative(ops.convert_to_numpy(beta), population[batch]))
    return 100 * np.mean(errors)


def print_beta_errors(steps):
    for name, p, _ in predictions():
        scores, population = p.max(axis=-1), weights(p)
        print(f"\n{name}: error of β in %, by momentum and batch size")
        print("  m    " + "".join(f"{size:7d}" for size in SIZES))
        for momentum in MOMENTA:
            row = [
                beta_error(scores, population, size, momentum, steps) for size in SIZES
            ]
            print(f"  {momentum:<5g}" + "".join(f"{error:7.1f}" for error in row))


def trained(dataset, seed, momentum):
    """Returns accuracy, ECE and AURC of one run; momentum "xe" is cross-entropy."""
    keras.utils.set_random_seed(seed)
    inputs = Inputs(dataset.preprocessing, dataset.train.x.shape[1:])
    model = models.build("cnn", 10)
    schedule = keras.optimizers.schedules.CosineDecay(
        RATE, EPOCHS * (len(dataset.train) // BATCH)
    )
    loss = AULoss(from_logits=True)
    if momentum == "xe":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9), loss)
    callbacks = [CDFMemory(momentum)] if isinstance(momentum, float) else []
    model.fit(
        inputs(dataset.train.x),
        dataset.train.y,
        BATCH,
        EPOCHS,
        verbose=0,
        callbacks=callbacks,
    )
    logits, y = model.predict(inputs(dataset.test.x), verbose=0), dataset.test.y
    return (
        np.mean(logits.argmax(axis=-1) == y),
        functional.ece(y, logits, from_logits=True),
        functional.aurc(y, logits, from_logits=True),
    )


def print_training(seeds):
    dataset = data.load("digits")
    print(f"\ndigits, CNN, batch {BATCH}, {seeds} seeds")
    print("                    accuracy           ECE          AURC")
    labels = {
        "xe": "cross-entropy",
        None: "AU",
        0.9: "AU, m = 0.9",
        0.99: "AU, m = 0.99",
    }
    for momentum, label in labels.items():
        found = [trained(dataset, seed, momentum) for seed in range(seeds)]
        found = 100 * np.asarray(found, "float64")
        row = zip(found.mean(axis=0), found.std(axis=0, ddof=1), strict=True)
        cells = "".join(f"{mean:8.2f} ± {sd:4.2f}" for mean, sd in row)
        print(f"  {label:<14}{cells}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("beta", "training"))
    args = parser.parse_args()
    if args.only != "training":
        print_beta_errors(args.steps)
    if args.only != "beta":
        print_training(args.seeds)


if __name__ == "__main__":
    main()
