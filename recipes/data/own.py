"""Your own data: arrays of images or numbers, or texts."""

import zipfile
from collections.abc import Sequence

import numpy as np

from recipes.data import text
from recipes.data.base import DataError, Dataset, Preprocessing, Split

# Squares of larger numbers are not finite in float32.
_MOST = 1e18


def load(kind: str, path: str, *, seed: int = 0) -> Dataset:
    """Returns the data of a file.

    If there is no test data, a fifth, at most 5,000 samples, is held out by class,
    which is the same for all seeds. Inputs are standardised by the training data:
    images by channel, other numbers by feature.

    Args:
        kind: `"npz"` for arrays x and y, or x_train, y_train, x_test and y_test; or
            `"text"` for a CSV file with the columns text and label.
        path: the file.
        seed: seed of the validation samples.
    """
    if kind == "npz":
        train, test, names = _npz(path)
    else:
        texts, labels = zip(*text.read_csv(path), strict=True)
        train, test, names = _named(path, [(text.embed(texts), np.array(labels))])
    axes = tuple(range(train.x.ndim - 1))
    # In float64, as an image file has more pixels than float32 can count.
    mean, std = train.x.mean(axes, "float64"), train.x.std(axes, "float64")
    preprocessing = Preprocessing(
        train.x.shape[1:3] if train.x.ndim == 4 else None,
        tuple(mean.tolist()),
        # A feature without variation is not scaled.
        tuple(np.where(std > 0, std, 1.0).tolist()),
        scale=1.0,
    )
    try:
        train, val = train.hold_out(seed)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return Dataset(f"{kind}:{path}", train, val, test, names, preprocessing)


_Parts = tuple[Split, Split, tuple[str, ...]]


def _npz(path: str) -> _Parts:
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


def _named(path: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> _Parts:
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
        try:
            train, held = train.hold_out(0)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        test = [held]
    return train, test[0], tuple(map(str, names))
