"""Calibrators: fits, figures published elsewhere, wrapping, bad input."""

import builtins
import itertools
import math

import keras
import numpy as np
import pytest
from backends import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers, ops
from real_data import load_logits
from reference import log_softmax, softmax
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression

from keras_selcal import AULoss, calibrators
from keras_selcal.calibrators import (
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MetaAcc,
    MetaMis,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    finetune,
)
from keras_selcal.calibrators._one_vs_rest import count_below, stack_edges
from keras_selcal.calibrators.temperature_scaling import TEMPERATURE_GRID

ALL = {
    "ts": TemperatureScaling,
    "ts_ece": lambda: TemperatureScaling("ece"),
    "vector": VectorScaling,
    "odir": DirichletCalibration,
    "l2": lambda: DirichletCalibration("l2", strength=0.5, bias_strength=0.1),
    "svs": StructuredVectorScaling,
    "sms": StructuredMatrixScaling,
    "histogram": HistogramBinning,
    "adaptive": lambda: HistogramBinning(10, binning="adaptive"),
    "isotonic": IsotonicCalibration,
    "meta_mis": lambda: MetaMis(0.1, seed=3),
    "meta_acc": lambda: MetaAcc(0.9, seed=3),
}


def draw(n=1000, k=4, scale=3.0, temperature=2.0, seed=0):
    """Logits and labels drawn from softmax(z/temperature)."""
    rng = np.random.default_rng(seed)
    z = scale * rng.normal(size=(n, k)).astype("float32")
    cdf = softmax(z / temperature).cumsum(-1)
    return z, np.minimum((rng.random((n, 1)) > cdf).sum(-1), k - 1)


def nll(z, y, temperature=1.0):
    return -log_softmax(z / temperature)[np.arange(len(y)), y].mean()


def ece(p, y, num_bins=15):
    confidence, right = p.max(-1), p.argmax(-1) == y
    total = 0.0
    for b in range(num_bins):
        inside = (confidence > b / num_bins) & (confidence <= (b + 1) / num_bins)
        total += abs((confidence[inside] - right[inside]).sum())
    return total / len(y)


@pytest.fixture(scope="module")
def fitted():
    z, y = draw()
    return {name: make().fit(z, y) for name, make in ALL.items()}


# Temperature scaling


