"""Launches many runs: several at a time on this machine, or on a Ray cluster.

A run is a command that fills a folder, and the folder is its only state: a finished run
is not started again, a stopped one continues by the same command, and a failed one does
not affect the others. `recipes/keeper.py` ends every command with its parent.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from recipes import keeper
from recipes.request import RunError
from recipes.runs import Run

# Where torch, BLAS, TensorFlow and JAX read how many threads to use.
THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)

_KEEPER = (sys.executable, "-I", "-S", keeper.__file__)
GRACE = 10.0  # seconds that a command has to end when it is told to
_TAIL = 12  # last lines of a log that are shown after a failure


class Job(NamedTuple):
    """A run, as a command.

    Attributes:
        run: the run, whose folder gets the output of the command in `train.log`.
        command: program and arguments.
        environment: variables to set in addition to those of the machine.
        directory: where the command is started.
    """

    run: Run
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path

    @property
    def log(self) -> Path:
        """The file of the command's output and errors."""
        return self.run.folder / "train.log"


def training_job(run: Run, arguments: Sequence[str]) -> Job:
    """Returns the job of `python -m recipes train` with some arguments."""
    import keras  # takes seconds, which Ray workers do not need to spend

    environment = {
        "KERAS_BACKEND": keras.backend.backend(),
        "PYTHONPATH": _python_path(),
    }
    if "KERAS_HOME" in os.environ:
        environment["KERAS_HOME"] = os.environ["KERAS_HOME"]
    program = (sys.executable, "-m", "recipes", "train")
    command = (*program, *arguments, "--out", str(run.folder))
    # Other machines and other directories must find the same files.
    return Job(Run(Path.cwd() / run.folder), command, environment, Path.cwd())


