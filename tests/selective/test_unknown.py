"""Unknown inputs in the selection of a threshold."""

import contextlib

import numpy as np
import pytest
from classifier_data import draw, identity

from keras_selcal import SelectiveClassifier, TemperatureScaling, select_threshold
from keras_selcal.selective import ABSTAINED
from keras_selcal.selective.bounds import binomial_tail
from keras_selcal.selective.mixture import draw_mixture


def strange(n=200, seed=5):
    """Returns inputs between the classes."""
    rng = np.random.default_rng(seed)
    return (0.7 + rng.normal(size=(n, 3))).astype("float32")


def shortage(total, n, m, share):
    """Returns P(K > m) + P(N − K > n) by summing the terms of the binomial law."""
    p = np.ones(1)
    for _ in range(total):
        p = np.append(p * (1 - share), 0) + np.append(0, p * share)
    k = np.arange(total + 1)
    return p[k > m].sum() + p[total - k > n].sum()


@pytest.mark.backend_free
class TestDraw:
    @pytest.mark.parametrize(
        ("n", "m", "share"),
        [(300, 30, 0.1), (300, 30, 0.5), (50, 400, 0.2), (40, 40, 0.01), (1, 1, 0.5)],
    )
    def test_size(self, n, m, share):
        known, unknown = draw_mixture(n, m, share, 0.2, b"seed")
        total = len(known) + len(unknown)
        assert shortage(total, n, m, share) <= 0.01
        assert shortage(total + 1, n, m, share) > 0.01
        for part, size in ((known, n), (unknown, m)):
            assert len(set(part.tolist())) == len(part) <= size
            assert all(0 <= i < size for i in part)

    def test_the_number_of_unknown_inputs_is_binomial(self):
        sizes = [
            [len(part) for part in draw_mixture(90, 30, 0.2, 0.1, i.to_bytes(4, "big"))]
            for i in range(3000)
        ]
        known, unknown = np.transpose(sizes)
        (total,) = set((known + unknown).tolist())
        assert unknown.mean() == pytest.approx(0.2 * total, abs=0.3)
        assert unknown.var() == pytest.approx(0.16 * total, rel=0.1)
        for k in (12, 18, 24):
            found = (unknown <= k).mean()
            assert found == pytest.approx(binomial_tail(k, total, 0.2), abs=0.03)

    def test_every_input_is_drawn_as_often(self):
        times = np.zeros(60)
        for i in range(2000):
            known, unknown = draw_mixture(40, 20, 0.1, 0.1, i.to_bytes(4, "big"))
            times[known] += 1
            times[40 + unknown] += 1
        for part in (times[:40], times[40:]):
            assert part.std() < 0.1 * part.mean()

    def test_the_same_data_give_the_same_sample(self):
        one, two = (draw_mixture(90, 30, 0.2, 0.1, b"data") for _ in range(2))
        for part, again in zip(one, two, strict=True):
            np.testing.assert_array_equal(part, again)


SHARE, RISK, DELTA = 0.2, 0.12, 0.1


def simulate(rng, n=1000, m=150):
    """Returns scores, what is right, and scores of unknown inputs, for which
    P(wrong | s) = 0.2 (1 − s), and P(score ≥ t) = 1 − t, or (1 − t)³ if unknown.
    """
    scores = rng.random(n)
    return scores, rng.random(n) > 0.2 * (1 - scores), rng.random((3, m)).min(axis=0)


def true_risk(t):
    """Returns the errors among the accepted of the mixture, by integration."""
    x = 1 - t
    known, unknown = (1 - SHARE) * 0.1 * x, SHARE * x**2
    return (known + unknown) / (1 - SHARE + unknown)


