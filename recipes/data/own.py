"""Your own data for `python -m recipes compare`: images, numbers or texts."""

import zipfile
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_selcal._validation import refuse
from recipes import data
from recipes.data import text
from recipes.data.base import DataError, Split

# Squares of larger numbers are not finite in float32.
_MOST = 1e18
_FORMS = "folder:PATH, npz:PATH, text:PATH"


class Data(NamedTuple):
    """Samples to train and validate on, samples to test on, and names of classes."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


def load(dataset: str, data_dir: str | None = None) -> Data:
    """Returns the data that a user names.

    If there is no test data, a fifth, at most 5,000 samples, is held out by class,
    which is the same for all seeds.

    Args:
        dataset: `"folder:PATH"` with a folder of images for each class, `"npz:PATH"`
            with arrays x and y, or x_train, y_train, x_test and y_test; `"text:PATH"`
            with the columns text and label in CSV; or one of `data.NAMES`.
        data_dir: path of a data set in `data.NAMES`.
    """
    kind, _, path = dataset.partition(":")
    if kind == "npz" and path:
        return _npz(path)
    if kind == "text" and path:
        texts, labels = zip(*text.read_csv(path), strict=True)
        return _named(path, [(text.embed(texts), np.array(labels))])
    if dataset not in data.NAMES and not (kind == "folder" and path):
        refuse("dataset", dataset, f"{_FORMS} or one of {', '.join(data.NAMES)}")
    found = data.load(dataset, data_dir)
    parts = (found.train, found.val)
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    return Data(Split(x, y), found.test, found.class_names)


def _npz(path: str) -> Data:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (AttributeError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an .npz file of numbers.") from error
    for names in (("x_train", "y_train", "x_test", "y_test"), ("x", "y")):
        if set(names) <= set(arrays):
            found = [arrays[name] for name in names]
            pairs = list(zip(found[::2], found[1::2], strict=True))
            return _named(path, [_checked(path, x, y) for x, y in pairs])
    raise DataError(
        f"{path} must have the arrays x and y, or x_train, y_train, x_test and y_test. "
        f"Received: {', '.join(arrays)}"
    )


def _checked(path: str, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "buif" or y.shape != x.shape[:1]:
        raise DataError(
            f"{path} must have numbers x (n, features), (n, h, w) or (n, h, w, c) and "
            f"labels y (n,). Received: x {x.shape} of type {x.dtype}, y {y.shape}"
        )
    if not (np.isfinite(x).all() and np.abs(x).max(initial=0) < _MOST):
        raise DataError(f"{path} must have finite numbers in x, below {_MOST:g}.")
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise DataError(f"{path} must have labels y without NaN.")
    if not len(y):
        raise DataError(f"{path} must have at least one sample in each array.")
    return x[..., None] if x.ndim == 3 else x, y


def _named(path: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Data:
    """Returns data with class indices instead of names; labels may be any numbers."""
    shapes = {x.shape[1:] for x, _ in pairs}
    if len(shapes) > 1:
        raise DataError(f"{path} must have x of one shape. Received: {shapes}")
    names = np.unique(pairs[0][1])
    if len(names) < 2:
        raise DataError(f"{path} must have at least 2 classes. Received: {len(names)}")
    for _, labels in pairs:
        if new := set(labels.tolist()) - set(names.tolist()):
            raise DataError(f"{path} has a class without training data: {new.pop()}")
    train, *test = (
        Split(x, np.searchsorted(names, y).astype("int32")) for x, y in pairs
    )
    if not test:
        train, held = train.hold_out(0)
        test = [held]
    return Data(train, test[0], tuple(map(str, names)))


def scaled(found: Data, model: str) -> Data:
    """Returns inputs from 0 to 255 for `"cnn"`, else standardised ones."""
    x = found.train.x.astype("float32")
    axes = tuple(range(x.ndim - 1))
    offset, scale = x.mean(axes), x.std(axes)
    if model == "cnn":
        offset, scale = x.min(), (x.max() - x.min()) / 255
    scale = np.where(scale > 0, scale, 1)

    def of(part: Split) -> Split:
        x = ((part.x - offset) / scale).astype("float32")
        return Split(x.reshape(len(x), -1) if model == "mlp" else x, part.y)

    return Data(of(found.train), of(found.test), found.class_names)
