"""AutoCalibration: the choice, its table, files, models, classifiers and bad input."""

import keras
import numpy as np
import pytest
from backends import numpy
from calibrator_data import draw, draw_events
from keras import layers
from reference import softmax

from keras_selcal import ConformalClassifier, SelectiveClassifier
from keras_selcal.calibrators import (
    AutoCalibration,
    Calibrator,
    DirichletCalibration,
    HistogramBinning,
    MetaMis,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    auto,
)
from keras_selcal.calibrators.auto import compare, held_out, simplest
from keras_selcal.calibrators.data import Labelled

FEW = [TemperatureScaling, HistogramBinning]


def few(**options):
    return [make(**options) for make in FEW]


def biased(n, seed=0):
    """Logits whose classes have a bias that temperature scaling cannot remove."""
    z, y = draw(n=n, temperature=1.0, seed=seed)
    return z + np.array([3.0, -3.0, 0.0, 0.0], "float32"), y


# The choice
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("data", "chosen"),
    [
        (lambda: draw(n=400, temperature=1.0), "Identity"),
        (lambda: draw(n=400, temperature=3.0), "TemperatureScaling"),
        (lambda: biased(400), "StructuredVectorScaling"),
    ],
)
def test_the_simplest_sufficient_candidate_is_chosen(data, chosen):
    z, y = data()
    candidates = [TemperatureScaling(), StructuredVectorScaling()]
    calibrator = AutoCalibration(candidates).fit(z, y)
    assert calibrator.chosen == chosen
    assert type(calibrator.calibrator).__name__ == chosen
    np.testing.assert_array_equal(calibrator(z), calibrator.calibrator(z))
    if chosen == "Identity":
        np.testing.assert_allclose(calibrator(z), softmax(z), rtol=1e-5)
    else:
        plain = type(calibrator.calibrator)().fit(z, y)
        np.testing.assert_array_equal(calibrator(z), plain(z))


@pytest.mark.backend_free
def test_scores_are_the_held_out_losses():
    z, y = draw(n=300)
    calibrator = AutoCalibration(few(), seed=5).fit(z, y)
    data = Labelled(z, y, np.ones(300))
    fold = data.hashes(5) % 5
    losses = {"Identity": -np.log(softmax(z.astype("float64"))[np.arange(300), y])}
    for make in FEW:
        loss = losses[make.__name__] = np.empty(300)
        for number in range(5):
            held = fold == number
            p = make().fit(z[~held], y[~held])(z[held])
            loss[held] = -np.log(p[np.arange(held.sum()), y[held]])
    assert [row.name for row in calibrator.scores] == list(losses)
    best = min(losses.values(), key=np.mean)
    for name, log_loss, error in calibrator.scores:
        difference = losses[name] - best
        assert log_loss == pytest.approx(losses[name].mean(), rel=1e-5)
        expected = difference.std(ddof=1) / np.sqrt(300)
        assert error == pytest.approx(expected, rel=1e-4, abs=1e-9)
    assert calibrator.chosen == "TemperatureScaling"


