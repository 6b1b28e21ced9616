"""PriorCorrection: closed forms, the estimate, its test, chains and bad input."""

import itertools

import keras
import numpy as np
import pytest
from backends import numpy
from calibrator_data import draw
from keras import layers, ops
from reference import softmax
from scipy import stats

from keras_selcal import ConformalClassifier, SelectiveClassifier
from keras_selcal.calibrators import (
    Calibrator,
    PriorCorrection,
    TemperatureScaling,
)
from keras_selcal.calibrators.prior_correction import chi_square_tail

SOURCE = np.array([0.4, 0.3, 0.2, 0.1])
TARGET = np.array([0.1, 0.2, 0.3, 0.4])


def shifted(n=1000, target=TARGET, source=SOURCE, seed=0, noise=1.0):
    """Returns the exact logits, for `source`, of samples drawn with `target`, and
    their labels: z_c = ln s_c + ln of the density of class c.
    """
    rng = np.random.default_rng(seed)
    k = len(source)
    y = rng.choice(k, n, p=target)
    x = np.eye(k)[y] + noise * rng.normal(size=(n, k))
    return np.log(source) + x / noise**2, y


def em(p, source, weight, alpha, steps=200_000):
    """The fixed point by its definition: posterior probabilities, then their mean."""
    k = len(source)
    target = source.copy()
    for _ in range(steps):
        posterior = p * target / source
        posterior /= posterior.sum(axis=1, keepdims=True)
        counts = weight @ posterior + alpha * k * source
        new = counts / (weight.sum() + alpha * k)
        if np.abs(new - target).max() < 1e-14:
            break
        target = new
    return new


# The formula
@pytest.mark.parametrize("from_logits", [True, False])
def test_probabilities_are_multiplied_by_the_ratio(from_logits):
    z, _ = draw(n=50)
    p = softmax(z.astype("float64"))
    expected = p * TARGET / SOURCE
    expected /= expected.sum(-1, keepdims=True)
    given = z if from_logits else p.astype("float32")
    correction = PriorCorrection(SOURCE, TARGET, from_logits=from_logits)
    assert correction.fitted
    assert correction.p_value is None
    np.testing.assert_allclose(correction(given), expected, rtol=1e-5)
    tensor = correction(ops.convert_to_tensor(given))
    assert ops.is_tensor(tensor)
    np.testing.assert_allclose(numpy(tensor), expected, rtol=1e-5, atol=1e-7)


def test_one_unit_is_two_columns():
    z = np.linspace(-4, 4, 9).astype("float32")
    s, t = 0.3, 0.9
    expected = 1 / (1 + np.exp(-z) * (1 - t) / t * s / (1 - s))
    correction = PriorCorrection(s, t)
    np.testing.assert_allclose(correction(z), expected, rtol=1e-5)
    np.testing.assert_allclose(correction(z[:, None])[:, 0], expected, rtol=1e-5)
    two = PriorCorrection([1 - s, s], [1 - t, t])(np.stack([0 * z, z], axis=1))
    np.testing.assert_allclose(two[:, 1], expected, rtol=1e-5)
    np.testing.assert_allclose(correction.target, [0.1, 0.9])


@pytest.mark.parametrize("axis", [-1, 1])
def test_labels_of_multi_label_data_are_corrected_one_by_one(axis, tmp_path):
    s, t = np.array([0.1, 0.5, 0.3]), np.array([0.2, 0.4, 0.3])
    z = np.random.default_rng(0).normal(size=(20, 5, 3)).astype("float32")
    correction = PriorCorrection(s, t, multi_label=True, axis=axis)
    np.testing.assert_allclose(correction.target, t)
    given = np.moveaxis(z, -1, axis)
    p = np.moveaxis(correction(given), axis, -1)
    for c in range(3):
        alone = PriorCorrection(s[c], t[c])(z[..., c].ravel())
        np.testing.assert_allclose(p[..., c].ravel(), alone, rtol=1e-5)
    tensor = numpy(correction(ops.convert_to_tensor(given)))
    np.testing.assert_allclose(np.moveaxis(tensor, axis, -1), p, atol=1e-6)
    correction.save(tmp_path / "c.npz")
    again = Calibrator.load(tmp_path / "c.npz")
    np.testing.assert_array_equal(again(given), correction(given))


