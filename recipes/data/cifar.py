"""CIFAR-10 and CIFAR-100, in every form in which they are distributed."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.data.base import DataError, Dataset, Preprocessing, Split

# (x, y) to train on, (x, y) to test on, before they are checked.
Arrays = tuple[Any, Any]


class _Form(NamedTuple):
    """How the files and classes of the two data sets differ."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    labels: bytes
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    class_names: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FORMS = {
    "cifar10": _Form(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        labels=b"labels",
        # Channel means and deviations that Mukhoti et al. (2020) use.
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        class_names=_words(
            "airplane automobile bird cat deer dog frog horse ship truck"
        ),
    ),
    "cifar100": _Form(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        train=("train",),
        test="test",
        labels=b"fine_labels",
        # The values that are commonly published for its training images.
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        class_names=_words(
            """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl
            boy bridge bus butterfly camel can castle caterpillar cattle chair
            chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
            elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
            lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
            mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
            pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket
            rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
            streetcar sunflower sweet_pepper table tank telephone television tiger
            tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
            worm"""
        ),
    ),
}


def load(
    name: str, data_dir: str | os.PathLike[str] | None = None, *, seed: int = 0
) -> Dataset:
    """Returns CIFAR-10 or CIFAR-100, with 5,000 training images held out.

    Args:
        name: `"cifar10"` or `"cifar100"`.
        data_dir: the original python folder, an .npz file of x_train, y_train, x_test
            and y_test, or a folder that holds one of them (the file as `cifar10.npz`
            or `cifar100.npz`). None uses Keras's loader, which downloads missing files.
        seed: seed of the hold-out.
    """
    form = _FORMS[name]
    training, test = splits(name, data_dir)
    train, val = training.hold_out(seed)
    return Dataset(
        name=name,
        train=train,
        val=val,
        test=test,
        class_names=form.class_names,
        preprocessing=Preprocessing(
            (32, 32), form.mean, form.std, augmentation="crop_flip"
        ),
    )


def splits(
    name: str, data_dir: str | os.PathLike[str] | None = None
) -> tuple[Split, Split]:
    """Returns all training images and the test images, in their original order."""
    if data_dir is None:
        source, arrays = Path(f"keras.datasets.{name}"), _from_keras(name)
    else:
        source, arrays = _from_path(name, Path(data_dir).expanduser())
    classes = len(_FORMS[name].class_names)
    training, test = (_checked(source, x, y, classes) for x, y in arrays)
    return training, test


def _from_path(name: str, path: Path) -> tuple[Path, Arrays]:
    """Returns the file or folder that was read, and its arrays."""
    form = _FORMS[name]
    for place in (path, path / form.folder):
        if (place / form.test).is_file():
            return place, _folder(place, form)
    for place in (path, path / f"{name}.npz"):
        if place.is_file():
            return place, _npz(place)
    raise DataError(
        f"{name} was not found. Looked for {form.test} in {path} and in "
        f"{path / form.folder}, and for {name}.npz in {path}. {how_to_get(name)}"
    )


def how_to_get(name: str) -> str:
    """Returns a sentence that says where to get the data set."""
    archive = _FORMS[name].archive
    return (
        f"Download https://www.cs.toronto.edu/~kriz/{archive}, unpack it, and pass the "
        "folder, or an .npz file with x_train, y_train, x_test and y_test, as data_dir."
    )


def _from_keras(name: str) -> Arrays:
    import keras

    try:
        arrays: Arrays = getattr(keras.datasets, name).load_data()
        return arrays
    except Exception as error:  # Keras raises a plain Exception without a network
        folder = Path(os.environ.get("KERAS_HOME", "~/.keras"), "datasets")
        raise DataError(
            f"{name} is not in {folder}, and Keras could not download it ({error}). "
            f"{how_to_get(name)}"
        ) from error


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = [data[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except KeyError as error:
        raise DataError(
            f"{path} must have the arrays x_train, y_train, x_test and y_test: {error}"
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz file: {error}") from error
    return arrays[:2], arrays[2:]


def _folder(place: Path, form: _Form) -> Arrays:
    """Returns the images and labels in files of the original layout."""

    def batch(file: str) -> tuple[np.ndarray, np.ndarray]:
        try:
            content = io.BytesIO((place / file).read_bytes())
            fields = _Unpickler(content, encoding="bytes").load()
            images = np.asarray(fields[b"data"], "uint8").reshape(-1, 3, 32, 32)
            labels = np.asarray(fields[form.labels])
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} images, {len(labels)} labels")
        except Exception as error:  # a broken pickle may raise anything
            raise DataError(
                f"{file} in {place} is not a file of {form.folder}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return images.transpose(0, 2, 3, 1), labels

    images, labels = zip(*map(batch, form.train), strict=True)
    return (np.concatenate(images), np.concatenate(labels)), batch(form.test)


class _Unpickler(pickle.Unpickler):
    """Reads pickles of plain containers and NumPy arrays, and refuses all others.

    A pickle can call any function, and the archive comes from the internet.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if (module, name) == ("_codecs", "encode"):  # bytes, in pickles of protocol 2
            return _encode
        if module.startswith(("numpy.core.", "numpy._core.")):
            if name == "_reconstruct":
                return _RECONSTRUCT
            if name == "_frombuffer":
                return _FROMBUFFER
        raise pickle.UnpicklingError(f"it uses {module}.{name}, which is not allowed")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


# NumPy's own helpers, whose module differs between versions.
_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]
_FROMBUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]


def _checked(source: Path, x: Any, y: Any, num_classes: int) -> Split:
    x, y = np.asarray(x), np.asarray(y)
    if y.shape == (len(x), 1):  # the shape of Keras's labels
        y = y[:, 0]
    if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
        raise DataError(
            f"{source}: images must be uint8 of shape (n, 32, 32, 3). "
            f"Received: {x.dtype} of shape {x.shape}"
        )
    if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{source}: each of the {len(x)} images needs an integer label. "
            f"Received: {y.dtype} of shape {y.shape}"
        )
    if not len(y) or y.min() < 0 or y.max() >= num_classes:
        found = f"{y.min()} to {y.max()}" if len(y) else "none"
        raise DataError(
            f"{source}: labels must be from 0 to {num_classes - 1}. Received: {found}"
        )
    return Split(x, y.astype("int32"))
