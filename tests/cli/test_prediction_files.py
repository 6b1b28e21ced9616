"""Files of predictions whose columns and labels could be read in two ways."""

import numpy as np
import pytest

from keras_selcal.cli import main
from keras_selcal.cli.files import read_predictions

pytestmark = pytest.mark.backend_free

PROBS = np.array([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2]])


def read(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    return read_predictions(path)


def test_numbered_columns_are_read_by_their_number(tmp_path):
    found = read(tmp_path, "p1,p0,label\n0.9,0.1,1\n0.2,0.8,0\n")
    np.testing.assert_array_equal(found.y_pred, [[0.1, 0.9], [0.8, 0.2]])
    names = sorted(f"p{i}" for i in range(12))  # p0, p1, p10, p11, p2, …
    rows = [",".join(str(float(name == f"p{i}")) for name in names) for i in range(12)]
    lines = [",".join([*names, "label"]), *(f"{row},{i}" for i, row in enumerate(rows))]
    found = read(tmp_path, "\n".join(lines))
    np.testing.assert_array_equal(found.y_pred, np.eye(12))
    np.testing.assert_array_equal(found.labels, np.arange(12))
    found = read(tmp_path, "z1,z0,label\n3,-1,1\n-2,4,0\n")
    assert found.from_logits
    for head in ("p1,p2", "p0,z1", "p00,p2"):
        with pytest.raises(ValueError, match="count from 0"):
            read(tmp_path, f"{head},label\n0.9,0.1,1\n")


def test_classes_with_numbers_for_names_are_found_by_their_number(tmp_path):
    head = "1,2,3,label\n"
    for labels in (("1", "2"), ("1.0", "2.0")):
        rows = "".join(f".8,.1,.1,{label}\n" for label in labels)
        np.testing.assert_array_equal(read(tmp_path, head + rows).labels, [0, 1])
    with pytest.raises(ValueError, match=r"'0' of sample 0 is not .* names: 1, 2, 3"):
        read(tmp_path, f"{head}.8,.1,.1,0\n")
    for names in (np.array([1, 2, 3]), np.array(["1", "2", "3"])):
        for labels in (np.array([1, 2]), np.array([1.0, 2.0]), np.array([[1], [2]])):
            np.savez(tmp_path / "a.npz", probs=PROBS, labels=labels, class_names=names)
            found = read_predictions(tmp_path / "a.npz")
            np.testing.assert_array_equal(found.labels, [0, 1])
        np.savez(tmp_path / "a.npz", probs=PROBS, labels=[0, 1], class_names=names)
        with pytest.raises(ValueError, match="the label '0' of sample 0 is not"):
            read_predictions(tmp_path / "a.npz")
    # Multi-label files look their labels up in the same way.
    (tmp_path / "a.csv").write_text("3,2,1,label\n.8,.1,.1,1;3\n")
    found = read_predictions(tmp_path / "a.csv", multi_label=True)
    np.testing.assert_array_equal(found.labels, [[1, 0, 1]])


def test_a_column_of_zeros_may_be_no_class(tmp_path):
    with pytest.warns(UserWarning, match="'fold' has probability 0 in every sample"):
        read(tmp_path, "cat,dog,fold,label\n.8,.2,0,cat\n.3,.7,0,dog\n")


def test_names_of_bytes(tmp_path):
    names = np.array([b"a", b"b", b"c"])
    np.savez(tmp_path / "a.npz", probs=PROBS, labels=names[:2], class_names=names)
    found = read_predictions(tmp_path / "a.npz")
    np.testing.assert_array_equal(found.labels, [0, 1])
    assert found.class_names == ["a", "b", "c"]


def test_independent_sigmoids_are_told_of_the_option(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, probs=np.full((2, 3), 0.9), labels=np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"must sum to 1.*--multi-label"):
        read_predictions(path)


def test_indices_and_one_hot_labels_of_the_same_samples_agree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", probs=PROBS, labels=[0, 1])
    np.savez("b.npz", probs=PROBS, labels=np.eye(3)[:2])
    main(["report", "a.npz", "b.npz", "--bootstrap", "20"])
    assert (tmp_path / "report.html").exists()


def test_a_damaged_archive_is_told_in_a_sentence(tmp_path, rng):
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, logits=rng.normal(size=(400, 5)), labels=np.arange(400))
    content = bytearray(path.read_bytes())
    content[200:1200] = bytes(1000)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a \.npz archive of plain arrays"):
        read_predictions(path)
