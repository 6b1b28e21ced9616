"""Calibrators: weights, sigmoid units, multi-label, probabilities and masks."""

import math

import keras
import numpy as np
import pytest
from backends import numpy
from calibrator_data import (
    ALL,
    as_tensor,
    assert_same_fit,
    draw,
    draw_events,
)
from keras import layers
from reference import softmax
from sklearn.ensemble import RandomForestClassifier

from keras_selcal.calibrators import (
    Calibrator,
    DirichletCalibration,
    TemperatureScaling,
    VectorScaling,
    dirichlet,
)

MULTI_LABEL = ["ts", "ts_ece", "vector", "svs", "histogram", "adaptive", "isotonic"]
PARAMETRIC = ["vector", "odir", "l2", "svs", "sms"]

# Binning in equal masses may well lower the accuracy: that is another test's matter.
pytestmark = pytest.mark.filterwarnings("ignore:HistogramBinning lowers the accuracy")


# Weights
@pytest.mark.backend_free
@pytest.mark.parametrize("name", ALL)
def test_weights_count_copies(name):
    z, y = draw(n=400)
    w = np.random.default_rng(1).integers(0, 4, 400)
    copies = np.repeat(np.arange(400), w)
    # What stands in a sample of weight 0 does not matter.
    padded, labels = z.copy(), y.copy()
    padded[w == 0], labels[w == 0] = math.nan, 99
    weighted = ALL[name]().fit(padded, labels, sample_weight=w)
    copied = ALL[name]().fit(z[copies], y[copies])
    assert weighted._fitted == copied._fitted
    # The solvers of the parametric fits stop at a tolerance; sums differ in order.
    loose = 1e-3 if name in PARAMETRIC else 1e-6
    assert_same_fit(copied, weighted, rtol=loose, atol=loose)


