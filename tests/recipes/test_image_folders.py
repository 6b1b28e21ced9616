"""Tiny-ImageNet and folders of images, read and refused."""

import numpy as np
import pytest
from PIL import Image

from recipes import data
from recipes.data import DataError

pytestmark = pytest.mark.backend_free
WNIDS = ("n03", "n01", "n02")


@pytest.fixture
def tiny(tmp_path):
    """Images of one colour each, ten of each class to train on, two to test on."""
    root = tmp_path / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    annotations = []
    for c, wnid in enumerate(WNIDS):
        folder = root / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for i in range(10):
            colour = (80 * c, 10 * i, 0)
            Image.new("RGB", (64, 64), colour).save(folder / f"{wnid}_{i}.JPEG")
        for i in range(2):
            name = f"val_{2 * c + i}.JPEG"
            # Some of the original images are grey.
            Image.new("L", (64, 64), 80 * c).save(root / "val" / "images" / name)
            annotations.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (root / "val" / "val_annotations.txt").write_text("".join(annotations))
    (root / "wnids.txt").write_text("".join(f"{w}\n" for w in WNIDS))
    (root / "words.txt").write_text("n00\tentity\nn01\tcat, puss\nn02\tdog\n")
    return root


@pytest.mark.parametrize("inside", [True, False])
def test_tiny_imagenet_is_read_from_its_folder_or_the_one_around_it(tiny, inside):
    dataset = data.load("tiny-imagenet", tiny if inside else tiny.parent)
    assert dataset.class_names == ("cat", "dog", "n03")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (24, 6, 6)
    red = {"n01": 80, "n02": 160, "n03": 0}
    for split in (dataset.train, dataset.val, dataset.test):
        colour = split.x[:, 32, 32, 0].astype(int)
        expected = np.array([red[sorted(WNIDS)[label]] for label in split.y])
        assert np.all(np.abs(colour - expected) <= 3)
    assert np.bincount(dataset.val.y).tolist() == [2, 2, 2]
    assert (
        data.load("tiny-imagenet", tiny, image_size=224).input_shape[:2] == (224,) * 2
    )


def test_test_images_of_tiny_imagenet_are_halved_as_in_the_public_code(tiny):
    dataset = data.load("tiny-imagenet", tiny, splits="released")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (30, 3, 3)
    assert sorted(dataset.val.y) == sorted(dataset.test.y) == [0, 1, 2]
    assert not dataset.augmented_val
    with pytest.raises(ValueError, match="`splits` must be held_out, except for CIFAR"):
        data.load("digits", splits="released")


def test_bad_tiny_imagenet_is_named(tiny):
    file = tiny / "train" / "n02" / "images" / "n02_7.JPEG"
    content = file.read_bytes()
    for broken in (b"", content[:200], b"not an image"):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=r"n02_7\.JPEG"):
            data.load("tiny-imagenet", tiny)
    Image.new("RGB", (32, 64)).save(file)
    with pytest.raises(DataError, match=r"n02_7\.JPEG.*32×64"):
        data.load("tiny-imagenet", tiny)
    file.write_bytes(content)
    table = tiny / "val" / "val_annotations.txt"
    lines = table.read_text().splitlines(keepends=True)
    for broken, message in (
        ("val_0.JPEG\tn99\n", "line 1.*n99"),
        ("val_0.JPEG\n", "line 1"),
        ("val_9.JPEG\tn01\n", r"val_9\.JPEG"),
    ):
        table.write_text("".join([broken, *lines[1:]]))
        with pytest.raises(DataError, match=message):
            data.load("tiny-imagenet", tiny)
    table.unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt"):
        data.load("tiny-imagenet", tiny)
    with pytest.raises(DataError, match=r"(?s)wnids\.txt.*http://cs231n"):
        data.load("tiny-imagenet", tiny / "val")
    with pytest.raises(DataError, match="data_dir"):
        data.load("tiny-imagenet")


def write_classes(root, counts, size=(20, 12)):
    for c, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            colour = (100 * c, i, 50)
            Image.new("RGB", size, colour).save(root / name / f"{i}.png")


def test_a_folder_is_split_by_class(tmp_path):
    write_classes(tmp_path, {"cat": 20, "dog": 30})
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    dataset = data.load(f"folder:{tmp_path}", image_size=8)
    assert dataset.class_names == ("cat", "dog")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (32, 8, 10)
    assert np.bincount(dataset.test.y).tolist() == [4, 6]
    assert dataset.train.x.shape[1:] == dataset.input_shape == (8, 8, 3)
    seen = set()
    for split in (dataset.train, dataset.val, dataset.test):
        np.testing.assert_array_equal(split.x[:, 4, 4, 0], 100 * split.y)
        seen |= {(y, x[4, 4, 1]) for x, y in zip(split.x, split.y, strict=True)}
    assert len(seen) == 50
    # Normalised by the training images; a constant channel is not scaled.
    scaled = dataset.train.x / 255
    p = dataset.preprocessing
    np.testing.assert_allclose(p.mean, scaled.mean((0, 1, 2)))
    np.testing.assert_allclose(p.std[:2], scaled.std((0, 1, 2))[:2])
    assert p.std[2] == 1.0
    other = data.load(f"folder:{tmp_path}", image_size=8, seed=1)
    np.testing.assert_array_equal(other.test.x, dataset.test.x)
    assert not np.array_equal(other.val.x, dataset.val.x)


def test_a_folder_may_have_its_own_splits_of_known_classes(tmp_path):
    for part, count in (("train", 10), ("val", 3), ("test", 4)):
        write_classes(tmp_path / part, {"cat": count, "dog": count})
    dataset = data.load(f"folder:{tmp_path}")
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (20, 6, 8)
    write_classes(tmp_path / "test", {"emu": 1})
    with pytest.raises(DataError, match=r"emu.*without training images"):
        data.load(f"folder:{tmp_path}")


def test_photographs_are_turned_as_the_camera_was_held(tmp_path):
    write_classes(tmp_path, {"a": 10, "b": 10})
    photo = Image.new("RGB", (16, 16))
    photo.paste((255, 255, 255), (0, 0, 16, 8))  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right by 90° to view
    for file in (tmp_path / "a").iterdir():
        photo.save(file, exif=exif)
    dataset = data.load(f"folder:{tmp_path}", image_size=16)
    image = dataset.test.x[dataset.test.y == 0][0]
    assert np.all(image[:, 8:] == 255)
    assert np.all(image[:, :8] == 0)


def test_bad_folders_are_named(tmp_path):
    with pytest.raises(DataError, match="There is no folder"):
        data.load(f"folder:{tmp_path / 'gone'}")
    write_classes(tmp_path, {"cat": 3})
    with pytest.raises(DataError, match="at least 2 classes"):
        data.load(f"folder:{tmp_path}")
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match="dog has no images"):
        data.load(f"folder:{tmp_path}")
    (tmp_path / "dog" / "1.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"1\.png cannot be read"):
        data.load(f"folder:{tmp_path}")
    Image.new("RGB", (8, 8)).save(tmp_path / "dog" / "1.png")
    with pytest.raises(DataError, match="cannot hold out 0 of 4 samples"):
        data.load(f"folder:{tmp_path}")


@pytest.mark.parametrize("name", ["cifar", "folder", "folder:", "digits:x", "CIFAR10"])
def test_unknown_data_sets_list_the_known_ones(name):
    with pytest.raises(ValueError, match=r"cifar10, cifar100.*folder:PATH"):
        data.load(name)
