"""Many commands at a time: on this machine, and on a Ray cluster of two nodes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from recipes import engines
from recipes.engines import Job, run_all
from recipes.runs import RunError

ROOT = Path(__file__).parents[2]

# What finishes a run; the rest of a script goes before it.
FINISH = "pathlib.Path(folder, 'environment.json').write_text('{}')"


def job(folder, name, script="", *, end=FINISH, **options):
    """Returns a job whose command is a script, in a folder that is there."""
    run = folder / name
    run.mkdir(parents=True, exist_ok=True)
    lines = f"import os, pathlib, sys, time; folder = {str(run)!r}; "
    code = f"{lines}\n{textwrap.dedent(script)}\n{end}"
    command = (sys.executable, "-S", "-c", code)
    return Job(name, command, run, run / "log.txt", **options)


def test_a_failure_is_told_and_stops_no_other(tmp_path):
    seen = []
    jobs = [
        job(tmp_path, "good", "print('fine', flush=True)"),
        job(tmp_path, "wrong", "print('é' * 3 + '\\n\\nlast words'); sys.exit(3)"),
        job(tmp_path, "killed", "os.kill(os.getpid(), 9)"),
        job(tmp_path, "idle", end=""),
        Job("absent", ("no-such-program",), tmp_path / "absent", tmp_path / "a.txt"),
        job(tmp_path, "late", "time.sleep(0.1)"),
    ]
    results = run_all(jobs, at_once=2, report=seen.append)
    assert results == seen
    found = {result.job.name: result for result in results}
    assert {name: result.finished for name, result in found.items()} == {
        "good": True,
        "wrong": False,
        "killed": False,
        "idle": False,
        "absent": False,
        "late": True,
    }
    assert found["wrong"].error == "exit code 3"
    assert found["wrong"].tail == "ééé\nlast words"
    assert found["killed"].error == "killed by SIGKILL"
    assert "not finished" in found["idle"].error
    assert "no-such-program" in found["absent"].error
    assert str(jobs[1].log) in found["wrong"].failure()
    assert "    last words" in found["wrong"].failure()

    # Once more: what is finished stays, and the tail is of this time alone.
    again = run_all([*jobs[:1], job(tmp_path, "wrong", "sys.exit('once more')")])
    assert [(r.job.name, r.tail) for r in again] == [("wrong", "once more")]
    assert "last words" in jobs[1].log.read_text()


def test_at_once_and_no_more(tmp_path, monkeypatch):
    for name in engines.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setattr(engines, "processors", lambda: 5)
    script = f"""
    here = pathlib.Path({str(tmp_path)!r}, f"here-{{os.getpid()}}")
    here.touch()
    time.sleep(0.3)
    print(len(list(here.parent.glob("here-*"))))
    here.unlink()
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MARK")
    print(*map(os.environ.get, names), os.getcwd())
    """
    options = {"environment": {"MARK": "mine"}, "directory": tmp_path / "0"}
    jobs = [job(tmp_path, str(index), script, **options) for index in range(4)]
    results = run_all(jobs, at_once=2)
    counts, *_ = zip(*(result.tail.splitlines() for result in results), strict=True)
    assert max(map(int, counts)) == 2
    assert {result.tail.splitlines()[1] for result in results} == {
        f"2 7 mine {tmp_path / '0'}"
    }
    # Alone, a run has all processors.
    (result,) = run_all([job(tmp_path, "alone", script, **options)])
    assert result.tail.splitlines()[1].startswith("None 7 mine")


STOPPED = """
import signal
import sys
from pathlib import Path
from recipes.engines import Job, run_all

folder = Path(sys.argv[1])
code = '''
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
child = subprocess.Popen(["sleep", "60"])
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(60)
'''
command = (sys.executable, "-S", "-c", code)
jobs = [
    Job(name, (*command, str(folder / f"{name}.pid")), folder / name, folder / "log")
    for name in "abc"
]
# A shell has what it runs in the background ignore it, and so everything below.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_all(jobs, sys.argv[2], at_once=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stopped(folder, number, engine="local"):
    """Stops an engine with two jobs at work; they have ended with it.

    Each has a process of its own, which nobody waits for: it is given a moment.
    """
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(folder), engine], cwd=ROOT
    )
    files = [folder / "a.pid", folder / "b.pid"]
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert not (folder / "c.pid").exists()
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) == 4
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, [pids, left]
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_stop_what_was_started(name, tmp_path):
    stopped(tmp_path / "jobs", getattr(signal, name))


def test_engines_that_are_not_there(tmp_path):
    for options, words in (
        ({"engine": "slurm"}, "local, ray"),
        ({"at_once": 0}, "at_once=0"),
        ({"gpus": 1.0}, "engine ray"),
    ):
        with pytest.raises(ValueError, match=words):
            run_all([job(tmp_path, "never")], **options)
    assert not (tmp_path / "never" / "log.txt").exists()


# --- Ray ----------------------------------------------------------------------------


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster of two nodes on this machine, with one CPU each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    options = {"num_cpus": 1, "include_dashboard": False}
    options["object_store_memory"] = 80 * 1024**2
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        cluster.add_node(**options)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield
    finally:
        cluster.shutdown()


def test_two_nodes_share_the_work(two_nodes, tmp_path, capfd):
    import ray

    # A node has room for one: two that wait for each other need both.
    meet = """
        pathlib.Path(folder, "here").touch()
        there = list(map(pathlib.Path, ("a/here", "b/here")))
        deadline = time.monotonic() + 120
        while not all(path.exists() for path in there):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        print(os.environ["OMP_NUM_THREADS"], os.getcwd())
    """
    jobs = [job(tmp_path, name, meet, directory=tmp_path) for name in "ab"]
    jobs.append(job(tmp_path, "wrong", "sys.exit('last words')"))
    results = {result.job.name: result for result in run_all(jobs, "ray")}
    assert not ray.is_initialized()
    assert results["a"].node != results["b"].node
    for name in "ab":
        assert results[name].finished
        assert results[name].tail == f"1 {tmp_path}"
    assert results["wrong"].error == "exit code 1"
    assert results["wrong"].tail == "last words"

    # Only what is not finished is done again.
    again = run_all(jobs, "ray", at_once=1)
    assert [result.job.name for result in again] == ["wrong"]

    stopped(tmp_path / "jobs", signal.SIGINT, "ray")
    assert capfd.readouterr() == ("", "")


def test_a_second_interruption_does_not_stop_the_stopping(tmp_path):
    pytest.importorskip("ray")
    script = """
        import signal

        def stop(*_):
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(0.5)
            pathlib.Path(folder, "stopped").touch()
            sys.exit()

        signal.signal(signal.SIGTERM, stop)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    """
    # As in a worker of Ray, whatever shell started the tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            engines._execute(job(tmp_path, "slow", script))
        assert (tmp_path / "slow" / "stopped").exists()
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_cluster_is_told(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunError, match=r"no Ray cluster at 127.0.0.1:1.*RAY_ADDRESS"):
        run_all([job(tmp_path, "never")], "ray")
    assert signal.getsignal(signal.SIGTERM) is before
    assert not os.path.exists(tmp_path / "never" / "log.txt")
