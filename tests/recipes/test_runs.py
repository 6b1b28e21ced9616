"""The run folder: complete files, one process at a time, one configuration."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from finished import Model, finish

from recipes.runs import Checkpoint, Predictions, Run, runs_in
from recipes.tasks import RunError

pytestmark = pytest.mark.backend_free

CONFIG = {
    "dataset": "digits",
    "model": "cnn",
    "loss": "au",
    "seed": 0,
    "settings": {"epochs": 3, "loss": {"smoothing": 0.1}},
    "versions": {"keras": "3.15.1"},
    "data": {"train": {"samples": 640}},
}
OTHER = {**CONFIG, "seed": 1, "loss": "xe"}
ROW = {"epoch": 1, "loss": 0.5, "val_loss": 0.25}
PREDICTIONS = Predictions(np.eye(3), np.array([0, 1, 2]))
FILES = ("config.json", "environment.json", "history.csv", "model.keras")
FILES += ("test.npz", "val.npz")


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def state(epoch, best_epoch=None):
    best = None if best_epoch is None else [np.full((2,), best_epoch, "float32")]
    variables = [np.full((3, 2), epoch, "float32"), np.array(epoch)]
    return Checkpoint(epoch, variables, [ROW] * epoch, best_epoch, best)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    with run.lock():
        yield run


@pytest.fixture
def finished(run):
    run.claim(CONFIG)
    return finish(run, PREDICTIONS)


def test_what_is_written_is_read(run):
    run.claim(CONFIG)
    run.write_history([ROW, {**ROW, "epoch": 2}])
    assert run.config() == CONFIG
    assert run.history() == [ROW, {**ROW, "epoch": 2}]
    run.write_predictions("val", PREDICTIONS)
    assert not run.finished
    with pytest.raises(RunError, match=r"is not finished: it has no environment\.json"):
        run.predictions("val")
    run.save_checkpoint(state(1), CONFIG)
    finish(run, PREDICTIONS)
    assert run.finished
    found = run.predictions("val")
    assert found.logits.dtype == "float32"
    assert found.labels.dtype == "int32"
    np.testing.assert_array_equal(found.logits, PREDICTIONS.logits)
    assert names(run.folder) == [".lock", *FILES]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_run_with_a_missing_or_broken_file_is_not_finished(finished, name, damage):
    assert finished.finished
    path = finished.folder / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -2 if damage == "cut" else 0])
    again = Run(finished.folder)
    assert not again.finished
    assert name in again.problem()


WRITES = {
    "config.json": lambda run: run.write_json("config.json", {"seed": 1}),
    "history.csv": lambda run: run.write_history([ROW, ROW]),
    "test.npz": lambda run: run.write_predictions("test", PREDICTIONS),
    "model.keras": lambda run: run.save_model(Model()),
    "last.npz": lambda run: run.save_checkpoint(state(2, 2), CONFIG),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("full", ["while writing", "at the end"])
def test_a_full_disk_leaves_all_files_as_they_were(run, name, full, monkeypatch):
    run.claim(CONFIG)
    run.save_checkpoint(state(1, 1), CONFIG)
    run.write_history([ROW])
    before = contents(run.folder)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(path, *_, **__):
        path.write_bytes(b"half")
        fail()

    if full == "at the end":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(np, "savez", half)
        monkeypatch.setattr(Model, "save", lambda self, path: half(path))
        monkeypatch.setattr("pathlib.Path.write_text", half)
        monkeypatch.setattr("csv.DictWriter.writerows", fail)
    with pytest.raises(RunError, match=r"cannot write .*No space left on device"):
        WRITES[name](run)
    monkeypatch.undo()
    assert contents(run.folder) == before
    WRITES[name](run)


def test_state_and_best_variables_belong_together(run, monkeypatch):
    """A process that dies between the two files must not mix two states."""
    assert run.load_checkpoint(CONFIG) is None
    run.save_checkpoint(state(1, 1), CONFIG)
    run.save_checkpoint(state(2, 1), CONFIG)
    replace = os.replace

    def dying(source, target):
        if target.name == "last.npz":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        run.save_checkpoint(state(3, 3), CONFIG)
    monkeypatch.undo()
    found = run.load_checkpoint(CONFIG)
    assert (found.epoch, found.best_epoch, len(found.history)) == (2, 1, 2)
    np.testing.assert_array_equal(found.best[0], [1, 1])
    np.testing.assert_array_equal(found.variables[0], np.full((3, 2), 2))
    run.save_checkpoint(state(3, 3), CONFIG)
    assert run.load_checkpoint(CONFIG).best[0][0] == 3
    assert "best-1.npz" not in names(run.folder)


# --- Configuration ------------------------------------------------------------------


def test_another_configuration_is_refused_by_its_fields(run):
    run.claim(CONFIG)
    run.claim(CONFIG)
    other = {
        **CONFIG,
        "seed": 1,
        "settings": {"epochs": 3, "loss": {"smoothing": 0.2, "csf": "msp"}},
    }
    with pytest.raises(RunError) as caught:
        run.claim(other)
    message = str(caught.value)
    assert "seed is 0 there and 1 here" in message
    assert "settings.loss.smoothing is 0.1 there and 0.2 here" in message
    assert 'settings.loss.csf is not given there and "msp" here' in message
    assert "epochs" not in message


def test_a_finished_run_may_be_asked_for_with_other_versions(run):
    run.claim(CONFIG)
    newer = {**CONFIG, "versions": {"keras": "4"}, "data": None}
    with pytest.raises(RunError, match=r"versions\.keras"):
        run.claim(newer)
    finish(run, PREDICTIONS)
    run.claim(newer)
    # Other data, where it was read, is another run.
    other = {**newer, "data": {"train": {"samples": 600}}}
    with pytest.raises(RunError, match=r"samples is 640 there and 600 here"):
        run.claim(other)
    with pytest.raises(RunError, match="seed is 0 there"):
        run.claim(OTHER)


def test_without_a_configuration_another_one_does_not_take_the_checkpoint(run):
    run.claim(CONFIG)
    run.save_checkpoint(state(1, 1), CONFIG)
    (run.folder / "config.json").unlink()
    before = contents(run.folder)
    with pytest.raises(
        RunError, match=r"checkpoint .* is that of another configuration"
    ):
        run.claim(OTHER)
    with pytest.raises(
        RunError, match=r"checkpoint .* is that of another configuration"
    ):
        run.load_checkpoint(OTHER)
    assert contents(run.folder) == before
    run.claim(CONFIG)
    assert run.load_checkpoint(CONFIG).epoch == 1


def test_without_a_configuration_finished_results_are_not_overwritten(finished):
    (finished.folder / "config.json").unlink()
    before = contents(finished.folder)
    for config in (CONFIG, OTHER):
        with pytest.raises(RunError, match=r"has environment\.json, .*but no config"):
            finished.claim(config)
    assert contents(finished.folder) == before


# --- Broken files -------------------------------------------------------------------


def test_a_broken_checkpoint_is_named(run):
    run.save_checkpoint(state(1), CONFIG)
    path = run.folder / "checkpoint" / "last.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"cannot read .*last\.npz"):
        run.load_checkpoint(CONFIG)
    with pytest.raises(RunError, match="there is no run"):
        Run(run.folder / "other").config()


@pytest.mark.parametrize(
    "meta",
    [
        "[]",
        "{",
        "3",
        lambda meta: {**meta, "epoch": 7},
        lambda meta: {**meta, "surprise": 1},
        lambda meta: {**meta, "history": None},
        lambda meta: {**meta, "best_epoch": "last"},
    ],
)
def test_odd_metadata_of_a_checkpoint_are_told_in_a_line(run, meta):
    run.save_checkpoint(state(1), CONFIG)
    path = run.folder / "checkpoint" / "last.npz"
    with np.load(path) as arrays:
        found = dict(arrays)
    text = meta
    if callable(meta):
        text = json.dumps(meta(json.loads(str(found["meta"]))))
    np.savez(path, **{**found, "meta": np.array(text)})
    with pytest.raises(RunError, match=r"^cannot read [^\n]*\.npz: [^\n]+$"):
        run.load_checkpoint(CONFIG)


@pytest.mark.parametrize("text", ["[]", "3", "{", "", '{"seed": 0}', "\xff"])
def test_a_config_that_is_no_configuration_is_told_in_a_line(run, text):
    (run.folder / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"^cannot read [^\n]*config\.json: [^\n]+$"):
        run.config()


@pytest.mark.parametrize(
    "text", ["", "epoch,loss\n1", "epoch,loss\n1,0.5\n2\n", "epoch,loss\n1,x\n"]
)
def test_a_truncated_history_is_told_in_a_line(run, text):
    (run.folder / "history.csv").write_text(text)
    with pytest.raises(RunError, match=r"^cannot read [^\n]*history\.csv: [^\n]+$"):
        run.history()


# --- Processes and folders ----------------------------------------------------------

HOLD = """
import sys, time
from recipes.runs import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_run_belongs_to_one_process_until_that_dies(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as holder:
        assert holder.stdout.readline() == b"held\n"
        (folder / ".partial-test.npz").write_bytes(b"half")
        refused = rf"{folder} is in use by process {holder.pid}"
        with pytest.raises(RunError, match=refused), Run(folder).lock():
            pass
        assert ".partial-test.npz" in names(folder)
        holder.send_signal(signal.SIGKILL)
    with Run(folder).lock():
        assert names(folder) == [".lock"]


def test_folders_of_runs_are_found(tmp_path):
    for name in ("b", "a"):
        with Run(tmp_path / "many" / name).lock():
            Run(tmp_path / "many" / name).claim(CONFIG)
    assert [run.name for run in runs_in([tmp_path / "many"])] == ["a", "b"]
    assert [run.name for run in runs_in([tmp_path / "many" / "a"])] == ["a"]
    with pytest.raises(RunError, match="there is no run"):
        runs_in([tmp_path / "none"])[0].config()
