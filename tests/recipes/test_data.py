"""Data sets in every form, their splits, and errors for bad files."""

import dataclasses
import gzip
import os
import pickle

import keras
import numpy as np
import pytest

from recipes import data, training
from recipes.data import DataError, Split, fashion
from recipes.data.pipeline import Batches
from recipes.tasks import Task

pytestmark = pytest.mark.backend_free


def images(n, size=8, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, size, size, channels), dtype="uint8")


def numbered(n, **options):
    """Returns random images whose labels are their indices."""
    return Split(images(n, **options), np.arange(n, dtype="int32"))


def test_a_holdout_is_exact_stratified_and_seeded():
    counts = np.array([60, 30, 10])
    split = Split(images(100), np.repeat([0, 1, 2], counts).astype("int32"))
    kept, held = split.hold_out(seed=3)
    assert (len(kept), len(held)) == (80, 20)
    assert np.bincount(held.y).tolist() == [12, 6, 2]
    found = {image.tobytes() for part in (kept, held) for image in part.x}
    assert found == {image.tobytes() for image in split.x}
    np.testing.assert_array_equal(split.hold_out(seed=3)[1].x, held.x)
    assert not np.array_equal(split.hold_out(seed=4)[1].x, held.x)
    assert len(split.hold_out(seed=0, size=7)[1]) == 7
    large = Split(np.zeros((50_000, 1, 1, 1), "uint8"), np.arange(50_000) % 10)
    assert len(large.hold_out(seed=0)[1]) == 5_000


