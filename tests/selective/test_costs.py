"""Decisions of least expected cost."""

import keras
import numpy as np
import pytest
from backends import numpy
from classifier_data import draw, identity, network
from real_data import load_logits
from reference import softmax

import keras_selcal
from keras_selcal import MetaMis, SelectiveClassifier, TemperatureScaling, least_cost
from keras_selcal.selective import ABSTAINED, SelectionLayer, risk_bound

# To answer 0 or 1 where the class is 2 is worst.
COSTS = np.array([[0.0, 1.0, 2.0], [1.5, 0.0, 1.0], [9.0, 7.0, 0.0]])


def by_hand(p, costs, abstain=None):
    """Returns decisions, sample by sample and decision by decision."""
    found = []
    for row in np.asarray(p, "float64"):
        expected = [
            sum(row[c] * costs[c][d] for c in range(len(row)))
            for d in range(len(costs[0]))
        ]
        best = min(range(len(expected)), key=expected.__getitem__)
        gives_up = abstain is not None and expected[best] > abstain
        found.append(ABSTAINED if gives_up else best)
    return np.array(found)


@pytest.mark.backend_free
class TestLeastCost:
    @pytest.mark.parametrize(("k", "m"), [(2, 2), (3, 3), (4, 2), (2, 5), (1000, 3)])
    @pytest.mark.parametrize("abstain", [None, -0.5, 0.0, 0.4])
    def test_brute_force(self, k, m, abstain):
        rng = np.random.default_rng(k + m)
        p = rng.dirichlet(np.full(k, 0.3), 40)
        costs = rng.normal(size=(k, m))
        found = least_cost(p, costs, abstain=abstain)
        np.testing.assert_array_equal(found, by_hand(p, costs, abstain))
        if abstain == -0.5 and k == m == 3:
            assert 0 < (found == ABSTAINED).sum() < 40

    def test_a_transposed_matrix_is_another_problem(self):
        # Class 1 is a disease: to answer 0 (healthy) where it is there costs 10.
        costs = np.array([[0, 1], [10, 0]])
        p = np.array([[0.8, 0.2], [0.95, 0.05]])
        np.testing.assert_array_equal(least_cost(p, costs), [1, 0])
        np.testing.assert_array_equal(least_cost(p, costs.T), [0, 0])
        # Where it shows, it is refused.
        costs = np.array([[0, 1, 2], [10, 0, 2]])
        np.testing.assert_array_equal(least_cost(p, costs), [1, 0])
        with pytest.raises(ValueError, match=r"`costs` must be of shape .2, m.: true"):
            least_cost(p, costs.T)

    def test_errors_that_cost_one_give_the_rule_of_chow(self):
        rng = np.random.default_rng(0)
        p = rng.dirichlet(np.ones(5), 200)
        costs = 1 - np.eye(5)
        np.testing.assert_array_equal(least_cost(p, costs), p.argmax(-1))
        found = least_cost(p, costs, abstain=0.45)
        np.testing.assert_array_equal(found == ABSTAINED, p.max(-1) < 0.55)

    def test_scale_and_offset_of_a_row(self):
        # A cost that a class has in any case changes no decision.
        p = np.random.default_rng(1).dirichlet(np.ones(3), 100)
        expected = least_cost(p, COSTS)
        assert len(np.unique(expected)) == 3
        shifted = 3 * COSTS + np.array([[5.0], [-2.0], [0.5]])
        np.testing.assert_array_equal(least_cost(p, shifted), expected)

    def test_ties(self):
        # Of equal decisions the first; an abstention must be cheaper.
        even = np.full((1, 4), 0.25)
        assert least_cost(even, np.ones((4, 3))) == [0]
        assert least_cost(even, np.ones((4, 3)), abstain=1) == [0]
        assert least_cost(even, np.ones((4, 3)), abstain=0.999) == [ABSTAINED]

    @pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 3, 1)])
    def test_one_sigmoid_unit(self, shape):
        p = np.array([0.0, 0.05, 0.2, 0.5, 0.9, 1.0])
        costs = [[0, 1], [10, 0]]
        expected = least_cost(np.stack([1 - p, p], axis=-1), costs, abstain=0.55)
        np.testing.assert_array_equal(expected, [0, 0, ABSTAINED, 1, 1, 1])
        found = least_cost(p.reshape(shape), costs, abstain=0.55)
        samples = shape if shape == (6,) else shape[:-1]
        np.testing.assert_array_equal(found, expected.reshape(samples))

    def test_leading_axes_and_dtypes(self):
        p = softmax(np.random.default_rng(2).normal(size=(2, 4, 3)))
        expected = by_hand(p.reshape(-1, 3), COSTS, 0.8).reshape(2, 4)
        for dtype in ("float64", "float32", "float16"):
            found = least_cost(p.astype(dtype), COSTS.tolist(), abstain=0.8)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == "int32"

    def test_nan_is_no_decision(self):
        p = np.array([[np.nan, 0.5, 0.5], [0.2, 0.3, 0.5]])
        np.testing.assert_array_equal(least_cost(p, COSTS), [ABSTAINED, 2])

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("costs", {"costs": COSTS[:2]}),
            ("costs", {"costs": COSTS[0]}),
            ("costs", {"costs": COSTS[None]}),
            ("costs", {"costs": np.ones((3, 0))}),
            ("costs", {"costs": COSTS + np.inf}),
            ("costs", {"costs": "cheap"}),
            ("probabilities", {"probabilities": [[1.0, 2.0, 3.0]]}),
            ("probabilities", {"probabilities": np.ones((0, 3))}),
            ("probabilities", {"probabilities": 0.3}),
            ("abstain", {"abstain": np.nan}),
            ("abstain", {"abstain": np.inf}),
            ("abstain", {"abstain": [1, 2, 3]}),
        ],
    )
    def test_bad_arguments(self, name, arguments):
        given = {"probabilities": np.eye(3), "costs": COSTS, **arguments}
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            least_cost(**given)

    def test_a_bad_cost_among_many_has_a_short_error(self):
        costs = np.zeros((300, 300))
        costs[2, 7] = np.nan
        match = "`costs` must be finite numbers. Received: costs=nan"
        with pytest.raises(ValueError, match=match):
            least_cost(np.eye(300), costs)

    def test_names(self):
        assert keras_selcal.least_cost is keras_selcal.selective.least_cost