def test_source_equal_to_target_changes_nothing():
    z, _ = draw(n=20)
    p = PriorCorrection(SOURCE, SOURCE)(z)
    np.testing.assert_allclose(p, softmax(z), rtol=1e-6)


def test_a_frequency_of_zero_and_a_masked_class_have_probability_zero():
    z, _ = draw(n=20)
    z[:, 1] = -np.inf
    correction = PriorCorrection(SOURCE, [0.5, 0.2, 0.3, 0.0])
    for p in (correction(z), numpy(correction(ops.convert_to_tensor(z)))):
        assert (p[:, [1, 3]] == 0).all()
        np.testing.assert_allclose(p.sum(-1), 1, atol=1e-6)


def test_nan_makes_the_row_nan_and_no_other():
    z, _ = draw(n=6)
    z[2, 1] = np.nan
    correction = PriorCorrection(SOURCE, TARGET)
    for p in (correction(z), numpy(correction(ops.convert_to_tensor(z)))):
        assert np.isnan(p[2]).all()
        assert np.isfinite(np.delete(p, 2, axis=0)).all()


def test_saturated_logits_and_half_precision():
    z = np.array([[1e4, 0, 0, -1e4], [0, 0, 0, 0]], "float32")
    correction = PriorCorrection(SOURCE, TARGET)
    ratio = TARGET / SOURCE
    expected = [[1, 0, 0, 0], ratio / ratio.sum()]
    np.testing.assert_allclose(correction(z), expected, atol=1e-6)
    half = correction(ops.cast(ops.convert_to_tensor(z), "bfloat16"))
    assert keras.backend.standardize_dtype(half.dtype) == "float32"
    np.testing.assert_allclose(numpy(half), expected, atol=1e-6)


# Frequencies of every form
@pytest.mark.backend_free
def test_forms_of_frequencies():
    labels = np.repeat(np.arange(4), [4, 3, 2, 1])
    for source in (labels, labels[:, None], labels.astype("uint8"), list(SOURCE)):
        np.testing.assert_allclose(PriorCorrection(source, TARGET).source, SOURCE)
    ignoring = PriorCorrection(np.append(labels, 255), ignore_class=255)
    np.testing.assert_allclose(ignoring.source, SOURCE)
    # A target's labels need not have every class.
    np.testing.assert_allclose(
        PriorCorrection(SOURCE, [0, 0, 1]).target, [2 / 3, 1 / 3, 0, 0]
    )
    third = PriorCorrection(np.array([1 / 3] * 3, "float16"))  # they sum to 0.9995
    np.testing.assert_allclose(third.source, 1 / 3)
    np.testing.assert_allclose(PriorCorrection(np.array([True, False] * 5)).source, 0.5)
    multi_hot = np.array([[0, 1], [1, 1], [0, 0], [0, 1]])
    several = PriorCorrection(multi_hot, [0.5, 0.5], multi_label=True)
    np.testing.assert_allclose(several.source, [0.25, 0.75])


@pytest.mark.backend_free
def test_class_weights_multiply_the_frequencies():
    weights = {0: 1 / 0.4, 1: 1 / 0.3, 2: 5.0, 3: 10.0}
    balanced = PriorCorrection(SOURCE, SOURCE, class_weight=weights)
    np.testing.assert_allclose(balanced.source, 0.25)
    # As in Keras, a class that is not in the dict has weight 1.
    part = PriorCorrection(SOURCE, class_weight={3: 10.0})
    np.testing.assert_allclose(part.source, np.array([0.4, 0.3, 0.2, 1.0]) / 1.9)
    # Classes of other types, as scikit-learn's `compute_class_weight` may return them.
    for one in (1.0, np.float64(1), np.int64(1), True):
        other = PriorCorrection(SOURCE, class_weight={one: 2.0})
        np.testing.assert_allclose(other.source, np.array([0.4, 0.6, 0.2, 0.1]) / 1.3)
    again = PriorCorrection.from_config(balanced.get_config())
    np.testing.assert_allclose(again.source, balanced.source)