@pytest.mark.parametrize("name", ["ts", "vector", "adaptive", "isotonic"])
def test_weights_of_multi_label_data_count_copies(name):
    z, y = draw_events(300, 2)
    w = np.random.default_rng(1).integers(0, 4, 300)
    copies = np.repeat(np.arange(300), w)
    weighted = ALL[name](multi_label=True).fit(z, y, sample_weight=w)
    copied = ALL[name](multi_label=True).fit(z[copies], y[copies])
    np.testing.assert_allclose(
        numpy(weighted(z)), numpy(copied(z)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["ts", "odir", "histogram", "isotonic"])
def test_only_ratios_of_small_weights_matter(name):
    z, y = draw(n=200)
    w = np.random.default_rng(1).random(200)
    one, other = (ALL[name]().fit(z, y, sample_weight=s * w) for s in (1e-3, 1e-6))
    assert_same_fit(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.backend_free
def test_soft_labels_count_as_weighted_samples():
    z, y = draw(n=200)
    soft = 0.9 * np.eye(4)[y] + 0.1 * np.eye(4)[(y + 1) % 4]
    doubled = TemperatureScaling().fit(
        np.concatenate([z, z]),
        np.concatenate([y, (y + 1) % 4]),
        sample_weight=np.repeat([9, 1], 200),
    )
    T = TemperatureScaling().fit(z, soft).temperature
    np.testing.assert_allclose(T, doubled.temperature, rtol=1e-6)


@pytest.mark.backend_free
@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_bad_weights_are_refused(weight):
    z, y = draw(n=10)
    w = np.where(np.arange(10) == 3, weight, 1.0)
    with pytest.raises(ValueError, match="`sample_weight` must be"):
        TemperatureScaling().fit(z, y, sample_weight=w)
    with pytest.raises(ValueError, match="at least one sample that counts"):
        TemperatureScaling().fit(z, y, sample_weight=np.zeros(10))


@pytest.mark.backend_free
def test_weights_of_tokens():
    z, y = draw(n=120)
    mask = np.arange(120) % 5 > 0
    expected = TemperatureScaling().fit(z[mask], y[mask]).temperature
    tokens = (z.reshape(6, 20, 4), y.reshape(6, 20))
    given = TemperatureScaling().fit(*tokens, sample_weight=mask.reshape(6, 20))
    assert given.temperature == expected
    ignored = np.where(mask, y, 255).reshape(6, 20)
    given = TemperatureScaling(ignore_class=255).fit(tokens[0], ignored)
    assert given.temperature == expected


def test_fit_model_honours_masks_and_weights():
    z, y = draw(n=240)
    tokens, labels = z.reshape(12, 20, 4), y.reshape(12, 20)
    length = np.random.default_rng(0).integers(3, 20, 12)
    mask = np.arange(20) < length[:, None]
    # Padding by 0, and labels there that no model could learn.
    tokens, labels = tokens * mask[..., None], np.where(mask, labels, 3)
    model = keras.Sequential([keras.Input((20, 4)), layers.Masking()])
    weight = np.random.default_rng(1).integers(0, 3, 12)
    each = (mask * weight[:, None]).ravel()
    expected = TemperatureScaling().fit(z, y, sample_weight=each)
    batches = [
        (tokens[i : i + 5], labels[i : i + 5], weight[i : i + 5]) for i in (0, 5, 10)
    ]
    for data, given in (((tokens, labels), weight), ((iter(batches),), None)):
        calibrator = TemperatureScaling().fit_model(
            model, *data, sample_weight=given, verbose=0
        )
        assert calibrator.temperature == pytest.approx(expected.temperature, rel=1e-6)
        assert calibrator._fitted == expected._fitted


# One sigmoid unit
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_one_unit_equals_two_columns(name, from_logits):
    z, y = draw_events(n=1500, k=1)
    unit = z if from_logits else 1 / (1 + np.exp(-z))
    columns = np.concatenate([0 * z if from_logits else 1 - unit, unit], axis=1)
    two = ALL[name](from_logits=from_logits).fit(columns, y[:, 0])
    expected = numpy(two(columns))[:, 1]
    forms = [
        (unit, y),
        (unit[:, 0], y[:, 0].astype(bool)),
        (unit.reshape(3, 500, 1), y.reshape(3, 500).astype("float32")),
    ]
    for outputs, labels in forms:
        one = ALL[name](from_logits=from_logits).fit(outputs, labels)
        assert_same_fit(two, one, rtol=0, atol=0)
        p = numpy(one(outputs))
        assert p.shape == outputs.shape
        np.testing.assert_array_equal(p.ravel(), expected)
        accepted = numpy(one.accepts(outputs)).ravel()
        np.testing.assert_array_equal(accepted, numpy(two.accepts(columns)))
        if name in PARAMETRIC:
            break  # one fit is enough for the slow ones


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_unit_model_is_wrapped(activation, tmp_path):
    z, y = draw_events(n=300, k=1)
    model = keras.Sequential([keras.Input((1,)), layers.Activation(activation)])
    calibrator = VectorScaling().fit_model(model, z, y, verbose=0)
    expected = numpy(VectorScaling().fit(z, y)(z))
    wrapped = calibrator.wrap(model)
    assert wrapped.output_shape == (None, 1)
    np.testing.assert_allclose(numpy(wrapped(z)), expected, atol=1e-5)
    wrapped.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded(z)), expected, atol=1e-5)
    restored = loaded.layers[-1].calibrator
    np.testing.assert_allclose(numpy(restored(model(z))), expected, atol=1e-5)


# Multi-label
@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("name", [n for n in ALL if n in MULTI_LABEL])
def test_multi_label_calibrates_each_label(name, from_logits, tmp_path):
    z, y = draw_events()
    outputs = z if from_logits else 1 / (1 + np.exp(-z))
    options = {"from_logits": from_logits}
    calibrator = ALL[name](multi_label=True, **options).fit(outputs, y)
    p = numpy(calibrator(outputs))
    assert p.shape == z.shape
    for c in range(3):
        alone = ALL[name](**options).fit(outputs[:, c], y[:, c])
        np.testing.assert_allclose(p[:, c], numpy(alone(outputs[:, c])), atol=1e-6)
    tokens = numpy(calibrator(outputs.reshape(8, 100, 3)))
    np.testing.assert_array_equal(tokens.reshape(-1, 3), p)
    calibrator.save(tmp_path / "file")
    loaded = Calibrator.load(tmp_path / "file")
    np.testing.assert_array_equal(numpy(loaded(outputs)), p)
    assert "labels=3" in repr(loaded)


def test_multi_label_model_is_wrapped():
    z, y = draw_events()
    model = keras.Sequential([keras.Input((3,)), layers.Activation("sigmoid")])
    calibrator = TemperatureScaling(multi_label=True)
    calibrator.fit_model(model, z, y, verbose=0)
    assert calibrator.temperature.shape == (3,)
    expected = 1 / (1 + np.exp(-z / calibrator.temperature))
    wrapped = calibrator.wrap(model)
    np.testing.assert_allclose(numpy(wrapped(z)), expected, atol=1e-5)


