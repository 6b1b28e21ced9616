"""The commands calibrate, threshold and compare, help, and backends."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import LABELS, NAMES, PROBS, refused
from processes import finish, start

from keras_selcal import TemperatureScaling, select_threshold
from keras_selcal._backend import installed as backend
from keras_selcal.cli import main
from keras_selcal.cli.files import read_predictions
from keras_selcal.selective import risk_bound

pytestmark = pytest.mark.backend_free


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def many(n=400, seed=0):
    """Returns logits that are twice too large, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)) * 2
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    labels = (p.cumsum(axis=-1) > rng.random((n, 1))).argmax(axis=-1)
    return 2 * logits, labels


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_calibrate_writes_predictions_that_the_other_commands_read(capsys, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    logits, labels = many()
    np.savez("fit.npz", logits=logits, labels=labels, class_names=["a", "b", "c"])
    new, truth = many(seed=1)
    np.savez("new.npz", logits=new, labels=truth, class_names=["a", "b", "c"])
    out = f"out.{suffix}"
    main(["calibrate", "fit.npz", "--apply", "new.npz", "-o", out])
    text = capsys.readouterr().out
    calibrator = TemperatureScaling().fit(logits, labels)
    assert f"temperature={calibrator.temperature:.4g}" in text
    assert "On new.npz:" in text
    read = read_predictions(out)
    np.testing.assert_allclose(read.y_pred, calibrator.predict_proba(new), rtol=1e-6)
    np.testing.assert_array_equal(read.labels, truth)
    assert read.class_names == ["a", "b", "c"]
    loaded = TemperatureScaling.load("calibrator.npz")
    assert loaded.temperature == calibrator.temperature
    main(["compare", "new.npz", out, "--bootstrap", "100"])
    assert "Negative log-likelihood: out is better" in capsys.readouterr().out


def test_calibrate_chooses_the_method(capsys):
    logits, labels = many(n=200)
    np.savez("fit.npz", logits=logits, labels=labels)
    main(["calibrate", "fit.npz", "--method", "auto", "--parameters", "p.json"])
    text = capsys.readouterr().out
    assert "Chosen: TemperatureScaling, the simplest" in text
    assert re.search(r"Identity +\d\.\d{4} +\d\.\d{4}\n", text)
    record = json.loads(Path("p.json").read_text("utf-8"))
    assert record["calibrator"] == "TemperatureScaling"
    calibrator = TemperatureScaling().fit(logits, labels)
    assert record["parameters"]["temperature"] == calibrator.temperature
    read = read_predictions("calibrated.npz")
    expected = calibrator.predict_proba(logits)
    np.testing.assert_allclose(read.y_pred, expected, rtol=1e-6)


def test_calibrate_applies_to_predictions_without_labels(tmp_path, capsys):
    logits, labels = many()
    np.savez("fit.npz", logits=logits, labels=labels)
    np.savez("new.npz", logits=logits[:5])
    arguments = ["calibrate", "fit.npz", "--apply", "new.npz", "-o", "p.csv"]
    main([*arguments, "--parameters", "p.json", "--method", "histogram"])
    assert "metric" not in capsys.readouterr().out
    assert (tmp_path / "p.csv").read_text().startswith("p0,p1,p2\n")
    record = json.loads((tmp_path / "p.json").read_text())
    assert record["calibrator"] == "HistogramBinning"
    assert "parameters" in record


def test_calibrate_says_that_figures_of_the_fit_are_too_good(capsys):
    logits, labels = many()
    np.savez("fit.npz", logits=logits, labels=labels)
    main(["calibrate", "fit.npz"])
    assert "samples of the fit and a little too good" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "value"), [("risk", 0.1), ("coverage", 0.5)])