def test_class_weights_of_keras_are_undone():
    # Eight inputs, each with its own frequency of class 1: a model with one weight for
    # each input has the exact probabilities, with class weights and without.
    rng = np.random.default_rng(0)
    cell = rng.integers(0, 8, 4000)
    y = (rng.random(4000) < np.linspace(0.1, 0.6, 8)[cell]).astype("int64")
    weights = {0: 1.0, 1: 6.0}
    model = keras.Sequential([keras.Input((8,)), layers.Dense(1, use_bias=False)])
    model.compile(
        keras.optimizers.SGD(20.0, momentum=0.5),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    x = np.eye(8, dtype="float32")[cell]
    model.fit(x, y, class_weight=weights, batch_size=4000, epochs=60, verbose=0)
    frequency = np.bincount(cell, y, 8) / np.bincount(cell)
    inputs = np.eye(8, dtype="float32")
    weighted = 6 * frequency / (1 + 5 * frequency)
    z = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(1 / (1 + np.exp(-z[:, 0])), weighted, atol=2e-3)
    correction = PriorCorrection(y, y, class_weight=weights)
    np.testing.assert_allclose(correction(z)[:, 0], frequency, atol=2e-3)


# The estimate
@pytest.mark.backend_free
@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0])
def test_estimate_is_the_fixed_point_of_em(alpha):
    z, _ = shifted()
    w = np.random.default_rng(1).integers(0, 4, len(z))
    correction = PriorCorrection(SOURCE, pseudo_count=alpha).fit(z, sample_weight=w)
    p = softmax(z)
    expected = em(p, SOURCE, w.astype(float), alpha)
    np.testing.assert_allclose(correction.target, expected, rtol=1e-4)
    ratio = (p * expected / SOURCE).sum(axis=1)
    p_value = stats.chi2.sf(2 * (w @ np.log(ratio)), 3)
    assert correction.p_value == pytest.approx(p_value, rel=1e-3)


@pytest.mark.backend_free
@pytest.mark.parametrize("k", [2, 4, 100])
def test_estimate_finds_the_target(k):
    rng = np.random.default_rng(k)
    source, target = rng.dirichlet(np.full(k, 5.0)), rng.dirichlet(np.full(k, 1.0))
    z, y = shifted(5000, target, source, noise=0.4)
    correction = PriorCorrection(source).fit(z)
    assert correction.p_value < 1e-6
    # The frequencies of labels would be off by 0.8 √(k/n) or less, on average.
    assert np.abs(correction.target - target).sum() < 2 * np.sqrt(k / 5000)
    p = correction(z)
    assert p.dtype == "float64"
    # The corrected probabilities are calibrated: their mean is that of the labels.
    np.testing.assert_allclose(
        p.mean(axis=0), np.bincount(y, minlength=k) / len(y), atol=0.01
    )
    # ... and better than those of the model.
    nll = [-np.log(q[np.arange(len(y)), y]).mean() for q in (softmax(z), p)]
    assert nll[1] < nll[0]


@pytest.mark.backend_free
@pytest.mark.parametrize(("k", "n"), [(2, 100), (10, 100), (100, 500)])
def test_without_shift_the_test_rarely_rejects(k, n):
    source = np.random.default_rng(k).dirichlet(np.full(k, 3.0))
    rejected = 0
    for seed in range(100):
        z, _ = shifted(n, source, source, seed=seed, noise=0.4)
        correction = PriorCorrection(source).fit(z)
        changed = (correction.target != correction.source).any()
        assert (correction.p_value <= 0.05) == changed
        rejected += correction.p_value <= 0.05
    # The 99.9 % quantile of Binomial(100, 0.05) is 13.
    assert rejected <= 13


@pytest.mark.backend_free
def test_significance_of_one_accepts_every_estimate():
    z, _ = shifted(50, SOURCE)
    gated = PriorCorrection(SOURCE).fit(z)
    assert (gated.target == gated.source).all()
    free = PriorCorrection(SOURCE, significance=1.0).fit(z)
    assert free.p_value > 0.05
    assert (free.target != free.source).all()


