"""The paper's matrix: its runs, the estimate of the hours, and the tables."""

import csv
import functools

import keras
import numpy as np
import pytest
from finished import finish
from PIL import Image

from recipes import models, reproduce, training
from recipes.cli import main
from recipes.paper import published
from recipes.reproduce import Matrix
from recipes.runs import Predictions, Run

pytestmark = pytest.mark.backend_free


def test_the_matrix_has_every_cell_of_the_paper():
    wanted = Matrix(from_scratch=True).tasks()
    cells = {(one.dataset, one.model, one.loss) for one in wanted}
    assert len(wanted) == 210
    assert cells == {(key.dataset, key.model, key.loss) for key in published.figures()}
    assert {one.subset for one in wanted} == {one.epochs for one in wanted} == {None}
    names = [one.name for one in wanted]
    assert len(set(names)) == 210


def test_a_part_of_the_matrix_at_a_smaller_scale():
    matrix = Matrix(("cifar100",), ("wrn28_10",), ("xe", "released"), 2, scale=0.01)
    wanted = matrix.tasks()
    assert [one.loss for one in wanted[:4]] == [
        *("xe", "kde_xe_released", "aurc_released", "au_released"),
    ]
    assert [one.seed for one in wanted] == [0] * 4 + [1] * 4
    assert {(one.epochs, one.subset) for one in wanted} == {(2, 450)}


def test_a_change_of_a_losses_argument_is_for_the_losses_that_have_it():
    changes = ("loss.weight_gradient=1", "weight_decay=0.001")
    matrix = Matrix(("cifar10",), ("resnet50",), ("xe", "au"), 1, changes=changes)
    xe, au = matrix.tasks()
    assert xe.set == ("weight_decay=0.001",)
    assert au.set == changes
    assert au.settings.loss["smoothing"] == pytest.approx(0.76, abs=0.01)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"losses": ","}, ["`losses` must be names", "','"]),
        ({"losses": "xe,,au"}, ["`losses` must be names", "'xe,,au'"]),
        ({"dataset": ""}, ["`dataset` must be names"]),
        ({"dataset": "cifar10,cifar1000"}, ["'cifar1000'", "cifar100, tiny-imagenet"]),
        (
            {"dataset": "cifar10,cifar1000", "scale": "0.01"},
            ["'cifar1000'", "cifar100"],
        ),
        ({"dataset": "cifar10,digits"}, ["does not have digits", "--model"]),
        ({"model": "resnet50,cnn"}, ["does not have cnn", "--dataset"]),
        ({"model": "resnet49", "scale": "0.01"}, ["'resnet49'", "resnet50"]),
        ({"losses": "xe,focal"}, ["`losses`", "'focal'", "fl53"]),
        ({"model": "vit_small"}, ["--pretrained vit_small=FILE", "--from-scratch"]),
        (
            {"model": "vit_small", "pretrained": "resnet50=a.npz"},
            ["weights of resnet50", "models to train: vit_small"],
        ),
        (
            {"model": "vit_small", "pretrained": "vit_small=nowhere.npz"},
            ["no weights file at nowhere.npz"],
        ),
        (
            {"model": "vit_small", "pretrained": "vit_small=broken.npz"},
            ["broken.npz cannot be read"],
        ),
        (
            {"model": "vit_small", "pretrained": "vit_small=other.npz"},
            ["other.npz does not fit the model", "is not in the file"],
        ),
        ({"pretrained": "vit_small"}, ["MODEL=FILE", "'vit_small'"]),
        ({"scale": "0"}, ["`scale` must be in (0, 1]"]),
        ({"scale": "1.5"}, ["`scale` must be in (0, 1]"]),
        ({"scale": "0.01", "pretrained": "vit_small=a"}, ["without `pretrained`"]),
        ({"dataset": "cifar10", "data-dir": "nowhere"}, ["nowhere"]),
        ({"dataset": "cifar10", "data-dir": "nowhere", "scale": "0.01"}, ["nowhere"]),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused_before_a_step_is_timed(
    options, expected, trained, small_data, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(reproduce, "seconds_per_image", None)
    small = functools.partial(models.build, stand_in=True)
    monkeypatch.setattr(models, "build", small)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.npz").write_bytes(b"no weights")
    np.savez(tmp_path / "other.npz", weight=np.zeros(3))
    options = {"data-dir": str(small_data), **options}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["reproduce", *words]) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    for text in expected:
        assert text in error
    assert not trained
    assert not list(tmp_path.glob("runs/*"))


