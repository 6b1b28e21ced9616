"""Images a second of the input pipeline, and what it costs in training.

    KERAS_BACKEND=torch python -m benchmarks.input_pipeline

The images are drawn at random. First the batches alone: CIFAR with padding, crop and
flip, and 64×64 images resized to 224×224. Then training on these batches against
training on arrays that are ready: the median over interleaved epochs, as a ratio. Times
of the clock tell what a machine does; times of its cores, what it has to do.
"""

import argparse
import os
import statistics
import time

import keras
import numpy as np

from recipes import models
from recipes.data import Preprocessing, Split
from recipes.data.pipeline import Batches

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def draw(n, size):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, size, size, 3), dtype="uint8")
    return Split(images, rng.integers(0, 10, n).astype("int32"))


def batches_alone(repetitions):
    print("batches alone, images/s: by the clock, and of one core's time")
    for name, size, new_size, augmentation, batch_size, n in (
        ("CIFAR, crop and flip", 32, 32, "crop_flip", 128, 4096),
        ("CIFAR, evaluation", 32, 32, "none", 128, 4096),
        ("64 → 224, flip", 64, 224, "flip", 256, 1024),
    ):
        preprocessing = Preprocessing(
            (new_size, new_size), MEAN, STD, augmentation=augmentation
        )
        for workers in (0, 1, 2):
            batches = Batches(
                draw(n, size),
                preprocessing,
                batch_size,
                training=augmentation != "none",
                workers=workers,
            )
            clock, cores = [], []
            for epoch in range(repetitions):
                batches.epoch = epoch
                start, used = time.perf_counter(), time.process_time()
                for _ in batches:
                    pass
                clock.append(time.perf_counter() - start)
                cores.append(time.process_time() - used)
            clock, cores = statistics.median(clock), statistics.median(cores)
            print(
                f"  {name:<22}{workers} threads{n / clock:>10,.0f}{n / cores:>10,.0f}"
            )


class Ready(keras.utils.PyDataset):
    """The same batches, made beforehand."""

    def __init__(self, batches):
        super().__init__()
        self.batches = list(batches)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def training(name, steps, repetitions):
    split = draw(128 * steps, 32)
    preprocessing = Preprocessing((32, 32), MEAN, STD, augmentation="crop_flip")

    def pipeline(workers):
        return Batches(split, preprocessing, 128, training=True, workers=workers)

    sources = {
        "ready arrays": Ready(pipeline(0)),
        "no thread": pipeline(0),
        "1 thread": pipeline(1),
    }
    model = models.build(name, 10, (32, 32, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    times = {source: [] for source in sources}
    for epoch in range(repetitions + 1):
        for source, batches in sources.items():
            batches.epoch = epoch
            start = time.perf_counter(), time.process_time()
            model.fit(batches, shuffle=False, verbose=0)
            end = time.perf_counter(), time.process_time()
            if epoch:  # the first compiles
                times[source].append(np.subtract(end, start))
    base = np.array(times["ready arrays"])
    clock, cores = len(split) / np.median(base, axis=0)
    print(f"\n{name}, images/s: by the clock, and of one core's time")
    print(f"  {'ready arrays':<14}{clock:>10,.0f}{cores:>10,.0f}")
    for source in ("no thread", "1 thread"):
        # Neighbours in time share the machine's mood.
        clock, cores = np.median(base / np.array(times[source]), axis=0)
        print(f"  {source:<14}{clock:>9.3f}×{cores:>9.3f}×")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of 128 images an epoch")
    args = parser.parse_args()
    print(f"backend: {keras.backend.backend()}, {os.cpu_count()} cores")
    batches_alone(args.repetitions)
    for name in ("resnet8", "resnet20"):
        training(name, args.steps, args.repetitions)


if __name__ == "__main__":
    main()