@pytest.mark.backend_free
class TestThreshold:
    def test_the_guarantee_holds_for_the_mixture(self):
        rng = np.random.default_rng(0)
        draws = 150
        found, blind = np.ones(draws), np.ones(draws)
        for i in range(draws):
            scores, correct, unknown = simulate(rng)
            options = {"risk": RISK, "delta": DELTA}
            # Where nothing can be promised, nothing is answered.
            with contextlib.suppress(ValueError):
                found[i] = select_threshold(
                    scores, correct, unknown=unknown, unknown_share=SHARE, **options
                )
            # All of them, of whom 13 % are unknown, are no sample of the mixture.
            pooled = np.append(scores, unknown), np.append(correct, np.zeros(150))
            with contextlib.suppress(ValueError):
                blind[i] = select_threshold(*pooled, **options)
        violated = (true_risk(found) > RISK).mean()
        assert violated <= DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)
        assert (true_risk(blind) > RISK).mean() > 3 * DELTA
        # The best threshold has a risk of 12 %; most of what it accepts is accepted.
        best = 1 - 6 / 11
        assert true_risk(best) == pytest.approx(RISK)
        assert 1 - np.median(found) > 0.6 * (1 - best)

    def test_without_delta_it_is_the_risk_of_the_sample(self):
        scores, correct, unknown = simulate(np.random.default_rng(1), 40000, 10000)
        with pytest.warns(UserWarning, match="without `delta`"):
            t = select_threshold(
                scores, correct, risk=RISK, unknown=unknown, unknown_share=SHARE
            )
        assert true_risk(t) == pytest.approx(RISK, abs=0.01)

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("unknown_share", {"unknown_share": None}),
            ("unknown_share", {"unknown_share": 0}),
            ("unknown_share", {"unknown_share": 1}),
            ("unknown_share", {"unknown": None}),
            ("unknown", {"unknown": []}),
            ("unknown", {"unknown": ["a"]}),
            ("unknown", {"unknown": np.full(150, np.nan)}),
            # Those that are not drawn are looked at too.
            ("unknown", {"unknown": np.append(np.nan, np.zeros(9999))}),
            ("unknown", {"unknown": np.append(np.inf, np.zeros(9999))}),
            ("scores", {"scores": np.append(np.nan, np.zeros(999)), "unknown": [0.5]}),
            ("coverage", {"coverage": 0.5, "risk": None, "delta": None}),
            ("groups", {"groups": np.arange(1000)}),
            ("sample_weight", {"sample_weight": np.ones(1000)}),
            ("losses", {"correct": None, "losses": np.zeros(1000)}),
            ("error_probability", {"error_probability": np.zeros(1000)}),
            ("correct", {"correct": np.ones(999)}),
        ],
    )
    def test_bad_arguments(self, name, arguments):
        scores, correct, unknown = simulate(np.random.default_rng(0))
        given = {
            "scores": scores,
            "correct": correct,
            "unknown": unknown,
            "unknown_share": SHARE,
            "risk": RISK,
            "delta": DELTA,
            **arguments,
        }
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            select_threshold(**given)


def fit(classifier, x, y, unknown, share=0.2, **options):
    target = {"risk": 0.15, "delta": 0.1, "verbose": 0, **options}
    return classifier.fit(x, y, unknown=unknown, unknown_share=share, **target)


def test_classifier(tmp_path):
    x, y = draw(n=2000)
    unknown = strange()
    plain = SelectiveClassifier(identity()).fit(x, y, risk=0.15, delta=0.1, verbose=0)
    classifier = fit(SelectiveClassifier(identity()), x, y, unknown)
    assert classifier.threshold > plain.threshold
    again = fit(SelectiveClassifier(identity()), x, y, unknown)
    assert again.threshold == classifier.threshold
    record = classifier.record
    # As many as 200 unknown inputs suffice for, with probability 1 − δ/20.
    assert 700 < record.n < 1000
    assert (record.unknown_share, record.bound, record.delta) == (0.2, 0.15, 0.1)
    known, other = (
        classifier.predict(part, verbose=0).accepted.mean() for part in (x, unknown)
    )
    assert record.known_coverage == pytest.approx(known)
    assert record.unknown_coverage == pytest.approx(other)
    assert other < 0.8 * plain.predict(unknown, verbose=0).accepted.mean()
    assert record.coverage == pytest.approx(0.8 * known + 0.2 * other, abs=0.03)
    assert f"unknown_coverage={other:.4g}" in repr(classifier)
    path = tmp_path / "classifier.keras"
    classifier.save(path)
    loaded = SelectiveClassifier.load(path)
    assert loaded.record == record
    assert loaded.threshold == classifier.threshold
    # On other data, by the definition of the mixture's risk.
    test_x, test_y = draw(n=3000, seed=1)
    test_unknown = strange(3000, seed=6)
    figures = loaded.evaluate(test_x, test_y, unknown=test_unknown, verbose=0)
    labels, accepted, _ = loaded.predict(test_x, verbose=0)
    other = (loaded.predict(test_unknown, verbose=0).labels != ABSTAINED).mean()
    wrong = (accepted & (labels != test_y)).mean()
    answered = 0.8 * accepted.mean() + 0.2 * other
    right = test_x.argmax(-1) == test_y
    assert figures.pop("selective_risk_bound") > figures["selective_risk"]
    assert figures == pytest.approx(
        {
            "coverage": answered,
            "selective_risk": (0.8 * wrong + 0.2 * other) / answered,
            "accuracy": 0.8 * right.mean(),
            "known_coverage": accepted.mean(),
            "unknown_coverage": other,
        }
    )
    assert figures["selective_risk"] < 0.15
    # The share of the fit is the default.
    stated = loaded.evaluate(
        test_x, test_y, unknown=test_unknown, unknown_share=0.2, verbose=0
    )
    assert stated["selective_risk"] == figures["selective_risk"]
    # Without unknown inputs, the figures are those of the known ones.
    found = loaded.evaluate(test_x, test_y, verbose=0)
    assert found["coverage"] == pytest.approx(accepted.mean())
    assert "unknown_coverage" not in found


