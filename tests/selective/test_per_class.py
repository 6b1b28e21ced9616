"""A threshold for each predicted class, with a guarantee for every one."""

import math

import keras
import numpy as np
import pytest
from classifier_data import identity

from keras_selcal import (
    Policy,
    SelectiveClassifier,
    TemperatureScaling,
    select_threshold,
)
from keras_selcal.selective import risk_bound
from keras_selcal.selective.cuts import Cuts
from keras_selcal.selective.fitting import select_each


def draw(n=3000, seed=0):
    """Logits of three classes of which the last is predicted too often."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    z = np.array([4.0, 4.5, 8.0])[y][:, None] * np.eye(3)[y] + rng.normal(size=(n, 3))
    z[(y < 2) & (rng.random(n) < 0.1), 2] += 5.5
    return z.astype("float32"), y


def softmax(z):
    e = np.exp(z.astype("float64") - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def fitted(**options):
    x, y = draw()
    target = {"risk": 0.05, "delta": 0.1, **options}
    return SelectiveClassifier(identity(3)).fit(
        x, y, per_class=True, verbose=0, **target
    )


def test_each_class_has_the_threshold_of_its_predictions():
    x, y = draw()
    classifier = fitted()
    p, top = softmax(x).max(-1), x.argmax(-1)
    for c in range(3):
        rows = top == c
        want = select_threshold(
            p[rows],
            (top == y)[rows],
            risk=0.05,
            delta=0.1 / 3,
            error_probability=1 - p[rows],
        )
        assert classifier.threshold[c] == pytest.approx(want, abs=1e-5)
    assert len(set(classifier.threshold.tolist())) == 3


def test_predictions_figures_and_record():
    classifier = fitted()
    x, y = draw(seed=1)
    labels, accepted, confidence = classifier.predict(x, verbose=0)
    top = x.argmax(-1)
    np.testing.assert_array_equal(accepted, confidence >= classifier.threshold[top])
    np.testing.assert_array_equal(labels, np.where(accepted, top, -1))
    figures = classifier.evaluate(x, y, verbose=0)
    wrong = top != y
    assert figures["coverage"] == pytest.approx(accepted.mean())
    assert figures["selective_risk"] == pytest.approx(wrong[accepted].mean())
    errors, count = int(wrong[accepted].sum()), int(accepted.sum())
    assert figures["selective_risk_bound"] == risk_bound(errors, count, 0.1)
    assert figures["accuracy"] == pytest.approx(1 - wrong.mean())
    for c in range(3):
        of_class = accepted[top == c]
        assert figures["class_coverage"][c] == pytest.approx(of_class.mean())
        answered = wrong[accepted & (top == c)]
        assert figures["class_risk"][c] == pytest.approx(answered.mean())
        bound = risk_bound(int(answered.sum()), len(answered), 0.1)
        assert figures["class_risk_bound"][c] == bound
    record = classifier.record
    assert record.bound == (0.05,) * 3
    assert (record.target_risk, record.delta) == (0.05, 0.1)
    assert len(record.class_coverage) == len(record.class_risk) == 3
    assert max(record.class_risk) <= 0.05
    assert min(record.class_coverage) < record.coverage < max(record.class_coverage)
    x, y = draw()
    accepted = classifier.predict(x, verbose=0).accepted
    assert record.coverage == pytest.approx(accepted.mean())
    risk = (x.argmax(-1) != y)[accepted].mean()
    assert record.selective_risk == pytest.approx(risk)


def test_one_threshold_leaves_a_class_above_the_risk():
    """What it is for: the risk of all answers hides one class."""
    x, y = draw()
    one = SelectiveClassifier(identity(3)).fit(x, y, risk=0.05, delta=0.1, verbose=0)
    labels = one.predict(x, verbose=0).labels
    assert (y[labels == 2] != 2).mean() > 0.05
    labels = fitted().predict(x, verbose=0).labels
    for c in range(3):
        assert (y[labels == c] != c).mean() <= 0.05


def test_files_and_models(tmp_path):
    classifier = fitted()
    x, _ = draw(seed=1)
    classifier.save(tmp_path / "per_class.keras")
    loaded = SelectiveClassifier.load(tmp_path / "per_class.keras")
    assert loaded.record == classifier.record
    np.testing.assert_array_equal(loaded.threshold, classifier.threshold)
    want = classifier.predict(x, verbose=0)
    policy = classifier.to_policy()
    policy.save(tmp_path / "policy.json")
    policy = Policy.load(tmp_path / "policy.json")
    np.testing.assert_array_equal(policy.threshold, classifier.threshold)
    np.testing.assert_array_equal(policy.predict(x).labels, want.labels)
    for given in (
        loaded.predict(x, verbose=0),
        classifier.as_model().predict(x, verbose=0),
    ):
        found = given["labels"] if isinstance(given, dict) else given.labels
        np.testing.assert_array_equal(found, want.labels)


def test_classes_that_cannot_meet_the_risk_are_never_answered():
    x, y = draw()
    # Nothing is predicted as the fourth class; the third is wrong half of the time.
    rng = np.random.default_rng(0)
    x = np.concatenate([x, np.full((len(x), 1), -50.0, "float32")], axis=1)
    y = np.where((x.argmax(-1) == 2) & (rng.random(len(y)) < 0.5), 0, y)
    classifier = SelectiveClassifier(identity(4))
    told = r"Classes \[2, 3\] are never answered.* Class 2: No threshold has a risk"
    with pytest.warns(UserWarning, match=told):
        classifier.fit(x, y, risk=0.05, delta=0.1, per_class=True, verbose=0)
    assert np.isinf(classifier.threshold).tolist() == [False, False, True, True]
    labels = classifier.predict(x, verbose=0).labels
    assert set(np.unique(labels)) == {-1, 0, 1}
    other, other_y = draw(seed=1)
    other = np.concatenate([other, np.full((len(other), 1), -50.0, "float32")], axis=1)
    figures = classifier.evaluate(other, other_y, verbose=0)
    assert figures["class_coverage"][2] == 0
    assert math.isnan(figures["class_coverage"][3])
    assert math.isnan(classifier.record.class_coverage[3])
    assert figures["class_risk_bound"][2:].tolist() == [1, 1]
    # The number of samples in the error is that of one class.
    with pytest.raises(ValueError, match=r"No class meets the target\. Class 2: No"):
        classifier.fit(x, y, risk=1e-4, delta=0.1, per_class=True, verbose=0)


@pytest.mark.backend_free
def test_a_class_that_is_never_predicted_is_named():
    part = Cuts.of(np.array([0.9, 0.8]), correct=np.array([True, True]))
    with pytest.warns(UserWarning, match="Class 1: no sample is predicted as it"):
        found = select_each([part, None], 0.9, None, None, "class")
    assert np.isfinite(found).tolist() == [True, False]


def test_calibrator_groups_and_coverage():
    x, y = draw()
    classifier = SelectiveClassifier(identity(3), calibrator=TemperatureScaling())
    classifier.fit(x, y, coverage=0.8, per_class=True, verbose=0)
    assert all(share >= 0.8 for share in classifier.record.class_coverage)
    assert len(classifier.record.bound) == 3
    assert max(classifier.record.bound) < 1
    groups = np.arange(len(y)) // 2
    grouped = SelectiveClassifier(identity(3))
    grouped.fit(x, y, risk=0.2, delta=0.1, per_class=True, groups=groups, verbose=0)
    assert grouped.record.groups == len(y) // 2
    assert np.all(grouped.threshold > 0)


def test_checks_count_the_errors_of_each_class():
    classifier = fitted()
    x, y = draw(seed=1)
    fine = classifier.check(x, y, verbose=0)
    assert fine.risk_holds
    assert np.shape(fine.selective_risk) == (3,)
    accepted = classifier.predict(x, verbose=0).accepted
    assert fine.coverage == pytest.approx(accepted.mean())
    # Only one class is wrong, which all classes together would hide.
    top = x.argmax(-1)
    rng = np.random.default_rng(0)
    worse = np.where((top == 2) & (rng.random(len(y)) < 0.3), 0, y)
    assert not classifier.check(x, worse, verbose=0).risk_holds


def test_one_sigmoid_unit_and_tokens():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 1)).astype("float32") * 3
    y = (rng.random(2000) < 1 / (1 + np.exp(-z[:, 0]))).astype(int)
    inputs = keras.Input((1,))
    unit = keras.Model(inputs, keras.layers.Activation("sigmoid")(inputs))
    classifier = SelectiveClassifier(unit)
    classifier.fit(z, y, risk=0.05, delta=0.1, per_class=True, verbose=0)
    labels = classifier.predict(z, verbose=0).labels
    for c in range(2):
        assert (y[labels == c] != c).mean() <= 0.05
    x, y = draw(2000)
    tokens = SelectiveClassifier(identity(5, 3))
    tokens.fit(
        x.reshape(400, 5, 3),
        y.reshape(400, 5),
        risk=0.3,
        delta=0.1,
        per_class=True,
        groups="first_axis",
        verbose=0,
    )
    labels, accepted, confidence = tokens.predict(x.reshape(400, 5, 3), verbose=0)
    top = x.argmax(-1).reshape(400, 5)
    np.testing.assert_array_equal(accepted, confidence >= tokens.threshold[top])


def test_several_labels_have_their_thresholds_anyway():
    classifier = SelectiveClassifier(identity(3), multi_label=True, from_logits=True)
    x, y = draw(100)
    with pytest.raises(ValueError, match="`per_class` must be False"):
        classifier.fit(x, np.eye(3)[y], coverage=0.8, per_class=True, verbose=0)


@pytest.mark.backend_free
@pytest.mark.filterwarnings("ignore:Classes .* are never answered")
def test_the_guarantee_holds_for_all_classes_by_simulation():
    """True risks are known: an error has probability e·(1 − s) at the score s."""
    rng = np.random.default_rng(0)
    draws, n, r, delta = 150, 2400, 0.15, 0.2
    factor = np.array([0.3, 0.5, 0.8])
    failed, reached = 0, []
    for _ in range(draws):
        c, s = rng.integers(0, 3, n), rng.random(n)
        right = rng.random(n) >= factor[c] * (1 - s)
        cuts = [Cuts.of(s[c == i], right[c == i]) for i in range(3)]
        t = np.array(select_each(cuts, None, r, delta, "class"))
        # The mean of factor·(1 − s) over s uniform in [t, 1].
        true = factor * (1 - t) / 2
        failed += bool((true > r).any())
        reached.append(true)
    assert failed / draws <= delta + 4 * math.sqrt(delta * (1 - delta) / draws)
    # Most use what they may.
    assert np.median(reached, axis=0).min() > 0.6 * r


def test_not_with_unknown_inputs():
    x, y = draw(n=300, seed=1)
    with pytest.raises(ValueError, match=r"`unknown` must be None after .*per_class"):
        fitted().evaluate(x, y, unknown=x, unknown_share=0.1, verbose=0)
    for options in (
        {"costs": 1 - np.eye(3)},
        {"risk": 0.1, "delta": 0.1, "unknown": x},
    ):
        share = {"unknown_share": 0.1} if "unknown" in options else {}
        with pytest.raises(ValueError, match="`per_class` must be False with"):
            SelectiveClassifier(identity(3)).fit(
                x, y, per_class=True, verbose=0, **options, **share
            )


def test_a_record_is_whole_after_a_file(tmp_path):
    """A class that is never predicted has figures of NaN."""
    z, y = draw()
    z = np.concatenate([z, np.full((len(z), 1), -30, "float32")], axis=1)
    with pytest.warns(UserWarning, match="never answered"):
        classifier = SelectiveClassifier(identity(4)).fit(
            z, y, risk=0.05, delta=0.1, per_class=True, verbose=0
        )
    classifier.to_policy().save(tmp_path / "policy.json")
    found = Policy.load(tmp_path / "policy.json").record
    for name in ("class_coverage", "class_risk", "bound"):
        np.testing.assert_array_equal(
            getattr(found, name), getattr(classifier.record, name)
        )
