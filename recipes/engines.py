"""Many runs: several at a time on this machine, or on a cluster by Ray.

A run is a command that fills a folder, and the folder is the only state: what is
finished is not started again, what was stopped continues by the same command, and
what fails leaves the others alone.
"""

import contextlib
import dataclasses
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from recipes.runs import Run, RunError

# Where libraries read how many threads to use: torch, BLAS, TensorFlow, and JAX.
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL = 12  # lines of a log that tell what went wrong
_PAUSE = 0.1  # seconds between two looks at what is running
_GRACE = 10.0  # seconds that a stopped command has to end by itself


@dataclass(frozen=True)
class Job:
    """A run, as a command.

    Args:
        name: what it is called in messages.
        command: program and arguments.
        folder: of the run; `Run(folder).finished` tells that nothing is left to do.
        log: the file that output and errors are added to.
        environment: variables to set beside those of the machine it runs on.
        directory: where the command is started. Defaults to the present one.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    log: Path
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    directory: Path = dataclasses.field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        # Other machines and other directories must find the same files.
        for name in ("folder", "log"):
            object.__setattr__(self, name, self.directory / getattr(self, name))

    @property
    def finished(self) -> bool:
        """Whether the run has all its results."""
        return Run(self.folder).finished


def training_job(run: Run, arguments: Sequence[str]) -> Job:
    """Returns the job of `python -m recipes train` with some arguments.

    Its output goes to `train.log` in the run's folder.
    """
    import keras  # takes seconds, which workers need not spend

    environment = {
        "KERAS_BACKEND": keras.backend.backend(),
        "PYTHONPATH": _python_path(),
    }
    if "KERAS_HOME" in os.environ:
        environment["KERAS_HOME"] = os.environ["KERAS_HOME"]
    out = ("--out", str(run.folder))
    return Job(
        run.name,
        (sys.executable, "-m", "recipes", "train", *arguments, *out),
        run.folder,
        run.folder / "train.log",
        environment,
    )


def _python_path() -> str:
    """Returns where other processes find what this one does, `recipes` first."""
    root = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


class Result(NamedTuple):
    """How a job ended.

    Attributes:
        job: which.
        error: None of a finished run; otherwise what is wrong, in a few words.
        tail: the last lines of the log.
        seconds: how long it took.
        node: where it ran.
    """

    job: Job
    error: str | None
    tail: str
    seconds: float
    node: str

    @property
    def finished(self) -> bool:
        """Whether the run has all its results."""
        return self.error is None

    def failure(self) -> str:
        """Tells what went wrong, and where to read more."""
        log = self.job.log
        if log.is_relative_to(self.job.directory):
            log = log.relative_to(self.job.directory)
        lines = [f"failed: {self.error}; its log is {log}"]
        return "\n".join([*lines, *(f"    {line}" for line in self.tail.splitlines())])


def run_all(
    jobs: Sequence[Job],
    engine: str = "local",
    *,
    at_once: int | None = None,
    gpus: float = 0.0,
    report: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Does all jobs that are not finished; returns their results as they came.

    SIGINT, SIGTERM and SIGHUP stop what is running, and raise KeyboardInterrupt.

    Args:
        jobs: what to do, in this order.
        engine: `"local"`: commands of this machine. `"ray"`: tasks of one CPU on the
            cluster that `RAY_ADDRESS` names, or else on the one that runs on this
            machine; its nodes must share the file system, and see the interpreter and
            the job's folders under the same paths.
        at_once: how many at most. Defaults to one locally, and on Ray to what there is
            room for.
        gpus: of each task on Ray; may be a fraction.
        report: called with each result, at once.
    """
    if engine not in ENGINES:
        raise ValueError(
            f"`engine` must be one of {', '.join(ENGINES)}. Received: engine={engine!r}"
        )
    if at_once is not None and at_once < 1:
        raise ValueError(f"`at_once` must be at least 1. Received: at_once={at_once}")
    waiting = deque(job for job in jobs if not job.finished)
    results: list[Result] = []
    if not waiting:
        return results
    with ENGINES[engine](at_once, gpus) as pool, _interruptions() as interrupted:
        while waiting or pool.running:
            while waiting and pool.running < pool.room:
                pool.start(waiting.popleft())
            for result in pool.ended():
                results.append(result)
                report(result)
            if interrupted.is_set():
                raise KeyboardInterrupt
    return results


@contextlib.contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """Gives an event that the signals to stop set.

    An exception in the middle of a start would lose the process that is started.
    """
    interrupted = threading.Event()
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            # What `nohup` ignores stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- A command ----------------------------------------------------------------------