@pytest.mark.backend_free
def test_one_sample_moves_the_estimate_little():
    correction = PriorCorrection(SOURCE, significance=1.0).fit(
        np.array([[99.0, 0, 0, 0]])
    )
    expected = (np.eye(4)[0] + 4 * SOURCE) / 5
    np.testing.assert_allclose(correction.target, expected, rtol=1e-5)


@pytest.mark.backend_free
def test_weights_count_copies_and_labels_do_not_matter():
    z, y = shifted(300)
    w = np.random.default_rng(1).integers(0, 3, 300)
    weighted = PriorCorrection(SOURCE).fit(
        np.where(w[:, None], z, np.nan), sample_weight=w
    )
    copied = PriorCorrection(SOURCE).fit(np.repeat(z, w, axis=0))
    labelled = PriorCorrection(SOURCE).fit(z, y, sample_weight=w)
    for other in (copied, labelled):
        np.testing.assert_allclose(other.target, weighted.target, rtol=1e-6)
        assert other.p_value == pytest.approx(weighted.p_value)
        assert other._fitted == weighted._fitted
    tokens = PriorCorrection(SOURCE).fit(
        z.reshape(3, 100, 4), sample_weight=w.reshape(3, 100)
    )
    np.testing.assert_allclose(tokens.target, weighted.target, rtol=1e-6)
    first = PriorCorrection(SOURCE, axis=1).fit(
        np.moveaxis(z.reshape(3, 100, 4), -1, 1), sample_weight=w.reshape(3, 100)
    )
    np.testing.assert_allclose(first.target, weighted.target, rtol=1e-6)


@pytest.mark.backend_free
def test_one_unit_is_estimated_as_two_columns():
    z, _ = shifted(500, np.array([0.2, 0.8]), np.array([0.7, 0.3]))
    two = PriorCorrection([0.7, 0.3]).fit(z)
    for unit in (z[:, 1] - z[:, 0], (z[:, 1] - z[:, 0])[:, None]):
        one = PriorCorrection(0.3).fit(unit)
        np.testing.assert_allclose(one.target, two.target, rtol=1e-6)
    p = softmax(z)[:, 1]
    of_probabilities = PriorCorrection(0.3, from_logits=False).fit(p)
    np.testing.assert_allclose(of_probabilities.target, two.target, rtol=1e-5)


@pytest.mark.backend_free
def test_masked_classes():
    z, _ = shifted(400)
    nowhere = np.concatenate([z, np.full((400, 1), -np.inf)], axis=1)
    source = np.append(0.9 * SOURCE, 0.1)
    p = PriorCorrection(source, significance=1.0).fit(nowhere)(nowhere)
    assert (p[:, 4] == 0).all()
    assert np.isfinite(p).all()


@pytest.mark.backend_free
def test_a_given_target_stays():
    z, _ = shifted()
    correction = PriorCorrection(SOURCE, [0.25] * 4).fit(z)
    np.testing.assert_allclose(correction.target, 0.25)
    assert correction.p_value is None
    assert "n=1000" in repr(correction)


@pytest.mark.backend_free
def test_chi_square():
    for x, df in itertools.product(
        (0, 1e-3, 0.5, 3.0, 40.0, 150.0, 2000.0), (1, 2, 3, 9, 99, 100, 999)
    ):
        expected = stats.chi2.sf(x, df)
        assert chi_square_tail(x, df) == pytest.approx(expected, rel=1e-9, abs=1e-300)


# Files, models and classifiers
@pytest.mark.parametrize("target", [None, TARGET])
def test_save_and_load(target, tmp_path):
    z, _ = shifted()
    correction = PriorCorrection(SOURCE, target, pseudo_count=2.0).fit(z)
    correction.save(tmp_path / "c.npz")
    loaded = Calibrator.load(tmp_path / "c.npz")
    assert loaded.get_config() == correction.get_config()
    assert repr(loaded) == repr(correction)
    np.testing.assert_array_equal(loaded.target, correction.target)
    assert loaded.p_value == correction.p_value
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    wrapped = correction.wrap(model)
    expected = correction(z.astype("float32"))
    wrapped.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(z, verbose=0), expected, atol=1e-5)
    inside = loaded.layers[-1].calibrator
    np.testing.assert_allclose(inside.target, correction.target, rtol=1e-6)
    if target is None:
        assert inside.p_value == pytest.approx(correction.p_value, rel=1e-5)