@pytest.mark.backend_free
def test_labels_that_never_occur_keep_their_temperature():
    z, y = draw_events()
    y[:, 1] = 0
    with pytest.warns(UserWarning, match=r"always 0 or always 1.*\[1\]"):
        calibrator = TemperatureScaling(multi_label=True).fit(z, y)
    assert calibrator.temperature[1] == 1
    # Entries that are not known can be left out.
    y[:, 1] = -1
    y[:100, 1] = z[:100, 1] > 0
    calibrator = TemperatureScaling(multi_label=True, ignore_class=-1).fit(z, y)
    alone = TemperatureScaling().fit(z[:100, 1], y[:100, 1])
    assert calibrator.temperature[1] == alone.temperature


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "make", [ALL[name] for name in ("odir", "sms", "meta_mis", "meta_acc")]
)
def test_multi_label_is_refused_where_it_makes_no_sense(make):
    with pytest.raises(ValueError, match="`multi_label` must be False: "):
        make(multi_label=True)


@pytest.mark.backend_free
def test_multi_hot_labels_name_the_option():
    z, y = draw_events()
    with pytest.raises(ValueError, match="multi_label=True"):
        TemperatureScaling().fit(z, y)


# Probabilities
@pytest.mark.parametrize("name", ALL)
def test_probabilities_equal_logits(name):
    z, y = draw(n=500)
    p = softmax(z.astype("float64"))
    expected = numpy(ALL[name]().fit(np.log(p), y)(np.log(p)))
    difference = np.abs(numpy(ALL[name](from_logits=False).fit(p, y)(p)) - expected)
    # Isotonic curves have steep steps: rounding moves a few values.
    assert np.quantile(difference, 0.99) < 1e-5


def test_probabilities_of_zero_count_as_half_of_the_smallest():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 5))
    y = (x @ rng.normal(size=(5, 3)) + rng.normal(size=(600, 3))).argmax(-1)
    forest = RandomForestClassifier(25, min_samples_leaf=1, random_state=0)
    p = forest.fit(x[:200], y[:200]).predict_proba(x[200:])
    y = y[200:]
    assert (p == 0).mean() > 0.05
    floor = p[p > 0].min() / 2
    logits = np.log(np.maximum(p, floor))
    for name in ("ts", "vector", "odir", "histogram", "isotonic", "meta_mis"):
        calibrator = ALL[name](from_logits=False).fit(p, y)
        ours = numpy(calibrator(p))
        assert np.isfinite(ours).all()
        assert (ours > 0).all()
        difference = np.abs(ours - numpy(ALL[name]().fit(logits, y)(logits)))
        assert np.quantile(difference, 0.99) < 1e-5


@pytest.mark.backend_free
def test_the_smallest_probability_may_be_the_smallest_number():
    p = np.array([[1.0, 0.0], [1.0, 5e-324], [0.4, 0.6], [0.7, 0.3]])
    calibrator = TemperatureScaling(from_logits=False).fit(p, np.array([1, 0, 1, 0]))
    assert np.isfinite(calibrator.temperature)
    assert (calibrator.predict_proba(p) > 0).all()


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (np.array([[2.0, -1.0], [0.0, 1.0]]), "from_logits=True"),
        (np.array([[0.5, 0.2], [0.0, 1.0]]), "sum to 1"),
        (np.array([0.5, 1.7]), "from_logits=True"),
        (np.array([[0.5, 0.5], [math.nan, 0.5]]), "NaN"),
    ],
)
def test_what_is_no_probability_is_refused(outputs, message):
    with pytest.raises(ValueError, match=message):
        TemperatureScaling(from_logits=False).fit(outputs, np.array([0, 1]))


@pytest.mark.backend_free
def test_sigmoid_probabilities_in_the_place_of_logits_warn():
    z, y = draw_events(k=1)
    with pytest.warns(UserWarning, match="from_logits=False"):
        TemperatureScaling().fit(1 / (1 + np.exp(-z)), y)


