"""Values of the losses against float64 references, and Keras's conventions."""

import keras
import numpy as np
import pytest
import reference
from backends import JIT_ONE_OFF, numpy, one_off, value_and_gradient
from keras import ops

import keras_selcal
from keras_selcal import (
    AULoss,
    AURCLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    KDECrossentropy,
    ReweightedLoss,
)

# Every n of 1, 2, 7, 128, 4096 and every k of 2, 10, 100, 1000.
SIZES = [(1, 10), (2, 100), (7, 2), (128, 1000), (4096, 100)]


def data(n, k, seed=0, scale=2.0):
    """Logits and labels; the truth is likelier where the logit is larger.

    Where the size does not matter it is (24, 5): JAX compiles every operation for each
    shape.
    """
    rng = np.random.default_rng([seed, n, k])
    logits = rng.normal(size=(n, k), scale=scale).astype("float32")
    labels = (logits + rng.gumbel(size=(n, k))).argmax(-1)
    return logits, labels


def au(csf, **options):
    def values(p, log_p, log_p_y, y):
        u = reference.unit_score(p, csf)
        return reference.au_weights(u, **options) * -log_p_y

    return values


def aurc(csf, estimator):
    def values(p, log_p, log_p_y, y):
        s = reference.score(p, csf)
        # Scores that differ by less than float32 resolves are ties there.
        return reference.aurc_weights(s.astype("float32"), estimator) * -log_p_y

    return values


def au_brier(p, log_p, log_p_y, y):
    brier = np.sum((p - np.eye(p.shape[-1])[y]) ** 2, -1)
    return reference.au_weights(reference.unit_score(p, "msp")) * brier


def kde(kind, h=0.1, kde_weight=0.3, order=1):
    def values(p, log_p, log_p_y, y):
        errors = reference.kde_errors(p, log_p, y, kind, h, order)
        return kde_weight * errors - log_p_y

    return values


def focal_53(p, log_p, log_p_y, y):
    p_y = np.exp(log_p_y)
    return -((1 - p_y) ** np.where(p_y < 0.2, 5, 3)) * log_p_y


def dual(p_j, gamma=3.0):
    def values(p, log_p, log_p_y, y):
        return -((1 - np.exp(log_p_y) + p_j(p, y)) ** gamma) * log_p_y

    return values


def largest_other_or_0(p, y):
    p_j = reference.largest_other(p, y)
    return np.where(p[np.arange(len(p)), y] < p_j, 0, p_j)


CASES = {
    "au_msp": (AULoss, {}, au("msp")),
    "au_margin": (AULoss, {"csf": "margin"}, au("margin")),
    "au_neg_entropy": (AULoss, {"csf": "neg_entropy"}, au("neg_entropy")),
    "au_options": (
        AULoss,
        {"coverage": 0.4, "num_bins": 20, "smoothing": 0.02},
        au("msp", coverage=0.4, num_bins=20, smoothing=0.02),
    ),
    "au_threshold": (AULoss, {"threshold": 0.6}, au("msp", tau=0.6)),
    "au_brier": (AULoss, {"base_loss": "brier"}, au_brier),
    "aurc": (AURCLoss, {}, aurc("msp", "harmonic")),
    "aurc_log": (
        AURCLoss,
        {"csf": "margin", "estimator": "log"},
        aurc("margin", "log"),
    ),
    "focal": (
        FocalLoss,
        {"gamma": 2.0},
        lambda p, log_p, log_p_y, y: -((1 - np.exp(log_p_y)) ** 2) * log_p_y,
    ),
    "focal_53": (FocalLoss, {"gamma": "53"}, focal_53),
    "inverse_focal": (
        InverseFocalLoss,
        {"gamma": 2.5},
        lambda p, log_p, log_p_y, y: -((1 + np.exp(log_p_y)) ** 2.5) * log_p_y,
    ),
    "dual_intended": (
        DualFocalLoss,
        {"gamma": 3.0},
        dual(reference.largest_other),
    ),
    "dual_discarded": (
        DualFocalLoss,
        {"gamma": 3.0, "variant": "discarded"},
        dual(largest_other_or_0),
    ),
    "dual_released": (
        DualFocalLoss,
        {"gamma": 3.0, "variant": "released"},
        dual(reference.largest_below),
    ),
    "kde_canonical": (KDECrossentropy, {}, kde("canonical")),
    "kde_top_label": (
        KDECrossentropy,
        {"kind": "top_label", "bandwidth": 0.02, "block_size": 50},
        kde("top_label", 0.02),
    ),
    "kde_marginal": (
        KDECrossentropy,
        {"kind": "marginal", "order": 2, "kde_weight": 2.0},
        kde("marginal", kde_weight=2.0, order=2),
    ),
}

# The first case of each class.
FIRST = ["au_msp", "aurc", "focal", "inverse_focal", "dual_intended", "kde_canonical"]