def test_the_smallest_scale_has_an_epoch_and_two_images_of_each_class():
    task, *_ = Matrix(("cifar100",), ("wrn28_10",), scale=1e-9).tasks()
    assert (task.epochs, task.subset) == (1, 200)


def test_names_without_a_partner_in_the_paper_are_combined_with_all():
    # The paper has these networks on one of these data sets each.
    both = Matrix(("cifar10", "tiny-imagenet"), ("resnet50", "vit_small"))
    assert both.pairs() == [("cifar10", "resnet50"), ("tiny-imagenet", "vit_small")]
    other = Matrix(("cifar10", "cifar100"), ("resnet50", "resnet110_basic"))
    assert len(other.pairs()) == 4
    assert Matrix(("cifar10",), ("vit_small",)).pairs() == [("cifar10", "vit_small")]


@pytest.fixture
def trained(monkeypatch, rng):
    """Stands in for trainings, and returns the tasks that were trained."""
    tasks = []

    def predict():
        labels = rng.integers(0, 10, 400)
        logits = 3 * np.eye(10)[labels] + rng.normal(size=(400, 10))
        return Predictions(logits.astype("float32"), labels)

    def train(run, task, progress, *, dataset):
        tasks.append(task)
        with run.lock():
            run.claim(task.config())
            finish(run, predict)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(reproduce, "seconds_per_image", lambda *_, **__: 0.001)
    return tasks


def test_the_tables_are_written_beside_the_papers(
    trained, small_data, tmp_path, capsys
):
    out = tmp_path / "out"
    command = ["reproduce", "--dataset", "cifar10", "--model", "preresnet56"]
    command += ["--losses", "xe,released", "--seeds", "2", "--scale", "0.01"]
    command += ["--table", "2", "--out", str(out)]
    command += ["--data-dir", str(small_data)]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert len(trained) == 8
    assert "8 runs, 0 finished already" in said
    assert "no reproduction" in said
    # 8 runs of 2 epochs, 450 images and a thousandth of a second
    assert " 7.2 s" in said
    text = (out / "tables.md").read_text()
    assert text.count("## ") == 1 + ("## Notes" in text)
    rows = [line for line in text.splitlines() if line.startswith("| PreResNet56")]
    assert any("epochs 2" in row and "±" in row for row in rows)
    assert any("released losses" in row for row in rows)
    # Only what was asked for, and no note on Meta-Cal, which table 2 does not have.
    assert "|  | XE | KDE-XE | AURC | AU |" in text
    assert "MetaAcc" not in text
    with open(out / "tables.csv", newline="") as file:
        places = [
            (row["table"], row["model"], row["loss"]) for row in csv.DictReader(file)
        ]
    assert {table for table, _, _ in places} == {"combined_acc_ece"}
    assert {model for _, model, _ in places} == {"preresnet56"}
    assert {loss for _, _, loss in places} == {"xe", "kde_xe", "aurc", "au"}
    assert r"\begin{tabular}{@{}lllll@{}}" in (out / "tables.tex").read_text()
    # Nothing is trained again.
    assert main(command) == 0
    assert len(trained) == 8
    assert "8 runs, 8 finished already" in capsys.readouterr().out


