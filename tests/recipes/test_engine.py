"""Many runs: one after the other in this process, or at the same time by Ray.

`python test_engine.py FOLDER JOBS` trains the runs of a test. Whatever is waited for
takes seconds; the bound is for tests that would hang.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tiny_run
from processes import finish, start

from recipes import models, training
from recipes.engine import Job, train_all
from recipes.progress import Progress, console
from recipes.runs import Run
from recipes.tasks import Pool, RunError, Task

pytestmark = pytest.mark.backend_free

BOUND = 600.0  # seconds


def jobs(folder, names):
    return [
        Job(Run(folder / name), tiny_run.task(seed=seed, epochs=2))
        for seed, name in enumerate(names)
    ]


def train(wanted, pool=None, **options):
    with Progress(console(quiet=True), len(wanted)) as progress:
        return train_all(wanted, progress, pool or Pool(), **options)


@pytest.fixture
def _tiny(monkeypatch):
    monkeypatch.setattr(models, "build", tiny_run.build)


@pytest.mark.usefixtures("_tiny")
def test_runs_share_data_and_a_failure_does_not_stop_the_others(tmp_path, monkeypatch):
    read, seen = [], []
    train_one, read_one = training.train, training.read_data

    def reading(task):
        read.append(task.dataset)
        return read_one(task)

    def training_one(run, task, progress, *, dataset):
        if run.name == "wrong":
            raise RunError("last words")
        if run.name == "broken":
            raise TypeError("a\nbug")
        train_one(run, task, progress, dataset=dataset)

    monkeypatch.setattr(training, "read_data", reading)
    monkeypatch.setattr(training, "train", training_one)
    wanted = jobs(tmp_path, ("good", "wrong", "broken", "late"))
    ended = train(wanted, report=seen.append)
    assert ended == seen
    log = tmp_path / "broken" / "error.log"
    errors = [None, "last words", f"TypeError: a bug ({log})", None]
    assert [one.error for one in ended] == errors
    assert "Traceback" in log.read_text()
    assert read == ["digits"]
    # Finished runs stay as they are, and need no data.
    before = (tmp_path / "good" / "test.npz").stat().st_mtime_ns
    train([wanted[0]])
    assert read == ["digits"]
    assert (tmp_path / "good" / "test.npz").stat().st_mtime_ns == before


@pytest.mark.usefixtures("_tiny")
def test_a_killed_process_loses_nothing(tmp_path):
    """It is killed after the first epoch of the second run."""
    undisturbed = jobs(tmp_path / "undisturbed", "ab")
    train(undisturbed)
    process, output = start(__file__, tmp_path / "killed", 1)
    with output:
        assert process.wait(BOUND) == -signal.SIGKILL
    again = jobs(tmp_path / "killed", "ab")
    assert [job.run.finished for job in again] == [True, False]
    assert len(again[1].run.history()) == 1
    train(again)
    for found, expected in zip(again, undisturbed, strict=True):
        for split in ("val", "test", "last-test"):
            np.testing.assert_allclose(
                found.run.predictions(split).logits,
                expected.run.predictions(split).logits,
                rtol=0,
                atol=1e-5,
            )


def test_gpus_of_a_single_run_are_refused(tmp_path):
    with pytest.raises(RunError, match=r"`gpus-per-run` must be 0 .*Received: 0\.5"):
        train(jobs(tmp_path, "a"), Pool(1, 0.5))


# --- Ray ----------------------------------------------------------------------------

# A loss that says where it is made, and waits, until it may go on.
WAITS = """
import os, pathlib, time
import keras

class Waits(keras.losses.SparseCategoricalCrossentropy):
    def __init__(self, place="", **kwargs):
        super().__init__(**kwargs)
        if place.endswith("wrong"):
            raise ValueError("last words")
        if place:
            pathlib.Path(place + ".new").write_text(str(os.getpid()))
            os.rename(place + ".new", place + ".pid")
            while not os.path.exists(place + ".go"):
                time.sleep(0.05)
"""


def waiting(folder):
    """Returns jobs that wait, and one that fails."""
    return [
        Job(
            Run(folder / name),
            Task(
                *("digits", "cnn", "waits:Waits"),
                epochs=1,
                subset=64,
                set=(f"loss.place={folder / name}",),
            ),
        )
        for name in ("a", "b", "wrong")
    ]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    # It may also end while the file is read.
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_runs_at_a_time_name_the_package_without_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"`jobs` of 2 need Ray: `pip install"):
        train(jobs(tmp_path, "ab"), Pool(2))


def test_ray_trains_runs_at_a_time_and_a_killed_parent_loses_nothing(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "waits.py").write_text(WAITS)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": paths}
    files = [tmp_path / f"{name}.pid" for name in "ab"]
    process, output = start(__file__, tmp_path, 2, **environment)
    with output:
        try:
            # Both wait at the same time.
            wait_for(lambda: process.poll() is not None or all(map(Path.exists, files)))
            output.seek(0)
            assert process.poll() is None, output.read()
            pids = [int(file.read_text()) for file in files]
            assert len({process.pid, *pids}) == 3
            process.kill()
            process.wait(BOUND)
            wait_for(lambda: not any(map(alive, pids)))
        finally:
            process.kill()
    assert not any(job.run.finished for job in jobs(tmp_path, "ab"))
    for name in "ab":
        (tmp_path / f"{name}.go").touch()
    printed = finish(start(__file__, tmp_path, 2, **environment))
    assert "{'a': None, 'b': None, 'wrong': 'last words'}" in printed
    assert all(Run(tmp_path / name).finished for name in "ab")


def test_a_missing_cluster_is_told_in_a_line(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    where = r"^Ray cannot be used at RAY_ADDRESS=127\.0\.0\.1:1: .*refused"
    with pytest.raises(RunError, match=where):
        train(jobs(tmp_path, "ab"), Pool(2))


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    if count == 1:
        models.build = tiny_run.build
        write = Run.write_history

        def dying(run, rows):
            write(run, rows)
            if run.name == "b":
                os.kill(os.getpid(), signal.SIGKILL)

        Run.write_history = dying
        train(jobs(folder, "ab"))
    else:
        ended = train(waiting(folder), Pool(count))
        found = {one.job.run.name: one.error for one in ended}
        print(dict(sorted(found.items())), flush=True)
