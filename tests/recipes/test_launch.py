"""Many commands at a time: on this machine, and on a Ray cluster of two nodes.

Whatever is waited for takes seconds; the bound is for tests that would hang.
"""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from finished import finish

from recipes import keeper, launch
from recipes.launch import Job, run_all
from recipes.request import RunError
from recipes.runs import Predictions, Run

pytestmark = pytest.mark.backend_free

ROOT = Path(__file__).parents[2]
BOUND = 600.0  # seconds
CONFIG = {"dataset": "d", "model": "m", "loss": "au", "seed": 0, "settings": {}}


@pytest.fixture
def job(tmp_path):
    """Returns jobs whose commands are scripts, which end with a finished run."""
    template = Run(tmp_path / "template")
    with template.lock():
        template.claim(CONFIG)
        finish(template, Predictions(np.zeros((2, 2)), np.zeros(2)))

    def make(name, script="", *, finishes=True, directory=tmp_path, **environment):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        end = f"shutil.copytree({str(template.folder)!r}, folder, dirs_exist_ok=True)"
        code = "import os, pathlib, shutil, sys, time\n"
        code += f"folder = {str(folder)!r}\n{textwrap.dedent(script)}\n"
        command = (sys.executable, "-S", "-c", code + (end if finishes else ""))
        return Job(Run(folder), command, environment, directory)

    return make


def test_a_failure_is_told_and_does_not_stop_the_others(tmp_path, job):
    seen = []
    absent = job("absent")._replace(command=("no-such-program",))
    jobs = [
        job("good", "print('fine', flush=True)"),
        job("wrong", "print('é' * 3 + '\\n\\nlast words'); sys.exit(3)"),
        job("killed", "os.kill(os.getpid(), 9)"),
        job("idle", finishes=False),
        absent,
        job("late", "time.sleep(0.1)"),
    ]
    assert run_all(jobs, at_once=2, report=seen.append) == seen
    found = {ended.job.run.name: ended for ended in seen}
    assert {name: ended.error for name, ended in found.items()} == {
        "good": None,
        "wrong": "exit code 3",
        "killed": "exit code 137",
        "idle": "the command ended, but the run is not finished",
        "absent": "exit code 127",
        "late": None,
    }
    assert found["wrong"].tail == "ééé\nlast words"
    assert "no-such-program" in found["absent"].tail
    assert "its log is wrong/train.log" in found["wrong"].failure()
    assert "    last words" in found["wrong"].failure()


def test_a_finished_job_is_not_run_again_and_logs_are_appended(job):
    run_all([job("good"), job("wrong", "sys.exit('last words')")])
    again = [job("good", "sys.exit('again')"), job("wrong", "sys.exit('once more')")]
    ended = run_all(again)
    assert [(one.job.run.name, one.tail) for one in ended] == [("wrong", "once more")]
    assert "last words" in again[1].log.read_text()


def test_at_most_that_many_jobs_run_at_once(tmp_path, job, monkeypatch):
    for name in launch.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setattr(launch, "processors", lambda: 5)
    script = f"""
    here = pathlib.Path({str(tmp_path)!r}, f"here-{{os.getpid()}}")
    here.touch()
    time.sleep(0.3)
    print(len(list(here.parent.glob("here-*"))))
    here.unlink()
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MARK")
    print(*map(os.environ.get, names), os.getcwd())
    """
    directory = tmp_path / "there"
    directory.mkdir()
    jobs = [job(str(i), script, directory=directory, MARK="mine") for i in range(4)]
    tails = [ended.tail.splitlines() for ended in run_all(jobs, at_once=2)]
    assert max(int(count) for count, _ in tails) <= 2
    assert {line for _, line in tails} == {f"2 7 mine {directory}"}
    # A single run at a time may use all processors.
    (ended,) = run_all([job("alone", script, MARK="mine")])
    assert ended.tail.splitlines()[1].startswith("None 7 mine")


# --- Stopping -----------------------------------------------------------------------

# A command with a child, which writes the process ids of both.
COMMAND = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "3600"])
path = pathlib.Path(sys.argv[1])
path.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
path.with_suffix(".new").rename(path)
time.sleep(3600)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN){COMMAND}"