class _Command:
    """A job that is running on this machine, in a session of its own."""

    def __init__(self, job: Job, threads: int | None) -> None:
        self.job = job
        self._start = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._refused, self._offset = "", 0
        limits = {} if threads is None else dict.fromkeys(THREADS, str(threads))
        try:
            job.log.parent.mkdir(parents=True, exist_ok=True)
            with open(job.log, "ab") as log:
                log.write(f"$ {shlex.join(job.command)}\n".encode())
                self._offset = log.tell()
                log.flush()
                self._process = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=job.directory,
                    env={
                        **limits,
                        "PYTHONUNBUFFERED": "1",
                        **os.environ,
                        **job.environment,
                    },
                    start_new_session=True,
                )
        except OSError as error:
            self._refused = str(error)

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def result(self, node: str) -> Result:
        """Tells how it ended."""
        seconds = time.monotonic() - self._start
        error = self._refused or _reason(
            self._process.returncode if self._process else 0
        )
        if not error and not self.job.finished:
            error = "ended, but the run is not finished"
        tail = "" if self._refused else self._tail()
        return Result(self.job, error or None, tail, seconds, node)

    def _tail(self) -> str:
        with open(self.job.log, "rb") as log:
            log.seek(max(self._offset, log.seek(0, os.SEEK_END) - 10_000))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join([line for line in lines if line.strip()][-_TAIL:])

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def wait(self, seconds: float) -> None:
        """Waits until it has ended, and ends it by force if it takes longer."""
        if self._process is None:
            return
        try:
            self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        # The group: a command may have started others.
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}" if code else ""
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def processors() -> int:
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- Engines ------------------------------------------------------------------------


class _Engine(Protocol):
    """Starts jobs, tells which have ended, and stops the others when it is left."""

    room: float

    def __init__(self, at_once: int | None, gpus: float) -> None: ...

    def __enter__(self) -> "_Engine": ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def running(self) -> int: ...

    def start(self, job: Job) -> None: ...

    def ended(self) -> list[Result]: ...


class _Local:
    """Processes of this machine, which share its processors."""

    def __init__(self, at_once: int | None, gpus: float) -> None:
        if gpus:
            raise ValueError(
                f"`gpus` is for the engine ray: local runs share them. Received: "
                f"gpus={gpus}"
            )
        self.room: float = at_once or 1
        # One at a time needs no limit.
        self._threads = (
            None if self.room == 1 else max(1, processors() // int(self.room))
        )
        self._commands: list[_Command] = []

    def __enter__(self) -> "_Local":
        return self

    def __exit__(self, *error: object) -> None:
        for command in self._commands:
            command.terminate()
        deadline = time.monotonic() + _GRACE
        for command in self._commands:
            command.wait(deadline - time.monotonic())

    @property
    def running(self) -> int:
        return len(self._commands)

    def start(self, job: Job) -> None:
        self._commands.append(_Command(job, self._threads))

    def ended(self) -> list[Result]:
        done = [command for command in self._commands if command.ended]
        if not done:
            time.sleep(_PAUSE)
        self._commands = [c for c in self._commands if c not in done]
        return [command.result(platform.node()) for command in done]


class _Ray:
    """Tasks of a Ray cluster: one CPU each, and GPUs if asked for.

    A command that fails is a result like any other, and not repeated. A task whose node
    or worker dies is: the run continues at its checkpoint.
    """

    def __init__(self, at_once: int | None, gpus: float) -> None:
        self.room: float = at_once or float("inf")
        self._gpus = gpus
        self._tasks: dict[Any, tuple[Job, float]] = {}

    def __enter__(self) -> "_Ray":
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                'the engine ray needs Ray: `pip install -e ".[ray]"`.'
            ) from error
        self._ray = ray
        self._connected = not ray.is_initialized()
        if self._connected:
            self._connect()
        wanted = {"CPU": 1.0, "GPU": self._gpus}
        if not any(_has(node, wanted) for node in ray.nodes()):
            print(
                f"no node of the Ray cluster has {_listed(wanted)}: runs wait for one.",
                file=sys.stderr,
            )
        self._execute = ray.remote(
            num_cpus=1,
            num_gpus=self._gpus,
            max_retries=3,
            retry_exceptions=False,
            scheduling_strategy="SPREAD",
        )(_execute)
        return self

    def _connect(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "auto")
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _reach(address)
            self._ray.init(
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
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray sets one of its own

    def __exit__(self, *error: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            self._ray.cancel(task)
        if tasks:
            _, tasks = self._ray.wait(
                tasks, num_returns=len(tasks), timeout=1.5 * _GRACE
            )
        for task in tasks:
            self._ray.cancel(task, force=True)
        if self._connected:
            self._ray.shutdown()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def start(self, job: Job) -> None:
        self._tasks[self._execute.remote(job)] = (job, time.monotonic())

    def ended(self) -> list[Result]:
        done, _ = self._ray.wait(list(self._tasks), timeout=_PAUSE)
        return [self._result(task) for task in done]

    def _result(self, task: Any) -> Result:
        job, start = self._tasks.pop(task)
        try:
            found: Result = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0]
            return Result(job, first, "", time.monotonic() - start, "unknown")
        return found


def _has(node: Mapping[str, Any], wanted: Mapping[str, float]) -> bool:
    there = node["Resources"]
    return node["Alive"] and all(there.get(k, 0) >= v for k, v in wanted.items())


def _listed(wanted: Mapping[str, float]) -> str:
    return " and ".join(f"{value:g} {name}" for name, value in wanted.items() if value)


def _reach(address: str) -> None:
    """Raises an error where nobody listens; Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _execute(job: Job) -> Result:
    """Does a job in a worker of Ray, which a cancellation interrupts."""
    import ray

    # Ray repeats a cancellation every two seconds: none may stop the stopping.
    with _interruptions() as interrupted:
        command = _Command(job, threads=1)
        while not command.ended and not interrupted.wait(_PAUSE):
            pass
        command.terminate()
        command.wait(_GRACE)
        if interrupted.is_set():
            raise KeyboardInterrupt
    return command.result(ray.get_runtime_context().get_node_id())


ENGINES: dict[str, type[_Engine]] = {"local": _Local, "ray": _Ray}
