"""Policies: a selective classifier without its model, in a file of JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from calibrator_data import ALL, draw, draw_events
from classifier_data import identity

import keras_selcal
from keras_selcal import (
    HistogramBinning,
    Policy,
    SelectiveClassifier,
    TemperatureScaling,
    csf,
)
from keras_selcal._formulas.functions import softmax
from keras_selcal.calibrators import Calibrator
from keras_selcal.csf.names import BUILT_IN

alone = pytest.mark.backend_free


def written(policy, folder):
    path = folder / "policy.json"
    policy.save(path)
    return Policy.load(path)


def assert_same_answers(found, expected):
    """Backends round confidences differently, and steep curves amplify that."""
    np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-4)
    np.testing.assert_array_equal(found.accepted, expected.accepted)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.labels.dtype == expected.labels.dtype


def assert_identical(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def compare(classifier, x, folder):
    """Checks a classifier's policy, before and after it was in a file."""
    policy = classifier.to_policy()
    outputs = classifier.model.predict(x, verbose=0)
    answers = policy.predict(outputs)
    assert 0 < answers.accepted.mean() < 1
    assert_same_answers(answers, classifier.predict(x, verbose=0))
    loaded = written(policy, folder)
    assert_identical(loaded.predict(outputs), answers)
    assert loaded.record == classifier.record
    np.testing.assert_allclose(
        loaded.predict_proba(outputs),
        classifier.predict_proba(x, verbose=0),
        atol=1e-4,
    )
    return loaded


@pytest.mark.parametrize("name", [None, *ALL])
@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_every_calibrator(name, activation, tmp_path):
    x, y = draw()
    calibrator = name and ALL[name]()
    model = identity(4, activation=activation)
    classifier = SelectiveClassifier(model, calibrator=calibrator)
    # MetaAcc rejects most samples.
    classifier.fit(x, y, coverage=0.1 if name == "meta_acc" else 0.6, verbose=0)
    compare(classifier, x, tmp_path)