def test_it_chains_behind_another_calibrator(tmp_path):
    z, y = draw(n=600)
    scaling = TemperatureScaling().fit(z, y)
    new = draw(n=300, seed=1)[0]
    new = new[new.argmax(-1) < 3]
    source = np.bincount(y) / len(y)
    p = scaling(new)
    correction = PriorCorrection(source, from_logits=False).fit(p)
    assert correction.target[3] < 0.1
    expected = correction(p)
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    scaled = scaling.wrap(model)
    again = PriorCorrection(source).fit_model(scaled, new, verbose=0)
    np.testing.assert_allclose(again.target, correction.target, rtol=1e-3)
    chain = again.wrap(scaled)
    np.testing.assert_allclose(chain.predict(new, verbose=0), expected, atol=1e-4)
    chain.save(tmp_path / "chain.keras")
    loaded = keras.saving.load_model(tmp_path / "chain.keras")
    np.testing.assert_allclose(loaded.predict(new, verbose=0), expected, atol=1e-4)


def test_fit_model_applies_the_weights_of_a_data_set():
    z, y = shifted(300)
    z, w = z.astype("float32"), (np.arange(300) % 3).astype("float32")
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    options = {"significance": 1}
    rows = [slice(i, i + 64) for i in range(0, 300, 64)]
    for weight, ignored in ((w, None), (w, 3), (None, None), (None, 3)):
        expected = PriorCorrection(SOURCE, ignore_class=ignored, **options)
        expected.fit(z, y, sample_weight=weight)
        parts = (z, y) if weight is None else (z, y, weight)
        batches = [tuple(part[r] for part in parts) for r in rows]
        found = PriorCorrection(SOURCE, ignore_class=ignored, **options)
        found.fit_model(model, batches, verbose=0)
        np.testing.assert_allclose(found.target, expected.target, rtol=1e-5)
        # A generator is read once.
        found.fit_model(model, (batch for batch in batches), verbose=0)
        np.testing.assert_allclose(found.target, expected.target, rtol=1e-5)
    alone = PriorCorrection(SOURCE, **options)
    alone.fit_model(model, ((z[r],) for r in rows), verbose=0)
    np.testing.assert_allclose(
        alone.target, PriorCorrection(SOURCE, **options).fit(z).target, rtol=1e-5
    )


def test_fit_model_leaves_out_masked_tokens():
    z, _ = shifted(200)
    tokens = z.reshape(10, 20, 4).astype("float32")
    mask = np.arange(20) < np.arange(4, 14)[:, None]
    tokens = tokens * mask[..., None]
    model = keras.Sequential([keras.Input((20, 4)), layers.Masking()])
    options = {"significance": 1.0}
    found = PriorCorrection(SOURCE, **options).fit_model(model, tokens, verbose=0)
    expected = PriorCorrection(SOURCE, **options).fit(tokens, sample_weight=mask)
    np.testing.assert_allclose(found.target, expected.target, rtol=1e-6)
    weight = np.arange(10) % 3
    found = PriorCorrection(SOURCE, **options).fit_model(
        model, tokens, sample_weight=weight, verbose=0
    )
    expected = PriorCorrection(SOURCE, **options).fit(
        tokens, sample_weight=mask * weight[:, None]
    )
    np.testing.assert_allclose(found.target, expected.target, rtol=1e-6)


