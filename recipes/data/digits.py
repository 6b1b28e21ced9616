"""scikit-learn's digits with noisy labels: data that needs no download."""

import numpy as np

from keras_selcal._validation import refuse
from recipes.data.base import Dataset, Preprocessing, Split

LABEL_NOISE = 0.2
_TRAINING = 800
_SEED = 0


def load(*, seed: int = 0, label_noise: float = LABEL_NOISE) -> Dataset:
    """Returns 8 × 8 digits: 640 to train on, 160 for validation, 997 to test on.

    A share `label_noise` of all labels is wrong: replaced by another class, drawn at
    random. Every split has this noise, as data that is hard to label would have:
    training and test data have the same distribution, the best possible accuracy is
    1 − label_noise, and that is also the confidence of a calibrated model. A network
    that memorises 640 noisy labels is overconfident, which makes calibration a real
    problem.

    The noise and the test set are always the same; `seed` chooses the validation set.

    Args:
        seed: seed of the hold-out.
        label_noise: share of wrong labels, in [0, 1).
    """
    from sklearn.datasets import load_digits

    if not 0 <= label_noise < 1:
        refuse("label_noise", label_noise, "a number in [0, 1)")
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(labels))
    x = images[order].reshape(-1, 8, 8, 1).astype("uint8")
    y = labels[order].astype("int32")
    # Drawn for all labels, so that a higher share only adds wrong labels.
    rank = rng.permutation(len(y))
    other = (y + rng.integers(1, 10, len(y), dtype="int32")) % 10
    y = np.where(rank < round(label_noise * len(y)), other, y)
    train, val = Split(x[:_TRAINING], y[:_TRAINING]).hold_out(seed)
    return Dataset(
        name="digits",
        train=train,
        val=val,
        test=Split(x[_TRAINING:], y[_TRAINING:]),
        class_names=tuple("0123456789"),
        preprocessing=Preprocessing((8, 8), (0.0,), (1.0,), scale=16.0),
    )
