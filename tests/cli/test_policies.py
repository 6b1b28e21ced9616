"""The commands fit, apply and check: one policy instead of raw and calibrated files."""

import csv
import json

import numpy as np
import pytest

from keras_selcal import Policy, TemperatureScaling
from keras_selcal.cli import main
from keras_selcal.cli.files import read_predictions

pytestmark = pytest.mark.backend_free


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def many(n=2000, seed=0, k=3):
    """Returns logits that are twice too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k)) * 2
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    labels = (p.cumsum(axis=-1) > rng.random((n, 1))).argmax(axis=-1)
    return 2 * logits, labels


def saved(path, seed=0, n=2000, **more):
    logits, labels = many(n, seed)
    np.savez(path, logits=logits, labels=labels, **more)
    return logits, labels


def fitted(*arguments, **more):
    logits, labels = saved("validation.npz", **more)
    main(["fit", "validation.npz", "--risk", "0.1", *arguments])
    return Policy.load("policy.json"), logits, labels


def refused(capsys, arguments, told):
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_fit_writes_the_policy_of_the_library(capsys):
    policy, logits, labels = fitted("--delta", "0.1", class_names=["a", "b", "c"])
    text = capsys.readouterr().out
    expected = Policy.fit(
        logits,
        labels,
        risk=0.1,
        delta=0.1,
        calibrator=TemperatureScaling(),
        class_names=["a", "b", "c"],
    )
    assert repr(policy) == repr(expected)
    assert policy.class_names == ("a", "b", "c")
    assert "msp of probabilities calibrated by TemperatureScaling" in text
    assert "On the 1,000 samples that the threshold was selected on" in text
    assert "with probability 90\xa0%, at most 10\xa0% of the answers" in text
    # The promise holds on new data, by and large.
    new, truth = many(seed=5)
    labels, accepted, _ = policy.predict(new)
    assert (labels != truth)[accepted].mean() < 0.11


def test_options_of_fit(capsys):
    policy, *_ = fitted("--method", "none", "--csf", "max_logit")
    assert policy.calibrator is None
    assert policy.csf.__name__ == "max_logit"
    assert "max_logit of raw logits" in capsys.readouterr().out
    main(["fit", "validation.npz", "--coverage", "0.5", "-o", "b.json"])
    assert "at most" in capsys.readouterr().out
    assert Policy.load("b.json").record.target_coverage == 0.5
    main(["fit", "validation.npz", "--coverage", "0.5", "--csf", "auto"])
    assert "Score: " in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["csv", "npz", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_apply_writes_answers(suffix, named, capsys):
    if suffix == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
    names = ["a", "b", "c"]
    policy, *_ = fitted(**({"class_names": names} if named else {}))
    new, _ = many(200, seed=1)
    # Classes are matched by name.
    order = [2, 0, 1] if named else [0, 1, 2]
    more = {"class_names": np.array(names)[order]} if named else {}
    np.savez("new.npz", logits=new[:, order], **more)
    out = f"answers.{suffix}"
    main(["apply", "policy.json", "new.npz", "-o", out])
    answers, p = policy.predict(new), policy.predict_proba(new)
    assert f"{100 * answers.accepted.mean():.1f}\xa0% of 200" in capsys.readouterr().out
    if suffix == "npz":
        found = np.load(out)
        np.testing.assert_array_equal(found["answers"], answers.labels)
        np.testing.assert_array_equal(found["accepted"], answers.accepted)
        np.testing.assert_array_equal(found["confidence"], answers.confidence)
        np.testing.assert_array_equal(found["probs"], p)
        assert "labels" not in found
        return
    if suffix == "csv":
        with open(out, newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = parquet.read_table(out).to_pylist()
    words = names if named else ["0", "1", "2"]
    expected = [words[i] if i >= 0 else "abstain" for i in answers.labels]
    assert [row["answer"] for row in rows] == expected
    for c in range(3):
        column = names[c] if named else f"p{c}"
        found = [float(row[column]) for row in rows]
        np.testing.assert_allclose(found, p[:, c], rtol=1e-6)
    found = [float(row["confidence"]) for row in rows]
    np.testing.assert_allclose(found, answers.confidence, rtol=1e-6)


def test_a_single_sample_and_names_that_need_quotes(capsys):
    names = ['a, "b"', "größe; x", "=1+1"]
    policy, *_ = fitted(class_names=names)
    logits, _ = many(1, seed=1)
    np.savez("one.npz", logits=logits, class_names=names)
    main(["apply", "policy.json", "one.npz"])
    with open("answers.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    answer = int(policy.predict(logits, from_logits=True).labels[0])
    assert row["answer"] == [*names, "abstain"][answer]
    found = [float(row[name]) for name in names]
    np.testing.assert_allclose(found, policy.predict_proba(logits)[0], rtol=1e-6)
    # One row of probabilities is told by its key.
    np.savez("probs.npz", probs=np.array(found)[None], class_names=names)
    refused(capsys, ["apply", "policy.json", "probs.npz"], "must hold logits")
    np.savez("nan.npz", logits=np.full((1, 3), np.nan), class_names=names)
    refused(capsys, ["apply", "policy.json", "nan.npz"], "must be finite numbers")


def test_a_policy_for_each_class(capsys):
    """Python fits it; the commands apply it."""
    logits, labels = many()
    policy = Policy.fit(logits, labels, risk=0.3, delta=0.1, per_class=True)
    policy.save("policy.json")
    new, _ = saved("new.npz", seed=1)
    main(["apply", "policy.json", "new.npz", "-o", "answers.npz"])
    found = np.load("answers.npz")["answers"]
    np.testing.assert_array_equal(found, policy.predict(new).labels)
    main(["check", "policy.json", "new.npz"])
    assert capsys.readouterr().out.endswith("No alarm.\n")


def test_numbered_columns_have_the_order_of_the_file():
    """Parameters and names are in the order of the file, as the user's arrays are."""
    logits, labels = saved("validation.npz", class_names=["2", "0", "1"])
    order = np.array([2, 0, 1])
    np.savez(
        "validation.npz",
        logits=logits,
        labels=order[labels],
        class_names=order.astype(str),
    )
    main(["fit", "validation.npz", "--risk", "0.1", "--method", "histogram"])
    policy = Policy.load("policy.json")
    assert policy.class_names == ("2", "0", "1")
    answers = policy.predict(logits)
    assert (answers.labels == labels)[answers.accepted].mean() > 0.85
    main(["apply", "policy.json", "validation.npz", "-o", "answers.npz"])
    found = np.load("answers.npz")
    np.testing.assert_array_equal(found["answers"], answers.labels)
    # Without names, class i is column i.
    np.savez("plain.npz", logits=logits[:, np.argsort(order)])
    main(["apply", "policy.json", "plain.npz", "-o", "plain_answers.npz"])
    found = np.load("plain_answers.npz")
    np.testing.assert_array_equal(found["answers"], answers.labels)


