"""The paper's matrix: its runs, the estimate of the hours, and the tables."""

import csv
import sys

import keras
import numpy as np
import pytest
from finished import finish
from PIL import Image

from recipes import launch, reproduce, tasks
from recipes.cli import made, main, parse
from recipes.paper import published
from recipes.reproduce import Matrix
from recipes.runs import Predictions, Run, RunError


def test_the_matrix_has_every_cell_of_the_paper():
    requests = Matrix(from_scratch=True).requests()
    cells = {(one.dataset, one.model, one.loss) for one in requests}
    assert len(requests) == 210
    assert cells == {(key.dataset, key.model, key.loss) for key in published.figures()}
    assert (
        {one.subset for one in requests} == {one.epochs for one in requests} == {None}
    )
    names = [tasks.run_name(tasks.task_of(one)) for one in requests]
    assert len(set(names)) == 210


def test_a_part_of_the_matrix_at_a_smaller_scale():
    matrix = Matrix(("cifar100",), ("wrn28_10",), ("xe", "released"), 2, scale=0.01)
    requests = matrix.requests()
    assert [one.loss for one in requests[:4]] == [
        *("xe", "kde_xe_released", "aurc_released", "au_released"),
    ]
    assert [one.seed for one in requests] == [0] * 4 + [1] * 4
    assert {(one.epochs, one.subset) for one in requests} == {(2, 450)}
    with pytest.raises(RunError, match="none of these pairs"):
        Matrix(models=("cnn",)).requests()
    with pytest.raises(RunError, match=r"`scale` must be in \(0, 1\]"):
        Matrix(scale=0).requests()
    with pytest.raises(RunError, match="--from-scratch"):
        tasks.task_of(Matrix(("tiny-imagenet",)).requests()[0])


@pytest.fixture
def trained(monkeypatch, rng):
    """Stands in for the training of jobs, and returns their commands."""
    commands = []

    def predict():
        labels = rng.integers(0, 10, 400)
        logits = 3 * np.eye(10)[labels] + rng.normal(size=(400, 10))
        return Predictions(logits.astype("float32"), labels)

    def run_all(jobs, engine="local", *, at_once=None, report, **_):
        found = []
        for job in jobs:
            commands.append(job.command)
            words = list(job.command[job.command.index("train") :])
            options = made(tasks.Request, parse(words))
            with job.run.lock():
                job.run.claim(tasks.task_of(options).config())
                finish(job.run, predict)
            found.append(launch.Ended(job, None))
            report(found[-1])
        return found

    monkeypatch.setattr(reproduce, "run_all", run_all)
    monkeypatch.setattr(reproduce, "seconds_per_image", lambda *_, **__: 0.001)
    return commands


def test_the_tables_are_written_beside_the_papers(trained, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["reproduce", "--dataset", "cifar10", "--model", "preresnet56"]
    command += ["--losses", "xe,released", "--seeds", "2", "--scale", "0.01"]
    command += ["--table", "2", "--out", str(out), "--jobs", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert len(trained) == 8
    assert "8 runs, 0 finished already" in said
    assert "no reproduction" in said
    # 8 runs of 2 epochs, 450 images and a thousandth of a second
    assert "0.002" in said
    text = (out / "tables.md").read_text()
    assert text.count("## ") == 1 + ("## Notes" in text)
    rows = [line for line in text.splitlines() if line.startswith("| PreResNet56")]
    assert any("epochs 2" in row and "±" in row for row in rows)
    assert any("released losses" in row for row in rows)
    # Nothing is trained again.
    assert main(command) == 0
    assert len(trained) == 8
    assert "8 runs, 8 finished already" in capsys.readouterr().out


def test_only_the_estimate(trained, tmp_path, capsys):
    command = ["reproduce", "--estimate", "--dataset", "cifar10", "--jobs", "2"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    # 84 runs of 200 epochs, 45,000 images and a thousandth of a second, two at a time
    assert "105" in capsys.readouterr().out
    assert not trained
    assert not (tmp_path / "out").exists()


def test_a_step_is_timed():
    assert 0 < reproduce.seconds_per_image("cnn", (8, 8, 1), 32) < 60


@pytest.fixture
def small_data(tmp_path):
    """Writes all three data sets of the paper, with few images of noise."""
    rng = np.random.default_rng(0)

    def images(count, side):
        return rng.integers(0, 256, (count, side, side, 3), "uint8")

    folder = tmp_path / "data"
    root = folder / "tiny-imagenet-200"
    (root / "val" / "images").mkdir(parents=True)
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        y = {"y_train": np.arange(700) % classes, "y_test": np.arange(200) % classes}
        x = {"x_train": images(700, 32), "x_test": images(200, 32)}
        np.savez(folder / f"{name}.npz", **x, **y)
    names = [f"n{index:08}" for index in range(200)]
    (root / "wnids.txt").write_text("\n".join(names))
    (root / "words.txt").write_text("n00000000\tgoldfish")
    lines = []
    for name, x in zip(names, images(200, 64), strict=True):
        train = root / "train" / name / "images"
        train.mkdir(parents=True)
        for index in range(8):
            Image.fromarray(np.roll(x, index)).save(train / f"{name}_{index}.JPEG")
        Image.fromarray(x).save(root / "val" / "images" / f"{name}.JPEG")
        lines.append(f"{name}.JPEG\t{name}\t0\t0\t63\t63")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    return folder


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the others compile 16 programs"
)
def test_a_hundredth_of_every_network_and_of_every_loss(small_data, tmp_path, capsys):
    """Seven losses of one network, and one of the others, keep this below a minute."""
    out = tmp_path / "out"
    command = ["reproduce", "--scale", "0.01", "--seeds", "1", "--out", str(out)]
    command += ["--data-dir", str(small_data)]
    assert main([*command, "--dataset", "cifar10", "--model", "preresnet56"]) == 0
    assert "no reproduction of the paper's" in capsys.readouterr().out
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
    """In processes of their own, on digits, in which the paper has no number."""
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "--scale", "0.02", "--dataset", "digits", "--model", "cnn"]
    command += ["--losses", "au_released", "--seeds", "1", "--jobs", "1"]
    assert main(command) == 0
    (folder,) = (tmp_path / "runs" / "reproduce-scale0.02").glob("digits-*")
    run = Run(folder)
    assert run.finished
    assert run.config()["subset"] == 20
    assert "20 % of the labels are wrong" in (folder.parent / "tables.md").read_text()
    assert len(run.predictions("train").labels) == 20
    assert sys.executable in (folder / "train.log").read_text()
