"""scikit-learn's digits with noisy labels: data that every machine has."""

import numpy as np

from recipes.data.base import Dataset, Preprocessing, Split
from recipes.data.split import holdout_size, stratified_holdout

LABEL_NOISE = 0.2
_TRAINING = 800
_SEED = 0


def load(*, seed: int = 0, label_noise: float = LABEL_NOISE) -> Dataset:
    """Returns 8×8 digits: 640 to train on, 160 for validation, 997 to test on.

    A share `label_noise` of all labels is wrong: replaced by another class, drawn at
    random. The noise is in every split, as labels noisy by nature are: training and
    test data then have one distribution, the best accuracy is 1 − label_noise, and a
    calibrated model is that sure of its answers. A network that learns 640 noisy
    labels by heart is surer, which makes calibration a real problem.

    Noise and test set are always the same; `seed` chooses the validation set.

    Args:
        seed: of the hold-out.
        label_noise: share of wrong labels, in [0, 1).
    """
    from sklearn.datasets import load_digits

    if not 0 <= label_noise < 1:
        raise ValueError(
            "`label_noise` must be a number in [0, 1). "
            f"Received: label_noise={label_noise!r}"
        )
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(_SEED)
    order = rng.permutation(len(labels))
    x = images[order].reshape(-1, 8, 8, 1).astype("uint8")
    y = labels[order].astype("int32")
    # Drawn for all labels, so that more noise only adds to less.
    rank = rng.permutation(len(y))
    other = (y + rng.integers(1, 10, len(y), dtype="int32")) % 10
    y = np.where(rank < round(label_noise * len(y)), other, y)
    training = Split(x[:_TRAINING], y[:_TRAINING])
    test = Split(x[_TRAINING:], y[_TRAINING:])
    kept, held = stratified_holdout(training.y, holdout_size(_TRAINING), seed)
    return Dataset(
        name="digits",
        train=training[kept],
        val=training[held],
        test=test,
        class_names=tuple("0123456789"),
        preprocessing=Preprocessing((8, 8), (0.0,), (1.0,), scale=16.0),
    )