# Classes that cannot occur
@pytest.mark.parametrize("name", [n for n in ALL if n not in ("odir", "l2")])
def test_masked_classes_keep_probability_zero(name):
    z, y = draw(n=800)
    rng = np.random.default_rng(2)
    masked = (rng.random(z.shape) < 0.2) & (np.arange(4) != y[:, None])
    # The largest logit stays, so that each row keeps its prediction.
    masked &= z < z.max(-1, keepdims=True)
    infinite, large = np.where(masked, -np.inf, z), np.where(masked, -1e4, z)
    calibrator = ALL[name]().fit(infinite, y)
    p = numpy(calibrator(infinite))
    assert np.isfinite(p).all()
    assert (p[masked] == 0).all()
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    if name in ("ts", "ts_ece"):
        # For the others, −1e4 is a value unlike −∞.
        assert_same_fit(ALL[name]().fit(large, y), calibrator, rtol=1e-5)
    # A class that is masked in every sample has nothing to be fitted on.
    nowhere = np.concatenate([z, np.full((800, 1), -np.inf, "float32")], axis=1)
    p = numpy(ALL[name]().fit(nowhere, y)(nowhere))
    np.testing.assert_array_equal(p[:, 4], 0)
    if name in ("ts", "ts_ece"):
        without = numpy(ALL[name]().fit(z, y)(z))
        np.testing.assert_allclose(p[:, :4], without, atol=1e-4)


def test_dirichlet_refuses_masked_classes():
    z, y = draw()
    calibrator = DirichletCalibration().fit(z, y)
    z[0, (y[0] + 1) % 4] = -np.inf
    with pytest.raises(ValueError, match="DirichletCalibration mixes classes"):
        DirichletCalibration().fit(z, y)
    p = numpy(calibrator(z))
    assert np.isnan(p[0]).all()
    assert np.isfinite(p[1:]).all()


def test_dirichlet_warns_of_a_fit_that_takes_minutes(monkeypatch):
    z, y = draw(n=200)
    DirichletCalibration().fit(z, y)  # a warning would be an error
    monkeypatch.setattr(dirichlet, "_MOST_PRODUCTS", 200 * 16 - 1)
    with pytest.warns(UserWarning, match="many minutes.*StructuredVectorScaling"):
        DirichletCalibration().fit(z, y)


def test_a_calibrator_of_probabilities_refuses_logits_or_gives_nan():
    z, y = draw(n=200)
    p = softmax(z)
    calibrator = TemperatureScaling(from_logits=False).fit(p, y)
    assert np.isfinite(calibrator.predict_proba(p)).all()
    with pytest.raises(ValueError, match="`logits` must be probabilities"):
        calibrator.predict_proba(z)
    # The values of tensors are not looked at.
    assert np.isnan(calibrator.predict_proba(as_tensor(z))).all()


@pytest.mark.parametrize("name", ALL)
def test_nan_gives_nan(name):
    z, y = draw()
    calibrator = ALL[name]().fit(z, y)
    z[3, 1] = math.nan
    p = numpy(calibrator(z))
    assert np.isnan(p[3]).all()
    assert np.isfinite(np.delete(p, 3, axis=0)).all()


# Shapes
@pytest.mark.parametrize("name", ["ts", "odir", "adaptive", "meta_mis"])
def test_pixels_and_channels_first(name):
    z, y = draw(n=480)
    flat = ALL[name]().fit(z, y)
    pixels, labels = z.reshape(5, 8, 12, 4), y.reshape(5, 8, 12)
    last = ALL[name]().fit(pixels, labels)
    first = ALL[name](axis=1).fit(np.moveaxis(pixels, -1, 1), labels)
    assert_same_fit(flat, last)
    assert_same_fit(flat, first)
    expected = numpy(flat(z)).reshape(pixels.shape)
    np.testing.assert_allclose(numpy(last(pixels)), expected, atol=1e-6)
    p = numpy(first(np.moveaxis(pixels, -1, 1)))
    np.testing.assert_allclose(np.moveaxis(p, 1, -1), expected, atol=1e-6)
    assert tuple(first.accepts(np.moveaxis(pixels, -1, 1)).shape) == labels.shape


def test_channels_first_model_is_wrapped():
    z, y = draw(n=480)
    pixels = np.moveaxis(z.reshape(5, 8, 12, 4), -1, 1)
    model = keras.Sequential([keras.Input((4, 8, 12)), layers.Identity()])
    calibrator = TemperatureScaling(axis=1)
    calibrator.fit_model(model, pixels, y.reshape(5, 8, 12), verbose=0)
    wrapped = calibrator.wrap(model)
    assert wrapped.output_shape == (None, 4, 8, 12)
    np.testing.assert_allclose(
        numpy(wrapped(pixels)), numpy(calibrator(pixels)), atol=1e-6
    )