def test_several_labels_and_one_unit(capsys):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 2)) * 3
    y = (rng.random(z.shape) < 1 / (1 + np.exp(-z))).astype(int)
    names = ["joy", "fear"]
    np.savez("v.npz", logits=z, labels=y, class_names=names)
    main(["fit", "v.npz", "--risk", "0.1", "--multi-label"])
    assert "for every label at once" in capsys.readouterr().out
    main(["apply", "policy.json", "v.npz"])
    answers = Policy.load("policy.json").predict(z)
    with open("answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, said, accepted in zip(rows, answers.labels, answers.accepted, strict=True):
        true = [n for n, x in zip(names, said, strict=True) if x == 1]
        assert row["answer"] == ";".join(true)
        unsure = [n for n, x in zip(names, accepted, strict=True) if not x]
        assert row["abstain"] == ";".join(unsure)
    assert {"joy", "fear", "confidence of joy", "label"} <= rows[0].keys()
    main(["check", "policy.json", "v.npz"])
    captured = capsys.readouterr()
    assert "No alarm." in captured.out
    assert "data that the policy was fitted on" in captured.err
    p = 1 / (1 + np.exp(-z[:, 0]))
    np.savez("one.npz", probs=p, labels=y[:, 0])
    main(["fit", "one.npz", "--risk", "0.1", "-o", "one.json"])
    main(["apply", "one.json", "one.npz", "-o", "one.csv"])
    with open("one.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    policy = Policy.load("one.json")
    found = [-1 if row["answer"] == "abstain" else int(row["answer"]) for row in rows]
    np.testing.assert_array_equal(found, policy.predict(p).labels)
    np.savez("two.npz", probs=np.stack([1 - p, p], axis=-1))
    refused(capsys, ["apply", "one.json", "two.npz"], "must be of one sigmoid unit")


def test_check_tells_an_alarm_by_its_status(capsys):
    fitted()
    saved("same.npz", seed=3)
    main(["check", "policy.json", "same.npz"])
    text = capsys.readouterr().out
    assert "does not contradict the promise" in text
    assert text.endswith("No alarm.\n")
    logits, labels = many(500, seed=4)
    np.savez("drifted.npz", logits=logits / 10)
    np.savez("wrong.npz", logits=logits, labels=(labels + 1) % 3)
    for path, told in (("drifted", "differ from"), ("wrong", "contradicts the prom")):
        with pytest.raises(SystemExit) as exit_:
            main(["check", "policy.json", f"{path}.npz"])
        assert exit_.value.code == 1
        text = capsys.readouterr().out
        assert told in text
        assert text.endswith("Alarm: do not rely on the policy's promise.\n")


def test_mixtures_are_refused(capsys):
    fitted(class_names=["a", "b", "c"])
    logits, labels = many(seed=7)
    np.savez("other.npz", logits=logits, labels=labels)
    main(["calibrate", "other.npz", "-o", "calibrated.npz"])
    assert "does not apply to calibrated ones" in " ".join(
        capsys.readouterr().out.split()
    )
    assert read_predictions("calibrated.npz").calibrator == "TemperatureScaling"
    main(["threshold", "other.npz", "--risk", "0.1"])
    assert "Confidence: msp of raw logits, as they are in" in capsys.readouterr().out
    main(["threshold", "calibrated.npz", "--risk", "0.1"])
    text = capsys.readouterr().out
    assert "probabilities that TemperatureScaling has calibrated" in text
    main(["threshold", "other.npz", "--risk", "0.1", "--policy", "policy.json"])
    text = capsys.readouterr().out
    assert "calibrated by TemperatureScaling, of policy.json" in text
    to = ["--risk", "0.1", "--policy", "policy.json"]
    for arguments, told in (
        (["threshold", "calibrated.npz", *to], "was calibrated by TemperatureScaling"),
        (["threshold", "validation.npz", *to], "other data than those"),
        (["threshold", "other.npz", *to, "--csf", "margin"], "--csf must be msp"),
        (["apply", "policy.json", "calibrated.npz"], "outputs of the model itself"),
        (["check", "policy.json", "calibrated.npz"], "outputs of the model itself"),
        (["fit", "calibrated.npz", "--risk", "0.1"], "outputs of the model itself"),
        (
            ["threshold", "other.npz", "--risk", "0.1", "--test", "calibrated.npz"],
            "both files must be raw",
        ),
    ):
        refused(capsys, arguments, told)


def test_the_threshold_of_a_policy_is_for_its_confidences(capsys):
    policy, *_ = fitted()
    logits, _ = saved("other.npz", seed=7)
    capsys.readouterr()
    main(["threshold", "other.npz", "--coverage", "0.5", "--policy", "policy.json"])
    text = capsys.readouterr().out
    at = float(text.partition("at least ")[2].partition(".\n")[0])
    assert np.mean(policy.predict(logits).confidence >= at) == pytest.approx(0.5)
    # What the same command does without the policy is another number.
    main(["threshold", "other.npz", "--coverage", "0.5"])
    assert f"at least {at}." not in capsys.readouterr().out


def test_errors_are_one_sentence_and_write_nothing(tmp_path, capsys):
    fitted(class_names=["a", "b", "c"])
    logits, labels = many(50)
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.savez("probs.npz", probs=p)
    np.savez("four.npz", logits=np.c_[logits, logits[:, 0]])
    np.savez("names.npz", logits=logits, class_names=["x", "b", "c"])
    np.savez("new.npz", logits=logits, labels=labels)
    entries = json.loads((tmp_path / "policy.json").read_text())
    (tmp_path / "newer.json").write_text(json.dumps({**entries, "version": 2}))
    (tmp_path / "bad.json").write_text("{}")
    before = sorted(path.name for path in tmp_path.iterdir())
    for arguments, told in (
        (["apply", "policy.json", "probs.npz"], "must hold logits, which policy.json"),
        (["apply", "policy.json", "four.npz"], "as many classes as policy"),
        (["apply", "policy.json", "names.npz"], "are not the classes of policy.json"),
        (["apply", "newer.json", "new.npz"], "newer keras_selcal"),
        (["apply", "bad.json", "new.npz"], "saved by `Policy.save`"),
        (["apply", "none.json", "new.npz"], "none.json"),
        (["apply", "policy.json", "none.npz"], "there is no such file"),
        (["apply", "policy.json", "new.npz", "-o", "a.txt"], "must end in .csv"),
        (["check", "policy.json", "probs.npz"], "must hold logits"),
        (["check", "policy.json", "new.npz", "--false-alarm-rate", "2"], "false_alarm"),
        (["fit", "new.npz", "--risk", "0.1", "-o", "a.npz"], "must end in .json"),
        (["fit", "probs.npz", "--risk", "0.1"], "needs the key `labels`"),
        (["fit", "new.npz", "--risk", "0.001", "-o", "b.json"], "No threshold has"),
        (["fit", "new.npz", "--risk", "7", "-o", "b.json"], "`risk` must be"),
        (["fit", "new.npz"], "--risk --coverage"),
        (["fit", "new.npz", "--coverage", "1", "--delta", "0.1"], "belongs to `risk`"),
    ):
        refused(capsys, arguments, told)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    np.savez(
        "v.npz", logits=many()[0], labels=many()[1], class_names=["a", "b", "abstain"]
    )
    main(["fit", "v.npz", "--risk", "0.1", "-o", "v.json"])
    refused(capsys, ["apply", "v.json", "v.npz"], "a class has the name 'abstain'")