@pytest.mark.backend_free
@pytest.mark.parametrize("factor", [0.01, 0.3, 1.0, 7.0, 100.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nll_temperature_is_the_minimum(factor, dtype):
    z, y = draw(n=2000, k=7)
    z = (z * factor).astype(dtype)
    T = TemperatureScaling().fit(z, y).temperature
    z = z.astype("float64")
    search = minimize_scalar(
        lambda t: nll(z, y, math.exp(t)),
        bounds=(math.log(1e-3), math.log(1e3)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    np.testing.assert_allclose(T, math.exp(search.x), rtol=2e-6)


@pytest.mark.backend_free
def test_nll_temperature_closed_form():
    # k = 2, one margin m, accuracy a: σ(m/T) = a.
    z = np.tile([[6.0, 0.0]], (10, 1))
    y = np.array([0] * 8 + [1] * 2)
    T = TemperatureScaling().fit(z, y).temperature
    np.testing.assert_allclose(T, 6 / math.log(0.8 / 0.2), rtol=1e-9)


@pytest.mark.backend_free
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(2, 40),
    k=st.sampled_from([2, 3, 1000]),
    factor=st.floats(1e-4, 1e4),
    seed=st.integers(0, 10**6),
)
def test_nll_temperature_never_worse_than_one(n, k, factor, seed):
    rng = np.random.default_rng(seed)
    z = (factor * rng.normal(size=(n, k))).astype("float32")
    y = np.concatenate([[0, 1], rng.integers(0, k, n - 2)])
    T = TemperatureScaling().fit(z, y).temperature
    assert 1e-3 <= T <= 1e3
    at_one = nll(z, y)
    assert nll(z, y, T) <= at_one + 1e-6 * (1 + abs(at_one))


@pytest.mark.backend_free
def test_nll_temperature_at_its_bounds():
    y = np.array([0, 1, 2])
    assert TemperatureScaling().fit(3 * np.eye(3), y).temperature == 1e-3
    assert TemperatureScaling().fit(-3 * np.eye(3), y).temperature == 1e3
    assert TemperatureScaling().fit(np.zeros((3, 3)), y).temperature == 1.0
    # One error that no float32 softmax can see at T = 1.
    z = 1e3 * np.eye(3, dtype="float32")[[0, 1, 2, 2]]
    T = TemperatureScaling().fit(z, np.array([0, 1, 2, 0])).temperature
    p = math.exp(1e3 / T) / (math.exp(1e3 / T) + 2)
    assert p == pytest.approx(0.75, abs=1e-5)


@pytest.mark.backend_free
@pytest.mark.parametrize(("n", "k"), [(500, 2), (777, 10), (60, 1000)])
def test_ece_temperature_is_the_best_of_the_grid(n, k):
    z, y = draw(n, k, scale=2.0, temperature=1.5)
    z = z.astype("float64")
    errors = np.array([ece(softmax(z / T), y) for T in TEMPERATURE_GRID])
    tied = TEMPERATURE_GRID[errors <= errors.min() + 1e-12]
    expected = tied[np.abs(tied - 1).argmin()]
    assert TemperatureScaling("ece").fit(z, y).temperature == expected


@pytest.mark.backend_free
def test_ece_temperature_ties_go_to_the_nearest_to_one():
    # Confidences that are ½ whatever T: every temperature has the same ECE.
    z, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    assert TemperatureScaling("ece").fit(z, y).temperature == 1.0
    assert TEMPERATURE_GRID[0] == 0.1
    assert TEMPERATURE_GRID[-1] == 10.0
    assert len(TEMPERATURE_GRID) == 100


# The other calibrators, against independent fits


@pytest.mark.parametrize("strength", [0.0, 0.1])
def test_vector_scaling_is_the_minimum(strength):
    z, y = draw()
    calibrator = VectorScaling(strength).fit(z, y)
    w, b = calibrator.parameters["W"], calibrator.parameters["b"]
    T = TemperatureScaling().fit(z, y).temperature
    z = z.astype("float64")
    residual = softmax(z * w + b) - np.eye(4)[y]
    slope_w = (residual * z).mean(0) + strength / 4 * 2 * T * (T * w - 1)
    slope_b = residual.mean(0) + strength / 4 * 2 * b
    assert np.abs([slope_w, slope_b]).max() < 5e-5
    np.testing.assert_allclose(numpy(calibrator(z)), softmax(z * w + b), atol=1e-5)


def test_vector_scaling_returns_to_temperature_scaling():
    z, y = draw()
    p = numpy(VectorScaling(1e9).fit(z, y)(z))
    expected = softmax(z / TemperatureScaling().fit(z, y).temperature)
    np.testing.assert_allclose(p, expected, atol=1e-5)


@pytest.mark.backend_free
def test_vector_scaling_chooses_its_strength_by_cross_validation():
    # Logits of which temperature scaling is the whole truth, and others.
    z, y = draw(n=300, k=30)
    assert VectorScaling().fit(z, y).strength_ >= 1
    z, y = draw(n=3000)
    assert VectorScaling().fit(z * [1, 2, 3, 4] + [0, 1, 2, 3], y).strength_ <= 0.01


@pytest.mark.parametrize("make", [StructuredVectorScaling, StructuredMatrixScaling])
def test_structured_scaling_is_the_minimum(make):
    z, y = draw(n=200, k=3)
    strength, n, k = 0.5, 200, 3
    calibrator = make(strength).fit(z, y)
    W, b = calibrator.parameters["W"], calibrator.parameters["b"]
    diagonal = W.ndim == 1
    T = TemperatureScaling().fit(z, y).temperature
    x = np.log((n * softmax(z.astype("float64") / T) + 1 / k) / (n + 1))
    mapped = (x * W if diagonal else x @ W.T) + b
    residual = (softmax(mapped) - np.eye(k)[y]) / n
    slope_b = residual.sum(0) + 2 * strength * k / n * b
    if diagonal:
        slope = (residual * x).sum(0) + 2 * strength * k / n * (W - 1)
    else:
        weight = np.where(np.eye(k), k / n, k * (k - 1) / n)
        slope = residual.T @ x + 2 * strength * weight * (W - np.eye(k))
    assert np.abs(slope).max() < 5e-5
    assert np.abs(slope_b).max() < 5e-5
    np.testing.assert_allclose(numpy(calibrator(z)), softmax(mapped), atol=1e-5)


@pytest.mark.parametrize("kind", ["odir", "l2"])
def test_dirichlet_is_the_minimum(kind):
    z, y = draw(n=200, k=3)
    lam, mu = 0.3, 0.7
    calibrator = DirichletCalibration(kind, strength=lam, bias_strength=mu).fit(z, y)
    x = log_softmax(z)

    def objective(theta):
        W, b = theta[:9].reshape(3, 3), theta[9:]
        penalized = W - np.diag(np.diag(W)) if kind == "odir" else W
        entries = 6 if kind == "odir" else 9
        penalty = lam * (penalized**2).sum() / entries + mu * (b**2).sum() / 3
        return nll(x @ W.T + b, y) + penalty

    ours = np.concatenate(
        [calibrator.parameters["W"].ravel(), calibrator.parameters["b"]]
    )
    best = minimize(objective, ours + 0.01, method="BFGS", options={"gtol": 1e-7})
    assert objective(ours) <= best.fun + 1e-6
    np.testing.assert_allclose(ours, best.x, atol=5e-3)
    p = softmax(x @ ours[:9].reshape(3, 3).T + ours[9:])
    np.testing.assert_allclose(numpy(calibrator(z)), p, atol=1e-5)


@pytest.mark.backend_free
def test_dirichlet_cross_validation_and_defaults():
    z, y = draw(n=120, k=4, temperature=1.0)
    assert DirichletCalibration().fit(z, y).strength_ == 4
    assert DirichletCalibration("l2").fit(z, y).strength_ == 0.4
    # The true map is the identity: too little data for a free W.
    assert DirichletCalibration(strength=[1e-6, 10.0]).fit(z, y).strength_ == 10.0


def smoothed(f, q, n):
    """One more sample, half as predicted and half uniform; then renormalised."""
    p = (n * f + (q + 1 / q.shape[-1]) / 2) / (n + 1)
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("binning", ["uniform", "adaptive"])
@pytest.mark.parametrize("num_bins", [1, 2, 15])
@pytest.mark.filterwarnings("ignore:HistogramBinning lowers the accuracy")
def test_histogram_binning(binning, num_bins):
    z, y = draw(n=400, k=3)
    z = z.astype("float64")
    calibrator = HistogramBinning(num_bins, binning=binning).fit(z, y)
    q = softmax(z).astype("float32").astype("float64")
    f = np.empty_like(q)
    for c in range(3):
        if binning == "uniform":
            edges = np.arange(num_bins + 1) / num_bins
        else:
            ordered = np.sort(q[:, c])
            cut = [j * 400 // num_bins for j in range(1, num_bins)]
            edges = np.array([0, *((ordered[i - 1] + ordered[i]) / 2 for i in cut), 1])
        for low, high in itertools.pairwise(edges):
            inside = (q[:, c] > low) & (q[:, c] <= high)
            h, m = (y[inside] == c).sum(), inside.sum()
            f[inside, c] = (h + q[inside, c]) / (m + 1)
    np.testing.assert_allclose(numpy(calibrator(z)), smoothed(f, q, 400), atol=1e-5)


def test_histogram_binning_keeps_the_probability_in_empty_bins():
    z = np.tile([[4.0, 0.0], [-4.0, 0.0]], (50, 1))
    calibrator = HistogramBinning(4).fit(z, np.tile([0, 1], 50))
    # Nothing was seen in (0.25, 0.5] and (0.5, 0.75].
    q = np.array([[0.6, 0.4]])
    ours = numpy(calibrator(np.log(q)))
    np.testing.assert_allclose(ours, smoothed(q, q, 100), atol=1e-6)


def test_isotonic_is_scikit_learns():
    z, y = draw(n=300, k=3)
    calibrator = IsotonicCalibration().fit(z, y)
    new = 1.5 * draw(n=200, k=3, seed=1)[0]
    q, q_new = softmax(z), softmax(new)
    f = np.stack(
        [
            IsotonicRegression(out_of_bounds="clip")
            .fit(q[:, c], y == c)
            .predict(q_new[:, c])
            for c in range(3)
        ],
        axis=1,
    )
    # Steps between neighbouring samples are steep: rounding moves a few rows.
    difference = np.abs(numpy(calibrator(new)) - smoothed(f, q_new, 300)).max(-1)
    assert np.quantile(difference, 0.98) < 1e-4


@pytest.mark.parametrize("name", ["histogram", "adaptive", "isotonic"])
def test_no_probability_is_zero(name):
    # Class 0 is never predicted with more than 0.02, and occurs once for all that.
    z, y = draw(n=500)
    z[:, 0] -= 20
    y[:] = np.where(np.arange(500) == 0, 0, np.maximum(y, 1))
    p = numpy(ALL[name]().fit(z, y)(z))
    assert p.min() > 1e-5
    assert -np.log(p[np.arange(500), y].astype("float64")).max() < 12


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_count_below_is_searchsorted(m, seed):
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.integers(0, 8, m - (c > 0) * (m > 1)) / 8) for c in range(3)]
    values = rng.integers(0, 9, (50, 3)) / 8
    edges = stack_edges(rows).astype("float32")
    ours = numpy(count_below(ops.convert_to_tensor(edges), as_tensor(values)))
    expected = [np.searchsorted(rows[c], values[:, c]) for c in range(3)]
    np.testing.assert_array_equal(ours, np.stack(expected, 1))


def as_tensor(x):
    return ops.convert_to_tensor(x, dtype="float32")


# Meta-Cal


def test_meta_mis_threshold_and_rejection():
    z, y = draw(n=8000, k=5)
    calibrator = MetaMis(0.1, seed=1).fit(z, y)
    test_z, test_y = draw(n=8000, k=5, seed=9)
    entropy = -(softmax(test_z) * log_softmax(test_z)).sum(-1)
    accepted = entropy < calibrator.threshold
    np.testing.assert_array_equal(numpy(calibrator.accepts(test_z)), accepted)
    p = softmax(test_z / calibrator.temperature)
    p[~accepted] = 0.2
    np.testing.assert_allclose(numpy(calibrator(test_z)), p, atol=1e-5)
    right = test_z.argmax(-1) == test_y
    figures = calibrator.evaluate(test_z, test_y)
    expected = {
        "coverage": accepted.mean(),
        "miscoverage": (~accepted)[right].mean(),
        "accepted_accuracy": right[accepted].mean(),
        "accuracy": right.mean(),
        "uniform_accuracy": np.where(accepted, right, 0.2).mean(),
    }
    assert figures == pytest.approx(expected)
    assert figures["miscoverage"] == pytest.approx(0.1, abs=0.04)
    assert figures["accepted_accuracy"] > figures["accuracy"]


def test_meta_acc_reaches_its_accuracy():
    z, y = draw(n=8000, k=5)
    test_z, test_y = draw(n=8000, k=5, seed=9)
    reached = [
        MetaAcc(0.8, seed=seed).fit(z, y).evaluate(test_z, test_y)["accepted_accuracy"]
        for seed in range(5)
    ]
    assert 0.8 <= np.mean(reached) <= 0.88


@pytest.mark.backend_free
def test_meta_cal_is_seeded():
    z, y = draw()
    first, again, other = (MetaMis(0.1, seed=seed).fit(z, y) for seed in (0, 0, 1))
    assert first.threshold == again.threshold != other.threshold


@pytest.mark.backend_free
def test_meta_acc_tells_the_range_that_it_can_reach():
    told = r"`accuracy`.*\[0\.\d+, \d(\.\d+)?\] on a bag of \d+ samples"
    z, y = draw(n=5000)
    with pytest.raises(ValueError, match=told):
        MetaAcc(0.2).fit(z, y)  # less than it has
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=told):
        MetaAcc(0.9).fit(z, rng.integers(0, 4, 5000))  # right by chance


@pytest.mark.backend_free
def test_meta_mis_needs_correct_samples():
    with pytest.raises(ValueError, match="at least 10"):
        MetaMis().fit(3 * np.eye(3), np.array([0, 1, 2]))


# What holds for all


@pytest.mark.parametrize("name", ALL)
def test_probabilities(name, fitted):
    calibrator = fitted[name]
    z = draw(seed=1)[0][:12].reshape(2, 6, 4)
    z[0, 0], z[0, 1] = [1e4, 0, 0, -1e4], 0
    p = numpy(calibrator(z))
    assert p.shape == z.shape
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)
    half = calibrator(ops.cast(as_tensor(z), "bfloat16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"


@pytest.mark.parametrize("name", ALL)
def test_labels_of_every_form_give_the_same_fit(name, fitted):
    z, y = draw()
    forms = [y[:, None], np.eye(4)[y], ops.convert_to_tensor(y.astype("int32"))]
    for labels in forms:
        again = ALL[name]().fit(as_tensor(z), labels)
        for key, value in fitted[name].parameters.items():
            np.testing.assert_allclose(again.parameters[key], value, rtol=1e-6)
        if name in ("odir", "l2", "vector"):
            break  # a second fit is enough for the slow ones


# One for each way of applying, and each kind of configuration.
@pytest.mark.parametrize("name", ["ts_ece", "l2", "adaptive", "isotonic", "meta_acc"])
def test_wrapped_model_is_saved_and_loaded(name, fitted, tmp_path):
    calibrator = fitted[name]
    z = draw(seed=1)[0][:50]
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="head")])
    model.layers[0].set_weights([2 * np.eye(4), np.zeros(4)])
    wrapped = calibrator.wrap(model)
    expected = numpy(calibrator(2 * z))
    np.testing.assert_allclose(numpy(wrapped(z)), expected, atol=1e-5)
    assert not wrapped.layers[-1].trainable_weights
    path = tmp_path / "wrapped.keras"
    wrapped.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_allclose(loaded.predict(z, verbose=0), expected, atol=1e-5)
    restored = loaded.layers[-1].calibrator
    assert restored.get_config() == calibrator.get_config()
    np.testing.assert_allclose(numpy(restored(2 * z)), expected, atol=1e-5)


