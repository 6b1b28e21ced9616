"""What ranking on each replica does to the AU loss, against ranking the whole batch.

    KERAS_BACKEND=torch python -m benchmarks.replicas

A batch is split over 8 replicas. Each ranks its own share, as `AULoss` does under
`tf.distribute` and `torch.distributed` unless `synchronized=True`. By the size of a
share: the deviation of β (root mean square over that of the global β), of the loss
and of its gradient to the logits (norm of the difference over the norm), in percent,
mean over random batches. The logits are those of real networks in KERAS_SELCAL_DATA,
and random ones where that is not set.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from keras import ops

from keras_selcal.functional import au_weights

NETWORKS = {
    "CIFAR-10, ResNet-110": "markus93_resnet110_c10_logits.npz",
    "CIFAR-100, ResNet-50": "mukhoti_cifar100_resnet50_logits.npz",
}
SHARES = (8, 16, 32, 64, 128, 256, 512)
REPLICAS = 8


def predictions():
    """Yields the name, probabilities and labels of each network at hand."""
    folder = os.environ.get("KERAS_SELCAL_DATA")
    if folder is None:
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(10_000, 10), scale=2.5)
        labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=-1)
        yield "random logits", softmax(logits), labels
        return
    for name, file in NETWORKS.items():
        with np.load(Path(folder) / "logits" / file) as data:
            yield name, softmax(data["test_logits"]), np.ravel(data["test_labels"])


def softmax(logits):
    p = np.exp(logits - logits.max(axis=-1, keepdims=True)).astype("float32")
    return p / p.sum(axis=-1, keepdims=True)


def weights(p):
    return ops.convert_to_numpy(au_weights(p.max(axis=-1)))


def relative(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


def deviations(p, y, share):
    """Returns how far β, loss and gradient of a split batch are from the whole's."""
    theirs = weights(p)
    ours = np.concatenate(
        [weights(p[i : i + share]) for i in range(0, len(p), share)], dtype="float32"
    )
    losses = -np.log(p[np.arange(len(y)), y])
    gradient = p - np.eye(p.shape[1], dtype="float32")[y]
    return (
        relative(ours, theirs),
        abs(np.mean(ours * losses) / np.mean(theirs * losses) - 1),
        relative(ours[:, None] * gradient, theirs[:, None] * gradient),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=50, help="to average over")
    args = parser.parse_args()
    for name, p, y in predictions():
        print(f"\n{name}, {REPLICAS} replicas: deviation in %")
        print("  share     β    loss  gradient")
        for share in SHARES:
            rng = np.random.default_rng(0)
            found = []
            for _ in range(args.batches):
                batch = rng.choice(len(y), REPLICAS * share, replace=False)
                found.append(deviations(p[batch], y[batch], share))
            beta, loss, gradient = 100 * np.mean(found, axis=0)
            print(f"  {share:5d}{beta:6.1f}{loss:8.1f}{gradient:10.1f}")


if __name__ == "__main__":
    main()
