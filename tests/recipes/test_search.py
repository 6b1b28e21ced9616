"""The search: its grid, its map, its choice, and its failures."""

import csv
from pathlib import Path

import keras
import numpy as np
import pytest
import tiny_run
from finished import finish

from recipes import cli, training
from recipes.engine import Job
from recipes.runs import Predictions, Run
from recipes.search import SHOWN, Search, Trial, default_grid, grid_of, trials_of
from recipes.tasks import RunError, Task

pytestmark = pytest.mark.backend_free

BASE = ("search", "--dataset", "digits", "--model", "cnn")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *arguments):
    assert cli.main(arguments) == 1
    return capsys.readouterr().err


# --- The grid -----------------------------------------------------------------------


def test_default_grids_have_the_papers_choices():
    assert default_grid("cifar10", "dual_focal") == {
        "gamma": (1.0, 2.6, 3.9, 4.0, 4.5, 5.0, 6.1)
    }
    assert default_grid("cifar10", "inv_focal") == {
        "gamma": (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
    }
    assert default_grid("cifar10", "kde_xe") == {"kde_weight": (0.3, 0.5)}
    grid = default_grid("cifar100", "au")
    assert grid["smoothing"] == (0.005, 0.01, 0.05, 0.1)
    assert grid["quantile"] == (0.4, 0.6, 0.75, 0.8, 0.88, 0.92)
    assert grid["csf"] == default_grid("cifar100", "aurc")["csf"]
    assert default_grid("cifar10", "xe") == {}
    # As in `settings`, ν is on this library's scale where β has a gradient.
    converted = default_grid("cifar100", "au", weight_gradient=1.0)["smoothing"]
    assert converted[0] > 0.005


def trials(loss, *grid, seeds=1, folder="out", **asked):
    task = Task("digits", "cnn", loss, **asked)
    values = grid_of(task, grid)
    return tuple(values), trials_of(task, values, seeds, Path(folder))


def test_what_is_given_is_not_searched():
    fields, found = trials("au", csf="msp", set=("loss.quantile=0.5",))
    assert fields == ("smoothing",)
    assert [trial.values for trial in found] == [(0.005,), (0.01,), (0.05,), (0.1,)]
    fields, found = trials("au", "loss.csf=msp,margin", seeds=2)
    assert fields == ("csf",)
    assert [(*trial.values, trial.job.task.seed) for trial in found] == [
        ("msp", 0),
        ("msp", 1),
        ("margin", 0),
        ("margin", 1),
    ]
    # Epochs move the milestones, as --epochs does; equal numbers are one run.
    _, found = trials("xe", "epochs=4,8,4.0")
    assert [trial.values for trial in found] == [(4,), (8,)]
    assert found[1].job.task.epochs == 8


def test_the_command_of_a_trial_trains_its_task():
    _, found = trials("au", "smoothing=0.3,1", subset=64)
    run, task = found[1].job
    assert (task.settings.loss["smoothing"], task.subset, task.seed) == (1.0, 64, 0)
    assert run.folder == Path("out") / task.name
    assert cli.made(Task, cli.parse(["train", *task.arguments()])) == task


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--loss", "xe"), "nothing to search for xe"),
        (("--loss", "mse"), "'mse'"),
        (("--loss", "au", "--grid", "gamma=1"), "smoothing"),
        (("--loss", "au", "--grid", "quantile=0.5,2"), "2"),
        (("--loss", "au", "--grid", "quantile=0.5,high"), "'high'"),
        (("--loss", "au", "--grid", "quantile"), "quantile"),
        (("--loss", "au", "--grid", "csf=msp", "--csf", "msp"), "given twice"),
        (("--loss", "au", "--gpus-per-run", "1"), "`gpus-per-run` must be 0"),
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_nothing_starts_where_a_setting_is_wrong(arguments, words, capsys, tmp_path):
    error = refused(capsys, *BASE, *arguments)
    assert error.startswith("error: ")
    assert words in error
    assert not list(tmp_path.iterdir())


# --- The choice ---------------------------------------------------------------------


def made(fields, outcomes):
    """Returns a search of settings whose seeds have the outcomes given."""
    found = []
    for values, seeds in outcomes.items():
        for seed, outcome in enumerate(seeds):
            task = Task("digits", "cnn", "au", seed=seed)
            trial = Trial(values, Job(Run(f"runs/{values}-{seed}"), task), {})
            if isinstance(outcome, str):
                trial.failure = outcome
            elif outcome is not None:
                trial.results = dict(zip(SHOWN, outcome, strict=True))
                trial.results |= {"loss": 0.5, "epoch": 3}
            found.append(trial)
    return Search(fields, found)


#       NLL, ECE, accuracy
CURVE = {
    (1.0,): [(0.6, 10.0, 70.0), (0.8, 10.0, 70.0)],
    (2.0,): [(0.5, 8.0, 70.0), (0.6, 8.0, 70.0)],
    (3.0,): [(0.7, 2.0, 70.0), (0.7, 2.0, 70.0)],
}


def test_choice_by_the_mean_over_seeds():
    found = made(("gamma",), CURVE)
    assert found.choice() == (2.0,)
    assert found.choice("ece") == (3.0,)
    assert found.verdict() == (
        "Chosen: gamma 2 has the lowest NLL on the validation set, 0.550 ±0.071."
    )
    # Inside the grid, and as accurate as the others: one remark is left.
    assert found.remarks() == [
        "But gamma 3 has the lowest ECE on the validation set, 2.00 ±0.00."
    ]
    text = found.table().markdown()
    assert "| **2** | **0.550 ±0.071** | **8.00 ±0.00** |" in text
    assert "over 2 seeds" in text

    edge = made(("gamma",), {gamma: CURVE[gamma] for gamma in [(1.0,), (2.0,)]})
    assert edge.remarks() == [
        "gamma = 2 is the largest value of the grid: a larger one may be better."
    ]
    # Nothing lies beyond κ = 1.
    whole = made(("quantile",), {(0.5,): CURVE[1.0,], (1.0,): CURVE[2.0,]})
    assert whole.choice() == (1.0,)
    assert not any("grid" in remark for remark in whole.remarks())


def test_what_is_not_whole_is_not_chosen(tmp_path):
    worse, better = (0.9, 30.0, 50.0), (0.1, 0.0, 90.0)
    nan = (np.nan, 50.0, 10.0)
    found = made(
        ("smoothing", "quantile", "csf"),
        {
            (0.1, 0.5, "msp"): [worse, worse],
            (0.1, 0.75, "msp"): [better, "last words"],
            (0.2, 0.5, "msp"): [nan, better],
            (0.2, 0.75, "msp"): [None, None],
        },
    )
    assert found.choice() == (0.1, 0.5, "msp")
    text = found.table().markdown()
    assert "| **0.1** | **0.5** | **msp** | **0.900 ±0.000** |" in text
    assert "| 0.1 | 0.75 | msp | 0.100 (1 failed) |" in text
    assert "| 0.2 | 0.5 | msp | NaN |" in text
    assert "| 0.2 | 0.75 | msp | open |" in text
    rows = list(csv.DictReader(found.csv().splitlines()))
    assert list(rows[0])[:4] == ["smoothing", "quantile", "csf", "seed"]
    assert [row["state"] for row in rows] == [
        *["finished"] * 3,
        "failed",
        *["finished"] * 2,
        *["open"] * 2,
    ]
    assert (rows[0]["val_nll"], rows[3]["val_nll"]) == ("0.9", "")
    assert found.draw(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 5000
    none = made(("gamma",), {(1.0,): ["a"], (2.0,): [None]})
    assert none.choice() is None
    assert none.command() is None
    assert not none.draw(tmp_path / "none.png")
    assert "No setting is chosen" in none.verdict()


def test_the_own_loss_is_another_measure_at_each_gamma():
    """Why the default is not the literal one: the same logits, other values."""
    from recipes import losses

    logits = np.random.default_rng(0).normal(0, 3, (64, 10))
    labels = logits.argmax(-1)
    values = [
        float(losses.build("inv_focal", {"gamma": gamma})(labels, logits))
        for gamma in (1.0, 3.0)
    ]
    assert values[1] > 2 * values[0]


# --- The command --------------------------------------------------------------------


@pytest.fixture
def nlls(monkeypatch):
    """Stands in for trainings: maps values of γ or λ to the NLL of the validation."""
    found = {}

    def train(run, task, progress, *, dataset):
        if run.finished:
            run.claim({**task.config(), "data": None})
            progress.end(run.name, "was finished already")
            return
        loss = task.settings.loss
        nll = found[loss.get("gamma") or loss["kde_weight"]]
        if isinstance(nll, BaseException):
            raise nll
        gap = -np.log(np.expm1(nll))
        logits = np.stack([np.full(20, gap), np.zeros(20)], -1)
        history = [{"epoch": 1, "val_loss": 9}, {"epoch": 2, "val_loss": 5}]
        with run.lock():
            run.claim({**task.config(), "data": {}})
            finish(
                run,
                Predictions(logits, np.zeros(20, int)),
                environment={"best_epoch": 2},
                history=history,
            )
        progress.end(run.name, "trained")

    monkeypatch.setattr(training, "train", train)
    return found


def test_an_interrupted_search_continues(tmp_path, capsys, nlls):
    command = (*BASE, "--loss", "inv_focal", "--grid", "gamma=1,2,3", "--out", "out")
    nlls |= {1: 0.9, 2: 0.5, 3: KeyboardInterrupt()}
    assert cli.main(command) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert (tmp_path / "out" / "search.csv").read_text().count("finished") == 2
    nlls |= {1: AssertionError("again"), 2: AssertionError("again"), 3: 0.7}
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert out.count("was finished already") == 2
    assert "Chosen: gamma 2" in out
    assert (
        "python -m recipes train --dataset digits --model cnn --loss inv_focal" in out
    )
    rows = list(csv.DictReader((tmp_path / "out" / "search.csv").open()))
    assert [row["gamma"] for row in rows] == ["1", "2", "3"]
    assert [float(row["val_nll"]) for row in rows] == pytest.approx([0.9, 0.5, 0.7])
    assert [(row["val_loss"], row["epoch"]) for row in rows] == [("5", "2")] * 3
    assert (tmp_path / "out" / "search.png").exists()
    # Other settings under the same name are not taken for these.
    path = tmp_path / "out" / rows[0]["run"] / "config.json"
    path.write_text(path.read_text().replace('"epochs": 60', '"epochs": 61'))
    assert "1 of 3 runs failed" in refused(capsys, *command)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunError("no space left"), "failed: no space left"),
        (TypeError("a bug"), "failed: TypeError: a bug (out/"),
    ],
    ids=["of the user", "of the code"],
)
def test_a_failed_run_is_told_and_tried_again(error, told, tmp_path, capsys, nlls):
    command = (*BASE, "--loss", "kde_xe", "--out", "out")
    nlls |= {0.3: error, 0.5: 0.5}
    assert cli.main(command) == 1
    shown = capsys.readouterr()
    assert "1 of 2 runs failed" in shown.err
    assert "the same command tries them again" in shown.err
    assert told in shown.out.replace("\n", "")
    assert "Chosen: kde_weight 0.5" in shown.out
    rows = list(csv.DictReader((tmp_path / "out" / "search.csv").open()))
    assert [row["state"] for row in rows] == ["failed", "finished"]
    log = tmp_path / "out" / rows[0]["run"] / "error.log"
    assert log.exists() == isinstance(error, TypeError)
    nlls[0.3] = 0.4
    assert cli.main(command) == 0
    assert "Chosen: kde_weight 0.3" in capsys.readouterr().out


def test_a_search_that_trains(tmp_path, capsys):
    command = ["search", *tiny_run.ARGUMENTS, "--epochs", "1", "--out", "out"]
    assert cli.main([*command, "--grid", "smoothing=0.3"]) == 0
    assert "Chosen: smoothing 0.3" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "out" / "search.csv").open())
    run = Run(tmp_path / "out" / row["run"])
    assert run.config()["settings"]["loss"]["smoothing"] == 0.3
    assert run.config()["backend"] == keras.backend.backend()
    (epoch,) = run.history()
    assert float(row["val_loss"]) == pytest.approx(epoch["val_loss"], 1e-4)
    assert float(row["val_accuracy"]) == pytest.approx(100 * epoch["val_accuracy"])