CLASSES = {
    "au_loss": AULoss,
    "aurc_loss": AURCLoss,
    "focal_loss": FocalLoss,
    "inverse_focal_loss": InverseFocalLoss,
    "dual_focal_loss": DualFocalLoss,
    "kde_crossentropy": KDECrossentropy,
}


def expected_values(case, logits, labels):
    log_p = reference.log_softmax(logits)
    log_p_y = log_p[np.arange(len(labels)), labels]
    return CASES[case][2](np.exp(log_p), log_p, log_p_y, labels)


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    cls, options, _ = CASES[case]
    for n, k in SIZES:
        # One kernel matrix a class is the reference's cost.
        if case == "kde_marginal" and n * n * k > 2e7:
            continue
        logits, labels = data(n, k)
        expected = expected_values(case, logits, labels)
        loss = cls(from_logits=True, **options)
        # Kernels share no operation with other cases.
        alone = one_off if case.startswith("kde") else lambda fn: fn
        got = float(alone(loss)(labels, logits))
        assert got == pytest.approx(expected.mean(), rel=1e-5), (n, k)
        if n == 4096:
            continue
        p = reference.softmax(logits).astype("float32")
        loss = alone(cls(**options))
        assert float(loss(labels, p)) == pytest.approx(got, rel=1e-5), (n, k)
        if n != 7:
            continue
        onehot = np.eye(k, dtype="float32")[labels]
        assert float(loss(onehot, p)) == pytest.approx(got, rel=1e-5), (n, k)
        assert float(loss(labels[:, None], p)) == pytest.approx(got, rel=1e-5), (n, k)


@pytest.mark.parametrize("case", CASES)
def test_per_sample_values(case):
    cls, options, _ = CASES[case]
    logits, labels = data(128, 10)
    loss = cls(from_logits=True, reduction="none", **options)
    np.testing.assert_allclose(
        numpy(loss(labels, logits)),
        expected_values(case, logits, labels),
        rtol=3e-5,
        atol=1e-5 if case.startswith("kde") else 1e-6,
    )


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
        beta = reference.au_weights(reference.unit_score(p, "msp"))
        expected = beta * np.sum((p - soft) ** 2, -1)
    else:
        every = [numpy(loss(np.full(24, c), logits)) for c in range(5)]
        expected = np.sum(soft * np.stack(every, -1), -1)
    np.testing.assert_allclose(numpy(loss(soft, logits)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    "case", [*FIRST, "au_brier", "focal_53", "dual_discarded", "dual_released"]
)
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


# --- Keras's conventions, for every loss --------------------------------------------


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
    loss = AULoss("margin", coverage=0.5, from_logits=True)
    assert repr(loss) == "AULoss(from_logits=True, csf='margin', coverage=0.5)"


@pytest.mark.parametrize(
    ("cls", "options"), [case[:2] for case in CASES.values()], ids=CASES
)
def test_config_keeps_every_option(cls, options):
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


# --- Weights, masks, pixels ---------------------------------------------------------

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


# --- A weight times a loss ----------------------------------------------------------


@keras.saving.register_keras_serializable("keras_selcal_tests")
class HardExamples(ReweightedLoss):
    def weights(self, batch):
        return 1 + batch.one_minus_p_y


@keras.saving.register_keras_serializable("keras_selcal_tests")
def squared_error(y_true, y_pred):
    return ops.sum(ops.square(ops.one_hot(ops.cast(y_true, "int32"), 5) - y_pred), -1)


def test_a_subclass_defines_its_weights():
    logits, labels = data(24, 5)
    log_p_y = reference.log_softmax(logits)[np.arange(24), labels]
    expected = np.mean((2 - np.exp(log_p_y)) * -log_p_y)
    loss = HardExamples(from_logits=True)
    assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("base", "equal"),
    [
        (keras.losses.SparseCategoricalCrossentropy(), "crossentropy"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), "crossentropy"),
        (squared_error, "brier"),
        (FocalLoss(gamma=0.0), "crossentropy"),
    ],
)
def test_base_losses_equal_the_built_in_ones(base, equal):
    logits, labels = data(24, 5)
    for cls in (AULoss, AURCLoss):
        loss = cls(base_loss=base, from_logits=True)
        expected = float(cls(base_loss=equal, from_logits=True)(labels, logits))
        assert float(loss(labels, logits)) == pytest.approx(expected, rel=1e-5)
        again = cls.from_config(loss.get_config())
        assert float(again(labels, logits)) == pytest.approx(expected, rel=1e-5)


def test_the_base_loss_may_be_reweighted_too():
    logits, labels = data(24, 5)
    inner = FocalLoss(gamma=3.0)
    loss = AULoss(base_loss=inner, from_logits=True, reduction="none")
    expected = numpy(AULoss(from_logits=True, reduction="none")(labels, logits))
    p_y = reference.softmax(logits)[np.arange(24), labels]
    np.testing.assert_allclose(
        numpy(loss(labels, logits)), expected * (1 - p_y) ** 3, rtol=1e-4
    )


