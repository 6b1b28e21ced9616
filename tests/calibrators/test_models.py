"""Calibrators and models: wrapping, saving, exporting, fitting, and refusals."""

import builtins
import math

import keras
import numpy as np
import pytest
from backends import numpy
from calibrator_data import ALL, as_tensor, draw
from keras import layers, ops
from reference import softmax

from keras_selcal.calibrators import (
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MetaAcc,
    MetaMis,
    TemperatureScaling,
    VectorScaling,
)


@pytest.fixture(scope="module")
def fitted():
    z, y = draw()
    return {name: make().fit(z, y) for name, make in ALL.items()}


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


def test_a_calibrator_takes_what_it_was_fitted_to(tmp_path):
    z, y = draw()
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Softmax()(inputs))
    calibrator = TemperatureScaling().fit_model(model, z, y, verbose=0)
    assert not calibrator.from_logits
    expected = softmax(z / calibrator.temperature)
    calibrator.save(tmp_path / "calibrator.npz")
    for each in (calibrator, TemperatureScaling.load(tmp_path / "calibrator.npz")):
        np.testing.assert_allclose(numpy(each(softmax(z))), expected, atol=1e-5)
        # Without a softmax, a model returns logits, unless it is told otherwise.
        model = keras.Model(inputs, layers.Identity()(inputs))
        other = each.wrap(model, from_logits=True)
        np.testing.assert_allclose(numpy(other(z)), expected, atol=1e-5)
        with pytest.warns(UserWarning, match="taken for logits"):
            each.wrap(model)


def test_a_predict_step_of_the_models_own_is_not_used():
    class Own(keras.Sequential):
        def predict_step(self, *args):
            raise AssertionError

    z, y = draw()
    model = Own([keras.Input((4,)), layers.Identity()])
    found = TemperatureScaling().fit_model(model, z, y, batch_size=64, verbose=0)
    expected = TemperatureScaling().fit(z, y).temperature
    assert found.temperature == pytest.approx(expected, rel=1e-5)


def test_values_at_hand_that_are_not_what_it_was_fitted_to_are_refused(fitted):
    z = draw(seed=1)[0][:50]
    for name in ("ts", "isotonic"):
        with pytest.raises(ValueError, match="`logits` must be logits"):
            fitted[name](softmax(z))
        with pytest.raises(ValueError, match="without a mask"):
            fitted[name](np.ma.masked_less(z, 0))


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
    with pytest.raises(ValueError, match="`output` must be one of 0, 1"):
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
def test_bad_input_is_refused_and_changes_nothing(case):
    z, y = draw(n=300)
    calibrator = TemperatureScaling().fit(z, y)
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
        (lambda: DirichletCalibration("l1"), "regularizer"),
        (lambda: DirichletCalibration(regularization=-1.0), "regularization"),
        (lambda: VectorScaling(regularization=[]), "regularization"),
        (lambda: DirichletCalibration(bias_regularization=-1.0), "bias_regularization"),
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
def test_a_missing_package_is_named(monkeypatch):
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
    with pytest.raises(ImportError, match="pip install scipy`"):
        VectorScaling().fit(z, y)
    with pytest.raises(ImportError, match="pip install scikit-learn`"):
        IsotonicCalibration().fit(z, y)
    # These need neither.
    for calibrator in (TemperatureScaling(), HistogramBinning(), MetaMis()):
        calibrator.fit(z, y)
