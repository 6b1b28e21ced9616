"""`compare`: losses on a user's own data."""

import csv
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from finished import finish

from keras_selcal import TemperatureScaling, functional
from recipes import compare, data, evaluation, losses, models, training
from recipes.cli import main
from recipes.data import text
from recipes.data.pipeline import Batches
from recipes.runs import Predictions

OWN = """
import keras

def twin(y_true, y_pred):
    xe = keras.losses.sparse_categorical_crossentropy
    return xe(y_true, y_pred, from_logits=True)

def backwards(y_true, y_pred):
    return -0.1 * twin(y_true, y_pred)
"""


@pytest.fixture
def own_losses(tmp_path, monkeypatch):
    (tmp_path / "compared_losses.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def write(path, n=200, **changed):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = 100 + 5 * (np.eye(2)[y] + 0.6 * rng.normal(size=(n, 2)))
    np.savez(path, **{"x": x, "y": np.array(["no", "yes"])[y], **changed})
    return f"npz:{path}"


def run(*arguments):
    return main(["compare", "--seeds", "3", "--epochs", "3", *arguments])


@pytest.mark.backend_free
def test_a_worse_loss_and_an_identical_one(tmp_path, own_losses, capsys):
    dataset, out = write(tmp_path / "own.npz"), tmp_path / "out"
    names = ("xe", "compared_losses:backwards", "compared_losses:twin")
    options = ("--losses", ",".join(names), "--out", str(out))
    assert run("--dataset", dataset, *options) == 0
    said = capsys.readouterr().out
    assert "Use cross-entropy: no other loss was better on this data." in said
    assert "Backwards is worse than cross-entropy: NLL + TS +" in said
    assert "Twin is no different from cross-entropy" in said
    assert "NLL + TS +0.000 ±0.000, AURC + TS +0.00 ±0.00." in said
    with open(out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    late = sum(row["epoch"] == "3" for row in rows if row["protocol"] == "best")
    short = f"The last epoch was the best one in {late} of 9 trainings"
    assert (short in said) == (late > 4)
    assert len(rows) == 3 * 3 * 2
    assert {row["loss"] for row in rows} == {*names}
    assert all(float(row["test_accuracy"]) > 80 for row in rows if row["loss"] == "xe")
    page = (out / "report.html").read_text("utf-8")
    assert "<h1>Losses on own.npz</h1>" in page
    assert '<li><a href="#verdict">' in page
    assert page.count('id="verdict"') == 1
    assert "<b>Use cross-entropy: no other loss was better on this data.</b>" in page
    assert "<li>Twin is no different" in page
    assert "Best epoch by validation NLL" in page


@pytest.mark.backend_free
def test_a_stopped_comparison_continues(tmp_path, monkeypatch, capsys):
    dataset, out = write(tmp_path / "own.npz"), tmp_path / "out"
    options = ("--dataset", dataset, "--losses", "xe,focal", "--out", str(out))
    trained, most = [], 2

    def train(run, task, progress, *, dataset):
        samples = training.load_data(task, dataset)
        config = {**task.config(), "data": training.digests(samples)}
        if run.finished:
            run.claim(config)
            return
        if len(trained) == most:
            raise KeyboardInterrupt
        trained.append((task.loss, task.seed))
        rng = np.random.default_rng(len(trained))
        labels = samples.test.y
        found = Predictions(rng.normal(size=(len(labels), 2)), labels)
        with run.lock():
            run.claim(config)
            for split in ("last-val", "last-test"):
                run.write_predictions(split, found)
            finish(run, found, environment={"best_epoch": 1})

    monkeypatch.setattr(training, "train", train)
    # What the page shows is tested elsewhere.
    monkeypatch.setattr(compare, "CalibrationReport", Mock())
    monkeypatch.setattr(compare, "_report", Mock(return_value="report.html"))
    assert run(*options) == 130
    assert "the same command continues" in capsys.readouterr().err
    most = 100
    assert run(*options) == 0
    assert sorted(trained) == [(loss, s) for loss in ("focal", "xe") for s in range(3)]
    results = (out / "results.csv").read_text()
    assert run(*options) == 0
    assert len(trained) == 6
    assert (out / "results.csv").read_text() == results
    # Other data under the same name needs another folder.
    write(tmp_path / "own.npz", n=240)
    assert run(*options) == 1
    error = capsys.readouterr().err
    assert "train.samples is 128 there and 154 here" in error
    assert "Choose another folder by --out" in error
    assert len(trained) == 6


def rows(values):
    """Rows of losses from `values[loss][metric][seed]`; others are equal."""
    return [
        {
            **{f"test_{metric}": 10.0 * seed for metric in compare.SHOWN},
            **{f"test_{m}": 10.0 * seed + v[seed] for m, v in metrics.items()},
            **{"loss": loss, "seed": seed, "protocol": "best"},
        }
        for loss, metrics in values.items()
        for seed in range(5)
    ]


DOWN, UP = [-1.0, -1.01, -1.0, -0.99, -1.0], [1.0, 1.01, 1.0, 0.99, 1.0]


@pytest.mark.backend_free
def test_verdicts_follow_both_deciding_metrics():
    found = compare.gaps_of(
        rows(
            {
                "xe": {},
                "au": {"nll_ts": DOWN},
                "focal": {"aurc_ts": DOWN, "nll_ts": UP},
                "aurc": {"accuracy": UP},
                "fl53": {"nll_ts": UP},
            }
        ),
        "best",
    )
    kinds = {loss: compare.decided(gaps) for loss, gaps in found.items()}
    assert kinds == {
        "au": "better",
        "focal": "mixed",
        "aurc": "undecided",
        "fl53": "worse",
    }
    told = compare.verdict({"aurc": found["aurc"]}, "xe")
    assert told[0].startswith("Undecided: these runs tell no loss from cross-entropy.")
    told = compare.verdict(found, "xe")
    assert told[0] == "Use AU: it was better than cross-entropy on this data."
    assert told[1].startswith("AU is better than cross-entropy: NLL + TS −1.000 ±0.0")
    assert "by one metric and worse by the other" in told[2]


@pytest.mark.backend_free
def test_more_losses_widen_the_intervals():
    """A gap that excludes 0 alone does not if ten losses are compared."""
    gap = {"nll_ts": [-1.0, -0.5, -1.5, -0.2, -1.8]}
    alone = compare.gaps_of(rows({"xe": {}, "au": gap}), "best")
    others = {name: {} for name in losses.ALL_TITLES if name not in ("xe", "au")}
    among = compare.gaps_of(rows({"xe": {}, "au": gap, **others}), "best")
    assert evaluation.paired(gap["nll_ts"]).verdict("nll_ts") == "better"
    assert compare.decided(among["au"]) == "undecided"
    assert among["au"]["nll_ts"].half > alone["au"]["nll_ts"].half


@pytest.mark.backend_free
def test_texts_are_embedded_and_compared(tmp_path, monkeypatch, capsys):
    words = {"refund": [3.0, 0.0], "login": [0.0, 3.0]}
    monkeypatch.setattr(
        text, "embed", lambda texts: np.array([words[t.split()[0]] for t in texts])
    )
    file = tmp_path / "own.csv"
    body = [f"{word} {i},{word}" for i in range(60) for word in words]
    file.write_text("\n".join(["text,label", *body, "", ""]))
    options = ("--losses", "xe,au", "--out", str(tmp_path / "out"))
    assert run("--dataset", f"text:{file}", *options) == 0
    assert "77 training, 19 validation and 24 test" in capsys.readouterr().out
    assert "login" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.backend_free
def test_inputs_are_scaled_by_the_training_data(tmp_path):
    rng = np.random.default_rng(0)
    y = np.tile([5, 9], 20)
    for shape in ((40, 6), (40, 3, 2)):
        x = 1000 + 10 * rng.normal(size=shape)
        x[:, 0] = 7  # without variation
        parts = {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": [9]}
        np.savez(tmp_path / "own.npz", **parts)
        found = data.load(f"npz:{tmp_path / 'own.npz'}")
        assert found.class_names == ("5", "9")
        assert found.test.y.tolist() == [1]
        assert (len(found.train), len(found.val)) == (32, 8)
        whole = np.concatenate([found.train.x, found.val.x])
        split = data.Split(whole, np.zeros(40, "int32"))
        inputs, _ = Batches(split, found.preprocessing, 40)[0]
        assert inputs.dtype == "float32"
        axes = (0,) if len(shape) == 2 else (0, 1, 2)
        std = [0, 1, 1, 1, 1, 1] if len(shape) == 2 else [1]
        np.testing.assert_allclose(inputs.mean(axes), 0, atol=1e-3)
        np.testing.assert_allclose(inputs.std(axes), std, atol=1e-3)
        assert found.input_shape == (*shape[1:], *([1] if len(shape) == 3 else []))


@pytest.mark.backend_free
def test_a_seed_draws_other_validation_samples_of_the_same_number():
    first = data.load("digits")
    second = data.load("digits", seed=1)
    assert [len(part) for part in (second.train, second.val)] == [640, 160]
    assert not np.array_equal(first.val.x, second.val.x)
    for one in (first, second):
        whole = np.concatenate([one.train.x, one.val.x]).reshape(800, -1)
        rows = whole[np.lexsort(whole.T)]
        if one is first:
            expected = rows
    np.testing.assert_array_equal(rows, expected)


def test_images_get_a_convolutional_network_and_dropout_before_its_head():
    model = models.build("cnn_strided", 2, (64, 64, 3), dropout=0.5)
    assert [layer.name.rstrip("_0123456789") for layer in model.layers[-2:]] == [
        "dropout",
        "head",
    ]
    x = np.zeros((4, 64, 64, 3), "float32")
    assert np.shape(model.predict(x, verbose=0)) == (4, 2)
    with pytest.raises(ValueError, match=r"`model` must be mlp for inputs of shape"):
        models.build("cnn", 2, (5,))


@pytest.mark.backend_free
def test_measures_are_those_of_the_library():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 60)
    logits = rng.normal(size=(60, 3)).astype("float32") + np.eye(3)[labels]
    val = Predictions(logits[:30], labels[:30])
    test = Predictions(logits[30:], labels[30:])
    found = evaluation.scaled_measures(val, test)
    t = float(TemperatureScaling().fit(*val).temperature)
    assert found["temperature"] == pytest.approx(t)
    ece = functional.ece(test.labels, test.logits / t, from_logits=True)
    assert found["test_ece_ts"] == pytest.approx(100 * float(ece), rel=1e-5)
    nll = functional.nll(val.labels, val.logits, from_logits=True)
    assert found["val_nll"] == pytest.approx(float(nll), rel=1e-5)
    assert found["val_nll_ts"] <= found["val_nll"]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"--dataset": "mnist"}, ["'mnist'", "folder:PATH, npz:PATH, text:PATH"]),
        ({"--dataset": "npz:"}, ["'npz:'", "npz:PATH"]),
        ({"--dataset": "npz:none.npz"}, ["none.npz"]),
        ({"--dataset": "npz:text.csv"}, ["not an .npz file"]),
        ({"--dataset": "npz:keys.npz"}, ["x_train", "Received: a"]),
        ({"--dataset": "npz:shape.npz"}, ["(n, features)", "y (3,)"]),
        ({"--dataset": "npz:nan.npz"}, ["finite"]),
        ({"--dataset": "npz:one.npz"}, ["at least 2 classes", "Received: 1"]),
        ({"--dataset": "npz:new.npz"}, ["without training data: 7"]),
        ({"--dataset": "npz:few.npz"}, ["cannot hold out", "The fewest are 1 of"]),
        ({"--dataset": "npz:large.npz"}, ["below 1e+18"]),
        ({"--dataset": "npz:labels.npz"}, ["without NaN"]),
        ({"--dataset": "npz:wide.npz"}, ["x of one shape"]),
        ({"--dataset": "text:blank.csv"}, ["a text and a label in each row"]),
        ({"--dataset": "text:empty.csv"}, ["heading such as text,label"]),
        ({"--dataset": "text:text.csv"}, ["a text and a label in each row"]),
        ({"--dataset": "folder:none"}, ["no folder none"]),
        ({"--losses": "xe,mse"}, ["'mse'", "'xe_smoothed'", "'au'"]),
        ({"--losses": "xe,nowhere:Loss"}, ["module:Name", "'nowhere'"]),
        ({"--losses": "xe,xe"}, ["two or more different"]),
        ({"--model": "resnet"}, ["'resnet'", "'resnet50'", "'mlp'"]),
        ({"--model": "cnn"}, ["mlp for inputs of shape (2,)", "'cnn'"]),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_bad_input_gets_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("own.npz")
    np.savez("keys.npz", a=1)
    write("shape.npz", y=[0, 1, 1])
    write("nan.npz", x=np.full((200, 2), np.nan))
    write("one.npz", y=np.zeros(200))
    write("few.npz", n=3)
    write("large.npz", x=np.full((200, 2), 1e30))
    write("labels.npz", y=np.full(200, np.nan))
    x, y = np.zeros((20, 2)), np.arange(20) % 2
    np.savez("wide.npz", x_train=x, y_train=y, x_test=np.zeros((20, 3)), y_test=y)
    Path("blank.csv").write_text("text,label\nhello,\nyes,no\n")
    x = np.zeros((2, 3))
    np.savez("new.npz", x_train=x, y_train=[0, 1], x_test=x, y_test=[0, 7])
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "text.csv").write_text("text,label\nonly a text\n")
    chosen = {"--dataset": "npz:own.npz", **arguments}
    assert run(*(word for pair in chosen.items() for word in pair)) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for words in expected:
        assert words in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.backend_free
def test_texts_without_embeddings_name_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wordllama", None)
    (tmp_path / "own.csv").write_text("text,label\na,x\nb,y\n")
    assert run("--dataset", f"text:{tmp_path / 'own.csv'}") == 1
    error = capsys.readouterr().err
    assert "Text data requires wordllama: `pip install wordllama`" in error
    assert error.count("\n") == 1