def test_only_the_estimate(trained, tmp_path, capsys):
    command = ["reproduce", "--estimate", "--dataset", "cifar10", "--jobs", "2"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    # 84 runs of 200 epochs, 45,000 images and a thousandth of a second, two at a time
    assert "105 hours (4.4 days)" in capsys.readouterr().out
    assert not trained
    assert not (tmp_path / "out").exists()
    # Neither data nor weights are needed; a folder that is named must have the data.
    assert main(["reproduce", "--estimate", "--model", "vit_small"]) == 0
    assert " hours (" in capsys.readouterr().out
    assert main([*command, "--data-dir", "nowhere"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_step_is_timed():
    assert 0 < reproduce.seconds_per_image("cnn", (8, 8, 1), 32) < 60


@pytest.fixture(scope="module")
def small_data(tmp_path_factory):
    """Writes all three data sets of the paper, with few images of noise.

    A fifth of them is held out, at least one of each class.
    """
    rng = np.random.default_rng(0)

    def images(count, side):
        return rng.integers(0, 256, (count, side, side, 3), "uint8")

    folder = tmp_path_factory.mktemp("data")
    root = folder / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        y = {"y_train": np.arange(600) % classes, "y_test": np.arange(100) % classes}
        x = {"x_train": images(600, 32), "x_test": images(100, 32)}
        np.savez(folder / f"{name}.npz", **x, **y)
    names = [f"n{index:08}" for index in range(200)]
    (root / "wnids.txt").write_text("\n".join(names))
    (root / "words.txt").write_text("n00000000\tgoldfish")
    lines = []
    for name, x in zip(names, images(200, 64), strict=True):
        train = root / "train" / name / "images"
        train.mkdir(parents=True)
        for index in range(5):
            Image.fromarray(np.roll(x, index)).save(train / f"{name}_{index}.JPEG")
        Image.fromarray(x).save(root / "val" / "images" / f"{name}.JPEG")
        lines.append(f"{name}.JPEG\t{name}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return folder


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the others compile 16 programs"
)
def test_every_network_and_every_loss_at_the_smallest_scale(
    small_data, tmp_path, capsys, monkeypatch
):
    """Seven losses of one network, and one of the others, keep this below a minute."""
    out = tmp_path / "out"
    command = ["reproduce", "--scale", "0.0056", "--seeds", "1", "--out", str(out)]
    command += ["--data-dir", str(small_data)]
    assert main([*command, "--dataset", "cifar10", "--model", "preresnet56"]) == 0
    assert "no reproduction of the paper's" in capsys.readouterr().out
    # One network has been timed, and that will do.
    monkeypatch.setattr(reproduce, "seconds_per_image", lambda *_, **__: 0.001)
    assert main([*command, "--losses", "xe"]) == 0
    assert "10 runs, 1 finished already" in capsys.readouterr().out
    runs = [Run(path.parent) for path in out.glob("*/config.json")]
    assert len(runs) == 16
    assert all(run.finished for run in runs)
    assert all("stand-in" in run.config()["settings"]["source"] for run in runs)
    text = (out / "tables.md").read_text()
    for title in ("ResNet50", "ResNet110", "WRN", "PreResNet56", "Swin-Tiny"):
        rows = [line for line in text.splitlines() if line.startswith(f"| {title} ")]
        assert rows
        assert all("a small stand-in for the network" in row for row in rows)
    # Ours beside the paper's.
    with open(out / "tables.csv", newline="") as file:
        both = [row for row in csv.DictReader(file) if row["ours"] and row["paper"]]
    assert {(row["dataset"], row["model"]) for row in both} == {*published.pairs()}


def test_the_whole_path_trains_and_writes_tables(tmp_path, capsys, monkeypatch):
    """On digits, of which the paper has no number."""
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "--scale", "0.04", "--dataset", "digits", "--model", "cnn"]
    command += ["--losses", "au_released", "--seeds", "1"]
    assert main(command) == 0
    assert "Not in the paper: digits with cnn." in capsys.readouterr().out
    (folder,) = (tmp_path / "runs" / "reproduce-scale0.04").glob("digits-*")
    run = Run(folder)
    assert run.finished
    assert run.config()["subset"] == 26
    text = (folder.parent / "tables.md").read_text()
    assert (
        "cnn (not in the paper, released losses, 20 % of the labels are wrong" in text
    )
    assert len(run.predictions("train").labels) == 26
