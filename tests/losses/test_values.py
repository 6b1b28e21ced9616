"""Values of the losses against float64 references, and Keras's conventions."""

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, numpy, one_off, value_and_gradient
from keras import ops
from loss_cases import CASES, CLASSES, data, expected_values

import keras_selcal
from keras_selcal import (
    AULoss,
    FocalLoss,
)

# One sample, two classes, many classes, many samples.
SIZES = [(1, 10), (7, 2), (128, 1000), (4096, 100)]


@pytest.mark.parametrize("case", CASES)
def test_values_of_any_size(case):
    cls, options, _ = CASES[case]
    loss = one_off(cls(from_logits=True, **options))
    for n, k in SIZES:
        if case.startswith("kde"):
            # One kernel matrix, or one a class, is the reference's cost.
            n = min(n, 1024)
        if case == "kde_marginal" and n * n * k > 2e7:
            continue
        logits, labels = data(n, k)
        expected = expected_values(case, logits, labels).mean()
        got = float(loss(labels, logits))
        assert got == pytest.approx(expected, rel=1e-5), (n, k)


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    cls, options, _ = CASES[case]
    logits, labels = data(24, 5)
    expected = expected_values(case, logits, labels)
    each = numpy(cls(from_logits=True, reduction="none", **options)(labels, logits))
    atol = 1e-5 if case.startswith("kde") else 1e-6
    np.testing.assert_allclose(each, expected, rtol=3e-5, atol=atol)
    p = reference.softmax(logits).astype("float32")
    onehot = np.eye(5, dtype="float32")[labels]
    loss = cls(**options)
    for truth in (labels, labels[:, None], onehot):
        assert float(loss(truth, p)) == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_soft_labels_give_the_expectation_over_labels(case):
    """Of losses that are linear in the label; the others have formulas of their own."""
    cls, options, expected_of = CASES[case]
    logits, labels = data(24, 5)
    soft = 0.7 * np.eye(5)[labels] + 0.3 / 5
    loss = cls(from_logits=True, reduction="none", **options)
    if case.startswith("kde"):
        log_p = reference.log_softmax(logits)
        expected = expected_of(np.exp(log_p), log_p, np.sum(soft * log_p, -1), soft)
    elif case == "au_brier":
        p = reference.softmax(logits)
        beta = reference.au_weights(reference.unit_score(p, "msp"), smoothing=2.0)
        expected = beta * np.sum((p - soft) ** 2, -1)
    else:
        every = [expected_values(case, logits, np.full(24, c)) for c in range(5)]
        expected = np.sum(soft * np.stack(every, -1), -1)
    np.testing.assert_allclose(numpy(loss(soft, logits)), expected, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_one_hot_labels_are_those_of_indices(case):
    cls, options, _ = CASES[case]
    logits, labels = data(24, 5)
    loss, onehot = cls(from_logits=True, **options), np.eye(5)[labels]
    _, sparse = value_and_gradient(lambda z: loss(labels, z), logits)
    _, dense = value_and_gradient(lambda z: loss(onehot, z), logits)
    np.testing.assert_allclose(dense, sparse, rtol=1e-4, atol=1e-7)


def test_focal_loss_is_keras_own_for_soft_labels():
    logits, labels = data(24, 5)
    p = reference.softmax(logits).astype("float32")
    soft = (0.8 * np.eye(5)[labels] + 0.04).astype("float32")
    theirs = keras.losses.CategoricalFocalCrossentropy(alpha=1.0, gamma=2.0)
    assert float(FocalLoss(gamma=2.0)(soft, p)) == pytest.approx(
        float(theirs(soft, p)), rel=1e-5
    )


@pytest.mark.parametrize(
    "name", ["focal_loss", "inverse_focal_loss", "dual_focal_loss"]
)
def test_gamma_zero_is_crossentropy(name):
    logits, labels = data(24, 5)
    ours = CLASSES[name](gamma=0.0, from_logits=True)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert float(ours(labels, logits)) == pytest.approx(
        float(theirs(labels, logits)), rel=1e-6
    )


@pytest.mark.parametrize("name", CLASSES)
def test_reductions(name):
    logits, labels = data(24, 5)
    weight = np.arange(24, dtype="float32")
    each = numpy(
        CLASSES[name](from_logits=True, reduction="none").call(labels, logits, weight)
    )

    def reduced(reduction):
        loss = CLASSES[name](from_logits=True, reduction=reduction)
        return numpy(loss(labels, logits, sample_weight=weight))

    np.testing.assert_allclose(reduced(None), weight * each, rtol=1e-6)
    np.testing.assert_allclose(reduced("sum"), np.sum(weight * each), rtol=1e-6)
    for mean in ("mean", "sum_over_batch_size"):
        np.testing.assert_allclose(reduced(mean), np.mean(weight * each), rtol=1e-6)
    np.testing.assert_allclose(
        reduced("mean_with_sample_weight"), np.sum(weight * each) / 276, rtol=1e-6
    )


@pytest.mark.parametrize("name", CLASSES)
def test_scalar_and_zero_weights(name):
    logits, labels = data(24, 5)
    loss = CLASSES[name](from_logits=True)
    plain = float(loss(labels, logits))
    half = float(loss(labels, logits, sample_weight=0.5))
    assert half == pytest.approx(0.5 * plain, rel=1e-5)
    assert float(loss(labels, logits, sample_weight=np.zeros(24))) == 0.0


@pytest.mark.parametrize("name", CLASSES)
def test_dtypes(name):
    logits, labels = data(24, 5)
    exact = float(CLASSES[name](from_logits=True)(labels, logits))
    for dtype in ("float32", "float16", "bfloat16"):
        loss = CLASSES[name](from_logits=True, dtype=dtype)
        result = loss(labels, logits)
        assert keras.backend.standardize_dtype(result.dtype) == dtype
        # Computed in float32 and cast once.
        assert float(result) == pytest.approx(exact, rel=4e-3)
        if dtype == "float32":
            continue
        low = ops.cast(ops.convert_to_tensor(logits), dtype)
        full = ops.cast(low, "float32")
        loss = CLASSES[name](from_logits=True)
        assert float(loss(labels, low)) == float(loss(labels, full))


@pytest.mark.parametrize("name", CLASSES)
def test_config_round_trip(name):
    loss = CLASSES[name](from_logits=True, reduction="sum", name="x", dtype="bfloat16")
    again = CLASSES[name].from_config(loss.get_config())
    assert again.get_config() == loss.get_config()
    assert again.dtype == "bfloat16"
    config = keras.saving.serialize_keras_object(loss)
    again = keras_selcal.losses.get(config)
    assert type(again) is CLASSES[name]
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_after_the_first_are_keyword_only(name):
    with pytest.raises(TypeError, match="positional"):
        CLASSES[name]("msp" if name.startswith("au") else 1.0, "second")


def test_repr_shows_what_differs_from_the_default():
    assert repr(AULoss()) == "AULoss()"
    loss = AULoss("margin", quantile=0.5, from_logits=True)
    assert repr(loss) == "AULoss(from_logits=True, csf='margin', quantile=0.5)"


@pytest.mark.parametrize("case", CASES)
def test_config_keeps_every_option(case):
    cls, options, _ = CASES[case]
    logits, labels = data(24, 5)
    loss = cls(from_logits=True, **options)
    config = loss.get_config()
    for option, value in options.items():
        assert config[option] == value
    again = cls.from_config(config)
    assert float(again(labels, logits)) == float(loss(labels, logits))


@pytest.mark.parametrize("name", CLASSES)
def test_get_finds_a_loss_by_name_or_class(name):
    loss = keras_selcal.losses.get(name)
    assert type(loss) is CLASSES[name]
    assert loss.name == name
    assert type(keras_selcal.losses.get(CLASSES[name].__name__)) is CLASSES[name]
    assert keras_selcal.losses.get(loss) is loss


def test_get_falls_back_to_keras():
    loss = keras_selcal.losses.get("categorical_crossentropy")
    assert loss is keras.losses.get("categorical_crossentropy")
    with pytest.raises(ValueError, match="au_loss"):
        keras_selcal.losses.get("no_such_loss")


OPTIONS = {
    "au_loss": {"weight_gradient": 0.5, "smoothing": 2.0},
    "kde_crossentropy": {"kind": "top_label"},
}


def make(name, **options):
    return CLASSES[name](from_logits=True, **OPTIONS.get(name, {}), **options)


@pytest.mark.parametrize("name", CLASSES)
def test_rows_of_weight_zero_change_nothing(name):
    """Not even NaN, infinity and labels out of range."""
    logits, labels = data(24, 5)
    keep = np.arange(24) % 2 > 0
    weight = keep.astype("float32")
    loss = make(name, reduction="sum")
    value, gradient = value_and_gradient(
        lambda z: loss(labels[keep], z), logits[keep], jit=JIT_ONE_OFF
    )
    logits[~keep] = np.resize([np.nan, np.inf, -np.inf], logits[~keep].shape)
    labels[~keep] = -1
    masked, masked_gradient = value_and_gradient(
        lambda z: loss(labels, z, sample_weight=weight), logits
    )
    np.testing.assert_allclose(masked, value, rtol=1e-5)
    np.testing.assert_allclose(masked_gradient[keep], gradient, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(masked_gradient[~keep], 0.0)


@pytest.mark.parametrize("name", CLASSES)
def test_integer_weight_is_that_many_copies(name):
    logits, labels = data(24, 5)
    copies = np.array([1, 2, 3, 0, 0, 0] * 4)  # 24 again
    which = np.repeat(np.arange(24), copies)
    loss = make(name, reduction="sum")
    repeated = float(loss(labels[which], logits[which]))
    weighted = float(loss(labels, logits, sample_weight=copies))
    assert weighted == pytest.approx(repeated, rel=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_mask_is_weight_zero_and_leaves_the_mean(name):
    logits, labels = data(24, 5)
    keep = np.arange(24) < 12
    total = make(name, reduction="sum")(labels, logits, sample_weight=keep)
    masked = keras.layers.Masking(mask_value=9.0)(
        np.where(keep[:, None, None], logits[:, None, :], 9.0)
    )
    assert float(make(name)(labels[:, None], masked)) == pytest.approx(
        float(total) / 12, rel=1e-5
    )


@pytest.mark.parametrize("name", CLASSES)
def test_pixels_are_ranked_together(name):
    logits, labels = data(24, 5)
    loss = make(name)
    flat = float(loss(labels, logits))
    image, truth = logits.reshape(2, 3, 4, 5), labels.reshape(2, 3, 4)
    assert float(loss(truth, image)) == pytest.approx(flat, rel=1e-6)
    assert float(loss(truth[..., None], image)) == pytest.approx(flat, rel=1e-6)
    onehot = np.eye(5)[truth]
    assert float(loss(onehot, image)) == pytest.approx(flat, rel=1e-5)
    none = make(name, reduction="none")
    assert tuple(none(truth, image).shape) == (2, 3, 4)
    # The weight of an image is that of each of its pixels.
    weight = np.array([1.0, 0.0], "float32")
    half = float(loss(labels, logits, sample_weight=np.repeat(weight, 12)))
    assert float(loss(truth, image, sample_weight=weight)) == pytest.approx(
        half, rel=1e-6
    )


def test_label_out_of_range_is_an_error_or_nan():
    logits, labels = data(24, 5)
    loss = AULoss(from_logits=True)
    for wrong in (-1, 5):
        labels[2] = wrong
        assert np.isnan(float(loss(ops.convert_to_tensor(labels), logits)))
        with pytest.raises(ValueError, match=f"y_true={wrong}"):
            loss(labels, logits)


def test_nan_predictions_give_nan():
    logits, labels = data(24, 5)
    logits[3, 1] = np.nan
    for name in CLASSES:
        assert np.isnan(float(make(name)(labels, logits))), name