# --- Bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_loss", "words"),
    [
        (lambda: AULoss(csf="msq"), ["csf", "msq", "msp", "margin", "neg_entropy"]),
        (lambda: AULoss(csf=3), ["csf", "3"]),
        (lambda: AULoss(coverage=0), ["coverage", "0", "(0, 1]"]),
        (lambda: AULoss(coverage=1.5), ["coverage", "1.5"]),
        (lambda: AULoss(coverage="all"), ["coverage", "all"]),
        (lambda: AULoss(coverage=0.5, threshold=0.5), ["coverage", "threshold"]),
        (lambda: AULoss(coverage=0.75, threshold=0.5), ["coverage", "threshold"]),
        (lambda: AULoss(smoothing=0), ["smoothing", "above 0"]),
        (lambda: AULoss(smoothing=-1), ["smoothing", "-1"]),
        (lambda: AULoss(num_bins=0), ["num_bins", "0"]),
        (lambda: AULoss(num_bins="many"), ["num_bins", "many"]),
        (lambda: AULoss(weight_gradient=1.01), ["weight_gradient", "[0, 1]"]),
        (lambda: AULoss(weight_gradient=-0.1), ["weight_gradient", "-0.1"]),
        (lambda: AULoss(through="rank"), ["through", "rank", "score", "cdf"]),
        (lambda: AULoss(base_loss="mse?"), ["base_loss", "mse?", "crossentropy"]),
        (lambda: AULoss(reduction="product"), ["reduction", "product"]),
        (lambda: AURCLoss(estimator="linear"), ["estimator", "linear", "harmonic"]),
        (lambda: FocalLoss(gamma=-1), ["gamma", "-1"]),
        (lambda: FocalLoss(gamma="35"), ["gamma", "35", "53"]),
        (lambda: InverseFocalLoss(gamma=-1), ["gamma", "-1"]),
        (lambda: DualFocalLoss(gamma=-0.5), ["gamma", "-0.5"]),
        (lambda: DualFocalLoss(variant="best"), ["variant", "best", "released"]),
        (lambda: KDECrossentropy(kind="all"), ["kind", "all", "canonical"]),
        (lambda: KDECrossentropy(bandwidth=0), ["bandwidth", "0", "auto"]),
        (lambda: KDECrossentropy(bandwidth="best"), ["bandwidth", "best", "auto"]),
        (lambda: KDECrossentropy(kde_weight=-1), ["kde_weight", "-1"]),
        (lambda: KDECrossentropy(order=0), ["order", "0"]),
        (lambda: KDECrossentropy(block_size=0), ["block_size", "0", "at least 1"]),
        (lambda: KDECrossentropy(subsample=2.5), ["subsample", "2.5"]),
    ],
)
def test_bad_arguments(make_loss, words):
    with pytest.raises(ValueError) as error:
        make_loss()
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("y_true", "y_pred"),
    [
        ((5,), (4, 3)),
        ((4, 2), (4, 3)),
        ((4, 3, 1), (4, 3)),
        ((4, 2), (4, 1)),
        ((5,), (4,)),
        ((4, 3), (4, 2, 3, 5)),
    ],
)
def test_shapes_that_do_not_fit(y_true, y_pred):
    with pytest.raises(ValueError) as error:
        AULoss()(np.zeros(y_true, "int32"), np.full(y_pred, 0.5, "float32"))
    assert "y_pred" in str(error.value)
    assert str(y_pred) in str(error.value)


def test_weight_that_does_not_fit():
    logits, labels = data(24, 5)
    with pytest.raises(ValueError, match="sample_weight"):
        AULoss(from_logits=True)(labels, logits, sample_weight=np.ones((24, 5)))


def test_threshold_beyond_the_support():
    logits, labels = data(24, 5)
    with pytest.raises(ValueError, match="threshold"):
        AULoss(csf="neg_entropy", threshold=0.5, from_logits=True)(labels, logits)


def test_base_loss_that_reduces_is_refused():
    logits, labels = data(24, 5)
    loss = AULoss(base_loss=lambda y_true, y_pred: ops.mean(y_pred), from_logits=True)
    with pytest.raises(ValueError, match="base_loss"):
        loss(labels, logits)


def test_drag_warns_once():
    logits, labels = data(128, 10)
    loss = AULoss(weight_gradient=1, from_logits=True)
    with pytest.warns(UserWarning, match=r"w=1.*ν=0\.1.*D=1\.5.*k=10"):
        loss(labels, logits)
    loss(labels, logits)
    AULoss(weight_gradient=1, smoothing=1.6, from_logits=True)(labels, logits)


def test_inverse_focal_warns_of_large_gamma():
    InverseFocalLoss(gamma=3.5)
    with pytest.warns(UserWarning, match=r"gamma=4"):
        InverseFocalLoss(gamma=4)