@pytest.mark.parametrize("target", [None, TARGET])
def test_classifiers_use_it(target, tmp_path):
    z, y = shifted(800, noise=0.6)
    x = z.astype("float32")
    model = keras.Sequential([keras.Input((4,)), layers.Identity()])
    correction = PriorCorrection(SOURCE, target)
    selective = SelectiveClassifier(model, calibrator=correction)
    selective.fit(x[:400], y[:400], risk=0.3, delta=0.1, verbose=0)
    # A given target leaves all samples to the threshold.
    assert selective.record.n == (200 if target is None else 400)
    inside = selective.calibrator
    assert np.abs(inside.target - TARGET).sum() < 0.2
    np.testing.assert_allclose(
        selective.predict_proba(x[400:], verbose=0), inside(x[400:]), atol=1e-5
    )
    assert selective.evaluate(x[400:], y[400:], verbose=0)["selective_risk"] < 0.35
    selective.save(tmp_path / "s.keras")
    loaded = SelectiveClassifier.load(tmp_path / "s.keras")
    np.testing.assert_allclose(loaded.calibrator.target, inside.target, rtol=1e-6)
    sets = ConformalClassifier(model, calibrator=PriorCorrection(SOURCE, target))
    sets.fit(x[:400], y[:400], verbose=0)
    assert sets.evaluate(x[400:], y[400:], verbose=0)["coverage"] > 0.8


# Bad input
@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": [0.5, 0.6]}, "`source` must be class frequencies"),
        ({"source": [0.5, 0.4980]}, "`source` must be class frequencies"),
        ({"source": [1.5, -0.5]}, "`source` must be class frequencies"),
        ({"source": [np.nan, 0.5]}, "`source` must be"),
        ({"source": [1.0]}, "`source` must be class frequencies"),
        ({"source": [0.0, 1.0]}, "`source` must be above 0 .* class 0"),
        ({"source": 0.0}, "`source` must be above 0"),
        ({"source": [900, 100]}, r"`source` must be above 0 .* counts.sum\(\)"),
        ({"source": [0, 1, 3]}, "`source` must be above 0 .* class 2"),
        ({"source": [0, 1, -1]}, "`source` must be class labels"),
        ({"source": np.eye(3, dtype=int)}, "`source` must be class labels"),
        ({"source": np.eye(3)}, "`source` must be class frequencies"),
        ({"source": np.array([0.0, 1.0, 1.0])}, "`source` .* as integers"),
        ({"source": []}, "`source` must be .* not empty"),
        ({"source": ["a", "b"]}, "`source` must be"),
        ({"source": SOURCE, "target": [0.5, 0.5]}, "`target` must be of 4 classes"),
        ({"source": SOURCE, "target": [0, 4]}, "`target` must be of 4 classes"),
        ({"source": SOURCE, "target": 2 * TARGET}, "`target` must be class freq"),
        ({"source": SOURCE, "class_weight": {4: 1.0}}, "`class_weight` must be"),
        ({"source": SOURCE, "class_weight": {0: 0.0}}, "`class_weight` must be"),
        ({"source": SOURCE, "class_weight": [1, 1, 1, 1]}, "`class_weight` must be"),
        ({"source": SOURCE, "pseudo_count": -1}, "`pseudo_count` must be"),
        ({"source": SOURCE, "significance": 0}, "`significance` must be"),
        ({"source": [0.5], "multi_label": True}, "`target` must be given"),
        ({"source": [0.5], "target": [2.0], "multi_label": True}, "`target` must be"),
        ({"source": [0, 1], "target": [0.5] * 2, "multi_label": True}, "above 0"),
        (
            {"source": [0.5], "target": [0.5], "multi_label": True, "class_weight": {}},
            "`class_weight` must be None",
        ),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PriorCorrection(**arguments)


@pytest.mark.backend_free
def test_bad_logits():
    z, _ = shifted(20)
    correction = PriorCorrection(SOURCE)
    for logits, message in (
        (z[:, :3], "of 4 classes, as `source`"),
        (z[:0], "empty"),
        (np.float64(1.0), "scalar"),
        (np.where(z > 0, np.nan, z), "`logits` must be finite"),
        (softmax(z), "from_logits=False"),
        (z[:, 0], "of 4 classes"),
    ):
        with pytest.raises(ValueError, match=message):
            correction.fit(logits)
        assert not correction.fitted
    with pytest.raises(ValueError, match="not fitted"):
        correction(z)
    with pytest.raises(ValueError, match="4 classes"):
        PriorCorrection(SOURCE, TARGET)(z[:, :3])
