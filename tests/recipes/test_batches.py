"""Batches are normalised, augmented, resized, and the same in a resumed run."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from recipes import data
from recipes.data import Preprocessing, Split
from recipes.data.pipeline import Batches


def numbered(n, size=8, channels=3):
    """Returns random images whose labels are their indices."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, size, size, channels), dtype="uint8")
    return Split(x, np.arange(n, dtype="int32"))


PLAIN = Preprocessing((8, 8), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
CROPPED = dataclasses.replace(PLAIN, augmentation="crop_flip")


@pytest.mark.backend_free
def test_batches_of_evaluation_are_normalised_in_order():
    split = numbered(10)
    batches = Batches(split, CROPPED, 4)
    assert len(batches) == 3
    x, y = (np.concatenate(part) for part in zip(*batches, strict=True))
    np.testing.assert_array_equal(y, split.y)
    assert x.dtype == np.float32
    expected = (split.x / 255 - np.array(PLAIN.mean)) / np.array(PLAIN.std)
    np.testing.assert_allclose(x, expected, atol=1e-5)
    assert len(batches[2][1]) == 2
    with pytest.raises(IndexError):
        batches[3]


@pytest.mark.backend_free
def test_validation_images_can_be_augmented_in_their_order():
    split = numbered(40)
    plain = Batches(split, CROPPED, 16)
    augmented = Batches(split, CROPPED, 16, augmented=True)
    np.testing.assert_array_equal(augmented[1][1], plain[1][1])
    same = np.all(augmented[1][0] == plain[1][0], axis=(1, 2, 3))
    assert np.mean(same) < 0.2  # a crop may be the image itself
    np.testing.assert_array_equal(augmented[1][0], augmented[1][0])


@pytest.mark.backend_free
def test_batches_depend_on_seed_epoch_and_index_alone():
    split = numbered(50)

    def batches(workers=0, **options):
        options = {"seed": 5, "epoch": 3, **options}
        return Batches(split, CROPPED, 8, training=True, workers=workers, **options)

    expected = [x for x, _ in batches()]
    labels = np.concatenate([y for _, y in batches()])
    np.testing.assert_array_equal(np.sort(labels), split.y)  # each image once
    reached = batches(workers=2, epoch=0)
    for epoch in (0, 1, 3):  # reads ahead, and is interrupted
        reached.epoch = epoch
        for index in (6, 0, 2, 2, 1, 5, 4, 3, 0):
            x, _ = reached[index]
            if epoch == 3:
                np.testing.assert_array_equal(x, expected[index])
    for other in (batches(seed=6), batches(epoch=4)):
        assert list(other[0][1]) != list(labels[:8])
    # With equal images only the augmentation differs: no two batches are equal.
    same = Split(np.repeat(split.x[:1], 32, axis=0), split.y[:32])
    shown = [
        x.tobytes()
        for seed, epoch in ((5, 3), (6, 3), (5, 4))
        for x, _ in Batches(same, CROPPED, 8, training=True, seed=seed, epoch=epoch)
    ]
    assert len(set(shown)) == 12


@pytest.mark.backend_free
def test_augmentation_crops_and_flips_each_image_on_its_own():
    split = numbered(400)
    batches = Batches(split, CROPPED, 400, training=True, workers=0)
    x, y = batches[0]
    pixels = x * np.array(PLAIN.std) + np.array(PLAIN.mean)
    pixels = np.round(pixels * 255).astype("uint8")
    padded = np.pad(split.x, ((0, 0), (4, 4), (4, 4), (0, 0)))
    found = []
    for image, number in zip(pixels, y, strict=True):
        ways = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (1, -1)
            if np.array_equal(
                image,
                padded[number, top : top + 8, left : left + 8][:, ::flip],
            )
        ]
        assert len(ways) == 1
        found += ways
    top, left, flip = np.transpose(found)
    assert set(top) == set(left) == set(range(9))
    assert abs(np.mean(flip)) < 0.15
    assert abs(np.corrcoef(top, left)[0, 1]) < 0.15