@pytest.mark.parametrize("score", [*BUILT_IN, csf.MaxLogitPNorm(2.5), "auto"])
def test_every_score(score, tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(
        identity(4), csf=score, calibrator=TemperatureScaling()
    )
    classifier.fit(x, y, coverage=0.6, verbose=0)
    loaded = compare(classifier, x, tmp_path)
    assert csf.name_of(loaded.csf) == csf.name_of(classifier.csf)


@pytest.mark.parametrize("activation", ["linear", "sigmoid"])
@pytest.mark.parametrize("d", [0.5, 0.3])
def test_sigmoids(activation, d, tmp_path):
    z, y = draw_events()
    for multi_label, x, labels in ((True, z, y), (False, z[:, :1], y[:, 0])):
        classifier = SelectiveClassifier(
            identity(x.shape[1], activation=activation),
            calibrator=TemperatureScaling(multi_label=multi_label),
            multi_label=multi_label,
            decision_threshold=d,
        )
        classifier.fit(x, labels, coverage=0.7, verbose=0)
        loaded = compare(classifier, x, tmp_path)
        assert loaded.num_classes == (3 if multi_label else 2)
        if not multi_label:
            outputs = classifier.model.predict(x, verbose=0)
            flat = loaded.predict(outputs[:, 0])
            assert_identical(flat, loaded.predict(outputs))


def pixels(seed):
    x, y = draw(n=160, seed=seed)
    return x.reshape(10, 4, 4, 4).transpose(0, 3, 1, 2), y.reshape(10, 4, 4)


def test_pixels_and_channels_first(tmp_path):
    x, y = pixels(0)
    classifier = SelectiveClassifier(
        identity(4, 4, 4), axis=1, ignore_class=3, calibrator=HistogramBinning(axis=1)
    )
    classifier.fit(x, y, coverage=0.5, verbose=0, groups="first_axis")
    loaded = compare(classifier, x, tmp_path)
    with pytest.warns(UserWarning, match="data that the policy was fitted on"):
        loaded.check(x, y)
    x, y = pixels(1)
    check = loaded.check(x, y)
    expected = classifier.check(x, y, verbose=0)
    assert check.n == expected.n == 10
    assert check.selective_risk == pytest.approx(expected.selective_risk)


def test_nan_abstains(tmp_path):
    x, y = draw()
    classifier = SelectiveClassifier(identity(4), calibrator=TemperatureScaling())
    classifier.fit(x, y, coverage=0.9, verbose=0)
    x = x[:6].copy()
    x[1, 2], x[3], x[4, 1] = np.nan, np.nan, -np.inf
    answers = classifier.to_policy().predict(x)
    assert answers.labels[[1, 3]].tolist() == [-1, -1]
    assert np.isnan(answers.confidence[[1, 3]]).all()
    assert_same_answers(answers, classifier.predict(x, verbose=0))
    empty = classifier.to_policy().predict(x[:0])
    assert [part.shape for part in empty] == [(0,)] * 3


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("score", ["msp", "auto"])
def test_fit_as_the_classifier(multi_label, score):
    """The halves, the calibrator and the threshold are those of the classifier."""
    x, y = draw_events() if multi_label else draw()
    options = {"risk": 0.4, "delta": 0.1}
    calibrator = TemperatureScaling(multi_label=multi_label)
    given = {"csf": score, "calibrator": calibrator, "multi_label": multi_label}
    classifier = SelectiveClassifier(identity(x.shape[1]), **given)
    classifier.fit(x, y, **options, verbose=0)
    policy = Policy.fit(x, y, **options, **given)
    assert policy.threshold == pytest.approx(classifier.threshold, rel=1e-5)
    np.testing.assert_allclose(
        policy.calibrator.temperature, classifier.calibrator.temperature, rtol=1e-6
    )
    assert_same_records(policy.record, classifier.record)
    assert_same_answers(policy.predict(x), classifier.predict(x, verbose=0))
    assert not calibrator.fitted


def assert_same_records(ours, theirs):
    assert ours.confidence == pytest.approx(theirs.confidence, rel=1e-5)
    rest = {"confidence": (), "date": "", "fingerprint": None}
    assert replace(ours, **rest) == replace(theirs, **rest)
    assert ours.fingerprint is not None


def test_fit_per_class_as_the_classifier(tmp_path):
    x, y = draw()
    options = {"coverage": 0.6, "per_class": True}
    classifier = SelectiveClassifier(identity(4)).fit(x, y, **options, verbose=0)
    policy = Policy.fit(x, y, **options)
    np.testing.assert_allclose(policy.threshold, classifier.threshold, rtol=1e-5)
    assert policy.threshold.shape == (4,)
    assert_same_records(policy.record, classifier.record)
    expected = classifier.predict(x, verbose=0)
    assert_same_answers(policy.predict(x), expected)
    assert_same_answers(written(policy, tmp_path).predict(x), expected)


def test_calibrator_of_the_other_kind(tmp_path):
    """A calibrator that was fitted on logits calibrates a model of probabilities."""
    x, y = draw()
    calibrator = TemperatureScaling().fit(x[:300], y[:300])
    classifier = SelectiveClassifier(
        identity(4, activation="softmax"), calibrator=calibrator
    )
    classifier.fit(x[300:], y[300:], coverage=0.5, verbose=0)
    assert not compare(classifier, x, tmp_path).from_logits


def small(**options):
    x, y = draw()
    return Policy.fit(x, y, **{"coverage": 0.6, **options}), x, y


@alone
def test_answers_are_those_of_the_formula():
    policy, x, _ = small(calibrator=TemperatureScaling())
    p = softmax(x.astype("float64") / policy.calibrator.temperature, np)
    confidence = p.max(-1)
    near = abs(confidence - policy.threshold) < 1e-6
    accepted = confidence >= policy.threshold
    answers = policy.predict(x)
    np.testing.assert_array_equal(answers.accepted[~near], accepted[~near])
    expected = np.where(answers.accepted, p.argmax(-1), -1)
    np.testing.assert_array_equal(answers.labels, expected)
    # Another precision gives the same answers.
    assert_identical(policy.predict(x.astype("float64")), answers)
    assert_identical(policy.predict(x.tolist()), answers)


@alone
def test_check_and_promise():
    policy, *_ = small(risk=0.4, delta=0.1, coverage=None)
    new, truth = draw(n=1000, seed=7)
    check = policy.check(new, truth)
    assert not check.drifted
    assert check.risk_holds
    assert check.promised_risk == 0.4
    assert policy.check(new).selective_risk is None
    assert policy.check(0.2 * new).drifted
    wrong = policy.check(new, (truth + 1) % 4)
    assert wrong.risk_holds is False
    with pytest.raises(ValueError, match="false_alarm_rate"):
        policy.check(new, false_alarm_rate=2)
    with pytest.raises(ValueError, match="finite"):
        policy.check(np.full((5, 4), np.nan))
    bare = replace(policy, record=None)
    with pytest.raises(ValueError, match="call `fit` again"):
        bare.check(new)


@alone
def test_the_file_is_strict_json(tmp_path):
    """Labels that are never answered have a threshold of ∞, and a risk of NaN."""
    z, y = draw_events()
    y = np.stack([y[:, 0], np.random.default_rng(0).integers(0, 2, len(y))], axis=-1)
    z = np.stack([z[:, 0], 0.1 * z[:, 1]], axis=-1)
    with pytest.warns(UserWarning, match="never answered"):
        policy = Policy.fit(
            z, y, risk=0.1, delta=0.1, multi_label=True, class_names=["ä", "b"]
        )
    loaded = written(policy, tmp_path)
    text = (tmp_path / "policy.json").read_text("utf-8")
    entries = json.loads(text, parse_constant=pytest.fail)
    assert entries["threshold"][1] == "inf"
    assert entries["record"]["selective_risk"][1] == "nan"
    assert entries["class_names"] == ["ä", "b"]
    assert (entries["version"], entries["from_logits"]) == (1, True)
    assert entries["record"]["delta"] == 0.1
    assert loaded.class_names == ("ä", "b")
    assert loaded.threshold[1] == np.inf
    assert_identical(loaded.predict(z), policy.predict(z))
    assert (loaded.predict(z).labels[:, 1] == -1).all()
    # A second round is the same file.
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text("utf-8") == text
    assert "bound=0.1" in repr(loaded)


@alone
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "newer keras_selcal"),
        ({"format": "other"}, "saved by `Policy.save`"),
        ({"extra": 1}, "unknown entries: extra"),
        ({"threshold": None}, "threshold"),
        ({"threshold": "nan"}, "threshold"),
        ({"threshold": [0.5, 0.5]}, "threshold"),
        ({"from_logits": "no"}, "true or false"),
        ({"num_outputs": 5}, "of 4 classes"),
        ({"num_outputs": 0}, "num_outputs"),
        ({"class_names": ["a"]}, "4 names"),
        ({"csf": {"name": "os.system"}}, "is not known"),
        ({"csf": {"name": "msp", "p": 3}}, "is not known"),
        ({"csf": "msp"}, "not valid"),
        ({"calibrator": {"name": "load"}}, "not valid"),
        ({"calibrator": {}}, "not valid"),
        ({"record": {"n": 3}}, "not valid"),
        ({"axis": 0}, "axis"),
        ({"threshold": [[0.5] * 4] * 4}, "threshold"),
        ({"decision_threshold": 0.3}, "decision_threshold"),
    ],
)
def test_bad_files(change, told, tmp_path):
    policy, *_ = small(calibrator=TemperatureScaling())
    path = tmp_path / "policy.json"
    policy.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match="`path` must be") as error:
        Policy.load(path)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@alone
