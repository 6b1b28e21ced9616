"""`compare`: losses on a user's own data."""

import csv
import sys
from pathlib import Path
from unittest.mock import Mock

import keras
import numpy as np
import pytest

import keras_selcal as ks
from recipes import compare, contest
from recipes.cli import main
from recipes.data import own, text


class Backwards(ks.losses.ReweightedLoss):
    """Trains away from the label."""

    def weights(self, batch):
        return -0.1 * keras.ops.ones_like(batch.p_y)


def write(path, n=200, **changed):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = 100 + 5 * (np.eye(2)[y] + 0.6 * rng.normal(size=(n, 2)))
    np.savez(path, **{"x": x, "y": np.array(["no", "yes"])[y], **changed})
    return f"npz:{path}"


def run(*arguments):
    return main(["compare", "--seeds", "3", "--epochs", "3", *arguments])


@pytest.mark.backend_free
def test_a_worse_loss_and_an_identical_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(contest.LOSSES, "back", contest.Entrant("backwards", Backwards))
    same = contest.LOSSES["xe"]._replace(title="twin <xe>")
    monkeypatch.setitem(contest.LOSSES, "twin", same)
    dataset, out = write(tmp_path / "own.npz"), tmp_path / "out"
    options = ("--losses", "xe,back,twin", "--out", str(out))
    assert run("--dataset", dataset, *options) == 0
    said = capsys.readouterr().out
    assert "Use cross-entropy: no other loss was better on this data." in said
    assert "Backwards is worse than cross-entropy: NLL + TS +" in said
    assert "Twin <xe> is no different from cross-entropy" in said
    assert "NLL + TS +0.000 ±0.000, AURC + TS +0.00 ±0.00." in said
    with open(out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    late = sum(row["epoch"] == "3" for row in rows if row["protocol"] == "best")
    short = f"The last epoch was the best one in {late} of 9 trainings"
    assert (short in said) == (late > 4)
    assert len(rows) == 3 * 3 * 2
    assert {row["loss"] for row in rows} == {"xe", "back", "twin"}
    assert all(float(row["test_accuracy"]) > 80 for row in rows if row["loss"] == "xe")
    page = (out / "report.html").read_text("utf-8")
    assert "<h1>Losses on own.npz</h1>" in page
    assert '<li><a href="#verdict">' in page
    assert page.count('id="verdict"') == 1
    assert "<b>Use cross-entropy: no other loss was better on this data.</b>" in page
    assert "<li>Twin &lt;xe&gt; is no different" in page
    assert "Best epoch by validation NLL" in page


@pytest.mark.backend_free
def test_a_stopped_comparison_continues(tmp_path, monkeypatch, capsys):
    dataset, out = write(tmp_path / "own.npz"), tmp_path / "out"
    options = ("--dataset", dataset, "--losses", "xe,brier", "--out", str(out))
    trained, most = [], 2

    def train(self, setting, samples, seed):
        if len(trained) == most:
            raise KeyboardInterrupt
        trained.append((setting.loss, seed))
        rng = np.random.default_rng(len(trained))
        logits = [
            rng.normal(size=(len(part), 2)) for part in (samples.val, samples.test)
        ]
        found = contest.Trained(1, 1.0, *logits, None)
        return {"last": found, "best": found}, 0.0

    monkeypatch.setattr(contest.Contest, "train", train)
    # What the page shows is tested elsewhere.
    monkeypatch.setattr(compare, "CalibrationReport", Mock())
    monkeypatch.setattr(compare, "_add_verdict", Mock())
    assert run(*options) == 130
    assert "the same command continues" in capsys.readouterr().err
    most = 100
    assert run(*options) == 0
    assert sorted(trained) == [(loss, s) for loss in ("brier", "xe") for s in range(3)]
    results = (out / "results.csv").read_text()
    assert run(*options) == 0
    assert len(trained) == 6
    assert (out / "results.csv").read_text() == results
    # Other data under the same name is another comparison.
    write(tmp_path / "own.npz", n=240)
    assert run(*options) == 0
    assert len(trained) == 12


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
                "brier": {"nll_ts": UP},
            }
        ),
        "best",
    )
    kinds = {loss: compare.decided(gaps) for loss, gaps in found.items()}
    assert kinds == {
        "au": "better",
        "focal": "mixed",
        "aurc": "undecided",
        "brier": "worse",
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
    others = {name: {} for name in contest.LOSSES if name not in ("xe", "au")}
    among = compare.gaps_of(rows({"xe": {}, "au": gap, **others}), "best")
    assert contest.paired(gap["nll_ts"]).verdict("nll_ts") == "better"
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
    x = np.arange(24.0).reshape(4, 3, 2) + 1000
    parts = {"x_train": x, "y_train": [5, 9, 5, 9], "x_test": x[:1], "y_test": [9]}
    np.savez(tmp_path / "own.npz", **parts)
    found = own.load(f"npz:{tmp_path / 'own.npz'}")
    assert found.class_names == ("5", "9")
    assert found.test.y.tolist() == [1]
    images = own.scaled(found, "cnn")
    assert images.train.x.shape == (4, 3, 2, 1)
    assert (images.train.x.min(), images.train.x.max()) == (0, 255)
    flat = own.scaled(found, "mlp")
    assert flat.train.x.shape == (4, 6)
    np.testing.assert_allclose(
        [flat.train.x.mean(), flat.train.x.std()], [0, 1], atol=1e-5
    )
    np.testing.assert_array_equal(flat.test.x, flat.train.x[:1])
    digits = own.load("digits")
    assert len(digits.train) + len(digits.test) == 1797


def test_folders_of_images_get_a_convolutional_network(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(10):
            image.new("RGB", (9, 7), (25 * i, 0, 0)).save(tmp_path / name / f"{i}.png")
    found = own.scaled(own.load(f"folder:{tmp_path}"), "cnn")
    assert (len(found.train), len(found.test)) == (16, 4)
    assert found.class_names == ("cat", "dog")
    shape = found.train.x.shape[1:]
    model = compare.network("cnn", shape, 2)(0.0)
    assert np.shape(model.predict(found.test.x, verbose=0)) == (4, 2)


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
        ({"--losses": "xe,xe"}, ["two or more different"]),
        ({"--model": "resnet"}, ["'resnet'", "'mlp', 'cnn', 'resnet50'"]),
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
def test_texts_without_embeddings_name_the_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wordllama", None)
    (tmp_path / "own.csv").write_text("text,label\na,x\nb,y\n")
    assert run("--dataset", f"text:{tmp_path / 'own.csv'}") == 1
    error = capsys.readouterr().err
    assert 'Text data requires wordllama: `pip install "keras-selcal[text]"`' in error
    assert error.count("\n") == 1
