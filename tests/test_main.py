"""The command line: what it reads, what it writes, and how it refuses."""

import json
import os
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from processes import finish, start

from keras_selcal import CalibrationReport, TemperatureScaling, select_threshold
from keras_selcal._core import backend
from keras_selcal.cli import main
from keras_selcal.cli.files import read_predictions
from keras_selcal.selective import risk_bound

pytestmark = pytest.mark.backend_free

LABELS = np.array([0, 1, 1, 2])
PROBS = np.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.3, 0.3, 0.4]])
LOGITS = np.log(PROBS)
NAMES = ["cat", "dog", "<b>cow</b>"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    main(["report", "--resamples", "20", *arguments])


def write_csv(path, head, rows, labels=LABELS):
    lines = [head]
    lines += [
        ",".join(map(str, (y, *row))) for y, row in zip(labels, rows, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def test_probabilities_and_logits_give_the_report_and_the_page(tmp_path, capsys):
    np.savez("a.npz", probs=PROBS, labels=LABELS)
    np.savez("b.npz", logits=LOGITS, labels=LABELS[:, None])
    for name, y_pred, from_logits in (("a", PROBS, False), ("b", LOGITS, True)):
        run(f"{name}.npz", "-o", f"{name}.html", "--csf", "margin", "--title", "A & B")
        report = CalibrationReport(
            LABELS,
            y_pred,
            from_logits=from_logits,
            csf="margin",
            bootstrap=20,
            name=name,
        )
        assert str(report) in capsys.readouterr().out
        page = (tmp_path / f"{name}.html").read_text("utf-8")
        assert "<title>A &amp; B</title>" in page


def test_several_models_are_compared_with_the_first(tmp_path, capsys):
    images = np.zeros((4, 2, 2), np.uint8)
    np.savez("a.npz", probs=PROBS, labels=LABELS, class_names=NAMES, images=images)
    np.savez("b.npz", probs=PROBS[:, ::-1], labels=LABELS)
    run("a.npz", "other one=b.npz")
    text = capsys.readouterr().out
    assert "Difference other one − a on the same 4 samples" in text
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<h3>other one against a</h3>" in page
    assert "&lt;b&gt;cow&lt;/b&gt;" in page
    assert page.count("<img") == 1 + 3


@pytest.mark.parametrize(
    ("head", "rows", "labels"),
    [
        ("label,p0,p1,p2", PROBS, LABELS),
        ("label,z0,z1,z2", LOGITS, LABELS),
        ("label,cat,dog,cow", PROBS, ["cat", "dog", "dog", "cow"]),
        ("label,cat,dog,cow", PROBS, [0, "dog", 1, 2]),
        ("\ufefflabel,2,1,0", PROBS, [2, 1, 1, 0]),
        ("label,p0,p1,p2", PROBS, ["0.0", "1.0", "1", "2.0"]),
        # pandas writes its index first.
        (",label,p0,p1,p2", np.c_[LABELS, PROBS], range(4)),
        ("Unnamed: 0,label,p0,p1,p2", np.c_[LABELS, PROBS], range(4)),
        ("label,p0,p1,p2", PROBS, ["ant", "bee", "bee", "cow"]),
    ],
)
def test_csv_files_as_users_have_them(tmp_path, capsys, head, rows, labels):
    write_csv(tmp_path / "a.csv", head, rows, labels)
    run("a.csv")
    report = CalibrationReport(LABELS, PROBS, bootstrap=20, name="a")
    assert str(report).replace("  ", "") in capsys.readouterr().out.replace("  ", "")


@pytest.mark.parametrize(
    "labels",
    [
        LABELS.astype("float32"),
        np.array(["0", "1", "1", "2"]),
        np.array(NAMES)[LABELS],
        np.array(NAMES)[LABELS].astype(bytes),
    ],
)
def test_labels_of_npz_files_as_users_have_them(capsys, labels):
    np.savez("a.npz", probs=PROBS, labels=labels, class_names=NAMES)
    run("a.npz")
    assert "\naccuracy " in capsys.readouterr().out
    report = CalibrationReport(LABELS, PROBS, bootstrap=0)
    assert report["accuracy"].value == 0.75


def test_names_without_an_order_are_sorted_with_a_note(capsys):
    np.savez("a.npz", probs=PROBS, labels=np.array(["ant", "bee", "bee", "cow"]))
    run("a.npz")
    captured = capsys.readouterr()
    assert "sorted order, as scikit-learn has them: ant, bee, cow" in captured.err
    assert "0.75000" in captured.out


SPAM = np.array([0.9, 0.2, 0.6, 0.3])
IS_SPAM = np.array([1, 0, 0, 1])


@pytest.mark.parametrize(
    ("head", "column", "labels"),
    [
        ("label,p", SPAM, IS_SPAM),
        ("label,z", np.log(SPAM / (1 - SPAM)), IS_SPAM),
        ("label,p1", SPAM, ["True", "False", "false", "true"]),
        ("label,spam", SPAM, ["spam", "not spam", "not spam", "spam"]),
        ("label,spam", SPAM, IS_SPAM),
    ],
)
def test_one_sigmoid_unit_in_a_csv_file(tmp_path, capsys, head, column, labels):
    write_csv(tmp_path / "a.csv", head, column[:, None], labels)
    run("a.csv")
    report = CalibrationReport(IS_SPAM, SPAM, bootstrap=20, name="a")
    assert str(report) == capsys.readouterr().out.rpartition("\n\n")[0]


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_sigmoid_unit_in_an_npz_file(capsys, shape):
    np.savez("a.npz", probs=SPAM.reshape(shape), labels=IS_SPAM.astype(bool))
    run("a.npz", "--decision-threshold", "0.25")
    report = CalibrationReport(
        IS_SPAM, SPAM, bootstrap=20, name="a", decision_threshold=0.25
    )
    assert str(report) == capsys.readouterr().out.rpartition("\n\n")[0]


def test_multi_label_files(tmp_path, capsys):
    probs = np.array([[0.9, 0.7, 0.1], [0.2, 0.4, 0.3], [0.6, 0.1, 0.8]])
    labels = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0]])
    np.savez("a.npz", probs=probs, labels=labels)
    write_csv(
        tmp_path / "b.csv", "label,joy,love,fear", probs, ["joy; love", "", "joy"]
    )
    write_csv(tmp_path / "c.csv", "label,p0,p1,p2", probs, ["0;1", "", "0"])
    for file in ("a.npz", "b.csv", "c.csv"):
        run(f"x={file}", "--multi-label")
        report = CalibrationReport(
            labels, probs, multi_label=True, bootstrap=20, name="x"
        )
        assert str(report) == capsys.readouterr().out.rpartition("\n\n")[0]
    refused(capsys, ["a.npz"], "`probs` of sample 0 must sum to 1")