def test_wrap_takes_the_logarithm_of_a_softmax(fitted):
    z = draw(seed=1)[0][:50]
    inputs = keras.Input((4,))
    for outputs in (
        layers.Softmax()(inputs),
        layers.Activation("softmax")(inputs),
        ops.softmax(inputs),
        keras.Sequential([layers.Identity(), layers.Softmax()])(inputs),
    ):
        wrapped = fitted["odir"].wrap(keras.Model(inputs, outputs))
        np.testing.assert_allclose(
            numpy(wrapped(z)), numpy(fitted["odir"](z)), atol=1e-5
        )
    model = keras.Model(inputs, layers.Identity()(inputs))
    told = fitted["ts"].wrap(model, from_logits=False)
    p = softmax(z)
    expected = softmax(np.log(p) / fitted["ts"].temperature)
    np.testing.assert_allclose(numpy(told(p)), expected, atol=1e-5)


def test_wrap_under_mixed_precision_and_several_inputs(fitted):
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    outputs = layers.Add(dtype="mixed_bfloat16")([inputs["a"], inputs["b"]])
    wrapped = fitted["ts"].wrap(keras.Model(inputs, outputs))
    z = draw(seed=1)[0][:50]
    p = wrapped.predict({"a": z, "b": np.zeros_like(z)}, verbose=0)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-5)