def test_a_holdout_that_cannot_have_every_class_is_refused():
    split = numbered(4)
    with pytest.raises(DataError, match="cannot hold out 2 of 4 samples by class"):
        Split(split.x, split.y // 3).hold_out(seed=0, size=2)


def test_digits_have_their_share_of_noise_in_every_split():
    clean, noisy = data.load("digits", label_noise=0.0), data.load("digits")
    sizes = {"train": 640, "val": 160, "test": 997}
    y_clean = np.concatenate([getattr(clean, part).y for part in sizes])
    wrong = {part: getattr(noisy, part) for part in sizes}
    assert {part: len(split) for part, split in wrong.items()} == sizes
    # The hold-out is stratified by noisy labels: match images, not positions.
    x_clean = np.concatenate([getattr(clean, part).x for part in sizes])
    truth = {image.tobytes(): y for image, y in zip(x_clean, y_clean, strict=True)}
    total = 0
    for split in wrong.values():
        true = [truth[image.tobytes()] for image in split.x]
        errors = np.sum(true != split.y)
        assert errors / len(split) == pytest.approx(0.2, abs=0.1)
        total += errors
    assert total == round(0.2 * 1797)
    assert noisy.input_shape == (8, 8, 1)
    assert noisy.num_classes == 10
    inputs, _ = Batches(noisy.test, noisy.preprocessing, 997, workers=0)[0]
    np.testing.assert_allclose(inputs, noisy.test.x / 16, rtol=1e-6)


def test_the_seed_of_digits_moves_the_validation_set_alone():
    one, other = data.load("digits", seed=1), data.load("digits", seed=2)
    np.testing.assert_array_equal(one.test.x, other.test.x)
    np.testing.assert_array_equal(one.test.y, other.test.y)
    assert not np.array_equal(one.val.x, other.val.x)
    with pytest.raises(ValueError, match="label_noise"):
        data.load("digits", label_noise=1.0)


def pickled(x, y, label_key, protocol=4):
    rows = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    batch = {b"data": rows, label_key: [int(label) for label in y]}
    return pickle.dumps(batch, protocol=protocol)


def cifar10_files(protocol=4):
    """Returns five batches and a test batch of 20 images, as in the original."""
    x, y = images(120, 32), np.arange(120) % 10
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    files = {
        name: pickled(x[20 * i : 20 * i + 20], y[20 * i : 20 * i + 20], b"labels")
        for i, name in enumerate(names)
    }
    return files, x, y


def cifar100_files(protocol=4):
    x, y = images(600, 32), np.arange(600) % 100
    files = {
        "train": pickled(x[:500], y[:500], b"fine_labels", protocol),
        "test": pickled(x[500:], y[500:], b"fine_labels", protocol),
    }
    return files, x, y


def write_folder(folder, files):
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def check_cifar(dataset, x, y, training):
    """Checks that all images are there once, and the test images in order."""
    np.testing.assert_array_equal(dataset.test.x, x[training:])
    np.testing.assert_array_equal(dataset.test.y, y[training:])
    assert len(dataset.val) == training // 5
    found = np.concatenate([dataset.train.x, dataset.val.x])
    labels = np.concatenate([dataset.train.y, dataset.val.y])
    expected = {image.tobytes(): c for image, c in zip(x[:training], y, strict=False)}
    assert len(found) == len(expected) == training
    for image, label in zip(found, labels, strict=True):
        assert expected[image.tobytes()] == label
    assert labels.dtype == np.int32
    assert dataset.input_shape == (32, 32, 3)


@pytest.mark.parametrize("form", ["folder", "parent", "npz", "folder of npz"])
def test_cifar10_is_read_in_every_form(tmp_path, form):
    files, x, y = cifar10_files()
    folder = tmp_path / "cifar-10-batches-py"
    file = tmp_path / ("any.npz" if form == "npz" else "cifar10.npz")
    path = {"folder": folder, "npz": file}.get(form, tmp_path)
    if form in ("folder", "parent"):
        write_folder(folder, files)
    else:
        arrays = {"x_train": x[:100], "y_train": y[:100, None]}
        np.savez(file, **arrays, x_test=x[100:], y_test=y[100:])
    dataset = data.load("cifar10", str(path), seed=1)
    check_cifar(dataset, x, y, training=100)
    assert dataset.class_names[3] == "cat"


@pytest.mark.parametrize("protocol", [2, 3, 5])
def test_cifar100_is_read_in_every_pickle_protocol(tmp_path, protocol):
    files, x, y = cifar100_files(protocol)
    dataset = data.load("cifar100", write_folder(tmp_path / "any", files))
    check_cifar(dataset, x, y, training=500)
    assert dataset.num_classes == len(set(dataset.class_names)) == 100
    assert list(dataset.class_names) == sorted(dataset.class_names)
    assert dataset.preprocessing.mean == (0.5071, 0.4865, 0.4409)
    assert dataset.preprocessing.std == (0.2673, 0.2564, 0.2762)


def test_pickles_of_python_2_are_read(tmp_path):
    """The original files: protocol 2, byte strings as `str`, an old NumPy's names."""
    files, x, y = cifar10_files()

    def python_2(i):
        rows = x[20 * i : 20 * i + 20].transpose(0, 3, 1, 2).tobytes()
        labels = b"".join(b"K" + bytes([c]) for c in y[20 * i : 20 * i + 20])
        return (
            b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\n"
            b"ndarray\nK\x00\x85U\x01b\x87R(K\x01K\x14M\x00\x0c\x86cnumpy\ndtype\n"
            b"U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
            b"K\x00tb\x89T" + len(rows).to_bytes(4, "little") + rows + b"tb"
            b"U\x06labels](" + labels + b"eu."
        )

    folder = write_folder(
        tmp_path / "any", {name: python_2(i) for i, name in enumerate(files)}
    )
    check_cifar(data.load("cifar10", folder), x, y, training=100)


class Harmful:
    def __reduce__(self):
        return (os.mkdir, ("harm",))


@pytest.mark.parametrize("how", ["pickle", "short", "nonsense", "labels", "gone"])
def test_a_bad_batch_is_named(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    files, x, y = cifar10_files()
    files["data_batch_3"] = {
        "pickle": pickle.dumps({b"data": Harmful(), b"labels": []}),
        "short": files["data_batch_3"][:1000],
        "nonsense": b"nonsense",
        "labels": pickled(x[:20], y[:19], b"labels"),
        "gone": b"",
    }[how]
    folder = write_folder(tmp_path / "any", files)
    if how == "gone":
        (folder / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3"):
        data.load("cifar10", folder)
    assert not (tmp_path / "harm").exists()


def test_bad_arrays_are_named(tmp_path):
    _, x, y = cifar10_files()
    path = tmp_path / "a.npz"
    good = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    bad = [
        {"x_train": x.astype("float32")},
        {"x_train": x[:, :16]},
        {"y_train": y[:-1]},
        {"y_test": y + 5},
        {"y_test": y - 1},
        {"y_test": y / 2},
        {"x_train": np.array([None])},
        {"x_test": x[:0], "y_test": y[:0]},
    ]
    for arrays in bad:
        np.savez(path, **{**good, **arrays})
        with pytest.raises(DataError, match=r"a\.npz"):
            data.load("cifar10", path)
    np.savez(path, x_train=x)
    with pytest.raises(DataError, match=r"a\.npz.*y_train"):
        data.load("cifar10", path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=r"a\.npz"):
        data.load("cifar10", path)


def test_missing_cifar_tells_where_it_looked_and_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"cifar-100-python\.tar\.gz") as error:
        data.load("cifar100", tmp_path)
    assert str(tmp_path / "cifar-100-python") in str(error.value)
    assert "https://www.cs.toronto.edu" in str(error.value)

    def offline():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", offline)
    with pytest.raises(DataError, match=r"URL fetch failure.*Download https"):
        data.load("cifar10")


def test_keras_is_the_source_without_a_folder(monkeypatch):
    _, x, y = cifar10_files()

    def load_data():
        return (x[:100], y[:100, None]), (x[100:], y[100:, None])

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", load_data)
    check_cifar(data.load("cifar10"), x, y, training=100)


@pytest.mark.parametrize("splits", ["held_out", "released"])
def test_the_public_code_augments_validation_images_of_cifar(tmp_path, splits):
    x, y = images(60, 32), np.arange(60) % 10
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    task = Task(*("cifar10", "resnet20", "xe"), data_dir=str(tmp_path), batch_size=12)
    task = dataclasses.replace(task, set=(f"splits={splits}",))
    samples = training.load_data(task)
    assert samples.augmented_val == (splits == "released")
    for part in ("train", "val", "test"):
        split = getattr(samples, part)
        seen, _ = training._batches(task, samples, part)[0]
        expected, _ = Batches(split, samples.preprocessing, 12)[0]
        equal = np.array_equal(seen, expected)
        assert equal == (part != "val" or splits == "held_out")


def test_fashion_mnist_is_read_and_bad_files_are_named(tmp_path, monkeypatch):
    x, y = images(30, 28, 1), np.arange(30) % 10
    monkeypatch.setattr(fashion, "_VALIDATION", 10)
    for part, count in (("train", 30), ("t10k", 20)):
        files = (("images-idx3", bytes(16), x), ("labels-idx1", bytes(8), y))
        for name, header, array in files:
            content = header + array[:count].astype("uint8").tobytes()
            path = tmp_path / f"{part}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(content))
    dataset = data.load("fashion-mnist", tmp_path)
    sizes = [len(split) for split in (dataset.train, dataset.val, dataset.test)]
    assert sizes == [20, 10, 20]
    np.testing.assert_array_equal(dataset.test.x, x[:20])
    np.testing.assert_array_equal(dataset.test.y, y[:20])
    assert dataset.input_shape == (28, 28, 1)
    assert not np.array_equal(data.load("fashion-mnist", tmp_path, seed=1).val.x, x)
    with pytest.raises(DataError, match="fashion-mnist needs data_dir"):
        data.load("fashion-mnist")
    for broken, words in (
        (gzip.compress(bytes(20)), "Received: 23520 pixels and 12 labels of train"),
        (b"no archive", "train-labels-idx1-ubyte.gz cannot be read"),
    ):
        (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(broken)
        with pytest.raises(DataError, match=words):
            data.load("fashion-mnist", tmp_path)