def test_a_file_may_have_an_equals_sign(capsys):
    np.savez("lr=0.1.npz", probs=PROBS, labels=LABELS)
    run("lr=0.1.npz")
    assert "Calibration report of lr=0.1:" in capsys.readouterr().out


def broken(**changes):
    return {"probs": PROBS, "labels": LABELS, **changes}


def row(values):
    return np.concatenate([PROBS[:2], [values], PROBS[3:]])


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            {"labels": LABELS, "y": LABELS},
            "one of the keys `logits` and `probs`. Found: `labels`, `y`",
        ),
        (broken(logits=LOGITS), "one of the keys"),
        ({"probs": PROBS}, "the key `labels`. Found: probs"),
        ({}, "Found: none"),
        (broken(probs=PROBS[0]), "must have shape (3,) or (3, 1). Received: (4,)"),
        (broken(probs=PROBS[None]), "(n, k) with n ≥ 1 samples, or (n,) for one"),
        (broken(probs=PROBS[:0]), "Received: (0, 3)"),
        (broken(probs=PROBS.astype(str)), "`probs` must be numbers"),
        (broken(labels=LABELS[:3]), "Received: (3,)"),
        (broken(labels=np.array(["a", "b", "b", "0"])), "label 'a' of sample 0"),
        (broken(labels=LABELS.astype(complex)), "`labels` must be numbers"),
        (
            broken(labels=[0, 1, 3, 2]),
            "label of sample 2 must be one of 0 … 2. Received: 3",
        ),
        (broken(labels=[0, 1, 1.5, 2]), "must be one of 0 … 2. Received: 1.5"),
        (broken(labels=np.eye(4, 3)), "`labels` of sample 3 must sum to 1"),
        (
            broken(labels=np.ones((4, 3))),
            "`labels` of sample 0 must sum to 1; pass --multi-label",
        ),
        (broken(probs=row([1, 1, 0])), "`probs` of sample 2 must sum to 1; if"),
        (
            broken(probs=row([-1, 1, 1])),
            "`probs` of sample 2 must be in [0, 1]; if they are logits, call them "
            "`logits`",
        ),
        (broken(probs=LOGITS), "if they are logits, call them `logits`"),
        (
            {"logits": PROBS, "labels": LABELS},
            "`logits` hold probabilities: all are in [0, 1] and sum to 1; call them "
            "`probs`",
        ),
        (
            {"logits": SPAM, "labels": IS_SPAM},
            "`logits` hold probabilities: all are in [0, 1]; call them `probs`",
        ),
        (broken(probs=SPAM), "the label of sample 3 must be 0 or 1. Received: 2"),
        (
            broken(probs=row([np.nan, 1, 1])),
            "`probs` of sample 2 must be finite numbers",
        ),
        (
            {"logits": row([-np.inf] * 3), "labels": LABELS},
            "`logits` of sample 2 must not all be −∞",
        ),
        (broken(class_names=["a"]), "must be 3 names. Received: 1"),
        (broken(images=np.zeros((3, 2, 2))), "`images` must be 4 images"),
        (broken(images=np.float64(1)), "`images` must be 4 images"),
        (broken(images=np.zeros((4, 2))), "`images` must be of shape (4, h, w)"),
        (
            broken(labels=np.array([0, None, 1, 2])),
            "not a .npz archive of plain arrays",
        ),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path, capsys, data, told):
    np.savez("a.npz", **data)
    refused(capsys, ["a.npz"], told)
    assert not (tmp_path / "report.html").exists()


