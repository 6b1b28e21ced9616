"""Names and numbers of classes: one rule to read, match and write them."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_selcal import VectorScaling
from keras_selcal.cli import main
from keras_selcal.cli.files import read_predictions
from keras_selcal.cli.output import write_predictions

pytestmark = pytest.mark.backend_free

LABELS = np.array([0, 1, 2, 2, 1, 0, 1])
ORDER = [2, 0, 1]
NAMES = ["cat", "dog", "emu"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def probabilities(labels, k):
    """Returns probabilities of which 6 in 7 predict the label, with a bias to k − 1."""
    p = np.random.default_rng(0).uniform(0.05, 0.1, (len(labels), k))
    p[np.arange(len(labels)), labels] += 1.0
    p[::7] = np.roll(p[::7], 1, axis=1)
    p[:, -1] += 0.2
    return p / p.sum(axis=-1, keepdims=True)


def save(path, names, probs, labels, **arrays):
    """Writes a .npz or .csv file; labels are written as they are."""
    if path.endswith(".npz"):
        np.savez(path, probs=probs, labels=labels, class_names=names, **arrays)
        return
    rows = zip(labels, *np.transpose(probs), strict=True)
    lines = [["label", *names], *rows]
    text = "\n".join(",".join(map(str, line)) for line in lines)
    Path(path).write_text(text + "\n", "utf-8")


def accuracy(path, **options):
    read = read_predictions(path, **options)
    return np.mean(read.y_pred.argmax(axis=-1) == read.labels)


def refused(capsys, arguments, *told):
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(arguments)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for text in told:
        assert text in error


LISTS = {
    "plain": NAMES,
    "one-based": ["1", "2", "3"],
    "falling": ["2", "1", "0"],
    "signed": ["-1", "0", "1"],
    "floats": ["2.0", "0.0", "1.0"],
    "prefix": ["class_1", "class_2", "class_0"],
    "one-based prefix": ["class_1", "class_2", "class_3"],
    "number in the middle": ["p(1)", "p(0)", "p(2)"],
    "versions": ["v1.2", "v1.0", "v1.1"],
    "mixed": ["2", "cat", "dog"],
    "a number that is no position": ["5", "10", "other"],
    "large": ["9007199254740993", "9007199254740992", "1"],
    "two numbers": ["0 to 1", "1 to 2", "2 to 3"],
    "two classes": ["1", "0"],
    "bools": ["True", "False"],
    "sorted as text": sorted(map(str, range(12))),
    "prefix, sorted as text": sorted(f"class_{i}" for i in range(12)),
    "letters of columns": ["p1", "p0"],
    "commas": ["a,b", 'c"d', "é"],
    "none": None,
}


def test_names_may_be_bytes_in_utf_8():
    names = np.array(["狗", "Kätzchen", "emu"])
    of_bytes = np.char.encode(names, "utf-8")
    save("a.npz", of_bytes, probabilities(LABELS, 3), of_bytes[LABELS])
    read = read_predictions("a.npz")
    assert read.class_names == names.tolist()
    assert (read.labels == LABELS).all()


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("names", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("multi_label", [False, True])
def test_what_calibrate_writes_is_read_back_as_the_same(suffix, names, multi_label):
    k = len(names or NAMES)
    classes = np.random.default_rng(1).integers(0, k, 60)
    # The labels that occur must not change how they are read.
    for present in (classes, classes[classes > 0], np.full(5, k - 1)):
        y_pred, labels = probabilities(present, k), present
        if multi_label:
            labels = np.eye(k)[present] + np.roll(np.eye(k)[present], 1, axis=0) > 0
        words = {} if names is None else {"class_names": names}
        given = labels if multi_label or names is None else np.array(names)[labels]
        np.savez("a.npz", probs=y_pred, labels=given, **words)
        data = read_predictions("a.npz", multi_label)
        write_predictions(Path(f"out.{suffix}"), data, multi_label)
        read = read_predictions(f"out.{suffix}", multi_label)
        np.testing.assert_array_equal(read.y_pred, data.y_pred)
        np.testing.assert_array_equal(read.labels, data.labels)
        assert read.class_names in (data.class_names, None)
        if suffix == "npz" and names:  # in the order of the file
            np.testing.assert_array_equal(np.load("out.npz")["class_names"], names)
            np.testing.assert_array_equal(np.load("out.npz")["probs"], y_pred)


ATOMS = "0 1 2 10 -1 1.0 01 True class_0 class_1 class_2 cat a;b label p p0 p1 z0 z1"
ANY_NAME = st.sampled_from([*ATOMS.split(), "", " x", "é,", "not 1"])


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(ANY_NAME, min_size=2, max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from(["csv", "npz"]),
)
def test_any_names_are_read_back_as_the_same_or_refused(names, seed, multi, suffix):
    rng = np.random.default_rng(seed)
    k, n = len(names), rng.integers(1, 6)
    labels = rng.integers(0, k, n)
    probs = rng.dirichlet(np.ones(k), n)
    multi_hot = np.eye(k)[labels] + np.eye(k)[labels[::-1]] > 0
    np.savez("a.npz", probs=probs, labels=multi_hot if multi else labels)
    data = read_predictions("a.npz", multi)._replace(class_names=names)
    data = data._replace(path="a.npz").by_number()
    out = Path(f"any.{suffix}")
    out.unlink(missing_ok=True)
    try:
        write_predictions(out, data, multi)
    except ValueError:
        assert not out.exists()
        return
    read = read_predictions(out, multi)
    np.testing.assert_array_equal(read.y_pred, data.y_pred)
    np.testing.assert_array_equal(read.labels, data.labels)
    assert read.class_names in (data.class_names, None)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("form", ["{}", "class_{}", "{} points", "p{}"])
def test_columns_that_are_numbered_are_read_by_their_number(suffix, form):
    numbers = sorted(range(12), key=str)  # 0, 1, 10, 11, 2, …
    labels = np.random.default_rng(0).integers(0, 12, 70)
    probs = probabilities(labels, 12)
    names = [form.format(i) for i in numbers]
    words = [form.format(i) for i in labels]
    for written in (labels, labels if form == "p{}" else words):
        save(f"a.{suffix}", names, probs[:, numbers], written)
        read = read_predictions(f"a.{suffix}")
        np.testing.assert_array_equal(read.y_pred, probs)
        np.testing.assert_array_equal(read.labels, labels)
        main(["calibrate", f"a.{suffix}", "-o", f"out.{suffix}"])
        assert accuracy(f"out.{suffix}") == accuracy(f"a.{suffix}") > 0.8


@pytest.mark.parametrize("names", [["True", "False"], [1, 0], ["1", "0"]])
@pytest.mark.parametrize("kind", [bool, int, float])
def test_labels_that_are_bool_are_numbers(names, kind):
    # The first column is that of class 1; class 1 is the positive one.
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    np.savez("a.npz", probs=probs, labels=np.array([1, 0, 1], kind), class_names=names)
    read = read_predictions("a.npz")
    np.testing.assert_array_equal(read.labels, [1, 0, 1])
    np.testing.assert_array_equal(read.y_pred, probs[:, ::-1])
    assert read.class_names == [str(name) for name in names[::-1]]


@pytest.mark.parametrize("name", ["0", "False", "0.0", "class_0", "p0"])
def test_one_column_of_class_0_is_refused(capsys, name):
    save("a.csv", [name], [[0.9], [0.2]], [0, 1])
    refused(capsys, ["report", "a.csv"], f"is `{name}` of class 1? Then call it `p`")


@pytest.mark.parametrize("name", ["1", "True", "1.0", "class_1", "class_10", "spam"])
def test_one_column_of_class_1(name):
    for labels in ([1, 0], ["True", "False"]):
        save("a.csv", [name], [[0.9], [0.2]], labels)
        np.testing.assert_array_equal(read_predictions("a.csv").labels, [1, 0])


def test_the_classes_of_one_sigmoid_unit_are_not_turned_around(capsys):
    np.savez("a.npz", probs=[0.9, 0.2], labels=[1, 0], class_names=["1", "0"])
    refused(capsys, ["report", "a.npz"], "the probability of the second class", "1, 0")


@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_numbers_that_can_be_read_in_two_ways_are_refused(suffix):
    path = f"a.{suffix}"
    counted, mixed = ["class_1", "class_2", "class_3"], ["2", "cat", "dog"]
    for names, labels, found in (
        (counted, [1, 2, 3], [0, 1, 2]),
        (counted, [0, 1, 2], [0, 1, 2]),
        (counted, ["class_2", "class_3", "class_3"], [1, 2, 2]),
        (mixed, mixed, [0, 1, 2]),
        (mixed, [0, 1, 2], [0, 1, 2]),
    ):
        save(path, names, np.eye(3), labels)
        np.testing.assert_array_equal(read_predictions(path).labels, found)
    for names, labels in ((counted, [1, 2, 2]), (mixed, [2, 2, 2])):
        save(path, names, np.eye(3), labels)
        with pytest.raises(ValueError, match="positions, counted from 0, or the num"):
            read_predictions(path)
    save(path, ["1", "01", "2"], np.eye(3), [1, 2, 2])
    with pytest.raises(ValueError, match="two classes have the same number"):
        read_predictions(path)


@pytest.mark.parametrize("suffix", ["csv", "npz"])
@pytest.mark.parametrize("names", [NAMES, ["7", "8", "9"]])
def test_classes_of_two_files_are_matched_by_name(capsys, suffix, names):
    a, b, out = f"a.{suffix}", f"b.{suffix}", f"out.{suffix}"
    labels = np.tile(LABELS, 10)
    probs = probabilities(labels, 3)
    permuted = [names[i] for i in ORDER]
    save(a, names, probs, np.array(names)[labels])
    save(b, permuted, probs[:, ORDER], np.array(names)[labels])
    method = ["--method", "vector"]
    main(["calibrate", a, "-o", f"same.{suffix}", *method])
    main(["calibrate", a, "--apply", b, "-o", out, *method])
    same, read = read_predictions(f"same.{suffix}"), read_predictions(out)
    assert read.class_names == permuted
    np.testing.assert_array_equal(read.y_pred, same.y_pred[:, ORDER])
    assert accuracy(out) == accuracy(f"same.{suffix}") > 0.8
    capsys.readouterr()
    main(["compare", a, b, "--bootstrap", "10"])
    assert "is better" not in capsys.readouterr().out
    main(["report", a, b, "--bootstrap", "0", "--unknown", a, "--unknown", b])
    capsys.readouterr()
    # The first file with names gives the order.
    np.savez("bare.npz", probs=probs, labels=labels)
    arguments = ["compare", "bare.npz", a, b, "--bootstrap", "10"]
    main([*arguments, "--unknown", b, "--unknown", a, "--unknown", b])
    text = capsys.readouterr().out
    assert "is better" not in text
    assert "is worse" not in text
    save(b, [*permuted[:2], "yak"], probs[:, ORDER], [names[2]] * len(labels))
    for arguments in (
        ["calibrate", a, "--apply", b],
        ["compare", a, b],
        ["report", a, "--unknown", b],
        ["threshold", a, "--coverage", "0.5", "--test", b],
    ):
        lists = ", ".join([*permuted[:2], "yak"]), ", ".join(names)
        refused(
            capsys, arguments, f"classes {lists[0]} are not the classes of a.", lists[1]
        )


def test_parameters_are_in_the_order_of_the_file_of_the_fit():
    names = ["class_1", "class_2", "class_0"]
    labels = np.tile(LABELS, 10)
    probs = probabilities(labels, 3)
    np.savez("a.npz", probs=probs, labels=np.array(names)[labels], class_names=names)
    # Positions in a file without names are class numbers.
    np.savez("bare.npz", probs=probs[:, ORDER])
    for apply in ("a.npz", "bare.npz"):
        main(["calibrate", "a.npz", "--apply", apply, "--method", "vector"])
        calibrator = VectorScaling.load("calibrator.npz")
        expected = calibrator.predict_proba(probs)
        found = np.load("calibrated.npz")["probs"]
        shown = found if apply == "a.npz" else found[:, np.argsort(ORDER)]
        np.testing.assert_allclose(shown, expected, rtol=1e-5)
        direct = VectorScaling(from_logits=False).fit(probs, labels)
        np.testing.assert_allclose(direct.predict_proba(probs), expected, rtol=1e-5)


def test_multi_hot_cells_of_a_table_are_refused():
    for k, cells in ((3, ["1;0;1", "0;0;0"]), (2, ["0;1", "1;1"])):
        save("a.csv", NAMES[:k], np.full((2, k), 0.3), cells)
        with pytest.raises(ValueError, match="is there twice; a cell lists the labels"):
            read_predictions("a.csv", multi_label=True)


def test_labels_of_two_files_are_matched_by_name(capsys):
    rng = np.random.default_rng(0)
    probs = rng.random((300, 3)) ** [1, 2, 4]
    labels = rng.random((300, 3)) < probs
    np.savez("a.npz", probs=probs, labels=labels, class_names=NAMES)
    permuted = [NAMES[i] for i in ORDER]
    arrays = {"probs": probs[:, ORDER], "labels": labels[:, ORDER]}
    np.savez("b.npz", **arrays, class_names=permuted)
    printed = []
    for test in ("a.npz", "b.npz"):
        arguments = ["threshold", "a.npz", "--coverage", "0.6", "--test", test]
        main([*arguments, "--multi-label"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    main(["compare", "a.npz", "b.npz", "--multi-label", "--bootstrap", "10"])
    np.savez("two.npz", probs=probs[:, :2], labels=labels[:, :2])
    arguments = ["threshold", "a.npz", "--coverage", "0.6", "--test", "two.npz"]
    refused(capsys, [*arguments, "--multi-label"], "as many classes", "2 and 3")


def test_files_of_one_sigmoid_unit_are_matched_by_the_class_they_name():
    p, labels = np.array([0.9, 0.2, 0.6, 0.3]), np.array([1, 0, 0, 1])
    np.savez("a.npz", probs=p, labels=labels, class_names=["ham", "spam"])
    main(["calibrate", "a.npz", "-o", "out.csv"])
    assert read_predictions("out.csv").class_names == ["not spam", "spam"]
    main(["compare", "a.npz", "out.csv", "--bootstrap", "10"])
    two = np.stack([p, 1 - p], axis=1)
    save("two.csv", ["spam", "ham"], two, ["spam", "ham", "ham", "spam"])
    main(["compare", "out.csv", "two.csv", "--bootstrap", "10"])


def test_names_that_a_format_cannot_hold_are_refused_and_nothing_is_left(capsys):
    probs = probabilities(LABELS, 3)
    Path("out.csv").write_text("before")
    for names in (
        ["label", "a", "b"],
        ["crane", "crane", "b"],
        ["z0", "z1", "z2"],
        [" a", "b", "c"],
        ["p0", "p1", "other"],
    ):
        np.savez("a.npz", probs=probs, labels=LABELS, class_names=names)
        refused(
            capsys, ["calibrate", "a.npz", "-o", "out.csv"], "out.csv: a table cannot"
        )
        assert Path("out.csv").read_text() == "before"
        main(["calibrate", "a.npz", "-o", "out.npz"])
        np.testing.assert_array_equal(read_predictions("out.npz").labels, LABELS)
        Path("calibrator.npz").unlink()
        Path("out.npz").unlink()
    assert sorted(path.name for path in Path().iterdir()) == ["a.npz", "out.csv"]


@pytest.mark.parametrize("k", [2, 3])
def test_distributions_as_labels(capsys, k):
    labels = LABELS % k
    probs, hard = probabilities(labels, k), np.eye(k)[labels]
    soft = 0.6 * hard + 0.4 / k
    np.savez("hard.npz", probs=probs, labels=hard)
    main(["calibrate", "hard.npz", "-o", "out.csv"])
    np.testing.assert_array_equal(read_predictions("out.csv").labels, labels)
    np.savez("soft.npz", probs=probs, labels=soft)
    told = "new.csv: a table cannot hold soft labels; write .npz"
    refused(capsys, ["calibrate", "soft.npz", "-o", "new.csv"], told)
    np.savez("unit.npz", probs=probs[:, 1], labels=soft[:, 1])
    refused(capsys, ["calibrate", "unit.npz", "-o", "new.csv"], told)
    np.savez("several.npz", probs=probs, labels=soft)
    arguments = ["calibrate", "several.npz", "-o", "new.csv", "--multi-label"]
    refused(capsys, arguments, told)
    assert not Path("new.csv").exists()
    main(["calibrate", "soft.npz", "-o", "out.npz"])
    np.testing.assert_array_equal(read_predictions("out.npz").labels, soft)


def test_soft_labels_of_one_sigmoid_unit_with_names():
    soft = np.array([0.3, 0.9, 1.0])
    for names in (["ham", "spam"], ["0", "1"]):
        np.savez("a.npz", probs=soft, labels=soft, class_names=names)
        np.testing.assert_array_equal(read_predictions("a.npz").labels, soft)


def test_class_names_that_repeat_do_not_matter_to_labels_that_are_numbers():
    names = ["crane", "dog", "crane"]
    np.savez("a.npz", probs=np.eye(3), labels=[0, 1, 2], class_names=names)
    np.testing.assert_array_equal(read_predictions("a.npz").labels, [0, 1, 2])
    main(["compare", "a.npz", "same=a.npz", "--bootstrap", "0"])


def test_all_orders_of_few_names_are_matched():
    probs, labels = probabilities(LABELS, 3), np.array(NAMES)[LABELS]
    save("a.csv", NAMES, probs, labels)
    first = read_predictions("a.csv")
    for order in itertools.permutations(range(3)):
        save("b.csv", [NAMES[i] for i in order], probs[:, order], labels)
        read = read_predictions("b.csv").like(first)
        np.testing.assert_array_equal(read.y_pred, first.y_pred)
        np.testing.assert_array_equal(read.labels, first.labels)
        assert read.class_names == NAMES
        again = read.in_file_order()
        np.testing.assert_array_equal(again.y_pred, probs[:, order])