def test_threshold_is_that_of_the_library_with_the_guarantee_in_words(
    capsys, target, value
):
    logits, labels = many(2000)
    np.savez("fit.npz", logits=logits, labels=labels)
    arguments = ["threshold", "fit.npz", f"--{target}", str(value), "--csf", "margin"]
    main([*arguments, "--delta", "0.1", "--test", "fit.npz"])
    text = capsys.readouterr().out
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    ordered = np.sort(p, axis=-1)
    scores, correct = ordered[:, -1] - ordered[:, -2], p.argmax(axis=-1) == labels
    options = {"delta": 0.1} if target == "risk" else {}
    accepted = scores >= select_threshold(scores, correct, **{target: value}, **options)
    shown = float(re.search(r"at least (\S+)\.\n", text)[1])
    np.testing.assert_array_equal(scores >= shown, accepted)
    assert f"({accepted.sum():,})" in text
    errors = int((~correct)[accepted].sum())
    bound = value if target == "risk" else risk_bound(errors, accepted.sum(), 0.1)
    at_most = f"{100 * bound:.3g}" if target == "risk" else f"{100 * bound:.1f}"
    assert f"with probability 90\xa0%, at most {at_most}\xa0%" in text
    assert "On fit.npz it answers" in text


def test_threshold_of_each_label(capsys):
    rng = np.random.default_rng(0)
    probs = rng.random((300, 2))
    labels = (rng.random((300, 2)) < probs).astype(int)
    np.savez("a.npz", probs=probs, labels=labels, class_names=["joy", "fear"])
    main(["threshold", "a.npz", "--coverage", "0.5", "--multi-label"])
    text = capsys.readouterr().out
    assert re.search(r"\njoy .* 50\.0\xa0% ", text)
    assert "for every label at once" in text


def test_the_printed_threshold_of_each_label_answers_what_the_table_says(capsys):
    rng = np.random.default_rng(0)
    doubt = 10.0 ** rng.uniform(-9, -2, (1000, 2))
    labels = rng.random((1000, 2)) < 0.5
    probs = np.where(labels, 1 - doubt, doubt)
    wrong = rng.random((1000, 2)) < 0.2 * (np.log10(doubt) + 9) / 7
    np.savez("a.npz", probs=probs, labels=labels ^ wrong)
    main(["threshold", "a.npz", "--coverage", "0.3", "--multi-label"])
    rows = re.findall(r"\n\d +(0\.\d+) +(\S+)\xa0%", capsys.readouterr().out)
    assert len(rows) == 2
    for label, (shown, answered) in enumerate(rows):
        assert float(answered) == 30
        confidence = np.maximum(probs, 1 - probs)[:, label]
        assert 100 * np.mean(confidence >= float(shown)) == 30


def test_a_label_that_no_threshold_serves_is_never_answered(capsys):
    rng = np.random.default_rng(0)
    labels = rng.random((300, 2)) < 0.5
    probs = np.stack([np.where(labels[:, 0], 0.9, 0.1), rng.random(300)], axis=1)
    np.savez("a.npz", probs=probs, labels=labels)
    main(["threshold", "a.npz", "--risk", "0.1", "--multi-label", "--test", "a.npz"])
    text = capsys.readouterr().out
    assert len(re.findall(r"\n1 +never +0\xa0% +–", text)) == 2


def test_compare_says_in_words_what_differs(capsys):
    logits, labels = many()
    np.savez("a.npz", logits=logits, labels=labels)
    np.savez("b.npz", logits=logits / 2, labels=labels)
    main(["compare", "a.npz", "b.npz", "same=a.npz", "--bootstrap", "100"])
    text = capsys.readouterr().out
    assert "b compared with a, 95\xa0% intervals of the difference:" in text
    assert "- Negative log-likelihood: b is better, " in text
    assert "- Equal: Accuracy" in text
    assert "same compared with a" in text