@pytest.mark.parametrize(
    "change",
    [
        {"n": None},
        {"n": 2.5},
        {"date": 3},
        {"coverage": None},
        {"coverage": []},
        {"selective_risk": [0.1] * 4},
        {"bound": [0.4] * 4},
        {"delta": None},
        {"unknown_share": 0.1},
        {"confidence": 0.5},
        {"confidence": [0.5, None]},
        {"class_risk": [0.1]},
    ],
)
def test_bad_records(change, tmp_path):
    policy, *_ = small(risk=0.4, delta=0.1, coverage=None)
    path = tmp_path / "policy.json"
    policy.save(path)
    entries = json.loads(path.read_text())
    entries["record"] |= change
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="not valid") as error:
        Policy.load(path)
    assert "\n" not in str(error.value)


@alone
def test_files_that_are_no_policies(tmp_path):
    policy, *_ = small(calibrator=TemperatureScaling())
    path = tmp_path / "policy.json"
    policy.save(path)
    entries = json.loads(path.read_text())
    parameters = entries["calibrator"]["parameters"]
    for bad in (None, [1.0, 2.0], "x", "nan", {}):
        parameters["temperature"] = bad
        path.write_text(json.dumps(entries))
        with pytest.raises(ValueError, match="not valid"):
            Policy.load(path)
    del entries["csf"]
    path.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match="no entry 'csf'"):
        Policy.load(path)
    for text in ("", "[]", "3", "{", '{"format": NaN}', "[" * 100_000, "\xff"):
        path.write_text(text, "latin-1")
        with pytest.raises(ValueError, match=r"saved by `Policy\.save`"):
            Policy.load(path)
    with pytest.raises(FileNotFoundError):
        Policy.load(tmp_path / "none.json")


