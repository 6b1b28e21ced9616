"""The commands: what they print, and what they refuse."""

import errno
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_run
from finished import finish

from recipes import models
from recipes.cli import main
from recipes.evaluation import METRICS, PaperMetric
from recipes.progress import Progress, console
from recipes.runs import Predictions, Run

pytestmark = pytest.mark.backend_free

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


@pytest.mark.parametrize(("command", "absent"), [("", "numpy"), ("list", "keras")])
def test_nothing_is_imported_that_is_not_needed(command, absent):
    code = f"""
import sys
from recipes import cli
cli._parser()
{command and f'cli.main(["{command}"])'}
sys.exit("{absent}" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"--model": "resnet49"}, ["'resnet49'", "resnet50", "wrn28_10", "cnn"]),
        ({"--loss": "mse"}, ["'mse'", "fl53", "au", "module:Name"]),
        ({"--loss": "nowhere:Loss"}, ["module:Name", "No module named 'nowhere'"]),
        ({"--snapshots": "first"}, ["`snapshots` must be epochs", "'first'"]),
        ({"--set": "dropout=1"}, ["`dropout` must be a number in [0, 1)"]),
        ({"--set": "nesterov=1"}, ["`nesterov` must be true or false", "'1'"]),
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


def test_a_run_from_the_command_line(capsys, tmp_path, monkeypatch):
    computed, compute = [], PaperMetric.compute

    def counting(metric, *arrays):
        computed.append(metric.name)
        return compute(metric, *arrays)

    monkeypatch.setattr(PaperMetric, "compute", counting)
    command = ("train", *tiny_run.ARGUMENTS, "--epochs", "2", "--set", "momentum=0.8")
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "epoch 2/2: loss" in out
    assert "Accuracy ↑" in out
    # Each metric is computed once.
    assert sorted(computed) == sorted(METRICS)
    name = "digits-cnn-au-msp-seed0-momentum0.8-epochs2-subset64"
    folder = os.path.join("runs", name)
    assert main(command) == 0
    assert "was finished already" in capsys.readouterr().out
    assert "smoothing is 2.0 there and 0.3 here" in refused(
        capsys, *command, "--set", "loss.smoothing=0.3", "--out", folder
    )
    with Run(folder).lock():
        assert f"in use by process {os.getpid()}" in refused(capsys, *command)

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


# --- Evaluation of finished runs ----------------------------------------------------


def made(folder, loss="au", seed=0, epochs=150):
    """Makes a finished run of ten samples."""
    run = Run(folder)
    config = {"dataset": "digits", "model": "cnn", "loss": loss, "seed": seed}
    logits = np.eye(2)[np.arange(10) % 2]
    with run.lock():
        run.claim({**config, "settings": {"epochs": epochs, "warmup_epochs": 0}})
        return finish(run, Predictions(logits, np.zeros(10)))


def test_a_second_folder_of_a_seed_is_left_out(tmp_path, capsys):
    for name, seed in {"a": 0, "copy": 0, "c": 1}.items():
        made(tmp_path / "runs" / name, seed=seed)
    assert main(("evaluate", "runs")) == 0
    out = capsys.readouterr().out
    assert "over 2 seeds" in out
    assert "left out: runs/copy has the settings and the seed of runs/a\n" in out
    assert main(("evaluate", "runs/a", "runs/copy")) == 0
    assert "one seed" in capsys.readouterr().out


def test_a_comparison_of_different_epochs_says_so(tmp_path, capsys):
    made(tmp_path / "a", "au", epochs=12)
    made(tmp_path / "b", "xe", epochs=150)
    assert main(("evaluate", "a", "b")) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "epochs" in x)
    assert line.split() == ["epochs", "150", "12"]


def test_a_run_with_broken_logits_is_left_out_with_the_reason(tmp_path, capsys):
    made(tmp_path / "good")
    path = made(tmp_path / "[bold]bad[/]", seed=1).folder / "test.npz"
    path.write_bytes(path.read_bytes()[:200])
    assert main(("evaluate", "good", "[bold]bad[/]")) == 0
    out = capsys.readouterr().out
    assert "left out: cannot read [bold]bad[/]/test.npz: " in out
    assert "cannot read" in refused(capsys, "evaluate", "[bold]bad[/]")


def test_odd_files_of_a_run_are_told_in_a_line(tmp_path, capsys):
    run = made(tmp_path / "run")
    for name, content in {"history.csv": "epoch,loss\n1", "config.json": "[]"}.items():
        (run.folder / name).write_text(content)
        assert f"cannot read run/{name}: " in refused(capsys, "evaluate", "run")


def test_names_with_markup_are_printed_as_they_are(capsys):
    name = "a[red]b[/red]"
    for terminal in (False, True):
        output = console(force_terminal=terminal, width=100)
        with Progress(output) as progress:
            progress.start(name, 3, 1)
            progress.within(0.5)
            progress.end(name, "done [/]")
        out = capsys.readouterr().out
        assert f"{name} continues after epoch 1 of 3" in out
        assert f"{name}: done [/]" in out


def test_quickstart_tells_the_whole_story(tmp_path, capsys):
    assert main(("quickstart",)) == 0
    out = capsys.readouterr().out
    for step in ("1. Train", "2. Calibrate", "3. Answer", "4. Write the report"):
        assert step in out
    assert out.count("epoch ") == 4
    # Every step gains something: confidence, calibration error, and wrong answers.
    stated, right = re.search(r"confidence is (\S+) %, but (\S+) %", out).groups()
    ece, before = re.search(r"is (\S+) points instead of (\S+)\.\n", out).groups()
    risk, wrong = re.search(r"and (\S+) % .* instead of (\S+) %", out).groups()
    assert float(stated) > float(right) + 5
    assert float(ece) < float(before) - 3
    assert float(risk) < 5 < float(wrong)
    page = tmp_path / "runs" / "quickstart" / "report.html"
    assert out.rstrip().endswith(str(page))
    assert "<title>Quickstart" in page.read_text("utf-8")


def test_a_quickstart_that_is_too_short_says_so(capsys):
    assert main(("quickstart", "--epochs", "1")) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: No threshold has a risk of at most 0.05")
    assert error.endswith("Train for longer by --epochs.\n")
