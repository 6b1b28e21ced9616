"""Calibrators: weights, sigmoid units, multi-label, probabilities, masks and files."""

import math

import keras
import numpy as np
import pytest
from backends import numpy
from keras import layers, ops
from real_data import load_logits
from reference import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from keras_selcal.calibrators import (
    Calibrator,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MetaAcc,
    MetaMis,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)

ALL = {
    "ts": TemperatureScaling,
    "ts_ece": lambda **kw: TemperatureScaling("ece", **kw),
    "vector": VectorScaling,
    "odir": DirichletCalibration,
    "l2": lambda **kw: DirichletCalibration("l2", strength=[1.0, 0.1], **kw),
    "svs": StructuredVectorScaling,
    "sms": StructuredMatrixScaling,
    "histogram": HistogramBinning,
    "adaptive": lambda **kw: HistogramBinning(10, binning="adaptive", **kw),
    "isotonic": IsotonicCalibration,
    "meta_mis": lambda **kw: MetaMis(0.1, seed=3, **kw),
    "meta_acc": lambda **kw: MetaAcc(0.9, seed=3, **kw),
}
MULTI_LABEL = ["ts", "ts_ece", "vector", "svs", "histogram", "adaptive", "isotonic"]
PARAMETRIC = ["vector", "odir", "l2", "svs", "sms"]
# Binning in equal masses may well lower the accuracy: that is another test's matter.
pytestmark = pytest.mark.filterwarnings("ignore:HistogramBinning lowers the accuracy")


def draw(n=600, k=4, scale=3.0, temperature=2.0, seed=0):
    """Logits, and labels drawn from softmax(z/temperature)."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k)).astype("float32")
    cdf = softmax(z / temperature).cumsum(-1)
    return z, np.minimum((rng.random((n, 1)) > cdf).sum(-1), k - 1)


def draw_events(n=800, k=3, seed=0):
    """Logits of independent sigmoids that are too confident, and multi-hot labels."""
    rng = np.random.default_rng(seed)
    z = (4 * rng.normal(size=(n, k)) - 2).astype("float32")
    truth = 1 / (1 + np.exp(-z / np.arange(1.5, 1.5 + k)))
    return z, (rng.random((n, k)) < truth).astype("int64")


def assert_same_fit(one, other, rtol=1e-6, atol=1e-7):
    assert one.parameters.keys() == other.parameters.keys()
    for name, value in one.parameters.items():
        np.testing.assert_allclose(
            other.parameters[name], value, rtol=rtol, atol=atol, err_msg=name
        )


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
    np.testing.assert_allclose(
        numpy(loaded.layers[-1].calibrator(z)), expected, atol=1e-5
    )


# Multi-label


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("name", MULTI_LABEL)
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


# Files and text


@pytest.mark.parametrize("name", ALL)
def test_save_and_load(name, tmp_path):
    z, y = draw()
    calibrator = ALL[name](ignore_class=99).fit(z, y)
    path = tmp_path / "calibrator.npz"
    calibrator.save(path)
    loaded = Calibrator.load(path)
    assert type(loaded) is type(calibrator)
    assert loaded.get_config() == calibrator.get_config()
    assert repr(loaded) == repr(calibrator)
    assert_same_fit(calibrator, loaded, rtol=0, atol=0)
    np.testing.assert_array_equal(numpy(loaded(z)), numpy(calibrator(z)))


@pytest.mark.backend_free
def test_load_refuses_other_files(tmp_path):
    z, y = draw()
    with pytest.raises(ValueError, match="not fitted"):
        TemperatureScaling().save(tmp_path / "unfitted")
    TemperatureScaling().fit(z, y).save(tmp_path / "ts")
    assert TemperatureScaling.load(tmp_path / "ts").fitted
    with pytest.raises(ValueError, match="of a VectorScaling"):
        VectorScaling.load(tmp_path / "ts")
    (tmp_path / "text").write_text("no calibrator")
    (tmp_path / "empty").write_bytes(b"")
    np.savez(tmp_path / "other.npz", z=z)
    np.savez(tmp_path / "pickle.npz", calibrator=np.array([{}], dtype=object))
    for name in ("text", "empty", "other.npz", "pickle.npz"):
        with pytest.raises(ValueError, match=r"`path` must be a file that `Calibrator"):
            Calibrator.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Calibrator.load(tmp_path / "nowhere")


@pytest.mark.backend_free
def test_repr_tells_arguments_and_what_was_fitted():
    z, y = draw()
    calibrator = TemperatureScaling("ece", axis=1)
    assert (
        repr(calibrator) == "<TemperatureScaling(objective='ece', axis=1), not fitted>"
    )
    calibrator = TemperatureScaling().fit(z, y)
    assert repr(calibrator) == (
        f"<TemperatureScaling(objective='nll'), fitted: "
        f"temperature={calibrator.temperature:.4g}, n=600, classes=4>"
    )
    assert "n=" in repr(HistogramBinning().fit(z, y))


def test_predict_proba_is_numpy():
    z, y = draw()
    calibrator = TemperatureScaling().fit(z, y)
    p = calibrator.predict_proba(z)
    assert isinstance(p, np.ndarray)
    np.testing.assert_array_equal(p, numpy(calibrator(z)))


def test_autocast_does_not_round_probabilities():
    if keras.backend.backend() != "torch":
        pytest.skip("torch.autocast exists in PyTorch")
    import torch

    z, y = draw()
    for name in ALL:
        calibrator = ALL[name]().fit(z, y)
        expected = numpy(calibrator(z))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = calibrator(ops.convert_to_tensor(z))
        assert inside.dtype == torch.float32
        np.testing.assert_allclose(numpy(inside), expected, atol=1e-6, err_msg=name)


# Many classes


def draw_many(n, k=1000, seed=0):
    """Logits W f of features f around the classes' directions, too confident."""
    W = 0.4 * np.random.default_rng(99).normal(size=(k, 64))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    f = 1.4 * W[y] + rng.normal(size=(n, 64))
    return (1.4 * f @ W.T).astype("float32"), y