def test_tensors():
    p = softmax(np.random.default_rng(3).normal(size=(5, 3))).astype("float32")
    found = least_cost(keras.ops.convert_to_tensor(p), COSTS)
    np.testing.assert_array_equal(found, by_hand(p, COSTS))


@pytest.mark.parametrize("abstain", [None, 0.7])
def test_classifier(abstain, tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(network())
    assert classifier.costs is None
    classifier.fit(x, y, costs=COSTS, abstain_cost=abstain, verbose=0)
    np.testing.assert_allclose(classifier.costs, COSTS)
    test_x, test_y = draw(seed=1)
    labels, accepted, confidence = classifier.predict(test_x, verbose=0)
    p = classifier.predict_proba(test_x, verbose=0)
    np.testing.assert_array_equal(labels, by_hand(p, COSTS, abstain))
    np.testing.assert_array_equal(labels, least_cost(p, COSTS, abstain=abstain))
    np.testing.assert_array_equal(accepted, labels != ABSTAINED)
    expected = p.astype("float64") @ COSTS
    np.testing.assert_allclose(confidence, -expected.min(-1), atol=1e-5)
    assert (expected.argmin(-1) != p.argmax(-1)).any()
    # What the decisions cost, and what the probabilities say.
    figures = classifier.evaluate(test_x, test_y, verbose=0)
    answer = expected.argmin(-1)
    paid = np.where(accepted, COSTS[test_y, answer], abstain or 0.0)
    said = np.where(accepted, expected.min(-1), abstain or 0.0)
    wrong = answer[accepted] != test_y[accepted]
    assert figures == pytest.approx(
        {
            "coverage": accepted.mean(),
            "selective_risk": wrong.mean(),
            "selective_risk_bound": risk_bound(wrong.sum(), len(wrong), 0.05),
            "accuracy": (answer == test_y).mean(),
            "cost": paid.mean(),
            "expected_cost": said.mean(),
        },
        rel=1e-5,
    )
    assert (0 < accepted.mean() < 1) == (abstain is not None)
    # The record has the same of the data of the fit, and is in the file.
    with pytest.warns(UserWarning, match="data that its threshold"):
        on_fit = classifier.evaluate(x, y, verbose=0)
    record = classifier.record
    for name in ("coverage", "selective_risk", "cost", "expected_cost"):
        assert getattr(record, name) == pytest.approx(on_fit[name], rel=1e-6)
    assert record.bound == pytest.approx(on_fit["selective_risk_bound"], rel=1e-6)
    assert record.abstain_cost == abstain
    assert record.target_coverage is record.target_risk is None
    assert f"cost={record.cost:.4g}" in repr(classifier)
    assert "csf=" not in repr(classifier)
    assert "costs=[[0.0, 1.0, 2.0], [1.5, 0.0, 1.0], [9.0" in repr(classifier)
    path = tmp_path / "classifier.keras"
    classifier.save(path)
    loaded = SelectiveClassifier.load(path)
    assert loaded.record == record
    assert loaded.threshold == classifier.threshold
    np.testing.assert_array_equal(loaded.costs, classifier.costs)
    np.testing.assert_array_equal(loaded.predict(test_x, verbose=0).labels, labels)
    assert loaded.evaluate(test_x, test_y, verbose=0) == pytest.approx(figures)
    whole = keras.saving.load_model(path)
    found = {name: numpy(x) for name, x in whole(test_x).items()}
    np.testing.assert_array_equal(found["labels"], labels)
    np.testing.assert_array_equal(found["accepted"], accepted)
    np.testing.assert_array_equal(whole.predict(test_x, verbose=0)["labels"], labels)


def test_costs_that_predict_what_is_paid_need_calibration():
    x, y = draw(n=4000)
    overconfident = keras.Sequential([keras.Input((3,)), keras.layers.Rescaling(9.0)])
    gaps = []
    for calibrator in (None, TemperatureScaling()):
        classifier = SelectiveClassifier(overconfident, calibrator=calibrator)
        classifier.fit(x[:2000], y[:2000], costs=COSTS, abstain_cost=0.6, verbose=0)
        found = classifier.evaluate(x[2000:], y[2000:], verbose=0)
        gaps.append((found["cost"], abs(found["cost"] - found["expected_cost"])))
    (before, gap_before), (after, gap_after) = gaps
    assert after < before
    assert gap_after < 0.2 * gap_before
    # Half of the data has fitted the temperature.
    assert classifier.record.n == 1000


def test_a_rule_by_costs_is_cheaper_than_the_most_probable_class():
    x, y = draw(n=3000)
    by_class = softmax(2 * x).argmax(-1)
    calibrator = TemperatureScaling()
    classifier = SelectiveClassifier(identity(), calibrator=calibrator)
    classifier.fit(x, y, costs=COSTS, verbose=0)
    with pytest.warns(UserWarning, match="data that its threshold"):
        found = classifier.evaluate(x, y, verbose=0)
    assert found["coverage"] == 1
    assert found["cost"] < 0.8 * COSTS[y, by_class].mean()


def test_weights_masks_and_ignored_classes():
    x, y = draw(n=300)
    w = np.where(np.arange(300) % 3 == 0, 0.0, np.arange(300) % 2 + 1.0)
    y_holes = np.where(w == 0, 9, y)
    classifier = SelectiveClassifier(identity(), ignore_class=9)
    classifier.fit(
        x, y_holes, costs=COSTS, abstain_cost=0.7, sample_weight=w, verbose=0
    )
    p = softmax(x.astype("float64"))
    labels = by_hand(p, COSTS, 0.7)
    paid = np.where(labels < 0, 0.7, COSTS[y, labels])
    expected = np.minimum((p @ COSTS).min(-1), 0.7)
    record = classifier.record
    assert record.cost == pytest.approx(np.average(paid, weights=w))
    assert record.expected_cost == pytest.approx(np.average(expected, weights=w))
    assert record.n == 200


def test_several_labels_and_one_sigmoid_unit(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (400, 2))
    z = (2 * y - 1 + rng.normal(size=(400, 2))).astype("float32")
    costs = np.array([[0.0, 1.0], [4.0, 0.0]])
    p = 1 / (1 + np.exp(-z.astype("float64")))
    several = SelectiveClassifier(identity(2), multi_label=True)
    several.fit(z, y, costs=costs, abstain_cost=0.5, verbose=0)
    found = several.predict(z, verbose=0).labels
    several.save(tmp_path / "several.keras")
    assert SelectiveClassifier.load(tmp_path / "several.keras").record == several.record
    for label in range(2):
        expected = least_cost(p[:, label], costs, abstain=0.5)
        np.testing.assert_array_equal(found[:, label], expected)
        paid = np.where(expected < 0, 0.5, costs[y[:, label], expected]).mean()
        assert several.record.cost[label] == pytest.approx(paid)
        one = SelectiveClassifier(identity(1))
        one.fit(
            z[:, label, None], y[:, label], costs=costs, abstain_cost=0.5, verbose=0
        )
        assert one.record.cost == pytest.approx(paid)
        labels = one.predict(z[:, label, None], verbose=0).labels
        np.testing.assert_array_equal(labels, expected)


def test_tokens_with_channels_first():
    x, y = draw(n=120)
    p = softmax(x.astype("float64"))
    classifier = SelectiveClassifier(identity(3, 10), axis=1)
    tokens = x.reshape(12, 10, 3).swapaxes(1, 2)
    classifier.fit(tokens, y.reshape(12, 10), costs=COSTS, abstain_cost=0.7, verbose=0)
    labels = classifier.predict(tokens, verbose=0).labels
    np.testing.assert_array_equal(labels.reshape(-1), by_hand(p, COSTS, 0.7))
    # Tokens depend on each other: no bound.
    assert classifier.record.bound is None


def test_rejected_samples_cost_an_abstention():
    x, y = draw(n=2000)
    calibrator = MetaMis(miscoverage=0.2)
    classifier = SelectiveClassifier(identity(), calibrator=calibrator)
    with pytest.raises(ValueError, match="`abstain_cost` must be a number if the cal"):
        classifier.fit(x, y, costs=COSTS, verbose=0)
    classifier.fit(x, y, costs=COSTS, abstain_cost=50.0, verbose=0)
    assert classifier.record.coverage < 1
    assert classifier.record.cost > 50 * (1 - classifier.record.coverage)


def test_nan_is_not_answered():
    x, y = draw()
    classifier = SelectiveClassifier(identity()).fit(x, y, costs=COSTS, verbose=0)
    broken = x[:2].copy()
    broken[0, 1] = np.nan
    found = classifier.predict(broken, verbose=0)
    np.testing.assert_array_equal(found.accepted, [False, True])
    assert found.labels[0] == ABSTAINED


def test_refit_and_drift():
    x, y = draw(n=900)
    classifier = SelectiveClassifier(identity())
    classifier.fit(x[:600], y[:600], costs=COSTS, abstain_cost=0.7, verbose=0)
    assert not classifier.check(x[600:], y[600:], verbose=0).drifted
    classifier.fit(x[:600], y[:600], coverage=0.8, verbose=0)
    assert classifier.costs is None
    assert classifier.record.cost is None
    assert "cost" not in classifier.evaluate(x[600:], y[600:], verbose=0)


@pytest.mark.parametrize(
    ("name", "options", "arguments"),
    [
        ("costs", {}, {"costs": COSTS[:2]}),
        ("costs", {}, {"costs": np.ones((4, 4))}),
        ("costs", {}, {"costs": COSTS + np.nan}),
        ("coverage", {}, {"costs": COSTS, "coverage": 0.9}),
        ("risk", {}, {"costs": COSTS, "risk": 0.1}),
        ("delta", {}, {"costs": COSTS, "delta": 0.1}),
        ("abstain_cost", {}, {"abstain_cost": 1.0, "coverage": 0.9}),
        ("abstain_cost", {}, {"costs": COSTS, "abstain_cost": np.nan}),
        ("csf", {"csf": "margin"}, {"costs": COSTS}),
        ("csf", {"csf": "auto"}, {"costs": COSTS}),
        ("coverage", {}, {}),
    ],
)
def test_bad_arguments(name, options, arguments):
    x, y = draw(n=30)
    classifier = SelectiveClassifier(identity(), **options)
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        classifier.fit(x, y, **arguments, verbose=0)
    assert classifier.threshold is None


def test_a_decision_threshold_does_not_go_with_costs():
    x, y = draw(n=30, k=2)
    classifier = SelectiveClassifier(identity(2), decision_threshold=0.3)
    with pytest.raises(ValueError, match="`decision_threshold` must be left out"):
        classifier.fit(x, y, costs=np.eye(2), verbose=0)


def test_layer_config():
    layer = SelectionLayer(costs=COSTS, threshold=-0.5)
    again = SelectionLayer.from_config(layer.get_config())
    np.testing.assert_allclose(again.costs, COSTS)
    assert again.threshold == -0.5
    assert SelectionLayer().get_config()["costs"] is None


@pytest.mark.backend_free
def test_real_logits():
    """CIFAR-10, where a vehicle that is taken for an animal costs 20 times as much.

    The bars were set before the figures were known: calibrated probabilities predict
    the cost within 20 %, and decide more cheaply than the most probable class and than
    probabilities that are not calibrated.
    """
    data = load_logits("markus93_resnet110_c10_logits.npz")
    z, y = data["test_logits"], data["test_labels"].reshape(-1)
    vehicle = np.isin(np.arange(10), (0, 1, 8, 9))
    costs = 1 - np.eye(10) + 19.0 * (vehicle[:, None] & ~vehicle)
    calibrator = TemperatureScaling()
    calibrator.fit(data["val_logits"], data["val_labels"].reshape(-1))
    paid, expected = [], []
    for p in (calibrator(z), softmax(z.astype("float64"))):
        labels = least_cost(p, costs, abstain=0.3)
        answered = labels != ABSTAINED
        paid.append(np.where(answered, costs[y, labels], 0.3).mean())
        expected.append(np.minimum((p @ costs).min(-1), 0.3).mean())
    assert expected[0] == pytest.approx(paid[0], rel=0.2)
    assert abs(expected[1] - paid[1]) > abs(expected[0] - paid[0])
    assert paid[0] < paid[1]
    assert paid[0] < costs[y, z.argmax(-1)].mean()
    # The figures of the guide.
    assert paid == pytest.approx([0.066, 0.095], abs=5e-4)
    assert expected == pytest.approx([0.074, 0.017], abs=5e-4)
    assert costs[y, z.argmax(-1)].mean() == pytest.approx(0.144, abs=5e-4)