def refused(capsys, arguments, told):
    with pytest.raises(SystemExit) as exit_:
        run(*arguments)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "the file is empty"),
        ("\n", "not a table of comma-separated values"),
        ("label,a,b,a\n0,0.2,0.3,0.5\n", "two columns have the name 'a'"),
        ("label,z0,z1\n0,0.2,0.8\n1,0.3,0.7\n", "`logits` hold probabilities"),
        ("label,a,b\n0,-2,3\n1,4,1\n", "if they are logits, call them `logits`"),
        ("label,p0\n1,0.7\n", "is `p0` of class 1? Then call it `p`"),
        ("p0,p1\n0.5,0.5\n", "one column `label`. Found: p0, p1"),
        ("label,p0,p1\n0,0.5\n", "sample 0 has 2 cells, the header 3"),
        ("label,p0,p1\n0,0.5,0.5\n1,0.5,half\n", "'half' in sample 1 is not a number"),
        ("label,p0,p1\ncat,0.5,0.5\n", "the label 'cat' of sample 0 is not a class"),
        ("label,a,b\nc,0.5,0.5\n", "or one of the class names: a, b"),
        ("label,p0,p1\n", "Received: (0,)"),
    ],
)
def test_a_bad_table_is_one_line_and_exit_code_2(tmp_path, capsys, lines, told):
    (tmp_path / "a.csv").write_text(lines)
    refused(capsys, ["a.csv"], told)


def test_bad_arguments_are_one_line_and_exit_code_2(tmp_path, capsys):
    np.savez("a.npz", probs=PROBS, labels=LABELS)
    np.savez("b.npz", probs=PROBS, labels=LABELS[::-1])
    (tmp_path / "c.npz").write_text("no archive")
    (tmp_path / "e.npz").touch()
    np.save("d.npy", PROBS)
    os.rename("d.npy", "d.npz")
    (tmp_path / "sub").mkdir()
    np.savez("sub/a.npz", probs=PROBS, labels=LABELS)
    for arguments, told in (
        (["none.npz"], "none.npz: there is no such file"),
        (["a.txt"], "the name must end in .npz, .csv or .parquet"),
        (["c.npz"], "not a .npz archive but another kind of file"),
        (["d.npz"], "not a .npz archive but a .npy array"),
        (["e.npz"], "the file is empty"),
        (["a.npz", "sub/a.npz"], "two models have the name a; give"),
        (["a.npz", "b.npz"], "b.npz: the labels differ from those of a.npz"),
        (["a.npz", "-o", "x/y.html"], "there is no folder x"),
        (["a.npz", "--resamples", "-3"], "`bootstrap` must be"),
        (["a.npz", "--csf", "odds"], "invalid choice"),
        ([], "required"),
    ):
        refused(capsys, arguments, told)


@pytest.mark.parametrize("shape", [(10**12, 3), (2**62, 2)])
def test_a_header_that_claims_too_much_is_one_line(tmp_path, capsys, shape):
    np.savez("good.npz", probs=PROBS, labels=LABELS)
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    with zipfile.ZipFile("a.npz", "w") as archive:
        with archive.open("probs.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header)
            member.write(PROBS.tobytes())
        with zipfile.ZipFile("good.npz") as good:
            archive.writestr("labels.npy", good.read("labels.npy"))
    refused(capsys, ["a.npz"], f"`probs` claims the shape {shape}")


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
    main(["compare", "new.npz", out, "--resamples", "100"])
    assert "Negative log-likelihood: out is better" in capsys.readouterr().out


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


def test_compare_says_in_words_what_differs(capsys):
    logits, labels = many()
    np.savez("a.npz", logits=logits, labels=labels)
    np.savez("b.npz", logits=logits / 2, labels=labels)
    main(["compare", "a.npz", "b.npz", "same=a.npz", "--resamples", "100"])
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
        (["calibrate", "a.npz", "--apply", "two.npz"], "as many classes"),
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


# Hides JAX, as if it were not installed, but not what stands in for it.
WITHOUT_JAX = """
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] != "jax":
            return None
        for finder in sys.meta_path:
            if getattr(finder, "__name__", "") == "_Finder":
                return finder.find_spec(name)
        raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden)
from keras_selcal._core import backend
from keras_selcal.cli import main
main(["report", "a.npz", "--resamples", "0"])
assert "jax" not in sys.modules
"""


def test_report_runs_where_no_backend_is_installed():
    np.savez("a.npz", probs=PROBS, labels=LABELS)
    text = finish(start("-c", WITHOUT_JAX, KERAS_BACKEND="", KERAS_HOME="."))
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