def test_the_bound_of_an_evaluation_holds():
    x, y = draw(n=9000)
    unknown = strange(4000)
    classifier = SelectiveClassifier(identity()).fit(
        x[:900], y[:900], coverage=0.7, verbose=0
    )
    with pytest.raises(ValueError, match="`unknown_share` must be the share of"):
        classifier.evaluate(x[900:], y[900:], unknown=unknown, verbose=0)
    options = {"unknown_share": 0.1, "delta": 0.2, "verbose": 0}
    truth = classifier.evaluate(x[900:], y[900:], unknown=unknown, **options)
    rng = np.random.default_rng(0)
    missed = []
    for _ in range(40):
        rows, others = rng.integers(900, 9000, 400), rng.integers(0, 4000, 40)
        found = classifier.evaluate(
            x[rows], y[rows], unknown=unknown[others], **options
        )
        missed.append(found["selective_risk_bound"] < truth["selective_risk"])
    assert np.mean(missed) < 0.4


def test_one_sigmoid_unit():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1500)
    z = (4 * y[:, None] - 2 + rng.normal(size=(1500, 1))).astype("float32")
    unknown = rng.normal(size=(300, 1)).astype("float32")
    classifier = fit(SelectiveClassifier(identity(1)), z, y, unknown)
    assert classifier.record.unknown_coverage < 0.7 < classifier.record.known_coverage
    # Almost all answers to known inputs are right.
    plain = SelectiveClassifier(identity(1))
    plain.fit(z, y, risk=0.15, delta=0.1, verbose=0)
    assert plain.predict(unknown, verbose=0).accepted.all()


def test_a_calibrator_sees_known_inputs_only():
    x, y = draw(n=2000)
    calibrator = TemperatureScaling()
    expected = SelectiveClassifier(identity(), calibrator=calibrator)
    expected.fit(x, y, coverage=0.9, verbose=0)
    found = SelectiveClassifier(identity(), csf="auto", calibrator=calibrator)
    fit(found, x, y, strange())
    temperature = expected.calibrator.temperature
    assert found.calibrator.temperature == pytest.approx(temperature)
    assert found.record.choice


def test_data_sets_and_ignored_classes():
    x, y = draw(n=1200)
    unknown = strange()
    holes = np.where(np.arange(1200) < 200, ABSTAINED, y)
    found = SelectiveClassifier(identity(), ignore_class=ABSTAINED)
    fit(found, x, holes, unknown)
    # What is ignored is not unknown.
    accepted = found.predict(x[200:], verbose=0).accepted.mean()
    assert found.record.known_coverage == pytest.approx(accepted)
    batches = [(x[i : i + 100], y[i : i + 100]) for i in range(0, 1200, 100)]
    other = [(unknown[:100],), (unknown[100:],)]
    found = SelectiveClassifier(identity())
    found.fit(batches, unknown=other, unknown_share=0.2, risk=0.2, delta=0.1, verbose=0)
    accepted = found.predict(unknown, verbose=0).accepted.mean()
    assert found.record.unknown_coverage == pytest.approx(accepted)


