"""The run folder: whole files, one process at a time, one configuration."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from recipes.runs import Checkpoint, Predictions, Run, RunError, runs_in

CONFIG = {
    "dataset": "digits",
    "seed": 0,
    "settings": {"epochs": 3, "loss": {"smoothing": 0.1}},
    "versions": {"keras": "3.15.1"},
    "data": {"train": {"samples": 640}},
}
ROW = {"epoch": 1, "loss": 0.5, "val_loss": 0.25}


def names(folder):
    return sorted(path.name for path in folder.rglob("*"))


def state(epoch, best_epoch=None):
    best = None if best_epoch is None else [np.full((2,), best_epoch, "float32")]
    variables = [np.full((3, 2), epoch, "float32"), np.array(epoch)]
    return Checkpoint(epoch, variables, [ROW] * epoch, best_epoch, best)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "run")
    with run.lock():
        yield run


def test_what_is_written_is_read(run):
    run.claim(CONFIG)
    run.write_history([ROW, {**ROW, "epoch": 2}])
    logits, labels = np.eye(3, dtype="float64"), np.array([0, 1, 2], "int64")
    run.write_predictions("val", Predictions(logits, labels))
    assert run.config() == CONFIG
    assert run.history() == [ROW, {**ROW, "epoch": 2}]
    assert not run.finished
    with pytest.raises(RunError, match="is not finished"):
        run.predictions("val")
    run.save_checkpoint(state(1))
    run.finish({"python": "3"})
    assert run.finished
    found = run.predictions("val")
    assert found.logits.dtype == "float32"
    assert found.labels.dtype == "int32"
    np.testing.assert_array_equal(found.logits, logits)
    assert names(run.folder) == [
        ".lock",
        "config.json",
        "environment.json",
        "history.csv",
        "val.npz",
    ]


WRITES = {
    "config.json": lambda run: run.write_json("config.json", {"seed": 1}),
    "history.csv": lambda run: run.write_history([ROW, ROW]),
    "test.npz": lambda run: run.write_predictions(
        "test", Predictions(np.zeros((2, 2)), np.zeros(2))
    ),
    "model.keras": lambda run: run.save_model(_Model()),
    "last.npz": lambda run: run.save_checkpoint(state(2, 2)),
}


class _Model:
    def save(self, path):
        path.write_bytes(b"model")


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("full", ["while writing", "at the end"])
def test_a_full_disk_leaves_no_half_of_a_file(run, name, full, monkeypatch):
    run.claim(CONFIG)
    run.save_checkpoint(state(1, 1))
    run.write_history([ROW])
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def half(path, *_, **__):
        path.write_bytes(b"half")
        fail()

    if full == "at the end":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(np, "savez", half)
        monkeypatch.setattr(_Model, "save", lambda self, path: half(path))
        monkeypatch.setattr("pathlib.Path.write_text", half)
        monkeypatch.setattr("csv.DictWriter.writerows", fail)
    with pytest.raises(RunError, match=r"cannot write .*No space left on device"):
        WRITES[name](run)
    monkeypatch.undo()
    assert {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()} == before
    WRITES[name](run)


def test_state_and_best_variables_belong_together(run, monkeypatch):
    """A process that dies between the two files must not mix two states."""
    assert run.load_checkpoint() is None
    run.save_checkpoint(state(1, 1))
    run.save_checkpoint(state(2, 1))
    replace = os.replace

    def dying(source, target):
        if target.name == "last.npz":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        run.save_checkpoint(state(3, 3))
    monkeypatch.undo()
    found = run.load_checkpoint()
    assert (found.epoch, found.best_epoch, len(found.history)) == (2, 1, 2)
    np.testing.assert_array_equal(found.best[0], [1, 1])
    np.testing.assert_array_equal(found.variables[0], np.full((3, 2), 2))
    run.save_checkpoint(state(3, 3))
    assert run.load_checkpoint().best[0][0] == 3
    assert "best-1.npz" not in names(run.folder)


def test_broken_files_are_named(run):
    run.save_checkpoint(state(1))
    path = run.folder / "checkpoint" / "last.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"cannot read .*last\.npz"):
        run.load_checkpoint()
    (run.folder / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"cannot read .*config\.json"):
        run.claim(CONFIG)
    with pytest.raises(RunError, match="there is no run"):
        Run(run.folder / "other").config()


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
    newer = {**CONFIG, "versions": {"keras": "4"}, "data": None}
    with pytest.raises(RunError, match=r"versions\.keras"):
        run.claim(newer)
    run.finish({})
    run.claim(newer)
    with pytest.raises(RunError, match="seed is 0 there"):
        run.claim(other)


HOLD = """
import sys, time
from recipes.runs import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_belongs_to_one_process_until_that_dies(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
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