@pytest.mark.backend_free
def test_resized_images_have_the_size_of_the_input_and_keep_their_content():
    """A horizontal ramp stays a ramp, for images of one channel and of three."""
    ramp = np.broadcast_to(np.arange(0, 160, 20, dtype="uint8")[:, None], (2, 6, 8, 1))
    for channels in (1, 3):
        split = Split(np.repeat(ramp, channels, axis=-1), np.zeros(2, "int32"))
        large = Preprocessing((12, 16), (0.0,) * channels, (1.0,) * channels)
        x, _ = Batches(split, large, 2)[0]
        assert x.shape == (2, 12, 16, channels)
        # The centre of pixel i of the input is at (i + ½)/2 of the image's pixels.
        expected = np.clip((np.arange(16) + 0.5) / 2 - 0.5, 0, 7) * 20 / 255
        np.testing.assert_allclose(
            x, np.broadcast_to(expected[:, None], x.shape), atol=0.51 / 255
        )


@pytest.mark.backend_free
def test_transformers_get_resized_images_flipped_but_not_cropped():
    split = numbered(6)
    dataset = data.Dataset("x", split, split, split, tuple("abcdef"), CROPPED)
    large = dataset.resized(28)
    assert large.input_shape == (28, 28, 3)
    plain = Batches(split, large.preprocessing, 6)[0][0]
    x, y = Batches(split, large.preprocessing, 6, training=True)[0]
    assert x.shape == (6, 28, 28, 3)
    flipped = np.abs(x - plain[y][:, :, ::-1]).max((1, 2, 3)) < 1e-5
    kept = np.abs(x - plain[y]).max((1, 2, 3)) < 1e-5
    assert np.all(flipped != kept)
    assert any(flipped)


@pytest.mark.backend_free
def test_preprocessing_comes_back_from_json_and_refuses_what_does_not_fit():
    text = json.dumps(dataclasses.asdict(CROPPED))
    assert Preprocessing(**json.loads(text)) == CROPPED
    with pytest.raises(ValueError, match="augmentation"):
        dataclasses.replace(PLAIN, augmentation="rotate")
    with pytest.raises(ValueError, match="channels"):
        Batches(numbered(2, channels=1), PLAIN, 2)
    with pytest.raises(ValueError, match="split"):
        Batches(numbered(0), PLAIN, 2)


def classifier():
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((8, 8, 3)), layers.Flatten(), layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Eager, because compiling four models takes longer than training them.
    model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
    return model


def training_batches(workers=1):
    split = numbered(16)
    split = Split(split.x, split.y % 10)
    return Batches(split, CROPPED, 8, training=True, seed=1, workers=workers)


def test_a_resumed_fit_sees_the_batches_of_an_undisturbed_one():
    """`fit` reads the first batch of a new model twice, to build its metrics."""
    expected = classifier()
    batches = training_batches(0)
    for epoch in range(3):
        batches.epoch = epoch
        for x, y in batches:
            expected.train_on_batch(x, y)
    whole, stopped, resumed = classifier(), classifier(), classifier()
    for model, start, end, workers in (
        (whole, 0, 3, 2),
        (stopped, 0, 1, 0),
        (resumed, 1, 3, 1),
    ):
        if model is resumed:
            model.set_weights(stopped.get_weights())
        batches = training_batches(workers)
        model.fit(
            batches,
            initial_epoch=start,
            epochs=end,
            shuffle=False,
            callbacks=[batches.callback],
            verbose=0,
        )
    for model in (whole, resumed):
        for a, b in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


def test_fit_without_the_callback_is_refused():
    with pytest.raises(RuntimeError, match="callback"):
        classifier().fit(training_batches(), epochs=3, shuffle=False, verbose=0)