def test_drift_is_tested_against_the_mixture():
    x, y = draw(n=3000)
    unknown = strange(1000)
    classifier = fit(SelectiveClassifier(identity()), x, y, unknown, share=0.4)
    new_x, new = draw(n=1200, seed=3)[0], strange(800, seed=9)
    assert not classifier.check(np.concatenate([new_x, new]), verbose=0).drifted
    assert classifier.check(new_x, verbose=0).drifted


def test_what_cannot_be_promised():
    x, y = draw(n=2000)
    classifier = SelectiveClassifier(identity())
    with pytest.raises(ValueError, match=r"No threshold has a risk of at most 0\.15"):
        fit(classifier, x, y, strange(20), share=0.5)
    assert classifier.threshold is None


@pytest.mark.parametrize(
    ("name", "options", "arguments"),
    [
        ("unknown_share", {}, {"unknown_share": None}),
        ("unknown_share", {}, {"unknown_share": 1.5}),
        ("unknown_share", {}, {"unknown": None}),
        ("unknown", {}, {"unknown": strange()[:0]}),
        ("unknown", {}, {"unknown": strange() * np.nan}),
        ("coverage", {}, {"coverage": 0.9, "risk": None, "delta": None}),
        ("costs", {}, {"costs": np.eye(3), "risk": None, "delta": None}),
        ("groups", {}, {"groups": np.arange(300)}),
        ("sample_weight", {}, {"sample_weight": np.full(300, 2.0)}),
    ],
)
def test_bad_arguments(name, options, arguments):
    x, y = draw(n=300)
    classifier = SelectiveClassifier(identity(), **options)
    given = {"unknown": strange(), "unknown_share": 0.2, "risk": 0.2, "delta": 0.1}
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        classifier.fit(x, y, **{**given, **arguments}, verbose=0)


def test_tokens_and_several_labels_are_refused():
    x, y = draw(n=300)
    tokens, given = x.reshape(30, 10, 3), {"risk": 0.3, "delta": 0.1, "verbose": 0}
    given |= {"unknown_share": 0.2}
    with (
        pytest.warns(UserWarning, match="several predictions for each input"),
        pytest.raises(ValueError, match="`unknown` must be None unless each"),
    ):
        SelectiveClassifier(identity(10, 3)).fit(
            tokens, y.reshape(30, 10), unknown=tokens, **given
        )
    several = SelectiveClassifier(identity(3), multi_label=True)
    with pytest.raises(ValueError, match="`unknown` must be None unless each"):
        several.fit(x, np.eye(3)[y], unknown=x, **given)


def test_check_knows_the_mixture():
    x, y = draw(n=1500)
    classifier = SelectiveClassifier(identity())
    options = {"unknown": strange(), "unknown_share": 0.1, "verbose": 0}
    classifier.fit(x, y, risk=0.3, delta=0.1, **options)
    policy = classifier.to_policy()
    with pytest.raises(ValueError, match="mixture with unknown inputs"):
        classifier.check(*draw(n=300, seed=1), verbose=0)
    with pytest.raises(ValueError, match="mixture with unknown inputs"):
        policy.check(*draw(n=300, seed=1))
    both = np.concatenate([draw(n=270, seed=1)[0], strange(30, seed=6)])
    assert not classifier.check(both, verbose=0).drifted
    # The record names the data that were given, without the unknown inputs.
    plain = SelectiveClassifier(identity()).fit(x, y, coverage=0.9, verbose=0)
    assert classifier.record.fingerprint == plain.record.fingerprint


def test_an_unmet_target_says_what_the_mixture_was_drawn_from():
    x, y = draw(n=300, k=3)
    target = {"risk": 0.1, "delta": 0.1, "unknown_share": 0.1, "verbose": 0}
    message = "drawn from 300 known and 3 unknown inputs, a share of 0.1 unknown"
    with pytest.raises(ValueError, match=message):
        SelectiveClassifier(identity()).fit(x, y, unknown=strange(3), **target)
