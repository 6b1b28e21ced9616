"""What classifiers that abstain and those that answer with sets have in common."""

import math

import keras
import numpy as np
import pytest
from classifier_data import draw, first_half, identity
from keras import layers

from keras_selcal import ConformalClassifier, SelectiveClassifier, TemperatureScaling

TARGETS = {SelectiveClassifier: {"coverage": 0.7}, ConformalClassifier: {}}

pytestmark = pytest.mark.parametrize("kind", TARGETS)


def fit(kind, *data, model=None, calibrator=None):
    classifier = kind(model or identity(), calibrator=calibrator)
    return classifier.fit(*data, **TARGETS[kind], verbose=0)


def test_unfitted_calibrator_is_fitted_on_a_random_half(kind):
    x, y = draw(n=1000)
    given = TemperatureScaling()
    model = keras.Sequential([keras.Input((3,)), layers.Rescaling(3.0)])
    classifier = fit(kind, x, y, model=model, calibrator=given)
    first = first_half(1000)
    expected = TemperatureScaling().fit(3 * x[first], y[first])
    found = classifier.calibrator.temperature
    assert found == pytest.approx(expected.temperature, rel=1e-5)
    assert classifier.record.n == 500
    assert not given.fitted
    p = classifier.predict_proba(x[:9], verbose=0)
    np.testing.assert_allclose(p, expected.predict_proba(3 * x[:9]), atol=1e-5)
    # The rest selects the threshold.
    fitted = fit(kind, x[~first], y[~first], model=model, calibrator=expected)
    assert classifier.threshold == pytest.approx(fitted.threshold, abs=1e-5)
    # A fitted one is left as it is.
    assert fitted.calibrator is expected
    # A second fit starts from the given one again, or its data would be those that the
    # threshold is selected on.
    second = classifier.fit(x / 3, y, **TARGETS[kind], verbose=0)
    assert second.calibrator.temperature == pytest.approx(found / 3, rel=1e-3)
    assert second.record.n == 500


class ByLabel:
    """Data whose slices are those of pandas with an index of floats: the last label of
    a slice is in it.
    """

    iloc = None

    def __init__(self, values):
        self.values, self.shape = values, values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __getitem__(self, rows):
        return self.values[rows.start : rows.stop + 1]


def test_an_index_of_labels_does_not_change_the_data(kind):
    x, y = draw(n=100)
    expected = fit(kind, x, y)
    found = fit(kind, ByLabel(x), ByLabel(y))
    assert found.record.n == 100
    assert found.threshold == expected.threshold
    answers = found.predict(ByLabel(x), batch_size=7, verbose=0)
    assert len(answers.labels) == 100


def test_arrays_do_not_go_with_a_data_set_that_shuffles(kind):
    x, y = draw(n=20)
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        data = torch.utils.data.DataLoader(data, 5, shuffle=True)
    elif backend == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(20).batch(5)
    else:
        pytest.skip("JAX has no data sets of its own")
    classifier = fit(kind, data)
    parts = ["groups"] if kind is SelectiveClassifier else ["groups", "strata"]
    for part in parts:
        for call in (classifier.fit, classifier.evaluate):
            options = TARGETS[kind] if call == classifier.fit else {}
            with pytest.raises(ValueError, match=f"`{part}` must be left out beside"):
                call(data, **{part: np.arange(20) // 2}, **options, verbose=0)


@pytest.mark.parametrize("order", ["alternating", "shuffled"])
def test_the_halves_are_alike_whatever_the_order(kind, order):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, 2000)
    noise = rng.normal(size=(2000, 3))
    # Two cameras, one of which gives difficult images.
    difficult = np.arange(2000) % 2 == 0
    if order == "shuffled":
        # With the seed that everybody has.
        swapped = np.random.default_rng(0).permutation(1000)
        difficult[:1000] = np.sort(difficult[:1000])[swapped]
    x = np.where(difficult, 0.6, 3.0)[:, None] * np.eye(3)[y] + noise
    target = {"risk": 0.2, "delta": 0.1} if kind is SelectiveClassifier else {}
    classifier, again = (
        kind(identity(), calibrator=TemperatureScaling()).fit(
            x[:1000], y[:1000], **target, verbose=0
        )
        for _ in range(2)
    )
    assert again.threshold == classifier.threshold
    figures = classifier.evaluate(x[1000:], y[1000:], verbose=0)
    if kind is SelectiveClassifier:
        assert figures["selective_risk"] < 0.22
    else:
        assert figures["coverage"] == pytest.approx(0.9, abs=0.04)


def test_evaluating_on_the_fitting_data_warns(kind):
    x, y = draw()
    classifier = fit(kind, x, y)
    for same_x, same_y in ((x, y), (x.copy(), y.copy()), (x.copy(), np.eye(3)[y])):
        with pytest.warns(UserWarning, match="evaluated on the data"):
            classifier.evaluate(same_x, same_y, verbose=0)
    other = x.copy()
    other[0, 0] += 1e-3
    classifier.evaluate(other, y, verbose=0)  # a warning would be an error
    batches = [(x[i : i + 100], y[i : i + 100]) for i in range(0, 600, 100)]
    again = fit(kind, iter(batches))
    assert again.threshold == classifier.threshold
    with pytest.warns(UserWarning, match="evaluated on the data"):
        again.evaluate(iter(batches[::-1]), verbose=0)
    again.evaluate(iter(batches[1:]), verbose=0)


def test_a_failed_fit_changes_nothing(kind):
    x, y = draw()
    classifier = fit(kind, x, y, calibrator=TemperatureScaling())
    threshold, calibrator = classifier.threshold, classifier.calibrator
    for bad_x, bad_y in ((x, y + 5), (x * math.nan, y), (x, y[:9])):
        with pytest.raises(ValueError):
            classifier.fit(bad_x, bad_y, **TARGETS[kind], verbose=0)
        assert classifier.threshold == threshold
        assert classifier.calibrator is calibrator


def test_refusals(kind, tmp_path):
    with pytest.raises(ValueError, match="`model` must be"):
        kind("resnet")
    with pytest.raises(ValueError, match="`calibrator` must be"):
        kind(identity(), calibrator="ts")
    x, y = draw()
    for masked in ({"x": np.ma.array(x), "y": y}, {"x": [(np.ma.array(x), y)]}):
        with pytest.raises(ValueError, match="`x` must be an array without a mask"):
            kind(identity()).fit(**masked, **TARGETS[kind], verbose=0)
    classifier = kind(identity())
    for call in (
        lambda: classifier.predict(np.eye(3), verbose=0),
        lambda: classifier.evaluate(np.eye(3), np.arange(3), verbose=0),
        lambda: classifier.save(tmp_path / "a.keras"),
    ):
        with pytest.raises(ValueError, match="call `fit`"):
            call()
    with pytest.raises(ValueError, match="`path` must be a path that ends"):
        classifier.save(tmp_path / "a.h5")
    identity().save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="`path` must be a file saved by"):
        kind.load(tmp_path / "other.keras")