@alone
def test_other_outputs_are_refused():
    policy, x, _ = small()
    p = softmax(x, np)
    with pytest.raises(ValueError, match=r"of shape \(\.\.\., 4\)"):
        policy.predict(x[:, :3])
    with pytest.raises(ValueError, match=r"of shape \(\.\.\., 4\)"):
        policy.predict(x[0])
    with pytest.raises(ValueError, match="logits, which the policy was fitted on"):
        policy.predict(p)
    with pytest.raises(ValueError, match="an array of numbers"):
        policy.predict([["a", "b", "c", "d"]])
    of_p = Policy.fit(p, draw()[1], coverage=0.5, from_logits=False)
    with pytest.raises(ValueError, match="probabilities, which the policy was fitted"):
        of_p.predict(x)
    z, y = draw_events()
    of_z = Policy.fit(z[:, 0], y[:, 0], coverage=0.5)
    with pytest.raises(ValueError, match="logits, which the policy was fitted on"):
        of_z.predict(1 / (1 + np.exp(-z[:, 0])))
    with pytest.raises(ValueError, match=r"of shape \(\.\.\., 1\)"):
        of_z.predict(z[:, :2])
    with pytest.raises(ValueError, match="max_logit"):
        Policy.fit(p, draw()[1], coverage=0.5, from_logits=False, csf="max_logit")
    with pytest.raises(ValueError, match="coverage"):
        Policy.fit(x, draw()[1])
    with pytest.raises(ValueError, match="4 names"):
        small(class_names=["a"])


@alone
def test_what_outputs_are_can_be_told():
    of_z, x, y = small()
    p = softmax(x, np)
    of_p = Policy.fit(p, y, coverage=0.5, from_logits=False)
    for policy, own, other in ((of_z, x, p), (of_p, p, x)):
        told = policy.from_logits
        for call in (policy.predict, policy.predict_proba, policy.check):
            call(own, from_logits=told)
            with pytest.raises(ValueError, match=f"`from_logits` must be {told}: the "):
                call(own, from_logits=not told)
            # Of the other kind: one sample, a few, some of them NaN, and equal ones.
            gaps = other.copy()
            gaps[::7] = np.nan
            for rows in (other[:1], other, np.repeat(other[:1], 3, 0), gaps):
                with pytest.raises(ValueError, match="`outputs` must be"):
                    call(rows)
    # By chance logits of one sample sum to 1.
    row = [[0.5, 0.25, 0.25, 0.0]]
    with pytest.raises(ValueError, match="pass `from_logits=True` if"):
        of_z.predict(row)
    assert of_z.predict(row, from_logits=True).confidence.shape == (1,)
    assert of_z.predict(np.full((3, 4), np.nan)).labels.tolist() == [-1] * 3