@pytest.mark.backend_free
def test_compare():
    losses = np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    mean, error = compare(losses, np.array([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(mean, [2, 1])
    # The differences 0, 1, 1 and 2 have the variance 2/3.
    np.testing.assert_allclose(error, [np.sqrt(2 / 3 / 4), 0])


@pytest.mark.backend_free
def test_simplest():
    error = np.array([0.3, 0.3, 0.1, 0.0])
    assert simplest(np.array([0.1, 0.2, 0.2, 0.0]), error) == 1
    assert simplest(np.array([0.1, 0.4, 0.05, 0.0]), error) == 2
    assert simplest(np.array([0.1, 0.4, 0.2, 0.0]), error) == 3
    # The identity must be the best itself.
    assert simplest(np.array([0.0, 0.0, 0.2, 0.1]), error) == 0
    assert simplest(np.zeros(1), np.zeros(1)) == 0


@pytest.mark.backend_free
def test_copies_are_never_held_out_from_each_other():
    # As many copies as folds: a curve that knew the copies would predict them.
    z, y = draw(n=100)
    copies = Labelled(np.repeat(z, 5, 0), np.repeat(y, 5), np.ones(500))
    once = Labelled(z, y, np.full(100, 5.0))
    for make in FEW:
        given = held_out(make(), copies, 0).reshape(100, 5)
        np.testing.assert_allclose(
            given, held_out(make(), once, 0)[:, None] + np.zeros((1, 5)), rtol=1e-5
        )


@pytest.mark.backend_free
def test_candidates_of_one_class_have_names_of_their_own():
    z, y = draw(n=200)
    candidates = [TemperatureScaling(), TemperatureScaling("ece")]
    calibrator = AutoCalibration(candidates).fit(z, y)
    names = [row.name for row in calibrator.scores]
    assert len(set(names)) == 3
    assert "objective='ece'" in names[2]
    assert calibrator.chosen in names[1:]
    assert isinstance(calibrator.calibrator, TemperatureScaling)


@pytest.mark.backend_free
def test_matrices_are_left_out_where_they_cannot_be_fitted(monkeypatch):
    z, y = draw(n=200)
    names = [row.name for row in AutoCalibration().fit(z, y).scores]
    assert "StructuredMatrixScaling" in names
    masked = np.where(np.arange(4) == (y[:, None] + 1) % 4, -np.inf, z)
    for logits, labels in ((z[:, 0], y % 2), (masked, y)):
        others = [row.name for row in AutoCalibration().fit(logits, labels).scores]
        assert "TemperatureScaling" in others
        assert "StructuredMatrixScaling" not in others
        assert "DirichletCalibration" not in others
    monkeypatch.setattr(auto, "_MOST_PRODUCTS", 200 * 4**2 - 1)
    assert len(AutoCalibration().fit(z, y).scores) < len(names)


@pytest.mark.backend_free
def test_without_extras_the_others_are_compared(monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    z, y = draw(n=200)
    names = [row.name for row in AutoCalibration().fit(z, y).scores]
    assert names == ["Identity", "TemperatureScaling"]


def test_several_labels_share_one_choice(tmp_path):
    z, y = draw_events(600)
    candidates = few(multi_label=True)
    calibrator = AutoCalibration(candidates, multi_label=True).fit(z, y)
    assert calibrator.chosen == "TemperatureScaling"
    expected = TemperatureScaling(multi_label=True).fit(z, y)
    np.testing.assert_array_equal(calibrator(z), expected(z))
    calibrator.save(tmp_path / "c.npz")
    loaded = Calibrator.load(tmp_path / "c.npz")
    np.testing.assert_array_equal(loaded(z), expected(z))


@pytest.mark.backend_free
def test_rejections_of_the_chosen_count():
    z, y = draw(n=500)
    calibrator = AutoCalibration([MetaMis(0.1)]).fit(z, y)
    inside = calibrator.calibrator
    np.testing.assert_array_equal(calibrator.accepts(z), inside.accepts(z))


# Files, models and classifiers
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_save_and_load(temperature, tmp_path):
    z, y = draw(n=400, temperature=temperature)
    calibrator = AutoCalibration(few(), seed=1).fit(z, y)
    assert calibrator.chosen == (
        "Identity" if temperature == 1 else "TemperatureScaling"
    )
    calibrator.save(tmp_path / "c.npz")
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    calibrator.wrap(model).save(tmp_path / "model.keras")
    wrapped = keras.saving.load_model(tmp_path / "model.keras")
    for loaded in (
        Calibrator.load(tmp_path / "c.npz"),
        wrapped.layers[-1].calibrator,
    ):
        assert isinstance(loaded, AutoCalibration)
        assert loaded.get_config() == calibrator.get_config()
        assert loaded.chosen == calibrator.chosen
        assert loaded.scores == calibrator.scores
        np.testing.assert_allclose(loaded(z), calibrator(z), rtol=1e-5)
    np.testing.assert_allclose(wrapped.predict(z, verbose=0), calibrator(z), atol=1e-5)


def test_a_default_choice_is_saved(tmp_path):
    z, y = biased(300)
    calibrator = AutoCalibration().fit(z, y)
    calibrator.save(tmp_path / "c.npz")
    loaded = Calibrator.load(tmp_path / "c.npz")
    assert loaded.candidates is None
    assert loaded.chosen == calibrator.chosen
    assert repr(loaded) == repr(calibrator)
    assert f"chosen={calibrator.chosen}" in repr(calibrator)
    assert "not fitted" in repr(AutoCalibration())
    np.testing.assert_array_equal(loaded(z), calibrator(z))


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_classifiers_take_auto(activation, tmp_path):
    z, y = draw(n=400, temperature=3.0)
    model = keras.Sequential([keras.Input((4,)), layers.Activation(activation)])
    classifier = SelectiveClassifier(model, calibrator="auto")
    classifier.fit(z[:300], y[:300], coverage=0.7, verbose=0)
    assert classifier.record.n == 150
    assert classifier.calibrator.chosen == "TemperatureScaling"
    temperature = float(classifier.calibrator.parameters["temperature"])
    expected = softmax(z / temperature)
    p = classifier.predict_proba(z, verbose=0)
    np.testing.assert_allclose(p, expected, atol=1e-4)
    classifier.save(tmp_path / "c.keras")
    loaded = SelectiveClassifier.load(tmp_path / "c.keras")
    assert loaded.calibrator.chosen == "TemperatureScaling"
    assert loaded.calibrator.scores == classifier.calibrator.scores
    np.testing.assert_allclose(loaded.predict_proba(z, verbose=0), p, atol=1e-6)
    sets = ConformalClassifier(model, calibrator="auto").fit(
        z[:300], y[:300], verbose=0
    )
    assert sets.calibrator.chosen == "TemperatureScaling"


def test_auto_of_several_labels():
    z, y = draw_events(300)
    model = keras.Sequential([keras.Input((3,)), layers.Identity()])
    classifier = SelectiveClassifier(model, calibrator="auto", multi_label=True)
    classifier.fit(z, y, coverage=0.8, verbose=0)
    assert isinstance(classifier.calibrator, AutoCalibration)
    assert numpy(classifier.predict_proba(z, verbose=0)).shape == z.shape


# Bad input
@pytest.mark.backend_free
def test_bad_arguments():
    z, y = draw()
    for candidates in (
        TemperatureScaling(),
        "auto",
        [None],
        [TemperatureScaling],
        [TemperatureScaling().fit(z, y)],
        [TemperatureScaling(multi_label=True)],
        [TemperatureScaling(axis=1)],
    ):
        with pytest.raises(ValueError, match="`candidates` must be"):
            AutoCalibration(candidates)
    with pytest.raises(ValueError, match="`multi_label` must be False"):
        DirichletCalibration(multi_label=True)
    with pytest.raises(ValueError, match=r"`calibrator` must be .*auto"):
        SelectiveClassifier(
            keras.Sequential([keras.Input((4,)), layers.Identity()]), calibrator="best"
        )


@pytest.mark.backend_free
def test_samples_that_cannot_be_split_are_refused():
    calibrator = AutoCalibration(few())
    same = np.ones((20, 4))
    with pytest.raises(ValueError, match="cross-validation"):
        calibrator.fit(same, np.arange(20) % 4)
    assert not calibrator.fitted
    with pytest.raises(ValueError, match="at least two classes"):
        calibrator.fit(draw()[0], np.ones(600, int))
    assert calibrator.chosen is None
    assert calibrator.scores == []


@pytest.mark.backend_free
def test_a_rare_class_may_miss_in_a_fold():
    z = np.random.default_rng(0).normal(size=40)
    y = np.zeros(40, int)
    y[z.argmax()] = 1
    calibrator = AutoCalibration([TemperatureScaling(), VectorScaling()]).fit(z, y)
    assert np.isfinite(calibrator(z)).all()
    assert np.isfinite([row.log_loss for row in calibrator.scores]).all()


@pytest.mark.backend_free
def test_nested_and_not_fitted():
    with pytest.raises(ValueError, match="`candidates` must be"):
        AutoCalibration([AutoCalibration()])
    with pytest.raises(ValueError, match="not fitted yet"):
        _ = AutoCalibration().calibrator