def test_bad_arguments_of_the_other_commands_are_one_line(capsys):
    logits, labels = many(20)
    np.savez("a.npz", logits=logits, labels=labels)
    np.savez("p.npz", probs=PROBS, labels=LABELS)
    np.savez("two.npz", logits=logits[:, :2])
    np.savez("bare.npz", logits=logits)
    for arguments, told in (
        (["compare", "a.npz"], "two or more files"),
        (["calibrate", "bare.npz"], "needs the key `labels`. Found: logits"),
        (["calibrate", "a.npz", "--apply", "two.npz"], "as many classes as a"),
        (["calibrate", "a.npz", "--apply", "p.npz"], "both files must hold logits"),
        (["calibrate", "a.npz", "-o", "x.txt"], "must end in .npz or .csv or .parquet"),
        (["calibrate", "a.npz", "-o", "calibrator.npz"], "need two files"),
        (["threshold", "a.npz"], "one of the arguments --risk --coverage is required"),
        (["threshold", "a.npz", "--risk", "0.01"], "No threshold has a risk of at"),
        (["threshold", "a.npz", "--risk", "2"], "`risk` must be"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


def test_parquet_files_as_users_have_them(capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"label": NAMES[:2] * 2, "__index_level_0__": range(4)}
    columns |= dict(zip(NAMES, PROBS.T, strict=True))
    parquet.write_table(pyarrow.table(columns), "a.parquet")
    read = read_predictions("a.parquet")
    np.testing.assert_array_equal(read.labels, [0, 1, 0, 1])
    np.testing.assert_array_equal(read.y_pred, PROBS)
    assert read.class_names == NAMES
    (Path("b.parquet")).write_text("no table")
    refused(capsys, ["b.parquet"], "not a .parquet file")


def test_help_tells_the_formats_without_importing_keras():
    # Keras cannot be imported with a backend that does not exist.
    command = ("-m", "keras_selcal", "report", "--help")
    text = finish(start(*command, KERAS_BACKEND="none"))
    for word in ("logits", "probs", "labels", "class_names", "images", "label", "p0"):
        assert word in text


# Hides packages, as if they were not installed, and runs a command.
REPORT_WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Rest(PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        hidden = f"{name}.".startswith(HIDDEN)
        return None if hidden else super().find_spec(name, *rest)

sys.meta_path[sys.meta_path.index(PathFinder)] = Rest
from keras_selcal.cli import main
main(["report", "a.npz", "--bootstrap", "0"])
main(["calibrate", "a.npz", "-o", "b.npz", "--parameters", "b.json"])
main(["threshold", "a.npz", "--coverage", "0.5"])
main(["compare", "a.npz", "b.npz", "--bootstrap", "10"])
assert not any(f"{name}.".startswith(HIDDEN) for name in sys.modules)
"""


def test_commands_need_no_keras():
    np.savez("a.npz", probs=PROBS, labels=LABELS)
    hidden = ("keras.", "jax", "scipy", "sklearn", "torch", "tensorflow")
    text = finish(start("-c", f"HIDDEN = {hidden}\n{REPORT_WITHOUT}"))
    assert "Calibration report of a: 4 samples" in text


@pytest.mark.parametrize("chosen", ["torch", "nothing"])
def test_a_missing_backend_is_explained_in_two_lines(monkeypatch, chosen):
    hidden = {"torch"} if chosen == "torch" else {"torch", "jax", "tensorflow"}
    monkeypatch.setattr(
        backend, "find_spec", lambda name: None if name in hidden else object()
    )
    monkeypatch.delitem(sys.modules, "keras")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    with pytest.raises(ImportError, match="torch, which it would use") as error:
        backend.require_backend()
    assert len(str(error.value).splitlines()) == 2
    remedy = "KERAS_BACKEND=jax" if chosen == "torch" else "pip install"
    assert remedy in str(error.value)


def test_the_chosen_backend_is_that_of_keras(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert backend.chosen_backend() == "tensorflow"
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert backend.chosen_backend() == "jax"
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert backend.chosen_backend() == "torch"