@alone
def test_errors_name_the_arguments():
    x, y = draw()
    policy, *_ = small()
    weight = np.zeros(len(x))
    for call, name in (
        (lambda: Policy.fit(x, y[:5], coverage=0.5), "labels"),
        (lambda: Policy.fit(x, y + 9, coverage=0.5), "labels"),
        (lambda: Policy.fit(x, softmax(x, np), coverage=0.5), "labels"),
        (lambda: Policy.fit(x, y, coverage=0.5, sample_weight=weight), "labels"),
        (lambda: Policy.fit(x * np.inf, y, coverage=0.5), "outputs"),
        (lambda: Policy.fit(x, y, coverage=0.5, from_logits=False), "outputs"),
        (lambda: Policy.fit(softmax(x, np), y, coverage=0.5), "outputs"),
        (lambda: Policy.fit(3.0, 1, coverage=0.5), "outputs"),
        (
            lambda: Policy.fit(x[:1], y[:1], coverage=0.5, calibrator="auto"),
            "outputs",
        ),
        (lambda: policy.check(x * np.nan), "outputs"),
        (lambda: policy.check(x, sample_weight=weight), "outputs"),
        (lambda: policy.check(x, y[:5]), "labels"),
    ):
        with pytest.raises(ValueError, match=f"^`{name}` must") as error:
            call()
        assert "y_pred" not in str(error.value)
        assert "y_true" not in str(error.value)


class Own(Calibrator):
    def _fit(self, data):
        return {"a": np.zeros(())}

    def _apply(self, logits, parameters, xp):
        return softmax(logits, xp)


@alone
def test_code_is_not_saved(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("before")
    with pytest.raises(ValueError, match="holds no code"):
        small(calibrator=Own())[0].save(path)
    with pytest.raises(ValueError, match="holds no code"):
        small(csf=lambda p: p[..., 0])[0].save(path)
    assert path.read_text() == "before"
    assert keras_selcal.Policy is keras_selcal.selective.Policy


@alone
def test_parameters_are_those_of_the_file(tmp_path):
    """What `docs/deploy.md` says of the file, for another language."""
    policy, x, _ = small(
        calibrator=TemperatureScaling(), risk=0.4, delta=0.1, coverage=None
    )
    policy.save(tmp_path / "policy.json")
    entries = json.loads((tmp_path / "policy.json").read_text())
    z = x.astype("float64") / entries["calibrator"]["parameters"]["temperature"]
    confidence = softmax(z, np).max(-1).astype("float32")
    accepted = confidence >= entries["threshold"]
    np.testing.assert_array_equal(accepted, policy.predict(x).accepted)
    record = entries["record"]
    assert (record["bound"], record["delta"], record["n"]) == (0.4, 0.1, 300)


@alone
def test_auto_and_bad_arguments():
    x, y = draw()
    policy = Policy.fit(x, y, coverage=0.9, calibrator="auto")
    assert policy.calibrator.chosen
    for options, name in (
        ({"calibrator": "best"}, "calibrator"),
        ({"calibrator": TemperatureScaling(multi_label=True)}, "calibrator"),
        ({"class_names": "abcd"}, "class_names"),
        ({"class_names": 4}, "class_names"),
        ({"class_names": {"a", "b", "c", "d"}}, "class_names"),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            Policy.fit(x, y, coverage=0.9, **options)


def test_costs_have_no_policy():
    x, y = draw()
    classifier = SelectiveClassifier(identity(x.shape[1]))
    classifier.fit(x, y, costs=1 - np.eye(x.shape[1]), verbose=0)
    with pytest.raises(ValueError, match="fitted with `costs`"):
        classifier.to_policy()
