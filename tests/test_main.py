"""The command line: what it reads, what it writes, and how it refuses."""

import runpy
import sys

import numpy as np
import pytest

from keras_selcal import CalibrationReport
from keras_selcal.__main__ import main

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
    ],
)
def test_tables_of_commas(tmp_path, capsys, head, rows, labels):
    write_csv(tmp_path / "a.csv", head, rows, labels)
    run("a.csv")
    report = CalibrationReport(LABELS, PROBS, bootstrap=20, name="a")
    assert str(report).replace("  ", "") in capsys.readouterr().out.replace("  ", "")


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
        ({"probs": PROBS}, "the key `labels`. Found: `probs`"),
        ({}, "Found: none"),
        (broken(probs=PROBS[0]), "(n, k) with n ≥ 1 samples and k ≥ 2 classes"),
        (broken(probs=PROBS[:0]), "Received: (0, 3)"),
        (broken(probs=PROBS.astype(str)), "`probs` must be numbers"),
        (broken(labels=LABELS[:3]), "of shape (4,). Received: (3,)"),
        (broken(labels=LABELS.astype(str)), "`labels` must be class indices"),
        (broken(labels=[0, 1, 3, 2]), "sample 2 is 3, none of 0 … 2"),
        (broken(labels=[0, 1, 1.5, 2]), "sample 2 is 1.5"),
        (broken(labels=np.eye(4, 3)), "`labels` of sample 3 add up to 0, not to 1"),
        (
            broken(probs=row([1, 1, 2])),
            "`probs` of sample 2 add up to 4, not to 1; are these logits?",
        ),
        (broken(probs=row([-1, 1, 1])), "`probs` of sample 2 are negative (-1)"),
        (broken(probs=row([np.nan, 1, 1])), "`probs` of sample 2 holds no number"),
        (
            {"logits": row([-np.inf] * 3), "labels": LABELS},
            "`logits` of sample 2 are all −∞",
        ),
        (broken(class_names=["a"]), "must be 3 names, one a class. Received: 1"),
        (broken(images=np.zeros((3, 2, 2))), "`images` must be 4, one a sample"),
        (broken(images=np.zeros((4, 2))), "`images` must be of shape (4, h, w)"),
        (broken(labels=np.array([0, None, 1, 2])), "no .npz file of plain arrays"),
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
        ("", "no table of commas"),
        ("p0,p1\n0.5,0.5\n", "one column `label`. Found: p0, p1"),
        ("label,p0,p1\n0,0.5\n", "sample 0 has 2 cells, the header 3"),
        ("label,p0,p1\n0,0.5,0.5\n1,0.5,half\n", "'half' in sample 1 is no number"),
        ("label,p0,p1\ncat,0.5,0.5\n", "the label 'cat' of sample 0 is not a class"),
        ("label,a,b\nc,0.5,0.5\n", "or one of the header's names"),
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
    (tmp_path / "sub").mkdir()
    np.savez("sub/a.npz", probs=PROBS, labels=LABELS)
    for arguments, told in (
        (["none.npz"], "none.npz: there is no such file"),
        (["a.txt"], "must end in .npz or .csv"),
        (["c.npz"], "no .npz file of plain arrays"),
        (["a.npz", "sub/a.npz"], "two models are called a: tell them apart"),
        (["a.npz", "b.npz"], "b.npz: its labels are not those of a.npz"),
        (["a.npz", "-o", "x/y.html"], "there is no folder x"),
        (["a.npz", "--resamples", "-3"], "`bootstrap` must be"),
        (["a.npz", "--csf", "odds"], "invalid choice"),
        ([], "required"),
    ):
        refused(capsys, arguments, told)


def test_help_tells_the_formats(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras_selcal", "report", "--help"])
    monkeypatch.delitem(sys.modules, "keras_selcal.__main__")
    with pytest.raises(SystemExit) as exit_:
        runpy.run_module("keras_selcal", run_name="__main__", alter_sys=False)
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for word in ("logits", "probs", "labels", "class_names", "images", "label", "p0"):
        assert word in text
