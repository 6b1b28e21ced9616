"""The command line: what it reads, what it writes, and how it refuses."""

import io
import os
import sys
import zipfile

import numpy as np
import pytest
from command_line import LABELS, NAMES, PROBS, refused, run

from keras_selcal import CalibrationReport

pytestmark = pytest.mark.backend_free
LOGITS = np.log(PROBS)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def test_an_output_that_lacks_characters_gets_others(monkeypatch):
    np.savez("a.npz", probs=PROBS, labels=LABELS)
    for encoding in ("ascii", "cp1252"):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
        run("a.npz")
        sys.stdout.flush()
        assert "? lower is better" in written.getvalue().decode(encoding)


def test_several_models_are_compared_with_the_first(tmp_path, capsys):
    images = np.zeros((4, 2, 2), np.uint8)
    np.savez("a.npz", probs=PROBS, labels=LABELS, class_names=NAMES, images=images)
    np.savez("b.npz", probs=PROBS[:, ::-1], labels=LABELS)
    run("a.npz", "other one=b.npz")
    text = capsys.readouterr().out
    assert "Difference other one − a on the same 4 samples" in text
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<strong>other one</strong> is right" in page
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
    assert "accuracy                75" in captured.out


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
    named = {"class_names": ["joy", "love", "fear"]}
    for file, options in (("a.npz", {}), ("b.csv", named), ("c.csv", {})):
        run(f"x={file}", "--multi-label")
        report = CalibrationReport(
            labels, probs, multi_label=True, bootstrap=20, name="x", **options
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
            "`labels` holds Python objects; store numbers or strings",
        ),
        (
            broken(labels=np.array([b"\xe4", b"b", b"c", b"c"])),
            "`labels` must be strings, or bytes in UTF-8",
        ),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path, capsys, data, told):
    np.savez("a.npz", **data)
    refused(capsys, ["a.npz"], told)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file has blank lines only"),
        ("label,a,b,a\n0,0.2,0.3,0.5\n", "two columns have the name 'a'"),
        ("label,z0,z1\n0,0.2,0.8\n1,0.3,0.7\n", "`logits` hold probabilities"),
        ("label,a,b\n0,-2,3\n1,4,1\n", "if they are logits, call them `logits`"),
        ("label,p0\n1,0.7\n", "is `p0` of class 1? Then call it `p`"),
        ("p0,p1\n0.5,0.5\n", "one column `label`. Found: p0, p1"),
        ("label,p0,p1\n0,0.5\n", "sample 0 has 2 cells, the header 3"),
        ("label,p0,p1\n0,0.5,0.5\n1,0.5,half\n", "'half' in sample 1 is not a number"),
        ("y,p0,p1\nTrue,0.5,0.5\n", "(column `y`; labels belong in a column `label`"),
        ("label;p0;p1\n0;0.5;0.5\n", "must be separated by commas"),
        (
            "label,id,p0,p1\n0,7,0.5,0.5\n",
            "not predictions must be removed, or named by --groups or --slices: id",
        ),
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
        (["a.npz", "b.npz"], "b.npz: the labels differ from the labels in a.npz"),
        (["a.npz", "-o", "x/y.html"], "there is no folder x"),
        (["a.npz", "--bootstrap", "-3"], "`bootstrap` must be"),
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
