"""The commands: what they print, what they refuse, and the table."""

import errno
import os
import subprocess
import sys

import pytest
import tiny_run

from recipes import losses, models, quickstart
from recipes.cli import main
from recipes.runs import Run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "build", tiny_run.build)


def refused(capsys, *arguments):
    """Returns the one line that a refused command prints."""
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_help_does_not_wait_for_keras():
    code = "import sys, recipes.cli; sys.exit('keras' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"--model": "resnet49"}, ["'resnet49'", "resnet50", "wrn28_10", "cnn"]),
        ({"--loss": "focal"}, ["'focal'", "fl53", "au"]),
        ({"--dataset": "mnist"}, ["'mnist'", "cifar10", "folder:PATH"]),
        ({"--dataset": "folder:nowhere"}, ["nowhere"]),
        ({"--dataset": "tiny-imagenet", "--data-dir": "nowhere"}, ["nowhere"]),
        ({"--csf": "softmax"}, ["'softmax'", "msp", "margin", "neg_entropy"]),
        ({"--loss": "xe", "--csf": "msp"}, ["csf", "au and aurc"]),
        ({"--set": "loss.gamma=2"}, ["loss.gamma", "loss.smoothing"]),
        ({"--set": "epochs=many"}, ["epochs", "'many'"]),
        ({"--set": "loss.smoothing=-1"}, ["smoothing", "-1"]),
        ({"--dataset": "cifar10", "--label-noise": "0.1"}, ["digits", "cifar10"]),
        ({"--pretrained": "nowhere.pt"}, ["cannot read nowhere.pt"]),
        ({"--subset": "641"}, ["from 10 to 640", "641"]),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_told_in_a_line(changed, expected, capsys, tmp_path):
    chosen = {"--dataset": "digits", "--model": "cnn", "--loss": "au", **changed}
    arguments = [word for pair in chosen.items() for word in pair]
    error = refused(capsys, "train", *arguments)
    for words in expected:
        assert words in error
    assert not list(tmp_path.rglob("*.json"))


def test_a_run_from_the_command_line(capsys, tmp_path):
    command = ("train", *tiny_run.ARGUMENTS, "--epochs", "2", "--set", "momentum=0.8")
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "epoch 2/2: loss" in out
    assert "Accuracy ↑" in out
    name = "digits-cnn-au-msp-seed0-epochs2-momentum0.8-subset64"
    folder = os.path.join("runs", name)
    assert main(command) == 0
    assert "was finished already" in capsys.readouterr().out
    assert "smoothing is 0.1 there and 0.3 here" in refused(
        capsys, *command, "--set", "loss.smoothing=0.3", "--out", folder
    )
    with Run(folder).lock():
        assert f"in use by process {os.getpid()}" in refused(capsys, *command)

    assert main(("show", folder)) == 0
    out = capsys.readouterr().out
    assert "settings.momentum" in out
    assert "2 of 2 epochs done, finished" in out
    assert main(("evaluate", "runs", "--markdown", "table.md")) == 0
    assert "Brier" in capsys.readouterr().out
    assert (
        "### digits, cnn (20 % of the labels are wrong)\n\n|  | AU |"
        in (tmp_path / "table.md").read_text()
    )
    assert "there is no run" in refused(capsys, "evaluate", "nowhere")


def test_list_has_the_papers_settings(capsys):
    assert main(("list",)) == 0
    out = capsys.readouterr().out
    for words in ("tiny-imagenet", "vit_small", "inv_focal (Inv. FL)", "0.88", "neg_"):
        assert words in out


def test_interruption_and_errors_end_without_a_traceback(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("recipes.data.load", interrupted)
    assert main(("train", *tiny_run.ARGUMENTS)) == 130
    assert "the same command continues" in capsys.readouterr().err
    monkeypatch.setattr("recipes.data.load", full)
    assert "No space left" in refused(capsys, "train", *tiny_run.ARGUMENTS)


def test_quickstart_makes_table_and_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(losses, "NAMES", ("xe", "au"))
    monkeypatch.setattr(quickstart, "DRAWN", ("xe", "au"))
    monkeypatch.setattr(
        quickstart, "settings", lambda *names: tiny_run.task(1, loss=names[2]).settings
    )
    assert main(("quickstart", "--seeds", "1")) == 0
    out = capsys.readouterr().out
    assert "[2/2] digits-cnn-au-msp-seed0: accuracy" in out
    assert "the ECE of XE" in out
    folder = tmp_path / "runs" / "quickstart"
    assert {"table.md", "reliability.png", "risk_coverage.png"} < {
        path.name for path in folder.iterdir()
    }
    text = (folder / "table.md").read_text()
    assert text.startswith("### digits, cnn (20 % of the labels are wrong)\n")
    assert "|  | XE | AU |" in text