@pytest.fixture(scope="module")
def many():
    return *draw_many(1500), *draw_many(1500, seed=1)


def accuracy_and_nll(p, y):
    of_label = p[np.arange(len(y)), y].astype("float64")
    return (p.argmax(-1) == y).mean(), -np.log(of_label).mean()


@pytest.mark.backend_free
def test_vector_scaling_of_many_classes_is_no_worse_than_the_model(many):
    z, y, test_z, test_y = many
    accuracy, nll = accuracy_and_nll(softmax(test_z), test_y)
    ours = accuracy_and_nll(VectorScaling().fit(z, y).predict_proba(test_z), test_y)
    assert ours[0] > accuracy - 0.01
    assert ours[1] < nll


@pytest.mark.parametrize("make", [HistogramBinning, IsotonicCalibration])
def test_curves_of_many_classes_lose_little_accuracy(many, make):
    z, y, test_z, test_y = many
    accuracy, _ = accuracy_and_nll(softmax(test_z), test_y)
    ours = accuracy_and_nll(make().fit(z, y).predict_proba(test_z), test_y)
    assert ours[0] > accuracy - 0.05
    assert ours[1] < 4


@pytest.mark.backend_free
def test_equal_mass_bins_of_many_classes_warn(many):
    z, y, *_ = many
    with pytest.warns(UserWarning, match=r"from 7\d\.\d % to \d+\.\d %: with 1500"):
        HistogramBinning(binning="adaptive").fit(z, y)


# scikit-learn


def test_temperature_is_scikit_learns():
    x, y = draw(n=400, k=3)
    x = x + np.random.default_rng(3).normal(size=x.shape)
    for classes in (3, 2):
        rows = y < classes
        model = LogisticRegression().fit(x[rows][:100], y[rows][:100])
        z = model.decision_function(x[rows])
        calibrated = CalibratedClassifierCV(
            FrozenEstimator(model), method="temperature"
        )
        calibrated.fit(x[rows], y[rows])
        expected = calibrated.predict_proba(x[rows])
        p = numpy(TemperatureScaling().fit(z, y[rows])(z))
        # scikit-learn's two columns are (−z, z): its 1/T is half of ours.
        p = np.stack([1 - p, p], axis=1) if classes == 2 else p
        np.testing.assert_allclose(p, expected, atol=2e-4)


def test_isotonic_of_one_unit_is_scikit_learns():
    data = load_logits("imdb_probs.npz")
    p, y = data["probs"][:, 1], data["labels"].astype(int)
    calibrator = IsotonicCalibration(from_logits=False).fit(p[::5], y[::5])
    curve = IsotonicRegression(out_of_bounds="clip").fit(p[::5], y[::5])
    difference = np.abs(calibrator.predict_proba(p[1::5]) - curve.predict(p[1::5]))
    # The one sample that ours adds moves a probability by at most 1/(n + 1).
    assert np.quantile(difference, 0.99) < 1 / 5001 + 1e-5


def test_vector_scaling_of_one_unit_is_platt_scaling():
    # scikit-learn's "sigmoid" also smooths the labels, which matters little here.
    z, y = draw_events(n=5000, k=1)
    platt = LogisticRegression(C=1e9, tol=1e-8).fit(z, y[:, 0])
    ours = numpy(VectorScaling(0.0).fit(z, y)(z))[:, 0]
    np.testing.assert_allclose(ours, platt.predict_proba(z)[:, 1], atol=1e-3)