def test_wrap_refuses_what_it_cannot_wrap(fitted):
    class Subclassed(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match=r"`model` must be a functional"):
        fitted["ts"].wrap(Subclassed())
    sequential = keras.Sequential([keras.Input((4,)), Subclassed()])
    assert fitted["ts"].wrap(sequential).output_shape == (None, 4)
    inputs = keras.Input((4,))
    with pytest.raises(ValueError, match="one output"):
        fitted["ts"].wrap(keras.Model(inputs, [inputs, 2 * inputs]))
    with pytest.raises(ValueError, match="4 classes"):
        fitted["ts"].wrap(keras.Sequential([keras.Input((3,)), layers.Identity()]))


def test_wrapped_model_is_exported(fitted, tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("SavedModel export without TensorFlow installed")
    import tensorflow as tf

    z = draw(seed=1)[0][:5]
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    for name in ("ts", "isotonic", "meta_mis"):
        fitted[name].wrap(model).export(tmp_path / name, verbose=False)
        artifact = tf.saved_model.load(str(tmp_path / name))
        served = artifact.serve(z)
        np.testing.assert_allclose(numpy(served), numpy(fitted[name](z)), atol=1e-5)


@pytest.mark.parametrize("name", ["ts", "isotonic", "meta_mis"])
@pytest.mark.filterwarnings("ignore")
def test_wrapped_model_is_exported_as_onnx(name, fitted, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    wrapped = fitted[name].wrap(model)
    z = draw(seed=1)[0][:5]
    expected = numpy(wrapped(z))  # Keras exports what has been called
    path = str(tmp_path / "wrapped.onnx")
    wrapped.export(path, format="onnx", verbose=False)
    session = runtime.InferenceSession(path)
    (p,) = session.run(None, {session.get_inputs()[0].name: z})
    np.testing.assert_allclose(p, expected, atol=1e-5)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, size):
        super().__init__()
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return math.ceil(len(self.x) / self.size)

    def __getitem__(self, i):
        rows = slice(i * self.size, (i + 1) * self.size)
        return self.x[rows], self.y[rows]


def test_fit_model(capsys):
    z, y = draw(n=300)
    expected = TemperatureScaling().fit(z, y).temperature
    for last in (layers.Identity(), layers.Softmax()):
        model = keras.Sequential([keras.Input((4,)), last])
        batches = Batches(z, y, 128)
        generator = (batches[i] for i in range(len(batches)))
        for data in ((z, y), (batches,), (generator,)):
            calibrator = TemperatureScaling().fit_model(model, *data, verbose=0)
            assert calibrator.temperature == pytest.approx(expected, rel=1e-5)
    assert capsys.readouterr().out == ""
    TemperatureScaling().fit_model(model, batches)
    assert "3/3" in capsys.readouterr().out


def test_fit_model_of_a_data_set_that_shuffles():
    z, y = draw(n=300)
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((z, y)).shuffle(300).batch(64)
    elif backend == "torch":
        from torch.utils.data import DataLoader

        rows = list(zip(z, y, strict=True))
        data = DataLoader(rows, batch_size=64, shuffle=True)
    else:
        pytest.skip("the data sets that shuffle are TensorFlow's and PyTorch's")
    calibrator = TemperatureScaling().fit_model(model, data, verbose=0)
    expected = TemperatureScaling().fit(z, y).temperature
    assert calibrator.temperature == pytest.approx(expected, rel=1e-5)


def test_fit_model_refuses():
    z, y = draw(n=10)
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    with pytest.raises(ValueError, match="`y` must be the labels"):
        TemperatureScaling().fit_model(model, z, verbose=0)
    with pytest.raises(ValueError, match="`y` must be left out"):
        TemperatureScaling().fit_model(model, Batches(z, y, 5), y, verbose=0)
    with pytest.raises(ValueError, match="at least one batch"):
        TemperatureScaling().fit_model(model, iter([]), verbose=0)


EYE = 3 * np.eye(3)
WHOLE = "`labels` must be whole class indices"
BAD = {
    "label too large": (EYE, [0, 1, 3], WHOLE),
    "label negative": (EYE, [0, 1, -1], WHOLE),
    "label fractional": (EYE, [0, 1, 1.5], WHOLE),
    "label NaN": (EYE, [0, 1, math.nan], WHOLE),
    "multi-hot labels": (EYE, np.ones((3, 3)), "multi_label=True"),
    "NaN": (np.where(EYE, math.nan, 0), [0, 1, 2], "`logits` must be finite"),
    "infinity": (np.where(EYE, math.inf, 0), [0, 1, 2], "`logits` must be finite"),
    "label masked": (np.where(EYE, -math.inf, 0), [0, 1, 2], "that can occur"),
    "all masked": (np.full((3, 3), -math.inf), [0, 1, 2], "at least one class"),
    "probabilities": (softmax(EYE), [0, 1, 2], "from_logits=False"),
    "no sample": (np.zeros((0, 3)), np.zeros(0), "at least one sample"),
    "one class": (EYE, [1, 1, 1], "at least two classes"),
    "one column, one class": (np.zeros((3, 1)), [0, 0, 0], "at least two classes"),
    "labels -1 and 1": (np.zeros((3, 1)), [1, -1, 1], "`labels` must be 0 or 1"),
    "one row": (np.zeros(3), [0], "one label for each sample"),
    "lengths": (EYE, [0, 1], "`labels` must hold class indices"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", ["ts", "isotonic", "meta_mis"])
def test_bad_input_is_refused_and_changes_nothing(case, name):
    z, y = draw(n=300)
    calibrator = ALL[name]().fit(z, y)
    before = dict(calibrator.parameters)
    logits, labels, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        calibrator.fit(logits, np.array(labels))
    assert calibrator.parameters == before
    assert numpy(calibrator(z)).shape == z.shape


@pytest.mark.backend_free
def test_failed_fit_of_a_target_changes_nothing():
    z, y = draw(n=4000)
    calibrator = MetaAcc(0.9).fit(z, y)
    before = (calibrator.threshold, calibrator.temperature)
    with pytest.raises(ValueError, match="`accuracy`"):
        calibrator.fit(z, np.roll(z.argmax(-1), 1))
    assert (calibrator.threshold, calibrator.temperature) == before


def test_unfitted_and_wrong_number_of_classes(fitted):
    with pytest.raises(ValueError, match="not fitted"):
        TemperatureScaling()(np.eye(3))
    with pytest.raises(ValueError, match="4 classes"):
        fitted["ts"](np.eye(3))


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: TemperatureScaling("brier"), "objective"),
        (lambda: DirichletCalibration("l1"), "penalty"),
        (lambda: DirichletCalibration(strength=-1.0), "strength"),
        (lambda: VectorScaling(strength=[]), "strength"),
        (lambda: DirichletCalibration(bias_strength=-1.0), "bias_strength"),
        (lambda: HistogramBinning(0), "num_bins"),
        (lambda: HistogramBinning(binning="equal"), "binning"),
        (lambda: MetaMis(0.0), "miscoverage"),
        (lambda: MetaMis(1.0), "miscoverage"),
        (lambda: MetaAcc(1.1), "accuracy"),
        (lambda: MetaAcc(0.9, seed=-1), "seed"),
    ],
)
def test_bad_arguments(make, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        make()


@pytest.mark.backend_free
def test_missing_package_names_the_extra(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith(("scipy", "sklearn")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    def no_module(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", no_module)
    monkeypatch.setattr(builtins, "__import__", missing)
    z, y = draw(n=300)
    with pytest.raises(ImportError, match=r"scipy.*keras-selcal\[calibrators\]"):
        VectorScaling().fit(z, y)
    with pytest.raises(ImportError, match=r"scikit-learn.*keras-selcal\[calibrators\]"):
        IsotonicCalibration().fit(z, y)
    # These need neither.
    for calibrator in (TemperatureScaling(), HistogramBinning(), MetaMis()):
        calibrator.fit(z, y)


# Fine-tuning


def test_finetune_trains_a_copy():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)).astype("float32"), rng.integers(0, 3, 64)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    before = model.get_weights()
    tuned = finetune(model, x, y, epochs=2, learning_rate=0.1, verbose=0)
    for old, new, kept in zip(
        before, tuned.get_weights(), model.get_weights(), strict=True
    ):
        assert np.abs(old - new).max() > 1e-4
        np.testing.assert_array_equal(old, kept)
    assert len(tuned.history.history["loss"]) == 2
    assert tuned.loss.from_logits
    for mismatched in (AULoss(from_logits=False), "au_loss"):
        with pytest.raises(
            ValueError, match="`loss` must be one with from_logits=True"
        ):
            finetune(model, x, y, loss=mismatched)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    sgd = keras.optimizers.SGD(0.0)
    still = finetune(model, Batches(x, y, 32), loss=loss, optimizer=sgd, verbose=0)
    np.testing.assert_array_equal(still.get_weights()[0], before[0])


@pytest.mark.backend_free
def test_every_public_name_is_exported():
    for name in calibrators.__all__:
        assert getattr(calibrators, name) is not None


# Figures published elsewhere


@pytest.fixture(scope="module")
def resnet110():
    data = load_logits("markus93_resnet110_c10_logits.npz")
    return [data[f"{s}_{w}"] for s in ("val", "test") for w in ("logits", "labels")]


def log_loss(p, y):
    return -np.log(p[np.arange(len(y)), y.astype(int)].astype("float64")).mean()


def test_temperature_scaling_on_cifar10(resnet110):
    z, y, test_z, test_y = resnet110
    calibrator = TemperatureScaling().fit(z, y)
    p = numpy(calibrator(test_z))
    assert calibrator.temperature == pytest.approx(2.395, abs=5e-4)
    assert log_loss(p, test_y) == pytest.approx(0.209261, abs=1e-6)
    assert 100 * ece(p, test_y) == pytest.approx(1.1321, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "published", "rel"),
    [
        (VectorScaling, 0.206245, 0.01),
        (DirichletCalibration, 0.205106, 0.01),
        (lambda: DirichletCalibration("l2"), 0.203025, 0.01),
        (StructuredVectorScaling, 0.20682, 0.002),
        (StructuredMatrixScaling, 0.20327, 0.002),
    ],
)
def test_parametric_calibrators_on_cifar10(resnet110, make, published, rel):
    z, y, test_z, test_y = resnet110
    p = numpy(make().fit(z, y)(test_z))
    assert log_loss(p, test_y) == pytest.approx(published, rel=rel)


def test_temperature_by_ece_on_cifar100():
    data = load_logits("mukhoti_cifar100_resnet50_logits.npz")
    calibrator = TemperatureScaling("ece").fit(data["val_logits"], data["val_labels"])
    p = numpy(calibrator(data["test_logits"]))
    assert calibrator.temperature == 1.1
    assert 100 * ece(p, data["test_labels"].ravel()) == pytest.approx(3.64, abs=5e-3)


@pytest.mark.parametrize("kind", ["mis", "acc"])
def test_meta_cal_on_mnist(kind):
    train = load_logits("metacal_mnist_train-logits.npz")
    test = load_logits("metacal_mnist_test-logits.npz")
    z, y = test["logits"], test["targets"]
    errors, figures = [], []
    for seed in range(10):
        calibrator = (
            MetaMis(0.05, seed=seed) if kind == "mis" else MetaAcc(0.999, seed=seed)
        )
        calibrator.fit(train["logits"], train["targets"])
        errors.append(100 * ece(numpy(calibrator(z)), y))
        figures.append(calibrator.evaluate(z, y))
    if kind == "mis":
        miscoverage = np.mean([f["miscoverage"] for f in figures])
        assert miscoverage == pytest.approx(0.05, abs=0.01)
        assert np.mean(errors) == pytest.approx(0.32, abs=0.1)
    else:
        accuracy = np.mean([f["accepted_accuracy"] for f in figures])
        assert accuracy == pytest.approx(0.999, abs=0.001)
        assert np.mean(errors) == pytest.approx(0.30, abs=0.1)