def _python_path() -> str:
    """Returns this process's PYTHONPATH with the folder of `recipes` in front."""
    root = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        job: the job.
        error: None for a finished run; otherwise a short description of the failure.
        tail: the last lines of the log.
        seconds: how long the job took.
    """

    job: Job
    error: str | None
    tail: str = ""
    seconds: float = 0.0

    def failure(self) -> str:
        """Describes the failure, with the path and the last lines of the log."""
        log = os.path.relpath(self.job.log, self.job.directory)
        lines = [f"failed: {self.error}; its log is {log}"]
        return "\n".join([*lines, *(f"    {line}" for line in self.tail.splitlines())])


def run_all(
    jobs: Sequence[Job],
    engine: str = "local",
    *,
    at_once: int | None = None,
    gpus: float = 0.0,
    report: Callable[[Ended], None] = lambda ended: None,
) -> list[Ended]:
    """Runs all jobs that are not finished, and returns how they ended, in that order.

    If this process is interrupted or killed, it leaves no process of a job behind.

    Args:
        jobs: the jobs, in the order in which they are started.
        engine: `"local"` starts processes on this machine. `"ray"` starts them on the
            cluster that `RAY_ADDRESS` names, by default the one on this machine; its
            nodes must find the interpreter and the folders under the same paths.
        at_once: the number of jobs at a time. Defaults to 1 for `"local"`, and to the
            number of CPUs of the cluster for `"ray"`.
        gpus: GPUs of each job on Ray; may be a fraction.
        report: called with each job as soon as it has ended.
    """
    waiting = [job for job in jobs if not job.run.finished]
    ended: list[Ended] = []
    if not waiting:
        return ended
    with contextlib.ExitStack() as stack:
        workers: list[Any]
        if engine == "ray":
            ray = stack.enter_context(_cluster())
            at_once = at_once or max(1, int(ray.cluster_resources().get("CPU", 1)))
            workers = [_RayWorker(ray, gpus) for _ in waiting]
        else:
            at_once = at_once or 1
            # A single job at a time needs no limit.
            threads = None if at_once == 1 else max(1, processors() // at_once)
            workers = [Worker(threads) for _ in waiting]
        pool = stack.enter_context(ThreadPoolExecutor(at_once))
        pairs = zip(workers, waiting, strict=True)
        tasks = [pool.submit(worker.run, job) for worker, job in pairs]
        try:
            for task in as_completed(tasks):
                ended.append(task.result())
                report(ended[-1])
        finally:
            for worker in workers:
                worker.stop()
    return ended


class Worker:
    """Runs one command; `stop` is called from another thread.

    Args:
        threads: limit on the threads of the command; None for no limit.
    """

    def __init__(self, threads: int | None) -> None:
        self._limits = {} if threads is None else dict.fromkeys(THREADS, str(threads))
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(self, job: Job) -> Ended:
        """Runs the command to its end."""
        start = time.monotonic()
        try:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with open(job.log, "ab") as log:
                log.write(f"$ {shlex.join(job.command)}\n".encode())
                offset = log.tell()
                log.flush()
                code = self._execute(job, log)
            error, tail = f"exit code {code}" if code else "", _tail(job.log, offset)
        except OSError as refusal:
            error, tail = str(refusal), ""
        if not error and not job.run.finished:
            error = "the command ended, but the run is not finished"
        return Ended(job, error or None, tail, time.monotonic() - start)

    def _execute(self, job: Job, log: Any) -> int:
        environment = {**self._limits, "PYTHONUNBUFFERED": "1", **os.environ}
        with self._lock:
            if self._stopped:
                return 128 + signal.SIGTERM
            self._keeper = subprocess.Popen(
                [*_KEEPER, str(GRACE), *job.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=job.directory,
                env={**environment, **job.environment},
                start_new_session=True,
            )
        with self._keeper as process:
            assert process.stdout is not None
            # The first process ends at once; the pipe, with the command.
            return int(process.stdout.read() or 128 + signal.SIGKILL)

    def stop(self) -> None:
        """Ends the command, or keeps it from being started."""
        with self._lock:
            self._stopped = True
            if self._keeper is not None and self._keeper.stdin is not None:
                self._keeper.stdin.close()


def _tail(path: Path, offset: int) -> str:
    with open(path, "rb") as log:
        log.seek(max(offset, log.seek(0, os.SEEK_END) - 10_000))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip()][-_TAIL:])


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _RayWorker:
    """A `Worker` in an actor of a Ray cluster, with one CPU."""

    def __init__(self, ray: Any, gpus: float) -> None:
        self._ray = ray
        options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
        # Two threads: `stop` beside `run`.
        self._class = ray.remote(max_concurrency=2, **options)(Worker)
        self._lock = threading.Lock()
        self._actor: Any = None
        self._running = self._stopped = False

    def run(self, job: Job) -> Ended:
        with self._lock:
            if self._stopped:
                return Ended(job, "stopped")
            self._actor = self._class.remote(1)
        try:
            self._ray.get(self._actor.__ray_ready__.remote())
            self._running = True
            found: Ended = self._ray.get(self._actor.run.remote(job))
        except self._ray.exceptions.RayError as error:
            return Ended(job, str(error).strip().splitlines()[0])
        finally:
            self._running = False
            self._ray.kill(self._actor)
        return found

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if self._running:
            # A message, since a process that ignores SIGINT cannot be cancelled.
            self._actor.stop.remote()
        elif self._actor is not None:
            self._ray.kill(self._actor)  # it may wait for a CPU for hours


@contextlib.contextmanager
def _cluster() -> Iterator[Any]:
    """Gives the module `ray`, connected to a cluster."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            'the engine ray needs Ray: `pip install -e ".[ray]"`.'
        ) from error
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:  # Ray itself would try for minutes where nothing listens
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(
            address=address,
            logging_level="ERROR",
            log_to_driver=False,
            # The workers need this module, and nothing else.
            runtime_env={"env_vars": {"PYTHONPATH": _python_path()}},
        )
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        raise RunError(
            f"there is no Ray cluster {where}: start one by `ray start --head`, or "
            "set RAY_ADDRESS to the address of one."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