SEARCH = """
import signal, sys
from pathlib import Path
from recipes import launch
from recipes.runs import Run

launch.GRACE = 0.5
folder, engine, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
jobs = []
for name in "abc":
    command = (sys.executable, "-S", "-c", script, str(folder / f"{name}.pid"))
    jobs.append(launch.Job(Run(folder / name), command, {}, folder))
# A shell has the processes in its background ignore SIGINT, and all below them.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    launch.run_all(jobs, engine, at_once=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


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


def started(folder, engine="local", script=COMMAND):
    """Returns a process that runs two of three jobs, and the ids of theirs."""
    folder.mkdir()
    command = [sys.executable, "-c", SEARCH, str(folder), engine, script]
    process = subprocess.Popen(command, cwd=ROOT)
    files = [folder / "a.pid", folder / "b.pid"]
    wait_for(lambda: process.poll() or all(file.exists() for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) == 4
    assert all(map(alive, pids))
    return process, pids


def test_an_interrupted_search_ends_after_all_its_processes(tmp_path):
    process, pids = started(tmp_path / "jobs", script=STUBBORN)
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND) == 130
    assert not any(map(alive, pids))
    assert not (tmp_path / "jobs" / "c.pid").exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_killed_search_leaves_no_process_behind(name, tmp_path):
    process, pids = started(tmp_path / "jobs")
    process.send_signal(getattr(signal, name))
    assert process.wait(BOUND) == -getattr(signal, name)
    wait_for(lambda: not any(map(alive, pids)))
    assert not (tmp_path / "jobs" / "c.pid").exists()


def test_the_keeper_ends_what_a_command_leaves_behind(tmp_path):
    script = "sleep 3600 & echo $! > pid; exit 3"
    command = [sys.executable, keeper.__file__, "10", "sh", "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        assert process.stdout.read() == b"3"
    assert not alive(int((tmp_path / "pid").read_text()))


# --- Ray ----------------------------------------------------------------------------


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster of two nodes on this machine, with one CPU each.

    Its processes ignore SIGINT, like those of a cluster that was started in the
    background of a shell.
    """
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Ray gives a job as many threads as CPUs, unless the user sets them.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = {"num_cpus": 1, "include_dashboard": False}
    options["object_store_memory"] = 80 * 1024**2
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = Cluster()
    try:
        for _ in range(2):
            cluster.add_node(**options)
    except Exception as error:
        cluster.shutdown()
        # A deadline of Ray's own: 30 seconds for the start of a node.
        if "timed out during startup" in str(error):
            pytest.skip("This machine is too busy for Ray to start a node.")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield
    cluster.shutdown()


def test_two_nodes_share_the_work(two_nodes, tmp_path, job, capfd):
    import ray

    # A node has room for one: two that wait for each other need both.
    meet = """
        pathlib.Path(folder, "here").touch()
        there = list(map(pathlib.Path, ("a/here", "b/here")))
        while not all(path.exists() for path in there):
            time.sleep(0.05)
        print(os.environ["OMP_NUM_THREADS"], os.getcwd())
    """
    jobs = [job("a", meet), job("b", meet), job("wrong", "sys.exit('last words')")]
    found = {ended.job.run.name: ended for ended in run_all(jobs, "ray")}
    assert not ray.is_initialized()
    for name in "ab":
        assert found[name].error is None
        assert found[name].tail == f"1 {tmp_path}"
    assert found["wrong"].error == "exit code 1"
    assert found["wrong"].tail == "last words"

    # Only the failed job is run again.
    again = run_all(jobs, "ray", at_once=1)
    assert [ended.job.run.name for ended in again] == ["wrong"]

    process, pids = started(tmp_path / "stopped", "ray")
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND) == 130
    assert not any(map(alive, pids))

    process, pids = started(tmp_path / "killed", "ray")
    process.kill()
    process.wait(BOUND)
    wait_for(lambda: not any(map(alive, pids)))
    assert capfd.readouterr() == ("", "")


def test_a_missing_cluster_is_told_in_a_line(job, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RunError, match=r"no Ray cluster at 127.0.0.1:1.*RAY_ADDRESS"):
        run_all([job("never")], "ray")
    assert not job("never").log.exists()
