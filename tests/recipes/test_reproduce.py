"""The paper's matrix: its runs, the estimate of the hours, and the tables."""

import sys

import numpy as np
import pytest
from finished import finish

from recipes import launch, reproduce, tasks
from recipes.cli import main
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
            options = reproduce_options(words)
            with job.run.lock():
                job.run.claim(tasks.task_of(options).config())
                finish(job.run, predict)
            found.append(launch.Ended(job, None))
            report(found[-1])
        return found

    monkeypatch.setattr(reproduce, "run_all", run_all)
    monkeypatch.setattr(reproduce, "seconds_per_image", lambda *_: 0.001)
    return commands


def reproduce_options(words):
    from recipes.cli import _parser
    from recipes.commands import request_of

    return request_of(_parser().parse_args(words))


def test_the_tables_are_written_beside_the_papers(trained, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["reproduce", "--dataset", "cifar10", "--model", "preresnet56"]
    command += ["--losses", "xe,released", "--seeds", "2", "--scale", "0.01"]
    command += ["--table", "2", "--out", str(out)]
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


def test_the_whole_path_trains_and_writes_tables(tmp_path, capsys, monkeypatch):
    """In processes of their own, on digits, in which the paper has no number."""
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "--scale", "0.02", "--dataset", "digits", "--model", "cnn"]
    assert main([*command, "--losses", "au_released", "--seeds", "1"]) == 0
    (folder,) = (tmp_path / "runs" / "reproduce-scale0.02").glob("digits-*")
    run = Run(folder)
    assert run.finished
    assert run.config()["subset"] == 20
    assert "20 % of the labels are wrong" in (folder.parent / "tables.md").read_text()
    assert len(run.predictions("train").labels) == 20
    assert sys.executable in (folder / "train.log").read_text()
